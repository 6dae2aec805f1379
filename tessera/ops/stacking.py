"""Joining, numbering and counting by segment, under the names that NumPy and JAX have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Size
from tessera.core.dtype import as_dtype, f32, i64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.ir.graph.ir import Value, concrete
from tessera.ops.contraction import matmul, tensordot
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, cast_to, full_of, public, shape_of
from tessera.ops.elementwise import add, conj, floor_divide, ge, lt, mul, remainder, where
from tessera.ops.gather import scatter_add, scatter_max, scatter_min, scatter_mul
from tessera.ops.reduction import sum
from tessera.ops.shape import concat, flip, reshape, slice_, stack

# Joining


@public
def atleast_1d(x: ArrayLike) -> Value:
    """x, or a scalar as a vector of one element."""
    v = as_value(x, "atleast_1d")
    return v if v.ndim else reshape(v, (1,))


@public
def atleast_2d(x: ArrayLike) -> Value:
    """x with axes of size 1 in front until it has two."""
    v = as_value(x, "atleast_2d")
    return v if v.ndim > 1 else reshape(v, (1, *(v.shape or (1,))))


@public
def atleast_3d(x: ArrayLike) -> Value:
    """x with three axes as NumPy adds them: a vector is in the middle, a matrix gets a last axis."""
    v = as_value(x, "atleast_3d")
    if v.ndim > 2:
        return v
    return reshape(v, (*v.shape, 1) if v.ndim == 2 else (1, *(v.shape or (1,)), 1))


@public
def vstack(xs: Sequence[ArrayLike]) -> Value:
    """Tensors joined along the first axis; vectors are rows."""
    return concat([atleast_2d(x) for x in xs], 0)


@public
def hstack(xs: Sequence[ArrayLike]) -> Value:
    """Tensors joined along the second axis, vectors along the first."""
    parts = [atleast_1d(x) for x in xs]
    return concat(parts, 0 if parts and parts[0].ndim == 1 else 1)


@public
def dstack(xs: Sequence[ArrayLike]) -> Value:
    """Tensors joined along the third axis."""
    return concat([atleast_3d(x) for x in xs], 2)


@public
def column_stack(xs: Sequence[ArrayLike]) -> Value:
    """Vectors and matrices joined as columns."""
    parts = [as_value(x, "column_stack") for x in xs]
    return concat([reshape(v, (v.type.size, 1)) if v.ndim < 2 else v for v in parts], 1)


@public
def append(x: ArrayLike, values: ArrayLike, axis: int | None = None) -> Value:
    """x followed by values along an axis, both flat without one."""
    parts = [as_value(v, "append") for v in (x, values)]
    if axis is None:
        parts = [reshape(v, (v.type.size,)) for v in parts]
    return concat(parts, 0 if axis is None else axis)


@public
def ravel(x: ArrayLike) -> Value:
    """x as one axis."""
    v = as_value(x, "ravel")
    return reshape(v, (v.type.size,))


@public
def flipud(x: ArrayLike) -> Value:
    """x with its first axis in reverse."""
    return flip(x, 0)


@public
def fliplr(x: ArrayLike) -> Value:
    """x with its second axis in reverse."""
    return flip(x, 1)


def array_split(x: ArrayLike, parts: int, axis: int = 0) -> tuple[Value, ...]:
    """x cut along an axis into this many parts, the first ones one longer where they do not come out even."""
    v = as_value(x, "array_split")
    a, n = axis % v.ndim, v.shape[axis]
    each, more = divmod(n, parts)
    out, at = [], 0
    for k in range(parts):
        stop = at + each + (k < more)
        begin = tuple(at if i == a else 0 for i in range(v.ndim))
        end = tuple(stop if i == a else m for i, m in enumerate(v.shape))
        out.append(slice_(v, begin, end))
        at = stop
    return tuple(out)


# Products


@public
def dot(x: ArrayLike, y: ArrayLike) -> Value:
    """The sum of products over the last axis of x and the last but one of y; with a scalar, the product."""
    a, b = as_value(x, "dot"), as_value(y, "dot")
    if a.ndim == 0 or b.ndim == 0:
        return mul(a, b)
    if a.ndim <= 2 and b.ndim <= 2:
        return matmul(a, b)
    return tensordot(a, b, ((a.ndim - 1,), (0 if b.ndim == 1 else b.ndim - 2,)))


@public
def inner(x: ArrayLike, y: ArrayLike) -> Value:
    """The sum of products over the last axes of both."""
    a, b = as_value(x, "inner"), as_value(y, "inner")
    if a.ndim == 0 or b.ndim == 0:
        return mul(a, b)
    return tensordot(a, b, ((a.ndim - 1,), (b.ndim - 1,)))


@public
def vdot(x: ArrayLike, y: ArrayLike) -> Value:
    """The inner product of two tensors as vectors, the first conjugated."""
    return sum(mul(conj(ravel(x)), ravel(y)))


# Indices


@public
def tri(n: Size, m: Size | None = None, k: int = 0, dtype: Any = f32) -> Value:
    """A matrix with ones on and below the k-th diagonal."""
    shape = shape_of("tri", (n, n if m is None else m))
    return cast_to(ge(add(iota(shape, 0), int(k)), iota(shape, 1)), as_dtype(dtype))


@public
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Value, Value]:
    """The rows and columns of the elements on and below the k-th diagonal."""
    rows, columns = np.tril_indices(n, k, m)
    return concrete(rows, i64), concrete(columns, i64)


@public
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Value, Value]:
    """The rows and columns of the elements on and above the k-th diagonal."""
    rows, columns = np.triu_indices(n, k, m)
    return concrete(rows, i64), concrete(columns, i64)


@public
def indices(shape: Any) -> Value:
    """The index of every element of a shape along each axis, stacked."""
    sizes = shape_of("indices", shape)
    return stack([iota(sizes, a) for a in range(len(sizes))], 0)


@public
def unravel_index(index: ArrayLike, shape: Any) -> tuple[Value, ...]:
    """The indices along each axis of a shape of the elements with these places in row-major order."""
    left, out = cast_to(as_value(index, "unravel_index"), i64), []
    for n in reversed(shape_of("unravel_index", shape)):
        out.append(remainder(left, n))
        left = floor_divide(left, n)
    return tuple(out[::-1])


@public
def ravel_multi_index(places: Sequence[ArrayLike], shape: Any) -> Value:
    """The place in row-major order of the elements with these indices along each axis of a shape."""
    sizes = shape_of("ravel_multi_index", shape)
    if len(places) != len(sizes):
        raise ShapeError(
            f"ravel_multi_index: {len(places)} indices for shape {list(sizes)}, expected one for each axis"
        )
    at = cast_to(as_value(places[0], "ravel_multi_index"), i64)
    for i, n in zip(places[1:], sizes[1:], strict=True):
        at = add(mul(at, n), as_value(i, "ravel_multi_index"))
    return at


# Segments


def _segments(
    op: str, write: Any, start: Callable[[Value], Any], x: ArrayLike, ids: ArrayLike, count: int
) -> Value:
    v, k = as_value(x, op), as_value(ids, op)
    if k.dtype.kind not in "iu" or k.ndim != 1:
        raise OperandError(f"{op}: the segments are {k.type}, expected a vector of integers")
    at = cast_to(k, i64)
    at = where(lt(at, 0), count, at)  # left out
    empty = full_of((count, *v.shape[1:]), start(v), v.dtype)
    made: Value = write.bind(empty, v, at, axes=(0,))
    return made


def _edge(low: bool) -> Callable[[Value], Any]:
    def of(v: Value) -> Any:
        if v.dtype.kind == "c":
            raise DTypeError(
                f"{'segment_max' if low else 'segment_min'}: x is {v.type}, expected real numbers"
            )
        if v.dtype.kind == "f":
            return float("-inf") if low else float("inf")
        if v.dtype.kind == "b":
            return not low
        least = -(1 << (v.dtype.bits - 1)) if v.dtype.kind == "i" else 0
        return least if low else least + (1 << v.dtype.bits) - 1

    return of


@public
def segment_sum(x: ArrayLike, ids: ArrayLike, *, count: int) -> Value:
    """The sums of the rows of x by segment: row i belongs to segment ids[i] of count."""
    return _segments("segment_sum", scatter_add, lambda v: 0, x, ids, count)


@public
def segment_prod(x: ArrayLike, ids: ArrayLike, *, count: int) -> Value:
    """The products of the rows of x by segment."""
    return _segments("segment_prod", scatter_mul, lambda v: 1, x, ids, count)


@public
def segment_max(x: ArrayLike, ids: ArrayLike, *, count: int) -> Value:
    """The largest elements of the rows of x by segment; the least number where a segment is empty."""
    return _segments("segment_max", scatter_max, _edge(True), x, ids, count)


@public
def segment_min(x: ArrayLike, ids: ArrayLike, *, count: int) -> Value:
    """The smallest elements of the rows of x by segment; the largest number where a segment is empty."""
    return _segments("segment_min", scatter_min, _edge(False), x, ids, count)
