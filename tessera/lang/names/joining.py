"""Joining, cutting and turning tensors: hstack, vstack, array_split, ravel and their kin, as in NumPy."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.errors import AxisError, OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.define import ArrayLike, as_value, axis_of, cast_to, public
from tessera.ops.gather import take
from tessera.ops.indexing import index
from tessera.ops.matrix import matrix_diag
from tessera.ops.shape import broadcast_to, concat, expand_dims, flip, moveaxis, reshape
from tessera.ops.whole import whole, wholes


@public
def ravel(x: ArrayLike) -> Value:
    """x as one axis."""
    return reshape(as_value(x), (-1,))


@public
def atleast_1d(x: ArrayLike) -> Value:
    """x, a number as one element."""
    v = as_value(x)
    return reshape(v, (1,)) if v.ndim == 0 else v


@public
def atleast_2d(x: ArrayLike) -> Value:
    """x with two axes or more: a vector becomes a row."""
    v = atleast_1d(x)
    return expand_dims(v, 0) if v.ndim == 1 else v


@public
def atleast_3d(x: ArrayLike) -> Value:
    """x with three axes or more: a vector becomes (1, n, 1), a matrix (m, n, 1)."""
    v = atleast_2d(x) if as_value(x).ndim < 2 else as_value(x)
    return expand_dims(v, -1) if v.ndim == 2 else v


@public
def hstack(xs: Sequence[ArrayLike]) -> Value:
    """Join along the second axis, vectors along their only one."""
    parts = [atleast_1d(x) for x in xs]
    return concat(parts, 0 if parts and parts[0].ndim == 1 else 1)


@public
def vstack(xs: Sequence[ArrayLike]) -> Value:
    """Join along the first axis; vectors are rows."""
    return concat([atleast_2d(x) for x in xs], 0)


@public
def dstack(xs: Sequence[ArrayLike]) -> Value:
    """Join along the third axis."""
    return concat([atleast_3d(x) for x in xs], 2)


@public
def column_stack(xs: Sequence[ArrayLike]) -> Value:
    """Join along the second axis; vectors are columns."""
    parts = [as_value(x) for x in xs]
    return concat([reshape(p, (-1, 1)) if p.ndim < 2 else p for p in parts], 1)


@public
def append(x: ArrayLike, values: ArrayLike, axis: int | None = None) -> Value:
    """values after x, along an axis or as one."""
    if axis is None:
        return concat([ravel(x), ravel(values)], 0)
    return concat([x, values], axis)


@public
def array_split(x: ArrayLike, parts: int | Sequence[int], axis: int = 0) -> list[Value]:
    """Parts as even as whole numbers allow, the longer ones first; or cut at these indices."""
    v = as_value(x)
    axis = axis_of("array_split", axis, v.ndim)
    if not isinstance(parts, int):
        return _cut(v, tuple(parts), axis)
    if parts < 1:
        raise OperandError(f"array_split: parts is {parts}, expected 1 or more")
    each, more = divmod(_known("array_split", v.shape[axis]), parts)
    ends = [each * i + builtins.min(i, more) for i in range(1, parts)]
    return _cut(v, ends, axis)


def _cut(v: Value, ends: Sequence[int], axis: int) -> list[Value]:
    """The parts before, between and after these indices."""
    n, before = v.shape[axis], (slice(None),) * (axis % v.ndim)
    places = zip((0, *ends), (*ends, n), strict=True)
    return [index(v, (*before, slice(a, b))) for a, b in places]


@public
def hsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[Value]:
    """split along the second axis, a vector along its only one."""
    v = as_value(x)
    return _even("hsplit", v, parts, 1 if v.ndim > 1 else 0)


@public
def vsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[Value]:
    """split along the first axis."""
    return _even("vsplit", as_value(x), parts, 0)


@public
def dsplit(x: ArrayLike, parts: int | Sequence[int]) -> list[Value]:
    """split along the third axis."""
    return _even("dsplit", as_value(x), parts, 2)


def _even(op: str, v: Value, parts: int | Sequence[int], axis: int) -> list[Value]:
    """Equal parts, or those between indices."""
    if axis >= v.ndim:
        raise ShapeError(f"{op}: x is {v.type}, expected {axis + 1} axes or more")
    if isinstance(parts, int) and _known(op, v.shape[axis]) % builtins.max(parts, 1):
        raise ShapeError(
            f"{op}: {parts} parts do not divide the {v.shape[axis]} elements of axis {axis}"
        )
    return array_split(v, parts, axis)


@public
def fliplr(x: ArrayLike) -> Value:
    """x with its columns in reverse."""
    return flip(x, 1)


@public
def flipud(x: ArrayLike) -> Value:
    """x with its rows in reverse."""
    return flip(x, 0)


@public
def rollaxis(x: ArrayLike, axis: int, start: int = 0) -> Value:
    """An axis moved to just before the axis `start`."""
    v = as_value(x)
    n = v.ndim
    source, to = axis_of("rollaxis", axis, n), start + n if start < 0 else start
    if not 0 <= to <= n:
        raise AxisError(f"rollaxis: start {start} is out of range for rank {n}; use {-n} to {n}")
    return moveaxis(v, source, to - 1 if source < to else to)


@public
def delete(x: ArrayLike, index: int | Sequence[int] | slice, axis: int | None = None) -> Value:
    """x without the elements at an index, at some, in a slice, or where a mask is true."""
    v = ravel(x) if axis is None else as_value(x)
    axis = axis_of("delete", axis or 0, v.ndim)
    n = _known("delete", v.shape[axis])
    numbers = _numbers(index, n)
    for i in numbers:
        if not -n <= i < n:
            raise OperandError(f"delete: index {i} is out of range of axis {axis} of size {n}")
    left = sorted(set(range(n)) - {i % n for i in numbers})
    return take(v, np.array(left, np.int64), axis)


def _numbers(index: Any, n: int) -> list[int]:
    """The places along an axis of size n that an index, a slice or a mask stands for."""
    if isinstance(index, slice):
        return list(range(n)[index])
    mask = np.asarray(index) if isinstance(index, Value | np.ndarray | list) else np.zeros(0)
    if mask.dtype == bool:
        if mask.shape != (n,):
            raise OperandError(f"delete: the mask has the shape {mask.shape}, expected {(n,)}")
        return np.flatnonzero(mask).tolist()
    return wholes("delete", "index", index)


@public
def insert(x: ArrayLike, index: int, values: ArrayLike, axis: int | None = None) -> Value:
    """values before the element at an index."""
    v = ravel(x) if axis is None else as_value(x)
    axis = axis_of("insert", axis or 0, v.ndim)
    n, given = _known("insert", v.shape[axis]), cast_to(as_value(values), v.dtype)
    index = whole("insert", "index", index)
    if not -n <= index <= n:
        raise OperandError(f"insert: index {index} is out of range of axis {axis} of size {n}")
    at = index + n if index < 0 else index
    sizes = list(v.shape)
    if v.ndim == 1:
        given = reshape(given, (-1,))
        sizes[0] = given.shape[0]
    else:
        sizes[axis] = 1
    new = broadcast_to(given, tuple(sizes))
    before, after = _cut(v, (at,), axis)
    return concat([before, new, after], axis)


@public
def diagflat(x: ArrayLike, k: int = 0) -> Value:
    """The matrix with the elements of x on its k-th diagonal."""
    return matrix_diag(ravel(x), k)


def _known(op: str, n: Any) -> int:
    if not isinstance(n, int):
        raise ShapeError(f"{op}: the axis has the symbolic size {n}; expected a number")
    return n
