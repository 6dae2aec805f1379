"""Writing a kernel again, operation by operation, with new names; passes change what they must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.dims import Dim, Size, substitute
from tessera.ir.tile.cpu.legalize.ranges import Range, loop_range
from tessera.ir.tile.ir import Block, Builder, Kernel, Memory, Operation, Tile


class Copy:
    """A kernel being written again."""

    def __init__(self, kernel: Kernel):
        self.source, self.b = kernel, Builder(kernel.name)
        self.b.parameters = list(kernel.parameters)
        self.sizes: dict[str, Size] = {}  # counters by the names they had
        self.ranges: dict[str, Range] = {}  # of the new counters
        for i, (name, count) in enumerate(kernel.grid):
            self.sizes[name] = self.b.program(count)
            self.ranges[self.b.grid[i][0]] = loop_range(0, count, 1, {})
        self.memories: dict[Memory, Memory] = {m: m for m in kernel.parameters}
        self.tiles: dict[Tile, Tile] = {}

    def kernel(self) -> Kernel:
        """The new kernel."""
        self.block(self.source.body)
        return self.b.finish()

    def block(self, block: Block) -> None:
        """The operations of a block, in order."""
        for op in block.operations:
            self.b.location = op.location
            self.operation(op)

    def operation(self, op: Operation) -> None:
        """One operation, as it is."""
        if op.block is not None:
            self.loop(op, op.block)
        elif op.name == "alloc":
            self.alloc(op)
        else:
            self.repeat(op, [self.tiles[t] for t in op.operands])

    def repeat(self, op: Operation, operands: Sequence[Tile]) -> None:
        """An operation without a block on other tiles."""
        memory = None if op.memory is None else self.memories[op.memory]
        made = self.b.repeat(op, operands, self.renamed(op.attributes), memory)
        self.tiles.update(zip(op.results, made, strict=True))

    def alloc(self, op: Operation) -> None:
        """Scratch of its own."""
        assert op.memory is not None
        m = op.memory
        self.memories[m] = self.b.alloc(m.type.dtype, m.type.shape, m.space)

    def loop(self, op: Operation, block: Block) -> None:
        """A loop, whose carried tiles are carried."""
        a = self.renamed(op.attributes)
        carried = [self.tiles[t] for t in op.operands]
        with self.b.loop(a["start"], a["stop"], a["step"], carried, like=op) as loop:
            self.sizes[a["variable"]] = loop.variable
            self.ranges[loop.name] = loop_range(a["start"], a["stop"], a["step"], self.ranges)
            self.tiles.update(zip(block.arguments, loop.carried, strict=True))
            self.block(block)
            loop.carry(*(self.tiles[t] for t in block.outputs))
        self.tiles.update(zip(op.results, loop.results, strict=True))

    def renamed(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes in which positions mention the new counters."""
        return {key: self.moved(x) for key, x in attributes.items()}

    def moved(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(self.moved(y) for y in x)
        return substitute(x, self.sizes) if isinstance(x, Dim) else x
