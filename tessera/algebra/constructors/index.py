"""Operators that pick, place and reorder elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra.apply import columns, dense_of, light_cost
from tessera.algebra.constructors.basic import float_dtype, size_of
from tessera.algebra.kind import Kind, register
from tessera.algebra.operator import Operator, function
from tessera.algebra.table import IndexTable
from tessera.core.dtype import f32
from tessera.core.errors import AxisError, OperandError, ShapeError
from tessera.ir.graph.ir import Value, host_data
from tessera.ops.creation import iota
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import eq
from tessera.ops.gather import take
from tessera.ops.indexing import index as element
from tessera.ops.indexing import update
from tessera.ops.shape import expand_dims, reshape, squeeze

# Permutations -----------------------------------------------------------------------------------


def indices(user: str, x: Any) -> np.ndarray[Any, Any]:
    """x as a vector of whole numbers that are known now."""
    if isinstance(x, Value) and x.storage is None:
        raise OperandError(
            f"{user}: got the traced {x.type}; indices are part of the structure, so make the operator "
            "outside of the traced function"
        )
    array = np.asarray(host_data(x) if isinstance(x, Value) else x)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        if array.size:
            raise OperandError(
                f"{user}: got {array.dtype}[{','.join(map(str, array.shape))}], expected a vector of "
                "whole numbers"
            )
        array = array.astype(np.int64).reshape(-1)
    return array.astype(np.int64)


@function
def permutation(p: Any, dtype: Any = f32) -> Operator:
    """The operator with (A @ x)[i] = x[p[i]]."""
    array = indices("permutation", p)
    n = len(array)
    seen = np.bincount(array[(array >= 0) & (array < n)], minlength=n)
    if len(array) and not np.array_equal(seen, np.ones(n, seen.dtype)):
        raise OperandError(
            f"permutation: the indices are no permutation of 0 to {n - 1}: each must occur once"
        )
    return Operator("permutation", static=(IndexTable(array), float_dtype("permutation", dtype)))


def _inverse_table(a: Operator) -> Operator:
    order = np.argsort(a.static[0].array)
    return Operator("permutation", static=(IndexTable(order), a.static[1]))


def _parity(a: Operator) -> int:
    """1 for an even permutation, -1 for an odd one, by its cycles."""
    p, n = a.static[0].array, len(a.static[0])
    seen = np.zeros(n, bool)
    even = 0
    for i in range(n):
        j, length = i, 0
        while not seen[j]:
            seen[j], j, length = True, int(p[j]), length + 1
        even += max(length - 1, 0)
    return -1 if even % 2 else 1


def _power(a: Operator, k: int) -> Operator:
    p, out, base = a.static[0].array, np.arange(len(a.static[0])), a.static[0].array
    while k:
        out = base[out] if k % 2 else out
        base, k = base[base], k // 2
    assert len(out) == len(p)
    return Operator("permutation", static=(IndexTable(out), a.static[1]))


def _exact_rows(index: Any, n: int) -> Any:
    return np.eye(n, dtype=int).astype(object)[index]


register(Kind(
    name="permutation", doc="A reordering of the elements.",
    shape=lambda parts, data, static: (len(static[0]),) * 2,
    dtype=lambda parts, data, static: static[1],
    apply=lambda a, x: take(x, a.static[0].value, 0),
    transpose=_inverse_table, conj=lambda a: a,
    flags=lambda a: frozenset(("permutation",)), cost=lambda a, k: light_cost(a, k, 0, len(a.static[0])),
    slogdet=lambda a: (full_of((), _parity(a), a.dtype), full_of((), 0, a.dtype.real)),
    diagonal=lambda a: cast_to(
        IndexTable(a.static[0].array == np.arange(len(a.static[0]))).value, a.dtype
    ),
    inverse=_inverse_table, power=_power,
    exact=lambda a, parts, data: _exact_rows(a.static[0].array, a.shape[1]),
))  # fmt: skip


# Selections -------------------------------------------------------------------------------------


@function
def select(index: Any, n: Any, dtype: Any = f32) -> Operator:
    """The operator that picks elements of a vector of n: (A @ x)[i] = x[index[i]]."""
    array, size = indices("select", index), size_of("select", n)
    if len(array) and not (-size <= array.min() and array.max() < size):
        raise AxisError(
            f"select: index {int(array.max() if array.max() >= size else array.min())} is out of range "
            f"for vectors of {size}"
        )
    table = IndexTable(np.where(array < 0, array + size, array))
    return Operator("select", static=(table, size, float_dtype("select", dtype)))


def _place(a: Operator, x: Value) -> Value:
    zeros = full_of((a.static[1], x.shape[1]), 0, x.dtype)
    return update(zeros, a.static[0].value, x, "add")


register(Kind(
    name="select", doc="Some of the elements of a vector.",
    shape=lambda parts, data, static: (len(static[0]), static[1]),
    dtype=lambda parts, data, static: static[2],
    apply=lambda a, x: take(x, a.static[0].value, 0), apply_transpose=_place,
    conj=lambda a: a, flags=lambda a: frozenset(("real",)), cost=lambda a,
    k: light_cost(a, k, 0, len(a.static[0])),
    exact=lambda a, parts, data: _exact_rows(a.static[0].array, a.shape[1]),
))  # fmt: skip


# Slicing ----------------------------------------------------------------------------------------


@function
def getitem(a: Operator, key: Any) -> Any:
    """A[i, j] is a number, A[i] and A[:, j] are vectors, A[rows, columns] is an operator."""
    rows, cols = _keys(a, key)
    i, j = _one(a, rows, 0), _one(a, cols, 1)
    if i is not None and j is not None:
        return _unit_product(a, i, j)
    if i is not None:
        return _picked(_row(a, i), cols)
    if j is not None:
        return _picked(_column(a, j), rows)
    return _sliced(a, rows, cols)


def _keys(a: Operator, key: Any) -> tuple[Any, Any]:
    """The keys of rows and columns."""
    given = key if isinstance(key, tuple) else (key,)
    dots = [i for i, k in enumerate(given) if k is Ellipsis]
    if len(given) - len(dots) > 2 or len(dots) > 1:
        raise AxisError(f"getitem: {a} has 2 axes, got {len(given)} indices")
    at = dots[0] if dots else len(given)
    whole: list[Any] = [slice(None)] * (2 - len(given) + len(dots))
    rows, cols = [*given[:at], *whole, *given[at + 1 :]]
    if rows is None or cols is None:
        raise AxisError(f"getitem: got None, which would be a new axis, but {a} has 2 axes")
    return rows, cols


def _one(a: Operator, key: Any, axis: int) -> int | None:
    """The index when the key is one number."""
    if isinstance(key, slice | list | np.ndarray | Value) or not hasattr(key, "__index__"):
        return None
    i, n = int(key), a.shape[axis]
    if not -n <= i < n:
        raise AxisError(f"getitem: index {i} is out of range for axis {axis} of {a}")
    return i % n  # type: ignore[no-any-return]


def _unit(n: Any, i: int, like: Operator) -> Value:
    return cast_to(expand_dims(eq(iota((n,)), i), 1), like.dtype)


def _column(a: Operator, j: int) -> Value:
    return squeeze(columns(a, _unit(a.shape[1], j, a)), 1)


def _row(a: Operator, i: int) -> Value:
    return _column(a.T, i)


def _unit_product(a: Operator, i: int, j: int) -> Value:
    """By the parts that row i and column j need, where the kind knows them."""
    return reshape(dense_of(_sliced(a, slice(i, i + 1), slice(j, j + 1))), ())


def _picked(v: Value, key: Any) -> Value:
    if isinstance(key, slice):
        return element(v, key)
    return take(v, np.asarray(key), 0)


def _is_whole(key: Any, n: Any) -> bool:
    return isinstance(key, slice) and key.indices(n) == (0, n, 1)


def _sliced(a: Operator, rows: Any, cols: Any) -> Operator:
    whole = [_is_whole(k, n) for k, n in zip((rows, cols), a.shape, strict=True)]
    if all(whole):
        return a
    if a.record.slice is not None and isinstance(rows, slice) and isinstance(cols, slice):
        found = a.record.slice(a, rows, cols)
        if found is not None:
            return found
    out = a
    if not whole[0]:
        out = _selection(rows, a, 0) @ out
    if not whole[1]:
        out = out @ _selection(cols, a, 1).T
    return out


def _selection(key: Any, a: Operator, axis: int) -> Operator:
    n = a.shape[axis]
    if isinstance(key, slice):
        index = np.arange(n)[key]
    else:
        index = np.asarray(host_data(key) if isinstance(key, Value) else key)
        if index.dtype == bool:
            if index.shape != (n,):
                raise ShapeError(
                    f"getitem: the mask of axis {axis} of {a} has {index.size} elements"
                )
            index = np.flatnonzero(index)
    return select(index, n, a.dtype)
