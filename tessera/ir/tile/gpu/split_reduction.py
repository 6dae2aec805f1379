"""spread: long folds as several launches, so that many blocks share a row or a column.

    t[] = add over c<N of x[c]   ->   block p: parts[p] = fold of x[16384 p] to x[16384 p + 16383]
                                      block:   t = fold of parts

A part is a piece of a long row as one block takes it, or a subtree of the steps of a column, so the bits are
those of one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tessera.core.dims import Size
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import (
    ENOUGH,
    HALVED_PIECE,
    LONGEST,
    RowsBlock,
    is_halved,
    power,
)
from tessera.ir.schedule.ir import Axis, Kernel, Read, Stage
from tessera.ir.schedule.sweeps import by_pass, folds_chains, has_columns_alone
from tessera.ir.tile.gpu.rows import Rows, _Context, default_block
from tessera.ir.tile.ir import Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

# Rows that a block reads piece by piece wait for each piece, and for its fold: so many of them keep a GPU
# busy, 8 for each multiprocessor.
_ROWS_ENOUGH = 4 * ENOUGH
_HALVED_WARPS = 8  # of a block that folds a part of a row that is read number by number
_AT_ONCE = 32  # parts that a block folds; more of them are folded in groups first


def spread_rows(kernel: Kernel, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of a kernel whose folds are shared among blocks; None for any other."""
    if not any(map(_each, by_pass(kernel))):
        return None
    made: list[Launch] = []
    parts = by_pass(kernel)
    between = {s.name: s.type for p in parts for s in p.stages if s.name in p.outputs}
    known = {**types, **between}
    while parts:
        p = parts.pop(0)
        each = _each(p)
        if each:
            first = _Parts(p, known, each)
            between |= first.parts
            known |= first.parts
            made.append(first.launch())
            p = _rest(p, first)
            if not first.lanes and first.count > _AT_ONCE:
                second = _Parts(p, known, _AT_ONCE, "_groups")
                second.joins_parts = True
                between |= second.parts
                known |= second.parts
                made.append(second.launch())
                p = _rest(p, second)
            if parts and not first.lanes and has_columns_alone(parts[0]) and not _each(parts[0]):
                p = _with_next(p, parts.pop(0), kernel.outputs, parts)
        rows = Rows(p, known)
        rows.joins_parts = each > 0
        made.append(Launch(rows.kernel(), tuple(p.inputs()), p.outputs, rows.threads))
    return Expansion(tuple(made), {n: t for n, t in between.items() if n not in kernel.outputs})


def _each(p: Kernel) -> int:
    """How many steps of a fold a block takes, a power of two; 0 when folds are not shared."""
    folds = [s for s in p.stages if s.combine]
    if not folds or len({s.reduced[0].size for s in folds}) > 1:
        return 0
    if len({folds_chains(s, p.rows) for s in folds}) > 1:
        return 0
    size = int(folds[0].reduced[0].size)
    rows = 1
    for a in folds[0].axes[: p.rows]:
        rows *= int(a.size)
    block = default_block(p)
    if folds_chains(folds[0], p.rows):
        blocks = rows * -(-int(folds[0].axes[-1].size) // block.columns)
        return _share(size, blocks, 4 * block.steps) if len(folds) == len(p.stages) else 0
    if size <= LONGEST:
        return 0
    each = min(_share(size, rows, LONGEST, _ROWS_ENOUGH), LONGEST)
    return HALVED_PIECE if each and is_halved(size) else each


def _share(size: int, blocks: int, least: int, enough: int = ENOUGH) -> int:
    """Pieces of at least so many steps, as many as it takes to keep a GPU busy."""
    if blocks >= enough or size < 2 * least:
        return 0
    each = power(size)
    while each > least and blocks * -(-size // each) < 4 * ENOUGH:
        each //= 2
    return each if each < size else 0


class _Parts(Rows):
    """The first launch: each block folds a subtree."""

    def __init__(
        self, p: Kernel, types: Mapping[str, TensorType], each: int, suffix: str = "_parts"
    ):
        folds = [s for s in p.stages if s.combine]
        self.each, self.suffix = each, suffix
        self.count = -(-int(folds[0].reduced[0].size) // each)
        self.lanes = len(folds[0].axes) == p.rows
        columns = tuple(s for s in p.stages if s.combine or s.axes[p.rows :])
        plain = tuple(s.name for s in columns if not s.combine and s.name in p.outputs)
        self.parts = {f"{s.name}{suffix}": self.part_type(s, p.rows) for s in folds}
        whole = replace(p, stages=columns, outputs=plain, name=f"{p.name}{suffix}")
        steps = default_block(p)
        block = RowsBlock(1, each, 1) if self.lanes else steps
        super().__init__(whole, types, block)
        self.kept_parts = {n: self.b.parameter(n, t, writable=True) for n, t in self.parts.items()}

    def part_type(self, s: Stage, rows: int) -> TensorType:
        shape = s.type.shape
        return TensorType(s.dtype, (*shape[:rows], self.count, *shape[rows:]))

    @property
    def threads(self) -> Threads:
        """Of rows that are read number by number, half as many numbers for each thread: 103 us where 4 warps
        took 124 (16x96x127x129 bf16 in groups, H200).
        """
        made = super().threads
        halved = self.lanes and not self.joins_parts and self.block.columns == HALVED_PIECE
        return replace(made, warps=_HALVED_WARPS) if halved else made

    def launch(self) -> Launch:
        k = self.kernel()
        outputs = (*self.k.outputs, *self.parts)
        return Launch(k, tuple(self.k.inputs()), outputs, self.threads)

    def share_columns(self) -> None:
        self.part = self.b.program(self.count)
        if not self.lanes:
            super().share_columns()

    def do_columns(self, stages: list[Stage], size: Size) -> None:  # type: ignore[override]
        if not self.lanes:
            super().do_columns(stages, size)
            return
        n = self.block.columns
        pieces = self.each // n
        assert pieces == 1, "a part is one piece"
        where = self.context(size, self.part * self.each, n)
        # Points behind the last one exist in the last part alone, if there.
        for s, value in zip(self.folds(stages), self.do_piece(stages, where), strict=True):
            self.keep(s, self.context(None), value)

    def keep(self, s: Stage, where: _Context, value: Tile) -> None:
        name = f"{s.name}{self.suffix}"
        at: list[Size] = [a.variable for a in s.axes]
        at.insert(self.k.rows, self.part)
        where.store(self.kept_parts[name], at, value)

    def steps_of(self, count: int) -> tuple[Size, int]:
        many = self.each // self.block.steps
        return self.part * many, many

    def goes_past(self, length: Size) -> bool:
        return int(length) % self.each != 0

    def end_chain(self, s: Stage, where: _Context, value: Tile) -> None:
        self.keep(s, where, value)


def _with_next(p: Kernel, after: Kernel, wanted: tuple[str, ...], later: list[Kernel]) -> Kernel:
    """The last launch of folds, with the pass that follows on their columns."""
    read = {n for k in later for n in k.inputs()} | set(wanted)
    outputs = tuple(n for n in (*p.outputs, *after.outputs) if n in read)
    return replace(p, stages=(*p.stages, *after.stages), outputs=outputs)


def _rest(p: Kernel, first: _Parts) -> Kernel:
    """The second launch: the folds of the parts, and the stages of a row that follow."""
    stages = []
    for s in p.stages:
        if not s.combine:
            if not s.axes[p.rows :] or not first.lanes:
                stages.append(s)
            continue
        axis = Axis(f"{s.reduced[0].name}{first.suffix}", first.count)
        index: list[Size] = [a.variable for a in s.axes]
        index.insert(p.rows, axis.variable)
        read = Read(s.dtype, f"{s.name}{first.suffix}", tuple(index))
        stages.append(replace(s, reduced=(axis,), term=read))
    outputs = tuple(n for n in p.outputs if any(s.name == n for s in stages))
    return replace(p, stages=tuple(stages), outputs=outputs)
