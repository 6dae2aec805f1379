"""Solvers of linear systems as users call them: cg, minres, gmres, bicgstab, chebyshev.

They take an operator, a matrix or a function x -> A x, a vector or columns b, and return (x, info).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tessera.algebra.apply import applied, as_operator
from tessera.algebra.operator import Operator, function
from tessera.algebra.solvers import long, short
from tessera.algebra.solvers.closed import Apply, close
from tessera.algebra.solvers.implicit import Iteration, SolverSettings, System, solution
from tessera.algebra.solvers.loop import SolverProgress
from tessera.algebra.solvers.outcome import SolveInfo
from tessera.core.dtype import DType
from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ops.define import as_value, as_value_of, cast_to, floating
from tessera.ops.linalg import epsilon

Solution = tuple[Value, SolveInfo]


@dataclass(frozen=True)
class Map:
    """What a solver is given as A: a linear function of vectors."""

    apply: Apply
    shape: tuple[int, int]
    dtype: DType
    text: str  # for errors
    operator: Operator | None = None


def as_map(user: str, a: Any, b: Value) -> Map:
    """An operator, a matrix, or a function from vectors like b to vectors like b."""
    if callable(a) and not isinstance(a, Operator | Value):
        n = b.shape[0]
        name = getattr(a, "__name__", type(a).__name__)
        return Map(_checked(user, a, n), (n, n), b.dtype, f"function {name} of {b.dtype}[{n}]")
    found = as_operator(user, a)
    return Map(lambda x: applied(user, found, x), found.shape, found.dtype, str(found), found)


def _checked(user: str, f: Callable[[Value], Any], n: int) -> Apply:
    def apply(x: Value) -> Value:
        y = f(x)
        if not isinstance(y, Value) or y.shape != (n,):
            shown = y.type if isinstance(y, Value) else type(y).__name__
            raise ShapeError(f"{user}: the function gives {shown} for {x.type}, expected {x.type}")
        return cast_to(y, x.dtype)

    return apply


def right_side(user: str, a: Any, b: Any) -> tuple[Map, Value]:
    """A and the right-hand side in one dtype, of sizes that fit."""
    if isinstance(a, Operator):
        given = floating(as_value_of(a.dtype, b, user), a.dtype)
    else:
        given = floating(as_value(b, user))
    if given.ndim not in (1, 2):
        raise ShapeError(f"{user}: b is {given.type}, expected a vector or a matrix of columns")
    found = as_map(user, a, given)
    if found.shape[0] != given.shape[0]:
        raise ShapeError(
            f"{user}: {found.text} has {found.shape[0]} rows but b is {given.type}; give b "
            f"{found.shape[0]} elements along axis 0"
        )
    return found, cast_to(given, promote(found.dtype, given.dtype))


def settings(
    name: str, a: Map, b: Value, tol: Any, atol: Any, limit: Any, check: bool, progress: Any,
    **more: Any,
) -> SolverSettings:  # fmt: skip
    """The options of a solver, checked."""
    user = f"{name}: {a.text}"
    if tol is None:
        tol = 1e-10 if epsilon(b.dtype) < 1e-12 else 1e-5
    for what, x in (("tol", tol), ("atol", atol)):
        if isinstance(x, bool | Value) or not isinstance(x, int | float) or not x >= 0:
            raise OperandError(
                f"{name}: {what} is {x!r:.40}, expected a number that is not negative"
            )
    most = max(100, min(10 * max(a.shape), 20_000)) if limit is None else limit
    if isinstance(most, bool) or not hasattr(most, "__index__") or int(most) < 0:
        raise OperandError(f"{name}: limit is {most!r:.40}, expected a number of steps")
    tell = SolverProgress(name) if progress is True else progress or None
    if tell is not None and not callable(tell):
        raise OperandError(
            f"{name}: progress is {tell!r:.40}, expected True or a function of step, residual, wanted"
        )
    return SolverSettings(user, float(tol), float(atol), int(most), bool(check), tell, more)


def _solve(
    name: str, iteration: Iteration, symmetric: bool, a: Any, b: Any, x0: Any, m: Any, *options: Any,
    **more: Any,
) -> Solution:  # fmt: skip
    found, right = right_side(name, a, b)
    if found.shape[0] != found.shape[1]:
        raise ShapeError(f"{name}: {found.text} is not square; use lsmr for least squares")
    chosen = settings(name, found, right, *options, **more)
    vector = TensorType(right.dtype, right.shape[:1])
    prepared = None if m is None else close(_preconditioner(name, m, found, right), vector)
    start = None if x0 is None else cast_to(as_value_of(right.dtype, x0, name), right.dtype)
    if start is not None and start.shape != right.shape:
        raise ShapeError(f"{name}: x0 is {start.type}, expected {right.type} as b")
    system = System(iteration, symmetric, close(found.apply, vector), prepared, chosen)
    return solution(system, right, start)


def _preconditioner(name: str, m: Any, a: Map, b: Value) -> Apply:
    found = as_map(name, m, b)
    if found.shape != a.shape:
        raise ShapeError(
            f"{name}: the preconditioner {found.text} does not fit {a.text}; it stands for the inverse "
            "and has the same shape"
        )
    return found.apply


@function
def cg(
    a: Any, b: Any, *, x0: Any = None, precondition: Any = None, tol: float | None = None,
    atol: float = 0.0, limit: int | None = None, check: bool = True, progress: Any = None,
) -> Solution:  # fmt: skip
    """Solve A x = b by conjugate gradients; A and the preconditioner are positive definite."""
    return _solve("cg", short.cg, True, a, b, x0, precondition, tol, atol, limit, check, progress)


@function
def minres(
    a: Any, b: Any, *, x0: Any = None, precondition: Any = None, tol: float | None = None,
    atol: float = 0.0, limit: int | None = None, check: bool = True, progress: Any = None,
) -> Solution:  # fmt: skip
    """Solve A x = b by minimal residuals; A is self-adjoint, the preconditioner positive."""
    return _solve(
        "minres", short.minres, True, a, b, x0, precondition, tol, atol, limit, check, progress
    )


@function
def bicgstab(
    a: Any, b: Any, *, x0: Any = None, precondition: Any = None, tol: float | None = None,
    atol: float = 0.0, limit: int | None = None, check: bool = True, progress: Any = None,
) -> Solution:  # fmt: skip
    """Solve A x = b by stabilised biconjugate gradients: any square A, little memory."""
    return _solve(
        "bicgstab", short.bicgstab, False, a, b, x0, precondition, tol, atol, limit, check, progress
    )


@function
def gmres(
    a: Any, b: Any, *, x0: Any = None, precondition: Any = None, restart: int = 30,
    tol: float | None = None, atol: float = 0.0, limit: int | None = None, check: bool = True,
    progress: Any = None,
) -> Solution:  # fmt: skip
    """Solve A x = b by generalised minimal residuals, started anew every `restart` steps: any A."""
    if isinstance(restart, bool) or not hasattr(restart, "__index__") or int(restart) < 1:
        raise OperandError(f"gmres: restart is {restart!r:.40}, expected a number of steps")
    return _solve(
        "gmres", long.gmres, False, a, b, x0, precondition, tol, atol, limit, check, progress,
        restart=int(restart),
    )  # fmt: skip


@function
def chebyshev(
    a: Any, b: Any, bounds: tuple[float, float], *, x0: Any = None, precondition: Any = None,
    tol: float | None = None, atol: float = 0.0, limit: int | None = None, check: bool = True,
    progress: Any = None,
) -> Solution:  # fmt: skip
    """Solve A x = b without inner products; A has its eigenvalues within the bounds."""
    low, high = (float(v) for v in bounds)
    if not 0 < low <= high < float("inf"):
        raise OperandError(f"chebyshev: bounds are {bounds}, expected 0 < low <= high")
    return _solve(
        "chebyshev", short.chebyshev, True, a, b, x0, precondition, tol, atol, limit, check, progress,
        bounds=(low, high),
    )  # fmt: skip
