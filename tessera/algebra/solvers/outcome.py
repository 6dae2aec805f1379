"""How an iteration ends: the codes of `SolveInfo.reason`, and what is said when it did not converge."""

from __future__ import annotations

from typing import NamedTuple

from tessera.ir.graph.ir import Value
from tessera.ops.callbacks import ensure
from tessera.ops.elementwise import ne

RUNNING, CONVERGED, LIMIT, INDEFINITE, BREAKDOWN, NONFINITE = 0, 1, 2, 3, 4, 5
INACCURATE, PRECONDITIONER, SINGULAR, DIVERGED, STAGNATED = 6, 7, 8, 9, 10

# {0} steps taken, {1} size of the residual, {2} size that was asked for
TROUBLE = {
    LIMIT: "took all {0} steps and the residual is {1:.3g}, wanted {2:.3g}; allow more with limit=, "
    "give a preconditioner, or ask for less with tol=",
    INDEFINITE: "met a direction p with p^H A p <= 0 at step {0}, but the method needs a positive "
    "definite self-adjoint operator; use minres (self-adjoint) or gmres",
    BREAKDOWN: "broke down at step {0} with a residual of {1:.3g}, wanted {2:.3g}; use gmres, another "
    "preconditioner, or start from another x0",
    NONFINITE: "met NaN or an infinity at step {0}; check the operator, the right-hand side and the "
    "preconditioner",
    INACCURATE: "converged at step {0} by its recurrence, but b - A x has size {1:.3g}, wanted {2:.3g}: "
    "more than this dtype can give here; raise tol= or use f64",
    PRECONDITIONER: "met r^H M r <= 0 at step {0}, but the method needs a positive definite "
    "self-adjoint preconditioner M; use gmres or another M",
    SINGULAR: "cannot make the residual smaller than {1:.3g} (step {0}), wanted {2:.3g}: A is singular "
    "and b is not in its range; use lsmr for least squares",
    DIVERGED: "has a growing residual, {1:.3g} at step {0}, wanted {2:.3g}; the eigenvalues are not all "
    "within the bounds that were given",
    STAGNATED: "made no progress in a whole cycle that ended at step {0}: the residual is {1:.3g}, "
    "wanted {2:.3g}; give a larger restart= or a preconditioner; A may be singular",
}  # fmt: skip


class SolveInfo(NamedTuple):
    """How a solver ended, one number for each right-hand side."""

    converged: Value  # bool
    iterations: Value  # i64
    residual: Value  # the size of b - A x, in lsmr that of A^H (b - A x)
    reason: Value  # i64, one of the codes above


def checked(
    x: Value, user: str, info: SolveInfo, wanted: Value, trouble: dict[int, str] = TROUBLE
) -> Value:
    """x, with an error at run time for each way in which the iteration can fail."""
    for code, text in trouble.items():
        x = ensure(
            x, ne(info.reason, code), info.iterations, info.residual, wanted,
            message=f"{user}: {text}",
        )  # fmt: skip
    return x
