"""Tangents of operators: the derivative of an operator-valued function is an operator too.

The matrix M of an operator is a function of its tensors t, so its derivative in the direction dt is the
matrix dM = M'(t) dt: d(A @ B) is dA @ B + A @ dB.  Kinds whose matrix is linear in their tensors have a
tangent of their own kind; for the others the kind `tangent` keeps A with dt and applies dM by forward mode.
A cotangent is a matrix C, paired with dM by the sum of products of their elements; pulled back it gives
cotangents of t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tessera.algebra.apply import columns, cost_of, dense_of, diagonal_of, trace_of
from tessera.algebra.constructors.factored import factors_of
from tessera.algebra.constructors.implicit import by_parts
from tessera.algebra.kind import Cost, Kind, register
from tessera.algebra.linear_graph import linearized, zeros
from tessera.algebra.operator import Operator
from tessera.core import tree
from tessera.core.constraints import unify
from tessera.core.errors import DTypeError, OperandError, ShapeError, TraceError
from tessera.ir.graph.ir import Value
from tessera.ops.creation import constant
from tessera.ops.define import as_value, cast_to
from tessera.ops.elementwise import conj, mul


def _moves(v: Value) -> bool:
    return v.dtype.kind in "fc"


def _at(a: Operator, f: Callable[[Operator], Value]) -> Any:
    """f of the operator A, linearised in the tensors of A."""
    xs, s = tree.flatten(a)
    return linearized(lambda *ys: f(tree.unflatten(s, ys)), tuple(xs), "tangent")[1]


# Forward ----------------------------------------------------------------------------------------


def tangent_of(a: Operator, tangents: Sequence[Value]) -> Operator:
    """The derivative of the matrix of A when its tensors move along the tangents."""
    _refuse_captured(a)
    if not any(_moves(v) for v in tree.leaves(a)):
        return Operator("zero", static=(*a.shape, a.dtype))
    if _is_linear(a):
        return _holding(a, iter(tangents))
    return Operator("tangent", (a,), tuple(tangents))


def _refuse_captured(a: Operator) -> None:
    """f(A) whose f takes a value from the differentiated function has a tangent that A does not tell."""
    if a.kind == "function" and callable(a.static[0]):
        try:
            a.static[0](constant(np.ones(1, a.parts[0].dtype.np)))
        except TraceError:
            error = TraceError(
                f"tangent: f of {a} uses tensors that are differentiated; make them part of the operator, as "
                "in op.function(c * A, f), or return f(A) @ x"
            )
            raise error from None
    for p in a.parts:
        _refuse_captured(p)


def _is_linear(a: Operator) -> bool:
    """Whether the matrix is linear in the tensors, and those of all parts."""
    return a.record.linear(a) and all(_is_linear(p) for p in a.parts)


def _holding(a: Operator, tensors: Iterator[Value]) -> Operator:
    """An operator of the structure of A with other tensors, for which nobody vouches."""
    data = tuple(next(tensors) for _ in a.data)
    return Operator(a.kind, tuple(_holding(p, tensors) for p in a.parts), data, a.static)


def _pushed(a: Operator, f: Callable[[Operator], Value]) -> Value:
    """The derivative of f(A) along the tangents."""
    (p,) = a.parts
    lin = _at(p, f)
    pairs = zip(tree.leaves(p), a.data, strict=True)
    (y,) = lin.apply([t for v, t in pairs if _moves(v)])
    return y  # type: ignore[no-any-return]


def _applied(a: Operator, x: Value, turned: bool) -> Value:
    return by_parts(
        a, x, lambda v: _pushed(a, lambda p: columns(p.T if turned else p, cast_to(v, a.dtype)))
    )


register(Kind(
    name="tangent", doc="The derivative of an operator along tangents of its tensors.",
    shape=lambda parts, data, static: parts[0].shape,
    dtype=lambda parts, data, static: parts[0].dtype,
    apply=lambda a, x: _applied(a, x, False), apply_transpose=lambda a, x: _applied(a, x, True),
    dense=lambda a: _pushed(a, dense_of), diagonal=lambda a: _pushed(a, diagonal_of),
    trace=lambda a: _pushed(a, trace_of),
    cost=lambda a, k: Cost(*(3 * c for c in cost_of(a.parts[0], k))),
))  # fmt: skip


def directions(user: str, i: int, a: Operator, t: Any) -> list[Value]:
    """Tangents of the tensors of A, from what a caller gives as the tangent of argument i."""
    own = tree.leaves(a)
    if isinstance(t, Operator) and t.kind == "tangent" and _same(t.parts[0], a):
        found: list[Any] = list(t.data)
    elif isinstance(t, Operator) and _same(t, a):
        found = tree.leaves(t)
    elif isinstance(t, Operator) and t.kind == "zero" and t.shape == a.shape:
        found = [zeros(v.type) for v in own]
    elif a.kind == "dense":
        found = [dense_of(t) if isinstance(t, Operator) else t]
    else:
        shown = t if isinstance(t, Operator) else type(t).__name__
        raise OperandError(
            f"{user}: the tangent of operator {i} is {shown}, expected {a} with tangents in place of its "
            "tensors, or a tangent of it that jvp gave"
        )
    return [as_value(x, user) for x in found]


def _same(a: Operator, b: Operator) -> bool:
    """Whether two operators have one structure, whatever is known of their numbers."""
    return (
        a.kind == b.kind and a.static == b.static and a.shape == b.shape
        and len(a.data) == len(b.data) and len(a.parts) == len(b.parts)
        and all(_same(p, q) for p, q in zip(a.parts, b.parts, strict=True))
    )  # fmt: skip


# Reverse ----------------------------------------------------------------------------------------


def pulled_back(user: str, i: int, a: Operator, ct: Any) -> list[Value]:
    """Cotangents of the tensors of A, from a matrix or an operator that is the cotangent of A."""
    _refuse_captured(a)
    own = tree.leaves(a)
    if isinstance(ct, Operator) and ct.is_gradient and _same(ct, a):
        return tree.leaves(ct)
    if isinstance(ct, Operator) and ct.kind == "low_rank" and ct.type == a.type:
        found = _pulled_from_factors(a, ct)
    else:
        found = _at(a, dense_of).pull_back([_matrix(user, i, a, ct)])
    left = iter(found)
    both = [(v, next(left) if _moves(v) else None) for v in own]
    return [zeros(v.type) if c is None else c for v, c in both]


def _pulled_from_factors(a: Operator, ct: Operator) -> Any:
    """With C = U S V.H the sum of C and dA is that of U S and dA @ conj(V): no matrix is made."""
    u, s, v = factors_of(ct)
    right = conj(v) if v.dtype.kind == "c" else v
    left = cast_to(u if s is None else mul(u, s), a.dtype)
    return _at(a, lambda p: columns(p, cast_to(right, a.dtype))).pull_back([left])


def _matrix(user: str, i: int, a: Operator, ct: Any) -> Value:
    c = dense_of(ct) if isinstance(ct, Operator) else as_value(ct, user)
    fits = c.ndim == 2 and all(
        unify(m, n, f"{user}: the sizes of a cotangent")
        for m, n in zip(c.shape, a.shape, strict=True)
    )
    if not fits or c.dtype is not a.dtype:
        kind = ShapeError if not fits else DTypeError
        shown = ct if isinstance(ct, Operator) else c.type
        raise kind(
            f"{user}: cotangent {i} is {shown}, expected an operator or a matrix {a.type} for the result "
            f"{a}"
        )
    return c
