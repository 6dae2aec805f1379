"""Some eigenvalues of a self-adjoint operator by block Krylov spaces, with a derivative.

A block of more vectors than are wanted spans a Krylov space; its Ritz vectors start the next one until
their residuals are small.  A block sees values that repeat, which one vector cannot (Musco and Musco
2015).  The derivative is that of eigh: inside of the found space by quotients of differences, with
clusters as in decision 010, and out of it by a solution with w - A off the found vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tessera.algebra.solvers import short
from tessera.algebra.solvers.closed import Apply, Closed, close
from tessera.algebra.solvers.implicit import (
    SolverSettings,
    System,
    by_column,
    is_zero,
    solution,
    widened,
)
from tessera.algebra.solvers.loop import iterate
from tessera.algebra.solvers.outcome import CONVERGED, LIMIT, NONFINITE, RUNNING, SolveInfo, checked
from tessera.core.dtype import i64
from tessera.ir.graph.ir import Value, current_builder
from tessera.ops.contraction import matmul
from tessera.ops.creation import zeros_like
from tessera.ops.custom import ForwardRule, Values, custom
from tessera.ops.define import full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import eq, isfinite, le, mul, neg, sqrt, where
from tessera.ops.elementwise import square as squared
from tessera.ops.factor import eigh, eigh_tangents, qr
from tessera.ops.gather import take
from tessera.ops.gauge import cluster_turn, clusters, gauged
from tessera.ops.linalg import epsilon
from tessera.ops.matrix import adjoint, hermitian_part
from tessera.ops.reduction import max as largest
from tessera.ops.reduction import sum as total
from tessera.ops.shape import concat, expand_dims, slice_
from tessera.ops.sorting import argsort
from tessera.transform.batch_control import traced
from tessera.transform.differentiate import Tangent, linearizing, zeros

TROUBLE = {
    LIMIT: "did {0} products with blocks and has residuals of {1:.3g} beside the largest value, wanted "
    "{2:.3g}; raise limit=, oversample= or tol=",
    NONFINITE: "met NaN or an infinity; check the operator",
}  # fmt: skip


class _RitzState(NamedTuple):
    step: Value
    values: Value
    vectors: Value
    size: Value
    reason: Value


@dataclass(frozen=True)
class RitzSearch:
    """What is looked for: `count` values, by spaces of `depth` blocks, with A and its tensors."""

    count: int
    depth: int
    which: str  # magnitude, largest or smallest
    apply: Closed
    settings: SolverSettings

    def run(self, start: Value, leaves: Sequence[Value]) -> tuple[Value, ...]:
        """Values in ascending order, vectors as columns, and the fields of Info."""
        s, apply = self.settings, self.apply.on(leaves)
        wanted = full_of((), max(s.tol, 20 * epsilon(start.dtype)), start.dtype.real)

        def body(c: _RitzState) -> _RitzState:
            values, vectors, residuals = self._cycle(apply, c.vectors)
            scale = largest(absolute(values))
            worst = largest(slice_(residuals, (0,), (self.count,)))
            size = worst / where(eq(scale, 0), 1, scale)
            found = where(le(size, wanted), CONVERGED, RUNNING)
            reason = where(isfinite(size), found, NONFINITE)
            return _RitzState(c.step + self.depth, values, vectors, size, reason)

        nothing = full_of((start.shape[1],), 0, start.dtype.real)
        running = full_of((), RUNNING, i64)
        last = iterate(
            body, _RitzState(full_of((), 0, i64), nothing, start, wanted, running), wanted, s
        )
        info = SolveInfo(eq(last.reason, CONVERGED), last.step, last.size, last.reason)
        values = slice_(last.values, (0,), (self.count,))
        values = checked(values, s.user, info, wanted, TROUBLE) if s.check else values
        order = argsort(values)
        return take(values, order, 0), take(last.vectors, order, 1), *info

    def _cycle(self, apply: Apply, start: Value) -> tuple[Value, Value, Value]:
        """The wanted Ritz values first, their vectors, and the lengths of A v - w v."""
        basis, images = _krylov(
            lambda x: by_column(lambda v: [apply(v)], [x])[0], start, self.depth
        )
        w, y = eigh(matmul(adjoint(basis), images))
        places = self._wanted(w, start.shape[1])
        w, y = take(w, places, 0), take(y, places, 1)
        v = matmul(basis, y)
        rest = matmul(images, y) - mul(v, widened(expand_dims(w, 0), v))
        return w, v, sqrt(total(squared(absolute(rest)), 0))

    def _wanted(self, w: Value, count: int) -> Value:
        key = {"magnitude": absolute(w), "largest": w, "smallest": neg(w)}[self.which]
        return slice_(argsort(key, descending=True), (0,), (count,))


def _krylov(apply: Apply, start: Value, depth: int) -> tuple[Value, Value]:
    """A basis of the block Krylov space of A, and A times it."""
    blocks, images = [start], [apply(start)]
    for _ in range(depth - 1):
        x = images[-1]
        for _ in range(2):  # twice for the sake of rounding
            for q in blocks:
                x = off(q, x)
            x = qr(x)[0]
        blocks.append(x)
        images.append(apply(x))
    return concat(blocks, 1), concat(images, 1)


def off(q: Value, x: Value) -> Value:
    """What is left of x beside orthonormal columns."""
    return x - matmul(q, matmul(adjoint(q), x))


# As a function with a derivative ------------------------------------------------------------------


def some_eigenpairs(search: RitzSearch, start: Value) -> tuple[Value, Value, SolveInfo]:
    """Values in ascending order, and vectors; `start` are the random columns of a block."""
    begin, _ = qr(start)
    if current_builder() is None:
        w, v, *info = search.run(begin, search.apply.leaves)
    else:
        w, v, *info = _node(search, begin, search.apply.leaves)
    return w, v, SolveInfo(*info)


def _node(search: RitzSearch, start: Value, leaves: Values) -> tuple[Value, ...]:
    def push(values: Values, tangents: Values) -> tuple[Values, Values]:
        begin, *mine = values
        w, v, *info = _node(search, begin, mine)
        ts: list[Tangent] = [None if is_zero(t) else t for t in tangents[1:]]
        v, dw, dv = _derivative(search, w, v, mine, ts)
        return [w, v, *info], [dw, dv, *(zeros(x.type) for x in info)]

    operands = [start, *leaves]
    g, outer = traced(operands, lambda b, *rest: search.run(b, rest), "spectral")
    return custom(g, *operands, *outer, rule=ForwardRule("spectral", len(operands), push))


def _derivative(
    search: RitzSearch, w: Value, v: Value, leaves: Values, ts: Sequence[Tangent]
) -> tuple[Value, Value, Value]:
    """The vectors in a basis that fits, dw and dV."""

    def moved(x: Value) -> list[Value]:
        found = search.apply.moved(x, leaves, ts)
        return [zeros_like(x) if found is None else found]

    t = by_column(moved, [v])[0]  # dA V
    # Values that are closer than the search can tell are equal.
    ids = clusters(w, max(200 * epsilon(w.dtype), search.settings.tol), False)
    inner = hermitian_part(matmul(adjoint(v), t))
    if not linearizing():
        along = cluster_turn(inner, ids)
        v, t = matmul(v, along), matmul(t, along)
        inner = matmul(adjoint(along), matmul(inner, along))
    dw, turn = eigh_tangents(w, ids, inner)
    if linearizing():
        dw, turn = gauged(ids, dw, turn, of="eigh", whole=True)
    return v, dw, matmul(v, turn) + _outside(search, w, v, leaves, t)


def _outside(search: RitzSearch, w: Value, v: Value, leaves: Values, t: Value) -> Value:
    """For each column the y with (w_i - A) y = t_i off the found vectors."""
    right = off(v, off(v, t))
    shift = mul(zeros_like(right) + 1, widened(expand_dims(w, 0), right))  # w_i down column i

    def one(r: Value, s: Value) -> list[Value]:
        held = close(lambda x: _shifted(search.apply.on(leaves), v, s, x), r.type)
        return [solution(System(short.minres, True, held, None, search.settings), r)[0]]

    return off(v, by_column(one, [right, shift])[0])


def _shifted(apply: Apply, v: Value, s: Value, x: Value) -> Value:
    inside = off(v, x)
    return off(v, mul(inside, s) - apply(inside)) + (x - inside)
