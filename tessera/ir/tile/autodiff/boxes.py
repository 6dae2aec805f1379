"""Box: where a derivative reads and writes memory, and how it adds to elements that data name.

    y = x[rows]   ->   for each row: d_x[row] = d_x[row] + ct[row]

Two elements of a tile may come from one element of a memory.  So what is added goes there element by
element along the axes of indices, in row-major order, and as a whole along the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera.core.dims import Dim, Size
from tessera.ir.tile.ir import Builder, Memory, Tile


@dataclass(frozen=True)
class ElementBox:
    """Elements of a memory: those from `at` on, moved by tiles of indices along picked axes."""

    at: tuple[Size, ...]
    extent: tuple[int, ...]
    axes: tuple[int, ...]
    masked: tuple[int, ...]
    picked: Mapping[int, Tile] = field(default_factory=dict)

    def load(self, b: Builder, m: Memory) -> Tile:
        """The elements; 0 outside."""
        if self.picked:
            return b.gather(m, self.picked, self.at, self.extent, self.axes, self.masked)
        return b.load(m, self.at, self.extent, self.axes, self.masked)

    def store(self, b: Builder, m: Memory, t: Tile) -> None:
        """Write the elements, which are distinct."""
        if not self.picked:
            b.store(m, t, self.at, self.extent, self.axes, self.masked)
            return
        ones = (1,) * len(t.shape)
        picked = {i: x if x.shape else b.reshape(x, ones) for i, x in self.picked.items()}
        b.scatter(m, t, picked, self.at, self.extent, self.axes, self.masked, distinct=True)

    def behind(self, own: Sequence[Size]) -> ElementBox:
        """The same elements of a memory with more axes in front, at these positions."""
        n = len(own)
        return ElementBox(
            (*own, *self.at), (*(1,) * n, *self.extent), tuple(i + n for i in self.axes),
            tuple(i + n for i in self.masked), {i + n: t for i, t in self.picked.items()},
        )  # fmt: skip

    def add(self, b: Builder, m: Memory, t: Tile) -> None:
        """Add a tile to the elements, which may be one element several times."""
        t = b.cast(t, m.type.dtype)
        dims = self._repeating(t)
        if not dims:
            self.store(b, m, b.apply("add", self.load(b, m), t))
            return
        rank = len(t.shape)
        value = _keep(b, t)
        lines = {i: _keep(b, _of_rank(b, x, rank)) for i, x in self.picked.items() if x.shape}

        def walk(left: Sequence[int], at: Mapping[int, Dim]) -> None:
            if left:
                with b.loop(0, t.shape[left[0]], 1) as loop:
                    walk(left[1:], {**at, left[0]: loop.variable})
                return
            here = {i: _cut(b, lines[i], at) if i in lines else x for i, x in self.picked.items()}
            one = ElementBox(self.at, self.extent, self.axes, self.masked, here)
            one.store(b, m, b.apply("add", one.load(b, m), _cut(b, value, at)))

        walk(dims, {})

    def _repeating(self, t: Tile) -> list[int]:
        """The axes of a tile along which elements may be one: all but those that the box has itself."""
        rank = len(t.shape)
        own = {k for k, i in enumerate(self.axes) if self.extent[i] != 1}
        shapes = [x.shape for x in self.picked.values()]
        varies = {k + rank - len(s) for s in shapes for k, n in enumerate(s) if n != 1}
        return sorted(varies - own)


def _keep(b: Builder, t: Tile) -> Memory:
    m = b.alloc(t.dtype, t.shape)
    b.store(m, t, (0,) * len(t.shape), t.shape)
    return m


def _cut(b: Builder, m: Memory, at: Mapping[int, Dim]) -> Tile:
    """The elements at these places; axes stay, with size 1."""
    sizes = [int(n) for n in m.type.shape]
    starts = [at[k] if k in at and n != 1 else 0 for k, n in enumerate(sizes)]
    return b.load(m, starts, [1 if k in at else n for k, n in enumerate(sizes)])


def _of_rank(b: Builder, t: Tile, rank: int) -> Tile:
    return b.reshape(t, (*(1,) * (rank - len(t.shape)), *t.shape))
