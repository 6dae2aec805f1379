"""Scans, scatters and reshapes of large tiles: what goes through the elements in an order of its own."""

from __future__ import annotations

import math

from tessera.core.dims import Size
from tessera.core.folds import LANES
from tessera.ir.tile.cpu.legalize.products import Products
from tessera.ir.tile.cpu.legalize.subtiles import Axes, Box, memory_of, wide_axes
from tessera.ir.tile.ir import Memory, Operation, Tile

_WIDE = 4 * LANES  # elements of a part that is moved


class Moves(Products):
    """Writes what moves elements, or goes through them in order."""

    def scan(self, op: Operation) -> None:
        """Element after element along an axis, for many lines at once."""
        self.flush()
        t, axis = op.results[0], int(op.attributes["axis"])
        kept = self.scratch(t)
        others = [i for i in wide_axes(t.shape) if i != axis]
        keep = tuple(others[-1:])
        steps = {**dict.fromkeys(others, 1), **dict.fromkeys(keep, LANES)}
        with self.scope():
            self.over(t.shape, steps, lambda box: self.scan_line(op, kept.memory, box, keep))
        self.kept[t] = kept

    def scan_line(self, op: Operation, memory: Memory, box: Box, keep: Axes) -> None:
        """The lines of a box, side by side."""
        x, axis = op.operands[0], int(op.attributes["axis"])

        def at(i: Size) -> Box:
            return (*box[:axis], (i, 1), *box[axis + 1 :])

        def put(i: Size, total: Tile) -> None:
            self.b.store(memory, total, [s for s, _ in at(i)], [n for _, n in at(i)], keep)

        first = self.read_whole(x, at(0), keep)
        put(0, first)
        with self.b.loop(1, x.shape[axis], 1, [first]) as loop, self.scope():
            i = loop.variable
            element = self.read_whole(x, at(i), keep)
            total = self.b.apply(op.attributes["scalar"], loop.carried[0], element)
            put(i, total)
            loop.carry(total)

    def scatter(self, op: Operation) -> None:
        """Element after element in row-major order: of several for one place the last stays."""
        self.flush()
        for t in op.operands:
            if t in self.made and memory_of(op) in self.memories_of(t):
                self.keep(t)
                self.flush()
        shape = op.operands[0].shape
        axes = wide_axes(shape)
        keep = tuple(axes[-1:])
        steps = {**dict.fromkeys(axes, 1), **dict.fromkeys(keep, LANES)}
        with self.scope():
            self.over(shape, steps, lambda box: self.scatter_part(op, box, keep))

    def scatter_part(self, op: Operation, box: Box, keep: Axes) -> None:
        a = op.attributes
        x = self.read_whole(op.operands[0], box, keep)
        picked = {
            axis: self.operand(t, box, keep)
            for axis, t in zip(a["picked"], op.operands[1:], strict=True)
        }
        axes = [a["axes"][i] for i in keep] if a["axes"] else []
        if not axes:  # the places alone say how many elements there are
            picked = {axis: self.b.broadcast(t, x.shape) for axis, t in picked.items()}
        at, extent = self.place(op, box if a["axes"] else ())
        self.b.scatter(self.memories[memory_of(op)], x, picked, at, extent, axes, a["masked"])

    def reshape(self, op: Operation) -> None:
        """A tile in another shape, through scratch whose rows are whole in both shapes."""
        self.flush()
        x, t = op.operands[0], op.results[0]
        row = math.gcd(x.shape[-1] if x.shape else 1, t.shape[-1] if t.shape else 1)
        rows = self.b.alloc(x.dtype, (math.prod(x.shape) // row, row))
        step = max(i for i in range(1, min(row, _WIDE) + 1) if row % i == 0)
        kept = self.scratch(t)

        def there(box: Box) -> None:
            flat = _flat(x.shape, box)
            part = self.read_whole(x, box, (len(x.shape) - 1,))
            self.b.store(rows, part, (flat // row, flat % row), (1, step), (1,))

        def back(box: Box) -> None:
            flat = _flat(t.shape, box)
            part = self.b.load(rows, (flat // row, flat % row), (1, step), (1,))
            at, extent = [s for s, _ in box], [n for _, n in box]
            self.b.store(kept.memory, part, at, extent, (len(t.shape) - 1,))

        for shape, move in ((x.shape, there), (t.shape, back)):
            steps = {i: step if i == len(shape) - 1 else 1 for i in range(len(shape))}
            with self.scope():
                self.over(shape, steps, move)
        self.kept[t] = kept


def _flat(shape: tuple[int, ...], box: Box) -> Size:
    """The number of the first element of a box, in row-major order."""
    total: Size = 0
    for n, (start, _) in zip(shape, box, strict=True):
        total = total * n + start
    return total
