"""Convolutions of signals and images with a kernel, as operators on flattened grids.

y[i] = sum over q of w[q] x[i - q + offset], where x is zero outside of its grid or goes on periodically.
The transpose has the kernel the other way round, the sizes swapped and the offsets K - 1 - offset.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.algebra.apply import conjugate, light_cost
from tessera.algebra.constructors.fourier import sizes_of
from tessera.algebra.kind import Cost, Kind, always, register
from tessera.algebra.operator import Operator, function
from tessera.core.errors import NumericalError, OperandError, ShapeError
from tessera.ir.graph.ir import Value, host_data
from tessera.ops.arrange import roll
from tessera.ops.convolution import conv
from tessera.ops.define import as_value, cast_to, floating
from tessera.ops.elementwise import div, mul, real
from tessera.ops.fft import fftn, ifftn
from tessera.ops.reduction import sum as total
from tessera.ops.shape import expand_dims, flip, moveaxis, pad, reshape, slice_

DIRECT = 128  # kernels of up to so many elements are summed window by window
MODES = ("full", "same", "valid")


@function
def conv1d(kernel: Any, n: Any, mode: str = "same", boundary: str = "zero") -> Operator:
    """The convolution of signals of n elements with a kernel, as numpy.convolve; or periodic."""
    return _convolution("conv1d", kernel, sizes_of("conv1d", (n,)), mode, boundary)


@function
def conv2d(kernel: Any, shape: Any, mode: str = "same", boundary: str = "zero") -> Operator:
    """The convolution of flattened images with a kernel, as scipy.signal.convolve2d; or periodic."""
    return _convolution("conv2d", kernel, sizes_of("conv2d", shape), mode, boundary)


def _convolution(
    user: str, kernel: Any, sizes: tuple[int, ...], mode: str, boundary: str
) -> Operator:
    w = floating(as_value(kernel, user))
    rank = 1 if user == "conv1d" else 2
    if w.ndim != rank or len(sizes) != rank or 0 in w.shape:
        raise ShapeError(
            f"{user}: the kernel is {w.type} for a grid of {sizes}, expected {rank} axes of at least one "
            "element each"
        )
    if mode not in MODES:
        raise OperandError(f"{user}: mode is {mode!r}, expected 'full', 'same' or 'valid'")
    if boundary == "periodic":
        offsets = tuple((k - 1) // 2 for k in w.shape)
        return Operator("convolution", data=(w,), static=(sizes, sizes, offsets, True))
    if boundary != "zero":
        raise OperandError(f"{user}: boundary is {boundary!r}, expected 'zero' or 'periodic'")
    return _with_zeros(user, w, sizes, mode)


def _with_zeros(user: str, w: Value, sizes: tuple[int, ...], mode: str) -> Operator:
    pairs = list(zip(sizes, w.shape, strict=True))
    if mode == "full":
        out, offsets = tuple(n + k - 1 for n, k in pairs), tuple(0 for _ in pairs)
    elif mode == "same":
        out, offsets = sizes, tuple((k - 1) // 2 for k in w.shape)
    else:
        out, offsets = tuple(n - k + 1 for n, k in pairs), tuple(k - 1 for k in w.shape)
    if min(out) < 1:
        raise ShapeError(
            f"{user}: the kernel {w.type} is larger than the grid {sizes}; use mode 'same'"
        )
    return Operator("convolution", data=(w,), static=(sizes, out, offsets, False))


# Application ------------------------------------------------------------------------------------


def _apply(a: Operator, x: Value) -> Value:
    sizes, out, _, periodic = a.static
    grid = reshape(x, (*sizes, x.shape[1]))
    w = cast_to(a.data[0], x.dtype)
    if periodic:
        y = _periodic(a, w, grid)
    elif math.prod(w.shape) <= DIRECT:
        y = _by_windows(a, w, grid)
    else:
        y = _by_transforms(a, w, grid)
    return reshape(y, (math.prod(out), x.shape[1]))


def _by_windows(a: Operator, w: Value, x: Value) -> Value:
    """conv correlates, so it takes the kernel from the other end."""
    sizes, out, offsets, _ = a.static
    before = [k - 1 - o for k, o in zip(w.shape, offsets, strict=True)]
    after = [m - n + o for m, n, o in zip(out, sizes, offsets, strict=True)]
    batch = expand_dims(moveaxis(x, -1, 0), 1)
    window = expand_dims(flip(w), (0, 1))
    y = conv(batch, window, padding=tuple(zip(before, after, strict=True)))
    return moveaxis(reshape(y, (x.shape[-1], *out)), 0, -1)


def _spectrum(w: Value, whole: tuple[int, ...], like: Value) -> Value:
    """The transform of a kernel filled with zeros, with an axis for the columns of `like`."""
    return expand_dims(fftn(w, whole), -1) if like.ndim > len(whole) else fftn(w, whole)


def _times(w: Value, x: Value, whole: tuple[int, ...]) -> Value:
    axes = tuple(range(len(whole)))
    y = ifftn(mul(_spectrum(w, whole, x), fftn(x, whole, axes)), whole, axes)
    return y if x.dtype.kind == "c" else cast_to(real(y), x.dtype)


def _by_transforms(a: Operator, w: Value, x: Value) -> Value:
    sizes, out, offsets, _ = a.static
    whole = tuple(n + k - 1 for n, k in zip(sizes, w.shape, strict=True))
    y = _times(w, x, whole)
    stop = tuple(o + m for o, m in zip(offsets, out, strict=True))
    return slice_(y, (*offsets, 0), (*stop, x.shape[-1]))


def _wrapped(a: Operator, w: Value) -> Value:
    return wrapped_kernel(w, a.static[0], a.static[2])


def wrapped_kernel(w: Value, sizes: tuple[int, ...], offsets: tuple[int, ...]) -> Value:
    """The kernel as a grid: what lies past the end comes back at the start."""
    for axis, n in enumerate(sizes):
        k = w.shape[axis]
        turns = -(-k // n)
        fill = tuple((0, turns * n - k) if i == axis else (0, 0) for i in range(w.ndim))
        whole = pad(w, fill) if turns * n > k else w
        cut = (*w.shape[:axis], turns, n, *w.shape[axis + 1 :])
        w = total(reshape(whole, cut), axis)
    return roll(w, tuple(-o for o in offsets), tuple(range(len(sizes))))


def _periodic(a: Operator, w: Value, x: Value) -> Value:
    return _times(_wrapped(a, w), x, a.static[0])


def _solve(a: Operator, b: Value) -> Value | None:
    """Division of transforms when the grid is periodic."""
    sizes, _, _, periodic = a.static
    if not periodic:
        return None
    w = fftn(_wrapped(a, cast_to(a.data[0], b.dtype)))
    _refuse_singular(a, w)
    axes = tuple(range(len(sizes)))
    grid = reshape(b, (*sizes, b.shape[1]))
    y = ifftn(div(fftn(grid, axes=axes), expand_dims(w, -1)), axes=axes)
    return reshape(y if b.dtype.kind == "c" else cast_to(real(y), b.dtype), b.shape)


def _refuse_singular(a: Operator, w: Value) -> None:
    if w.storage is None:
        return
    least, most = float(np.min(np.abs(host_data(w)))), float(np.max(np.abs(host_data(w))))
    if least <= most * float(np.finfo(host_data(w).dtype).eps):
        raise NumericalError(f"solve: {a} is singular: an eigenvalue is 0; use pseudoinverse")


def _transpose(a: Operator) -> Operator:
    sizes, out, offsets, periodic = a.static
    turned = tuple(k - 1 - o for k, o in zip(a.data[0].shape, offsets, strict=True))
    return Operator("convolution", data=(flip(a.data[0]),), static=(out, sizes, turned, periodic))


def _flags(a: Operator) -> frozenset[str]:
    sizes, _, _, periodic = a.static
    one = len(sizes) == 1
    if periodic:
        return frozenset(("circulant",) if one else ("normal",))
    return frozenset(("toeplitz",) if one else ())


def _cost(a: Operator, k: int) -> Cost:
    n, size = float(sum(a.shape)), math.prod(a.data[0].shape)
    if not a.static[3] and size <= DIRECT:
        return light_cost(a, k, 2.0 * a.shape[0] * size * k, size)
    return light_cost(a, k, 10.0 * n * math.log2(n) * k, size, 4)


def _exact(a: Operator, parts: Any, data: Any) -> Any:
    """Element by element from the definition."""
    sizes, out, offsets, periodic = a.static
    m = np.zeros((*out, *sizes), int).astype(object)
    for i in np.ndindex(out):
        for q in np.ndindex(data[0].shape):
            j = tuple(p - s + o for p, s, o in zip(i, q, offsets, strict=True))
            if periodic:
                j = tuple(p % n for p, n in zip(j, sizes, strict=True))
            if all(0 <= p < n for p, n in zip(j, sizes, strict=True)):
                m[(*i, *j)] = m[(*i, *j)] + data[0][q]
    return m.reshape(math.prod(out), math.prod(sizes))


register(Kind(
    name="convolution", doc="A convolution with a kernel.", linear=always,
    shape=lambda parts, data, static: (math.prod(static[1]), math.prod(static[0])), apply=_apply,
    transpose=_transpose,
    conj=lambda a: Operator("convolution", data=(conjugate(a.data[0]),), static=a.static),
    flags=_flags, cost=_cost, solve=_solve, exact=_exact,
))  # fmt: skip
