"""memory: the place of every buffer of a program, planned before it runs.

    t1 = f(x); t2 = g(t1); y = h(t2)   ->   t1: arena + 0; t2: in the place of t1; y: its own memory

A buffer lives from the step that writes it to the last one that reads it or a view of it.  Buffers
that do not live at the same time may share memory: those between the steps lie in one arena, or in
the memory of a result that is written later; a result takes the place of an operand that dies there
when the kernel allows it.  Results that are returned have memory of their own, and so has what the
host allocates.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from operator import attrgetter

import numpy as np

from tessera.core.picture import Plotted
from tessera.core.source import Location
from tessera.core.types import TensorType

LINE = 64  # bytes at whose multiples a buffer of the arena begins


@dataclass(frozen=True)
class StepAccess:
    """What a step does with buffers."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    in_place: frozenset[tuple[str, str]] = frozenset()  # (read, written) that may be one memory
    host: bool = False  # the host allocates what it writes
    temporary: int = 0  # bytes that it needs while it runs, beside its buffers
    copies: bool = False  # it makes what it reads once more, which is nothing to do in one place


@dataclass(frozen=True)
class View:
    """A buffer inside another one: a byte offset and strides in bytes."""

    base: str
    offset: int
    strides: tuple[int, ...]


@dataclass
class Storage:
    """A piece of memory, and the buffers that lie in it one after another."""

    lives: dict[str, tuple[int, int]]  # the first and the last step of each buffer in it
    size: int
    first: int  # the step that writes it; -1 for inputs
    last: int  # the last step that reads it; the number of steps when it is returned
    kind: str  # input, arena, result or host
    space: str = ""  # what it lies in: itself, the arena, or a result that is written later
    offset: int = 0

    @property
    def buffers(self) -> list[str]:
        """The buffers that lie here, one after another."""
        return list(self.lives)


@dataclass(frozen=True)
class MemoryPlan(Plotted):
    """Where the buffers of a program lie at given sizes, and how much memory a run takes."""

    program: str
    storages: tuple[Storage, ...]
    steps: tuple[StepAccess, ...]
    types: Mapping[str, TensorType]
    arena: int

    @cached_property
    def place(self) -> Mapping[str, Storage]:
        """The storage of each buffer that is no view."""
        return {b: s for s in self.storages for b in s.buffers}

    def is_reused(self, name: str) -> bool:
        """Whether something else lies in the memory of an input later, or the input is returned."""
        s = self.place[name]
        return len(s.buffers) > 1 or s.last >= len(self.steps)

    @cached_property
    def results(self) -> int:
        """Bytes that the run allocates for what it returns."""
        return sum(s.size for s in self.storages if s.kind == "result")

    @cached_property
    def beside(self) -> int:
        """The most bytes that the host and the scratch of kernels need at one step."""
        hosted = [s for s in self.storages if s.kind == "host"]
        return max(
            (
                step.temporary + sum(s.size for s in hosted if s.first <= i <= s.last)
                for i, step in enumerate(self.steps)
            ),
            default=0,
        )

    @property
    def peak(self) -> int:
        """Bytes that a run takes beside its inputs; what host calls need inside is not known."""
        return self.arena + self.results + self.beside

    def largest(self, n: int) -> list[Storage]:
        """The n largest pieces of memory that the run allocates."""
        own = [s for s in self.storages if s.kind != "input"]
        return sorted(own, key=lambda s: -s.size)[:n]

    def __str__(self) -> str:
        """A table for people to read."""
        head = (
            f"memory of {self.program}: peak {readable(self.peak)} = arena {readable(self.arena)} + "
            f"results {readable(self.results)} + host and scratch {readable(self.beside)}"
        )
        rows = [("buffer", "type", "bytes", "first", "last", "place")]
        for s in self.storages:
            place = s.kind if s.kind in ("input", "host") else f"{s.space} + {s.offset}"
            for b, (first, last) in s.lives.items():
                rows.append((b, str(self.types[b]), str(s.size), str(first), str(last), place))
        widths = [max(len(r[i]) for r in rows) for i in range(6)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows]
        return "\n".join([head, *(line.rstrip() for line in lines)])


Cells = tuple[list[str], dict[str, tuple[int, int]]]


def numbered(plan: MemoryPlan, inputs: Sequence[str]) -> Cells:
    """What stands in each cell (inputs, results, what the host makes), and the cell and offset of every
    buffer.

    The arena comes in the cell behind the last one.
    """
    results = [s.space for s in plan.storages if s.kind == "result"]
    hosted = [b for s in plan.storages if s.kind == "host" for b in s.buffers]
    names = [*inputs, *results, *hosted]
    cells = {n: i for i, n in enumerate(names)} | {"arena": len(names)}
    places = {}
    for name, s in plan.place.items():
        given = s.kind in ("input", "host")
        places[name] = (cells[s.buffers[0]], 0) if given else (cells[s.space], s.offset)
    return names, places


def plan_memory(
    program: str,
    types: Mapping[str, TensorType],
    steps: Sequence[StepAccess],
    inputs: Sequence[str],
    outputs: Sequence[str],
    views: Mapping[str, View],
    donated: frozenset[str] = frozenset(),
) -> MemoryPlan:
    """Where the buffers lie; types have the sizes of a call, and a view's base is no view."""
    storages = _storages(types, steps, inputs, outputs, views, donated)
    results = [s for s in storages if s.kind == "result"]
    for s in results:
        s.space = s.buffers[-1]
    guests = _guests(storages, results)
    large = sorted((s for s in storages if s.kind == "arena"), key=lambda s: (-s.size, s.first))
    # Those that fit in the arena alone may go first: neither order is better for every program.
    alone_first = sorted(large, key=lambda s: id(s) in guests)
    other = _place(alone_first, results) if guests else None
    end = _place(large, results)
    if other is not None and other < end:
        end = _place(alone_first, results)
    return MemoryPlan(program, tuple(storages), tuple(steps), types, end)


def _guests(storages: Sequence[Storage], results: Sequence[Storage]) -> set[int]:
    """The ids of those that fit in a result that is written after they were read for the last time."""
    late = sorted(results, key=lambda r: r.first)
    room = list(accumulate((r.size for r in reversed(late)), max))[::-1]  # of it and those after it
    found = set()
    for s in storages:
        at = bisect_right(late, s.last, key=lambda r: r.first)
        if s.kind == "arena" and at < len(late) and s.size <= room[at]:
            found.add(id(s))
    return found


def _place(order: Sequence[Storage], results: Sequence[Storage]) -> int:
    """Give each storage its place, one after another; the bytes that the arena takes."""
    arena: list[Storage] = []  # as the lists of guests, in the order of offsets
    guests: dict[str, list[Storage]] = {r.space: [] for r in results}
    end = 0
    for s in order:
        if not _settle(s, arena, "arena", end) and not any(
            s.last < r.first and s.size <= r.size and _settle(s, guests[r.space], r.space, r.size)
            for r in results
        ):
            _settle(s, arena, "arena", None)
            end = max(end, s.offset + s.size)
    return end


def _storages(
    types: Mapping[str, TensorType],
    steps: Sequence[StepAccess],
    inputs: Sequence[str],
    outputs: Sequence[str],
    views: Mapping[str, View],
    donated: frozenset[str],
) -> list[Storage]:
    """The pieces of memory, with those joined whose buffers take each other's place."""
    last = _last_uses(steps, outputs, views)
    made: dict[str, Storage] = {}
    for name in inputs:
        end = last.get(name, -1)
        made[name] = Storage({name: (-1, end)}, size_of(types[name]), -1, end, "input")
    for i, step in enumerate(steps):
        taken: set[int] = set()
        for w in step.writes:
            if w in made:  # another step wrote a part of it
                continue
            end, size = last.get(w, i), size_of(types[w])
            s = None if step.host else _vacated(w, size, i, step, made, views, donated, types)
            if s is not None and id(s) not in taken:
                taken.add(id(s))
                s.lives[w], s.last = (i, end), end
                if s.kind == "arena" and end == len(steps):
                    s.kind = "result"
                made[w] = s
                continue
            kind = "host" if step.host else "result" if end == len(steps) else "arena"
            made[w] = Storage({w: (i, end)}, size, i, end, kind)
    return list({id(s): s for s in made.values()}.values())


def _last_uses(
    steps: Sequence[StepAccess], outputs: Sequence[str], views: Mapping[str, View]
) -> dict[str, int]:
    """The last step that reads or writes each buffer, itself or through a view."""
    last: dict[str, int] = {}
    for i, step in enumerate(steps):
        for name in (*step.reads, *step.writes):
            last[views[name].base if name in views else name] = i
    for name in outputs:
        last[views[name].base if name in views else name] = len(steps)
    return last


def _vacated(
    w: str, size: int, i: int, step: StepAccess, made: Mapping[str, Storage],
    views: Mapping[str, View], donated: frozenset[str], types: Mapping[str, TensorType],
) -> Storage | None:  # fmt: skip
    """The memory of an operand that dies at step i and that the result w may take."""
    roots = [views[r].base if r in views else r for r in step.reads]
    for x, y in sorted(step.in_place):
        if y != w or (x in views and views[x].offset):
            continue
        s = made[views[x].base if x in views else x]  # a view of the whole is as good as it
        free = s.kind == "arena" or (s.kind == "input" and s.buffers[0] in donated)
        alone = sum(made[r] is s for r in roots) == 1
        same = s.size == size == size_of(types[x]) and types[x].dtype is types[w].dtype
        if free and alone and same and s.last == i:
            return s
    return None


def _settle(s: Storage, others: list[Storage], space: str, room: int | None) -> bool:
    """Put s among others, in the tightest gap between those that live at the same time; False if there is
    no room.
    """
    size, first, last = s.size, s.first, s.last
    best, best_gap, at = -1, -1, 0
    for o in others:
        if o.first > last or o.last < first:
            continue
        gap = o.offset - at
        if gap >= size and (best < 0 or gap < best_gap):
            best, best_gap = at, gap
        at = max(at, -(-(o.offset + o.size) // LINE) * LINE)
    if best < 0:
        if room is not None and at + size > room:
            return False
        best = at
    s.space, s.offset = space, best
    insort(others, s, key=_offset)
    return True


_offset = attrgetter("offset")


def size_of(t: TensorType) -> int:
    """Bytes of a tensor of known sizes."""
    return int(np.dtype(t.dtype.np).itemsize * prod(int(n) for n in t.shape))


def readable(n: int) -> str:
    """A number of bytes for people."""
    size = float(n)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{n} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def shortage(plan: MemoryPlan, free: int, locations: Mapping[str, Location | None]) -> str:
    """What to tell when a run needs more memory than there is."""
    largest = []
    for s in plan.largest(3):
        name = s.buffers[-1]
        where = locations.get(name)
        at = f" at {where.file}:{where.line}" if where else ""
        largest.append(f"{plan.types[name]} of {readable(s.size)}{at}")
    return (
        f"{plan.program}: a run needs {readable(plan.peak)} of memory but {readable(free)} are free; its "
        f"largest tensors are {', '.join(largest)}; use a smaller batch, checkpoint what a gradient "
        "keeps, or donate arguments"
    )
