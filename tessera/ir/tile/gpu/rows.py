"""rows: a kernel of loop nests as tiles of rows and columns.

    t[r] = add over c of x[r, c]   ->   block (r by 4): fold(load(x, r, 0; 4 by 4096), 1)

A block holds whole rows if they are folded and fit; longer rows are read piece by piece, and what a later
pass over them needs is computed again rather than kept.  A fold for each column walks down the
folded axis.  Pieces of a fold meet as the tree that folds.py says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tessera.core.approximate import FUNCTIONS
from tessera.core.dims import Dim, Size, symbols
from tessera.core.evaluate import identity, neutral
from tessera.core.types import TensorType
from tessera.ir.schedule import gpu_blocks as blocks
from tessera.ir.schedule import ir as schedule
from tessera.ir.schedule.gpu_blocks import (
    HALVED_PIECE,
    LONGEST,
    PIECE,
    RowsBlock,
    chain_block,
    is_halved,
    piece,
    power,
    rows_block,
    warps_for,
)
from tessera.ir.schedule.ir import Stage
from tessera.ir.schedule.sweeps import has_columns_alone, passes
from tessera.ir.tile.gpu.folds import has_any_order, row_tree, tree
from tessera.ir.tile.gpu.terms import AxisLine, Terms, parameters
from tessera.ir.tile.ir import Builder, Kernel, Tile
from tessera.ir.tile.launch import Threads

_LONG = frozenset(FUNCTIONS) - {"rsqrt"} | {"philox_low", "philox_high"}
_NATIVE = frozenset(("exp", "exp2", "sigmoid", "tanh", "erf", "erfc", "log1p", "expm1", "atan"))
PIECE_WARPS = 4  # of a block that reads long rows piece by piece


class Rows:
    """A kernel being written."""

    def __init__(
        self,
        kernel: schedule.Kernel,
        types: Mapping[str, TensorType],
        block: RowsBlock | None = None,
    ):
        self.k, self.b = kernel, Builder(kernel.name)
        self.stages = {s.name: s for s in kernel.stages}
        self.memory = parameters(self.b, kernel.inputs(), types)
        self.out = parameters(self.b, kernel.outputs, types, writable=True)
        self.rows = kernel.stages[0].axes[: kernel.rows]
        self.block = block or default_block(kernel)
        self.env: dict[str, Size] = {}
        self.row_line: AxisLine | None = None
        self.row: dict[str, Tile] = {}  # numbers of a row, as tiles of one column
        self.span: tuple[Size, int] | None = None  # the columns of this block, if shared
        self.contexts: dict[Any, _Context] = {}  # those whose tiles stay
        self.joins_parts = False  # whether what is folded are folds of pieces, which are neighbours

    @property
    def threads(self) -> Threads:
        """A fold for each column has all that it folds in one thread; others share rows."""
        if any(map(self.folds_columns, self.k.stages)):
            return Threads(1)
        elements = self.block.rows * self.block.columns
        folds = any(s.combine for s in self.k.stages)
        if folds and self.block.columns == (HALVED_PIECE if self.is_halved else PIECE):
            return Threads(PIECE_WARPS)
        if folds:
            return Threads(warps_for(elements, each=blocks.EACH_FOLDED))
        each = blocks.EACH_LONG if computes_long(self.k) else blocks.EACH
        return Threads(warps_for(elements, _tensors(self.k), each))

    def kernel(self) -> Kernel:
        chains = any(self.folds_columns(s) for s in self.k.stages)
        for i, a in enumerate(self.rows):
            last = i == len(self.rows) - 1
            n = 1 if chains or not last else self.block.rows
            if n == 1:
                self.env[a.name] = self.b.program(a.size)
            else:
                at = self.b.program((a.size + n - 1) // n) * n
                self.row_line = AxisLine(0, at, n, a.size)
        self.share_columns()
        levels = passes(self.k)
        for level in range(max(levels.values()) + 1):
            self.do_pass([s for s in self.k.stages if levels[s.name] == level])
        return self.b.finish()

    def share_columns(self) -> None:
        """Blocks share the columns, unless a fold runs over them."""
        if not has_columns_alone(self.k):
            return
        size, n = self.k.stages[0].axes[-1].size, self.block.columns
        if int(size) > n:
            self.span = (self.b.program((size + n - 1) // n) * n, n)

    # Stages

    def column(self, s: Stage) -> schedule.Axis | None:
        """The axis of a stage beyond the rows that a tile's columns run along."""
        own = s.axes[self.k.rows :]
        if own:
            return own[0]
        return s.reduced[0] if s.reduced else None

    def folds_columns(self, s: Stage) -> bool:
        """Whether a stage folds another axis for each of its columns."""
        return s.combine is not None and len(s.axes) > self.k.rows

    def context(self, size: Size | None, at: Size = 0, n: int = 1) -> _Context:
        """Where terms are computed: these rows, and n columns from `at` on."""
        key = None if size is None or _counts(at) else (size, at, n)
        if key in self.contexts:
            return self.contexts[key]
        made = _Context(self, {})
        if key is not None:
            self.contexts[key] = made
        made.env = dict(self.env)
        if self.row_line is not None:
            made.lines[self.rows[-1].name] = self.row_line
        if size is not None:
            line = AxisLine(1, at, n, size)
            for s in self.k.stages:
                a = self.column(s)
                if a is not None and a.size == size:
                    made.lines[a.name] = line
        return made

    def do_pass(self, stages: Sequence[Stage]) -> None:
        for s in stages:
            if self.column(s) is None:
                where = self.context(None)
                self.set_row(s, where, where.term(s.term))
        self.chains([s for s in stages if self.folds_columns(s)])
        rest = [s for s in stages if self.column(s) is not None and not self.folds_columns(s)]
        for size in dict.fromkeys(self.column(s).size for s in rest):  # type: ignore[union-attr]
            own = [s for s in rest if self.column(s).size == size]  # type: ignore[union-attr]
            self.do_columns(own, size)

    def set_row(self, s: Stage, where: _Context, value: Tile) -> None:
        self.row[s.name] = value
        if s.name in self.out:
            where.store(self.out[s.name], [a.variable for a in s.axes], value)

    def do_columns(self, stages: Sequence[Stage], size: Size) -> None:
        if self.span is not None:
            self.do_piece(stages, self.context(size, *self.span))
            return
        n = self.width(size)
        if power(size) <= n:
            where = self.context(size, 0, n)
            for s, value in zip(self.folds(stages), self.do_piece(stages, where), strict=True):
                self.set_row(s, self.context(None), value)
            return
        count = (size + n - 1) // n
        self.pieces(stages, size, n, int(count))

    @property
    def is_halved(self) -> bool:
        """Whether some fold is of long rows that are read number by number."""
        sizes = [int(s.reduced[0].size) for s in self.k.stages if s.combine]
        return any(n > LONGEST and is_halved(n) for n in sizes)

    def width(self, size: Size) -> int:
        """The columns of a tile: where rows are folded they are part of the order, and no choice."""
        if any(s.combine and not self.folds_columns(s) for s in self.k.stages):
            return power(size) if int(size) <= LONGEST else piece(int(size))
        return min(self.block.columns, power(size))

    def folds(self, stages: Sequence[Stage]) -> list[Stage]:
        return [s for s in stages if s.combine]

    def do_piece(self, stages: Sequence[Stage], where: _Context) -> list[Tile]:
        """Compute stages at some columns; what the folds among them come to there."""
        found = []
        for s in stages:
            value = where.value(s)
            if s.combine is None:
                if s.name in self.out:
                    where.store(self.out[s.name], [a.variable for a in s.axes], value)
                continue
            value = where.inside(value, s.combine, 1)
            if self.joins_parts:
                found.append(tree(self.b, s.combine, value, 1))
            else:
                found.append(row_tree(self.b, s.combine, value, 1, s.reduced[0].size))
        return found

    def pieces(self, stages: Sequence[Stage], size: Size, n: int, count: int) -> None:
        """Long rows, piece by piece; the folds of the pieces wait side by side."""
        folds = self.folds(stages)
        rows = self.row_line.n if self.row_line else 1
        begin = [self.waiting(s, (rows, power(count))) for s in folds]
        with self.b.loop(0, count, 1, begin) as loop:
            where = self.context(size, loop.variable * n, n)
            made = self.do_piece(stages, where)
            loop.carry(*self.kept(loop.carried, made, loop.variable, 1))
        for s, waiting in zip(folds, loop.results, strict=True):
            assert s.combine is not None
            self.set_row(s, self.context(None), tree(self.b, s.combine, waiting, 1))

    def waiting(self, s: Stage, shape: tuple[int, int]) -> Tile:
        assert s.combine is not None
        return self.b.full(s.dtype, shape, neutral(s.combine, s.dtype))

    def kept(
        self, waiting: Sequence[Tile], made: Sequence[Tile], at: Size, axis: int
    ) -> list[Tile]:
        """Tiles with new folds in one place of an axis."""
        out = []
        for all_, one in zip(waiting, made, strict=True):
            n = all_.shape[axis]
            numbers = self.b.index(0, (n, 1) if axis == 0 else (1, n), axis)
            here = self.b.apply("eq", numbers, self.b.index(at, (1, 1)))
            out.append(self.b.apply("where", here, one, all_))
        return out

    # A fold for each column

    def chains(self, stages: Sequence[Stage]) -> None:
        """Folds over an axis that is not the last, for the columns of this block; alike ones in one loop."""
        alike: dict[tuple[Size, Size], list[Stage]] = {}
        for s in stages:
            alike.setdefault((s.axes[-1].size, s.reduced[0].size), []).append(s)
        for (size, length), group in alike.items():
            at, n = self.span if self.span is not None else (0, power(size))
            where = self.context(size, at, n)
            for s, value in zip(group, self.chain(group, length, at, n), strict=True):
                where.cache[s.name] = value
                self.end_chain(s, where, value)

    def chain(self, stages: Sequence[Stage], length: Size, at: Size, n: int) -> Sequence[Tile]:
        """Folds of so many numbers for n columns."""
        steps = min(self.block.steps, power(length))
        first, many = self.steps_of(int((length + steps - 1) // steps))
        if many == 1:
            return self.chain_pieces(stages, at, n, first * steps, steps)
        if many == 0:
            kinds = [(s.dtype, identity(s.combine or "", s.dtype)) for s in stages]
            return [self.b.full(d, (1, n), value) for d, value in kinds]
        levels = [
            1 if has_any_order(s.combine or "", s.dtype) else many.bit_length() for s in stages
        ]
        begin = [
            self.waiting(s, (1, n)) for s, k in zip(stages, levels, strict=True) for _ in range(k)
        ]
        with self.b.loop(0, many, 1, begin) as loop:
            made = self.chain_pieces(stages, at, n, (first + loop.variable) * steps, steps)
            carried = iter(loop.carried)
            kept = []
            for s, k, value in zip(stages, levels, made, strict=True):
                waiting = [next(carried) for _ in range(k)]
                if has_any_order(s.combine or "", s.dtype):
                    kept.append(self.b.apply(s.combine or "", waiting[0], value))
                else:
                    kept += self.counted(s, waiting, value, loop.variable)
            loop.carry(*kept)
        results = iter(loop.results)
        return [
            self.collected(s, [next(results) for _ in range(k)], 1 if k == 1 else many)
            for s, k in zip(stages, levels, strict=True)
        ]

    def counted(self, s: Stage, waiting: Sequence[Tile], value: Tile, number: Dim) -> list[Tile]:
        """Subtrees of 1, 2, 4 ... pieces that wait for their neighbour, as the digits of a number wait.

        Piece i completes the subtrees of 2^l pieces that end with it; the left ones stay until the right
        ones come.
        """
        b, out = self.b, []
        for level, before in enumerate(waiting):
            place = b.index((number + 1) % (2 << level), (1, 1))
            stays = b.apply("eq", place, b.index(1 << level, (1, 1)))
            out.append(b.apply("where", stays, value, before))
            value = b.apply(s.combine or "", before, value)  # of use where the left one waits
        return out

    def collected(self, s: Stage, waiting: Sequence[Tile], many: int) -> Tile:
        """What the subtrees that wait after so many pieces come to."""
        found = [x for level, x in enumerate(waiting) if many >> level & 1]
        value = found[0]
        for before in found[1:]:
            value = self.b.apply(s.combine or "", before, value)
        return value

    def steps_of(self, count: int) -> tuple[Size, int]:
        """The first piece of a folded axis that this block takes, of so many, and how many it takes."""
        return 0, count

    def goes_past(self, length: Size) -> bool:
        """Whether the steps of this block may go behind the end of a folded axis."""
        return False

    def end_chain(self, s: Stage, where: _Context, value: Tile) -> None:
        """What becomes of folded columns: they are stored, and those who follow read them."""
        if s.name in self.out:
            where.store(self.out[s.name], [a.variable for a in s.axes], value)
        self.row[s.name] = value

    def chain_pieces(
        self, stages: Sequence[Stage], at: Size, n: int, first: Size, steps: int
    ) -> list[Tile]:
        """Some steps of the folded axis, folded for each column."""
        where = self.context(None)
        for s in stages:
            where.lines[s.axes[-1].name] = AxisLine(1, at, n, s.axes[-1].size)
            length = s.reduced[0].size
            where.lines[s.reduced[0].name] = AxisLine(
                0, first, steps, length, self.goes_past(length)
            )
        out = []
        for s in stages:
            assert s.combine is not None
            out.append(tree(self.b, s.combine, where.inside(where.term(s.term), s.combine, 0), 0))
        return out


class _Context(Terms):
    """Terms at some rows and columns of a kernel; stages of columns are computed when they are read."""

    def __init__(self, rows: Rows, cache: dict[str, Tile]):
        super().__init__(rows.b, rows.memory, self.known)
        self.rows, self.cache = rows, cache

    def known(self, name: str) -> Tile | None:
        if name in self.cache:
            return self.cache[name]
        if name in self.rows.row:
            return self.rows.row[name]
        s = self.rows.stages.get(name)
        return None if s is None else self.value(s)

    def value(self, s: Stage) -> Tile:
        """A stage at every point, before it is folded."""
        if s.combine is not None:
            return self.term(s.term)
        if s.name not in self.cache:
            self.cache[s.name] = self.term(s.term)
        return self.cache[s.name]


def _counts(at: Size) -> bool:
    """Whether a position moves with a loop."""
    return any(n.startswith("_i") for n in symbols(at))


def _is_turned(k: schedule.Kernel) -> bool:
    """Whether neighbours in memory are neighbouring rows somewhere: then a block has many of them."""
    last = k.stages[0].axes[k.rows - 1].name
    columns = {a.name for s in k.stages for a in s.axes[k.rows :]}

    def moves(x: Size | schedule.Term, names: Iterable[str]) -> bool:
        return not isinstance(x, schedule.Term) and not symbols(x).isdisjoint(names)

    return any(
        bool(r.index)
        and moves(r.index[-1], (last,))
        and not moves(r.index[-1], columns)  # then neighbours are columns
        and any(moves(x, columns) for x in r.index)  # a number of each row is none of them
        for s in k.stages
        for r in schedule.reads(s.term)
        if len(s.axes) > k.rows and r.source not in {t.name for t in k.stages}
    )


def _share_place(k: schedule.Kernel) -> bool:
    """Whether rows lie behind each other along one axis of a tensor: one row of a block is a box there."""
    last = k.stages[0].axes[k.rows - 1].name
    columns = {a.name for s in k.stages for a in s.axes[k.rows :]}
    return any(
        not isinstance(x, schedule.Term)
        and last in symbols(x)
        and not symbols(x).isdisjoint(columns)
        for s in k.stages
        for r in schedule.reads(s.term)
        for x in r.index
    )


def _tensors(k: schedule.Kernel) -> int:
    """How many tensors a kernel reads and writes that have an element for each point."""
    full = max(len(s.axes) for s in k.stages)
    found = {r.source for s in k.stages for r in schedule.reads(s.term) if len(r.index) >= full}
    return len(found - {s.name for s in k.stages}) + len(k.outputs)


def computes_long(k: schedule.Kernel) -> bool:
    """Whether a kernel computes a function that takes many instructions, and many registers, at each point.

    Where all that is stored is narrow, some are single instructions of a GPU.
    """
    stages = {s.name: s for s in k.stages}
    floats = [stages[n].dtype.bits for n in k.outputs if stages[n].dtype.kind == "f"]
    native = _NATIVE if floats and max(floats) <= 16 else frozenset()
    return any(
        isinstance(t, schedule.Apply) and t.scalar in _LONG - native
        for s in k.stages
        for t in schedule.walk(s.term)
    )


def default_block(k: schedule.Kernel) -> RowsBlock:
    """The block of a kernel of rows."""
    columns = [a.size for s in k.stages for a in (*s.axes[k.rows :], *s.reduced)]
    chains = [s for s in k.stages if s.combine and len(s.axes) > k.rows]
    if chains:
        s = chains[0]
        found = {r for c in chains for r in schedule.reads(c.term)}
        bits = max((r.dtype.bits for r in found), default=32)
        sizes = int(s.axes[-1].size), int(s.reduced[0].size)
        return chain_block(*sizes, bits, len(found), len(chains))
    rows = int(k.stages[0].axes[k.rows - 1].size) if k.rows else 1
    others = 1
    for a in k.stages[0].axes[: max(k.rows - 1, 0)]:
        others *= int(a.size)
    folds = any(s.combine for s in k.stages)
    if not folds and k.rows and _is_turned(k):
        return RowsBlock(min(64, power(rows)), 64)
    widest = max((int(c) for c in columns), default=1)
    long = not folds and computes_long(k)
    elements = 128 * blocks.EACH_LONG if long else blocks.ELEMENTS
    made = rows_block(rows * others, widest, folds, 0 if folds else _tensors(k), elements)
    if not folds and k.rows and _share_place(k):
        return RowsBlock(1, made.columns)
    return RowsBlock(min(made.rows, power(rows)), min(made.columns, LONGEST))
