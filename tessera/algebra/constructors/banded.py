"""Tridiagonal and triangular operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra.apply import as_plain_matrix, as_vector, conjugate, dense_cost, light_cost
from tessera.algebra.constructors.basic import column, refuse_zeros
from tessera.algebra.kind import Kind, always, register
from tessera.algebra.operator import Operator, function
from tessera.algebra.solve import named
from tessera.core.constraints import unify
from tessera.core.errors import ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.arrange import tril, triu
from tessera.ops.banded import solve_diagonals
from tessera.ops.contraction import matmul
from tessera.ops.creation import iota
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import add, eq, mul, where
from tessera.ops.matrix import diagonal, matrix_diag
from tessera.ops.shape import concat, matrix_transpose, slice_
from tessera.ops.solve import triangular_solve

# Tridiagonal ------------------------------------------------------------------------------------


@function
def tridiagonal(lower: Any, main: Any, upper: Any) -> Operator:
    """The operator with three diagonals: n - 1 elements below the main one of n, n - 1 above it."""
    low, d, up = (as_vector("tridiagonal", v) for v in (lower, main, upper))
    n = d.shape[0]
    for name, v in (("below", low), ("above", up)):
        if not unify(v.shape[0], n - 1, f"tridiagonal: the diagonal {name}"):
            raise ShapeError(
                f"tridiagonal: the diagonal {name} is {v.type}, expected {n - 1} elements beside "
                f"{d.type}"
            )
    return Operator("tridiagonal", data=(low, d, up))


def _apply(a: Operator, x: Value) -> Value:
    low, d, up = (column(cast_to(v, x.dtype)) for v in a.data)
    n, k = x.shape
    zero = full_of((1, k), 0, x.dtype)
    below = concat([zero, mul(low, slice_(x, (0, 0), (n - 1, k)))], 0)
    above = concat([mul(up, slice_(x, (1, 0), (n, k))), zero], 0)
    return add(add(mul(d, x), below), above)


def _solve(a: Operator, b: Value) -> Value:
    low, d, up = (cast_to(v, b.dtype) for v in a.data)
    return named(a, lambda: solve_diagonals(low, d, up, b))


def _dense(a: Operator) -> Value:
    low, d, up = (cast_to(v, a.dtype) for v in a.data)
    return add(add(matrix_diag(low, -1), matrix_diag(d)), matrix_diag(up, 1))


def _exact(a: Operator, parts: Any, data: Any) -> Any:
    out = np.zeros(a.shape, int).astype(object)
    i = np.arange(a.shape[0])
    out[i[1:], i[:-1]], out[i, i], out[i[:-1], i[1:]] = data
    return out


register(Kind(
    name="tridiagonal", doc="A matrix with three diagonals.", linear=always,
    shape=lambda parts, data, static: (data[1].shape[0],) * 2, apply=_apply,
    transpose=lambda a: Operator("tridiagonal", data=(a.data[2], a.data[1], a.data[0])),
    conj=lambda a: Operator("tridiagonal", data=tuple(conjugate(v) for v in a.data)),
    dense=_dense,
    flags=lambda a: frozenset(("symmetric",) if a.data[0] is a.data[2] else ()),
    cost=lambda a, k: light_cost(a, k, 5 * a.shape[0] * k, 3 * a.shape[0]),
    diagonal=lambda a: a.data[1], solve=_solve, exact=_exact,
))  # fmt: skip


# Triangular -------------------------------------------------------------------------------------


@function
def triangular(a: Any, lower: bool = True, unit_diagonal: bool = False) -> Operator:
    """The lower or upper triangle of a square matrix; the other elements are not read."""
    v = as_plain_matrix("triangular", a)
    if not unify(v.shape[0], v.shape[1], "triangular: the two axes of the matrix"):
        raise ShapeError(f"triangular: {v.type} is not square")
    return Operator("triangular", data=(v,), static=(bool(lower), bool(unit_diagonal)))


def _triangle(a: Operator) -> Value:
    lower, unit = a.static
    x = tril(a.data[0]) if lower else triu(a.data[0])
    if not unit:
        return x
    return where(eq(iota(x.shape, 0), iota(x.shape, 1)), full_of((), 1, x.dtype), x)


def _substituted(a: Operator, b: Value, transpose: bool) -> Value:
    lower, unit = a.static
    if not unit:
        refuse_zeros("solve", a, diagonal(a.data[0]))
    x = cast_to(a.data[0], b.dtype)
    return triangular_solve(x, b, lower, transpose, unit)


def _triangle_diagonal(a: Operator) -> Value:
    return full_of((a.shape[0],), 1, a.dtype) if a.static[1] else diagonal(a.data[0])


def _exact_triangle(a: Operator, parts: Any, data: Any) -> Any:
    lower, unit = a.static
    i, j = np.indices(a.shape)
    out = np.where(i >= j if lower else i <= j, data[0], 0)
    return np.where(i == j, 1, out) if unit else out


register(Kind(
    name="triangular", doc="A triangle of a square matrix.", representation="dense",
    linear=lambda a: not a.static[1],
    shape=lambda parts, data, static: data[0].shape,
    apply=lambda a, x: matmul(_triangle(a), x),
    apply_transpose=lambda a, x: matmul(matrix_transpose(_triangle(a)), x),
    dense=_triangle, diagonal=_triangle_diagonal, cost=dense_cost,
    flags=lambda a: frozenset(
        ("triangular_lower" if a.static[0] else "triangular_upper",
         *(("invertible",) if a.static[1] else ()))
    ),
    solve=lambda a, b: _substituted(a, b, False),
    solve_transpose=lambda a, b: _substituted(a, b, True), exact=_exact_triangle,
))  # fmt: skip
