"""Operators that are stored as factors: low rank and projectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra.apply import as_plain_matrix, as_vector, conjugate, light_cost
from tessera.algebra.kind import Kind, register
from tessera.algebra.operator import Operator, function
from tessera.core.constraints import unify
from tessera.core.errors import NumericalError, ShapeError
from tessera.ir.graph.ir import Value, host_data
from tessera.ops import shape
from tessera.ops.contraction import matmul
from tessera.ops.elementwise import mul
from tessera.ops.factor import qr
from tessera.ops.matrix import adjoint
from tessera.ops.reduction import sum


def sum_sizes(a: Operator) -> Any:
    """Rows and columns together."""
    return a.shape[0] + a.shape[1]


@function
def low_rank(u: Any, v: Any = None, s: Any = None) -> Operator:
    """U @ diag(S) @ V.H for thin U and V; V is U unless given, S is ones."""
    left = as_plain_matrix("low_rank", u)
    right = left if v is None else as_plain_matrix("low_rank", v)
    if not unify(left.shape[1], right.shape[1], "low_rank: the columns of U and V"):
        raise ShapeError(
            f"low_rank: U is {left.type} and V is {right.type}; they have as many columns as the rank"
        )
    both = () if v is None else (right,)
    if s is None:
        return Operator("low_rank", data=(left, *both), static=(False, v is None))
    middle = as_vector("low_rank", s)
    if not unify(middle.shape[0], left.shape[1], "low_rank: S and the columns of U"):
        raise ShapeError(f"low_rank: S is {middle.type} for {left.shape[1]} columns of U and V")
    return Operator("low_rank", data=(left, middle, *both), static=(True, v is None))


def factors_of(a: Operator) -> tuple[Value, Value | None, Value]:
    """U, S or None, and V of U @ diag(S) @ V.H."""
    has_middle, shared = a.static
    return a.data[0], a.data[1] if has_middle else None, a.data[0] if shared else a.data[-1]


def _apply(a: Operator, x: Value) -> Value:
    u, s, v = factors_of(a)
    inner = matmul(adjoint(v), x)
    return matmul(u, inner if s is None else mul(shape.expand_dims(s, 1), inner))


def _built(u: Value, s: Value | None, v: Value, static: tuple[Any, ...]) -> Operator:
    middle = () if s is None else (s,)
    return Operator("low_rank", data=(u, *middle, *(() if static[1] else (v,))), static=static)


def _turned(a: Operator) -> Operator:
    """(U S V.H).T is conj(V) S conj(U).H."""
    u, s, v = factors_of(a)
    return _built(conjugate(v), s, conjugate(u), a.static)


def _conj(a: Operator) -> Operator:
    u, s, v = factors_of(a)
    return _built(conjugate(u), None if s is None else conjugate(s), conjugate(v), a.static)


def _diagonal(a: Operator) -> Value:
    u, s, v = factors_of(a)
    k = min(a.shape)
    rows = [shape.slice_(x, (0, 0), (k, x.shape[1])) for x in (u, conjugate(v))]
    both = mul(rows[0], rows[1])
    return sum(both if s is None else mul(both, s), 1)


def _dense(a: Operator) -> Value:
    u, s, v = factors_of(a)
    return matmul(u if s is None else mul(u, s), adjoint(v))


def _flags(a: Operator) -> frozenset[str]:
    has_middle, shared = a.static
    if not shared:
        return frozenset()
    if not has_middle:
        return frozenset(("positive",))
    return frozenset(("self_adjoint",)) if a.data[1].dtype.kind != "c" else frozenset()


register(Kind(
    name="low_rank", doc="U @ diag(S) @ V.H with few columns.", representation="factor",
    shape=lambda parts, data, static: (data[0].shape[0], data[0 if static[1] else -1].shape[0]),
    apply=_apply, transpose=_turned, conj=_conj, dense=_dense, flags=_flags,
    cost=lambda a, k: light_cost(
        a, k, 2 * sum_sizes(a) * a.data[0].shape[1] * k, sum_sizes(a) * a.data[0].shape[1], 2
    ),
    diagonal=_diagonal, rank=lambda a: a.data[0].shape[1],
    exact=lambda a, parts, data: (data[0] * data[1] if a.static[0] else data[0]).dot(
        data[0 if a.static[1] else -1].T.conj()
    ),
))  # fmt: skip


# Projectors -------------------------------------------------------------------------------------


@function
def projector(u: Any, orthonormal: bool = False) -> Operator:
    """The orthogonal projector onto the space of the columns of U, which must be independent.

    They are made orthonormal unless they are said to be.
    """
    v = as_plain_matrix("projector", u)
    if v.shape[1] > v.shape[0]:
        raise ShapeError(f"projector: {v.type} has more columns than rows, so they are dependent")
    if not orthonormal:
        v, r = qr(v)
        _refuse_dependent(v, r)
    return Operator("projector", data=(v,))


def _refuse_dependent(q: Value, r: Value) -> None:
    """Columns that depend on each other are refused where the numbers are known."""
    if r.storage is None or not host_data(r).size:
        return
    size = np.abs(np.diagonal(host_data(r)))
    if not np.min(size) > q.shape[0] * np.finfo(size.dtype).eps * np.max(size):
        raise NumericalError(
            f"projector: the columns of {q.type} depend on each other; leave out those that do"
        )


register(Kind(
    name="projector", doc="U @ U.H for orthonormal columns U.", representation="factor",
    shape=lambda parts, data, static: (data[0].shape[0],) * 2,
    apply=lambda a, x: matmul(a.data[0], matmul(adjoint(a.data[0]), x)),
    transpose=lambda a: Operator("projector", data=(conjugate(a.data[0]),)),
    conj=lambda a: Operator("projector", data=(conjugate(a.data[0]),)),
    dense=lambda a: matmul(a.data[0], adjoint(a.data[0])),
    flags=lambda a: frozenset(("projector",)),
    cost=lambda a, k: light_cost(
        a, k, 2 * sum_sizes(a) * a.data[0].shape[1] * k, a.shape[0] * a.data[0].shape[1], 2
    ),
    diagonal=lambda a: sum(mul(a.data[0], conjugate(a.data[0])), 1),
    rank=lambda a: a.data[0].shape[1],
    exact=lambda a, parts, data: data[0].dot(data[0].T.conj()),
))  # fmt: skip
