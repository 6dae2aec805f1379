"""Which products are better computed with vectors along their rows than along their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.folds import LANES
from tessera.ir.tile.cpu.legalize.subtiles import memory_of
from tessera.ir.tile.ir import Kernel, Operation, Tile, walk

_NARROW = 8  # columns that are too few for vectors


def turned_products(
    kernel: Kernel, users: Mapping[Tile, Sequence[Operation]], depth: Mapping[Operation, int]
) -> frozenset[Operation]:
    """Products with fewer columns than a vector, and those of a left factor that is there before
    their loop with a right one that lies along k: to turn the left one once is less than to turn the
    right one again and again.
    """
    made = {t: op for op in walk(kernel.body) for t in op.results}
    found = set()
    for op in walk(kernel.body):
        if op.name != "dot":
            continue
        a, b, acc = op.operands
        if b.shape[1] < _NARROW and a.shape[0] >= LANES and not _is_right(a, users):
            found.add(op)
            continue
        before = a in made and depth[made[a]] < depth[op]
        fresh = acc in made and made[acc].name == "full"
        left = not any(_is_right(x, users) for x in (a, op.results[0]))
        if before and fresh and left and a.shape[0] >= LANES and _fast_axis(b, made) == 0:
            found.add(op)
    return frozenset(found)


def _is_right(t: Tile, users: Mapping[Tile, Sequence[Operation]]) -> bool:
    """Whether a tile is the right factor of a product."""
    return any(u.name == "dot" and u.operands[1] is t for u in users.get(t, ()))


def _fast_axis(t: Tile, made: Mapping[Tile, Operation]) -> int | None:
    """The axis along which a tile lies in memory, if it is little more than what is loaded."""
    op = made.get(t)
    if op is None:
        return None
    if op.name == "load":
        last = memory_of(op).type.rank - 1
        return next((i for i, axis in enumerate(op.attributes["axes"]) if axis == last), None)
    if op.name in ("cast", "transpose"):
        axis = _fast_axis(op.operands[0], made)
        return axis if axis is None or op.name == "cast" else 1 - axis
    if op.name == "apply":
        found = {_fast_axis(x, made) for x in op.operands if x.shape == t.shape}
        return found.pop() if len(found) == 1 else None
    return None
