"""L-BFGS with the line search of Moré and Thuente: a minimiser of smooth functions of trees.

Directions and steps are those of L-BFGS-B (Byrd, Lu, Nocedal and Zhu 1995) without bounds.  The function,
its gradient and the two-loop recursion are compiled programs; the search for a step runs in Python on a few
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import wanting
from tessera.core.errors import DTypeError, OperandError
from tessera.lang import op
from tessera.lang.jit import jit
from tessera.lang.transforms import value_and_grad
from tessera.learn.line_search import SearchPoint, search
from tessera.learn.optimizer import Tree
from tessera.ops.control import fori_loop
from tessera.ops.define import as_value


@dataclass(frozen=True)
class Minimum:
    """Where a minimisation ended: params, value and the largest element of the gradient there."""

    params: Tree
    value: float
    gradient: float
    steps: int
    evaluations: int
    converged: bool
    reason: str


class _History:
    """The last pairs of steps and changes of the gradient, oldest first; unused rows are 0."""

    def __init__(self, rows: int, size: int, dtype: Any):
        self.steps, self.changes = (np.zeros((rows, size), dtype) for _ in range(2))
        self.count = 0

    def add(self, step: Any, change: Any) -> None:
        for held, new in ((self.steps, step), (self.changes, change)):
            held[:-1] = held[1:]
            held[-1] = new
        self.count = min(self.count + 1, len(self.steps))


@wanting
def lbfgs(
    f: Callable[..., Any],
    params: Tree,
    *args: Any,
    history: int = 10,
    steps: int = 1000,
    gtol: float = 1e-5,
    ftol: float = 2.220446049250313e-09,
    callback: Callable[[Tree, float], Any] | None = None,
) -> Minimum:
    """Minimise f(params, *args), a scalar, from the given parameters.

    It ends when the largest element of the gradient is at most gtol, when a step lowers f by less than ftol
    relative to it, or after so many steps.  callback(params, value) is called after each.  The defaults are
    SciPy's.
    """
    if history < 1 or steps < 0:
        raise OperandError(f"lbfgs: history {history}, steps {steps}; expected at least 1 and 0")
    problem = _Problem(f, params, args)
    at = problem.start()
    held = _History(history, len(at.x), at.x.dtype)
    reason = "gtol" if np.abs(at.gradient).max(initial=0) <= gtol else ""
    done = 0
    while not reason and done < steps:
        direction = -at.gradient if held.count == 0 else -problem.product(at.gradient, held)
        found = _moved(problem, at, direction, first=held.count == 0)
        if found is None and held.count:
            held = _History(history, len(at.x), at.x.dtype)  # begin anew along the gradient
            continue
        if found is None:
            reason = "line search"
            break
        done += 1
        step, change = found.x - at.x, found.gradient - at.gradient
        if step @ change > np.finfo(at.x.dtype).eps * (change @ change):
            held.add(step, change)
        drop = (at.value - found.value) / max(abs(at.value), abs(found.value), 1.0)
        at = found
        if callback is not None:
            callback(problem.tree_of(at.x), at.value)
        if np.abs(at.gradient).max(initial=0) <= gtol:
            reason = "gtol"
        elif drop <= ftol:
            reason = "ftol"
    largest = float(np.abs(at.gradient).max(initial=0))
    return Minimum(
        problem.tree_of(at.x), at.value, largest, done, problem.evaluations,
        reason in ("gtol", "ftol"), reason or "steps",
    )  # fmt: skip


@dataclass(frozen=True)
class _SearchPlace:
    """A point of the search: the flat parameters, the value and the gradient."""

    x: Any
    value: float
    gradient: Any


class _Problem:
    """f on flat vectors, compiled once."""

    def __init__(self, f: Callable[..., Any], params: Tree, args: tuple[Any, ...]):
        leaves, self._structure = tree.flatten(tree.map(lambda p: as_value(p, "lbfgs"), params))
        kinds = {p.dtype for p in leaves}
        if len(kinds) != 1 or any(d.kind != "f" or d.bits < 32 for d in kinds):
            raise DTypeError(
                f"lbfgs: parameters are {', '.join(sorted(map(str, kinds)))}, expected all f32 or all f64"
            )
        self._shapes, self._args, self.evaluations = [p.shape for p in leaves], args, 0
        self._first = np.concatenate([np.asarray(p).reshape(-1) for p in leaves])
        self._both = jit(value_and_grad(lambda x, *a: f(self.tree_of(x), *a)))

    def tree_of(self, x: Any) -> Tree:
        cuts = np.cumsum([math.prod(s) for s in self._shapes])[:-1]
        parts, low = [], 0
        for high, shape in zip([*cuts.tolist(), len(self._first)], self._shapes, strict=True):
            parts.append(op.reshape(as_value(x, "lbfgs")[low:high], shape))  # type: ignore[index]
            low = high
        return tree.unflatten(self._structure, parts)

    def place(self, x: Any) -> _SearchPlace:
        self.evaluations += 1
        value, gradient = self._both(x, *self._args)
        return _SearchPlace(x, float(value.item()), np.asarray(gradient))

    def start(self) -> _SearchPlace:
        return self.place(self._first)

    def product(self, gradient: Any, held: _History) -> Any:
        return np.asarray(_two_loops(gradient, held.steps, held.changes))


@jit
def _two_loops(g: Any, s: Any, y: Any) -> Any:
    """The inverse Hessian of L-BFGS times g; rows of zeros count as absent."""
    curvature: Any = op.sum(s * y, axis=1)
    rho: Any = op.where(curvature > 0, 1 / op.where(curvature > 0, curvature, 1.0), 0.0)
    rows = s.shape[0]

    def back(i: Any, carry: Any) -> Any:
        q, alphas = carry
        k = rows - 1 - i
        a = rho[k] * op.sum(s[k] * q)
        return q - a * y[k], alphas.at[k].set(a)

    q, alphas = fori_loop(0, rows, back, (g, op.zeros_like(rho)))
    q = q * (curvature[-1] / op.sum(op.square(y[-1])))

    def forth(k: Any, q: Any) -> Any:
        b = rho[k] * op.sum(y[k] * q)
        return q + s[k] * (alphas[k] - b)

    return fori_loop(0, rows, forth, q)


def _moved(problem: _Problem, at: _SearchPlace, direction: Any, first: bool) -> _SearchPlace | None:
    """The point at a step along a direction that lowers f and its slope enough; None when there is none."""
    slope = float(at.gradient @ direction)
    if slope >= 0:
        return None
    length = float(np.linalg.norm(direction))
    seen: dict[float, _SearchPlace] = {}

    def along(t: float) -> SearchPoint:
        seen[t] = problem.place((at.x + t * direction).astype(at.x.dtype))
        return SearchPoint(t, seen[t].value, float(seen[t].gradient @ direction))

    first_step = min(1 / length, 1e10) if first else 1.0
    t = search(along, SearchPoint(0.0, at.value, slope), first_step)
    return None if t is None else replace(seen[t])
