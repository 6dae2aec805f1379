"""Products of large tiles: blocks of sums that fit the registers, each one chain in ascending k.

    acc + a b   ->   for n by 64: for m by 6: s = acc[m, n]; for k: s = fma(a[m, k], b[k, n], s)

The block of sums is what the registers hold (ir/schedule/nests/blocks.py), as in contractions.  Where the
right factor lies along k, and the left one is there before the loop, the sums are vectors along m: then
nothing is turned inside the loop, and what follows folds rows without looking into vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tessera.core.dims import Size
from tessera.core.dtype import DType
from tessera.core.folds import LANES
from tessera.core.processor import Registers
from tessera.ir.schedule.nests.blocks import block
from tessera.ir.tile.cpu.legalize.folds import Folds
from tessera.ir.tile.cpu.legalize.large import size_of
from tessera.ir.tile.cpu.legalize.subtiles import Axes, Box, Part, memory_of
from tessera.ir.tile.ir import Operation, Tile

_TALL = 12  # rows of a block at most

Put = Callable[[Tile, Box], None]
_STRAIGHT, _TURNED = (0, 1), (1, 0)  # axes of a block of sums in registers


class Products(Folds):
    """Writes products."""

    registers: Registers

    def product(self, op: Operation, out: Operation | None) -> None:
        """A product whose result goes where a store puts it, or else is kept."""
        self.flush()
        result = op.results[0]
        axes = _TURNED if op in self.turned_products else _STRAIGHT
        if out is not None:
            self.panels(op, axes, self.storing(out, axes))
            return
        kept = self.scratch(result, axes)

        def put(total: Tile, box: Box) -> None:
            self.store_box(kept.memory, total, *self.in_scratch(kept, box, axes), ())

        self.panels(op, axes, put)
        if size_of(result) == 1:
            self.tiles[result] = self.b.load(kept.memory, (0, 0), (1, 1))
        else:
            self.kept[result] = kept

    def storing(self, out: Operation, axes: Axes) -> Put:
        """What puts a block of sums where a store has it."""
        a, memory = out.attributes, self.memories[memory_of(out)]
        to = tuple(a["axes"][i] for i in axes)

        def put(total: Tile, box: Box) -> None:
            self.store_box(memory, total, *self.place(out, box), to, a["masked"])

        return put

    def panels(self, op: Operation, axes: Axes, put: Put) -> None:
        """As many vectors along an axis as a block has, then the others."""
        result, start = op.results[0], 0
        down, across = (result.shape[i] for i in axes)
        for width, stop in self.widths(across, result.dtype):
            vectors = -(-width * (result.dtype.bits // 8) // self.registers.bytes)
            tall = max(min(self.registers.sums // vectors, _TALL, down), 1)
            with self.scope(), self.counting(start, stop, width) as n:
                self.blocks(op, axes, tall, (n, width), put)
            start = stop

    def widths(self, size: int, dtype: DType) -> Iterator[tuple[int, int]]:
        """Widths of blocks, and where those of a width end."""
        done, wide = 0, block(dtype, of=self.registers)[1]
        while done < size:
            width = min(wide, (size - done) // LANES * LANES or size - done)
            done += (size - done) // width * width
            yield width, done

    def blocks(self, op: Operation, axes: Axes, tall: int, across: Part, put: Put) -> None:
        """All blocks beside each other along the other axis."""

        def one(down: Part) -> None:
            box = (down, across) if axes == _STRAIGHT else (across, down)
            put(self.sums(op, axes, box), box)

        self.along(op.results[0].shape[axes[0]], tall, one)

    def sums(self, op: Operation, axes: Axes, box: Box) -> Tile:
        """One block."""
        a, b, acc = op.operands
        rows, columns = box
        first = self.read_whole(acc, box, axes)
        with self.b.loop(0, a.shape[1], 1, [first]) as k, self.scope():
            x = self.read(a, (rows, (k.variable, 1)), axes)
            y = self.read(b, ((k.variable, 1), columns), axes)
            k.carry(self.multiply_add(x, y, k.carried[0]))
        return k.results[0]

    def multiply_add(self, x: Tile, y: Tile, total: Tile) -> Tile:
        if total.dtype.kind == "f":
            return self.b.apply("fma", x, y, total)
        return self.b.apply("add", total, self.b.apply("mul", x, y))

    def in_place(self, t: Tile, left: bool) -> bool:
        """Whether a factor is read from where it lies as fast as from scratch."""
        if t in self.kept or t in self.tiles:
            return True
        op, axes = self.made[t], _STRAIGHT
        while op.name == "transpose" and op.operands[0] in self.made:
            op, axes = self.made[op.operands[0]], axes[::-1]
        if op.name != "load" or op.results[0] in self.kept or self.reaches_out(op):
            return op.name == "full"
        last, shape = op.attributes["axes"][axes[1]], memory_of(op).type.shape
        return left or (last == len(shape) - 1 and is_dense(shape[-1], t.shape[1]))


def is_dense(size: Size, width: int) -> bool:
    """Whether rows of memory are hardly longer than what is read of them: far rows share cache lines."""
    return isinstance(size, int) and size <= 2 * width
