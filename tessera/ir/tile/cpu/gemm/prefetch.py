"""What a block of a contraction will be written to and read with, asked for while it is computed.

A processor has few places for lines that are on their way: when all the lines of a block are asked for
at once, what the block reads meanwhile waits behind them.  So a piece at a time is asked for, while the sum
goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tessera.core.dims import Size, smaller, substitute
from tessera.core.folds import LANES
from tessera.ir.schedule.ir import Axis, Kernel, Term, reads
from tessera.ir.tile.ir import Builder, Memory


@dataclass(frozen=True)
class BlockPart:
    """So many rows and columns of a block, from a row and a column of it on."""

    row: Size
    column: Size
    rows: int
    columns: int


@dataclass(frozen=True)
class Pieces:
    """A block cut into pieces of so many rows and columns, of which one is asked for in so many turns."""

    rows: int
    columns: int
    across: int  # pieces in a row of the block
    count: int
    turns: int

    def number(self, turn: Size) -> Size:
        """The piece that is asked for in a turn."""
        return smaller(turn // self.turns, self.count - 1)

    def of_turn(self, turn: Size) -> BlockPart:
        """The same with its place."""
        n = self.number(turn)
        row, column = n // self.across * self.rows, n % self.across * self.columns
        return BlockPart(row, column, self.rows, self.columns)


def pieces(height: int, width: int, turns: Size) -> Pieces:
    """The smallest pieces of a block that so many turns can ask for: vectors, rows or several rows."""
    known = turns if isinstance(turns, int) else height
    if known >= height * (width // LANES):
        rows, columns = 1, LANES
    else:
        rows, columns = -(-height // max(known, 1)), width
    count = -(-height // rows) * (width // columns)
    each = 1 << max(known // count, 1).bit_length() - 1
    return Pieces(rows, columns, width // columns, count, each)


def turns_of_row(height: int, width: int, counts: Collection[int]) -> int:
    """How many turns ask for a row of a block, a power of 2: as many as leave turns for every row.

    There may be any of these numbers of turns.  1 if a turn has a row or more to ask for, or if nothing is
    known.
    """
    each = 1
    while counts and 2 * each <= width and all(_leaves_rows(n, 2 * each, height) for n in counts):
        each *= 2
    return each


def _leaves_rows(turns: int, each: int, height: int) -> bool:
    return turns % each == 0 and turns // each >= height


@dataclass(frozen=True)
class Prefetch:
    """What a block has of a memory, from where the block begins."""

    memory: Memory
    at: tuple[Size, ...]

    def piece(self, b: Builder, of: BlockPart, far: bool = False) -> None:
        """Ask for a piece, or have it come to the second cache (far)."""
        *batch, m, n = self.at
        extent = (*(1 for _ in batch), of.rows, of.columns)
        b.prefetch(self.memory, (*batch, m + of.row, n + of.column), extent, far=far)


def asks(
    kernel: Kernel, memory: Mapping[str, Memory], out: Mapping[str, Memory], env: Mapping[str, Size]
) -> Iterator[Prefetch]:
    """The outputs of a block, and what its stages read at its own points, where that lies in rows."""
    axes = kernel.stages[0].axes
    own = {s.name for s in kernel.stages}
    for s in kernel.stages:
        if s.name in out:
            yield Prefetch(out[s.name], tuple(env[a.name] for a in axes))
    later = {r for s in kernel.stages[1:] for r in reads(s.term)}
    for r in sorted((r for r in later if r.source not in own), key=str):
        if _in_rows(r.index, axes):
            at = tuple(substitute(i, env) for i in r.index)
            yield Prefetch(memory[r.source], at)


def _in_rows(index: tuple[Size | Term, ...], axes: tuple[Axis, ...]) -> bool:
    data = any(isinstance(i, Term) for i in index)
    return not data and index[-2:] == tuple(a.variable for a in axes[-2:])
