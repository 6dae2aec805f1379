"""Recording: what runs while a profile is on, with its times and the user's lines that called it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tessera.compile.cpu.bound_program import PROGRAMS, Prepared, Run
from tessera.compile.cpu.native_loop import LOOPS, NativeLoop
from tessera.compile.executable import REFERENCES, Executable
from tessera.core.errors import OperandError
from tessera.core.observe import Observed
from tessera.core.source import callers
from tessera.core.spans import SPANS
from tessera.eager import OPS
from tessera.inspect.profile_gpu import GpuRecorder, OnGpu
from tessera.inspect.profile_loop import watched
from tessera.inspect.profile_program import WatchedProgram
from tessera.ir.graph.op import Op
from tessera.lang.jit import Jitted
from tessera.lang.observe import CALLS
from tessera.runtime.kernel import LAUNCHES, CompiledKernel
from tessera.runtime.stamps import Array

Stack = tuple[tuple[CodeType, int], ...]
_now = time.perf_counter_ns


class Noted(NamedTuple):
    """Something that took time: a program, a loop, a single op, a launch, a trace, a compilation, tuning."""

    kind: str
    name: str
    begin: int
    end: int
    thread: int | str  # a thread of the host, or a device
    stack: Stack
    what: Any = None  # the program and its records, or the kernel and the sizes of a launch


class Recorder:
    """Notes what runs between start and stop, in all threads."""

    _on: Recorder | None = None

    def __init__(self) -> None:
        self.noted: list[Noted] = []
        self.begin = self.end = self.thread = 0
        self._base: FrameType | None = None
        self._gpus = GpuRecorder(self._note, lambda: callers(self._base))

    def start(self) -> None:
        """Begin to watch; only one can at a time."""
        if Recorder._on is not None:
            raise OperandError("profile: a profile is on already; end it before another begins")
        Recorder._on = self
        self._base = _outer(sys._getframe(1))
        for kind, observer in self._observers():
            kind.add(observer)
        self._gpus.start()
        self.thread = threading.get_ident()
        self.begin = _now()

    def stop(self) -> None:
        """Let programs run unwatched again; what a GPU still has to do is part of the profile."""
        self._gpus.stop()
        self.end = _now()
        for kind, observer in self._observers():
            kind.remove(observer)
        self._base = Recorder._on = None
        for run, engine, ran in self._gpus.ran():
            on = OnGpu(run.program, engine)
            first, last = ran[0][1], ran[-1][2]
            self.noted.append(
                Noted("device", on.name, first, last, on.device, run.stack, (on, ran))
            )

    def _observers(self) -> Sequence[tuple[Observed[Any], Callable[..., Any]]]:
        return (
            (PROGRAMS, self._program), (LOOPS, self._loop), (OPS, self._op), (LAUNCHES, self._launched),
            (REFERENCES, self._referred), (CALLS, self._called), (SPANS, self._told),
        )  # fmt: skip

    def _note(self, kind: str, name: str, begin: int, end: int, what: Any = None) -> None:
        stack = callers(self._base)
        self.noted.append(Noted(kind, name, begin, end, threading.get_ident(), stack, what))

    def _program(self, p: Prepared) -> Run:
        """What runs a program while it is watched; it is made ready at its first call."""

        def run(xs: Sequence[Array]) -> list[Array]:
            made = p.watched
            if not isinstance(made, WatchedProgram):
                begin = _now()
                made = p.watched = WatchedProgram(p)
                self._note("profiler", f"watch {p.name}", begin, _now())
            with made.lock:  # records are for one run at a time
                begin = _now()
                try:
                    return made.own(xs)
                finally:
                    end = _now()
                    self._note("program", p.name, begin, end, (made, made.records.take()))

        return run

    def _loop(self, loop: NativeLoop) -> Run | None:
        """What runs a loop without Python between its steps; None: they run one by one."""
        begin, known = _now(), loop.watched is not None
        made = watched(loop)
        if made is None:
            return None
        if not known:
            self._note("profiler", f"watch {made.name}", begin, _now())

        def run(xs: Sequence[Array]) -> list[Array]:
            with made.lock:
                begin = _now()
                try:
                    return made.run(xs)
                finally:
                    self._note("loop", made.name, begin, _now(), made.taken())

        return run

    def _op(self, op: Op, run: Callable[..., Any]) -> Callable[..., Any]:
        name, note = op.name, self._note

        def timed(*xs: Any) -> Any:
            begin = _now()
            out = run(*xs)
            note("op", name, begin, _now())
            return out

        return timed

    def _launched(
        self, run: Callable[..., None], k: CompiledKernel, arrays: Sequence[Array],
        sizes: Mapping[str, int] | None,
    ) -> None:  # fmt: skip
        begin = _now()
        run(k, arrays, sizes)
        end, moved = _now(), sum(a.nbytes for a in arrays)
        self._note("launch", k.name, begin, end, (k.source, dict(sizes or {}), moved))

    def _referred(self, run: Callable[..., Any], e: Executable, xs: Sequence[Array]) -> list[Array]:
        begin = _now()
        outs: list[Array] = run(e, xs)
        self._note("references", e.graph.name, begin, _now())
        return outs

    def _called(self, call: Callable[..., Any], f: Jitted, args: Any, kwargs: Any) -> Any:
        begin = _now()
        try:
            return call(f, args, kwargs)
        finally:
            self._note("call", f.name, begin, _now())

    def _told(self, kind: str, name: str, begin: int, end: int) -> None:
        self._note(kind, name, begin, end)


def _outer(frame: FrameType | None) -> FrameType | None:
    """The first frame that is not of this package."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tessera.inspect"):
        frame = frame.f_back
    return frame
