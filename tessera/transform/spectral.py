"""Derivatives of eigh and svd, which are right for functions that do not depend on a choice of vectors.

Vectors of equal values may be any basis of the space that they span.  Forward mode, which knows the
tangent, picks the basis that the matrix has as it moves: there the tangent is diagonal, and nothing
else is needed.  Reverse mode must serve every tangent, so that it picks a basis in general position
and checks what comes back (ops/gauge.py): either the gradient is right or there is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.constraints import same
from tessera.core.errors import RuleError
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ops.contraction import matmul
from tessera.ops.elementwise import add, eq, mul, sub
from tessera.ops.factor import eigh, eigh_tangents, reciprocal_apart, rtol, svd, svd_tangents
from tessera.ops.gauge import (
    NULL,
    cluster_turn,
    clusters,
    gauged,
    same_in_every_gauge,
    singular_follow,
)
from tessera.ops.matrix import adjoint, hermitian_part
from tessera.ops.shape import expand_dims
from tessera.transform.differentiate import (
    REGION_JVP,
    REGION_TRANSPOSE,
    Tangent,
    linearizing,
    zeros,
)

Pushed = tuple[Sequence[Value], Sequence[Tangent]]


def _generic(n: Node) -> Any:
    return bind(n.op, *n.operands, **{**n.params, "generic": True})


def _eigh(n: Node, ts: Sequence[Tangent]) -> Pushed:
    (t,) = ts
    assert t is not None
    w, v = _generic(n)
    ids = clusters(w, rtol(w), False)
    inner = matmul(adjoint(v), matmul(hermitian_part(t), v))
    if not linearizing():
        along = cluster_turn(inner, ids)
        v, inner = matmul(v, along), matmul(adjoint(along), matmul(inner, along))
    dw, turn = eigh_tangents(w, ids, inner)
    if linearizing():
        dw, turn = gauged(ids, dw, turn, of="eigh", whole=True)
    return (w, v), (dw, matmul(v, turn))


def _svd(n: Node, ts: Sequence[Tangent]) -> Pushed:
    (t,) = ts
    assert t is not None
    rows, columns = t.shape[-2:]
    if n.params["full_matrices"] and same(rows, columns) is not True:
        raise RuleError(
            f"svd has no derivative for {t.type} with full_matrices; pass full_matrices=False"
        ).at(n.location)
    u, s, vh = _generic(n)
    ids = clusters(s, rtol(s), True)
    if not linearizing():
        u, vh = singular_follow(u, vh, t, ids)
    ds, x, y = svd_tangents(s, ids, matmul(adjoint(u), matmul(t, adjoint(vh))))
    # What leaves the spans of U and V, where they are not the whole space.
    inverse = expand_dims(reciprocal_apart(s, eq(ids, NULL)), -2)
    tall, wide = (same(k, s.shape[-1]) is not True for k in (rows, columns))
    out = [mul(matmul(t, adjoint(vh)), inverse)] if tall else []
    out += [mul(matmul(adjoint(t), u), inverse)] if wide else []
    if linearizing():
        ds, x, y, *out = gauged(ids, ds, x, y, *out, of="svd", whole=not (tall or wide))
    du, dv = matmul(u, x), matmul(adjoint(vh), y)
    if tall:
        du = add(du, sub(out[0], matmul(u, matmul(adjoint(u), out[0]))))
    if wide:
        dv = add(dv, sub(out[-1], matmul(adjoint(vh), matmul(vh, out[-1]))))
    return (u, s, vh), (du, ds, adjoint(dv))


def _check_cotangents(n: Node, cts: Sequence[Tangent], linear: set[Value]) -> list[Tangent]:
    """Without cotangents of vectors any basis will do."""
    if all(c is None for c in cts[1:]):
        return [None, *cts]
    whole = [zeros(v.type) if c is None else c for v, c in zip(n.results, cts, strict=True)]
    return [None, *same_in_every_gauge(n.operands[0], *whole, **n.params)]


def _hand_on(n: Node, cts: Sequence[Tangent], linear: set[Value]) -> list[Tangent]:
    return [None, *(c if v in linear else None for v, c in zip(n.operands[1:], cts, strict=True))]


REGION_JVP[eigh.op], REGION_JVP[svd.op] = _eigh, _svd
REGION_TRANSPOSE[gauged.op] = _check_cotangents
REGION_TRANSPOSE[same_in_every_gauge.op] = _hand_on
