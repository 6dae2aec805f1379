"""Short-time Fourier transforms, the frames they are made of, and cosine transforms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.constraints import require, unify
from tessera.core.dims import Dim, Size, larger
from tessera.core.dtype import DType, as_dtype, f32
from tessera.core.errors import OperandError, ShapeError
from tessera.core.host import scipy
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Index, Params, Sample, Types
from tessera.ops.batching import leading
from tessera.ops.creation import iota
from tessera.ops.define import (
    FLOATS,
    ArrayLike,
    as_value,
    axis_of,
    broadcast,
    cast_to,
    define,
    full_of,
    public,
)
from tessera.ops.elementwise import cos, div, eq, gt, logical_or, mul, sub, where
from tessera.ops.fft import OPPOSITE, as_signal, fft, fit_axis, ifft, irfft, norm_of, rfft
from tessera.ops.shape import matrix_transpose, pad, slice_

# Frames -----------------------------------------------------------------------------------------


def _frame_types(types: Types, p: Params) -> list[TensorType]:
    *batch, length = types[0].shape
    return [types[0].with_shape((*batch, (length - p["size"]) // p["hop"] + 1, p["size"]))]


def _frame_view(index: Index, types: Types, p: Params) -> Index:
    *batch, i, j = index
    return (*batch, i * p["hop"] + j)


def _frame(x: Any, size: int, hop: int) -> Any:
    starts = np.arange(0, x.shape[-1] - size + 1, hop)
    return x[..., starts[:, None] + np.arange(size)]


@define(
    infer=_frame_types, view=_frame_view, numpy=_frame, linear=(0,), batch=leading,
    transpose=lambda n, ct, k: fit_axis(
        "frame", overlap_add.bind(ct, hop=n.params["hop"]), ct.ndim - 2, n.operands[0].shape[-1]
    ),
    samples=(Sample((7,), size=3, hop=2), Sample((2, 5), size=2, hop=3), Sample((1,), size=1, hop=1)),
)  # fmt: skip
def frame(x: ArrayLike, size: Size, hop: Size) -> Value:
    """The pieces of `size` elements along the last axis that start every `hop` elements."""
    v = as_value(x, "frame")
    _check_positive("frame", size=size, hop=hop)
    if v.ndim == 0 or not require("at_least", v.shape[-1], size, "frame: the size of a frame"):
        raise ShapeError(f"frame: {v.type} has no piece of {size} elements along its last axis")
    return frame.bind(v, size=size, hop=hop)


def _check_positive(op: str, **sizes: Any) -> None:
    for name, n in sizes.items():
        if not isinstance(n, int | Dim) or not require("at_least", n, 1, f"{op}: the {name}"):
            raise OperandError(f"{op}: {name} is {n}, expected a positive integer")


def _overlap_add_types(types: Types, p: Params) -> list[TensorType]:
    *batch, count, size = types[0].shape
    return [types[0].with_shape((*batch, (count - 1) * p["hop"] + size))]


def _overlap_add(x: Any, hop: int) -> Any:
    *batch, count, size = x.shape
    out = np.zeros((*batch, (count - 1) * hop + size), x.dtype)
    for i in range(count):
        out[..., i * hop : i * hop + size] += x[..., i, :]
    return out


@define(
    infer=_overlap_add_types, call="overlap_add", total=True, kinds="uifc", numpy=_overlap_add, linear=(0,),
    batch=leading,
    transpose=lambda n, ct, k: frame.bind(ct, size=n.operands[0].shape[-1], hop=n.params["hop"]),
    samples=(Sample((3, 4), hop=2), Sample((2, 2, 3), hop=4), Sample((1, 1), hop=1)),
)  # fmt: skip
def overlap_add(x: ArrayLike, hop: Size) -> Value:
    """The sum of frames laid out every `hop` elements: the transpose of frame."""
    v = as_value(x, "overlap_add")
    _check_positive("overlap_add", hop=hop)
    if v.ndim < 2 or not require("at_least", v.shape[-2], 1, "overlap_add: the frames"):
        raise ShapeError(f"overlap_add: {v.type} has no frames; its last axes are frames, elements")
    return overlap_add.bind(v, hop=hop)


# Short-time transforms --------------------------------------------------------------------------


@public
def hann_window(n: Size, periodic: bool = True, dtype: Any = f32) -> Value:
    """sin(pi k / n)**2, or over n - 1 when not periodic: the window of Julius von Hann."""
    to = as_dtype(dtype)
    _check_positive("hann_window", n=n)
    if n == 1:
        return full_of((1,), 1, to)
    turn = div(cast_to(iota((n,), 0), to), n if periodic else n - 1)
    return sub(0.5, mul(cos(mul(turn, 2 * math.pi)), 0.5))


def _window(op: str, window: ArrayLike, dtype: DType, hop: Size | None) -> tuple[Value, Size, Size]:
    """Window, its size and the hop, a quarter of it unless given; an integer means hann_window."""
    is_size = isinstance(window, int | Dim)
    w = hann_window(window, dtype=dtype) if is_size else as_value(window, op)
    if w.ndim != 1:
        raise ShapeError(f"{op}: the window is {w.type}, expected one axis or a size")
    size: Size = w.shape[0]
    step = larger(size // 4, 1) if hop is None else hop
    _check_positive(op, hop=step)
    return cast_to(w, dtype), size, step


@public
def stft(
    x: ArrayLike,
    window: ArrayLike,
    hop: Size | None = None,
    center: bool = True,
    norm: str | None = None,
) -> Value:
    """The transforms of windowed frames, (..., frequency, frame): rfft of real x, else fft.

    With center, zeros are put around x so that frame t is centred at x[t * hop].
    """
    v = as_signal("stft", x)
    w, size, step = _window("stft", window, v.dtype.real, hop)
    if v.ndim == 0:
        raise ShapeError(f"stft: {v.type} is a scalar, expected at least one axis")
    if center:
        v = pad(v, (*((0, 0),) * (v.ndim - 1), (size // 2, size // 2)))
    pieces = mul(frame(v, size, step), w)
    y = fft(pieces, norm=norm) if v.dtype.kind == "c" else rfft(pieces, norm=norm)
    return matrix_transpose(y)


@public
def istft(
    x: ArrayLike,
    window: ArrayLike,
    hop: Size | None = None,
    center: bool = True,
    norm: str | None = None,
    length: Size | None = None,
    onesided: bool = True,
) -> Value:
    """The signal of `length` elements whose stft is nearest to x; onesided for a real signal."""
    v = as_signal("istft", x)
    w, size, step = _window("istft", window, v.dtype.real, hop)
    bins = size // 2 + 1 if onesided else size
    if v.ndim < 2 or not unify(v.shape[-2], bins, "istft: the frequencies of the window"):
        raise ShapeError(f"istft: {v.type} has not the {bins} frequencies of a window of {size}")
    spectra = matrix_transpose(v)
    pieces = irfft(spectra, size, norm=norm) if onesided else ifft(spectra, norm=norm)
    y = overlap_add(mul(pieces, w), step)
    weight = overlap_add(broadcast(mul(w, w), pieces.shape[-2:]), step)
    y = div(y, where(gt(weight, 1e-10), weight, 1))
    cut = size // 2 if center else 0
    stop = y.shape[-1] - (cut if length is None else 0)
    y = slice_(y, (*(0,) * (y.ndim - 1), cut), (*y.shape[:-1], stop))
    return fit_axis("istft", y, y.ndim - 1, length)


# Cosine transforms ------------------------------------------------------------------------------

_INVERSE_TYPE = {1: 1, 2: 3, 3: 2, 4: 4}


def _dct_transpose(n: Node, ct: Value, k: int) -> Value:
    """Types 2 and 3, and 1 and 4 each with itself, are transposes up to the weight of the ends."""
    kind, axis, norm = n.params["type"], n.params["axis"], n.params["norm"]
    if norm == "ortho" or kind == 4:
        return dct.bind(ct, **{**n.params, "type": _INVERSE_TYPE[kind]})
    at = iota(ct.shape, axis)
    end = eq(at, 0) if kind != 1 else logical_or(eq(at, 0), eq(at, ct.shape[axis] - 1))
    if kind == 3:
        y = dct.bind(ct, type=2, axis=axis, norm=norm)
        return where(end, mul(y, 0.5), y)
    y = dct.bind(where(end, mul(ct, 2), ct), type=_INVERSE_TYPE[kind], axis=axis, norm=norm)
    return where(end, mul(y, 0.5), y) if kind == 1 else y


@define(
    infer=lambda types, p: types, call="dct", total=True, kinds=FLOATS, linear=(0,), by_parts=True,
    transpose=_dct_transpose,
    numpy=lambda x, type, axis, norm: scipy("fft").dct(x, type, axis=axis, norm=norm),
    samples=(
        Sample((4,)), Sample((2, 5), type=1), Sample((3,), type=3, norm="ortho"),
        Sample((3, 2), type=4, axis=0), Sample((4,), n=6, norm="forward"), Sample((1,)),
        Sample((5,), type=3), Sample((4,), type=1, norm="ortho"), Sample((0, 3)),
    ),
)  # fmt: skip
def dct(
    x: ArrayLike,
    type: int = 2,
    n: Size | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> Value:
    """The discrete cosine transform of a type from 1 to 4 along an axis; orthogonal with ortho."""
    return _cosine("dct", x, type, n, axis, norm_of("dct", norm))


@public
def idct(
    x: ArrayLike,
    type: int = 2,
    n: Size | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> Value:
    """The inverse of dct of the same type and norm."""
    flipped = OPPOSITE[norm_of("idct", norm)]
    return _cosine("idct", x, _INVERSE_TYPE.get(type, type), n, axis, flipped)


def _cosine(op: str, x: ArrayLike, type: int, n: Size | None, axis: int, norm: str) -> Value:
    v = as_signal(op, x)
    if type not in _INVERSE_TYPE:
        raise OperandError(f"{op}: type is {type!r}, expected 1, 2, 3 or 4")
    a = axis_of(op, axis, v.ndim)
    v = fit_axis(op, v, a, n)
    if type == 1 and not require("at_least", v.shape[a], 2, f"{op}: the size for type 1"):
        raise ShapeError(f"{op}: axis {a} of {v.type} has 1 element, type 1 needs at least 2")
    return dct.bind(v, type=type, axis=a, norm=norm)
