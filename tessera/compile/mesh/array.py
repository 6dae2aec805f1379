"""Sharded arrays: the block of a global array that this rank holds, and its layout."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from tessera.compile.mesh.home import at_home, home
from tessera.core.holders import is_held_once
from tessera.core.layout import Layout, parts
from tessera.core.mesh import Mesh, Placement, placed
from tessera.core.ranks import engine, placement
from tessera.ir.graph.ir import on_host

Array = np.ndarray[Any, Any]


class ShardedArray:
    """The shards of a global array that this rank owns, joined into one block, on the host or on a GPU."""

    __slots__ = ("block", "layout", "mesh", "shape", "spec")

    def __init__(
        self, block: Any, layout: Layout, mesh: Mesh, shape: Sequence[int], spec: Any = None
    ):
        self.block, self.layout, self.mesh = block, layout, mesh
        self.shape = tuple(shape)
        self.spec = spec  # the layout as the user wrote it, where one did

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        found: np.dtype[Any] = self.block.dtype
        return found

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements all shards have together."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def nbytes(self) -> int:
        """Bytes of the global array."""
        return self.size * int(self.block.dtype.itemsize)

    def numpy(self) -> Array:
        """The global array; every rank of the run must ask for it."""
        if not self.layout.axes or engine().size == 1:
            return on_host(self.block)
        ranks = tuple(range(engine().size))
        what = f"full {self.dtype}{list(self.shape)}"
        mine = np.ascontiguousarray(on_host(self.block))
        blocks = engine().exchange(what, ranks, [mine] * len(ranks))
        out = np.empty(self.shape, self.dtype)
        for r, b in enumerate(blocks):
            out[_where(self.shape, self.layout, placed(self.mesh, r, engine().size))] = b
        return out

    def is_free(self) -> bool:
        """Whether nothing else sees the block, so that a result may take its memory."""
        if getrefcount(self.block) > 2:  # this array and the count
            return False
        on_cpu = isinstance(self.block, np.ndarray)
        return is_held_once(self.block) if on_cpu else bool(self.block.is_free())

    def local(self, coordinates: Sequence[int]) -> Array:
        """The shard at logical coordinates, which this rank must own."""
        place = placement(self.mesh)
        mine = [
            np.isin(index,
                    _index(n, names, self.mesh, [[coordinates[self.mesh.axes.index(a)]] for a in names]))
            for index, n, names in zip(
                _indices(self.shape, self.layout, place), self.shape, self.layout.cuts, strict=True
            )
        ]  # fmt: skip
        spans: list[Any] = [_span(m) for m in mine]
        found: Array = on_host(self.block)[(*spans, ...)]  # an array also where it has no axes
        return found


def blocks_of(xs: Sequence[Any]) -> list[Any]:
    """This rank's blocks of sharded arrays, where its programs run; what else there is is whole."""
    where = home()
    return [at_home(x.block, where) if isinstance(x, ShardedArray) else np.asarray(x) for x in xs]


def _span(mask: Array) -> slice:
    """The run of true elements of a mask."""
    where = np.flatnonzero(mask)
    return slice(int(where[0]), int(where[-1]) + 1) if len(where) else slice(0, 0)


def cut(x: Array, layout: Layout, mesh: Mesh) -> ShardedArray:
    """The block of a global array that this rank owns."""
    if not layout.axes or engine().size == 1:
        return ShardedArray(x, layout, mesh, x.shape)
    block = x[_where(x.shape, layout, placement(mesh))]
    return ShardedArray(np.ascontiguousarray(block), layout, mesh, x.shape)


def block_shape(shape: Sequence[int], layout: Layout, place: Placement) -> tuple[int, ...]:
    """The shape of a rank's block."""
    return tuple(_count(n, names, place) for n, names in zip(shape, layout.cuts, strict=True))


def _count(n: int, names: Sequence[str], place: Placement) -> int:
    if not names:
        return n
    part = -(-n // parts(names, place.mesh))
    if len(names) == 1:
        low, high = place.range(names[0])
        return min(high * part, n) - min(low * part, n)
    made = part
    for a in names:
        made *= place.count(a)
    return made


def shard_slices(
    shape: Sequence[int], layout: Layout, mesh: Mesh, at: dict[str, int]
) -> tuple[slice, ...]:
    """The part of each axis that the shard at these coordinates holds."""
    out = []
    for n, names in zip(shape, layout.cuts, strict=True):
        k, count = 0, 1
        for a in names:
            k, count = k * mesh.size(a) + at[a], count * mesh.size(a)
        part = -(-n // count)
        out.append(slice(min(k * part, n), min((k + 1) * part, n)))
    return tuple(out)


def _index(n: int, names: Sequence[str], mesh: Mesh, owned: Sequence[Sequence[int]]) -> Array:
    """The elements of an axis in the shards with these coordinates on the mesh axes that cut it."""
    if not names:
        return np.arange(n)
    part = -(-n // parts(names, mesh))
    runs = []
    for place in itertools.product(*owned):
        k = 0
        for a, i in zip(names, place, strict=True):
            k = k * mesh.size(a) + i
        runs.append(np.arange(min(k * part, n), min((k + 1) * part, n)))
    return np.concatenate(runs)


def _indices(shape: Sequence[int], layout: Layout, place: Placement) -> list[Array]:
    return [
        _index(n, names, place.mesh, [range(*place.range(a)) for a in names])
        for n, names in zip(shape, layout.cuts, strict=True)
    ]


def _where(shape: Sequence[int], layout: Layout, place: Placement) -> Any:
    return np.ix_(*_indices(shape, layout, place)) if shape else ()
