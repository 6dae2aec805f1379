"""Contractions as Tile programs: blocks of the result in registers, factors staged in scratch.

    t[m, n] = add over k of a[m, k] * b[k, n]
->  program (m by 504, n by 64): for k by 512: pack b[k, n]; for m by 6:
        for k: acc = fma(a[m:m+6, k], b[k, n:n+64], acc)

The loops are those of a nest (ir/schedule/nests/nest.py), in any order that it allows.  The sum over k is
one chain of fused multiply-adds in each leaf of 512, and leaves join as a tree, as core/folds.py has
it.  Stages that follow the contraction are computed row by row on the finished block.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from tessera.core.dims import Size, larger, smaller, substitute, symbols
from tessera.core.folds import LANES, LEVELS
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.factors import factors, lies_along, period, read_of
from tessera.ir.schedule.ir import Axis, Read, Stage
from tessera.ir.schedule.nests.blocks import has_room
from tessera.ir.schedule.nests.nest import Nest, NestLoop
from tessera.ir.tile.cpu.gemm.chains import Chains
from tessera.ir.tile.cpu.gemm.narrow import WordParts, parts_of
from tessera.ir.tile.cpu.gemm.nest_cursor import (
    LeafSums,
    NestCursor,
    PackedFactor,
    PointRange,
    copied,
    copies_rows,
    leaves_of,
    with_rows,
)
from tessera.ir.tile.cpu.positions import ColumnLine, counts_along, moves_by_one
from tessera.ir.tile.ir import Builder, Kernel, Loop, Memory, Tile

_ROW = 128  # bytes of a row that are packed at once
_JOINED = 4  # leaves of which the last is joined to the others in registers, at most
LOW = (4, 2, 1)  # rows of the blocks that compute what is left of m


def lower_contraction(
    kernel: schedule.Kernel, types: Mapping[str, TensorType], nest: Nest,
    write: type[Contraction] | None = None,
) -> Kernel:  # fmt: skip
    """The Tile program of a contraction and of the stages that follow it."""
    b = Builder("kernel")
    memory = {n: b.parameter(n, types[n]) for n in kernel.inputs()}
    out = {n: b.parameter(n, types[n], writable=True) for n in kernel.outputs}
    return (write or Contraction)(kernel, b, memory, out, nest).kernel()


class Contraction(Chains):
    """A contraction being written, in a kernel of its own or in a group."""

    def __init__(
        self, kernel: schedule.Kernel, builder: Builder, memory: dict[str, Memory],
        out: dict[str, Memory], nest: Nest,
    ):  # fmt: skip
        self.k, self.b, self.memory, self.out = kernel, builder, memory, out
        self.head = kernel.stages[0]
        self.m, self.n = self.head.axes[-2:]
        (self.over,) = self.head.reduced
        self.nest, self.leaf = leaves_of(with_rows(nest), kernel.order, self.over.size)
        self.left, self.right = factors(self.head)
        words = parts_of(self.left, self.right, self.over, memory, self.nest)
        self.parts = WordParts() if kernel.seen else words
        self.period = math.lcm(*(period(t, self.over) for t in (self.left, self.right)))
        self.mr, self.nr = (self.nest.steps(a, "parallel", "serial")[-1] for a in "mn")
        self.high = self.mr
        serial = [i for i, x in enumerate(self.nest.loops) if x.kind == "serial"]
        self.lowest = max((i for i in serial if self.nest.loops[i].axis == "m"), default=-1)
        self.batch = {f"b{i}": a for i, a in enumerate(self.head.axes[:-2])}
        self.rows: dict[str, tuple[Size, Size]] = {}  # of the batch that an instance computes
        self.env: dict[str, Size] = {}
        self.kept: dict[str, Memory] = {}  # scratch for stages that others of a group read
        self.first: Size = 0  # the row of m where that scratch begins

    def kernel(self) -> Kernel:
        for name, a in self.batch.items():
            if not self.nest.steps(name):
                self.env[a.name] = self.b.program(a.size)
        m, n, k = (PointRange(0, a.size, a.size) for a in (self.m, self.n, self.over))
        self.walk(0, NestCursor(m, n, k))
        return self.b.finish()

    # Loops

    def walk(self, i: int, at: NestCursor) -> None:
        """The loops from the i-th on, and what is staged before them."""
        for name, where in self.nest.staged:
            if where == i:
                packed = self.pack(name, at, self.packs_on_the_way(name, i, at))
                at = replace(at, left=packed) if name == "left" else replace(at, right=packed)
        x = self.nest.loops[i] if i < len(self.nest.loops) else None
        if x is None or x.kind in ("unroll", "vector"):
            self.block(at, self.mr)
        elif x.axis in self.batch:
            self.walk_batch(i, x, at)
        elif x.axis == "k":
            self.walk_k(i, x, at)
        elif x.kind == "parallel":
            self.walk(i + 1, self.narrowed(at, x, self.program(x, at)))
        elif i == self.lowest:
            self.walk_rows(i, at)
        else:
            span = at.m if x.axis == "m" else at.n
            with self.b.loop(span.start, span.stop, x.step) as loop:
                self.walk(i + 1, self.narrowed(at, x, loop.variable))

    def packs_on_the_way(self, name: str, i: int, at: NestCursor) -> bool:
        """Whether the first block of rows can pack the right factor while it reads it.

        There must be such a block in every instance, and it must read all that later ones do.
        """
        m, n, most = self.m.size, self.n.size, at.m.most
        if not (isinstance(m, int) and isinstance(n, int) and isinstance(most, int) and most):
            return False
        reads_all = all(x.axis == "n" or x.side == "first" for x in self.k.seen)
        plain = lies_along(self.right, self.n) and self.parts.count == 1 and reads_all
        whole = n % self.nr == 0 and (m % most or most) >= self.mr
        return name == "right" and i == self.lowest and plain and whole and has_room()

    def walk_batch(self, i: int, x: NestLoop, at: NestCursor) -> None:
        """A loop over rows of the batch: shared among instances, or inside one."""
        a = self.batch[x.axis]
        if x.kind == "parallel" and x.step == 1:
            self.env[a.name] = self.b.program(a.size)
        elif x.kind == "parallel":
            start = self.b.program((a.size + x.step - 1) // x.step) * x.step
            self.rows[x.axis] = (start, smaller(start + x.step, a.size))
        elif a.name not in self.env:
            with self.b.loop(*self.rows.get(x.axis, (0, a.size))) as loop:
                self.env[a.name] = loop.variable
                self.walk(i + 1, at)
            return
        self.walk(i + 1, at)

    def program(self, x: NestLoop, at: NestCursor) -> Size:
        """A grid axis: where this instance begins."""
        span = at.m if x.axis == "m" else at.n
        if isinstance(span.most, int) and 0 < span.most <= x.step:
            return span.start
        number: Size = self.b.program((span.stop - span.start + x.step - 1) // x.step)
        return number * x.step + span.start

    def narrowed(self, at: NestCursor, x: NestLoop, start: Size) -> NestCursor:
        """The place inside a loop."""
        span = at.m if x.axis == "m" else at.n
        if isinstance(span.most, int) and span.most <= x.step:
            return at
        whole = isinstance(span.most, int) and span.most % x.step == 0 and span.start == 0
        stop = start + x.step if whole else smaller(start + x.step, span.stop)
        inner = PointRange(start, stop, x.step)
        return replace(at, m=inner) if x.axis == "m" else replace(at, n=inner)

    def walk_rows(self, i: int, at: NestCursor) -> None:
        """The innermost loop over m: whole blocks, then lower ones for the rows that are left."""
        start = at.m.start
        if at.right is not None and not at.right.filled:
            self.walk(i + 1, replace(at, m=PointRange(start, start + self.mr, self.mr)))
            start += self.mr
            rest = replace(at.m, start=start, most=at.m.most - self.mr)
            at = replace(at, m=rest, right=replace(at.right, filled=True))
        known = at.m.most if isinstance(at.m.stop, int) or at.m.stop - start == at.m.most else None
        for height in (self.mr, *(h for h in LOW if h < self.mr)):
            left = None if known is None else (at.m.stop - start)
            if isinstance(left, int) and left < height:
                continue
            stop = (at.m.stop - start) // height * height + start
            with self.b.loop(start, stop, height) as rows:
                v = rows.variable
                inner = replace(at, m=PointRange(v, v + height, height))
                mr, self.mr = self.mr, height
                self.walk(i + 1, inner)
                self.mr = mr
            start = stop
            if isinstance(start, int) and start == at.m.stop:
                return

    def walk_k(self, i: int, x: NestLoop, at: NestCursor) -> None:
        """A loop over k: leaves, strips of a leaf whose sums wait in scratch, or single points."""
        one = isinstance(self.over.size, int) and self.over.size <= self.leaf
        strips = [y.axis == "k" and 1 < y.step < self.leaf for y in self.nest.loops[i:]]
        if at.leaves is None and not (one and not any(strips)):
            self.walk_leaves(i if x.step < self.leaf else i + 1, at)
        elif x.step == 1 or at.leaves is None:
            self.walk(i + 1, replace(at, k=self.counting(at, at.k)))
        elif x.step < self.leaf:
            self.walk_strips(i, x, at)
        else:
            self.walk(i + 1, at)

    def counting(self, at: NestCursor, k: PointRange) -> PointRange:
        """The k that count for the points of this place: both factors are other than 0."""
        for x in self.k.seen:
            own = at.m if x.axis == "m" else at.n
            if x.side == "first":
                k = replace(k, start=smaller(larger(k.start, own.start + x.offset), k.stop))
            else:
                k = replace(k, stop=larger(smaller(k.stop, own.stop + x.offset), k.start))
        return k

    def walk_leaves(self, i: int, at: NestCursor) -> None:
        """Leaf by leaf: their sums are kept in scratch, joined and finished."""
        size = at.k.stop
        count, room = (larger((x + self.leaf - 1) // self.leaf, 1) for x in (size, at.k.most))
        wide = (at.n.most + self.nr - 1) // self.nr * self.nr
        joined = self.joined(i, count)
        high = self.kept_rows(at.m.most)
        kept = self.b.alloc(self.head.dtype, (joined - 1 if joined else room, high, wide))
        with self.b.loop(0, count) as leaf:
            first = leaf.variable * self.leaf
            even = isinstance(size, int) and size > 0 and size % self.leaf == 0
            last = first + self.leaf if even else smaller(first + self.leaf, size)
            span = self.counting(at, PointRange(first, last, self.leaf))
            leaves = LeafSums(kept, at.m.start, at.n.start, leaf.variable, joined=joined)
            self.walk(i, replace(at, k=span, leaves=leaves))
        if not joined:
            self.join(kept, count, room, at)
            self.finish_rows(kept, at)

    def kept_rows(self, most: Size) -> Size:
        """Rows of the scratch for the leaves of at most so many."""
        return most

    def joined(self, i: int, count: Size) -> int:
        """How many leaves there are, if the last one can meet the others in registers, or 0."""
        strips = any(x.axis == "k" and 1 < x.step < self.leaf for x in self.nest.loops[i:])
        few = isinstance(count, int) and 1 < count <= _JOINED and not strips
        return count if few and has_room() else 0  # type: ignore[return-value]

    def walk_strips(self, i: int, x: NestLoop, at: NestCursor) -> None:
        """Strips of a leaf: the chain of a point goes on where the strip before left it."""
        kept = at.leaves
        assert kept is not None
        zero = self.b.full(self.head.dtype, (1, self.nr), 0)
        with (
            self.b.loop(0, at.m.stop - at.m.start) as row,
            self.b.loop(0, at.n.stop - at.n.start, self.nr) as column,
        ):
            place = (
                kept.leaf,
                at.m.start - kept.m + row.variable,
                at.n.start - kept.n + column.variable,
            )
            self.b.store(kept.memory, zero, place, (1, 1, self.nr), axes=(1, 2))
        with self.strips(at.k, x.step) as strip:
            v = strip.variable if self.period == 1 else at.k.start + strip.variable * x.step
            span = PointRange(v, smaller(v + x.step, at.k.stop), x.step)
            self.walk(i + 1, replace(at, k=span, leaves=replace(kept, begun=True)))

    def strips(self, k: PointRange, step: int) -> AbstractContextManager[Loop]:
        """A loop over strips; their numbers where several k share an element, so that it is known which."""
        if self.period == 1:
            return self.b.loop(k.start, k.stop, step)
        return self.b.loop(0, (k.stop - k.start + step - 1) // step)

    def join(self, kept: Memory, count: Size, room: Size, at: NestCursor) -> None:
        """The leaves of every point as a tree, in the place of the first."""
        levels = (room - 1).bit_length() if isinstance(room, int) else LEVELS
        rows = at.m.stop - at.m.start
        columns = at.n.stop - at.n.start
        for level in range(levels):
            step = 1 << level
            with self.b.loop(0, larger(count - step, 0), 2 * step) as pair:
                i = pair.variable
                with self.b.loop(0, rows) as row, self.b.loop(0, columns, self.nr) as column:
                    r, c = row.variable, column.variable
                    low, high = (
                        self.b.load(kept, (leaf, r, c), (1, 1, self.nr), axes=(1, 2))
                        for leaf in (i, i + step)
                    )
                    total = self.b.apply("add", low, high)
                    self.b.store(kept, total, (i, r, c), (1, 1, self.nr), axes=(1, 2))

    def finish_rows(self, kept: Memory, at: NestCursor) -> None:
        """The stages on the finished sums of a block, row by row."""
        with (
            self.b.loop(0, at.n.stop - at.n.start, self.nr) as column,
            self.b.loop(0, at.m.stop - at.m.start) as row,
        ):
            r, c = row.variable, column.variable
            total = self.b.load(kept, (0, r, c), (1, 1, self.nr), axes=(1, 2))
            self.finish(total, at.m.start + r, at.n.start + c)

    # Blocks

    def block(self, at: NestCursor, height: int) -> None:
        """One register block: the chain over the k of this place."""
        m, n = at.m.start, at.n.start
        kept, shape = at.leaves, (1, height, self.nr)
        if kept is not None:
            place = (kept.leaf, m - kept.m, n - kept.n)
        if kept is not None and kept.begun:
            first = self.b.load(kept.memory, place, shape, axes=(1, 2))
        else:
            first = self.b.full(self.head.dtype, shape[1:], 0)
        total = self.chain(at, first, height)
        if kept is None:
            self.finish_block(total, m, n, height)
            return
        if not kept.joined:
            self.b.store(kept.memory, total, place, shape, axes=(1, 2))
            return
        with self.b.loop(0, 1 - kept.last):
            self.b.store(kept.memory, total, place, shape, axes=(1, 2))
        with self.b.loop(0, kept.last):
            self.finish_block(self.tree(kept, total, place, shape), m, n, height)

    def tree(
        self, kept: LeafSums, last: Tile, at: tuple[Size, ...], shape: tuple[int, ...]
    ) -> Tile:
        """The leaves of a block that wait in scratch, and the last one, as a tree."""
        before = range(kept.joined - 1)
        sums = [self.b.load(kept.memory, (i, *at[1:]), shape, axes=(1, 2)) for i in before]
        sums.append(last)
        while len(sums) > 1:
            pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
            sums = [self.b.apply("add", *p) if len(p) == 2 else p[0] for p in pairs]
        return sums[0]

    def finish_block(self, total: Tile, m: Size, n: Size, height: int) -> None:
        """The stages on the finished sums of a block."""
        if len(self.k.stages) == 1:
            self.store(self.head, total, m, n, height)
        else:
            self.by_rows(total, m, n, height)

    def by_rows(self, total: Tile, m: Size, n: Size, height: int) -> None:
        """The stages row by row: a long chain on the whole block would not fit the registers."""
        block = self.b.alloc(self.head.dtype, (height, self.nr))
        self.b.store(block, total, (0, 0), (height, self.nr))
        with self.b.loop(0, height) as row:
            line = self.b.load(block, (row.variable, 0), (1, self.nr))
            self.finish(line, m + row.variable, n)

    # Staging

    def pack(self, name: str, at: NestCursor, on_the_way: bool) -> PackedFactor:
        """A factor in scratch, in the order in which blocks read it and in the dtype of the sum."""
        t, axis = (self.left, self.m) if name == "left" else (self.right, self.n)
        span, width = (at.m, self.mr) if name == "left" else (at.n, self.nr)
        panels = 1 if name == "right" else (at.n.most + self.nr - 1) // self.nr
        if lies_along(t, axis) and self.parts.count == 1 and copies_rows(at.k.most, panels):
            width = copied(width, span.most)
        count = (span.most + width - 1) // width
        deep = (at.k.most + self.parts.count - 1) // self.parts.count
        packed = self.b.alloc(self.head.dtype, (count, deep, width))
        made = PackedFactor(packed, span.start, at.k.start, width, filled=not on_the_way)
        if on_the_way:
            return made
        # Rows that lie along the axis are read in whole vectors and lines, which may be several blocks.
        many = width
        if lies_along(t, axis) and LANES % width == 0:
            many = LANES
        elif lies_along(t, axis) and width % LANES == 0:
            many = max(_ROW * 8 // read_of(t).dtype.bits // width, 1) * width
        elif lies_along(t, axis) and self.parts.count == 1:
            many = math.lcm(width, LANES)
        start = span.start
        for step, tail in ((many, False), (width, True)):
            stop = span.stop if tail else (span.stop - start) // step * step + start
            if not (isinstance(stop, int) and start == stop):
                with self.b.loop(start, stop, step) as block:
                    self.pack_block(name, made, block.variable, at, step, tail)
            start = stop
        return made

    def pack_block(
        self, name: str, to: PackedFactor, start: Size, at: NestCursor, width: int, tail: bool
    ) -> None:
        """So many points of a factor's axis, all the k of this place."""
        t, axis = (self.left, self.m) if name == "left" else (self.right, self.n)
        block = (start - to.first) // to.width
        first = at.k.start
        turns = lies_along(t, self.over) and not tail and to.width % LANES == 0
        if turns and self.parts.count == 1:
            stop = (at.k.stop - first) // LANES * LANES + first
            with self.b.loop(first, stop, LANES) as step:
                self.turn(t, axis, to, (block, start), step.variable)
            first = stop
        if isinstance(at.k.stop, int) and first == at.k.stop:
            return
        groups = self.groups(replace(at.k, start=first))
        whole: Size = groups // self.period * self.period if self.period > 1 else 0
        if self.period > 1:
            with self.b.loop(0, whole // self.period) as turn:
                for i in range(self.period):
                    k = first + turn.variable * self.period + i
                    self.pack_row(name, to, (block, start, k), width, tail)
        if whole == groups:
            return
        with self.b.loop(first + whole, first + groups) as step:
            k = (step.variable - first) * self.parts.count + first
            self.pack_row(name, to, (block, start, k), width, tail)

    def pack_row(
        self, name: str, to: PackedFactor, place: tuple[Size, Size, Size], width: int, tail: bool
    ) -> None:
        """So many points of a factor's axis at one word of k."""
        t, axis = (self.left, self.m) if name == "left" else (self.right, self.n)
        block, start, k = place
        if self.begins(k):
            self.ask_for(t, axis, start, k, width)
        word, count = (k - to.k) // self.parts.count, width // to.width
        # Blocks that are no part of a vector, nor made of some, are copied one by one.
        odd = count if LANES % to.width and to.width % LANES else 1
        for i in range(odd):
            part = width // odd
            row = self.words(t, axis, start + i * part, part, k, tail, vector=True)
            self.b.store(
                to.memory, self.b.reshape(row, (count // odd, to.width)), (block + i, word, 0),
                (count // odd, 1, to.width), axes=(0, 2),
            )  # fmt: skip

    def turn(
        self, t: schedule.Term, axis: Axis, to: PackedFactor, place: tuple[Size, Size], k: Size
    ) -> None:
        """A block of 16 k of a factor that lies along k: rows become columns in registers."""
        block, start = place
        with self.b.loop(0, to.width, LANES) as part:
            at = start + part.variable
            square = self.load_square(t, axis, at, k)
            if square.shape != (LANES, LANES):  # the same at every point of the axis
                square = self.b.broadcast(square, (LANES, LANES))
            square = self.b.transpose(square)
            self.b.store(
                to.memory, square, (block, k - to.k, part.variable), (1, LANES, LANES),
                axes=(1, 2),
            )  # fmt: skip

    # Stages

    def finish(self, total: Tile, m: Size, n: Size) -> None:
        """The stages on one row of a block, and their stores."""
        values = {self.head.name: total}
        for s in self.k.stages:
            if s is not self.head:
                values[s.name] = self.spread(self.term(s.term, values, m, n))
            self.store(s, values[s.name], m, n, 1)

    def store(self, s: Stage, value: Tile, m: Size, n: Size, height: int) -> None:
        """Rows of a stage in its output, if it has one."""
        if s.name in self.kept:
            self.b.store(self.kept[s.name], value, (m - self.first, n), (height, self.nr))
        if s.name in self.out:
            rows = [self.env[a.name] for a in s.axes[:-2]]
            last = len(rows) + 1
            whole = isinstance(self.n.size, int) and self.n.size % self.nr == 0
            self.b.store(
                self.out[s.name], value, (*rows, m, n), (*(1 for _ in rows), height, self.nr),
                axes=(last - 1, last), masked=() if whole else (last,),
            )  # fmt: skip

    def spread(self, t: Tile) -> Tile:
        """A tile of a row of the block."""
        return t if t.shape == (1, self.nr) else self.b.broadcast(t, (1, self.nr))

    # Terms

    def term(self, t: schedule.Term, values: Mapping[str, Tile], m: Size, n: Size) -> Tile:
        """A term of a following stage on the row m of the block, from column n on."""
        match t:
            case schedule.Literal():
                return self.b.full(t.dtype, (1, 1), t.value)
            case schedule.Cast():
                return self.b.cast(self.term(t.operand, values, m, n), t.dtype)
            case schedule.Apply():
                inner = [self.term(o, values, m, n) for o in t.operands]
                return self.b.apply(t.scalar, *inner)
            case schedule.Position():
                return self.position(t.value, m, n)
            case schedule.Read():
                return values[t.source] if t.source in values else self.read(t, values, m, n)
        raise AssertionError(t)

    def position(self, x: Size, m: Size, n: Size) -> Tile:
        """A position on the row m, from column n on."""
        if self.n.name in symbols(x) and not moves_by_one(x, self.n.name):
            numbers = self.line(m, n).numbers(x)
            return self.b.reshape(numbers, (1, *numbers.shape))
        along = self.n.name in symbols(x)
        at = substitute(x, {**self.env, self.m.name: m, self.n.name: n})
        return self.b.index(at, (1, self.nr if along else 1), 1 if along else None)

    def line(self, m: Size, n: Size) -> ColumnLine:
        return ColumnLine(self.b, self.n.name, n, self.nr, {**self.env, self.m.name: m})

    def read(self, r: Read, values: Mapping[str, Tile], m: Size, n: Size) -> Tile:
        """A row of a tensor that a following stage reads, where it lies or where numbers say."""
        memory, env = self.memory[r.source], {**self.env, self.m.name: m, self.n.name: n}
        whole = isinstance(self.n.size, int) and self.n.size % self.nr == 0
        picked: dict[int, Tile] = {}
        along: list[int] = []
        for i, x in enumerate(r.index):
            if isinstance(x, schedule.Term):
                places = self.term(x, values, m, n)
                picked[i] = self.b.reshape(places, places.shape[1:])
                if not whole and counts_along(x, self.n.name):
                    picked[i] = self.line(m, n).clamped(picked[i], memory.type.shape[i])
            elif self.n.name not in symbols(x):
                continue
            elif not along and moves_by_one(x, self.n.name):
                along.append(i)
            else:
                line = self.line(m, n)
                numbers = line.numbers(x)
                picked[i] = numbers if whole else line.clamped(numbers, memory.type.shape[i])
        at = [0 if i in picked else substitute(x, env) for i, x in enumerate(r.index)]
        extent = [self.nr if i in along else 1 for i in range(len(at))]
        masked = () if whole else along
        if picked:
            tile = self.b.gather(memory, picked, at, extent, along, masked)
        else:
            tile = self.b.load(memory, at, extent, axes=along, masked=masked)
        return self.b.reshape(tile, (1, *tile.shape) if tile.shape else (1, 1))
