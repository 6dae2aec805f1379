"""Groups as Tile programs: an instance takes a block of rows through all kernels of the group.

    s = q k^T; p = softmax(s); o = p v
->  program (batch, m by 126): s of the block to scratch; p of each row to scratch; o of the block

Each kernel is written by the lowering of its kind, so the bits are those of the kernels alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tessera.core.dims import Size, larger, product, smaller, symbol
from tessera.core.dtype import DType
from tessera.core.folds import LANES, LEAF
from tessera.core.processor import cores
from tessera.core.types import TensorType
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.blocks import block
from tessera.ir.schedule.group import hidden_columns
from tessera.ir.schedule.ir import Axis, Read, Stage, with_reads
from tessera.ir.schedule.nest import Loop, Nest
from tessera.ir.tile.contraction import Contraction
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.place import Place, Span
from tessera.ir.tile.rows import Rows

_TALL, _LOW, _LEAST = 342, 126, 24  # rows of a block
_EACH = 8  # blocks for each core, from which on some may have one more than others
_CLOSE = 1 << 18  # elements of scratch that stay in the second cache
_WIDTH = 64  # columns that scratch is a multiple of, no less than any panel or chunk
_BLOCK = "_block"  # the first row of a block, in positions


def lower_group(g: schedule.Group, types: Mapping[str, TensorType]) -> Kernel:
    """The Tile program of a group."""
    return _Lowering(g, types).kernel()


class _Lowering:
    def __init__(self, g: schedule.Group, types: Mapping[str, TensorType]):
        self.g, self.b = g, Builder("kernel")
        self.memory = {n: self.b.parameter(n, types[n]) for n in g.inputs()}
        self.out = {n: self.b.parameter(n, types[n], writable=True) for n in g.outputs}
        head = g.kernels[0].stages[0]
        self.batch, self.m = head.axes[: g.rows - 1], head.axes[g.rows - 1]
        self.columns = head.axes[-1]
        self.panel = block(head.dtype)[1]
        self.kept: dict[str, Memory] = {}
        self.grid: list[Size] = []
        self.hidden = hidden_columns(g)
        self.tall = _height(
            self.m.size, self.columns.size, block(head.dtype)[0], self.hidden is not None,
            product(tuple(a.size for a in self.batch)),
        )  # fmt: skip
        self.seen: Size = self.columns.size  # columns that a row of the block sees

    def kernel(self) -> Kernel:
        self.grid = [self.b.program(a.size) for a in self.batch]
        count = (self.m.size + self.tall - 1) // self.tall
        number: Size = self.b.program(count)
        if self.hidden is not None:  # what is left for the end is little: no thread waits long
            number = count - 1 - number
        first = number * self.tall
        stop = smaller(first + self.tall, self.m.size)
        if self.hidden is not None:
            seen = larger(self.hidden.stop(stop - 1), 0)
            panels = (seen + self.panel - 1) // self.panel * self.panel  # whole ones need no masks
            self.seen = smaller(panels, self.columns.size)
        passed = {
            r.source for k in self.g.kernels for s in k.stages for r in schedule.reads(s.term)
        }
        for k in self.g.kernels:
            made = [s for s in k.stages if s.name in passed & set(k.outputs)]
            if k is not self.g.kernels[-1]:
                self.kept |= {s.name: self.place(s, k) for s in made}
            if k.contracts:
                self.contract(k, Span(first, stop, self.tall))
            else:
                self.rows(k, first, stop)
        return self.b.finish()

    def place(self, s: Stage, k: schedule.Kernel) -> Memory:
        """Memory for a block of rows of a stage: that of another one which it is the last to read."""
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
        return self.scratch(s)

    def scratch(self, s: Stage) -> Memory:
        """Memory for a block of rows of a stage, in whole panels."""
        if len(s.axes) == self.g.rows:
            return self.b.alloc(s.dtype, (self.tall,))
        wide = (s.axes[-1].size + _WIDTH - 1) // _WIDTH * _WIDTH
        return self.b.alloc(s.dtype, (self.tall, wide))

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

    def contract(self, k: schedule.Kernel, m: Span) -> None:
        """The contraction of a block of rows, with the stages that follow it."""
        rows = self.g.rows
        here = replace(k, stages=tuple(self.local(s, rows) for s in k.stages))
        head = here.stages[0]
        n, over = head.axes[-1], head.reduced[0]
        c = Contraction(
            here, self.b, {**self.memory, **self.kept}, self.out, _nest(head.dtype, self.m, n)
        )
        c.env = self.environment(head.axes[:-2], m.start)
        c.kept = {s.name: self.kept[s.name] for s in here.stages if s.name in self.kept}
        c.first = m.start
        columns, k_span = Span(0, n.size, n.size), Span(0, over.size, over.size)
        if k is self.g.kernels[-1]:
            k_span = Span(0, self.seen, over.size)
        else:
            columns = Span(0, self.seen, n.size)
        c.walk(0, Place(m, columns, k_span))
        self.fill_hidden(k, m.start, m.stop)

    def rows(self, k: schedule.Kernel, first: Size, stop: Size) -> None:
        """Every row of the block by itself."""
        with self.b.loop(first, stop) as row:
            _Row(self, k, first, row.variable).write()
        self.fill_hidden(k, first, stop)

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

    def __init__(self, outer: _Lowering, k: schedule.Kernel, first: Size, row: Size):
        here = replace(k, stages=tuple(outer.local(s, outer.g.rows) for s in k.stages))
        memory = {**outer.memory, **{n: m for n, m in outer.kept.items() if n not in k.outputs}}
        super().__init__(here, {}, (), outer.b)
        self.memory |= memory
        self.out = {n: m for n, m in outer.out.items() if n in k.outputs}
        self.kept = {n: m for n, m in outer.kept.items() if n in k.outputs}
        self.place_in_block = row - first
        self.seen, self.whole = outer.seen, outer.columns.size
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
        return 0, count, (self.whole + LEAF - 1) // LEAF

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


def _height(m: Size, columns: Size, rows: int, hides: bool, batch: Size) -> int:
    """Rows of a block: as many as keep what passes between the kernels in the second cache.

    Lower blocks where rows hide columns: a block computes what any of its rows sees.
    """
    tall = _LOW if hides else _TALL
    if isinstance(columns, int):
        tall = min(max(_CLOSE // max(columns, 1), _LEAST), tall)
    if isinstance(m, int):
        blocks = _shared(-(-max(m, 1) // tall), m, batch)
        tall = -(-max(m, 1) // blocks)  # blocks of even height
    return -(-tall // rows) * rows if tall > rows else tall


def _shared(blocks: int, m: int, batch: Size) -> int:
    """At least so many blocks, and the same number for each core if there are few of them."""
    few = isinstance(batch, int) and 0 < blocks * batch < _EACH * cores()
    while few and blocks * batch % cores() and (blocks + 1) * _LEAST <= m:
        blocks += 1
    return blocks


def _nest(dtype: DType, m: Axis, n: Axis) -> Nest:
    """Panel by panel, packed leaf by leaf."""
    mr, nr = block(dtype)
    mr = min(mr, max(m.size, 1)) if isinstance(m.size, int) else mr
    nr = min(nr, -(-max(n.size, 1) // LANES) * LANES) if isinstance(n.size, int) else nr
    loops = (Loop("n", nr), Loop("k", LEAF), Loop("m", mr), Loop("k", 1))
    return Nest((*loops, Loop("m", 1, "unroll"), Loop("n", LANES, "vector")), (("right", 2),))
