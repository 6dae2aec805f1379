"""Application and what is built on it: A @ x, x @ A, the dense matrix, transposes and adjoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.algebra import flags as rules
from tessera.algebra.kind import Cost, Kind, always, register
from tessera.algebra.operator import FUNCTIONS, Operator, function, is_sparse
from tessera.core.constraints import unify
from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.ops import elementwise, shape
from tessera.ops.arrange import eye as identity
from tessera.ops.define import as_value, as_value_of, cast_to, floating
from tessera.ops.matrix import adjoint as adjoint_matrix
from tessera.ops.matrix import as_matrix, diagonal
from tessera.ops.reduction import sum as total


def as_operator(user: str, x: Any) -> Operator:
    """x as an operator; a matrix is a dense one, or a sparse one if it comes from scipy.sparse."""
    if isinstance(x, Operator):
        return x
    if is_sparse(x):
        return FUNCTIONS["sparse"](x)  # type: ignore[no-any-return]
    try:
        return Operator("dense", data=(as_plain_matrix(user, x),))
    except OperandError:
        raise OperandError(
            f"{user}: got {type(x).__name__} {x!r:.40}, expected an operator or a matrix"
        ) from None


def as_plain_matrix(user: str, x: Any) -> Value:
    """x as one matrix of floating-point numbers."""
    v = as_matrix(user, x)
    if v.ndim != 2:
        raise ShapeError(
            f"{user}: got {v.type} with {v.ndim} axes, expected one matrix; map over stacks with vmap"
        )
    return v


def as_vector(user: str, x: Any) -> Value:
    """x as a vector of floating-point numbers."""
    v = floating(as_value(x, user))
    if v.ndim != 1:
        raise ShapeError(f"{user}: got {v.type}, expected a vector")
    return v


def square(user: str, a: Any) -> Operator:
    """a as a square operator."""
    found = as_operator(user, a)
    m, n = found.shape
    if not unify(m, n, f"{user}: the two sizes of a square operator"):
        raise ShapeError(f"{user}: {found} is not square: its sizes are {m} and {n}")
    return found


# Application ------------------------------------------------------------------------------------


@function
def apply(a: Any, x: Any) -> Value:
    """A @ x for a vector, a matrix of columns or a stack of such matrices."""
    return applied("apply", as_operator("apply", a), x)


def applied(user: str, a: Operator, x: Any) -> Value:
    """A times a vector or columns, checked in the name of a user's function."""
    return on_columns(user, a, x, lambda v: columns(a, v))


def on_columns(user: str, a: Operator, x: Any, f: Callable[[Value], Value]) -> Value:
    """f, which maps columns as A does, on a vector, a matrix of columns or a stack of them."""
    v = floating(as_value_of(a.dtype, x, user), a.dtype)
    axis = max(v.ndim - 2, 0)
    if v.ndim == 0:
        raise ShapeError(f"{user}: got the scalar {v.type} for {a}; scale an operator with 2 * A")
    if not unify(v.shape[axis], a.shape[1], f"{user}: the columns of the operator"):
        raise ShapeError(
            f"{user}: {a} takes vectors of {a.shape[1]}, but axis {axis} of {v.type} is "
            f"{v.shape[axis]}{_advice(a, v, axis)}"
        )
    v = cast_to(v, promote(a.dtype, v.dtype))
    if v.ndim == 1:
        return shape.squeeze(f(shape.expand_dims(v, 1)), 1)
    if v.ndim == 2:
        return f(v)
    front = shape.moveaxis(v, -2, 0)
    flat = f(shape.reshape(front, (a.shape[1], -1)))
    return shape.moveaxis(shape.reshape(flat, (a.shape[0], *front.shape[1:])), 0, -2)


def columns(a: Operator, x: Value) -> Value:
    """A times the columns of a matrix, in the dtype where both meet."""
    dtype = promote(a.dtype, x.dtype)
    return cast_to(a.record.apply(a, cast_to(x, dtype)), dtype)


def _advice(a: Operator, v: Value, axis: int) -> str:
    if v.shape[axis] == a.shape[0]:
        return "; its adjoint A.H fits"
    if v.ndim == 2 and v.shape[1] == a.shape[1]:
        return "; transpose it with .mT"
    return ""


@function
def apply_left(x: Any, a: Operator) -> Value:
    """x @ A for a row or a matrix of rows."""
    v = floating(as_value_of(a.dtype, x, "apply"), a.dtype)
    if v.ndim < 2:
        return applied("apply", a.T, v)
    return shape.matrix_transpose(applied("apply", a.T, shape.matrix_transpose(v)))


@function
def todense(a: Any) -> Value:
    """The matrix of an operator as a tensor."""
    return dense_of(as_operator("todense", a))


def dense_of(a: Operator) -> Value:
    """The matrix of an operator in its dtype."""
    if a.record.dense is not None:
        return cast_to(a.record.dense(a), a.dtype)
    return columns(a, identity(a.shape[1], dtype=a.dtype))


# Transposes -------------------------------------------------------------------------------------


@function
def adjoint(a: Any) -> Operator:
    """The adjoint A.H: the conjugate transpose."""
    return as_operator("adjoint", a).H


@function
def transpose(a: Any) -> Operator:
    """The transpose A.T."""
    return as_operator("transpose", a).T


@function
def conj(a: Any) -> Operator:
    """The operator with conjugated elements."""
    return as_operator("conj", a).conj()


@function
def adjoint_of(a: Operator) -> Operator:
    """The adjoint, from the record of the kind."""
    if "self_adjoint" in a.flags:
        return a
    if a.record.transpose is not None:
        return transpose_of(
            a
        ).conj()  # in this order: the conjugate of some kinds is a wrapper that asks for A.H
    return Operator("adjoint", (a,))


@function
def transpose_of(a: Operator) -> Operator:
    """The transpose, from the record of the kind."""
    if "symmetric" in a.flags:
        return a
    if a.record.transpose is not None:
        return a.record.transpose(a)
    return Operator("transpose", (a,))


@function
def conj_of(a: Operator) -> Operator:
    """The conjugate, from the record of the kind."""
    if a.record.conj is not None:
        return a.record.conj(a)
    return Operator("conj", (a,))


def conjugate(x: Value) -> Value:
    """The conjugate of a tensor, which is itself when it is real."""
    return elementwise.conj(x) if x.dtype.kind == "c" else x


def apply_turned(a: Operator, x: Value) -> Value:
    """A.T times columns, for a kind without a transpose of its own."""
    assert a.record.apply_transpose is not None, a.kind
    return a.record.apply_transpose(a, x)


def _swapped(parts: Any, data: Any, static: Any) -> tuple[Any, Any]:
    rows, cols = parts[0].shape
    return cols, rows


def _part_cost(a: Operator, k: int) -> Cost:
    return cost_of(a.parts[0], k)


def _solve_adjoint(a: Operator, b: Value) -> Value | None:
    (p,) = a.parts
    if p.record.solve_transpose is None:
        return None
    found = p.record.solve_transpose(p, conjugate(b))
    return None if found is None else conjugate(found)


def _solve_transpose(a: Operator, b: Value) -> Value | None:
    (p,) = a.parts
    return None if p.record.solve_transpose is None else p.record.solve_transpose(p, b)


register(Kind(
    name="adjoint", doc="The conjugate transpose of an operator that has no adjoint of its own.",
    linear=always,
    shape=_swapped,
    apply=lambda a, x: conjugate(apply_turned(a.parts[0], conjugate(x))),
    transpose=lambda a: a.parts[0].conj(), conj=lambda a: a.parts[0].T,
    dense=lambda a: adjoint_matrix(dense_of(a.parts[0])),
    flags=lambda a: rules.of_transpose(a.parts[0]), cost=_part_cost,
    solve=_solve_adjoint, rank=lambda a: a.parts[0].rank,
    exact=lambda a, parts, data: parts[0].T.conj(),
))  # fmt: skip
register(Kind(
    name="transpose", doc="The transpose of a complex operator that has none of its own.",
    linear=always,
    shape=_swapped, apply=lambda a, x: apply_turned(a.parts[0], x),
    transpose=lambda a: a.parts[0], conj=lambda a: a.parts[0].H,
    dense=lambda a: shape.matrix_transpose(dense_of(a.parts[0])),
    flags=lambda a: rules.of_transpose(a.parts[0]), cost=_part_cost,
    solve=_solve_transpose, rank=lambda a: a.parts[0].rank,
    exact=lambda a, parts, data: parts[0].T,
))  # fmt: skip
register(Kind(
    name="conj", doc="The conjugate of a complex operator that has none of its own.", linear=always,
    shape=lambda parts, data, static: parts[0].shape,
    apply=lambda a, x: conjugate(columns(a.parts[0], conjugate(x))),
    transpose=lambda a: a.parts[0].H, conj=lambda a: a.parts[0],
    dense=lambda a: conjugate(dense_of(a.parts[0])),
    flags=lambda a: a.parts[0].flags, cost=_part_cost, rank=lambda a: a.parts[0].rank,
    exact=lambda a, parts, data: parts[0].conj(),
))  # fmt: skip


# Costs ------------------------------------------------------------------------------------------


def cost_of(a: Operator, k: int = 1) -> Cost:
    """What A costs on k columns; without a rule, as a dense matrix."""
    if a.record.cost is not None:
        return a.record.cost(a, k)
    return dense_cost(a, k)


def dense_cost(a: Operator, k: int) -> Cost:
    """The cost of a product with the matrix of A."""
    m, n = (float(s) if isinstance(s, int) else 1.0 for s in a.shape)
    size = a.dtype.bits / 8
    work = 8.0 if a.dtype.kind == "c" else 2.0
    return Cost(work * m * n * k, size * (m * n + (m + n) * k), 1)


def light_cost(a: Operator, k: int, flops: float, stored: float = 0.0, launches: float = 1) -> Cost:
    """A cost of so many multiply-adds and stored numbers beside reading and writing the columns."""
    m, n = (float(s) if isinstance(s, int) else 1.0 for s in a.shape)
    size = a.dtype.bits / 8
    work = 4.0 if a.dtype.kind == "c" else 1.0
    return Cost(work * flops, size * (stored + (m + n) * k), launches)


# Parts of the matrix ----------------------------------------------------------------------------


@function
def rank_bound(a: Any) -> Any:
    """A bound of the rank, from the structure."""
    found = as_operator("rank_bound", a)
    least = min(found.shape) if all(isinstance(n, int) for n in found.shape) else found.shape[0]
    if found.record.rank is None:
        return least
    known = found.record.rank(found)
    return min(known, least) if isinstance(known, int) and isinstance(least, int) else known


def diagonal_of(a: Operator) -> Value:
    """The elements at (i, i)."""
    if a.record.diagonal is not None:
        return cast_to(a.record.diagonal(a), a.dtype)
    return diagonal(dense_of(a))


def trace_of(a: Operator) -> Value:
    """The sum of the diagonal."""
    if a.record.trace is not None:
        return cast_to(a.record.trace(a), a.dtype)
    return total(diagonal_of(a))
