"""Products of large tiles: blocks of sums that fit the registers, each one chain in ascending k.

    acc + a b   ->   for n by 64: for m by 6: s = acc[m, n]; for k: s = fma(a[m, k], b[k, n], s)

The block of sums is what the registers hold (ir/schedule/blocks.py), as in contractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tessera.core.dims import Size
from tessera.core.folds import LANES
from tessera.core.processor import Registers
from tessera.ir.schedule.blocks import block
from tessera.ir.tile.expand.boxes import Box, Part, memory_of
from tessera.ir.tile.expand.folds import Folds
from tessera.ir.tile.expand.large import size_of
from tessera.ir.tile.ir import Operation, Tile

_TALL = 12  # rows of a block at most

Put = Callable[[Tile, Box], None]


class Products(Folds):
    """Writes products."""

    registers: Registers

    def product(self, op: Operation, out: Operation | None) -> None:
        """A product whose result goes where a store puts it, or else is kept."""
        self.flush()
        result = op.results[0]
        if out is not None:
            self.panels(op, self.storing(out))
            return
        memory = self.scratch(result)

        def put(total: Tile, box: Box) -> None:
            self.b.store(memory, total, [s for s, _ in box], [n for _, n in box])

        self.panels(op, put)
        if size_of(result) == 1:
            self.tiles[result] = self.b.load(memory, (0, 0), (1, 1))
        else:
            self.kept[result] = memory

    def storing(self, out: Operation) -> Put:
        """What puts a block of sums where a store has it."""
        axes, masked = out.attributes["axes"], out.attributes["masked"]
        memory = self.memories[memory_of(out)]

        def put(total: Tile, box: Box) -> None:
            self.store_box(memory, total, *self.place(out, box), axes, masked)

        return put

    def panels(self, op: Operation, put: Put) -> None:
        """Columns that are as many as a block has, then the others."""
        result, start = op.results[0], 0
        for width, stop in self.widths(result):
            vectors = -(-width * (result.dtype.bits // 8) // self.registers.bytes)
            tall = max(min(self.registers.sums // vectors, _TALL, result.shape[0]), 1)
            with self.scope(), self.counting(start, stop, width) as n:
                self.blocks(op, tall, (n, width), put)
            start = stop

    def blocks(self, op: Operation, tall: int, columns: Part, put: Put) -> None:
        """All rows of some columns."""
        self.along(op.results[0].shape[0], tall, lambda rows: self.sums(op, (rows, columns), put))

    def widths(self, result: Tile) -> Iterator[tuple[int, int]]:
        """Widths of blocks, and where the columns end that they compute."""
        size, done = result.shape[1], 0
        wide = block(result.dtype, of=self.registers)[1]
        while done < size:
            width = min(wide, (size - done) // LANES * LANES or size - done)
            done += (size - done) // width * width
            yield width, done

    def sums(self, op: Operation, box: Box, put: Put) -> None:
        """One block."""
        a, b, acc = op.operands
        rows, columns = box
        first = self.read_whole(acc, box, (0, 1))
        with self.b.loop(0, a.shape[1], 1, [first]) as k, self.scope():
            x = self.read(a, (rows, (k.variable, 1)), (0, 1))
            y = self.read(b, ((k.variable, 1), columns), (0, 1))
            k.carry(self.multiply_add(x, y, k.carried[0]))
        put(k.results[0], box)

    def multiply_add(self, x: Tile, y: Tile, total: Tile) -> Tile:
        if total.dtype.kind == "f":
            return self.b.apply("fma", x, y, total)
        return self.b.apply("add", total, self.b.apply("mul", x, y))

    def in_place(self, t: Tile, left: bool) -> bool:
        """Whether a factor is read from where it lies as fast as from scratch."""
        if t in self.kept or t in self.tiles:
            return True
        op = self.made[t]
        if op.name != "load" or self.reaches_out(op):
            return False
        axes, shape = op.attributes["axes"], memory_of(op).type.shape
        return left or (axes[1] == len(shape) - 1 and is_dense(shape[-1], t.shape[1]))


def is_dense(size: Size, width: int) -> bool:
    """Whether rows of memory are hardly longer than what is read of them: far rows share cache lines."""
    return isinstance(size, int) and size <= 2 * width
