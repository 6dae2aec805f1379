"""Programs on a GPU while a profile is on.

Their kernels are launched one by one with an event of the device between them, and under their names in the
profilers of NVIDIA.  Everything runs on the main stream, so the time from one event to the next is that of
a kernel, or of nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.compile.gpu.bind import Bound
from tessera.core.types import TensorType
from tessera.ir.schedule.memory import MemoryPlan, StepAccess
from tessera.runtime.cuda import nvtx
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.stream import DriverEvent
from tessera.runtime.gpu.bound_program import MOVES, RUNS, SERIES, MoveStep

Ran = list[tuple[int, int, int]]  # step, begin and end in nanoseconds
_now = time.perf_counter_ns


@dataclass(frozen=True, eq=False)
class OnGpu:
    """A program whose launches were timed, or its copies by an engine beside them."""

    program: Bound
    engine: str = ""

    @property
    def name(self) -> str:
        return self.program.planned.name

    @property
    def device(self) -> str:
        beside = f" {self.engine}" if self.engine else ""
        return f"{self.program.gpu.kind}:{self.program.gpu.index}{beside}"

    @property
    def types(self) -> Mapping[str, TensorType]:
        p = self.program.planned
        return {n: b.type for n, b in p.lowered.p.buffers.items()} | p.types

    @property
    def sizes(self) -> Mapping[str, int]:
        return self.program.planned.sizes

    @property
    def plan(self) -> MemoryPlan:
        return self.program.planned.plan

    @property
    def steps(self) -> Sequence[StepAccess]:
        return self.program.planned.plan.steps

    def spans(self, records: Ran) -> Ran:
        """What ran, one after another."""
        return records


class _EventMark:
    """An event, and the step of a run that it ends; none where nothing of ours ended."""

    __slots__ = ("event", "run", "step")

    def __init__(self, gpu: Gpu, run: Any = None, step: int = -1):
        self.event, self.run, self.step = DriverEvent(gpu, timing=True), run, step
        self.event.record()


class DeviceEvents:
    """The events of one device, in order."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        gpu.synchronize()
        self._first = _EventMark(gpu)
        self._first.event.synchronize()
        self._zero = _now()  # of the clock of the host at the first event
        self._marks: list[_EventMark] = []
        self._copies: list[tuple[Any, str, int, DriverEvent, DriverEvent]] = []

    def copied(
        self, run: Any, engine: str, step: int, begin: DriverEvent, end: DriverEvent
    ) -> None:
        """Note a copy beside the kernels of a run."""
        self._copies.append((run, engine, step, begin, end))

    def mark(self, run: Any = None, step: int = -1) -> None:
        """Note that a step of a run has ended here, or that another one begins."""
        self._marks.append(_EventMark(self.gpu, run, step))

    def resolve(self) -> dict[tuple[Any, str], Ran]:
        """The steps of each run, and those of each engine beside it, after waiting for the device."""
        self.gpu.synchronize()
        out: dict[tuple[Any, str], Ran] = {}
        before, at = self._first, float(self._zero)
        for m in self._marks:
            # From neighbour to neighbour: the count of milliseconds is a 32-bit float.
            end = at + 1e6 * before.event.elapsed(m.event)
            if m.run is not None:
                out.setdefault((m.run, ""), []).append((m.step, round(at), round(end)))
            before, at = m, end
        for run, engine, step, start, stop in self._copies:
            at, took = 1e6 * self._first.event.elapsed(start), 1e6 * start.elapsed(stop)
            span = (step, round(self._zero + at), round(self._zero + at + took))
            out.setdefault((run, engine), []).append(span)
        self._marks.clear()
        self._copies.clear()
        return out


class ProgramRun:
    """One run of a program, by identity."""

    def __init__(self, program: Bound, stack: Any):
        self.program, self.stack = program, stack


class GpuRecorder:
    """Times the launches of all programs between start and stop."""

    def __init__(self, note: Callable[..., None], callers: Callable[[], Any]):
        self._note, self._callers = note, callers
        self._devices: dict[Gpu, DeviceEvents] = {}
        self._numbers: dict[Bound, dict[str, int]] = {}  # of steps, by name
        self._lock = threading.RLock()  # events and launches of a program stay together
        self._now = threading.local()  # the run of this thread

    def start(self) -> None:
        """Watch programs."""
        RUNS.add(self._run)
        SERIES.add(self._launch)
        MOVES.add(self._move)

    def stop(self) -> None:
        """Let programs run unwatched again, when all of them are done."""
        RUNS.remove(self._run)
        SERIES.remove(self._launch)
        MOVES.remove(self._move)
        for d in self._devices.values():
            d.gpu.synchronize()

    def ran(self) -> list[tuple[ProgramRun, str, Ran]]:
        """What ran on every device, and on which engine beside its kernels."""
        found = [x for d in self._devices.values() for x in d.resolve().items()]
        return [(run, engine, ran) for (run, engine), ran in found]

    def _run(self, run: Callable[..., Any], p: Bound, *xs: Any) -> Any:
        begin = _now()
        around = getattr(self._now, "run", None)  # a region runs inside of another program
        self._now.run = ProgramRun(p, self._callers())
        try:
            with nvtx.named(p.planned.name):
                return run(p, *xs)
        finally:
            self._now.run = around
            self._note("enqueue", p.planned.name, begin, _now())

    def _launch(self, run: Callable[..., None], p: Bound, s: Any, cells: Sequence[int]) -> None:
        if p.gpu.capturing:  # events would be part of the graph
            run(p, s, cells)
            return
        with self._lock:
            if p not in self._numbers:
                self._numbers[p] = {a.name: i for i, a in enumerate(p.planned.plan.steps)}
            device = self._device(p.gpu)
            s.bind(cells)
            device.mark()
            for i, x in enumerate(s.launches):
                with nvtx.named(x.name):
                    s.run_one(i, p.gpu.stream)
                device.mark(self._now.run, self._numbers[p][x.name])

    def _device(self, gpu: Gpu) -> DeviceEvents:
        return self._devices.get(gpu) or self._devices.setdefault(gpu, DeviceEvents(gpu))

    def _move(self, move: Callable[..., None], p: Bound, step: MoveStep, *rest: Any) -> None:
        with self._lock:
            device, engines, engine = self._device(p.gpu), p.gpu.engines, step.copies.engine
            times: list[tuple[DriverEvent, DriverEvent]] = []
            engines.times = times
            try:
                with nvtx.named(step.name):
                    move(p, step, *rest)
            finally:
                engines.times = None
            for value, (begin, end) in zip(step.copies.copies, times, strict=True):
                number = p.planned.moves[engine, value]
                device.copied(self._now.run, engine, number, begin, end)
