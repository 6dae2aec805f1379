"""Nests: loops over the elements of large tiles, with all that can be done in them at once.

    e = exp(x); s = sum(e); store(e / s)   ->   nest 1: keep e, fold s;  nest 2: store e / s

Stores, folds and values to keep wait as tasks.  Tasks over the same elements share a nest unless one
needs what another only has at its end.  What only tasks of its own nest read is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

from tessera.core.dims import Size, larger, smaller
from tessera.core.dtype import DType
from tessera.core.folds import LANES
from tessera.core.processor import Registers
from tessera.core.types import TensorType
from tessera.ir.tile.cpu.legalize.large import fits
from tessera.ir.tile.cpu.legalize.ranges import loop_range
from tessera.ir.tile.cpu.legalize.subtiles import (
    Axes,
    Box,
    Boxes,
    MemoryEnd,
    Part,
    ScratchTile,
    memory_of,
    wide_axes,
)
from tessera.ir.tile.ir import Kernel, Memory, Operation, Tile

_WIDE = 4 * LANES  # elements of a part
_LONG = 8 * LANES  # elements of rows that are worth going through alone


def has_any_order(scalar: str, dtype: DType) -> bool:
    """Whether a fold has the same bits in any order."""
    return scalar in ("max", "min") or dtype.kind in "bui"


@dataclass(frozen=True)
class ElementTask:
    """What a nest does with the elements of a tile: it stores or folds them, or else keeps them."""

    tile: Tile
    store: Operation | None = None
    fold: Operation | None = None

    @property
    def keeps(self) -> bool:
        """Whether the tile goes to scratch of its own."""
        return self.store is None and self.fold is None


@dataclass
class ElementNest:
    """Tasks over elements of one shape."""

    shape: tuple[int, ...]
    tasks: list[ElementTask] = field(default_factory=list)
    reads: set[Memory] = field(default_factory=set)
    writes: set[Memory] = field(default_factory=set)

    def takes(self, task: ElementTask) -> bool:
        """Whether a task goes through the same elements, along the same axis if it folds them."""
        axes = {t.fold.attributes["axis"] for t in (*self.tasks, task) if t.fold is not None}
        return self.shape == task.tile.shape and len(axes) < 2


class Nests(Boxes):
    """Collects tasks and writes them as loops."""

    registers: Registers  # of the processor
    turned_products: frozenset[Operation] = frozenset()  # whose vectors lie along their rows
    orders: Mapping[Tile, Axes] = MappingProxyType({})  # how products want their factors to lie

    def __init__(self, kernel: Kernel):
        super().__init__(kernel)
        self.waiting: list[ElementNest] = []
        self.wanted: set[Tile] = set()  # tiles that this operation or a later one reads

    def add(self, task: ElementTask) -> None:
        """Have a task done in a nest that waits, if it can be, else in one of its own."""
        reads = self.memories_of(task.tile)
        writes = set() if task.store is None else {memory_of(task.store)}
        found, first = set(self.leaves(task.tile)), 0
        for i, nest in enumerate(self.waiting):
            clash = reads & nest.writes or writes & (nest.reads | nest.writes)
            ends = {t.fold.results[0] for t in nest.tasks if t.fold is not None}
            kept = {t.tile for t in nest.tasks if t.keeps}
            if clash or not ends.isdisjoint(found):
                first = i + 1
            elif not kept.isdisjoint(found):
                first = i if nest.shape == task.tile.shape else i + 1
        fitting = [n for n in self.waiting[first:] if n.takes(task)]
        nest = fitting[0] if fitting else ElementNest(task.tile.shape)
        if not fitting:
            self.waiting.append(nest)
        nest.tasks.append(task)
        nest.reads |= reads
        nest.writes |= writes

    def keep(self, t: Tile) -> None:
        """Have a tile computed once and kept in scratch."""
        waits = any(task.tile is t and task.keeps for n in self.waiting for task in n.tasks)
        if t not in self.kept and t not in self.tiles and not waits:
            self.add(ElementTask(t))

    def flush(self) -> None:
        """Write the nests that wait."""
        waiting, self.waiting = self.waiting, []
        for i, nest in enumerate(waiting):
            later = {task.tile for n in waiting[i + 1 :] for task in n.tasks}
            needed = self.needed(nest, self.wanted | later)
            nest.tasks = [t for t in nest.tasks if not t.keeps or t.tile in needed]
        todo = [n for n in waiting if n.tasks]
        while todo:
            count = self.row_nests(todo)
            if count > 1:
                self.by_rows(todo[:count])
            else:
                writer = NestWriter(self, todo[0])
                with self.scope():
                    self.write(writer, {})
                self.end(writer)
            todo = todo[max(count, 1) :]

    def end(self, writer: NestWriter) -> None:
        """Have what a nest made where it is read."""
        for t, k in writer.kept.items():
            if wide_axes(t.shape):
                self.kept[t] = k
            else:  # one element is at home in a register
                self.tiles[t] = self.b.load(k.memory, [0] * len(t.shape), t.shape)

    # Nests row by row

    def row_nests(self, nests: Sequence[ElementNest]) -> int:
        """How many of the first nests can go through long rows together, one row after the other."""
        rows, made, count = nests[0].shape[:1], set[Tile](), 0
        for nest in nests:
            folds = [t.fold for t in nest.tasks if t.fold is not None]
            alike = nest.shape[:1] == rows and len(nest.shape) == 2 and rows != (1,)
            if not alike or any(f.attributes["axis"] == 0 for f in folds):
                break
            if not all(self.keeps_rows(t.tile, made) for t in nest.tasks):
                break
            made |= {t.tile for t in nest.tasks if t.keeps} | {f.results[0] for f in folds}
            count += 1
        long = [n.shape[1] for n in nests[:count] if n.shape[1] >= _LONG]
        return count if len(long) > 1 else 0

    def keeps_rows(self, t: Tile, made: set[Tile]) -> bool:
        """Whether a row of a tile needs nothing but that row of what other nests make."""
        if self.fast_axes(t) & {0} and t.shape[1] > 1:
            return False
        todo, found = [t], {t}
        while todo:
            x = todo.pop()
            if x in made or x not in self.made or x in self.kept:
                continue
            op = self.made[x]
            same = all(y.shape[:1] in ((), (1,), x.shape[:1]) for y in op.operands)
            if not made.isdisjoint(self.leaves(x)) and not (
                op.name in ("apply", "cast", "broadcast") and same
            ):
                return False
            new = [y for y in op.operands if y not in found]
            found.update(new)
            todo += new
        return True

    def by_rows(self, nests: Sequence[ElementNest]) -> None:
        """Nests whose loops over rows are one: a row is still in the cache when it is read again."""
        writers = []
        for nest in nests:
            writers.append(NestWriter(self, nest))
            self.kept |= writers[-1].kept
        ends = [e for w in writers for e in w.ends().get(0, ())]

        def row(part: Part) -> None:
            for w in writers:
                for t in w.kept:
                    self.kept.pop(t, None)
            for w in writers:
                with self.scope():
                    self.write(w, {0: part})
                self.kept |= w.kept

        self.along(nests[0].shape[0], 1, row, list(dict.fromkeys(ends)))

    def needed(self, nest: ElementNest, readers: Iterable[Tile]) -> set[Tile]:
        """Which of the tiles that a nest is to keep are read when it has ended."""
        kept = {t.tile for t in nest.tasks if t.keeps}
        todo, found = list(readers), set(readers)
        while todo:
            x = todo.pop()
            if x in self.made and x not in self.kept and x not in kept:
                new = [y for y in self.made[x].operands if y not in found]
                found.update(new)
                todo += new
        return kept & found

    def write(self, writer: NestWriter, fixed: Mapping[int, Part]) -> None:
        """The loops of a nest, but for the axes along which a part is given."""
        raise AssertionError(writer)

    def scratch(self, t: Tile, order: Axes | None = None) -> ScratchTile:
        """Memory for a tile, with its axes in an order."""
        order = tuple(range(len(t.shape))) if order is None else order
        return ScratchTile(self.b.alloc(t.dtype, tuple(t.shape[i] for i in order)), order)

    # Loops

    @contextmanager
    def counting(self, start: int, stop: int, step: int = 1) -> Iterator[Size]:
        """A loop whose body reads anew; none where the body comes once."""
        if stop - start <= step:
            with self.scope():
                yield start
            return
        with self.b.loop(start, stop, step) as loop, self.scope():
            self.ranges[loop.name] = loop_range(start, stop, step, {})
            yield loop.variable

    def along(
        self, size: int, step: int, body: Callable[[Part], None], ends: Sequence[MemoryEnd] = ()
    ) -> None:
        """Whole parts of an axis, then what is left of it; those inside of memory come first."""
        whole, begin = size // step * step, self.inside_parts(size, step, body, ends)
        if not isinstance(begin, int):
            with self.b.loop(begin, whole, step) as loop, self.scope():
                self.ranges[loop.name] = (0, max(whole - step, 0))
                body((loop.variable, step))
        elif begin < whole:
            with self.counting(begin, whole, step) as start:
                body((start, step))
        if whole < size:
            with self.scope():
                body((whole, size - whole))

    def inside_parts(
        self, size: int, step: int, body: Callable[[Part], None], ends: Sequence[MemoryEnd]
    ) -> Size:
        """The parts of an axis that are known to lie inside of memory, and where they stop."""
        if not ends:
            return 0
        room: Size = size
        for e in ends:
            room = smaller(room, e.size - e.first)
        stop = larger(room, 0) // step * step
        if stop == 0:
            return 0
        with self.b.loop(0, stop, step) as loop, self.scope():
            self.ranges[loop.name] = (0, size // step * step - step)
            before = len(self.facts)
            self.facts += [MemoryEnd(e.first + loop.variable, e.size, step) for e in ends]
            body((loop.variable, step))
            del self.facts[before:]
        return stop

    def over(
        self, shape: Sequence[int], steps: Mapping[int, int], body: Callable[[Box], None],
        ends: Mapping[int, Sequence[MemoryEnd]] | None = None,
        fixed: Mapping[int, Part] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """All parts of a tile in row-major order, as far as the steps of its axes go.

        Axes without a step are left alone: there the box begins at 0 and has one element.
        """
        known = ends or {}

        def inner(box: Box) -> None:
            axis = len(box)
            if axis == len(shape):
                body(box)
            elif axis in fixed:
                inner((*box, fixed[axis]))
            elif axis in steps:
                # Where rows are already outside, columns are not looked at any more.
                here = known.get(axis, ()) if len(self.facts) >= opened(axis) else ()
                self.along(shape[axis], steps[axis], lambda part: inner((*box, part)), here)
            else:
                inner((*box, (0, 1)))

        def opened(axis: int) -> int:
            return already + sum(
                len(known.get(i, ())) for i in range(axis) if i in steps and i not in fixed
            )

        already = len(self.facts)
        inner(())


class NestWriter:
    """A nest being written."""

    def __init__(self, outer: Nests, nest: ElementNest):
        self.x, self.nest = outer, nest
        self.folds = [(t.tile, t.fold) for t in nest.tasks if t.fold is not None]
        self.rest = [t for t in nest.tasks if t.fold is None]
        self.axis: int | None = self.folds[0][1].attributes["axis"] if self.folds else None
        fast = self.fast_axes()
        wide = wide_axes(nest.shape)
        vector = fast.pop() if len(fast) == 1 else (wide or [0])[-1]
        # The axes of parts in registers: vectors lie along the last one.
        self.axes: Axes = tuple(sorted(wide, key=lambda i: (i == vector, i)))
        self.turned = sorted(fast - {vector})[-1:]  # another axis along which something lies
        self.kept = self.scratches()

    def fast_axes(self) -> set[int]:
        """The axes along which what is read and stored lies in vectors."""
        fast = {i for t in self.nest.tasks for i in self.x.fast_axes(t.tile)}
        for t in self.rest:
            if t.keeps and t.tile in self.x.orders:
                fast.add(self.x.orders[t.tile][-1])
            if t.store is not None:
                last = memory_of(t.store).type.rank - 1
                fast |= {i for i, a in enumerate(t.store.attributes["axes"]) if a == last}
        return fast & set(wide_axes(self.nest.shape))

    def scratches(self) -> dict[Tile, ScratchTile]:
        """Scratch for what is kept, with vectors where the nest has them, and for results of folds."""
        units = [i for i in range(len(self.nest.shape)) if i not in self.axes]
        order = (*units, *self.axes)
        kept = {
            t.tile: self.x.scratch(t.tile, self.x.orders.get(t.tile, order))
            for t in self.nest.tasks
            if t.keeps
        }
        for _, fold in self.folds:
            kept[fold.results[0]] = self.x.scratch(fold.results[0])
        return kept

    def ends(self) -> dict[int, list[MemoryEnd]]:
        """Where the memories end that are masked along the axes of the nest."""
        found: dict[int, list[MemoryEnd]] = {}
        for t in self.nest.tasks:
            ops = list(self.x.loads_beside(t.tile))
            for op in ops if t.store is None else [*ops, t.store]:
                a, shape = op.attributes, memory_of(op).type.shape
                at = self.x.moved(a["at"])
                for i, axis in enumerate(a["axes"]):
                    end = MemoryEnd(at[axis], shape[axis], 0)
                    fresh = axis in a["masked"] and i in self.axes and end not in found.get(i, ())
                    sure = self.x.is_inside(at[axis], a["extent"][axis], shape[axis])
                    if fresh and not sure and self.x.begins_inside(at[axis]):
                        found.setdefault(i, []).append(end)
        return found

    def side(self) -> int:
        """Rows and columns of a part that is turned: the most whose tiles of any task live in registers."""
        widest = max((t.tile.type.dtype for t in self.nest.tasks), key=lambda d: d.bits)
        squares = (
            n for n in (LANES, LANES // 2) if fits(TensorType(widest, (n, n)), self.x.registers)
        )
        return next(squares, LANES // 4)

    def steps(self) -> dict[int, int]:
        """How far a part goes along each axis."""
        shape, axes = self.nest.shape, self.axes
        if not axes:
            return {}
        last, steps = axes[-1], dict.fromkeys(axes, 1)
        if self.turned and not self.folds:
            side = self.side()
            return {**steps, self.turned[0]: side, last: side}
        if self.axis is not None and self.axis != last:
            loose = all(has_any_order(f.attributes["scalar"], t.dtype) for t, f in self.folds)
            return {**steps, last: _WIDE if loose else LANES}
        steps[last] = min(shape[last], _WIDE)
        if len(axes) > 1 and shape[last] < _WIDE // 2:
            steps[axes[-2]] = min(shape[axes[-2]], _WIDE // (2 * shape[last]), LANES)
        return steps

    def visit(self, box: Box) -> list[Tile]:
        """All tasks on a part; the parts of tiles that are folded."""
        for t in self.rest:
            value = self.x.read_whole(t.tile, box, self.axes)
            if t.store is None:
                self.put(t.tile, value, box)
                continue
            a, m = t.store.attributes, self.x.memories[memory_of(t.store)]
            at, extent = self.x.place(t.store, box)
            axes = tuple(a["axes"][i] for i in self.axes)
            self.x.store_box(m, value, at, extent, axes, a["masked"])
        return [self.x.read_whole(tile, box, self.axes) for tile, _ in self.folds]

    def put(self, t: Tile, value: Tile, box: Box) -> None:
        """A part of a tile to its scratch."""
        k = self.kept[t]
        self.x.store_box(k.memory, value, *self.x.in_scratch(k, box, self.axes), ())

    def end_folds(self, box: Box, totals: Sequence[Tile]) -> None:
        """Results of folds to their scratch."""
        own = tuple((0, 1) if i == self.axis else part for i, part in enumerate(box))
        for (_, fold), total in zip(self.folds, totals, strict=True):
            self.put(fold.results[0], total, own)
