"""Positions along a line of elements, as tiles: what a polynomial is at each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.core.dims import Size, SizeFunction, Symbol, substitute, symbol, symbols
from tessera.core.dtype import i64
from tessera.ir.schedule.ir import Position, Term
from tessera.ir.tile.ir import Builder, Tile

Environment = Mapping[str, Size]


def moves_by_one(x: Size, column: str) -> bool:
    """Whether a position goes on by 1 from column to column."""
    return column in symbols(x) and column not in symbols(x - symbol(column))


def counts_along(t: Term, column: str) -> bool:
    """Whether a place that is computed counts columns itself, so that it goes on where they have ended."""
    own = isinstance(t, Position) and column in symbols(t.value)
    return own or any(counts_along(x, column) for x in t.children())


@dataclass(frozen=True)
class ColumnLine:
    """Columns from `at` on; the other names in positions have the values of `env`."""

    b: Builder
    column: str
    at: Size
    width: int
    env: Environment

    def numbers(self, x: Size) -> Tile:
        """The values of a polynomial at the columns, or the one value that it has there."""
        if isinstance(x, int) or self.column not in symbols(x):
            return self.b.index(substitute(x, self.env), (1,))
        total: Tile | None = None
        for monomial, factor in x.terms:
            term = self.b.index(factor, (1,))
            for atom, power in monomial:
                for _ in range(power):
                    term = self.b.apply("mul", term, self.atom(atom))
            total = term if total is None else self.b.apply("add", total, term)
        assert total is not None
        return total

    def atom(self, atom: Symbol | SizeFunction) -> Tile:
        if isinstance(atom, Symbol):
            if atom.name == self.column:
                return self.b.index(self.at, (self.width,), 0)
            return self.b.index(substitute(symbol(atom.name), self.env), (1,))
        name = {"//": "floor_div", "%": "mod"}.get(atom.function, atom.function)
        return self.b.apply(name, *(self.numbers(side) for side in (atom.left, atom.right)))

    def clamped(self, x: Tile, size: Size) -> Tile:
        """Numbers that lie inside an axis also where the line reaches past the last column."""
        low = self.b.apply("max", x, self.b.full(i64, (1,), 0))
        return self.b.apply("min", low, self.b.index(size - 1, (1,)))
