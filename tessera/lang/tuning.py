"""tune: find the fastest nests of a function's kernels on this machine, and use them from then on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tessera.tune  # noqa: F401  the package, before its name becomes the function below
from tessera.compile.fallback import Task, first_that_works
from tessera.core.blame import blames_arguments
from tessera.core.deferred import Deferred
from tessera.core.during import During
from tessera.core.errors import OperandError, TesseraError, located
from tessera.core.flags import flags
from tessera.core.spans import span
from tessera.lang.jit import Jitted, jit
from tessera.lang.lowered import Lowered

if TYPE_CHECKING:  # loaded by the first function that is tuned
    from tessera.tune.search import TuningOutcome, TuningProgress

_BUDGET = 2000.0  # milliseconds


@dataclass(frozen=True)
class Tuning:
    """What tuning a function found, kernel by kernel; prints as a table."""

    function: str
    outcomes: tuple[TuningOutcome, ...]

    def __iter__(self) -> Iterator[TuningOutcome]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __repr__(self) -> str:
        return f"<tuning of {self.function}: {len(self)} kernels; print it for a table>"

    def __str__(self) -> str:
        rows = [("kernel", "default ms", "best ms", "gain", "nest")]
        rows += [
            (o.kernel, f"{o.before * 1e3:.3f}", f"{o.seconds * 1e3:.3f}", f"{o.gain:.2f}x",
             str(o.best) if o.best != o.default else "the default")
            for o in self.outcomes
        ]  # fmt: skip
        wide = [max(len(r[i]) for r in rows) for i in range(4)]
        lines = (
            "  ".join([c.ljust(w) for c, w in zip(r, wide, strict=False)] + [r[4]]) for r in rows
        )
        return "\n".join(lines)


_tune_programs = Deferred("tessera.tune.search:tune_programs")


def _searched(lowered: Lowered, *given: Any) -> Any:
    with During("tune"):
        return _tune_programs(lowered.schedules, lowered.sizes, *given)


@blames_arguments
def tune(
    f: Callable[..., Any], *args: Any, budget_ms: float = _BUDGET, again: bool = False,
    report: Callable[[TuningProgress], None] | None = None, **kwargs: Any,
) -> Tuning:  # fmt: skip
    """Tune the kernels of a function for these arguments, in about `budget_ms` milliseconds.

    What is found lies in the store under TESSERA_CACHE_DIR, and every program that has such a kernel
    uses it; the bits of results are the same.  A kernel that the store knows is not measured again unless
    `again` says so.
    """
    if not budget_ms > 0:
        raise located(OperandError(f"tune: budget_ms is {budget_ms!r}, expected more than 0"))
    try:
        jitted = f if isinstance(f, Jitted) else jit(f, target="cpu")
        if jitted.target != "cpu":
            jitted = jit(inspect.unwrap(f), target="cpu")
        lowered = jitted.lower(*args, **kwargs)
        with span("tune", getattr(f, "__name__", "function")):
            task = Task(lowered.traced, "cpu", flags().numerics)
            outcomes = first_that_works(
                task,
                ("", lambda: _searched(lowered, budget_ms, again, report)),
                ("untuned", tuple),
            )
    except TesseraError as e:
        error = located(e)
    else:
        jitted.forget()
        return Tuning(getattr(f, "__name__", "function"), tuple(outcomes))
    raise error
