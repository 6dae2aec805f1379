"""turned: kernels that read a tensor across its rows, as Tile programs of squares.

    t[r, c] = x[c, r] * 2   ->   program (r by 64, c by 64): for c by 16, r by 16:
                                     square = transpose(load(x, c, r)); for each row: t = square[row] * 2

A column of x touches a line of the cache for every element; a square uses all of the 16 lines that it
loads.  Lines must begin where rows do, else squares share them and nothing is gained.  The elements are
those of rows.py, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tessera.core.dims import Dim, Size, smaller, substitute, symbol, symbols
from tessera.core.folds import LANES
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Axis, Read, Term, reads
from tessera.ir.schedule.ir import Kernel as Loops
from tessera.ir.schedule.sweeps import passes
from tessera.ir.tile.cpu.rows import Rows
from tessera.ir.tile.ir import Kernel, Memory, Tile

_SIDE = 64  # rows and columns of an instance
_BITS = 32  # of the numbers: a square of them fits the registers, and its lines those of the cache


class AxisPlaces(NamedTuple):
    """The axes of a tensor along the columns and along the rows of a kernel, and the name of the columns."""

    down: int
    across: int
    column: str


def turned_rows(kernel: Loops, types: Mapping[str, TensorType]) -> Kernel | None:
    """The Tile program of a kernel that reads across rows; None for any other."""
    found = _turned(kernel, types)
    return TransposedKernel(kernel, types, found).kernel() if found else None


def _turned(kernel: Loops, types: Mapping[str, TensorType]) -> dict[Read, AxisPlaces]:
    """Reads whose neighbours in memory are rows of the kernel."""
    axes = kernel.stages[0].axes
    alike = all(s.type.shape == kernel.stages[0].type.shape for s in kernel.stages)
    plain = alike and not any(s.reduced for s in kernel.stages) and not any(passes(kernel).values())
    if kernel.rows == 0 or len(axes) != kernel.rows + 1 or not plain or not _is_even(axes[-1].size):
        return {}
    row, own = axes[-2], {s.name for s in kernel.stages}
    if isinstance(row.size, int) and row.size < LANES:
        return {}
    found: dict[Read, AxisPlaces] = {}
    for r, column in ((r, s.axes[-1]) for s in kernel.stages for r in reads(s.term)):
        if r.source in own or r.dtype.bits != _BITS or r.dtype.kind not in "fiu":
            continue
        down, across = _only(r, column), _only(r, row)
        last = len(r.index) - 1
        if down is not None and down != across == last and _is_even(types[r.source].shape[last]):
            found[r] = AxisPlaces(down, last, column.name)
    return found


def _is_even(size: Size) -> bool:
    """Whether squares end where an axis does."""
    return isinstance(size, int) and size > 0 and size % LANES == 0


def _only(r: Read, axis: Axis) -> int | None:
    """The one place of an index that walks along an axis, step by step."""
    if any(isinstance(i, Term) for i in r.index):
        return None
    found = [i for i, x in enumerate(r.index) if axis.name in symbols(x)]
    if len(found) != 1 or axis.name in symbols(r.index[found[0]] - symbol(axis.name)):
        return None
    return found[0]


class TransposedKernel(Rows):
    """A kernel being written square by square."""

    def __init__(
        self, kernel: Loops, types: Mapping[str, TensorType], turned: dict[Read, AxisPlaces]
    ):
        super().__init__(kernel, types)
        self.turned = turned
        self.lines: dict[Read, Tile] = {}  # of the squares, for the row being computed

    def kernel(self) -> Kernel:
        *batch, row, column = self.k.stages[0].axes
        for a in batch:
            self.env[a.name] = self.b.program(a.size)
        start, first = (
            self.b.program((a.size + _SIDE - 1) // _SIDE) * _SIDE for a in (row, column)
        )
        stop = smaller(start + _SIDE, row.size)
        whole = (stop - start) // LANES * LANES + start
        spans = [(start, whole, False)] + [(whole, stop, True)] * (not _is_even(row.size))
        with self.b.loop(first, smaller(first + _SIDE, column.size), LANES) as columns:
            for begin, end, cut in spans:
                with self.b.loop(begin, end, LANES) as rows:
                    self.square(rows.variable, columns.variable, cut)
        return self.b.finish()

    def square(self, start: Dim, at: Dim, cut: bool) -> None:
        """16 columns of 16 rows, or of those that are left."""
        row = self.k.stages[0].axes[-2]
        kept = {r: self.scratch(r, start, at, cut) for r in self.turned}
        self.width = LANES
        with self.b.loop(0, row.size - start if cut else LANES) as line:
            self.env[row.name] = start + line.variable
            for r, memory in kept.items():
                self.lines[r] = self.b.load(memory, (line.variable, 0), (1, LANES), axes=(1,))
            self.chunk(self.k.stages, at, 0, False, [])

    def scratch(self, r: Read, start: Dim, at: Dim, cut: bool) -> Memory:
        """A square of a tensor with its columns as rows."""
        down, across, column = self.turned[r]
        env = {**self.env, self.k.stages[0].axes[-2].name: start, column: at}
        extent = [LANES if i in (down, across) else 1 for i in range(len(r.index))]
        square = self.b.load(
            self.memory[r.source], [substitute(i, env) for i in r.index], extent,
            axes=(down, across), masked=(across,) if cut else (),
        )  # fmt: skip
        memory = self.b.alloc(r.dtype, (LANES, LANES))
        self.b.store(memory, self.b.transpose(square), (0, 0), (LANES, LANES))
        return memory

    def read(self, r: Read, column: str | None) -> Tile:
        return self.lines[r] if r in self.lines else super().read(r, column)
