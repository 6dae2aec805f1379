"""A program for a GPU with its memory planned: every buffer has a cell and an offset.

No GPU needs to be there: bind.py loads the code on a device, and offline.py shows it or takes it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tessera.compile.driver import Driver
from tessera.compile.gpu import offload
from tessera.compile.gpu.image import GpuCall, GpuImage, array_of
from tessera.compile.slots import Slots
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.memory import StepAccess, size_of
from tessera.runtime.cuda.launch import FixedValue, Pointer, i32
from tessera.runtime.cuda.tma import TmaDescriptor
from tessera.runtime.gpu.bound_program import Cells, Spot
from tessera.runtime.gpu.control import Run
from tessera.runtime.gpu.host_copies import Get, Put
from tessera.runtime.gpu.launch_order import Place, Touched
from tessera.runtime.triton_builder import BuiltCode

if TYPE_CHECKING:  # a program from the disk needs nothing that lowers
    from tessera.compile.gpu.lowering import LoweredProgram

# What runs an op that is no kernel, and the bytes that it needs meanwhile; nothing runs it offline.
Host = Callable[[HostCall, Mapping[str, TensorType], Mapping[str, int]], tuple[Run | None, int]]


class Boxed(NamedTuple):
    """A parameter: a descriptor of the copy engine, which only a driver can write, for memory in a cell."""

    map: TmaDescriptor
    cell: int
    offset: int


class PlannedProgram(Slots):
    """A program at known sizes: steps in order, and the memory of their buffers.

    `look` gives the IR that it came from, which is made again where the image came from the disk.
    """

    def __init__(
        self, image: GpuImage, driver: Driver, look: Callable[[], LoweredProgram], host: Host
    ):
        self.image, self.driver, self.host, self._look = image, driver, host, look
        self.name, self.inputs, self.outputs = image.name, image.inputs, image.outputs
        self.types, self.views, self.sizes = image.types, image.views, image.sizes
        self.tables = {n: array_of(t) for n, t in image.tables.items()}
        # Steps, by the engine and the value that it copies.
        self.moves: dict[tuple[str, str], int] = {}
        self._moved: dict[str, HostCall] = {}
        steps: list[offload.Step] = [
            self._hosted(a, s) if isinstance(s, HostCall) else (a, s) for a, s in image.steps
        ]
        steps = offload.beside(steps, self.types, self.root)
        for i, (_, c) in enumerate(steps):
            if isinstance(c, Put | Get):
                self.moves[c.engine, c.value] = i
        given = (*self.inputs, *self.tables)
        self.number(self.name, [a for a, _ in steps], given, self.outputs, image.donated)
        self.steps = [(a, c) for a, c in steps if not self.is_done(a)]

    def _hosted(self, access: StepAccess, s: HostCall) -> offload.Step:
        """What runs an op that is no kernel, with the bytes that it takes meanwhile."""
        if offload.is_move(s):
            made = offload.move_of(access, s)
            self._moved[made[0].name] = s
            return made
        run, extra = self.host(s, self.types, self.sizes)
        return replace(access, temporary=extra), run

    # The IR that it came from

    @cached_property
    def lowered(self) -> LoweredProgram:
        """The IR of every level."""
        return self._look()

    @property
    def origin(self) -> Mapping[str, schedule.Step]:
        """The step of Schedule IR that each access belongs to, by name."""
        return self.lowered.origin | self._moved

    # Places

    def spot(self, name: str) -> Spot:
        """What a buffer is, and its place."""
        t = self.types[name]
        shape = tuple(int(n) for n in t.shape)
        return Spot(shape, np.dtype(t.dtype.np), size_of(t), *self.place(name))

    @property
    def scratch_cell(self) -> int:
        """The cell of scratch, behind that of the arena."""
        return self.arena_slot + 1

    def cells(self, scratch: int) -> Cells:
        """The cells of a run, with so many bytes of scratch."""
        results, outputs = [s.space for s in self.results], self.outputs
        views = frozenset(i for i, n in enumerate(outputs) if n in self.views)
        return Cells(
            len(self.inputs), self.arena_slot, tuple(map(self.spot, results)), tuple(map(self.spot, outputs)),
            views, self.plan.arena, scratch,
        )  # fmt: skip

    @property
    def result_sizes(self) -> list[int]:
        """The bytes of the cells of results."""
        return [s.size for s in self.results]

    @cached_property
    def overwritten(self) -> frozenset[int]:
        """The donated inputs whose memory something else takes."""
        return frozenset(i for i, n in enumerate(self.inputs) if self.is_overwritten(n))

    # Launches

    @property
    def calls(self) -> list[tuple[StepAccess, GpuCall]]:
        """The launches in order, with what they do to memory."""
        return [(a, c) for a, c in self.steps if isinstance(c, GpuCall)]

    def built(self) -> list[tuple[GpuCall, BuiltCode]]:
        """The launches in order, with the code that Triton builds for them, side by side."""
        calls = [c for _, c in self.calls]
        made = self.driver.batch([c.source for c in calls]) if calls else []
        return list(zip(calls, made, strict=True))

    def touched(self, c: GpuCall, code: BuiltCode) -> Touched:
        """The memory of a launch; scratch is one piece, which launches have one after another."""
        parts: dict[bool, list[Place]] = {False: [], True: []}
        for writes, n in zip(c.writable, c.buffers, strict=True):
            cell, offset = self.place(n)
            if size := size_of(self.types[n]):
                parts[writes].append((cell, offset, offset + size - 1))
        if c.scratch or code.scratch:
            parts[True].append((self.scratch_cell, 0, 0))
        return Touched(tuple(parts[False]), tuple(parts[True]), c.early)

    def parameters(self, c: GpuCall, scratch: int) -> list[Pointer | FixedValue | Boxed]:
        """What a launch is given, before what Triton adds; scratch is in a cell of this number."""
        boxes = {b.at: b for b in c.boxes}
        given: list[Pointer | FixedValue | Boxed] = []
        for i, n in enumerate(c.buffers):
            cell, offset = self.place(n)
            if i in boxes:
                given += [Boxed(boxes[i].map, cell, offset), *map(FixedValue, boxes[i].rest)]
            else:
                given.append(Pointer(cell, offset if size_of(self.types[n]) else 0))
        given += [i32(n) for n in c.sizes]
        return [*given, Pointer(scratch)] if c.scratch else given
