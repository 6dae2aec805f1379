"""Inverses, pseudoinverses, resolvents and whole powers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra import flags as rules
from tessera.algebra.apply import (
    as_operator,
    columns,
    cost_of,
    dense_cost,
    dense_of,
    square,
)
from tessera.algebra.combinators.linear import minus, scaled
from tessera.algebra.combinators.queries import signed_logdet
from tessera.algebra.constructors.basic import eye
from tessera.algebra.constructors.factored import factors_of
from tessera.algebra.kind import Cost, Kind, register
from tessera.algebra.operator import Operator, function
from tessera.algebra.solve import refuse_low_rank, solve_columns
from tessera.algebra.waves import spectrum_of
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value
from tessera.ops.contraction import matmul
from tessera.ops.creation import constant
from tessera.ops.elementwise import div, mul, neg
from tessera.ops.factor import qr
from tessera.ops.linalg import matrix_power, pinv
from tessera.ops.matrix import adjoint, reciprocal_or_zero

# Inverse ----------------------------------------------------------------------------------------


@function
def inverse(a: Any) -> Operator:
    """The inverse of a square operator; it is applied by solving."""
    return inverse_of(square("inverse", a))


def inverse_of(a: Operator) -> Operator:
    """The inverse, in the structure of the kind where it has one."""
    if a.kind == "inverse":
        return a.parts[0]
    if "unitary" in a.flags:
        return a.H
    refuse_low_rank("inverse", a)
    found = None if a.record.inverse is None else a.record.inverse(a)
    return Operator("inverse", (a,)) if found is None else found


def _slogdet(a: Operator) -> tuple[Value, Value]:
    s, size = signed_logdet(a.parts[0])
    return div(1, s), neg(size)


def _solve_cost(a: Operator, k: int) -> Cost:
    """A factorisation of the dense matrix beside the substitutions."""
    n = float(a.shape[0]) if isinstance(a.shape[0], int) else 1.0
    return dense_cost(a, k).plus(Cost(2 / 3 * n**3, 0, 1))


register(Kind(
    name="inverse", doc="The inverse of an operator.",
    shape=lambda parts, data, static: parts[0].shape,
    apply=lambda a, x: solve_columns(a.parts[0], x),
    transpose=lambda a: inverse_of(a.parts[0].T), conj=lambda a: inverse_of(a.parts[0].conj()),
    flags=lambda a: rules.of_inverse(a.parts[0]), cost=_solve_cost, slogdet=_slogdet,
    solve=lambda a, b: columns(a.parts[0], b), inverse=lambda a: a.parts[0],
))  # fmt: skip


@function
def resolvent(a: Any, z: Any) -> Operator:
    """(z I - A) inverse, for a z that is no eigenvalue of A."""
    found = square("resolvent", a)
    return inverse_of(minus(scaled(eye(found.shape[0], found.dtype), z), found))


# Pseudoinverse ----------------------------------------------------------------------------------


@function
def pseudoinverse(a: Any) -> Operator:
    """The inverse of Moore and Penrose: A+ b is the smallest of the x that bring A x nearest to b."""
    return pseudoinverse_of(as_operator("pseudoinverse", a))


def pseudoinverse_of(a: Operator) -> Operator:
    """The pseudoinverse, in the structure of the operator where it has one."""
    if "projector" in a.flags:
        return a
    if "orthogonal_columns" in a.flags or a.kind == "zero":
        return a.H
    if "orthogonal_columns" in a.H.flags:
        return a.H
    if a.kind == "pseudoinverse":
        return a.parts[0]
    if a.kind == "diag":
        return Operator("diag", data=(reciprocal_or_zero(a.data[0]),))
    if a.kind in ("kronecker", "direct_sum"):
        return Operator(a.kind, tuple(map(pseudoinverse_of, a.parts)))
    if a.kind == "adjoint":
        return pseudoinverse_of(a.parts[0]).H
    if a.kind == "scale" and a.static and a.static[0] != 0:
        return scaled(pseudoinverse_of(a.parts[0]), 1 / a.static[0])
    if a.kind == "low_rank" and _is_thin(a):
        return _of_low_rank(a)
    return inverse_of(a) if "invertible" in a.flags else Operator("pseudoinverse", (a,))


def _is_thin(a: Operator) -> bool:
    """Whether both factors have at most as many columns as rows; else the matrix is no larger than they
    are.
    """
    u, _, v = factors_of(a)
    return all(n <= m for m, n in (u.shape, v.shape) if isinstance(m, int) and isinstance(n, int))


def _of_low_rank(a: Operator) -> Operator:
    """With U = P X and V = Q Y the pseudoinverse of P (X S Y.H) Q.H is Q (X S Y.H)+ P.H."""
    u, s, v = factors_of(a)
    (p, x), (q, y) = qr(u), qr(v)
    core = pinv(matmul(x if s is None else mul(x, s), adjoint(y)))
    return Operator("low_rank", data=(matmul(q, core), p), static=(False, False))


def _apply_pseudoinverse(a: Operator, x: Value) -> Value:
    """By the eigenvalues that the structure tells, those that are 0 left out; else densely."""
    known = spectrum_of(a.parts[0])
    if known is None:
        return matmul(pinv(dense_of(a.parts[0])), x)
    zeros = known.zeros()
    weights = np.where(zeros, 0.0, 1 / np.where(zeros, 1.0, known.values))
    return known.function(constant(weights.astype(a.dtype.real.np)), x)


register(Kind(
    name="pseudoinverse", doc="The inverse of Moore and Penrose.",
    shape=lambda parts, data, static: (parts[0].shape[1], parts[0].shape[0]),
    apply=_apply_pseudoinverse,
    transpose=lambda a: Operator("pseudoinverse", (a.parts[0].T,)),
    conj=lambda a: Operator("pseudoinverse", (a.parts[0].conj(),)),
    dense=lambda a: pinv(dense_of(a.parts[0])), cost=_solve_cost,
    flags=lambda a: rules.of_pseudoinverse(a.parts[0]), rank=lambda a: a.parts[0].rank,
))  # fmt: skip


# Powers -----------------------------------------------------------------------------------------


@function
def power(a: Any, k: Any) -> Operator:
    """A applied k times; a negative k takes the inverse."""
    found = square("power", a)
    if isinstance(k, bool) or not hasattr(k, "__index__"):
        raise OperandError(
            f"power: the power of {found} is {k!r:.40}, expected a whole number; for a fraction use "
            "op.function(A, f)"
        )
    return power_of(found, int(k))


def power_of(a: Operator, k: int) -> Operator:
    """A whole power in the structure of the kind where it has one."""
    if k == 0:
        return eye(a.shape[0], a.dtype)
    if k == 1 or "projector" in a.flags:
        return a if k > 0 else inverse_of(a)
    if k < 0:
        return power_of(inverse_of(a), -k)
    found = None if a.record.power is None else a.record.power(a, k)
    if found is not None:
        return found
    if a.kind == "power":
        return Operator("power", a.parts, static=(a.static[0] * k,))
    return Operator("power", (a,), static=(k,))


def _repeated(a: Operator, x: Value) -> Value:
    for _ in range(a.static[0]):
        x = columns(a.parts[0], x)
    return x


def _power_flags(a: Operator) -> frozenset[str]:
    (p,), (k,) = a.parts, a.static
    found = set(rules.of_product((p,))) | (
        p.flags & {"self_adjoint", "symmetric", "normal", "positive"}
    )
    if "skew_adjoint" in p.flags:
        found.add("self_adjoint" if k % 2 == 0 else "skew_adjoint")
    if "self_adjoint" in p.flags and k % 2 == 0:
        found.add("positive")
    return frozenset(found)


def _power_slogdet(a: Operator) -> tuple[Value, Value]:
    s, size = signed_logdet(a.parts[0])
    sign = s
    for _ in range(a.static[0] - 1):
        sign = mul(sign, s)
    return sign, mul(size, a.static[0])


def _power_solve(a: Operator, b: Value) -> Value:
    for _ in range(a.static[0]):
        b = solve_columns(a.parts[0], b)
    return b


register(Kind(
    name="power", doc="An operator applied several times.",
    shape=lambda parts, data, static: parts[0].shape, apply=_repeated,
    transpose=lambda a: power_of(a.parts[0].T, a.static[0]),
    conj=lambda a: power_of(a.parts[0].conj(), a.static[0]),
    dense=lambda a: matrix_power(dense_of(a.parts[0]), a.static[0]), flags=_power_flags,
    cost=lambda a, k: Cost(*(a.static[0] * c for c in cost_of(a.parts[0], k))),
    slogdet=_power_slogdet, solve=_power_solve,
    inverse=lambda a: power_of(inverse_of(a.parts[0]), a.static[0]),
    rank=lambda a: a.parts[0].rank,
    exact=lambda a, parts, data: _exact_power(parts[0], a.static[0]),
))  # fmt: skip


def _exact_power(m: Any, k: int) -> Any:
    out = m
    for _ in range(k - 1):
        out = out.dot(m)
    return out


# Brackets and parts ------------------------------------------------------------------------------


@function
def commutator(a: Any, b: Any) -> Operator:
    """A @ B - B @ A."""
    x, y = square("commutator", a), square("commutator", b)
    return minus(x @ y, y @ x)


@function
def anticommutator(a: Any, b: Any) -> Operator:
    """A @ B + B @ A."""
    x, y = square("anticommutator", a), square("anticommutator", b)
    return x @ y + y @ x  # type: ignore[no-any-return]


@function
def sym(a: Any) -> Operator:
    """The self-adjoint part (A + A.H) / 2."""
    found = square("sym", a)
    if "self_adjoint" in found.flags:
        return found
    return scaled(found + found.H, 0.5).assume("self_adjoint")


@function
def skew(a: Any) -> Operator:
    """The skew-adjoint part (A - A.H) / 2."""
    found = square("skew", a)
    if "skew_adjoint" in found.flags:
        return found
    return scaled(found - found.H, 0.5).assume("skew_adjoint")
