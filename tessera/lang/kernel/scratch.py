"""Tiles through scratch: what moves elements within a tile writes it to memory of the instance and reads it
back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.dims import Size
from tessera.ir.tile.ir import Memory, Tile
from tessera.lang.kernel.values import AxisElements
from tessera.lang.kernel.writer import KernelWriter


def keep(w: KernelWriter, t: Tile, shape: Sequence[int] | None = None) -> Memory:
    """Scratch that holds a tile, or begins with it if it is of a larger shape."""
    m = w.b.alloc(t.dtype, tuple(shape or t.shape))
    w.b.store(m, t, (0,) * len(t.shape), t.shape)
    return m


def cut(w: KernelWriter, m: Memory, axis: int, at: Size) -> Tile:
    """The elements at one place of an axis, which is dropped."""
    starts: list[Size] = [0] * m.type.rank
    starts[axis] = at
    extent = [int(n) for n in m.type.shape]
    extent[axis] = 1
    others = tuple(i for i in range(m.type.rank) if i != axis)
    return w.b.load(m, starts, extent, others)


def put(w: KernelWriter, m: Memory, t: Tile, axis: int, at: Size) -> None:
    """Write the elements at one place of an axis."""
    starts: list[Size] = [0] * m.type.rank
    starts[axis] = at
    extent = [int(n) for n in m.type.shape]
    extent[axis] = 1
    others = tuple(i for i in range(m.type.rank) if i != axis)
    w.b.store(m, t, starts, extent, others)


def whole(w: KernelWriter, m: Memory) -> Tile:
    """All of a scratch memory."""
    shape = [int(n) for n in m.type.shape]
    return w.b.load(m, (0,) * len(shape), shape)


def picked(w: KernelWriter, m: Memory, index: Mapping[int, Tile], shape: Sequence[int]) -> Tile:
    """Elements of a shape, those along picked axes where indices say; 0 outside."""
    every = tuple(range(m.type.rank))
    extent = [1 if i in index else n for i, n in enumerate(shape)]
    return w.b.gather(m, index, (0,) * len(every), extent, every, tuple(index))


def unplaced(a: AxisElements | None, what: str, n: int) -> AxisElements | None:
    """The place of an axis whose elements are in another order: none, and an edge is lost."""
    if a is None or (a.exact and a.lost is None):
        return None
    said = a.lost or f"{what} leaves an edge of its tensor on no axis"
    return AxisElements(n, 0, False, said)
