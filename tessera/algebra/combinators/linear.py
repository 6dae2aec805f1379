"""Sums, multiples and products of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.algebra import flags as rules
from tessera.algebra.apply import (
    as_operator,
    columns,
    conjugate,
    cost_of,
    dense_of,
    diagonal_of,
    light_cost,
    trace_of,
)
from tessera.algebra.combinators import eigenbasis, shift_invariant, woodbury
from tessera.algebra.combinators.queries import signed_logdet
from tessera.algebra.kind import Cost, Kind, always, register
from tessera.algebra.operator import Operator, are_adjoint, function
from tessera.algebra.solve import solve_columns
from tessera.algebra.waves import Spectrum, spectrum_of
from tessera.core.constraints import unify
from tessera.core.dtype import DType, complex_of
from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value
from tessera.ops.define import as_value, cast_to, floating
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import add, div, log, mul, pow, reciprocal, sign
from tessera.ops.linalg import slogdet as slogdet_matrix
from tessera.ops.reduction import sum as total
from tessera.ops.shape import matrix_transpose, slice_

Number = int | float | complex


def balanced(f: Callable[[Any, Any], Any], xs: Sequence[Any]) -> Any:
    """xs joined two by two in a tree of least depth."""
    if len(xs) == 1:
        return xs[0]
    half = len(xs) // 2
    return f(balanced(f, xs[:half]), balanced(f, xs[half:]))


def _operators(user: str, xs: Sequence[Any]) -> list[Operator]:
    if not xs:
        raise OperandError(f"{user}: got no operators")
    return [as_operator(user, x) for x in xs]


# Sums -------------------------------------------------------------------------------------------


@function
def plus(*terms: Any) -> Operator:
    """The sum of operators: (A + B) @ x = A @ x + B @ x."""
    found: Operator = balanced(_plus, _operators("plus", terms))
    return found


def _plus(a: Operator, b: Operator) -> Operator:
    for i in range(2):
        if not unify(a.shape[i], b.shape[i], "plus: the sizes of both operators"):
            raise ShapeError(
                f"plus: operand 0 is {a} but operand 1 is {b}; operators that are added have one shape"
            )
    return Operator("plus", (a, b))


@function
def minus(a: Any, b: Any) -> Operator:
    """A - B."""
    return _plus(as_operator("minus", a), scaled(as_operator("minus", b), -1))


def _sum_of(f: Callable[[Operator], Value]) -> Callable[[Operator], Value]:
    return lambda a: add(f(a.parts[0]), f(a.parts[1]))


def _spread(f: Callable[[Operator], Operator]) -> Callable[[Operator], Operator]:
    return lambda a: Operator(a.kind, tuple(f(p) for p in a.parts), a.data, a.static)


def _multiple_of_identity(a: Operator) -> float | None:
    """The number c when A is c times the identity and c is known."""
    if a.kind == "scale" and a.static and not isinstance(a.static[0], complex):
        inner = _multiple_of_identity(a.parts[0])
        return None if inner is None else float(a.static[0]) * inner
    return 1.0 if a.kind == "eye" else None


def _sum_solve(a: Operator, b: Value) -> Value | None:
    one = shift_invariant.joined(a)
    if one is not None and one.record.solve is not None:
        return one.record.solve(one, b)
    found = woodbury.solve(a, b)
    return eigenbasis.solve(a, b) if found is None else found


def _sum_slogdet(a: Operator) -> tuple[Value, Value]:
    one = shift_invariant.joined(a)
    if one is not None and one.record.slogdet is not None:
        return one.record.slogdet(one)
    found = woodbury.slogdet(a)
    found = eigenbasis.slogdet(a) if found is None else found
    return slogdet_matrix(dense_of(a)) if found is None else found  # type: ignore[return-value]


def _shifted_spectrum(a: Operator) -> Spectrum | None:
    """A spectrum that is known, moved by a multiple of the identity."""
    for p, q in (a.parts, a.parts[::-1]):
        known, shift = spectrum_of(p), _multiple_of_identity(q)
        if known is not None and shift is not None:
            return known.mapped(lambda w, c=shift: w + c)  # type: ignore[misc]
    return eigenbasis.spectrum(a)


register(Kind(
    name="plus", doc="A sum of two operators.", linear=always,
    shape=lambda parts, data, static: parts[0].shape,
    apply=lambda a, x: add(columns(a.parts[0], x), columns(a.parts[1], x)),
    transpose=_spread(lambda p: p.T), conj=_spread(lambda p: p.conj()),
    dense=_sum_of(dense_of), flags=lambda a: rules.of_sum(a.parts),
    cost=lambda a, k: light_cost(a, k, a.shape[0] * k).plus(*(cost_of(p, k) for p in a.parts)),
    diagonal=_sum_of(diagonal_of), trace=_sum_of(trace_of),
    slice=lambda a, rows, cols: Operator("plus", (a.parts[0][rows, cols], a.parts[1][rows, cols])),
    rank=lambda a: a.parts[0].rank + a.parts[1].rank,
    solve=_sum_solve, slogdet=_sum_slogdet, spectrum=_shifted_spectrum,
    exact=lambda a, parts, data: parts[0] + parts[1],
))  # fmt: skip


# Multiples --------------------------------------------------------------------------------------


@function
def scale(a: Any, factor: Any) -> Operator:
    """The operator times a number; scale(2, A) and scale(A, 2) are the same."""
    if isinstance(factor, Operator):
        a, factor = factor, a
    return scaled(as_operator("scale", a), factor)


def scaled(a: Operator, factor: Any) -> Operator:
    """A multiple; a Python number is part of the structure, a tensor is data."""
    if isinstance(factor, Number) and not isinstance(factor, bool | np.generic):
        if factor == 1:
            return a
        if a.kind == "scale" and a.static and not a.assumed:  # what was vouched for is not lost
            return scaled(a.parts[0], a.static[0] * factor)
        return Operator("scale", (a,), static=(factor,))
    v = floating(as_value(factor, "scale"), a.dtype)
    if v.ndim:
        raise ShapeError(
            f"scale: the factor of {a} is {v.type}, expected a scalar; multiply rows by op.diag(v) @ A"
        )
    return Operator("scale", (a,), (v,))


@function
def divide(a: Operator, factor: Any) -> Operator:
    """A / 2."""
    if isinstance(factor, Number) and not isinstance(factor, bool | np.generic):
        if factor == 0:
            raise OperandError(f"divide: {a} divided by 0")
        return scaled(a, 1 / factor)
    return scaled(a, reciprocal(floating(as_value(factor, "divide"), a.dtype)))


def factor_of(a: Operator) -> Any:
    """The factor of a multiple: a Python number, or a tensor."""
    return a.data[0] if a.data else a.static[0]


def _scale_dtype(parts: Any, data: Any, static: Any) -> DType:
    if data:
        return promote(parts[0].dtype, data[0].dtype)
    complex_factor = isinstance(static[0], complex)
    return complex_of(parts[0].dtype) if complex_factor else parts[0].dtype


def _times(f: Callable[[Operator], Value]) -> Callable[[Operator], Value]:
    return lambda a: mul(f(a.parts[0]), factor_of(a))


def _conj_scale(a: Operator) -> Operator:
    if a.data:
        return Operator("scale", (a.parts[0].conj(),), (conjugate(a.data[0]),))
    factor = a.static[0]
    return scaled(a.parts[0].conj(), factor.conjugate())


def _scale_slogdet(a: Operator) -> tuple[Value, Value]:
    """n log |factor| more than that of the operator; its sign n times."""
    s, size = signed_logdet(a.parts[0])
    factor, n = as_value(factor_of(a)), a.shape[0]
    factor = cast_to(factor, a.dtype)
    return mul(s, pow(sign(factor), n)), add(size, mul(log(absolute(factor)), n))


def _scale_solve(a: Operator, b: Value) -> Value:
    return div(solve_columns(a.parts[0], b), factor_of(a))


def _scale_inverse(a: Operator) -> Operator:
    return divide(a.parts[0].inverse(), factor_of(a))


def _scale_power(a: Operator, k: int) -> Operator:
    factor = a.static[0] ** k if a.static else pow(a.data[0], k)
    return scaled(a.parts[0] ** k, factor)


def _scaled_spectrum(a: Operator) -> Spectrum | None:
    known, factor = spectrum_of(a.parts[0]), a.static[0] if a.static else 1j
    if known is None or isinstance(factor, complex):
        return None
    return known.mapped(lambda w: w * factor)


register(Kind(
    name="scale", doc="A multiple of an operator.", linear=lambda a: not a.data,
    shape=lambda parts, data, static: parts[0].shape, dtype=_scale_dtype,
    apply=lambda a, x: mul(columns(a.parts[0], x), factor_of(a)),
    transpose=lambda a: Operator("scale", (a.parts[0].T,), a.data, a.static), conj=_conj_scale,
    dense=_times(dense_of), diagonal=_times(diagonal_of), trace=_times(trace_of),
    flags=lambda a: rules.of_scale(a.parts[0], a.static[0] if a.static else None),
    cost=lambda a, k: light_cost(a, k, a.shape[0] * k).plus(cost_of(a.parts[0], k)),
    slice=lambda a, rows, cols: Operator("scale", (a.parts[0][rows, cols],), a.data, a.static),
    rank=lambda a: 0 if a.static == (0,) else a.parts[0].rank, slogdet=_scale_slogdet,
    solve=_scale_solve,
    inverse=_scale_inverse, power=_scale_power, spectrum=_scaled_spectrum,
    exact=lambda a, parts, data: parts[0] * (data[0] if data else a.static[0]),
))  # fmt: skip


# Products ---------------------------------------------------------------------------------------


@function
def compose(*factors: Any) -> Operator:
    """The product of operators: (A @ B) @ x = A @ (B @ x)."""
    found: Operator = balanced(_compose, _operators("compose", factors))
    return found


def _compose(a: Operator, b: Operator) -> Operator:
    if not unify(
        a.shape[1], b.shape[0], "compose: the columns of operand 0 and the rows of operand 1"
    ):
        raise ShapeError(
            f"compose: operand 0 {a} takes vectors of {a.shape[1]} but operand 1 {b} gives vectors of "
            f"{b.shape[0]}"
        )
    found = Operator("compose", (a, b))
    parts = tuple(_of_dtype(p, found.dtype) for p in (a, b))
    return found if parts[0] is a and parts[1] is b else Operator("compose", parts)


def _of_dtype(a: Operator, dtype: DType) -> Operator:
    """An identity or zero in the dtype of what it stands beside, so that laws see one kind of it."""
    if a.kind not in ("eye", "zero") or a.dtype is dtype:
        return a
    return Operator(a.kind, static=(*a.static[:-1], dtype))


def factors_of(a: Operator) -> list[Operator]:
    """The factors of nested products, from left to right."""
    if a.kind != "compose":
        return [a]
    return [f for p in a.parts for f in factors_of(p)]


def _compose_flags(a: Operator) -> frozenset[str]:
    """Those of a product, and of B.H @ M @ B for a middle M that is self-adjoint or positive."""
    found = set(rules.of_product(a.parts))
    factors = factors_of(a)
    half = len(factors) // 2
    pairs = zip(factors[:half], reversed(factors), strict=False)
    if all(are_adjoint(p, q) for p, q in pairs):
        middle = factors[half].flags if len(factors) % 2 else frozenset(("positive",))
        found |= middle & {"self_adjoint", "positive"}
    return frozenset(found)


def _compose_cost(a: Operator, k: int) -> Cost:
    return cost_of(a.parts[1], k).plus(cost_of(a.parts[0], k))


def _rank(a: Operator) -> Any:
    p, q = (part.rank for part in a.parts)
    return min(p, q) if isinstance(p, int) and isinstance(q, int) else p


def _square_factors(a: Operator) -> bool:
    return all(p.shape[0] == p.shape[1] for p in a.parts)


def _compose_slogdet(a: Operator) -> tuple[Value, Value]:
    if not _square_factors(a):
        return slogdet_matrix(dense_of(a))  # type: ignore[return-value]
    (s, size), (t, more) = (signed_logdet(p) for p in a.parts)
    return mul(s, t), add(size, more)


def _compose_solve(a: Operator, b: Value) -> Value | None:
    if not _square_factors(a):
        return None
    return solve_columns(a.parts[1], solve_columns(a.parts[0], b))


def _compose_inverse(a: Operator) -> Operator | None:
    if not _square_factors(a):
        return None
    return Operator("compose", (a.parts[1].inverse(), a.parts[0].inverse()))


def _compose_diagonal(a: Operator) -> Value:
    """Row i of A times column i of B, for each i: the product itself is not made."""
    k = min(a.shape) if all(isinstance(n, int) for n in a.shape) else a.shape[0]
    left, right = dense_of(a.parts[0]), matrix_transpose(dense_of(a.parts[1]))
    rows = [slice_(x, (0, 0), (k, x.shape[1])) for x in (left, right)]
    return total(mul(rows[0], rows[1]), 1)


register(Kind(
    name="compose", doc="A product of two operators.",
    shape=lambda parts, data, static: (parts[0].shape[0], parts[1].shape[1]),
    apply=lambda a, x: columns(a.parts[0], columns(a.parts[1], x)),
    transpose=lambda a: Operator("compose", (a.parts[1].T, a.parts[0].T)),
    conj=_spread(lambda p: p.conj()),
    dense=lambda a: columns(a.parts[0], dense_of(a.parts[1])), flags=_compose_flags,
    cost=_compose_cost, rank=_rank, diagonal=_compose_diagonal, slogdet=_compose_slogdet,
    solve=_compose_solve,
    inverse=_compose_inverse,
    slice=lambda a, rows, cols: Operator(
        "compose", (a.parts[0][rows, slice(None)], a.parts[1][slice(None), cols])
    ),
    exact=lambda a, parts, data: parts[0].dot(parts[1]),
))  # fmt: skip
