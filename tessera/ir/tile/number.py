"""Tiles with the operators of numbers, so that kernels run formulas that arrays run too."""

from __future__ import annotations

from typing import Self

from tessera.ir.schedule.ir import ANY
from tessera.ir.tile.ir import Builder, Tile


class TileNumber:
    """A tile that adds and multiplies as numbers do."""

    __slots__ = ("b", "tile")

    def __init__(self, b: Builder, tile: Tile):
        self.b, self.tile = b, tile

    def __add__(self, other: Self) -> Self:
        return self._made("add", self.tile, other.tile)

    def __sub__(self, other: Self) -> Self:
        return self._made("sub", self.tile, other.tile)

    def __mul__(self, other: Self | float) -> Self:
        if isinstance(other, float):
            other = type(self)(self.b, self.b.full(self.tile.dtype, (), other))
        return self._made("mul", self.tile, other.tile)

    def __neg__(self) -> Self:
        return self._made("neg", self.tile)

    def _made(self, scalar: str, *tiles: Tile) -> Self:
        return type(self)(self.b, self.b.apply(scalar, *tiles))


class Fused(TileNumber):
    """A number whose products are rounded with the sum that they are added to."""

    __slots__ = ("factors",)

    def __init__(self, b: Builder, tile: Tile, factors: tuple[Tile, ...] = ()):
        super().__init__(b, tile)
        self.factors = factors

    def __add__(self, other: Self) -> Self:
        if other.factors:
            return self._made("fma", *other.factors, self.tile)
        if self.factors:
            return self._made("fma", *self.factors, other.tile)
        return super().__add__(other)

    def __sub__(self, other: Self) -> Self:
        if other.factors:
            x, y = other.factors
            return self._made("fma", self.b.apply("neg", x), y, self.tile)
        if self.factors:
            return self._made("fma", *self.factors, self.b.apply("neg", other.tile))
        return super().__sub__(other)

    def _made(self, scalar: str, *tiles: Tile) -> Self:
        made = self.b.apply(scalar, *tiles)
        return type(self)(self.b, made, tiles if scalar == "mul" else ())


def numbers_of(order: str) -> type[TileNumber]:
    """The numbers of a computation that keeps the law of bits, or of one in any order."""
    return Fused if order == ANY else TileNumber
