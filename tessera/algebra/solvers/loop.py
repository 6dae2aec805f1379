"""The loop that all iterations share: it stops at a reason or at the limit, and tells its progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tessera.algebra.solvers.implicit import SolverSettings
from tessera.algebra.solvers.outcome import CONVERGED, LIMIT, NONFINITE, RUNNING
from tessera.ir.graph.ir import Value
from tessera.ops.callbacks import watch
from tessera.ops.control import while_loop
from tessera.ops.elementwise import eq, isfinite, le, logical_and, lt, where

State = TypeVar("State", bound=Any)  # a tuple with the fields step, size and reason


def iterate(
    body: Callable[[State], State], start: State, wanted: Value, s: SolverSettings, unit: int = 1
) -> State:
    """Repeat the body, which counts its steps, until it gives a reason or s.limit is reached."""

    def told(state: State) -> State:
        new = body(state)
        if s.progress is None:
            return new
        seen = watch(new.size, new.step, new.size, wanted, to=s.progress)
        out: State = new._replace(size=seen)
        return out

    going = lambda c: logical_and(eq(c.reason, RUNNING), lt(c.step, s.limit))  # noqa: E731
    last = while_loop(going, told, start)
    out: State = last._replace(reason=where(eq(last.reason, RUNNING), LIMIT, last.reason))
    return out


def judged(size: Value, wanted: Value, reason: Value | int = RUNNING) -> Value:
    """The reason after a step: converged, not finite, or the one given."""
    found = where(le(size, wanted), CONVERGED, reason)
    return where(isfinite(size), found, NONFINITE)


class SolverProgress:
    """Prints steps and residuals to a stream, at most twice a second and at the end."""

    __name__ = "progress"

    def __init__(self, user: str, every: float = 0.5):
        self._user, self._every, self._last = user, every, 0.0

    def __call__(self, step: Any, size: Any, wanted: Any) -> None:
        now = time.monotonic()
        done = bool((size <= wanted).all())
        if done or now - self._last >= self._every:
            self._last = now
            print(
                f"{self._user}: step {int(step.max())}, residual {float(size.max()):.3e}, wanted "
                f"{float(wanted.max()):.3e}",
                file=sys.stderr,
                flush=True,
            )
