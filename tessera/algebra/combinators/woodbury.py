"""Sums of something that is easy to solve and something of low rank.

(D + U V.H)^-1 = D^-1 - D^-1 U (I + V.H D^-1 U)^-1 V.H D^-1 (Woodbury), and det(D + U V.H) is
det(D) det(I + V.H D^-1 U).
"""

from __future__ import annotations

import numpy as np

from tessera.algebra.apply import diagonal_of
from tessera.algebra.combinators import eigenbasis
from tessera.algebra.combinators.queries import signed_logdet
from tessera.algebra.constructors.factored import factors_of
from tessera.algebra.operator import Operator
from tessera.algebra.solve import solve_columns, solve_small
from tessera.ir.graph.ir import Value
from tessera.ir.graph.place import known_data
from tessera.ops.arrange import eye
from tessera.ops.contraction import matmul
from tessera.ops.elementwise import add, mul, sub
from tessera.ops.linalg import slogdet as slogdet_matrix
from tessera.ops.matrix import adjoint
from tessera.ops.shape import concat

_EASY = {"eye", "diag", "permutation", "circulant", "tridiagonal", "triangular"}


def terms_of(a: Operator) -> list[Operator]:
    """The terms of nested sums."""
    return [t for p in a.parts for t in terms_of(p)] if a.kind == "plus" else [a]


def is_easy(a: Operator) -> bool:
    """Whether A is solved in less time than a dense matrix, as long as it has an inverse."""
    if a.kind in ("scale", "kronecker", "direct_sum", "adjoint", "transpose", "conj", "compose"):
        return all(is_easy(p) and p.shape[0] == p.shape[1] for p in a.parts)
    return a.kind in _EASY or bool(a.flags & {"unitary", "diagonal"})


def _thin(a: Operator) -> tuple[Value, Value] | None:
    """U and V of a term U V.H of low rank."""
    if a.kind == "scale":
        inner, factor = _thin(a.parts[0]), a.data[0] if a.data else a.static[0]
        return None if inner is None else (mul(inner[0], factor), inner[1])
    if a.kind != "low_rank":
        return None
    u, s, v = factors_of(a)
    return (u if s is None else mul(u, s)), v


def split(a: Operator) -> tuple[Operator, Value, Value] | None:
    """D, U and V when the sum is D + U V.H with an easy D and thin U and V."""
    thin: list[tuple[Value, Value]] = []
    rest: list[Operator] = []
    for t in terms_of(a):
        found = _thin(t)
        if found is None:
            rest.append(t)
        else:
            thin.append(found)
    base = _base(rest) if thin and rest else None
    if base is None or sum(u.shape[1] for u, _ in thin) >= a.shape[0] or _has_zero(base):
        return None
    u, v = (concat([pair[i] for pair in thin], 1) for i in range(2))
    return base, u, v


def _base(rest: list[Operator]) -> Operator | None:
    """What is left without the terms of low rank, if that is easy to solve."""
    if len(rest) == 1:
        return rest[0] if is_easy(rest[0]) else None
    if all("diagonal" in t.flags and is_easy(t) for t in rest):
        return Operator("diag", data=(_summed([diagonal_of(t) for t in rest]),))
    whole = rest[0]
    for t in rest[1:]:
        whole = Operator("plus", (whole, t))
    return whole if eigenbasis.shifted(whole) is not None else None


def _summed(xs: list[Value]) -> Value:
    total = xs[0]
    for x in xs[1:]:
        total = add(total, x)
    return total


def _has_zero(a: Operator) -> bool:
    """Whether a diagonal is seen to be singular, though the sum may not be."""
    if "diagonal" not in a.flags:
        return False
    d = known_data(diagonal_of(a))
    return d is not None and not bool(np.all(d))


def _core(v: Value, inner: Value) -> Value:
    return add(eye(v.shape[1], dtype=inner.dtype), matmul(adjoint(v), inner))


def solve(a: Operator, b: Value) -> Value | None:
    """The solution by Woodbury's formula, None when the sum is none of that form."""
    found = split(a)
    if found is None:
        return None
    base, u, v = found
    y, inner = solve_columns(base, b), solve_columns(base, u)
    return sub(y, matmul(inner, solve_small(a, _core(v, inner), matmul(adjoint(v), y))))


def slogdet(a: Operator) -> tuple[Value, Value] | None:
    """Sign and logarithm by the determinant lemma, None when the sum is none of that form."""
    found = split(a)
    if found is None:
        return None
    base, u, v = found
    (s, size), (t, more) = (
        signed_logdet(base),
        slogdet_matrix(_core(v, solve_columns(base, u))),
    )
    return mul(s, t), add(size, more)
