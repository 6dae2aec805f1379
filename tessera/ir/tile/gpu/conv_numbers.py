"""Whole numbers on tiles: quotients and remainders of positions, in 32 bits where they fit."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dims import Size
from tessera.core.dtype import i64, u32, u64
from tessera.ir.tile.ir import Builder, Tile

_SHORT = 1 << 31  # elements that 32-bit positions count


class PositionNumbers:
    """Arithmetic of numbers below `most`, none of which is negative."""

    def __init__(self, b: Builder, most: int):
        self.b, self.dtype = b, u32 if most < _SHORT else u64

    def line(self, at: Size, shape: Sequence[int], axis: int, most: int | None = None) -> Tile:
        """at, at + 1, ... along an axis, and `most` where they would be beyond it."""
        numbers = self.b.cast(self.b.index(at, shape, axis), self.dtype)
        return numbers if most is None else self.b.apply("min", numbers, self.full(numbers, most))

    def full(self, like: Tile, n: int) -> Tile:
        return self.b.full(self.dtype, (1,) * len(like.shape), n)

    def add(self, x: Tile, n: int) -> Tile:
        return self.b.apply("add", x, self.full(x, n)) if n else x

    def mul(self, x: Tile, n: int) -> Tile:
        return self.b.apply("mul", x, self.full(x, n)) if n != 1 else x

    def split(self, x: Tile, n: int) -> tuple[Tile, Tile]:
        """x // n and x % n."""
        if n == 1:
            return x, self.mul(x, 0)
        by = self.full(x, n)
        return self.b.apply("floor_div", x, by), self.b.apply("mod", x, by)

    def places(self, x: Tile, sizes: Sequence[int]) -> list[Tile]:
        """The place along each axis of the element with a number in row-major order."""
        out: list[Tile] = []
        for n in reversed(sizes[1:]):
            x, rest = self.split(x, n)
            out.append(rest)
        return [x, *reversed(out)]

    def joined(self, places: Sequence[Tile], sizes: Sequence[int]) -> Tile:
        """The number of an element in row-major order."""
        total = places[0]
        for x, n in zip(places[1:], sizes[1:], strict=True):
            total = self.b.apply("add", self.mul(total, n), x)
        return total

    def index(self, x: Tile, most: int | None = None) -> Tile:
        """Numbers that say where a gather looks; none is larger than `most`."""
        numbers = self.b.cast(x, i64)
        if most is None:
            return numbers
        return self.b.apply("min", numbers, self.b.full(i64, (1,) * len(x.shape), most))
