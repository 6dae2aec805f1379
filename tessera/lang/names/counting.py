"""Bits, sets and histograms of several variables, and NumPy's small functions of shapes and axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Dim
from tessera.core.dtype import bool_, i64, u8
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.lang.names.grids import diag_indices, tril_indices, triu_indices
from tessera.lang.names.statistics import bincount, histogram_bin_edges
from tessera.lang.names.together import as_tensor, floats
from tessera.ops.creation import full_like
from tessera.ops.define import ArrayLike, as_value, axis_of, cast_to, public
from tessera.ops.elementwise import abs as abs_
from tessera.ops.elementwise import (
    add,
    bitwise_and,
    bitwise_left_shift,
    bitwise_right_shift,
    div,
    eq,
    ge,
    logical_and,
    lt,
    mul,
    ne,
    sub,
    where,
)
from tessera.ops.fft import irfftn
from tessera.ops.reduction import sum as sum_
from tessera.ops.sets import isin, unique_values
from tessera.ops.shape import concat, expand_dims, moveaxis, pad, reshape
from tessera.ops.solve import inv, solve
from tessera.ops.sorting import searchsorted

# Bits ------------------------------------------------------------------------------------------


@public
def bitwise_count(x: ArrayLike) -> Value:
    """How many bits of |x| are 1, as u8."""
    v = as_value(x)
    if v.dtype.kind not in "iu":
        raise DTypeError(f"bitwise_count: got {v.type}, expected whole numbers")
    v = abs_(v) if v.dtype.kind == "i" else v
    total = full_like(v, 0)
    for k in range(v.dtype.bits):
        total = add(total, bitwise_and(bitwise_right_shift(v, full_like(v, k)), full_like(v, 1)))
    return cast_to(total, u8)


def _shifts(bitorder: str) -> np.ndarray[Any, Any]:
    if bitorder not in ("big", "little"):
        raise OperandError(f"packbits: bitorder is {bitorder!r}, expected 'big' or 'little'")
    ups = np.arange(8, dtype=np.uint8)
    return ups[::-1].copy() if bitorder == "big" else ups


@public
def packbits(x: ArrayLike, axis: int | None = None, bitorder: str = "big") -> Value:
    """Eight zeros and ones after another along an axis as one u8; the end is filled with zeros."""
    v = as_value(x)
    v = reshape(v, (-1,)) if axis is None else v
    a = axis_of("packbits", -1 if axis is None else axis, v.ndim)
    bits = moveaxis(cast_to(ne(v, full_like(v, 0)), u8), a, -1)
    left = -bits.shape[-1] % 8
    bits = pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, left)])
    eights = reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    found = cast_to(sum_(bitwise_left_shift(eights, as_value(_shifts(bitorder))), axis=-1), u8)
    return moveaxis(found, -1, a)


@public
def unpackbits(
    x: ArrayLike, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Value:
    """The bits of u8 numbers along an axis, as zeros and ones of u8; count keeps so many of them."""
    v = as_value(x)
    if v.dtype is not u8:
        raise DTypeError(f"unpackbits: got {v.type}, expected u8; cast it: x.astype(ts.u8)")
    v = reshape(v, (-1,)) if axis is None else v
    a = axis_of("unpackbits", -1 if axis is None else axis, v.ndim)
    parts = expand_dims(moveaxis(v, a, -1), -1)
    bits: Any = bitwise_and(bitwise_right_shift(parts, as_value(_shifts(bitorder))), 1)
    bits = reshape(bits, (*bits.shape[:-2], bits.shape[-2] * 8))
    if count is not None:
        size = bits.shape[-1]
        end = count if count >= 0 else size + count
        bits = (
            bits[..., :end]
            if end <= size
            else pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, end - size)])
        )
    return moveaxis(bits, -1, a)


# Sets ------------------------------------------------------------------------------------------


def _flat(x: ArrayLike) -> Any:
    return reshape(as_value(x), (-1,))


@public
def union1d(x: ArrayLike, y: ArrayLike) -> Value:
    """The elements of either, in order, once each; its size depends on the data."""
    return unique_values(concat([_flat(x), _flat(y)]))


@public
def intersect1d(x: ArrayLike, y: ArrayLike) -> Value:
    """The elements of both, in order, once each; its size depends on the data."""
    found: Any = unique_values(_flat(x))
    return as_value(found[isin(found, _flat(y))])


@public
def setdiff1d(x: ArrayLike, y: ArrayLike) -> Value:
    """The elements of x that are not in y, in order, once each; its size depends on the data."""
    found: Any = unique_values(_flat(x))
    return as_value(found[isin(found, _flat(y), invert=True)])


@public
def setxor1d(x: ArrayLike, y: ArrayLike) -> Value:
    """The elements of one of both alone, in order, once each; its size depends on the data."""
    return union1d(setdiff1d(x, y), setdiff1d(y, x))


# Histograms ------------------------------------------------------------------------------------


@public
def histogramdd(
    points: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike = None, density: bool = False
) -> tuple[Value, list[Value]]:  # fmt: skip
    """How many of the points, (number, axes), fall in each box of a grid, and the edges along each axis."""
    v: Any = floats(points)
    if v.ndim != 2 or isinstance(v.shape[1], Dim):
        raise ShapeError(f"histogramdd: points are {v.type}, expected (number, axes)")
    axes = v.shape[1]
    each = [bins] * axes if isinstance(bins, int) else list(bins)
    if len(each) != axes:
        raise OperandError(f"histogramdd: got {len(each)} bins for {axes} axes")
    spans = [None] * axes if range is None else list(range)
    edges: list[Any] = [
        floats(histogram_bin_edges(v[:, k], b, s))
        for k, (b, s) in enumerate(zip(each, spans, strict=True))
    ]
    sizes = tuple(e.shape[0] - 1 for e in edges)
    place, inside = full_like(v[:, 0], 0, i64), full_like(v[:, 0], True, bool_)
    for k, (e, n) in enumerate(zip(edges, sizes, strict=True)):
        x = v[:, k]
        at = sub(searchsorted(e, x, "right"), 1)
        at = where(eq(x, e[-1]), n - 1, at)
        inside = logical_and(inside, logical_and(ge(at, 0), lt(at, n)))
        place = add(mul(place, n), at)
    total = math.prod(sizes)
    counted = bincount(where(inside, place, total), weights, length=total + 1)
    counts: Any = reshape(as_tensor(counted)[:total], sizes)
    if not density:
        return cast_to(counts, v.dtype) if weights is None else counts, edges
    wide = cast_to(counts, v.dtype)
    for k, e in enumerate(edges):
        widths = sub(e[1:], e[:-1])
        wide = div(wide, reshape(widths, (1,) * k + (-1,) + (1,) * (axes - k - 1)))
    return div(wide, sum_(cast_to(counts, v.dtype))), edges


@public
def histogram2d(
    x: ArrayLike, y: ArrayLike, bins: Any = 10, range: Any = None, weights: ArrayLike = None,
    density: bool = False,
) -> tuple[Value, Value, Value]:  # fmt: skip
    """How many pairs (x, y) fall in each box of a grid, and the edges along both axes."""
    both = concat([expand_dims(floats(x), 1), expand_dims(floats(y), 1)], axis=1)
    single = not isinstance(bins, int) and np.ndim(bins[0]) == 0 and len(bins) != 2
    counts, (first, second) = histogramdd(
        both, [bins, bins] if single else bins, range, weights, density
    )
    return counts, first, second


# Indices and shapes ----------------------------------------------------------------------------


def _sides(op: str, x: ArrayLike) -> tuple[Any, Any]:
    shape = as_value(x).shape
    if len(shape) != 2 or any(isinstance(s, Dim) for s in shape):
        raise ShapeError(f"{op}: got {as_value(x).type}, expected a matrix of known sizes")
    return shape[0], shape[1]


@public
def tril_indices_from(x: ArrayLike, k: int = 0) -> tuple[Value, Value]:
    """The places on and below a diagonal of a matrix like x."""
    n, m = _sides("tril_indices_from", x)
    return tril_indices(n, k, m)


@public
def triu_indices_from(x: ArrayLike, k: int = 0) -> tuple[Value, Value]:
    """The places on and above a diagonal of a matrix like x."""
    n, m = _sides("triu_indices_from", x)
    return triu_indices(n, k, m)


@public
def diag_indices_from(x: ArrayLike) -> tuple[Value, ...]:
    """The places on the diagonal of a tensor like x, whose axes have one size."""
    v = as_value(x)
    if v.ndim < 2 or len(set(v.shape)) != 1 or isinstance(v.shape[0], Dim):
        raise ShapeError(f"diag_indices_from: got {v.type}, expected axes of one known size")
    return diag_indices(v.shape[0], v.ndim)


@public
def fromfunction(f: Callable[..., Any], shape: Sequence[int], dtype: Any = float) -> Any:
    """f of the coordinates of every place: fromfunction(f, (2, 3)) is f(i, j) of two 2 x 3 tensors."""
    return f(*(as_value(a) for a in np.indices(tuple(shape), dtype)))


@public
def apply_over_axes(f: Callable[[Any, int], Any], x: ArrayLike, axes: int | Sequence[int]) -> Value:
    """f(x, axis) for one axis after another; an axis that f removes is kept with size 1."""
    v = as_value(x)
    for a in [axes] if isinstance(axes, int) else axes:
        k = axis_of("apply_over_axes", a, v.ndim)
        found = as_value(f(v, k))
        if found.ndim not in (v.ndim, v.ndim - 1):
            raise ShapeError(
                f"apply_over_axes: the function made {found.type} of {v.type}, expected its axis {k} reduced"
            )
        v = found if found.ndim == v.ndim else expand_dims(found, k)
    return v


# Tensors as matrices ---------------------------------------------------------------------------


@public
def tensorinv(x: ArrayLike, ind: int = 2) -> Value:
    """The inverse of x for tensordot over its first ind axes."""
    v = as_value(x)
    rows, columns = math.prod(v.shape[:ind]), math.prod(v.shape[ind:])
    if not 0 < ind <= v.ndim or rows != columns:
        raise ShapeError(
            f"tensorinv: the first {ind} axes of {v.type} have {rows} elements and the others {columns}, "
            "expected the same number"
        )
    return reshape(inv(reshape(v, (rows, columns))), (*v.shape[ind:], *v.shape[:ind]))


@public
def tensorsolve(a: ArrayLike, b: ArrayLike) -> Value:
    """The x of tensordot(a, x, x.ndim) = b."""
    m, r = as_value(a), as_value(b)
    shape, total = m.shape[r.ndim :], math.prod(r.shape)
    if math.prod(shape) != total:
        raise ShapeError(
            f"tensorsolve: {m.type} has {math.prod(shape)} unknowns for the {total} elements of {r.type}"
        )
    return reshape(solve(reshape(m, (total, total)), reshape(r, (total,))), shape)


@public
def irfft2(
    x: ArrayLike, s: Sequence[int] | None = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Value:  # fmt: skip
    """The inverse of rfft2."""
    return irfftn(x, s, tuple(axes), norm)
