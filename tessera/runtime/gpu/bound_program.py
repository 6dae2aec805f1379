"""A bound program of a GPU: numbered cells of memory, and launches and calls of the host in order.

Cells hold addresses: inputs, tables, results, what the host makes, the arena and scratch.  Kernels that
follow each other are one call into machine code (runtime/cuda/launch.py).  Everything here is numbers; what
they follow from is the plan that the compiler made of the program (compile/gpu/planned.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tessera.core.observe import Observed
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.launch import Launcher
from tessera.runtime.cuda.memory import DeviceArray
from tessera.runtime.cuda.pool import PoolBlock
from tessera.runtime.cuda.stream import DriverEvent

P = TypeVar("P")
Arrays = Sequence[DeviceArray]
Find = Callable[[str], DeviceArray]
Held = list[DeviceArray | None]  # what the cells of a run hold
Block = PoolBlock | None  # the arena, or scratch
NOWHERE: Mapping[int, DeviceArray] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spot:
    """What a buffer is, its bytes, and its place: a cell and an offset."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    cell: int
    offset: int


@dataclass
class PendingCopies:
    """The copies of a run that are not known to be over, by the buffer on the device."""

    gpu: Gpu
    events: dict[str, DriverEvent] = field(default_factory=dict)

    def settle(self, names: Sequence[str]) -> None:
        """Let later kernels wait for these."""
        for n in names:
            self.gpu.engines.wait(self.events.pop(n))


class Copies(Protocol):
    """What begins copies between the device and the host."""

    @property
    def engine(self) -> str:
        """The engine that copies."""

    @property
    def copies(self) -> tuple[str, ...]:
        """The values that begin to move."""

    def run(self, find: Find, m: PendingCopies) -> list[DeviceArray]:
        """Begin, and give what is new on the device."""


@dataclass(frozen=True)
class HostStep:
    """A function from arrays of the device to such arrays, between launches."""

    name: str
    run: Callable[[Arrays], Arrays]
    reads: tuple[Spot, ...]
    cells: tuple[int, ...]  # of what it makes


@dataclass(frozen=True)
class MoveStep:
    """Copies between the device and the host, beside the launches."""

    name: str
    copies: Copies
    spots: Mapping[str, Spot]  # of the buffers that it asks for
    cells: tuple[int, ...]  # of what it makes


Segment = Launcher | HostStep | MoveStep

# Each takes what does the work, the program, and what the work takes.
RUNS: Observed[Callable[..., Any]] = Observed("GPU runs", "runs of programs on a GPU")
SERIES: Observed[Callable[..., None]] = Observed(
    "GPU launches", "kernels of a program that follow each other on a GPU"
)
MOVES: Observed[Callable[..., None]] = Observed(
    "GPU moves", "copies of a program between a GPU and the host"
)


@dataclass(frozen=True)
class Cells:
    """How many cells a program has, and what a run allocates for them."""

    inputs: int
    count: int  # of all but the arena, which comes next, and scratch, which comes last
    results: tuple[Spot, ...]  # memory that a run allocates and returns
    outputs: tuple[Spot, ...]
    views: frozenset[int]  # the outputs that are parts of other buffers
    arena: int  # bytes
    scratch: int  # bytes


def _launch(p: BoundProgram[Any], s: Launcher, cells: Sequence[int]) -> None:
    s.run(cells)


class BoundProgram(Generic[P]):
    """A program that runs on arrays of known shapes; `planned` is what the compiler bound it from."""

    def __init__(
        self, planned: P, gpu: Gpu, cells: Cells, tables: Arrays, segments: Sequence[Segment]
    ):
        self.planned, self.gpu, self.cells, self.segments = planned, gpu, cells, list(segments)
        self._tables, self._results, self._outputs = list(tables), cells.results, cells.outputs
        self._arena = cells.count

    def run(self, inputs: Arrays, into: Mapping[int, DeviceArray] = NOWHERE) -> list[DeviceArray]:
        """The outputs for these inputs; those of `into`, which have memory of their own, are written
        there.
        """
        if RUNS.observers:
            outs: list[DeviceArray] = RUNS.around(BoundProgram._run)(self, inputs, into)
            return outs
        return self._run(inputs, into)

    def _run(self, inputs: Arrays, into: Mapping[int, DeviceArray]) -> list[DeviceArray]:
        if self._plain is not None and not into:
            launcher, cells = self._plain
            all_held = [*inputs, *self._tables, *[self._empty(x) for x in self._results]]
            self.launch(launcher, [x.ptr for x in all_held][: launcher.cells])
            return [all_held[i] for i in cells]
        given = {self.own_memory[i]: x for i, x in into.items()} if into else NOWHERE
        made = [given.get(i) or self._empty(x) for i, x in enumerate(self._results)]
        held, arena, scratch = self._memory(inputs, made)
        moving = PendingCopies(self.gpu)
        for s in self.segments:
            if isinstance(s, HostStep):
                arrays = [self._array(x, held, arena) for x in s.reads]
                for cell, y in zip(s.cells, s.run(arrays), strict=True):
                    held[cell] = y
            elif isinstance(s, MoveStep):
                self.move(s, moving, held, arena)
            else:
                self.launch(s, _addresses(held, arena, scratch)[: s.cells])
        return [self._array(x, held, arena) for x in self._outputs]

    @cached_property
    def _plain(self) -> tuple[Launcher, list[int]] | None:
        """The launches and the cells of results, where nothing else runs and results fill what a run
        allocates.
        """
        begin, made = self.cells.inputs + len(self._tables), self._results
        (only,) = self.segments if len(self.segments) == 1 else (None,)
        if only is None or isinstance(only, HostStep | MoveStep) or only.cells > begin + len(made):
            return None
        for x in self._outputs:
            own = made[x.cell - begin] if begin <= x.cell < begin + len(made) else None
            if own is None or not x.size or x.offset:
                return None
            if (x.shape, x.dtype) != (own.shape, own.dtype):
                return None
        return only, [x.cell for x in self._outputs]

    def _memory(self, inputs: Arrays, made: Arrays) -> tuple[Held, Block, Block]:
        """What the cells of a run hold, its arena and its scratch."""
        pool, c = self.gpu.pool, self.cells
        held: Held = [*inputs, *self._tables, *made]
        held += [None] * (c.count - len(held))
        arena = pool.alloc(c.arena) if c.arena else None
        return held, arena, pool.alloc(c.scratch) if c.scratch else None

    def repeated(self, inputs: Arrays) -> Callable[[], None]:
        """What runs this program on these inputs again and again in the same memory; for measurements."""
        held, arena, scratch = self._memory(inputs, [self._empty(x) for x in self._results])
        launchers = [s for s in self.segments if not isinstance(s, HostStep | MoveStep)]

        def run() -> None:
            if len(launchers) < len(self.segments):
                self.run(inputs)
                return
            cells = _addresses(held, arena, scratch)
            for s in launchers:
                s.run(cells[: s.cells])

        return run

    @property
    def launches(self) -> int:
        """The most kernels that follow each other without a call between them."""
        series = [s for s in self.segments if not isinstance(s, HostStep | MoveStep)]
        return max((len(s.launches) for s in series), default=0)

    @cached_property
    def cells_of_outputs(self) -> list[int]:
        """The cell of each output; those of the inputs come first."""
        return [x.cell for x in self._outputs]

    @cached_property
    def own_memory(self) -> dict[int, int]:
        """The outputs that fill a memory which a run allocates, and its number."""
        first = self.cells.inputs + len(self._tables)
        return {
            i: x.cell - first
            for i, x in enumerate(self._outputs)
            if i not in self.cells.views and 0 <= x.cell - first < len(self._results)
            if x.offset == 0 and self._results[x.cell - first].size == x.size
        }

    def launch(self, s: Launcher, cells: Sequence[int]) -> None:
        """Launch kernels that follow each other."""
        if SERIES.observers:
            SERIES.around(_launch)(self, s, cells)
        else:
            s.run(cells)

    def move(self, s: MoveStep, moving: PendingCopies, held: Held, arena: Block) -> None:
        """Begin copies between the device and the host."""
        if MOVES.observers:
            MOVES.around(BoundProgram._move)(self, s, moving, held, arena)
        else:
            self._move(s, moving, held, arena)

    def _move(self, s: MoveStep, moving: PendingCopies, held: Held, arena: Block) -> None:
        made = s.copies.run(lambda n: self._array(s.spots[n], held, arena), moving)
        for cell, x in zip(s.cells, made, strict=False):
            held[cell] = x

    def _empty(self, x: Spot) -> DeviceArray:
        block = self.gpu.pool.alloc(x.size)
        return DeviceArray(x.shape, x.dtype, self.gpu, block.ptr, block)

    def _array(self, x: Spot, held: Held, arena: Block) -> DeviceArray:
        """A buffer as an array that keeps its memory."""
        if not x.size:
            return self._empty(x)
        base = arena if x.cell == self._arena else held[x.cell]
        assert base is not None, x
        owner: object = base
        if isinstance(base, DeviceArray):
            if x.offset == 0 and base.shape == x.shape and base.dtype == x.dtype:
                return base
            owner = base.owner
        return DeviceArray(x.shape, x.dtype, self.gpu, base.ptr + x.offset, owner)


def _addresses(held: Held, arena: Block, scratch: Block) -> list[int]:
    return [0 if x is None else x.ptr for x in (*held, arena, scratch)]
