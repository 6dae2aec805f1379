"""Contractions in matrix registers as Tile programs: packed words, and one product for each block.

    t[m, n] = add over k of i32(a[m, k]) * i32(b[k, n])
->  program (m by 256, n by 256): pack words of a and b; for n by 32: for m by 32:
        for k by 64: acc = dot_words(a[m:m+32, k:k+64], b[k:k+64, n:n+32], acc)

Rows and columns past the end are computed and dropped; past the last k the words are zeros.  The loops are
those of a nest (ir/schedule/nests/matrix.py); batches, instances and the stages that follow are those of any
contraction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tessera.core.dims import Size, smaller, symbols
from tessera.core.dot_words import PARTS
from tessera.core.dtype import FORMATS, i32
from tessera.core.folds import LANES, WHOLE
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.factors import lies_along, read_of
from tessera.ir.schedule.ir import Axis, Read, reads
from tessera.ir.schedule.nests.matrix import SIDE, grain, kinds
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.tile.cpu.gemm import prefetch
from tessera.ir.tile.cpu.gemm.contraction import Contraction
from tessera.ir.tile.cpu.gemm.narrow import WordParts
from tessera.ir.tile.cpu.gemm.nest_cursor import (
    NestCursor,
    PackedFactor,
    PointRange,
    with_rows,
    without,
)
from tessera.ir.tile.ir import Builder, Memory, Tile

_ROW = 128  # bytes of rows of the right factor that are packed at once
_AHEAD = 16  # rows of it that are asked for before they are read


@dataclass(frozen=True)
class _WordBox:
    """Points of an axis by so many k, those along k last unless it is turned."""

    axis: Axis
    at: Size
    width: int
    k: Size
    deep: int
    masks: tuple[bool, bool]  # whether points and k may lie past the end
    turned: bool


class MatrixContraction(Contraction):
    """A contraction in matrix registers being written."""

    def __init__(
        self, kernel: schedule.Kernel, builder: Builder, memory: dict[str, Memory],
        out: dict[str, Memory], nest: Nest,
    ):  # fmt: skip
        super().__init__(kernel, builder, memory, out, nest)
        found = kinds(kernel)
        assert found is not None, kernel
        self.kinds, self.step = [FORMATS[k] for k in found], grain(kernel)
        self.parts, self.leaf = WordParts(), WHOLE
        nest, size = with_rows(nest), self.over.size
        strips = [i for i, x in enumerate(nest.loops) if x.axis == "k"]
        if isinstance(size, int) and size <= nest.loops[strips[0]].step:
            self.nest = without(nest, strips)
        else:
            self.nest = without(nest, strips[-1:])
        serial = [i for i, x in enumerate(self.nest.loops) if x.kind == "serial"]
        self.lowest = max(i for i in serial if self.nest.loops[i].axis == "m")

    # Loops

    def packs_on_the_way(self, name: str, i: int, at: NestCursor) -> bool:
        return False

    def walk_rows(self, i: int, at: NestCursor) -> None:
        """The innermost loop over m, in blocks of which the last may have rows that nobody wants."""
        with self.b.loop(at.m.start, at.m.stop, self.mr) as rows:
            v = rows.variable
            self.walk(i + 1, replace(at, m=PointRange(v, smaller(v + self.mr, at.m.stop), self.mr)))

    def kept_rows(self, most: Size) -> Size:
        return (most + self.mr - 1) // self.mr * self.mr

    # Blocks

    def block(self, at: NestCursor, height: int) -> None:
        """One block of sums: the product over the k of this place."""
        m, n, kept = at.m.start, at.n.start, at.leaves
        if kept is None:
            self.finish_sums(at)
            return
        place = (kept.leaf, m - kept.m, n - kept.n)
        shape = (1, self.mr, self.nr)
        first = self.b.load(kept.memory, place, shape, axes=(1, 2))
        self.b.store(kept.memory, self.product(at, first), place, shape, axes=(1, 2))

    def product(self, at: NestCursor, first: Tile | None = None) -> Tile:
        """The words of two packed factors multiplied, added to what the sums begin with."""
        right = at.right
        assert right is not None
        column, begin = (at.n.start - right.first) // self.nr, (at.k.start - right.k) // self.step
        count = (at.k.stop - at.k.start + self.step - 1) // self.step
        if first is None:
            first = self.b.full(self.head.dtype, (self.mr, self.nr), 0)
        with self.b.loop(0, count, 1, [first]) as step:
            i = step.variable
            if at.leaves is None:
                self.ask_rows(at, i, count)
            a = self.rows_at(at, at.k.start + i * self.step)
            b = self.b.load(
                right.memory, (column, i + begin, 0, 0), (1, 1, SIDE, self.nr), axes=(2, 3)
            )
            step.carry(self.b.dot_words(a, b, step.carried[0], *self.kinds))
        return step.results[0]

    def rows_at(self, at: NestCursor, k: Size) -> Tile:
        """The rows of a block at one step of k: packed, or as they lie."""
        p, m = at.left, at.m.start
        if p is None:
            masks = (False, False)
            return self.b.words(
                self.narrow(self.left, self.m, m, self.mr, k, self.step, masks, False), 1
            )
        place = ((m - p.first) // self.mr, (k - p.k) // self.step, 0, 0)
        return self.b.load(p.memory, place, (1, 1, self.mr, SIDE), axes=(2, 3))

    def ask_rows(self, at: NestCursor, i: Size, count: Size) -> None:
        """Ask for a piece of what the block is finished with, in each step of its product."""
        env = {**self.env, self.m.name: at.m.start, self.n.name: at.n.start}
        piece = prefetch.pieces(self.mr, self.nr, count).of_turn(i)
        for x in prefetch.asks(self.k, self.memory, self.out, env):
            x.piece(self.b, piece)

    def finish_sums(self, at: NestCursor) -> None:
        """The stages on the sums of a block: stored as they are, or row by row."""
        m, n = at.m.start, at.n.start
        sizes = (self.m.size, self.mr), (self.n.size, self.nr)
        whole = all(isinstance(size, int) and size % block == 0 for size, block in sizes)
        if whole and len(self.k.stages) == 1:
            self.store(self.head, self.product(at), m, n, self.mr)
            return
        block = self.b.alloc(self.head.dtype, (self.mr, self.nr))
        self.b.store(block, self.product(at), (0, 0), (self.mr, self.nr))
        with self.b.loop(0, at.m.stop - m) as row:
            line = self.b.load(block, (row.variable, 0), (1, self.nr))
            self.finish(line, m + row.variable, n)

    # Packing

    def pack(self, name: str, at: NestCursor, on_the_way: bool) -> PackedFactor:
        """A factor in scratch as words: blocks of its axis, steps of k, a matrix for a block of registers."""
        left = name == "left"
        span, width = (at.m, self.mr) if left else (at.n, self.nr)
        count, deep = (span.most + width - 1) // width, (at.k.most + self.step - 1) // self.step
        shape = (width, SIDE) if left else (SIDE, width)
        made = PackedFactor(self.b.alloc(i32, (count, deep, *shape)), span.start, at.k.start, width)
        if left:
            self.pack_left(made, at)
        else:
            self.pack_right(made, at)
        return made

    def pack_left(self, to: PackedFactor, at: NestCursor) -> None:
        """Rows of words: one by one, or turned where they do not lie along k."""
        rows = 1 if lies_along(self.left, self.over) else SIDE
        with self.b.loop(at.m.start, at.m.stop, to.width) as block:
            start = block.variable
            stop = smaller(start + to.width, at.m.stop)
            with self.b.loop(start, stop, rows) as row:
                for first, last, tail in self.cut(at.k):
                    with self.b.loop(first, last, self.step) as step:
                        k = step.variable
                        words = self.b.words(self.read_left(row.variable, k, rows, tail), 1)
                        place = ((start - to.first) // to.width, (k - to.k) // self.step)
                        self.b.store(
                            to.memory, words, (*place, row.variable - start, 0),
                            (1, 1, rows, SIDE), axes=(2, 3),
                        )  # fmt: skip

    def cut(self, k: PointRange) -> list[tuple[Size, Size, bool]]:
        """Whole steps of k, and what is left of it."""
        count = k.stop - k.start
        if isinstance(count, int) and count % self.step == 0:
            return [(k.start, k.stop, False)]
        size = self.over.size
        if isinstance(size, int) and size % self.step == 0:
            return [(k.start, k.stop, False)]  # of strips that are whole too
        middle = count // self.step * self.step + k.start
        return [(k.start, middle, False), (middle, k.stop, True)]

    def read_left(self, m: Size, k: Size, rows: int, tail: bool) -> Tile:
        """Rows of the left factor at one step of k."""
        masked = rows > 1
        if lies_along(self.left, self.m):
            turned = self.narrow(self.left, self.m, m, rows, k, self.step, (masked, tail), True)
            return self.b.transpose(turned)
        return self.narrow(self.left, self.m, m, rows, k, self.step, (masked, tail), False)

    def pack_right(self, to: PackedFactor, at: NestCursor) -> None:
        """Columns of words, of several blocks at once where rows lie along n."""
        turned = not lies_along(self.right, self.n)
        many = to.width if turned else max(_ROW * 8 // self.kinds[1].bits // to.width, 1) * to.width
        start = at.n.start
        for width, masked in ((many, False), (to.width, True)):
            stop = at.n.stop if masked else (at.n.stop - start) // width * width + start
            if not (isinstance(stop, int) and start == stop):
                with self.b.loop(start, stop, width) as block:
                    for first, last, tail in self.cut(at.k):
                        with self.b.loop(first, last, self.step) as step:
                            place = block.variable, step.variable
                            pack = self.turn_words if turned else self.pack_words
                            pack(to, place, width, (masked, tail))
            start = stop

    def pack_words(
        self, to: PackedFactor, place: tuple[Size, Size], width: int, masks: tuple[bool, bool]
    ) -> None:
        """A step of k of rows along n: so many rows make a row of words."""
        (n, k), parts = place, PARTS[self.kinds[1].name]
        block, deep = (n - to.first) // to.width, (k - to.k) // self.step
        with self.b.loop(0, SIDE) as word:
            at = k + word.variable * parts
            self.ask_ahead(at + _AHEAD, n, width, parts)
            rows = self.narrow(self.right, self.n, n, width, at, parts, masks, True)
            words = self.b.reshape(self.b.words(rows, 0), (width // to.width, to.width))
            self.b.store(
                to.memory, words, (block, deep, word.variable, 0),
                (width // to.width, 1, 1, to.width), axes=(0, 3),
            )  # fmt: skip

    def ask_ahead(self, k: Size, n: Size, width: int, rows: int) -> None:
        """Have later rows of the right factor come while these are packed."""
        r = read_of(self.right)
        sizes = {self.n.name: width, self.over.name: rows}
        extent = [max((sizes.get(a, 1) for a in symbols(x)), default=1) for x in r.index]
        self.b.prefetch(self.memory[r.source], self.places(r, self.n, n, k), extent)

    def turn_words(
        self, to: PackedFactor, place: tuple[Size, Size], width: int, masks: tuple[bool, bool]
    ) -> None:
        """A step of k of columns along k: squares of words are turned."""
        n, k = place
        block, deep = (n - to.first) // to.width, (k - to.k) // self.step
        with self.b.loop(0, width, LANES) as part:
            at = n + part.variable
            columns = self.narrow(self.right, self.n, at, LANES, k, self.step, masks, False)
            self.b.store(
                to.memory, self.b.transpose(self.b.words(columns, 1)),
                (block, deep, 0, part.variable), (1, 1, SIDE, LANES), axes=(2, 3),
            )  # fmt: skip

    # Reading

    def narrow(
        self, t: schedule.Term, axis: Axis, at: Size, width: int, k: Size, deep: int,
        masks: tuple[bool, bool], turned: bool,
    ) -> Tile:  # fmt: skip
        """Points of a factor before it is widened: (width, deep), or turned (deep, width).

        Masks say whether the points and the k may lie past the end; such k are zeros.
        """
        assert isinstance(t, schedule.Cast), t
        box = _WordBox(axis, at, width, k, deep, masks, turned)
        kind = self.kinds[0] if axis is self.m else self.kinds[1]
        values = self.b.cast(self.load_box(t.operand, box), kind)
        shape = (deep, width) if turned else (width, deep)
        values = self.b.broadcast(values, shape)
        if not masks[1] or self.ends(t):
            return values
        along = 0 if turned else 1
        line = tuple(deep if i == along else 1 for i in range(2))
        inside = self.b.apply(
            "lt", self.b.index(k, line, along), self.b.index(self.over.size, line)
        )
        return self.b.apply("where", inside, values, self.b.full(kind, (1, 1), 0))

    def ends(self, t: schedule.Term) -> bool:
        """Whether k past the last one lies outside of every memory that a factor reads, which gives zeros."""
        if not isinstance(t.children()[0], Read):
            return False
        places = [
            (i, n)
            for r in reads(t)
            for i, n in zip(r.index, self.memory[r.source].type.shape, strict=True)
        ]
        return (self.over.variable, self.over.size) in places

    def load_box(self, t: schedule.Term, box: _WordBox) -> Tile:
        """A term at the points of a box."""
        if not isinstance(t, Read):
            return self.made_of(t, lambda o: self.load_box(o, box))
        axes = (box.axis, self.over)
        found = [[i for i, x in enumerate(t.index) if a.name in symbols(x)] for a in axes]
        sizes = {i: n for f, n in zip(found, (box.width, box.deep), strict=True) for i in f}
        order = found[::-1] if box.turned else found
        extent = [sizes.get(i, 1) for i in range(len(t.index))]
        masked = [i for f, mask in zip(found, box.masks, strict=True) for i in f if mask]
        along = [i for f in order for i in f]
        place = self.places(t, box.axis, box.at, box.k)
        tile = self.b.load(self.memory[t.source], place, extent, axes=along, masked=masked)
        return self.b.reshape(tile, [extent[f[0]] if f else 1 for f in order])
