"""Checkpoints: states of a loop that no size bounds, from which its turns are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.core.types import TensorType
from tessera.ir.tile.autodiff.boxes import ElementBox
from tessera.ir.tile.ir import Builder, Memory, Tile


@dataclass(frozen=True)
class LoopCheckpoints:
    """States at turns that are `far` apart, and at nearer ones of the stretch that is being reversed."""

    coarse: Sequence[Memory]
    fine: Sequence[Memory]
    far: Tile
    near: Tile

    @staticmethod
    def box(t: Tile, slot: Tile) -> ElementBox:
        """Where a tile is kept."""
        sizes = t.shape
        return ElementBox(
            (0,) * (1 + len(sizes)), (1, *sizes), tuple(range(1, 1 + len(sizes))), (), {0: slot}
        )

    def load(self, b: Builder, memories: Sequence[Memory], slot: Tile) -> list[Tile]:
        """The state in a slot."""
        tiles = [Tile(TensorType(m.type.dtype, m.type.shape[1:])) for m in memories]
        return [self.box(t, slot).load(b, m) for t, m in zip(tiles, memories, strict=True)]
