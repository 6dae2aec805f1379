"""Matrices are the last two axes: checks, triangles, diagonals, traces and cross products."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import same, unify
from tessera.core.dims import Size, larger, smaller
from tessera.core.dtype import as_dtype
from tessera.core.errors import AxisError, NumericalError, ShapeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Index, Params, Sample, Types
from tessera.ops.batching import leading
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    as_value,
    axis_of,
    define,
    floating,
    full_of,
    meet,
    public,
)
from tessera.ops.elementwise import add, conj, eq, mul, reciprocal, sub, where
from tessera.ops.reduction import sum
from tessera.ops.shape import (
    concat,
    expand_dims,
    matrix_transpose,
    moveaxis,
    pad,
    split,
)

Tangents = Sequence[Value | None]

# Checks -----------------------------------------------------------------------------------------


def as_matrix(op: str, x: ArrayLike) -> Value:
    """x as a stack of floating-point matrices."""
    v = floating(as_value(x, op))
    if v.ndim < 2:
        raise ShapeError(f"{op}: {v.type} is no matrix; it needs at least 2 axes")
    return v


def square_matrix(op: str, x: ArrayLike) -> Value:
    """x as a stack of square matrices."""
    v = as_matrix(op, x)
    m, n = v.shape[-2:]
    if not unify(m, n, f"{op}: the two axes of a square matrix"):
        raise ShapeError(f"{op}: {v.type} is not square: its last two axes are {m} and {n}")
    return v


def hosted(op: str, trouble: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """A host function whose failure names the op, the type of its matrix and what is wrong."""

    def run(x: Any, *rest: Any, **params: Any) -> Any:
        try:
            return f(x, *rest, **params)
        except np.linalg.LinAlgError:
            shown = TensorType(as_dtype(x.dtype), x.shape)
        raise NumericalError(f"{op}: {shown} {trouble}")

    return run


# Parts ------------------------------------------------------------------------------------------


def adjoint(x: Value) -> Value:
    """The conjugate transpose."""
    return matrix_transpose(conj(x) if x.dtype.kind == "c" else x)


def hermitian_part(x: Value) -> Value:
    """(x + its adjoint) / 2."""
    return mul(add(x, adjoint(x)), 0.5)


def differences(x: Value) -> Value:
    """x[j] - x[i] at (i, j)."""
    return sub(expand_dims(x, -2), expand_dims(x, -1))


def reciprocal_or_zero(x: Value) -> Value:
    """1 / x, and 0 where x is 0."""
    zero = eq(x, 0)
    return where(zero, 0, reciprocal(where(zero, 1, x)))


# Diagonals --------------------------------------------------------------------------------------


def _below(offset: int) -> int:
    return builtins.max(-offset, 0)


def _right(offset: int) -> int:
    return builtins.max(offset, 0)


def _diagonal_types(types: Types, p: Params) -> list[TensorType]:
    *batch, m, n = types[0].shape
    size = larger(smaller(m - _below(p["offset"]), n - _right(p["offset"])), 0)
    return [types[0].with_shape((*batch, size))]


def _diagonal_view(index: Index, types: Types, p: Params) -> Index:
    *batch, i = index
    return (*batch, i + _below(p["offset"]), i + _right(p["offset"]))


def _diagonal_transpose(n: Node, ct: Value, k: int) -> Value:
    rows, columns = n.operands[0].shape[-2:]
    return matrix_diag.bind(ct, offset=n.params["offset"], rows=rows, columns=columns)


@define(
    infer=_diagonal_types, view=_diagonal_view, linear=(0,), transpose=_diagonal_transpose,
    batch=leading,
    numpy=lambda x, offset: np.diagonal(x, offset, -2, -1),
    samples=(
        Sample((3, 3)), Sample((2, 3, 4), offset=1), Sample((4, 2), offset=-2),
        Sample((2, 2), offset=5), Sample((0, 3)), Sample((2, 3, 4), axis1=0, axis2=1),
    ),
)  # fmt: skip
def diagonal(x: ArrayLike, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Value:
    """The elements at (i, i + offset) of the matrices in two axes, as a new last axis."""
    v = as_value(x, "diagonal")
    if v.ndim < 2:
        raise ShapeError(f"diagonal: {v.type} is no matrix; it needs at least 2 axes")
    a, b = axis_of("diagonal", axis1, v.ndim), axis_of("diagonal", axis2, v.ndim)
    if a == b:
        raise AxisError(f"diagonal: axis1 and axis2 are both {a}")
    return diagonal.bind(moveaxis(v, (a, b), (-2, -1)), offset=int(offset))


def _place(x: Any, offset: int, rows: int, columns: int) -> Any:
    out = np.zeros((*x.shape[:-1], rows, columns), x.dtype)
    i = np.arange(x.shape[-1])
    out[..., i + _below(offset), i + _right(offset)] = x
    return out


def _place_by_mask(x: Value, offset: int, rows: Size, columns: Size) -> Value:
    """Each element along its whole row, then only where the row meets the diagonal."""
    low, rest = _below(offset), (0,) * (x.ndim - 1)
    tail = (*rest, rows - x.shape[-1] - low)
    zero = full_of((), 0, x.dtype)
    by_row = pad.bind(x, zero, low=(*rest, low), high=tail, inner=(0,) * x.ndim)
    at = eq(add(iota((rows, columns), 0), offset), iota((rows, columns), 1))
    return where(at, expand_dims(by_row, -1), zero)


@define(
    infer=lambda types, p: [
        types[0].with_shape((*types[0].shape[:-1], p["rows"], p["columns"]))
    ],
    decompose=_place_by_mask, numpy=_place, moves=True, linear=(0,), batch=leading,
    transpose=lambda n, ct, k: diagonal.bind(ct, offset=n.params["offset"]),
    samples=(Sample((3,)), Sample((2, 3), offset=1), Sample((2,), offset=-2), Sample((0,))),
)  # fmt: skip
def matrix_diag(x: ArrayLike, offset: int = 0) -> Value:
    """Square matrices with the last axis of x on a diagonal and zeros elsewhere."""
    v = as_value(x, "matrix_diag")
    if v.ndim < 1:
        raise ShapeError(f"matrix_diag: {v.type} is a scalar; it needs at least 1 axis")
    n = v.shape[-1] + builtins.abs(int(offset))
    return matrix_diag.bind(v, offset=int(offset), rows=n, columns=n)


@public
def trace(x: ArrayLike, offset: int = 0) -> Value:
    """Sum of a diagonal of the matrices in the last two axes; integers are summed in 64 bits."""
    v = as_value(x, "trace")
    if v.ndim < 2:
        raise ShapeError(f"trace: {v.type} is no matrix; it needs at least 2 axes")
    return sum(diagonal(v, offset), -1)


# Cross product ----------------------------------------------------------------------------------


def _cross(a: Value, b: Value, axis: int) -> Value:
    x, y = split(a, 3, axis), split(b, 3, axis)
    turns = ((1, 2), (2, 0), (0, 1))
    return concat([sub(mul(x[i], y[j]), mul(x[j], y[i])) for i, j in turns], axis)


def _vector_axis(v: Value, axis: int) -> int:
    """The axis of a vector of 3, counted from the end so that broadcasting keeps it."""
    k = axis_of("cross", axis, v.ndim)
    if same(v.shape[k], 3) is False:
        raise ShapeError(f"cross: axis {axis} of {v.type} is {v.shape[k]}, expected 3")
    return k - v.ndim


@define(
    infer=lambda types, p: types[:1], kinds="uifc", decompose=_cross, linear=(0, 1),
    numpy=lambda a, b, axis: np.cross(a, b, axis=axis),
    transpose=lambda n, ct, k: (
        cross(n.operands[1], ct, axis=n.params["axis"]) if k == 0
        else cross(ct, n.operands[0], axis=n.params["axis"])
    ),
    samples=(
        Sample((3,), (3,)), Sample((2, 3), (3,)), Sample((3, 2), (3, 2), axis=0),
        Sample((0, 3), (0, 3)),
    ),
)  # fmt: skip
def cross(x: ArrayLike, y: ArrayLike, *, axis: int = -1) -> Value:
    """The vector perpendicular to two vectors of three elements along an axis."""
    a, b = as_value(x, "cross"), as_value(y, "cross")
    k = _vector_axis(a, axis)
    if k != _vector_axis(b, axis):
        raise AxisError(
            f"cross: axis {axis} is not the same axis of {a.type} and {b.type} once they broadcast; "
            "count it from the end"
        )
    p, q = meet("cross", (a, b))
    return cross.bind(p, q, axis=k + p.ndim)
