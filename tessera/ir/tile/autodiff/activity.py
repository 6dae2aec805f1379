"""moving: the tiles and the scratch that depend on what is differentiated."""

from __future__ import annotations

from collections.abc import Iterable

from tessera.ir.tile.ir import Block, Kernel, Memory, Tile


def moving(kernel: Kernel, wanted: Iterable[Memory]) -> tuple[set[Tile], set[Memory]]:
    """Tiles of floats that depend on floats of these memories, and the memories that hold such."""
    tiles: set[Tile] = set()
    memories = {m for m in wanted if m.type.dtype.kind == "f"}
    before = -1
    while len(tiles) + len(memories) > before:
        before = len(tiles) + len(memories)
        _block(kernel.body, tiles, memories)
    return tiles, memories


def _block(block: Block, tiles: set[Tile], memories: set[Memory]) -> None:
    for op in block.operations:
        depends = not tiles.isdisjoint(op.operands)
        if op.block is not None:
            _pass(op.operands, op.block.arguments, tiles)
            _block(op.block, tiles, memories)
            _pass(op.block.outputs, op.block.arguments, tiles)
            _pass(op.block.arguments, op.results, tiles)
        elif op.results:
            if depends or op.memory in memories:
                tiles.update(t for t in op.results if t.dtype.kind == "f")
        elif depends and op.memory is not None:
            memories.add(op.memory)


def _pass(given: tuple[Tile, ...], taken: tuple[Tile, ...], tiles: set[Tile]) -> None:
    tiles.update(y for x, y in zip(given, taken, strict=True) if x in tiles)
