"""prune: a kernel without what no result depends on.

    s = alloc; for i: store(s, i, x)     ->   nothing, when s is never read
    for i carrying (a, b): yield (a, f(b))   ->   for i carrying b: a is what it was before

An operation stays when it writes to a parameter, or to scratch that is read, or when one that stays uses
its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tessera.ir.tile.autodiff.plan import ends_by_data
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, Tile


def prune(kernel: Kernel) -> Kernel:
    """A kernel with the same results that computes nothing else."""
    settled = replace(kernel, body=_Settled().block(kernel.body))
    live = _LiveTiles()
    while live.grows(settled.body):
        pass
    return replace(settled, body=live.block(settled.body))


class _Settled:
    """Loops no longer carry tiles that no turn changes."""

    def __init__(self) -> None:
        self.same: dict[Tile, Tile] = {}

    def of(self, tiles: Sequence[Tile]) -> tuple[Tile, ...]:
        return tuple(self.same.get(t, t) for t in tiles)

    def block(self, b: Block) -> Block:
        operations = tuple(self.operation(op) for op in b.operations)
        return Block(b.arguments, operations, self.of(b.outputs))

    def operation(self, op: Operation) -> Operation:
        operands, block, results = self.of(op.operands), op.block, op.results
        if block is not None:
            kept = [
                k
                for k, (a, y) in enumerate(zip(block.arguments, block.outputs, strict=True))
                if a is not y or (k == 0 and ends_by_data(op.attributes))
            ]
            for k, t in enumerate(operands):
                if k not in kept:
                    self.same[block.arguments[k]] = self.same[results[k]] = t
            inner = self.block(block)
            block = Block(_at(inner.arguments, kept), inner.operations, _at(inner.outputs, kept))
            operands, results = _at(operands, kept), _at(results, kept)
        return Operation(op.name, operands, op.attributes, results, op.memory, block, op.location)


class _LiveTiles:
    """The tiles and the scratch that results depend on."""

    def __init__(self) -> None:
        self.tiles: set[Tile] = set()
        self.read: set[Memory] = set()

    def grows(self, body: Block) -> bool:
        """Whether one more walk from the end to the start found more of them."""
        before = len(self.tiles) + len(self.read)
        self.mark(body)
        return len(self.tiles) + len(self.read) > before

    def mark(self, b: Block) -> None:
        for op in reversed(b.operations):
            if op.block is not None:
                self._carry(op, op.block)
                self.mark(op.block)
                self._carry(op, op.block)
            elif self.stays(op):
                self.tiles.update(op.operands)
                if op.memory is not None and op.results:
                    self.read.add(op.memory)

    def _carry(self, op: Operation, block: Block) -> None:
        for k in self.carried(op, block):
            self.tiles.update((op.operands[k], block.arguments[k], block.outputs[k], op.results[k]))

    def carried(self, op: Operation, block: Block) -> list[int]:
        """Which of the tiles that a loop carries are used in it or after it, or end it."""
        pairs = zip(block.arguments, op.results, strict=True)
        used = [k for k, pair in enumerate(pairs) if not self.tiles.isdisjoint(pair)]
        ends = ends_by_data(op.attributes) and 0 not in used
        return [0, *used] if ends and (used or self.acts(block)) else used

    def acts(self, block: Block) -> bool:
        """Whether some operation of a block stays."""
        return any(map(self.stays, block.operations))

    def stays(self, op: Operation) -> bool:
        if op.block is not None:
            return bool(self.carried(op, op.block)) or self.acts(op.block)
        if op.traits.writes:
            assert op.memory is not None
            return op.memory.space == "global" or op.memory in self.read
        if op.name == "alloc":
            return op.memory in self.read
        if op.traits.orders:
            return any(m.space == "shared" for m in self.read)
        return not self.tiles.isdisjoint(op.results)

    def block(self, b: Block) -> Block:
        """The block with what stays."""
        operations = tuple(self.operation(op) for op in b.operations if self.stays(op))
        return Block(b.arguments, operations, b.outputs)

    def operation(self, op: Operation) -> Operation:
        if op.block is None:
            return op
        kept, inner = self.carried(op, op.block), self.block(op.block)
        block = Block(_at(inner.arguments, kept), inner.operations, _at(inner.outputs, kept))
        return Operation(
            op.name, _at(op.operands, kept), op.attributes, _at(op.results, kept), None, block,
            op.location,
        )  # fmt: skip


def _at(tiles: Sequence[Tile], kept: Sequence[int]) -> tuple[Tile, ...]:
    return tuple(tiles[k] for k in kept)
