"""clock: what the launches of a program take of a device: time, registers, shared memory.

A program is timed by events of its stream, in memory that stays: nothing of the host is in the figure as
long as the host launches faster than the device runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.runtime.cuda.launch import Launcher
from tessera.runtime.cuda.memory import DeviceArray
from tessera.runtime.cuda.module import DriverFunction
from tessera.runtime.cuda.stream import DriverEvent
from tessera.runtime.gpu.bound_program import BoundProgram


@dataclass(frozen=True)
class Figures:
    """What the code of a kernel takes."""

    registers: int  # of a thread
    spilled: int  # bytes of a thread that found no register
    shared: int  # bytes of a block


class Timed:
    """A program on inputs that stay, under the clock of its device."""

    def __init__(self, p: BoundProgram[Any], inputs: Sequence[DeviceArray]):
        self._begin, self._end = DriverEvent(p.gpu, timing=True), DriverEvent(p.gpu, timing=True)
        self.run = p.repeated(inputs)
        launches = [x for s in p.segments if isinstance(s, Launcher) for x in s.launches]
        self.figures = [_figures(x.function) for x in launches]

    def seconds(self, times: int) -> float:
        """What so many runs take."""
        self._begin.record()
        for _ in range(times):
            self.run()
        self._end.record()
        self._end.synchronize()
        return self._begin.elapsed(self._end) / 1e3


def _figures(f: DriverFunction) -> Figures:
    return Figures(f.registers, f.local_bytes, f.shared + f.static_shared)
