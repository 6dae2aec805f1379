"""Tiles with the operators of numbers, so that kernels run formulas that arrays run too."""

from __future__ import annotations

from tessera.ir.tile.ir import Builder, Tile


class Number:
    """A tile that adds and multiplies as numbers do."""

    __slots__ = ("b", "tile")

    def __init__(self, b: Builder, tile: Tile):
        self.b, self.tile = b, tile

    def __add__(self, other: Number) -> Number:
        return Number(self.b, self.b.apply("add", self.tile, other.tile))

    def __sub__(self, other: Number) -> Number:
        return Number(self.b, self.b.apply("sub", self.tile, other.tile))

    def __mul__(self, other: Number | float) -> Number:
        if isinstance(other, float):
            other = Number(self.b, self.b.full(self.tile.dtype, (), other))
        return Number(self.b, self.b.apply("mul", self.tile, other.tile))

    def __neg__(self) -> Number:
        return Number(self.b, self.b.apply("neg", self.tile))
