"""Discrete Fourier transforms.

fft and ifft act on complex tensors over any axes, rfft and irfft on one axis; the others are made
of them.  The matrix of a transform is symmetric, so fft and ifft are their own transposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require, unify
from tessera.core.dims import Dim, Size
from tessera.core.dtype import as_dtype, complex_of, f32
from tessera.core.errors import AxisError, DTypeError, OperandError, ShapeError
from tessera.core.host import scipy
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.arrange import roll
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    AxisLike,
    as_value,
    axes_of,
    axis_of,
    cast_to,
    define,
    floating,
    full_of,
    public,
)
from tessera.ops.elementwise import conj, div, eq, logical_or, lt, mul, real, sub, where
from tessera.ops.shape import pad

Sizes = Sequence[Size | None]  # None keeps the size of an axis

# A transform and its inverse share the factor 1/n: "forward" puts it into the transform,
# "backward" into the inverse, "ortho" one half into each.
OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
_SAMPLES = (
    Sample((4,)), Sample((2, 5)), Sample((1,)), Sample((3, 2), axis=0, norm="ortho"),
    Sample((4,), n=6, norm="forward"), Sample((5,), n=3), Sample((0, 3)),
)  # fmt: skip

# Arguments --------------------------------------------------------------------------------------


def as_signal(op: str, x: ArrayLike) -> Value:
    """x as a tensor of floats; a lone integer is the size of an operator, not a signal."""
    if isinstance(x, int | np.integer):
        raise OperandError(f"{op}: got the integer {x}, expected a tensor to transform")
    return floating(as_value(x, op))


def norm_of(op: str, norm: str | None) -> str:
    """A name of OPPOSITE."""
    if norm is None:
        return "backward"
    if norm not in OPPOSITE:
        raise OperandError(f"{op}: norm is {norm!r}, expected 'backward', 'ortho' or 'forward'")
    return norm


def fit_axis(op: str, x: Value, axis: int, n: Size | None) -> Value:
    """x cut, or filled up with zeros, to n elements along an axis; None keeps its size."""
    size = x.shape[axis] if n is None else n if isinstance(n, Dim) else int(n)
    if not require("at_least", size, 1, f"{op}: the size of the transform"):
        raise ShapeError(
            f"{op}: axis {axis} of {x.type} has {size} elements to transform, expected at least 1"
        )
    if size == x.shape[axis]:
        return x
    zeros = (0,) * x.ndim
    high = tuple(size - m if a == axis else 0 for a, m in enumerate(x.shape))
    return pad.bind(x, full_of((), 0, x.dtype), low=zeros, high=high, inner=zeros)


def _complex(x: Value) -> Value:
    return cast_to(x, complex_of(x.dtype))


def _no_complex(op: str, x: Value) -> Value:
    if x.dtype.kind == "c":
        raise DTypeError(f"{op}: operand 0 is {x.type}, expected a real dtype; use op.fft")
    return x


def _axes_and_sizes(
    op: str, x: Value, s: Sizes | None, axes: AxisLike
) -> tuple[tuple[int, ...], tuple[Size | None, ...]]:
    """The axes of a transform and their sizes; s without axes means the last ones."""
    if axes is None and s is not None:
        axes = tuple(range(-len(s), 0))
    where_ = axes_of(op, axes, x.ndim)
    sizes = (None,) * len(where_) if s is None else tuple(s)
    if len(sizes) != len(where_):
        raise ShapeError(f"{op}: s has {len(sizes)} sizes for {len(where_)} axes")
    return where_, sizes


def _resized(op: str, x: Value, axes: Sequence[int], sizes: Sequence[Size | None]) -> Value:
    for a, n in zip(axes, sizes, strict=True):
        x = fit_axis(op, x, a, n)
    return x


# Complex transforms -----------------------------------------------------------------------------


@define(
    infer=lambda types, p: types, call="fft", total=True, kinds="c", linear=(0,), samples=_SAMPLES,
    numpy=lambda x, axes, norm: scipy("fft").fftn(x, axes=axes, norm=norm),
    transpose=lambda n, ct, k: fft.bind(ct, **n.params), onnx="DFT",
)  # fmt: skip
def fft(x: ArrayLike, n: Size | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The Fourier transform along an axis, of n elements: sum of x[j] exp(-2 pi i j k / n)."""
    v = _complex(as_signal("fft", x))
    a = axis_of("fft", axis, v.ndim)
    return fft.bind(fit_axis("fft", v, a, n), axes=(a,), norm=norm_of("fft", norm))


@define(
    infer=lambda types, p: types, call="ifft", total=True, kinds="c", linear=(0,), samples=_SAMPLES,
    numpy=lambda x, axes, norm: scipy("fft").ifftn(x, axes=axes, norm=norm),
    transpose=lambda n, ct, k: ifft.bind(ct, **n.params),
)  # fmt: skip
def ifft(x: ArrayLike, n: Size | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The inverse of fft along an axis."""
    v = _complex(as_signal("ifft", x))
    a = axis_of("ifft", axis, v.ndim)
    return ifft.bind(fit_axis("ifft", v, a, n), axes=(a,), norm=norm_of("ifft", norm))


def _over_axes(
    op: str, f: Any, x: ArrayLike, s: Sizes | None, axes: AxisLike, norm: str | None
) -> Value:
    """fft or ifft over several axes."""
    v = _complex(as_signal(op, x))
    over, sizes = _axes_and_sizes(op, v, s, axes)
    ready = _resized(op, v, over, sizes)
    made: Value = f.bind(ready, axes=over, norm=norm_of(op, norm)) if over else ready
    return made


@public
def fftn(
    x: ArrayLike,
    s: Sizes | None = None,
    axes: AxisLike = None,
    norm: str | None = None,
) -> Value:
    """The Fourier transform over axes, all unless given, of s elements each."""
    return _over_axes("fftn", fft, x, s, axes, norm)


@public
def ifftn(
    x: ArrayLike,
    s: Sizes | None = None,
    axes: AxisLike = None,
    norm: str | None = None,
) -> Value:
    """The inverse of fftn."""
    return _over_axes("ifftn", ifft, x, s, axes, norm)


@public
def fft2(
    x: ArrayLike,
    s: Sizes | None = None,
    axes: AxisLike = (-2, -1),
    norm: str | None = None,
) -> Value:
    """The Fourier transform over two axes."""
    return _over_axes("fft2", fft, x, s, axes, norm)


@public
def ifft2(
    x: ArrayLike,
    s: Sizes | None = None,
    axes: AxisLike = (-2, -1),
    norm: str | None = None,
) -> Value:
    """The inverse of fft2."""
    return _over_axes("ifft2", ifft, x, s, axes, norm)


# Real transforms --------------------------------------------------------------------------------


def _with_size(t: TensorType, axis: int, n: Size) -> TensorType:
    return t.with_shape((*t.shape[:axis], n, *t.shape[axis + 1 :]))


def _rfft_types(types: Types, p: Params) -> list[TensorType]:
    t, axis = types[0], p["axis"]
    half = _with_size(t, axis, t.shape[axis] // 2 + 1)
    return [half.with_dtype(complex_of(t.dtype))]


def _rfft_transpose(n: Node, ct: Value, k: int) -> Value:
    """The real part of fft of the cotangent with zeros for the half that rfft leaves out."""
    x, axis = n.operands[0], n.params["axis"]
    whole = fit_axis("rfft", ct, axis, x.shape[axis])
    return cast_to(real(fft.bind(whole, axes=(axis,), norm=n.params["norm"])), x.dtype)


@define(
    infer=_rfft_types, call="rfft", total=True, kinds="f", linear=(0,), transpose=_rfft_transpose,
    numpy=lambda x, axis, norm: scipy("fft").rfft(x, axis=axis, norm=norm), samples=_SAMPLES,
)  # fmt: skip
def rfft(x: ArrayLike, n: Size | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The n // 2 + 1 first elements of fft of a real tensor; the others are their conjugates."""
    v = _no_complex("rfft", as_signal("rfft", x))
    a = axis_of("rfft", axis, v.ndim)
    return rfft.bind(fit_axis("rfft", v, a, n), axis=a, norm=norm_of("rfft", norm))


def _irfft_types(types: Types, p: Params) -> list[TensorType]:
    t, axis, n = types[0], p["axis"], p["n"]
    if not unify(t.shape[axis], n // 2 + 1, "irfft: the first half of the spectrum"):
        raise ShapeError(
            f"irfft: {t} has {t.shape[axis]} elements on axis {axis}, but the first half of "
            f"{n} has {n // 2 + 1}"
        )
    return [_with_size(t.with_dtype(t.dtype.real), axis, n)]


def _irfft_transpose(n: Node, ct: Value, k: int) -> Value:
    """The conjugate of rfft, twice where an element stands for its conjugate too."""
    axis, size = n.params["axis"], n.params["n"]
    y = conj(rfft.bind(ct, axis=axis, norm=OPPOSITE[n.params["norm"]]))
    at = iota(y.shape, axis)
    alone = logical_or(eq(at, 0), eq(mul(at, 2), size))
    return mul(y, where(alone, full_of((), 1, ct.dtype), full_of((), 2, ct.dtype)))


@define(
    infer=_irfft_types, call="irfft", total=True, kinds="c", linear=(0,), transpose=_irfft_transpose,
    numpy=lambda x, axis, n, norm: scipy("fft").irfft(x, n=n, axis=axis, norm=norm),
    samples=(
        Sample((4,)), Sample((2, 3), n=5), Sample((2,), n=1), Sample((3, 2), axis=0, norm="ortho"),
        Sample((4,), n=9, norm="forward"), Sample((0, 3)),
    ),
)  # fmt: skip
def irfft(x: ArrayLike, n: Size | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The real tensor of n elements, 2 * (m - 1) unless given, whose rfft is x."""
    v = _complex(as_signal("irfft", x))
    a = axis_of("irfft", axis, v.ndim)
    size = 2 * (v.shape[a] - 1) if n is None else n if isinstance(n, Dim) else int(n)
    if not require("at_least", size, 1, "irfft: the size of the result"):
        raise ShapeError(f"irfft: {v.type} gives {size} elements, expected at least 1; pass n")
    half = fit_axis("irfft", v, a, size // 2 + 1)
    return irfft.bind(half, axis=a, n=size, norm=norm_of("irfft", norm))


@public
def hfft(x: ArrayLike, n: Size | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The real Fourier transform of a signal of which x is the first half, the other conjugate."""
    v = _complex(as_signal("hfft", x))
    return irfft(conj(v), n, axis, OPPOSITE[norm_of("hfft", norm)])


@public
def ihfft(x: ArrayLike, n: Size | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The inverse of hfft."""
    v = _no_complex("ihfft", as_signal("ihfft", x))
    return conj(rfft(v, n, axis, OPPOSITE[norm_of("ihfft", norm)]))


def _last_axis(
    op: str, x: Value, s: Sizes | None, axes: AxisLike
) -> tuple[tuple[int, ...], tuple[Size | None, ...]]:
    over, sizes = _axes_and_sizes(op, x, s, axes)
    if not over:
        raise AxisError(f"{op}: {x.type} is transformed over no axes, expected at least 1")
    return over, sizes


@public
def rfftn(
    x: ArrayLike,
    s: Sizes | None = None,
    axes: AxisLike = None,
    norm: str | None = None,
) -> Value:
    """rfft over the last of the axes and fft over the others."""
    v, norm = _no_complex("rfftn", as_signal("rfftn", x)), norm_of("rfftn", norm)
    over, sizes = _last_axis("rfftn", v, s, axes)
    half = rfft(_resized("rfftn", v, over, sizes), None, over[-1], norm)
    return _over_axes("rfftn", fft, half, None, over[:-1], norm)


@public
def irfftn(
    x: ArrayLike,
    s: Sizes | None = None,
    axes: AxisLike = None,
    norm: str | None = None,
) -> Value:
    """The inverse of rfftn."""
    v = _complex(as_signal("irfftn", x))
    over, sizes = _last_axis("irfftn", v, s, axes)
    norm = norm_of("irfftn", norm)
    whole = _over_axes("irfftn", ifft, v, sizes[:-1] if s else None, over[:-1], norm)
    return irfft(whole, sizes[-1], over[-1], norm)


# Frequencies and order --------------------------------------------------------------------------


def _frequencies(op: str, n: Size, d: float, dtype: Any, count: Size) -> tuple[Value, Value]:
    """0, 1, 2... and the factor n * d that they are divided by."""
    known = isinstance(n, Dim) or (hasattr(n, "__index__") and not isinstance(n, bool))
    if not known or not require("at_least", n, 1, op):
        raise OperandError(f"{op}: n is {n!r}, expected a positive integer")
    to = as_dtype(dtype)
    return iota((count,), 0), mul(cast_to(as_value(n), to), full_of((), float(d), to))


@public
def fftfreq(n: Size, d: float = 1.0, dtype: Any = f32) -> Value:
    """The frequencies of fft of n samples at spacing d: 0, 1, ..., -2, -1 over n * d."""
    k, scale = _frequencies("fftfreq", n, d, dtype, n)
    return div(cast_to(where(lt(k, (n + 1) // 2), k, sub(k, n)), scale.dtype), scale)


@public
def rfftfreq(n: Size, d: float = 1.0, dtype: Any = f32) -> Value:
    """The frequencies of rfft of n samples at spacing d: 0, 1, ..., n // 2 over n * d."""
    k, scale = _frequencies("rfftfreq", n, d, dtype, n // 2 + 1)
    return div(cast_to(k, scale.dtype), scale)


@public
def fftshift(x: ArrayLike, axes: AxisLike = None) -> Value:
    """x with the element of frequency 0 in the middle of axes, all unless given."""
    v = as_value(x, "fftshift")
    over = axes_of("fftshift", axes, v.ndim)
    return roll(v, [v.shape[a] // 2 for a in over], over) if over else v


@public
def ifftshift(x: ArrayLike, axes: AxisLike = None) -> Value:
    """The inverse of fftshift."""
    v = as_value(x, "ifftshift")
    over = axes_of("ifftshift", axes, v.ndim)
    return roll(v, [-(v.shape[a] // 2) for a in over], over) if over else v
