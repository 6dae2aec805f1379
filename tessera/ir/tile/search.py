"""Halving: one step of the search for where numbers would be put into a sorted axis."""

from __future__ import annotations

from tessera.ir.tile.ir import Builder, Memory, Tile


def halve(b: Builder, line: Memory, found: Tile, step: Tile, wanted: Tile, right: bool) -> Tile:
    """How many elements are known to stand before each number: `step` more if they all do.

    `wanted` has the numbers in the dtype that they are compared in.
    """
    probe = b.apply("add", found, step)
    place = b.apply("sub", probe, b.full(probe.dtype, probe.shape, 1))
    there = b.cast(b.gather(line, {0: place}, (0,), (1,), (), (0,)), wanted.dtype)
    inside = b.apply("le", probe, b.full(probe.dtype, probe.shape, int(line.type.shape[0])))
    further = b.apply("logical_and", inside, _is_before(b, there, wanted, right))
    return b.apply("where", further, probe, found)


def _is_before(b: Builder, x: Tile, v: Tile, right: bool) -> Tile:
    """Whether v comes behind x, also where they are equal if `right`; NaN comes behind all numbers."""
    plain = b.apply("le" if right else "lt", x, v)
    if x.dtype.kind != "f":
        return plain
    last = b.apply("is_nan", v)
    if not right:
        last = b.apply("logical_and", last, b.apply("logical_not", b.apply("is_nan", x)))
    return b.apply("logical_or", plain, last)
