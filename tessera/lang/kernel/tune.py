"""Schedules that a machine chooses: kernel.auto by the sizes of a call, kernel.autotune by measuring.

Schedules of a space that make the same Tile program are one candidate.  Candidates are ranked by an estimate
(estimate.py), the best few are built and measured in turn, and one is taken only if it is faster beyond the
spread. What is found is kept in the store of the tuner, where the next process finds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tessera.core.dims import substitute
from tessera.core.errors import OperandError, ScheduleError, ShapeError
from tessera.core.flags import flags, override
from tessera.lang.kernel.estimate import estimate
from tessera.lang.kernel.launch import run_kernel
from tessera.lang.kernel.translate import Translated, known_sizes
from tessera.lang.kernel.values import KernelError
from tessera.lang.schedule import Fluent, Schedule, Space
from tessera.runtime import tuned
from tessera.runtime.threads import thread_count
from tessera.tune.measure import Candidate, best_of

METRICS = ("latency_ms",)
_LEAST = 8  # rows or columns of a block, however small the tensor
_BATCH = 4  # candidates that are built before the clock is looked at
_SHARE = 10  # of so many programs one is measured, but a batch at least

Translate = Callable[[Schedule], Translated]


def by_sizes(base: Schedule, t: Translated, sizes: Mapping[str, Any]) -> Schedule:
    """The base schedule with blocks no larger than the tensors of a call, up to a power of two."""
    block = [base.m, base.n]
    for i, role in enumerate("mn"):
        size = substitute(t.roles[role], sizes) if role in t.roles else None
        if isinstance(size, int):
            block[i] = min(block[i], max(_LEAST, 1 << max(size - 1, 0).bit_length()))
    return replace(base, block=tuple(block))


@dataclass(frozen=True)
class AutotuneSearch:
    """What kernel.autotune was told."""

    space: Space
    metric: str = "latency_ms"
    budget_ms: float = 200.0
    cache: str | None = None

    @staticmethod
    def of(space: Any, metric: str, budget_ms: float, cache: Any) -> AutotuneSearch:
        """The search that a user describes."""
        if metric not in METRICS:
            raise OperandError(
                f"autotune: metric is {metric!r}, expected one of {', '.join(METRICS)}"
            )
        if not budget_ms > 0:
            raise OperandError(f"autotune: budget_ms is {budget_ms!r}, expected more than 0")
        if space is None or not len(choices := _space(space)):
            raise ScheduleError("autotune: the space has no schedule")
        return AutotuneSearch(choices, metric, budget_ms, None if cache is None else str(cache))

    def store(self) -> AbstractContextManager[Any]:
        """The store of this search: the usual one, or one in a folder of its own."""
        if self.cache is None:
            return nullcontext()
        return override(cache_dir=Path(self.cache).expanduser())


def _space(given: Any) -> Space:
    return given.space if isinstance(given, Fluent) else Space.of(given)


@dataclass(frozen=True)
class FoundSchedule:
    """What a search found: the schedule, its time, that of the first one, and how many were measured."""

    schedule: Schedule
    seconds: float
    before: float
    tried: int


def remembered(
    search: AutotuneSearch, key: str, sizes: Mapping[str, int], place: str | None = None
) -> FoundSchedule | None:
    """What the store knows of a kernel at sizes like these, on this machine or on a device."""
    known = None
    with search.store(), tuned.tolerant():
        known = tuned.find(key, tuned.size_class(sizes), place)
    if known is None:
        return None
    try:
        schedule = Schedule.from_dict(json.loads(known.nest))
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ScheduleError,
    ):  # of another version
        return None
    return FoundSchedule(schedule, known.seconds, known.before, 0)


def look(
    search: AutotuneSearch, base: Schedule, translate: Translate, arrays: Sequence[Any],
    sizes: Mapping[str, int], key: str,
) -> FoundSchedule:  # fmt: skip
    """Measure the schedules of a space on the arguments of a call, and keep the fastest."""
    ranked = _ranked(search.space, base, translate, sizes)
    if not ranked:
        raise ScheduleError("autotune: no schedule of the space fits the arguments")
    ranked = ranked[: max(_BATCH, len(ranked) // _SHARE)]
    end = time.perf_counter() + search.budget_ms / 1e3
    tried: list[Candidate] = []
    bench = _CpuBench(arrays, sizes)
    for i in range(0, len(ranked), _BATCH):
        if i and time.perf_counter() > end:
            break
        built = (bench.candidate(s, t) for s, t in ranked[i : i + _BATCH])
        tried += [c for c in built if c is not None]
    found = fastest(tried, end)
    with search.store(), tuned.tolerant():
        label, text = tuned.size_class(sizes), json.dumps(found.schedule.to_dict(), sort_keys=True)
        tuned.keep(tuned.Tuned(key, label, text, found.seconds, found.before))
    return found


def _ranked(
    space: Space, base: Schedule, translate: Translate, sizes: Mapping[str, int]
) -> list[tuple[Schedule, Translated]]:
    """The first schedule of each Tile program: the first one of the space, then by their estimates."""
    programs: dict[str, tuple[Schedule, Translated]] = {}
    for s in space:
        chosen = s.over(base)
        try:
            t = translate(chosen)
        except (KernelError, ShapeError):  # blocks that the kernel cannot have
            continue
        programs.setdefault(t.kernel.hash, (chosen, t))
    made = list(programs.values())
    threads = thread_count()
    return [*made[:1], *sorted(made[1:], key=lambda x: estimate(x[1].kernel, sizes, threads))]


class _CpuBench:
    """The arguments that candidates run on; schedules that change bits are none, unless numerics are fast."""

    def __init__(self, arrays: Sequence[Any], sizes: Mapping[str, int]):
        self.arrays, self.sizes = arrays, sizes
        self.bits: list[bytes] | None = None  # of the first candidate

    def candidate(self, s: Schedule, t: Translated) -> Candidate | None:
        """A schedule as machine code, or None if its results have other bits."""
        known = known_sizes(t, self.sizes)

        def run() -> None:
            run_kernel(t.kernel, self.arrays, known)

        bits = [x.tobytes() for x in run_kernel(t.kernel, self.arrays, known)]
        if self.bits is None:
            self.bits = bits
        if bits != self.bits and flags().numerics != "fast":
            return None
        chosen: Any = s
        return Candidate(run, nest=chosen)


def fastest(tried: Sequence[Candidate], end: float) -> FoundSchedule:
    """The fastest of those that were built, or the first, measured in turn."""
    best = best_of(tried[0], tried[1:], end)
    schedule: Any = best.nest
    return FoundSchedule(schedule, best.seconds, tried[0].seconds, len(tried))
