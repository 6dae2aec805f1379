"""Kronecker products and sums, direct sums and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.algebra import flags as rules
from tessera.algebra.apply import (
    as_operator,
    columns,
    cost_of,
    dense_of,
    diagonal_of,
    trace_of,
)
from tessera.algebra.combinators.linear import balanced
from tessera.algebra.kind import Cost, Kind, register
from tessera.algebra.operator import Operator, function
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value
from tessera.ops import shape
from tessera.ops.contraction import kron, matmul
from tessera.ops.elementwise import mul
from tessera.ops.matrix import diagonal, trace


def _operators(user: str, xs: Sequence[Any]) -> list[Operator]:
    if not xs:
        raise OperandError(f"{user}: got no operators")
    return [as_operator(user, x) for x in xs]


def _spread(f: Callable[[Operator], Operator]) -> Callable[[Operator], Operator]:
    return lambda a: Operator(a.kind, tuple(f(p) for p in a.parts), a.data, a.static)


def leaves_of(kind: str, a: Operator) -> list[Operator]:
    """The parts of nested operators of one kind, from left to right."""
    if a.kind != kind:
        return [a]
    return [f for p in a.parts for f in leaves_of(kind, p)]


# Kronecker products -----------------------------------------------------------------------------


@function
def kronecker(*factors: Any) -> Operator:
    """The Kronecker product: every element of A times the whole of B; x is read as a matrix by rows."""
    found: Operator = balanced(
        lambda a, b: Operator("kronecker", (a, b)), _operators("kronecker", factors)
    )
    return found


@function
def tensor(*factors: Any) -> Operator:
    """The tensor product of operators, which is their Kronecker product."""
    found: Operator = kronecker(*factors)
    return found


def along(a: Operator, x: Value) -> Value:
    """A along the middle axis of (before, columns, after)."""
    before, n, after = x.shape
    if before == 1:
        return shape.expand_dims(columns(a, shape.squeeze(x, 0)), 0)
    if a.kind == "dense" and after == 1:
        y = matmul(shape.squeeze(x, 2), shape.matrix_transpose(a.data[0]))
        return shape.expand_dims(y, 2)
    if a.kind == "dense":
        return matmul(a.data[0], x)
    front = shape.reshape(shape.moveaxis(x, 1, 0), (n, before * after))
    y = shape.reshape(columns(a, front), (a.shape[0], before, after))
    return shape.moveaxis(y, 0, 1)


def _kron_apply(a: Operator, x: Value) -> Value:
    """One factor after another, those that shrink the vector first."""
    factors = leaves_of("kronecker", a)
    sizes = [f.shape[1] for f in factors]
    k = x.shape[1]
    for i in _order(factors):
        if factors[i].kind == "eye":
            continue
        before, after = _product(sizes[:i]), _product(sizes[i + 1 :]) * k
        x = along(factors[i], shape.reshape(x, (before, sizes[i], after)))
        sizes[i] = factors[i].shape[0]
    return shape.reshape(x, (a.shape[0], k))


def _order(factors: Sequence[Operator]) -> list[int]:
    def growth(i: int) -> float:
        m, n = factors[i].shape
        return m / n if isinstance(m, int) and isinstance(n, int) and n else 1.0

    return sorted(range(len(factors)), key=growth)


def _product(sizes: Sequence[Any]) -> Any:
    out: Any = 1
    for s in sizes:
        out = out * s
    return out


def _kron_cost(a: Operator, k: int) -> Cost:
    factors = leaves_of("kronecker", a)
    sizes = [f.shape[1] for f in factors]
    total = Cost()
    for i in _order(factors):
        others = _product(sizes[:i]) * _product(sizes[i + 1 :]) * k
        total = total.plus(cost_of(factors[i], others))
        sizes[i] = factors[i].shape[0]
    return total


def _square_parts(a: Operator) -> bool:
    return all(p.shape[0] == p.shape[1] for p in a.parts)


def _kron_diagonal(a: Operator) -> Value:
    if not _square_parts(a):
        return diagonal(dense_of(a))
    return kron(diagonal_of(a.parts[0]), diagonal_of(a.parts[1]))


def _kron_trace(a: Operator) -> Value:
    if not _square_parts(a):
        return trace(dense_of(a))
    return mul(trace_of(a.parts[0]), trace_of(a.parts[1]))


register(Kind(
    name="kronecker", doc="A Kronecker product of two operators.",
    shape=lambda parts, data, static: (
        parts[0].shape[0] * parts[1].shape[0], parts[0].shape[1] * parts[1].shape[1]
    ),
    apply=_kron_apply, transpose=_spread(lambda p: p.T), conj=_spread(lambda p: p.conj()),
    dense=lambda a: kron(dense_of(a.parts[0]), dense_of(a.parts[1])),
    flags=lambda a: rules.of_tensor(a.parts), cost=_kron_cost,
    diagonal=_kron_diagonal, trace=_kron_trace,
    rank=lambda a: a.parts[0].rank * a.parts[1].rank,
    exact=lambda a, parts, data: np.kron(parts[0], parts[1]),
))  # fmt: skip
