"""carry_in_memory: loops that carry large tiles keep them in scratch.

    for acc in (zeros): acc = f(acc)   ->   store(s, zeros); for: acc = load(s); store(s, f(acc))

A tile is stored as soon as nothing reads what was there before, so that a product adds to its sums in
place.  Products of narrow numbers are written with their casts, and asynchronous stores as stores.
"""

from __future__ import annotations

from tessera.core.dtype import DType
from tessera.ir.tile.cpu.legalize.copy import Copy
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile, walk


def carry_in_memory(kernel: Kernel, large: set[Tile]) -> Kernel:
    """A kernel in which no loop carries a large tile."""
    return _ScratchCarry(kernel, large).kernel()


class _ScratchCarry(Copy):
    def __init__(self, kernel: Kernel, large: set[Tile]):
        super().__init__(kernel)
        self.large = large
        self.early: dict[Operation, list[tuple[Tile, Memory]]] = {}  # stores after an operation
        self.wide: dict[Tile, DType] = {}  # narrow factors, in the dtype of the sums
        for op in walk(kernel.body):
            if op.name == "dot":
                self.wide |= dict.fromkeys(op.operands[:2], op.operands[2].dtype)
        self.casts: dict[tuple[Tile, DType], Tile] = {}

    def operation(self, op: Operation) -> None:
        if op.name == "dot":
            self.dot(op)
        elif op.name == "store_async":
            operands = [self.tiles[t] for t in op.operands]
            self.repeat(Operation("store", op.operands, op.attributes, (), op.memory), operands)
        elif not op.traits.orders:  # an instance is one thread here
            super().operation(op)
        for t in op.results:
            if t in self.wide:  # once, before the loops that use it
                self.casts[t, self.wide[t]] = self.b.cast(self.tiles[t], self.wide[t])
        for t, m in self.early.get(op, ()):
            self.store(t, m)

    def cast(self, t: Tile, dtype: DType) -> Tile:
        known = self.casts.get((t, dtype))
        return self.b.cast(self.tiles[t], dtype) if known is None else known

    def dot(self, op: Operation) -> None:
        a, b, acc = op.operands
        left, right = (self.cast(x, acc.dtype) for x in (a, b))
        self.tiles[op.results[0]] = self.b.dot(left, right, self.tiles[acc])

    def store(self, t: Tile, m: Memory) -> None:
        self.b.store(m, self.tiles[t], (0,) * len(t.shape), t.shape)

    def load(self, m: Memory, t: Tile) -> None:
        self.tiles[t] = self.b.load(m, (0,) * len(t.shape), t.shape)

    def loop(self, op: Operation, block: Block) -> None:
        kept: dict[int, Memory] = {}
        for i, t in enumerate(op.operands):
            if t in self.large:
                kept[i] = self.b.alloc(t.dtype, t.shape)
                self.store(t, kept[i])
        a = self.renamed(op.attributes)
        others = [i for i in range(len(op.operands)) if i not in kept]
        with self.b.loop(
            a["start"], a["stop"], a["step"], [self.tiles[op.operands[i]] for i in others], like=op
        ) as loop:
            self.sizes[a["variable"]] = loop.variable
            self.tiles.update(zip((block.arguments[i] for i in others), loop.carried, strict=True))
            for i, m in kept.items():
                self.load(m, block.arguments[i])
            late = self.place(block, kept)
            self.block(block)
            for t, m in late:
                self.store(t, m)
            loop.carry(*(self.tiles[block.outputs[i]] for i in others))
        self.tiles.update(zip((op.results[i] for i in others), loop.results, strict=True))
        for i, m in kept.items():
            self.load(m, op.results[i])

    def place(self, block: Block, kept: dict[int, Memory]) -> list[tuple[Tile, Memory]]:
        """Where in a body the carried tiles are stored; those that must wait for its end."""
        late = []
        made = {t: i for i, op in enumerate(block.operations) for t in op.results}
        last: dict[Tile, int] = {}
        for i, op in enumerate(block.operations):
            last.update(dict.fromkeys(used_by(op), i))
        last.update(dict.fromkeys(block.outputs, len(block.operations)))
        for i, m in kept.items():
            t, old = block.outputs[i], block.arguments[i]
            if t is old:
                continue
            if t in made and last.get(old, -1) <= made[t]:
                self.early.setdefault(block.operations[made[t]], []).append((t, m))
            else:
                late.append((t, m))
        return late


def used_by(op: Operation) -> list[Tile]:
    """The tiles that an operation and those in its block read."""
    found = list(op.operands)
    if op.block is not None:
        found += op.block.outputs
        for o in walk(op.block):
            found += o.operands if o.block is None else (*o.operands, *o.block.outputs)
    return found
