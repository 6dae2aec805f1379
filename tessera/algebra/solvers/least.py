"""Least squares by LSMR, with the derivative of the pseudoinverse.

With P the pseudoinverse and r = b - A x, Golub and Pereyra (1973) give for x = P b
    dx = P (db - dA x) + P P^H dA^H r + (I - P A) dA^H P^H x
where P is again LSMR, with A or with A^H, and the transpose of b -> x is LSMR with A^T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tessera.algebra.operator import function
from tessera.algebra.solvers.closed import Apply, Closed, close
from tessera.algebra.solvers.implicit import (
    SolverSettings,
    by_column,
    in_units,
    is_zero,
    norm,
    number,
    unit_of,
    widened,
)
from tessera.algebra.solvers.linear import Solution, right_side, settings
from tessera.algebra.solvers.loop import iterate, judged
from tessera.algebra.solvers.outcome import (
    CONVERGED,
    INACCURATE,
    LIMIT,
    NONFINITE,
    TROUBLE,
    SolveInfo,
    checked,
)
from tessera.core.errors import OperandError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, current_builder
from tessera.ops.creation import zeros_like
from tessera.ops.custom import LinearRule, Values, custom
from tessera.ops.define import full_of
from tessera.ops.elementwise import div, eq, gt, hypot, logical_and, maximum, mul, where
from tessera.ops.shape import concat
from tessera.transform.batch_control import traced
from tessera.transform.differentiate import Tangent, zeros

_TROUBLE = {
    LIMIT: "took all {0} steps and A^H (b - A x) has size {1:.3g}, wanted {2:.3g}; allow more with "
    "limit=, or ask for less with tol=",
    NONFINITE: TROUBLE[NONFINITE].replace(" and the preconditioner", ""),
    INACCURATE: TROUBLE[INACCURATE].replace("b - A x", "A^H (b - A x)"),
}


class _LSMR(NamedTuple):
    step: Value
    x: Value
    u: Value
    v: Value
    h: Value
    hbar: Value
    alpha: Value
    alphabar: Value
    zetabar: Value
    rho: Value
    rhobar: Value
    cbar: Value
    sbar: Value
    size: Value
    reason: Value


def _unit(x: Value) -> tuple[Value, Value]:
    size = norm(x)
    return div(x, widened(where(gt(size, 0), size, 1), x)), size


def _over(x: Value, y: Value) -> Value:
    return div(x, where(eq(y, 0), 1, y))


def lsmr_loop(
    a: Apply, ah: Apply, b: Value, wanted: Value, s: SolverSettings
) -> tuple[Value, Value, Value]:
    """Fong and Saunders (2011): minimal |A^H r| over the Krylov spaces of A^H A."""
    u, beta = _unit(b)
    v, alpha = _unit(ah(u))
    one, zero = number(1.0, b), number(0.0, b)
    size = alpha * beta

    def body(c: _LSMR) -> _LSMR:
        u, beta = _unit(a(c.v) - widened(c.alpha, b) * c.u)
        v, alpha = _unit(ah(u) - widened(beta, b) * c.v)
        rho = hypot(c.alphabar, beta)
        cosine, sine = _over(c.alphabar, rho), _over(beta, rho)
        theta, alphabar = sine * alpha, cosine * alpha
        thetabar = c.sbar * rho
        rhobar = hypot(c.cbar * rho, theta)
        cbar, sbar = _over(c.cbar * rho, rhobar), _over(theta, rhobar)
        zeta, zetabar = cbar * c.zetabar, -(sbar * c.zetabar)
        hbar = c.h - widened(_over(thetabar * rho, c.rho * c.rhobar), b) * c.hbar
        x = c.x + widened(_over(zeta, rho * rhobar), b) * hbar
        h = v - widened(_over(theta, rho), b) * c.h
        size = maximum(zetabar, -zetabar)
        return _LSMR(
            c.step + 1, x, u, v, h, hbar, alpha, alphabar, zetabar, rho, rhobar, cbar, sbar, size,
            judged(size, wanted),
        )  # fmt: skip

    reason = judged(size, wanted)
    nothing = zeros_like(v)
    start = _LSMR(
        full_of((), 0, reason.dtype), nothing, u, v, v, nothing, alpha, alpha, size, one, one, one,
        zero, size, reason,
    )  # fmt: skip
    last = iterate(body, start, wanted, s)
    return last.x, last.step, last.reason


# As a function with a derivative ------------------------------------------------------------------


@dataclass(frozen=True)
class Least:
    """The least-squares problem of one operator: A and A^H on the same tensors."""

    apply: Closed
    adjoint: Closed  # its leaves are those of apply
    settings: SolverSettings

    def run(self, b: Value, leaves: Sequence[Value]) -> tuple[Value, ...]:
        """The solution and the fields of Info."""
        full, full_h, s = self.apply.on(leaves), self.adjoint.on(leaves), self.settings
        unit = unit_of(b)
        b = in_units(b, unit)
        own = unit_of(full_h(b))  # of A

        def a(x: Value) -> Value:
            return in_units(full(x), own)

        def ah(x: Value) -> Value:
            return in_units(full_h(x), own)

        wanted = maximum(mul(norm(ah(b)), s.tol), div(div(s.atol, unit), own))
        x, steps, reason = lsmr_loop(a, ah, b, wanted, s)
        size = norm(ah(b - a(x)))
        far = logical_and(eq(reason, CONVERGED), gt(size, mul(wanted, 2)))
        reason = where(far, INACCURATE, reason)
        size, wanted = (mul(mul(v, unit), own) for v in (size, wanted))
        info = SolveInfo(eq(reason, CONVERGED), steps, size, reason)
        x = mul(in_units(x, own), widened(unit, x))
        return (checked(x, s.user, info, wanted, _TROUBLE) if s.check else x), *info

    def turned(self) -> Least:
        """The problem of A^H."""
        return Least(self.adjoint, self.apply, self.settings)

    def transposed(self) -> Least:
        """The problem of A^T."""
        return Least(self.adjoint.conjugated(), self.apply.conjugated(), self.settings)


def _node(p: Least, b: Value, leaves: Values) -> tuple[Value, ...]:
    def push(values: Values, tangents: Values) -> tuple[Values, Values]:
        results = _node(p, values[0], values[1:])
        dx = _derivative(p, values, results[0], tangents)
        return results, [dx, *(zeros(v.type) for v in results[1:])]

    def transposed(values: Values, ct: Value) -> Value:
        return _node(p.transposed(), ct, values[1:])[0]

    operands = [b, *leaves]
    g, outer = traced(operands, lambda b, *rest: p.run(b, rest), "lsmr")
    return custom(g, *operands, *outer, rule=LinearRule("lsmr", len(operands), push, transposed))


def _derivative(p: Least, values: Values, x: Value, tangents: Values) -> Value:
    (b, *leaves), (db, *moving) = values, tangents
    ts: list[Tangent] = [None if is_zero(t) else t for t in moving]
    moved = p.apply.moved(x, leaves, ts)
    if moved is None:
        return _node(p, db, leaves)[0]
    right = db - moved
    r = b - p.apply.on(leaves)(x)
    pulled = p.adjoint.moved(r, leaves, ts)  # dA^H r
    if pulled is not None:
        right = right + _node(p.turned(), pulled, leaves)[0]
    dx = _node(p, right, leaves)[0]
    pre = p.adjoint.moved(_node(p.turned(), x, leaves)[0], leaves, ts)  # dA^H P^H x
    if pre is None:
        return dx
    return dx + pre - _node(p, p.apply.on(leaves)(pre), leaves)[0]


@function
def lsmr(
    a: Any, b: Any, *, damp: Any = 0.0, tol: float | None = None, atol: float = 0.0,
    limit: int | None = None, check: bool = True, progress: Any = None,
) -> Solution:  # fmt: skip
    """The shortest x that makes |A x - b| smallest, for any A; with damp, |A x - b|^2 + |damp x|^2."""
    found, right = right_side("lsmr", a, b)
    if not isinstance(damp, int | float) or not damp >= 0:
        raise OperandError(f"lsmr: damp is {damp!r:.40}, expected a number that is not negative")
    s = settings("lsmr", found, right, tol, atol, limit, check, progress)
    apply, columns = found.apply, found.shape[1]
    if damp:  # the rows of damp I below those of A
        apply = lambda x: concat([found.apply(x), mul(x, damp)], 0)  # noqa: E731
        right = concat([right, full_of((columns, *right.shape[1:]), 0, right.dtype)], 0)
    forward = close(apply, TensorType(right.dtype, (columns,)))
    p = Least(forward, forward.transposed().conjugated(), s)
    if right.ndim == 2:
        out = by_column(lambda b: _node(p, b, forward.leaves), [right])
    elif current_builder() is None:
        out = p.run(right, forward.leaves)
    else:
        out = _node(p, right, forward.leaves)
    return out[0], SolveInfo(*out[1:])
