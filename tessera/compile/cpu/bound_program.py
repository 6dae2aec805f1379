"""Prepared programs: an image at the sizes of a call, with its memory planned and its launches packed.

Arrays stand in numbered cells: inputs, results, what the host makes, and the arena.  Kernels that follow
each other run in one call into machine code; a parameter of a kernel is a cell and an offset.  Those that
touch nothing of each other's run side by side.  Views are offsets and strides, and barriers are nothing at
all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from tessera.compile.artifact import Image, KernelCall
from tessera.compile.slots import Extent, Layout, Slots, segments
from tessera.core.errors import out_of_memory
from tessera.core.observe import Observed
from tessera.core.types import TensorType
from tessera.ir.graph import interp
from tessera.ir.graph.ir import Array
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.layout import is_row_major, row_major
from tessera.ir.schedule.memory import (
    MemoryPlan,
    StepAccess,
    View,
    size_of,
)
from tessera.runtime import memory
from tessera.runtime.call import Direct
from tessera.runtime.kernel import FAST, CompiledKernel, cells_of
from tessera.runtime.pool import Job, Series, Task, pool
from tessera.runtime.pool_ir import TIDY

if TYPE_CHECKING:  # which imports this
    from tessera.compile.cpu.executable import MachineExecutable

_QUANTUM = 10_000_000  # picoseconds of work that are worth waking a thread

_BYTE = np.dtype(np.uint8)

_MOST_TOGETHER = 16  # calls in a phase

Cells = list[Any]

Hosts = Callable[..., Sequence[Array]]  # arrays -> arrays
Host = Callable[[HostCall, Mapping[str, TensorType], Mapping[str, int]], tuple[Hosts, int]]
Action = Job | Hosts | None  # of a step: a job of the pool, a call of the host, or a copy
Maker = Callable[[tuple[int, ...], np.dtype[Any]], Array]
HostAction = Callable[[Cells], None]
Run = Callable[[Sequence[Array]], list[Array]]


class Prepared(Slots):
    """A program that runs on arrays of known shapes."""

    def __init__(
        self,
        name: str,
        image: Image,
        kernels: Sequence[CompiledKernel],
        sizes: Mapping[str, int],
        threads: int,
        host: Host,
        donated: frozenset[str] = frozenset(),
    ):
        self.image, self.kernels, self.threads, self.sizes = image, kernels, threads, dict(sizes)
        self.name, self.donated = name, donated
        self.types = {n: t.substitute(sizes) for n, t in image.buffers.items()}
        self.views = {}
        self.copies: dict[str, View] = {}  # views that are copied, because a kernel reads them
        self.tidy: set[str] = set()  # buffers whose elements must lie in order
        self.host = host
        self.executable: MachineExecutable | None = None  # what it was made from
        self.watched: object = None  # what a profile has made of it
        # Arrays that it reads after its inputs; None: those that the executable has captured.
        self.constants: list[Array] | None = None
        steps = self._steps()
        self.number(name, [a for a, _ in steps], image.inputs, image.outputs, donated)
        self.peak = self.plan.peak
        self._make_cells()
        self.quick: Series | None = None  # all that a run does
        self._segments = self._segmented(steps)
        self.own: Run = self._quick() or self._general
        self.run = self.observed()
        _ALL.add(self)

    def observed(self) -> Run:
        """What runs the program now."""
        return PROGRAMS.observers[-1](self) if PROGRAMS.observers else self.own

    # Steps

    def _steps(self) -> list[tuple[StepAccess, Action]]:
        """What each step does with memory, and its job or host function."""
        read = {x for s in self.image.steps if isinstance(s, KernelCall) for x in s.inputs}
        out: list[tuple[StepAccess, Action]] = []
        for s in self.image.steps:
            if isinstance(s, KernelCall):
                out.append(self._call(s))
                self.tidy.update(self.root(x) for x in s.inputs)
            elif (shown := self.shown(s)) is not None:
                for y, x, layout in shown:
                    self._see(y, x, layout, read, out)
            else:
                run, temporary = self.host(s, self.types, self.sizes)
                access = StepAccess(
                    s.node.op.name, s.operands, s.results, host=True, temporary=temporary
                )
                out.append((access, run))
        return out

    def _call(self, s: KernelCall) -> tuple[StepAccess, Job]:
        k, names = self.kernels[s.kernel], (*s.inputs, *s.outputs)
        job = k.job(self.sizes, self.threads, _QUANTUM)
        shares = frozenset((names[i], names[j]) for i, j in k.program.shares)
        scratch = job.scratch * (job.seats + 1)
        access = StepAccess(
            s.name, s.inputs, s.outputs, shares, temporary=scratch, copies=k.program.copies
        )
        return access, job

    def _see(
        self, y: str, x: str, layout: Layout, read: set[str], out: list[tuple[StepAccess, Action]]
    ) -> None:
        """Make y a view of x; a copy where a kernel reads it and its elements do not lie in order."""
        self.alias(y, x, layout)
        self.tidy.add(self.root(x))
        if y in read and not is_row_major(self.types[y], layout[1]):
            self.copies[y] = self.views.pop(y)
            out.append((StepAccess(f"copy {y}", (x,), (y,)), None))

    # Cells

    def _make_cells(self) -> None:
        """What makes the array of each result, and what packs the addresses of all cells."""
        # What makes an array, its shape, its dtype.
        self._made: list[tuple[Maker, tuple[int, ...], np.dtype[Any]]] = []
        for s in self.results:
            t = self.types[s.space]
            shape = tuple(int(n) for n in t.shape)
            self._made.append((memory.maker(s.size), shape, np.dtype(t.dtype.np)))
        self._blank = [None] * self.host_slots
        self._pack = struct.Struct(f"{self.arena_slot + 1}P").pack
        self._untidy = [i for i, n in enumerate(self.image.inputs) if n in self.tidy]

    def _reader(self, name: str, view: View | None = None) -> Callable[[Cells], Array]:
        """What gives a buffer as an array."""
        view = view or self.views.get(name)
        t, root = self.types[name], view.base if view else name
        s = self.plan.place[root]
        cell, offset = self.places[root]
        if (
            view is None and s.kind == "input" and root != s.buffers[0]
        ):  # in the place of an argument
            return lambda cells: cells[cell].reshape(t.shape)
        if view is None and (s.kind in ("input", "host") or s.space == root):
            return lambda cells: cells[cell]
        dtype, strides = np.dtype(t.dtype.np), view.strides if view else row_major(t)
        if view is not None:
            offset += view.offset

        def read(cells: Cells) -> Array:
            block = cells[cell].reshape(-1).view(np.uint8)
            made: Array = np.ndarray(t.shape, dtype, block, offset, strides)
            return made

        return read

    # Segments

    @property
    def segments(self) -> Sequence[Series | HostAction]:
        """What a run does, one after another."""
        return self._segments

    @property
    def room(self) -> int:
        """Bytes of the arena."""
        return self._room

    def _segmented(self, steps: Sequence[tuple[StepAccess, Action]]) -> list[Series | HostAction]:
        """Runs of kernels, and host functions between them."""
        out: list[Series | HostAction] = []
        left = [s for s in self.plan.storages if s.kind == "host"]

        def drop(step: int) -> None:
            """Let go of what nothing after a step reads."""
            dead = [s for s in left if s.last <= step]
            left[:] = [s for s in left if s.last > step]
            if dead:
                out.append(Dropped([self.slot(s.buffers[0]) for s in dead]))

        for last, group in segments(steps, lambda what: isinstance(what, Job)):
            access, what = group[0]
            if isinstance(what, Job):
                jobs = [(a, job) for a, job in group if isinstance(job, Job)]
                calls = [(a, self._task(a, job)) for a, job in jobs if self._runs(a, job)]
                if not calls:
                    continue
                out += self._series(calls)
            elif what is None:
                out.append(self._copy(access.writes[0]))
            else:
                out.append(self._hosted(access, what))
            drop(last)
        return out

    def _series(self, calls: Sequence[tuple[StepAccess, Task]]) -> list[Series]:
        """Calls that follow each other, for the pool."""
        return [Series(self._phases(calls), self.threads, self._untidy if FAST else ())]

    def _task(self, access: StepAccess, job: Job) -> Task:
        return job, [self.place(n) for n in (*access.reads, *access.writes)]

    def _runs(self, access: StepAccess, job: Job) -> bool:
        return bool(job.count) and not self.is_done(access)

    @property
    def copied(self) -> int:
        """Bytes of tensors that a run copies whole, because something else holds or reads them."""
        copies = [a for a in self.plan.steps if a.copies and not self.is_done(a)]
        return sum(size_of(self.types[a.writes[0]]) for a in copies)

    def _phases(self, calls: Sequence[tuple[StepAccess, Task]]) -> list[list[Task]]:
        """Calls in order, those that follow each other and need nothing of each other together."""
        out: list[list[Task]] = []
        read: list[Extent] = []
        written: list[Extent] = []
        for access, call in calls:
            reads, writes = ([self._extent(n) for n in x] for x in (access.reads, access.writes))
            waits = _meet(reads, written) or _meet(writes, written) or _meet(writes, read)
            if not out or waits or len(out[-1]) == _MOST_TOGETHER:
                out.append([])
                read, written = [], []
            out[-1].append(call)
            read += reads
            written += writes
        return out

    def _extent(self, name: str) -> Extent:
        """The bytes of a buffer; arguments may be one array, so they count as one."""
        found = self.extent(name)
        return (-1, 0, 1) if found[0] < self.given else found

    def _copy(self, name: str) -> HostAction:
        return Copied(self, name)

    def _hosted(self, access: StepAccess, run: Hosts) -> HostAction:
        readers = [self._reader(n) for n in access.reads]
        cells_made = [self.places[n][0] for n in access.writes]
        tidy = [n in self.tidy for n in access.writes]
        first = len(self.image.inputs)
        ours = [*range(first, first + len(self.results)), self.arena_slot]
        # Memory of arguments that a later step may write to: a branch can return one of them as it is.
        given = enumerate(self.image.inputs)
        lent = [i for i, n in given if n in self.donated and self.plan.is_reused(n)]

        def action(cells: Cells) -> None:
            try:
                made = interp.quietly(run, [r(cells) for r in readers])
            except MemoryError as e:
                raise out_of_memory(access.name, e) from None
            for cell, y, in_order in zip(cells_made, map(np.asarray, made), tidy, strict=True):
                seen = lent if y.flags.owndata else (*ours, *lent)
                if any(np.may_share_memory(y, cells[c]) for c in seen):
                    y = y.copy()  # its memory will be used again
                cells[cell] = interp.contiguous(y) if in_order else y

        return Hosted(access, run, action)

    # Running

    def _cells(self, inputs: Sequence[Array]) -> Cells:
        cells: Cells = [*inputs]
        for i in self._untidy:
            if type(cells[i]) is not np.ndarray or cells[i].flags.num & TIDY != TIDY:
                cells[i] = np.require(cells[i], requirements=("C", "A"))
        cells += [make(shape, dtype) for make, shape, dtype in self._made]
        cells += self._blank
        cells.append(memory.empty((self.plan.arena,), np.uint8))
        return cells

    def _general(self, inputs: Sequence[Array]) -> list[Array]:
        cells = self._cells(inputs)
        for s in self._segments:
            if isinstance(s, Series):
                pool().run_series(s, self._pack(*cells_of(cells)))
            else:
                s(cells)
        return [r(cells) for r in self._returned]

    def direct(self, short: float) -> Direct | None:
        """What a call of machine code runs: kernels of one result; None if there is more to do.

        `short` is the work, in units of what is worth a thread, of a run that need not let other Python
        threads in.
        """
        series = self.quick
        if series is None or len(self._made) != 1 or self.peak >= memory.notable():
            return None
        _, shape, dtype = self._made[0]
        is_short = series.worth <= short and not series.seats and not self._room
        return Direct(shape, dtype, series, self._room, is_short)

    @property
    def _room(self) -> int:
        """Bytes of the arena; empty buffers lie there too, and their kernels want its address."""
        used = any(cell == self.arena_slot for cell, _ in self.places.values())
        return max(self.plan.arena, int(used))

    @property
    def _returned(self) -> list[Callable[[Cells], Array]]:
        found = self.__dict__.get("_readers")
        if found is None:
            found = self.__dict__["_readers"] = [self._reader(n) for n in self.image.outputs]
        return found

    def _quick(self) -> Callable[[Sequence[Array]], list[Array]] | None:
        """The usual program: one run of kernels, whose results are all that it returns."""
        alone = len(self._segments) == 1 and isinstance(self._segments[0], Series)
        own = [s.space for s in self.results] == list(self.image.outputs)
        if not (FAST and alone and own and self._made):
            return None
        series, made, general = self._segments[0], tuple(self._made), self._general
        assert isinstance(series, Series)
        self.quick = series
        room = self._room
        size, arena = (room,), memory.maker(room)
        pack = self._pack if room else struct.Struct(f"{self.arena_slot}P").pack

        single = len(made) == 1
        first, shape_1, dtype_1 = made[0]

        def run(inputs: Sequence[Array]) -> list[Array]:
            outs = (
                [first(shape_1, dtype_1)]
                if single
                else [make(shape, dtype) for make, shape, dtype in made]
            )
            cells = [*inputs, *outs, arena(size, _BYTE)] if size[0] else [*inputs, *outs]
            if pool().run_series(series, pack(*map(id, cells))):
                return general(inputs)
            return outs

        return run


_ALL: WeakSet[Prepared] = WeakSet()


def _tell_all() -> None:
    for p in list(_ALL):
        p.run = p.observed()


# What runs a program while it is observed; the last observer counts.
PROGRAMS: Observed[Callable[[Prepared], Run]] = Observed(
    "programs", "programs on the CPU, those there are and those to come", True, _tell_all
)


def _meet(some: Sequence[Extent], others: Sequence[Extent]) -> bool:
    """Whether any bytes are in both."""
    return any(c == d and b < f and e < a for c, b, a in some for d, e, f in others)


class Copied:
    """A view that is copied, because a kernel reads it."""

    def __init__(self, program: Prepared, name: str):
        self.name = name
        self.source = program._reader(name, program.copies[name])
        self.target = program._reader(name)

    def __call__(self, cells: Cells) -> None:
        np.copyto(self.target(cells), self.source(cells))


@dataclass(frozen=True)
class Hosted:
    """A step that Python runs: what it does with memory, what it calls, and how."""

    access: StepAccess
    run: Hosts
    action: HostAction

    def __call__(self, cells: Cells) -> None:
        self.action(cells)


@dataclass(frozen=True)
class Dropped:
    """Arrays that nothing reads any more."""

    dead: Sequence[int]

    def __call__(self, cells: Cells) -> None:
        for c in self.dead:
            cells[c] = None


__all__ = ["MemoryPlan", "Prepared", "TensorType"]
