"""A prepared program whose steps note when they begin and end.

It has the same kernels in the same phases on the same threads, and gives the same bits.  Kernels note their
times themselves (runtime/stamps.py); host functions and copies are timed from outside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tessera.compile.cpu.bound_program import Cells, HostAction, Prepared, Run
from tessera.ir.schedule.memory import StepAccess
from tessera.runtime.kernel import cells_of
from tessera.runtime.pool import Job, Series, Task, pool
from tessera.runtime.stamps import Array, Records, spans


class _Alone:
    """A job that is timed from outside, where the machine has no clock for kernels."""

    def __init__(self, job: Job):
        self.job = job


class WatchedProgram(Prepared):
    """A program that is watched."""

    def __init__(self, p: Prepared):
        super().__init__(p.name, p.image, p.kernels, p.sizes, p.threads, p.host, p.donated)
        self.executable, self.lock = p.executable, threading.RLock()

    def _begun(self) -> Run:
        return self._general

    def _quick(self) -> None:
        return None

    def _segmented(self, steps: Sequence[tuple[StepAccess, Any]]) -> list[Series | HostAction]:
        self.steps = [access for access, _ in steps]
        self.records = Records(len(steps))
        self.phases: list[list[int]] = []
        self._numbers = {id(access): i for i, (access, _) in enumerate(steps)}
        self._copied = {a.writes[0]: i for i, (a, what) in enumerate(steps) if what is None}
        return super()._segmented(
            [(a, self._stamped(i, what)) for i, (a, what) in enumerate(steps)]
        )

    def _stamped(self, i: int, what: Any) -> Any:
        if not isinstance(what, Job) or not what.count:
            return what
        return self.records.stamped(what, i) or _Alone(what)

    def _phases(self, calls: Sequence[tuple[StepAccess, Task]]) -> list[list[Task]]:
        phases = super()._phases(calls)
        numbers = iter([self._numbers[id(access)] for access, _ in calls])
        self.phases += [[next(numbers) for _ in phase] for phase in phases]
        return phases

    def _copy(self, name: str) -> HostAction:
        return self._timed(self._copied[name], super()._copy(name))

    def _hosted(self, access: StepAccess, run: Callable[..., Any]) -> HostAction:
        alone = isinstance(run, _Alone)
        action = self._by_itself(access, run.job) if alone else super()._hosted(access, run)  # type: ignore[attr-defined]
        return self._timed(self._numbers[id(access)], action)

    def _by_itself(self, access: StepAccess, job: Job) -> HostAction:
        places = [self.place(n) for n in (*access.reads, *access.writes)]
        series = Series([[(job, places)]], self.threads)

        def run(cells: Cells) -> None:
            pool().run_series(series, self._pack(*cells_of(cells)))

        return run

    def _timed(self, i: int, action: HostAction) -> HostAction:
        self.phases.append([i])
        note, clock = self.records.note, time.perf_counter_ns

        def run(cells: Cells) -> None:
            begin = clock()
            action(cells)
            note(i, begin, clock())

        return run

    def spans(self, records: Array) -> list[tuple[int, int, int]]:
        """(step, begin, end) of what ran, one after another."""
        return spans(records, self.phases)
