"""Solutions of linear systems as functions with derivatives of their own.

For A x = b the implicit function theorem gives A dx = db - dA x, and the transpose of b -> x is the
solution with A^T: no derivative goes through the iteration, and all of them are as exact as its
tolerance.  The rule of a solution emits solutions, so that derivatives of derivatives need no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes

from tessera.algebra.solvers.closed import Apply, Closed
from tessera.algebra.solvers.outcome import CONVERGED, INACCURATE, SolveInfo, checked
from tessera.ir.graph.ir import Value, current_builder
from tessera.ops.batching import in_front
from tessera.ops.custom import LinearRule, Values, custom
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    conj,
    div,
    eq,
    gt,
    logical_and,
    logical_or,
    maximum,
    mul,
    real,
    sqrt,
    stop_gradient,
    where,
)
from tessera.ops.reduction import max as largest
from tessera.ops.reduction import sum as total
from tessera.ops.shape import concat, matrix_transpose
from tessera.transform.batch import batch_graph
from tessera.transform.batch_control import like, traced
from tessera.transform.differentiate import Tangent, zeros


@dataclass(frozen=True)
class SolverSettings:
    """When an iteration stops and what it tells."""

    user: str  # the method, and the type of the operator
    tol: float  # relative to the size of b
    atol: float
    limit: int
    check: bool
    progress: Callable[..., Any] | None = None
    more: dict[str, Any] = field(default_factory=dict)  # options of one method


# (A, M, b, x0, wanted size of the residual, settings) -> x, steps, reason
Iteration = Callable[[Apply, Apply, Value, Value | None, Value, SolverSettings], tuple[Value, ...]]


@dataclass(frozen=True)
class System:
    """A x = b for one operator A and preconditioner M, whose tensors are operands after b."""

    iteration: Iteration
    symmetric: bool  # whether A and M are self-adjoint
    apply: Closed
    precondition: Closed | None
    settings: SolverSettings

    def run(self, b: Value, x0: Value | None, leaves: Sequence[Value]) -> tuple[Value, ...]:
        """The solution and the fields of Info, by iterating."""
        count = len(self.apply.leaves)
        apply = self.apply.on(leaves[:count])
        m = self.precondition
        precondition = _same if m is None else m.on(leaves[count:])
        s, unit = self.settings, unit_of(b if x0 is None else concat([b, x0], 0))
        b, x0 = in_units(b, unit), None if x0 is None else in_units(x0, unit)
        wanted = maximum(mul(norm(b), s.tol), div(s.atol, unit))
        x, steps, reason = self.iteration(apply, precondition, b, x0, wanted, s)
        size = norm(b - apply(x))
        far = logical_and(eq(reason, CONVERGED), gt(size, mul(wanted, 2)))
        reason = where(far, INACCURATE, reason)
        info = SolveInfo(eq(reason, CONVERGED), steps, mul(size, unit), reason)
        x = mul(x, widened(unit, x))
        return (checked(x, s.user, info, mul(wanted, unit)) if s.check else x), *info

    def transposed(self) -> System:
        """The system with the transposes of A and M."""
        turn = Closed.conjugated if self.symmetric else Closed.transposed
        m = self.precondition
        return replace(self, apply=turn(self.apply), precondition=None if m is None else turn(m))

    @property
    def leaves(self) -> tuple[Value, ...]:
        """The tensors of A and of M."""
        m = self.precondition
        return (*self.apply.leaves, *(() if m is None else m.leaves))


def _same(x: Value) -> Value:
    return x


def norm(x: Value) -> Value:
    """The length of a vector."""
    return sqrt(real(total(mul(conj(x), x)))) if x.dtype.kind == "c" else sqrt(total(mul(x, x)))


def unit_of(x: Value) -> Value:
    """1, or the largest element where the squares of elements would leave the range of the format.

    Solutions are linear in the right-hand side, so that they are computed in units in which lengths exist.
    """
    held: Any = ml_dtypes.finfo(x.dtype.real.np)  # type: ignore[no-untyped-call]
    if 0 in x.shape:
        return number(1.0, x)
    most = largest(absolute(x))
    usual = logical_and(gt(most, float(held.tiny) ** 0.25), gt(float(held.max) ** 0.25, most))
    return where(logical_or(usual, eq(most, 0)), 1, most)


def in_units(x: Value, unit: Value) -> Value:
    """A vector as a multiple of a real number."""
    return div(x, widened(unit, x))


def length(x: Value) -> Value:
    """The length of a vector of any scale."""
    unit = stop_gradient(unit_of(x))
    return mul(norm(in_units(x, unit)), unit)


def dot(x: Value, y: Value) -> Value:
    """x^H y."""
    return total(mul(conj(x) if x.dtype.kind == "c" else x, y))


# A solution as a node -----------------------------------------------------------------------------


def solution(system: System, b: Value, x0: Value | None = None) -> tuple[Value, SolveInfo]:
    """The solution for a vector b, or for each column of a matrix."""
    given = [b] if x0 is None else [b, x0]
    if b.ndim == 2:
        out = by_column(lambda *v: _node(system, v[0], v[1:], system.leaves), given)
    elif current_builder() is None:
        out = system.run(b, x0, system.leaves)
    else:
        out = _node(system, b, given[1:], system.leaves)
    return out[0], SolveInfo(*out[1:])


def by_column(f: Callable[..., Sequence[Value]], given: Sequence[Value]) -> tuple[Value, ...]:
    """f of vectors on the columns of matrices: the first result as columns, numbers for each."""
    x, *info = by_row(f, [matrix_transpose(v) for v in given])
    return matrix_transpose(x), *info


def by_row(f: Callable[..., Sequence[Value]], given: Sequence[Value]) -> list[Value]:
    """f on the rows of tensors; its results have one row for each."""
    size = given[0].shape[0]
    g, outer = traced([like(v, v.shape[1:]) for v in given], f, "rows")
    outs, mask = batch_graph(g, [*given, *outer], [True] * len(given) + [False] * len(outer))
    return [in_front(v, m, size) for v, m in zip(outs, mask, strict=True)]


def _node(system: System, b: Value, start: Sequence[Value], leaves: Values) -> tuple[Value, ...]:
    """The results of System.run as one node that knows its derivative."""
    operands = [b, *start, *leaves]
    first = 1 + len(start)

    def run(b: Value, *rest: Value) -> tuple[Value, ...]:
        return system.run(b, rest[0] if start else None, rest[first - 1 :])

    def push(values: Values, tangents: Values) -> tuple[Values, Values]:
        mine = values[first:]
        results = _node(system, values[0], values[1:first], mine)
        rhs = _right_side(system, results[0], mine, tangents[0], tangents[first:])
        return results, [_node(system, rhs, (), mine)[0], *(zeros(v.type) for v in results[1:])]

    def transposed(values: Values, ct: Value) -> Value:
        return _node(system.transposed(), ct, (), values[first:])[0]

    g, outer = traced(operands, run, system.settings.user.split(":")[0])
    rule = LinearRule(g.name, len(operands), push, transposed)
    return custom(g, *operands, *outer, rule=rule)


def _right_side(
    system: System, x: Value, leaves: Values, db: Value, moving: Values
) -> Value:  # db - dA x
    count = len(system.apply.leaves)
    ts: list[Tangent] = [None if is_zero(t) else t for t in moving[:count]]
    turned = system.apply.moved(x, leaves[:count], ts)
    return db if turned is None else db - turned


def is_zero(t: Value) -> bool:
    """Whether a tangent is known to be zero."""
    if t.dtype.kind not in "fc":
        return True
    return t.node is not None and t.node.op.makes == "number" and t.node.params["value"] == 0


def number(x: Any, like: Value) -> Value:
    """A real number in the precision of a vector."""
    return full_of((), x, like.dtype.real)


def widened(x: Value, like: Value) -> Value:
    """A real number as one that multiplies a vector."""
    return cast_to(x, like.dtype)
