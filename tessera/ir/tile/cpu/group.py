"""Groups as Tile programs: an instance takes a block of rows through all kernels of the group.

    s = q k^T; p = softmax(s); o = p v
->  program (batch, m by 1032): pack k, v; for m by 6: s of the strip to scratch; p of its rows to scratch;
o of the strip

Where k and v do not fit the second cache, a block of fewer rows goes through all kernels at once, and each
kernel packs its factor.  Each kernel is written by the lowering of its kind, so the bits are those of the
kernels alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tessera.core.dims import Size, larger, product, smaller, symbol
from tessera.core.dtype import DType
from tessera.core.folds import LANES, LEAF
from tessera.core.processor import expected_threads
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.ir import Axis, Read, Stage, with_reads
from tessera.ir.schedule.nests.blocks import block
from tessera.ir.schedule.nests.nest import Nest, NestLoop
from tessera.ir.schedule.passes.fuse_contractions import hidden_columns
from tessera.ir.schedule.sweeps import goes_together
from tessera.ir.tile.cpu.gemm.contraction import LOW, Contraction
from tessera.ir.tile.cpu.gemm.nest_cursor import NestCursor, PackedFactor, PointRange
from tessera.ir.tile.cpu.multi_row import MultiRow
from tessera.ir.tile.cpu.rows import Rows
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile

_TALL, _LOW, _LEAST = 342, 126, 24  # rows of a block
_TALLER, _TALL_ENOUGH = 1032, 258  # the same if it is taken strip by strip, and if cores would rest
_SOME = 8  # blocks for each core, so that none rests long
_EACH = 8  # blocks for each core, from which on some may have one more than others
_CLOSE = 1 << 18  # elements of scratch that stay in the second cache
_WIDTH = 64  # columns that scratch is a multiple of, no less than any panel or chunk
_BLOCK = "_block"  # the first row of a block, in positions


def lower_group(g: schedule.Group, types: Mapping[str, TensorType]) -> Kernel:
    """The Tile program of a group."""
    return _GroupLowering(g, types).kernel()


class _GroupLowering:
    def __init__(self, g: schedule.Group, types: Mapping[str, TensorType]):
        self.g, self.b = g, Builder("kernel")
        self.memory = {n: self.b.parameter(n, types[n]) for n in g.inputs()}
        self.out = {n: self.b.parameter(n, types[n], writable=True) for n in g.outputs}
        head = g.from_scores[0].stages[0]
        self.batch, self.m = head.axes[: g.rows - 1], head.axes[g.rows - 1]
        self.columns = head.axes[-1]
        self.panel = block(head.dtype)[1]
        self.kept: dict[str, Memory] = {}
        self.grid: list[Size] = []
        self.hidden = hidden_columns(g)
        self.strip = _strip(g, block(head.dtype)[0])
        batch = product(tuple(a.size for a in self.batch))
        if self.strip:
            most = _most_of_strips(self.m.size, batch)
        else:
            most = _most(self.columns.size, self.hidden is not None)
        self.tall = _height(self.m.size, most, block(head.dtype)[0], batch)
        self.seen: Size = self.columns.size  # columns that a row of the block or strip sees
        self.packed: dict[str, PackedFactor] = {}  # the right factors of all columns, by kernel

    def kernel(self) -> Kernel:
        self.grid = [self.b.program(a.size) for a in self.batch]
        count = (self.m.size + self.tall - 1) // self.tall
        number: Size = self.b.program(count)
        if self.hidden is not None:  # what is left for the end is little: no thread waits long
            number = count - 1 - number
        first = number * self.tall
        rows = PointRange(first, smaller(first + self.tall, self.m.size), self.tall)
        self.see(rows)
        self.keep(self.strip or self.tall)
        if self.strip:
            self.take_strips(rows)
        else:
            self.take(rows)
        return self.b.finish()

    def see(self, m: PointRange) -> None:
        """Find which columns these rows see."""
        if self.hidden is not None:
            seen = larger(self.hidden.stop(m.stop - 1), 0)
            panels = (seen + self.panel - 1) // self.panel * self.panel  # whole ones need no masks
            self.seen = smaller(panels, self.columns.size)

    def keep(self, height: int) -> None:
        """Have scratch for what so many rows pass from kernel to kernel."""
        passed = {
            r.source for k in self.g.kernels for s in k.stages for r in schedule.reads(s.term)
        }
        for k in self.g.kernels[:-1]:
            made = [s for s in k.stages if s.name in passed & set(k.outputs)]
            self.kept |= {s.name: self.place(s, k, height) for s in made}

    def take_strips(self, m: PointRange) -> None:
        """Strip after strip, and lower ones for the rows that are left; what all of them read is packed
        before.
        """
        for k in self.g.kernels:
            if k.contracts:
                at = self.place_of(k, m)
                self.packed[k.name] = self.contraction(k, m).pack("right", at, False)
        start, size = m.start, self.m.size
        assert isinstance(size, int), size
        for height in _heights(self.strip, (min(self.tall, size), (size - 1) % self.tall + 1)):
            stop = (m.stop - start) // height * height + start
            with self.b.loop(start, stop, height) as strip:
                rows = PointRange(strip.variable, strip.variable + height, height)
                self.see(rows)
                self.take(rows)
            start = stop

    def take(self, m: PointRange) -> None:
        """Rows through all kernels."""
        for k in self.g.kernels:
            if k.contracts:
                at = replace(self.place_of(k, m), right=self.packed.get(k.name))
                self.contraction(k, m).walk(0, at)
            else:
                self.rows(k, m)
            self.fill_hidden(k, m.start, m.stop)

    def place(self, s: Stage, k: schedule.Kernel, height: int) -> Memory:
        """Memory for so many rows of a stage: that of another one which it is the last to read."""
        for name, m in self.kept.items():
            readers = [
                t.name
                for t in self.g.stages
                if any(r.source == name for r in schedule.reads(t.term))
            ]
            here = (*s.axes, *s.reduced)
            in_place = all(
                r.index == tuple(a.variable for a in here)
                for r in schedule.reads(s.term)
                if r.source == name
            )
            fits = m.type.dtype is s.dtype and len(m.type.shape) == len(s.axes) - self.g.rows + 1
            if fits and readers[-1:] == [s.name] and in_place and not k.contracts:
                return m
        return self.scratch(s, height)

    def scratch(self, s: Stage, height: int) -> Memory:
        """Memory for so many rows of a stage, in whole panels."""
        if len(s.axes) == self.g.rows:
            return self.b.alloc(s.dtype, (height,))
        wide = (s.axes[-1].size + _WIDTH - 1) // _WIDTH * _WIDTH
        return self.b.alloc(s.dtype, (height, wide))

    def local(self, s: Stage, rows: int) -> Stage:
        """A stage that reads what is kept in scratch where it lies there."""

        def moved(r: Read) -> Read:
            if r.source not in self.kept:
                return r
            row = r.index[rows - 1] - symbol(_BLOCK)
            return replace(r, index=(row, *r.index[rows:]))

        return replace(s, term=with_reads(s.term, moved))

    def environment(self, axes: tuple[Axis, ...], first: Size) -> dict[str, Size]:
        """What the axes of the batch are in this instance."""
        return {**{a.name: x for a, x in zip(axes, self.grid, strict=True)}, _BLOCK: first}

    def contraction(self, k: schedule.Kernel, m: PointRange) -> Contraction:
        """The contraction of these rows, with the stages that follow it."""
        here = replace(k, stages=tuple(self.local(s, self.g.rows) for s in k.stages))
        head = here.stages[0]
        memory = {**self.memory, **self.kept}
        nest = _nest(head.dtype, self.m, head.axes[-1], packs=not self.strip)
        c = Contraction(here, self.b, memory, self.out, nest)
        c.env = self.environment(head.axes[:-2], m.start)
        c.kept = {s.name: self.kept[s.name] for s in here.stages if s.name in self.kept}
        c.first = m.start
        return c

    def place_of(self, k: schedule.Kernel, m: PointRange) -> NestCursor:
        """What these rows compute of a contraction: columns, or a sum, as far as they see."""
        n, over = k.stages[0].axes[-1], k.stages[0].reduced[0]
        if k is self.g.kernels[-1]:
            return NestCursor(m, PointRange(0, n.size, n.size), PointRange(0, self.seen, over.size))
        return NestCursor(m, PointRange(0, self.seen, n.size), PointRange(0, over.size, over.size))

    def rows(self, k: schedule.Kernel, m: PointRange) -> None:
        """A kernel of rows: those of a strip together where they can be, else every row by itself."""
        if self.strip and goes_together(k):
            _RowsOfStrip(self, k, m).write()
            return
        with self.b.loop(m.start, m.stop) as row:
            _Row(self, k, m.start, row.variable).write()

    def fill_hidden(self, k: schedule.Kernel, first: Size, stop: Size) -> None:
        """What is known of outputs without computing it."""
        if self.hidden is not None:
            for s in k.stages:
                if s.name in self.out and s.name in self.hidden.constants:
                    self.fill(s, self.hidden.constants[s.name], first, stop)

    def fill(self, s: Stage, value: float, first: Size, stop: Size) -> None:
        """The columns of an output that no row of the block sees."""
        size = s.axes[-1].size
        constant = self.b.full(s.dtype, (1, LANES), value)
        last = len(self.grid) + 1
        with self.b.loop(first, stop) as row, self.b.loop(self.seen, size, LANES) as column:
            at = (*self.grid, row.variable, column.variable)
            extent = (*(1 for _ in self.grid), 1, LANES)
            self.b.store(
                self.out[s.name], constant, at, extent, axes=(last - 1, last), masked=(last,)
            )


class _Row(Rows):
    """A row of a kernel in a group."""

    def __init__(self, outer: _GroupLowering, k: schedule.Kernel, first: Size, row: Size):
        here = replace(k, stages=tuple(outer.local(s, outer.g.rows) for s in k.stages))
        memory = {**outer.memory, **{n: m for n, m in outer.kept.items() if n not in k.outputs}}
        super().__init__(here, {}, (), outer.b)
        self.memory |= memory
        self.out = {n: m for n, m in outer.out.items() if n in k.outputs}
        self.kept = {n: m for n, m in outer.kept.items() if n in k.outputs}
        self.place_in_block = row - first
        self.seen = outer.seen
        # As many columns are those of the scores.
        self.whole = outer.columns.size if k in outer.g.from_scores else None
        self.hidden, self.sees_all = outer.hidden, False
        self.row_name = k.stages[0].axes[k.rows - 1].name
        # Columns that the first row of the block sees, and so all of them.
        self.clear: Size = 0 if self.hidden is None else larger(self.hidden.stop(first), 0)
        self.env = outer.environment(k.stages[0].axes[: k.rows - 1], first)
        self.env[k.stages[0].axes[k.rows - 1].name] = row

    def column_loop(self, stages: Sequence[Stage], size: Size) -> None:
        super().column_loop(stages, self.seen if size == self.whole else size)

    def chunks(
        self, stages: Sequence[Stage], start: Size, stop: Size, width: int, accs: Sequence[Tile]
    ) -> Sequence[Tile]:
        """Chunks that every row of the block sees need not ask what a row sees."""
        if self.hidden is None:
            return super().chunks(stages, start, stop, width, accs)
        whole = (stop - start) // width * width + start
        edge = smaller(larger(self.clear // width * width, start), whole)
        self.width, self.sees_all = width, True
        with self.b.loop(start, edge, width, accs) as main:
            main.carry(*self.chunk(stages, main.variable, stop, False, main.carried))
        self.sees_all = False
        return super().chunks(stages, edge, stop, width, main.results)

    def term(self, t: schedule.Term, column: str | None) -> Tile:
        if self.sees_all and self.hidden is not None and isinstance(t, schedule.Apply):
            if t.scalar == "where" and self.hidden.asks(t.operands[0], self.row_name, column):
                return self.term(t.operands[1], column)
        return super().term(t, column)

    def leaf_range(self, count: Size) -> tuple[Size, Size, Size]:
        """One leaf at least: rows may see nothing."""
        room = count if self.whole is None else (self.whole + LEAF - 1) // LEAF
        return 0, larger(count, 1), larger(room, 1)

    def write(self) -> None:
        self.allocate()
        self.do_passes()

    def store_column(self, s: Stage, value: Tile) -> None:
        super().store_column(s, value)
        if s.name in self.kept:  # wide enough for the whole of the last chunk
            at = (self.place_in_block, self.at)
            masked = (1,) if self.tail else ()
            self.b.store(self.kept[s.name], value, at, (1, self.width), axes=(1,), masked=masked)

    def store_row(self, s: Stage) -> None:
        super().store_row(s)
        if s.name in self.kept:
            value = self.b.reshape(self.row[s.name], ())
            self.b.store(self.kept[s.name], value, (self.place_in_block,), (1,), axes=())


class _RowsOfStrip(MultiRow, _Row):
    """The rows of a strip, in one loop over columns for each pass."""

    def __init__(self, outer: _GroupLowering, k: schedule.Kernel, m: PointRange):
        super().__init__(outer, k, m.start, m.start)
        self.take(m.start, int(m.most))


def _strip(g: schedule.Group, rows: int) -> int:
    """Rows of a strip: those of a register block if what all strips read stays in the
    second cache, else 0.
    """
    first, last = g.from_scores[0].stages[0], g.kernels[-1].stages[0]
    m, columns = first.axes[-2].size, first.axes[-1].size
    k, n = first.reduced[0].size, last.axes[-1].size
    if not all(isinstance(x, int) for x in (m, columns, k, n)):
        return 0
    return rows if m >= _LEAST and 0 < columns * (k + n) <= _CLOSE else 0


def _heights(strip: int, blocks: Iterable[int]) -> list[int]:
    """The heights of strips that blocks of so many rows are cut into: whole ones, then lower ones."""
    found: set[int] = set()
    for left in blocks:
        for height in (strip, *(h for h in LOW if h < strip)):
            found |= {height} if left >= height else set()
            left %= height
    return sorted(found, reverse=True)


def _most_of_strips(m: Size, batch: Size) -> int:
    """Rows of a block of strips at most: factors are packed once for many rows, but each core has some
    blocks.
    """
    tall = _TALLER
    while tall > _TALL_ENOUGH and isinstance(m, int) and isinstance(batch, int):
        if -(-m // tall) * batch >= _SOME * expected_threads():
            break
        tall //= 2
    return tall


def _most(columns: Size, hides: bool) -> int:
    """Rows of a block at most: as many as keep what passes between the kernels in the second cache.

    Lower blocks where rows hide columns: a block computes what any of its rows sees.
    """
    tall = _LOW if hides else _TALL
    return min(max(_CLOSE // max(columns, 1), _LEAST), tall) if isinstance(columns, int) else tall


def _height(m: Size, tall: int, rows: int, batch: Size) -> int:
    """Rows of a block: at most so many, in blocks of even height."""
    if isinstance(m, int):
        blocks = _shared(-(-max(m, 1) // tall), m, batch)
        tall = -(-max(m, 1) // blocks)
    return -(-tall // rows) * rows if tall > rows else tall


def _shared(blocks: int, m: int, batch: Size) -> int:
    """At least so many blocks, and the same number for each core if there are few of them."""
    few = isinstance(batch, int) and 0 < blocks * batch < _EACH * expected_threads()
    while few and blocks * batch % expected_threads() and (blocks + 1) * _LEAST <= m:
        blocks += 1
    return blocks


def _nest(dtype: DType, m: Axis, n: Axis, packs: bool) -> Nest:
    """Panel by panel, packed leaf by leaf unless all is packed before."""
    mr, nr = block(dtype)
    mr = min(mr, max(m.size, 1)) if isinstance(m.size, int) else mr
    nr = min(nr, -(-max(n.size, 1) // LANES) * LANES) if isinstance(n.size, int) else nr
    loops = (NestLoop("n", nr), NestLoop("k", LEAF), NestLoop("m", mr), NestLoop("k", 1))
    staged = (("right", 2),) if packs else ()
    return Nest((*loops, NestLoop("m", 1, "unroll"), NestLoop("n", LANES, "vector")), staged)
