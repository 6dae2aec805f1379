"""What the steps of a loop do, as words in memory that runtime/steps_ir.py walks through.

    scan of (h, x) -> (tanh(w @ h + x), h)
->  moves  h: slot 0; x: xs + row * 64; tanh: slot 1; row of ys: ys + row * 64
    items  series of the kernels of the body; copy of h to the row of ys
    slots  0 <- 1, 1 <- 0

A program of the body becomes a frame: a word for each of its cells, in the place where an array object has
the address of its data, so that the kernels of prepared programs run as they are.  What a loop carries lies
in slots.  A result of the body is written to a spare slot, or to its row of what the loop stacks; a carry
that the body hands on, or has written over, keeps its memory.  Then the slots are permuted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tessera.compile.cpu.bound_program import Copied, Dropped, Hosted, Prepared
from tessera.ir.graph.ir import Array
from tessera.ir.schedule.layout import is_row_major, row_major
from tessera.ir.schedule.memory import LINE, size_of
from tessera.runtime.kernel import CompiledKernel, address
from tessera.runtime.pool import Series
from tessera.runtime.pool_ir import FLAGS, HEAD, TIDY, TYPE
from tessera.runtime.steps_ir import CHECK, CHOICE, COPY, LOOP, MOVES, SERIES

_WORD = 8  # bytes of an address
_OBJECT_WORDS = FLAGS // _WORD + 1
ENDLESS = 1 << 62  # steps of a loop that its test ends


class NotNativeError(Exception):
    """A step needs Python: which, the message says."""


class Ref(NamedTuple):
    """The address of a word."""

    word: int


class Place(NamedTuple):
    """A tensor in memory: a variable that holds an address, a byte offset from there, and strides."""

    variable: Ref
    offset: int
    strides: tuple[int, ...]


Item = tuple[int, Any, Any]
Move = tuple[Ref, Ref, int, int]


@dataclass
class Region:
    """A region of a loop at known sizes, and the arrays that it reads after its operands."""

    program: Prepared
    captured: Sequence[Array]


@dataclass
class Steps:
    """A loop, as its layout needs to know it."""

    body: Region
    test: Region | None  # of a while_loop
    carry: int
    xs: int
    length: int
    reverse: bool


@dataclass
class KernelSteps:
    """A loop that is one kernel (ir/tile/cpu/loops.py): its operands are the carry, xs and the others."""

    kernel: CompiledKernel
    captured: Sequence[Array]
    carry: int
    length: int | None  # of a scan


@dataclass
class Branches:
    """A choice of one of two regions."""

    regions: Sequence[Region]


@dataclass
class Check:
    """(x, ok, ...) -> x, or an error, which a call raises."""

    fail: Callable[[], None]


@dataclass
class LoopWords:
    """Where a loop that is laid out has its variables."""

    record: int
    slots: Sequence[int]  # the first ones are of what it carries
    sizes: Sequence[int]  # bytes of each slot
    xs: Sequence[int]
    ys: Sequence[int]
    outer: Sequence[Sequence[int]]  # the words that each other operand is put in


@dataclass
class Words:
    """The words of a loop and of all that is in it."""

    values: list[int | Ref] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    temporary: list[tuple[int, int]] = field(default_factory=list)  # words, and bytes they point to
    kept: list[Any] = field(default_factory=list)  # what must live as long
    checks: list[Check] = field(default_factory=list)  # the first one has the number 1
    control: int = 0

    def add(self, *values: int | Ref) -> int:
        """The number of the first of some more words."""
        at = len(self.values)
        self.values += values
        return at

    def rows(self, rows: Sequence[Sequence[int | Ref]]) -> Ref:
        """A table."""
        return Ref(self.add(*(x for row in rows for x in row)))

    def constant(self, x: Array) -> int:
        """The address of an array that stays where it is."""
        if not (x.flags.c_contiguous and x.flags.aligned):
            raise NotNativeError("a captured array that is not in order")
        self.kept.append(x)
        return address(x)

    def entered(self, program: Prepared) -> Prepared:
        """What runs in the place of a program."""
        return program

    def noted(
        self, program: Prepared, segment: Any, items: Callable[[], list[Item]]
    ) -> Sequence[Item]:
        """What is done for a segment of a program."""
        return items()

    def finished(self) -> Array:
        """The words with their addresses."""
        made = np.zeros(len(self.values), np.int64)
        base = made.ctypes.data
        for i, x in enumerate(self.values):
            made[i] = base + _WORD * x.word if isinstance(x, Ref) else x
        return made


class Frame:
    """The cells of a program, each an object with a variable where the address of the data stands."""

    def __init__(self, w: Words, count: int):
        self.w = w
        head: list[int | Ref] = [0] * _OBJECT_WORDS
        head[TYPE // _WORD], head[FLAGS // _WORD] = id(np.ndarray), TIDY
        self.objects = [w.add(*head) for _ in range(count)]
        self.cells = Ref(w.add(*(Ref(o) for o in self.objects)))

    def word(self, cell: int) -> int:
        """The word of the variable of a cell."""
        return self.objects[cell] + HEAD // _WORD

    def variable(self, cell: int) -> Ref:
        """The variable of a cell."""
        return Ref(self.word(cell))


class ProgramFrame(Frame):
    """The cells of a prepared program, of which some are bound by who runs it."""

    def __init__(self, w: Words, region: Region):
        program = w.entered(region.program)
        super().__init__(w, program.arena_slot + 1)
        self.program, self.bound = program, set[int]()
        inputs = program.image.inputs
        first = len(inputs) - len(region.captured)
        for cell, x in enumerate(region.captured, first):
            w.values[self.word(cell)] = w.constant(x)
        self.given = len(inputs)

    def place(self, name: str) -> Place:
        """Where a buffer lies."""
        cell, offset, strides = self.program.where(name)
        return Place(self.variable(cell), offset, strides)

    def whole(self, name: str) -> int | None:
        """The cell of a buffer that is all of it, in order."""
        cell, offset, strides = self.program.where(name)
        t = self.program.types[name]
        full = size_of(t) == self.program.storage_of(name).size
        return cell if full and offset == 0 and is_row_major(t, strides) else None

    def free_result(self, name: str) -> int | None:
        """The cell of a result that is not bound yet, which is so from now on; None: it must be copied."""
        cell = self.whole(name)
        is_result = self.program.storage_of(name).kind == "result"
        if cell is None or not is_result or cell in self.bound:
            return None
        self.bound.add(cell)
        return cell

    def settle(self) -> None:
        """Give memory to cells that are not bound."""
        p = self.program
        sizes = {p.where(s.buffers[0])[0] if s.kind == "host" else p.where(s.space)[0]: s.size
                 for s in p.plan.storages if s.kind in ("host", "result")}  # fmt: skip
        sizes[p.arena_slot] = p.room
        for cell, size in sizes.items():
            if cell not in self.bound:
                self.w.temporary.append((self.word(cell), size))

    def items(self) -> list[Item]:
        """What the program does."""
        out: list[Item] = []
        for s in self.program.segments:
            out += self.w.noted(self.program, s, partial(self.done, s))
        return out

    def done(self, s: Any) -> list[Item]:
        """What a segment of the program does."""
        match s:
            case Series():
                self.w.series.append(s)
                return [(SERIES, s.address, self.cells)]
            case Copied():
                view = self.program.copies[s.name]
                cell, offset, _ = self.program.where(view.base)
                source = Place(self.variable(cell), offset + view.offset, view.strides)
                return copy(self.w, self.program.types[s.name], source, self.place(s.name))
            case Hosted():
                return self.hosted(s)
        assert isinstance(s, Dropped), s
        return []

    def hosted(self, s: Hosted) -> list[Item]:
        """A loop or a choice inside of a step."""
        inner = getattr(s.run, "steps", None)
        reads, writes = s.access.reads, s.access.writes
        match inner:
            case Steps():
                return self.loop(lay_out(self.w, inner), inner, reads, writes)
            case KernelSteps():
                return self.kernel(inner, reads, writes)
            case Branches():
                return self.choice(inner, reads, writes)
            case Check():
                return self.check(inner, reads, writes)
        raise NotNativeError(s.access.name)

    def loop(
        self, inner: LoopWords, steps: Steps, reads: Sequence[str], writes: Sequence[str]
    ) -> list[Item]:
        n, stop = steps.carry, steps.carry + steps.xs
        out: list[Item] = []
        moves: list[Move] = []
        for word, name in zip(inner.xs, reads[n:stop], strict=True):
            moves.append(self.shown(word, name, out))
        for words, name in zip(inner.outer, reads[stop:], strict=True):
            moves += [self.shown(word, name, out) for word in words]
        for word, name in zip(inner.ys, writes[n:], strict=True):
            place = self.place(name)
            moves.append((Ref(word), place.variable, place.offset, 0))
        out.append(self.moves(moves))
        self.w.temporary += zip(inner.slots, inner.sizes, strict=True)
        out += self.filled(inner.slots, reads[:n])
        out.append((LOOP, Ref(inner.record), 0))
        return out + self.emptied(inner.slots, writes[:n])

    def filled(self, slots: Sequence[int], names: Sequence[str]) -> list[Item]:
        """Copies of what a loop begins with."""
        items: list[Item] = []
        for slot, name in zip(slots, names, strict=False):
            t = self.program.types[name]
            items += copy(self.w, t, self.place(name), Place(Ref(slot), 0, row_major(t)))
        return items

    def emptied(self, slots: Sequence[int], names: Sequence[str]) -> list[Item]:
        """Copies of what a loop ends with."""
        items: list[Item] = []
        for slot, name in zip(slots, names, strict=False):
            t = self.program.types[name]
            items += copy(self.w, t, Place(Ref(slot), 0, row_major(t)), self.place(name))
        return items

    def shown(self, word: int, name: str, items: list[Item]) -> Move:
        """The move that shows a buffer to what runs inside, in order; a copy where it is not."""
        t, place = self.program.types[name], self.place(name)
        if not is_row_major(t, place.strides):
            held = self.w.add(0)
            self.w.temporary.append((held, size_of(t)))
            ordered = Place(Ref(held), 0, row_major(t))
            items += copy(self.w, t, place, ordered)
            place = ordered
        return Ref(word), place.variable, place.offset, 0

    def moves(self, moves: Sequence[Move]) -> Item:
        table = self.w.rows(moves)
        return MOVES, Ref(self.w.add(table, len(moves))), 0

    def kernel(self, steps: KernelSteps, reads: Sequence[str], writes: Sequence[str]) -> list[Item]:
        """A loop that is one kernel: one launch, or launches until it does not go on."""
        w, n = self.w, steps.carry
        scan = steps.length is not None
        threads = self.program.threads
        job = steps.kernel.job({"steps": steps.length} if steps.length is not None else {}, threads)
        count = len(reads) + len(steps.captured) + len(writes) + (not scan)
        frame = Frame(w, count)
        series = Series([[(job, [(i, 0) for i in range(count)])]])
        w.kept.append(series)
        w.series.append(series)
        items: list[Item] = []
        run: Item = (SERIES, series.address, frame.cells)
        given = range(n, len(reads)) if not scan else range(len(reads))
        moves = [self.shown(frame.word(i), reads[i], items) for i in given]
        for i, x in enumerate(steps.captured, len(reads)):
            w.values[frame.word(i)] = w.constant(x)
        first = len(reads) + len(steps.captured)
        if scan:
            for i, name in enumerate(writes, first):
                place = self.place(name)
                moves.append((frame.variable(i), place.variable, place.offset, 0))
            return [*items, self.moves(moves), run]
        sizes = [size_of(self.program.types[name]) for name in writes]
        begin = w.add(*[0] * (2 * n))
        slots = range(begin, begin + 2 * n)
        w.temporary += zip(slots, [*sizes, *sizes], strict=True)
        going = frame.variable(count - 1)
        w.temporary.append((going.word, 1))
        own = [(frame.variable(i), Ref(slots[i]), 0, 0) for i in range(n)]
        own += [(frame.variable(first + i), Ref(slots[n + i]), 0, 0) for i in range(n)]
        yes = np.ones((), np.bool_)
        begun = Place(Ref(w.add(w.constant(yes))), 0, ())
        body = Ref(w.rows([run]).word)
        order = w.rows([[(i + n) % (2 * n) for i in range(2 * n)]])
        record = w.add(
            w.rows(own), len(own), 0, 0, going, 0, body, 1,
            Ref(begin), order, Ref(w.add(*[0] * (2 * n))), 2 * n, ENDLESS, 0, Ref(w.control),
        )  # fmt: skip
        items += [self.moves(moves), *block(w, 1, begun, Place(going, 0, ()))]
        items += self.filled(slots[:n], reads[:n])
        items.append((LOOP, Ref(record), 0))
        return items + self.emptied(slots[:n], writes)

    def check(self, check: Check, reads: Sequence[str], writes: Sequence[str]) -> list[Item]:
        w, ok = self.w, self.place(reads[1])
        w.checks.append(check)
        record = w.add(ok.variable, ok.offset, len(w.checks), Ref(w.control))
        name = writes[0]
        given = copy(w, self.program.types[name], self.place(reads[0]), self.place(name))
        return [(CHECK, Ref(record), 0), *given]

    def choice(self, branches: Branches, reads: Sequence[str], writes: Sequence[str]) -> list[Item]:
        pred, *rest = reads
        lists: list[int | Ref] = []
        for region in branches.regions:
            frame, items = ProgramFrame(self.w, region), list[Item]()
            moves = [self.shown(frame.word(i), name, items) for i, name in enumerate(rest)]
            after: list[Item] = []
            for name, own in zip(writes, region.program.image.outputs, strict=True):
                t, target = self.program.types[name], self.place(name)
                cell = frame.free_result(own)
                if cell is None:
                    after += copy(self.w, t, frame.place(own), target)
                else:
                    moves.append((frame.variable(cell), target.variable, target.offset, 0))
            items += [self.moves(moves), *frame.items(), *after]
            frame.settle()
            lists += [self.w.rows(items), len(items)]
        place = self.place(pred)
        record = self.w.add(place.variable, place.offset, *lists)
        return [(CHOICE, Ref(record), 0)]


def block(w: Words, size: int, source: Place, target: Place) -> list[Item]:
    """A copy of bytes that lie together."""
    record = w.add(source.variable, source.offset, target.variable, target.offset, size, 0, 0)
    return [(COPY, Ref(record), 0)]


def copy(w: Words, t: Any, source: Place, target: Place) -> list[Item]:
    """A copy of a tensor from a place to another."""
    if size_of(t) == 0:
        return []
    together = np.dtype(t.dtype.np).itemsize
    dims = [d for d in zip(t.shape, source.strides, target.strides, strict=True) if d[0] != 1]
    while dims and dims[-1][1] == dims[-1][2] == together:
        together *= dims.pop()[0]
    record = w.add(
        source.variable,
        source.offset,
        target.variable,
        target.offset,
        together,
        w.rows(dims),
        len(dims),
    )
    return [(COPY, Ref(record), 0)]


def lay_out(w: Words, loop: Steps) -> LoopWords:
    """Lay out a loop."""
    body = loop.body.program
    n, names = loop.carry, body.image.outputs
    frame = ProgramFrame(w, loop.body)
    sizes = [size_of(body.types[x]) for x in body.image.inputs[:n]]
    kept, sources, spare = set[int](), list[int](), list[int]()
    bound: list[tuple[int, int | None, str]] = []  # slot, the cell that it is or None: copied, name
    for name in names[:n]:
        cell = frame.whole(name)
        if cell is not None and cell < n and cell not in kept:
            kept.add(cell)
            sources.append(cell)
            continue
        slot = n + len(spare)
        bound.append((slot, frame.free_result(name), name))
        sources.append(slot)
        spare.append(size_of(body.types[name]))
    order = [*sources, *_freed(sizes, kept, spare)]
    slots = w.add(*[0] * max(1, len(order)))
    moves: list[Move] = [(frame.variable(i), Ref(slots + i), 0, 0) for i in range(n)]
    after: list[Item] = []
    for slot, cell, name in bound:
        if cell is not None:
            moves.append((frame.variable(cell), Ref(slots + slot), 0, 0))
        else:
            t = body.types[name]
            after += copy(w, t, frame.place(name), Place(Ref(slots + slot), 0, row_major(t)))
    xs = [w.add(0) for _ in range(loop.xs)]
    for i, word in enumerate(xs, n):
        step = size_of(body.types[body.image.inputs[i]])
        moves.append((frame.variable(i), Ref(word), 0, step))
    ys = [w.add(0) for _ in names[n:]]
    for word, name in zip(ys, names[n:], strict=True):
        t = body.types[name]
        cell = frame.free_result(name)
        row = Ref(w.add(0)) if cell is None else frame.variable(cell)
        moves.append((row, Ref(word), 0, size_of(t)))
        if cell is None:
            after += copy(w, t, frame.place(name), Place(row, 0, row_major(t)))
    items = [*frame.items(), *after]
    frame.settle()
    first, last = n + loop.xs, frame.given - len(loop.body.captured)
    outer = [[frame.word(i)] for i in range(first, last)]
    test: Sequence[int | Ref] = (0, 0, 0, 0)
    if loop.test is not None:
        test = _test(w, loop, slots, moves, outer)
    record = w.add(
        w.rows(moves), len(moves), *test, w.rows(items), len(items), Ref(slots), w.rows([order]),
        Ref(w.add(*[0] * max(1, len(order)))), len(order), loop.length, int(loop.reverse), Ref(w.control),
    )  # fmt: skip
    every = [slots + i for i in range(len(order))]
    return LoopWords(record, every, [*sizes, *spare], xs, ys, outer)


def _freed(sizes: Sequence[int], kept: set[int], spare: Sequence[int]) -> list[int]:
    """What each spare slot becomes: the memory of a carry of its size that is not handed on."""
    left = [i for i in range(len(sizes)) if i not in kept]
    out = []
    for size in spare:
        found = next((i for i in left if sizes[i] == size), None)
        assert found is not None, "what is carried keeps its type"
        left.remove(found)
        out.append(found)
    return out


def _test(
    w: Words, loop: Steps, slots: int, moves: list[Move], outer: Sequence[list[int]]
) -> Sequence[int | Ref]:
    """The test of a while_loop: its items, and where its result lies."""
    assert loop.test is not None
    frame = ProgramFrame(w, loop.test)
    moves += [(frame.variable(i), Ref(slots + i), 0, 0) for i in range(loop.carry)]
    for i, words in enumerate(outer, loop.carry):
        words.append(frame.word(i))
    items = frame.items()
    frame.settle()
    going = frame.place(loop.test.program.image.outputs[0])
    return w.rows(items), len(items), going.variable, going.offset


def placed(sizes: Sequence[int]) -> tuple[Array, int]:
    """Where pieces of such sizes begin in one block, and its size."""
    lined = [-(-s // LINE) * LINE for s in sizes]
    ends = np.cumsum([0, *lined])
    return ends[:-1], int(ends[-1])
