"""Folds along an axis of a large tile, in the order in which one operation folds it: a balanced tree.

    ((x0 + x4) + (x2 + x6)) + ((x1 + x5) + (x3 + x7))   the upper part onto the lower, again and again

A leaf of the tree is a vector.  Eight leaves that are far apart are joined at once; what they give is
kept in scratch and joined in the same way.  The largest and the least, and folds of whole numbers,
have the same bits in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tessera.core.dims import Size
from tessera.core.dtype import DType
from tessera.core.evaluate import identity
from tessera.core.folds import LANES
from tessera.core.scalar import Number
from tessera.ir.tile.cpu.legalize.nests import Nests, NestWriter, has_any_order
from tessera.ir.tile.cpu.legalize.subtiles import Box, Part
from tessera.ir.tile.ir import Memory, Tile

_AT_ONCE = 8  # leaves that are joined in registers
_IN_REGISTERS = 8 * LANES  # elements of a line that is folded by one operation
_ROWS = 16  # rows that are
_EXACT = ("add", "mul", "max", "min")  # folds with a number that changes no bit of another


class Folds(Nests):
    """Writes nests, with their folds."""

    def write(self, writer: NestWriter, fixed: Mapping[int, Part]) -> None:
        shape, steps, ends = writer.nest.shape, writer.steps(), writer.ends()
        if writer.axis is None:
            self.over(shape, steps, lambda box: void(writer.visit(box)), ends, fixed)
            return
        axis, size = writer.axis, shape[writer.axis]
        others = {a: n for a, n in steps.items() if a != axis}

        def line(box: Box) -> None:
            known = ends.get(axis, ()) if self.facts or len(ends) == 1 else ()
            self.along(size, size, lambda part: totals(box), known)

        def totals(box: Box) -> None:
            writer.end_folds(box, _FoldLine(self, writer, box).totals())

        self.over(shape, others, line, ends, fixed)


def void(x: object) -> None:
    """Nothing, whatever was made."""


class _FoldLine:
    """A line of elements along the folded axis, and lines beside it."""

    def __init__(self, outer: Folds, writer: NestWriter, box: Box):
        assert writer.axis is not None
        self.x, self.writer, self.box, self.axis = outer, writer, box, writer.axis
        self.size = writer.nest.shape[self.axis]
        self.names = [str(fold.attributes["scalar"]) for _, fold in writer.folds]
        self.dtypes = [t.dtype for t, _ in writer.folds]
        self.last = writer.axes[-1:] in ((), (self.axis,))

    def totals(self) -> list[Tile]:
        """The folds of the line."""
        most = _IN_REGISTERS if self.last else _ROWS
        whole = not self.last or self.size % LANES == 0 or self.size < LANES
        loose = all(map(has_any_order, self.names, self.dtypes))
        if self.size <= most and whole and not (loose and not self.last):
            return self.fold(self.visit(0, self.size))
        if loose:
            return self.in_any_order()
        return self.fold(self.tree(self.unit()))

    def visit(self, start: Size, extent: int) -> list[Tile]:
        box = list(self.box)
        box[self.axis] = (start, extent)
        return self.writer.visit(tuple(box))

    def fold(self, parts: Sequence[Tile]) -> list[Tile]:
        """What is left of the trees, in registers."""
        if self.axis not in self.writer.axes:
            return list(parts)
        place = self.writer.axes.index(self.axis)
        return [self.x.b.fold(n, p, place) for n, p in zip(self.names, parts, strict=True)]

    def join(self, low: Sequence[Tile], high: Sequence[Tile]) -> list[Tile]:
        return [self.x.b.apply(n, a, b) for n, a, b in zip(self.names, low, high, strict=True)]

    def shape(self, extent: int) -> tuple[int, ...]:
        """The shape of a part of the line in registers."""
        return tuple(extent if a == self.axis else self.box[a][1] for a in self.writer.axes)

    def unit(self) -> int:
        """Elements of a leaf."""
        if not self.last:
            return 1
        if self.size % LANES == 0 or all(n in _EXACT for n in self.names):
            return LANES
        return self.size & -self.size

    def in_any_order(self) -> list[Tile]:
        """One part after the other."""
        step = max(4, self.x.registers.bytes // 8) * LANES if self.last else 1
        whole = self.size // step * step
        begin = [
            self.x.b.full(d, self.shape(step), identity(n, d))
            for n, d in zip(self.names, self.dtypes, strict=True)
        ]
        with self.x.b.loop(0, whole, step, begin) as loop, self.x.scope():
            loop.carry(*self.join(loop.carried, self.visit(loop.variable, step)))
        totals = self.fold(loop.results)
        if whole == self.size:
            return totals
        return self.join(totals, self.fold(self.visit(whole, self.size - whole)))

    # Trees

    def tree(self, unit: int) -> list[Tile]:
        """A tree over leaves of so many elements; the last one may be short, those behind it missing."""
        full, rest = divmod(self.size, unit)
        count = 1 << (full + bool(rest) - 1).bit_length()
        pads = self.pads(unit) if rest else []

        def leaf(i: Size, like: int) -> list[Tile] | None:
            """Leaf i, which is as full as the one of the number `like`."""
            if like < full:
                return self.visit(i * unit, unit)
            if like > full or not rest:
                return None
            return [
                self.padded(x, m) for x, m in zip(self.visit(i * unit, rest), pads, strict=True)
            ]

        apart = count // _AT_ONCE
        if apart <= 1:
            return self.joined([leaf(i, i) for i in range(count)])
        kept = [self.x.b.alloc(d, (apart, *self.shape(unit))) for d in self.dtypes]
        cuts = sorted({0, full % apart, min(full % apart + bool(rest), apart), apart})
        for start, stop in pairwise(cuts):
            self.join_kept(kept, start, stop, apart, leaf)
        return self.kept_tree(kept, apart)

    def kept_tree(self, kept: Sequence[Memory], count: int) -> list[Tile]:
        """The tree over totals in scratch."""

        def load(i: Size) -> list[Tile]:
            return [self.x.b.load(m, *_line(m, i), axes=range(1, m.type.rank)) for m in kept]

        while count > _AT_ONCE:
            count //= _AT_ONCE
            self.join_kept(kept, 0, count, count, lambda i, j: load(i))
        return self.joined([load(i) for i in range(count)])

    def join_kept(
        self, kept: Sequence[Memory], start: int, stop: int, apart: int,
        leaf: Callable[[Size, int], list[Tile] | None],
    ) -> None:  # fmt: skip
        """Totals of eight leaves that are so far apart, in the place of the first in scratch."""
        with self.x.counting(start, stop) as i:
            far = [j * apart for j in range(_AT_ONCE)]
            totals = self.joined([leaf(i + j, start + j) for j in far])
            for m, total in zip(kept, totals, strict=True):
                self.x.b.store(m, total, *_line(m, i), axes=range(1, m.type.rank))

    def joined(self, leaves: Sequence[list[Tile] | None]) -> list[Tile]:
        """A tree over leaves in registers: the upper half onto the lower."""
        xs = list(leaves)
        while len(xs) > 1:
            half = len(xs) // 2
            pairs = zip(xs[:half], xs[half:], strict=True)
            xs = [a if b is None or a is None else self.join(a, b) for a, b in pairs]
        assert xs[0] is not None
        return xs[0]

    # A last leaf that is short

    def pads(self, unit: int) -> list[Memory]:
        """Leaves of numbers that change nothing."""
        made, shape = [], self.shape(unit)
        for name, d in zip(self.names, self.dtypes, strict=True):
            m = self.x.b.alloc(d, shape)
            self.x.b.store(m, self.x.b.full(d, shape, _neutral(name, d)), [0] * len(shape), shape)
            made.append(m)
        return made

    def padded(self, x: Tile, m: Memory) -> Tile:
        """A short leaf with such numbers behind it."""
        zeros = [0] * len(x.shape)
        self.x.b.store(m, x, zeros, x.shape)
        return self.x.b.load(m, zeros, self.shape(self.unit()))


def _line(m: Memory, i: Size) -> tuple[tuple[Size, ...], tuple[int, ...]]:
    """Where the i-th part of a memory begins and how far it goes."""
    shape: tuple[int, ...] = m.type.shape[1:]  # type: ignore[assignment]
    return (i, *(0 for _ in shape)), (1, *shape)


def _neutral(name: str, dtype: DType) -> Number:
    """What a fold may meet without changing: -0 for sums, since -0 + 0 is 0."""
    if name == "add" and dtype.kind == "f":
        return -0.0
    return identity(name, dtype)
