"""Where the walk through the nest of a contraction stands, and what is staged there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tessera.core.dims import Size
from tessera.core.folds import LANES, LEAF, WHOLE
from tessera.ir.schedule.ir import LAW
from tessera.ir.schedule.nests.nest import Nest, NestLoop
from tessera.ir.tile.ir import Memory

_FEW, _SHORT = 2, 128  # panels that read a packed factor, and k of it
_DEEP = 2048  # k of a chain that stays in registers where any order will do, at most


@dataclass(frozen=True)
class PointRange:
    """Points of an axis: from start to stop, at most `most` of them."""

    start: Size
    stop: Size
    most: Size


@dataclass(frozen=True)
class PackedFactor:
    """A factor in scratch: blocks of its axis, k, the points of a block."""

    memory: Memory
    first: Size  # the point of its axis where the first block begins
    k: Size  # the k where it begins
    width: int
    filled: bool = True  # or the first block that reads it packs it


@dataclass(frozen=True)
class LeafSums:
    """Sums of leaves in scratch, of the block whose corner is (m, n)."""

    memory: Memory
    m: Size
    n: Size
    leaf: Size
    begun: bool = False  # they hold the chains of earlier strips
    joined: int = 0  # how many there are, if the last one meets the others in registers

    @property
    def last(self) -> Size:
        """1 for the last of leaves that are joined, 0 before."""
        return self.leaf // (self.joined - 1)


@dataclass(frozen=True)
class NestCursor:
    """Where the walk through the nest stands."""

    m: PointRange
    n: PointRange
    k: PointRange
    left: PackedFactor | None = None
    right: PackedFactor | None = None
    leaves: LeafSums | None = None


def with_rows(nest: Nest) -> Nest:
    """A nest whose innermost loop over m is serial, so that it can end with lower blocks."""
    if nest.steps("m", "serial"):
        return nest
    first = sum(x.kind == "parallel" for x in nest.loops)
    row = NestLoop("m", nest.steps("m", "parallel")[-1])
    staged = tuple((name, i + (i >= first)) for name, i in nest.staged)
    return Nest((*nest.loops[:first], row, *nest.loops[first:]), staged)


def leaves_of(nest: Nest, order: str, k: Size) -> tuple[Nest, int]:
    """A nest and the leaf of its sums; in any order they are one chain, in strips where they are long."""
    if order == LAW:
        return nest, LEAF
    cuts = [i for i, x in enumerate(nest.loops) if x.axis == "k" and x.step > 1]
    if isinstance(k, int) and k <= _DEEP and not any(name == "left" for name, _ in nest.staged):
        return without(nest, cuts), WHOLE
    return (without(nest, cuts[:-1]), WHOLE) if cuts else (nest, LEAF)


def without(nest: Nest, dropped: list[int]) -> Nest:
    """A nest without some of its loops."""
    loops = tuple(x for i, x in enumerate(nest.loops) if i not in dropped)
    staged = ((name, at - sum(i < at for i in dropped)) for name, at in nest.staged)
    return Nest(loops, tuple(staged))


def copies_rows(k: Size, panels: Size) -> bool:
    """Whether a factor that lies along its axis is packed in rows of whole vectors: little work, but blocks
    read a part of every row, so they must be few, or the rows stay in the first cache."""
    few = isinstance(panels, int) and panels <= _FEW
    return few or (isinstance(k, int) and k <= _SHORT)


def copied(width: int, most: Size) -> int:
    """Points in a row of a packed factor that lies along its axis, if blocks of it have this width.

    Rows are whole vectors, of which several blocks may read their parts.
    """
    if LANES % width == 0 or width % LANES == 0:
        return width
    whole = math.lcm(width, LANES)
    few = isinstance(most, int) and most <= 2 * whole
    return -(-max(most, 1) // LANES) * LANES if few else whole
