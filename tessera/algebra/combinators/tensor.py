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
    light_cost,
    square,
    trace_of,
)
from tessera.algebra.combinators import eigenbasis
from tessera.algebra.combinators.eigenbasis import leaves_of
from tessera.algebra.combinators.linear import balanced
from tessera.algebra.combinators.queries import signed_logdet
from tessera.algebra.kind import Cost, Kind, always, register
from tessera.algebra.operator import Operator, function
from tessera.algebra.solve import DENSE_LIMIT, solve_columns
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value
from tessera.ops import shape
from tessera.ops.arrange import eye as identity
from tessera.ops.contraction import kron, matmul
from tessera.ops.elementwise import add, mul, pow
from tessera.ops.linalg import slogdet as slogdet_matrix
from tessera.ops.matrix import diagonal, trace


def _some(user: str, xs: Sequence[Any]) -> Sequence[Any]:
    if not xs:
        raise OperandError(f"{user}: got no operators")
    return xs


def _operators(user: str, xs: Sequence[Any]) -> list[Operator]:
    return [as_operator(user, x) for x in _some(user, xs)]


def _spread(f: Callable[[Operator], Operator]) -> Callable[[Operator], Operator]:
    return lambda a: Operator(a.kind, tuple(f(p) for p in a.parts), a.data, a.static)


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


def _kron_slogdet(a: Operator) -> tuple[Value, Value]:
    if not _square_parts(a):
        return slogdet_matrix(dense_of(a))  # type: ignore[return-value]
    (s, size), (t, more) = (signed_logdet(p) for p in a.parts)
    m, n = (p.shape[0] for p in a.parts)
    return mul(pow(s, n), pow(t, m)), add(mul(size, n), mul(more, m))


def _kron_solve(a: Operator, b: Value) -> Value | None:
    """One factor after another."""
    factors = leaves_of("kronecker", a)
    if any(f.shape[0] != f.shape[1] for f in factors):
        return None
    k = b.shape[1]
    sizes = [f.shape[0] for f in factors]
    for i, f in enumerate(factors):
        before, after = _product(sizes[:i]), _product(sizes[i + 1 :]) * k
        front = shape.moveaxis(shape.reshape(b, (before, sizes[i], after)), 1, 0)
        y = solve_columns(f, shape.reshape(front, (sizes[i], before * after)))
        b = shape.moveaxis(shape.reshape(y, (sizes[i], before, after)), 0, 1)
    return shape.reshape(b, (a.shape[0], k))


def _inverses(a: Operator) -> Operator | None:
    if not _square_parts(a):
        return None
    return Operator(a.kind, tuple(p.inverse() for p in a.parts))


def _powers(a: Operator, k: int) -> Operator | None:
    return Operator(a.kind, tuple(p**k for p in a.parts)) if _square_parts(a) else None


register(Kind(
    name="kronecker", doc="A Kronecker product of two operators.",
    shape=lambda parts, data, static: (
        parts[0].shape[0] * parts[1].shape[0], parts[0].shape[1] * parts[1].shape[1]
    ),
    apply=_kron_apply, transpose=_spread(lambda p: p.T), conj=_spread(lambda p: p.conj()),
    dense=lambda a: kron(dense_of(a.parts[0]), dense_of(a.parts[1])),
    flags=lambda a: rules.of_tensor(a.parts), cost=_kron_cost,
    diagonal=_kron_diagonal, trace=_kron_trace, slogdet=_kron_slogdet,
    solve=_kron_solve, inverse=_inverses, power=_powers,
    rank=lambda a: a.parts[0].rank * a.parts[1].rank, spectrum=eigenbasis.spectrum,
    exact=lambda a, parts, data: np.kron(parts[0], parts[1]),
))  # fmt: skip


# Kronecker sums ---------------------------------------------------------------------------------


@function
def kronsum(*terms: Any) -> Operator:
    """The Kronecker sum A (x) I + I (x) B of square operators."""
    found: Operator = balanced(
        lambda a, b: Operator("kronsum", (a, b)),
        [square("kronsum", t) for t in _some("kronsum", terms)],
    )
    return found


def _kronsum_apply(a: Operator, x: Value) -> Value:
    """The sum over the parts, each along its own axis."""
    parts = leaves_of("kronsum", a)
    sizes = [p.shape[0] for p in parts]
    k = x.shape[1]
    total = None
    for i, p in enumerate(parts):
        before, after = _product(sizes[:i]), _product(sizes[i + 1 :]) * k
        y = shape.reshape(along(p, shape.reshape(x, (before, sizes[i], after))), x.shape)
        total = y if total is None else add(total, y)
    assert total is not None
    return total


def _kronsum_cost(a: Operator, k: int) -> Cost:
    m, n = (p.shape[0] for p in a.parts)
    own = light_cost(a, k, a.shape[0] * k)
    return own.plus(cost_of(a.parts[0], n * k), cost_of(a.parts[1], m * k))


def _kronsum_dense(a: Operator) -> Value:
    p, q = (dense_of(x) for x in a.parts)
    m, n = p.shape[0], q.shape[0]
    return add(kron(p, identity(n, dtype=p.dtype)), kron(identity(m, dtype=q.dtype), q))


def _kronsum_diagonal(a: Operator) -> Value:
    p, q = (diagonal_of(x) for x in a.parts)
    return shape.flatten(add(shape.expand_dims(p, 1), shape.expand_dims(q, 0)))


def _kronsum_trace(a: Operator) -> Value:
    (p, q), (m, n) = (trace_of(x) for x in a.parts), (x.shape[0] for x in a.parts)
    return add(mul(p, n), mul(q, m))


def _kronsum_slogdet(a: Operator) -> tuple[Value, Value]:
    """Of a large sum by the eigenvalues of its parts."""
    n = a.shape[0]
    found = eigenbasis.slogdet(a) if isinstance(n, int) and n > DENSE_LIMIT else None
    return slogdet_matrix(dense_of(a)) if found is None else found  # type: ignore[return-value]


register(Kind(
    name="kronsum", doc="A Kronecker sum of two square operators.", linear=always,
    shape=lambda parts, data, static: (parts[0].shape[0] * parts[1].shape[0],) * 2,
    apply=_kronsum_apply, transpose=_spread(lambda p: p.T), conj=_spread(lambda p: p.conj()),
    dense=_kronsum_dense, flags=lambda a: rules.of_kronsum(a.parts), cost=_kronsum_cost,
    diagonal=_kronsum_diagonal, trace=_kronsum_trace, solve=eigenbasis.solve,
    slogdet=_kronsum_slogdet, spectrum=eigenbasis.spectrum,
    exact=lambda a, parts, data: (
        np.kron(parts[0], np.eye(len(parts[1]), dtype=int).astype(object))
        + np.kron(np.eye(len(parts[0]), dtype=int).astype(object), parts[1])
    ),
))  # fmt: skip
