"""What a layer holds of earlier positions: rooms of its own, or pages of a pool that sequences share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.core import tree
from tessera.lang import op


@tree.node
@dataclass(frozen=True)
class Pages:
    """Pools (pages, heads, page, dim) of keys and values; row b of the table names the pages of sequence b,
    in order.

    A step reads the pools and gives its new rows; who owns the pools writes them.
    """

    keys: Any
    values: Any
    table: Any  # i32 (batch, most pages of a sequence)

    def gathered(self, pool: Any) -> Any:
        """Positions (batch, heads, room, dim) in their order."""
        (_, heads, page, dim), (batch, many) = pool.shape, self.table.shape
        found = op.take(pool, self.table, axis=0)
        return op.reshape(op.transpose(found, (0, 2, 1, 3, 4)), (batch, heads, many * page, dim))


def grown(held: Any, k: Any, v: Any, places: Any) -> tuple[Any, Any, Any]:
    """Keys and values of all positions with the new ones at their places, and what a layer holds then: of
    pages, the new rows.
    """
    if isinstance(held, Pages):
        pools = (held.keys, held.values)
        keys, values = (
            appended(held.gathered(pool), new, places)
            for pool, new in zip(pools, (k, v), strict=True)
        )
        return keys, values, (k, v)
    add = written if places.shape[0] == 1 else appended
    keys, values = (add(room, new, places) for room, new in zip(held, (k, v), strict=True))
    return keys, values, (keys, values)


def written(held: Any, new: Any, places: Any) -> Any:
    """A cache of one sequence with rows at its places, all of which it has room for.

    A room that is donated is written in place: `appended` reads and writes all of it at every token.
    """
    start = op.reshape(places[:, :1], ())
    return op.dynamic_update_slice(held, op.cast(new, held.dtype), (0, 0, start, 0))


def appended(held: Any, new: Any, places: Any) -> Any:
    """A cache (batch, heads, room, dim) with rows (batch, heads, rows, dim) at the places
    of each sequence; rows past its end are left out.
    """
    room, rows = held.shape[2], new.shape[2]
    at = op.arange(room, dtype="i32") - places[:, :1]
    written = op.logical_and(at >= 0, at < rows)
    if rows > 1:
        index = op.clip(at, 0, rows - 1)
        index = op.broadcast_to(op.reshape(index, (-1, 1, room, 1)), held.shape)
        new = op.take_along_axis(new, index, axis=2)
    return op.where(op.reshape(written, (-1, 1, room, 1)), op.cast(new, held.dtype), held)


def seen(places: Any, room: int, window: int | None) -> Any:
    """Bools (batch, 1, rows, room): which positions of a cache a row sees."""
    row, key = op.reshape(places, (places.shape[0], 1, -1, 1)), op.arange(room, dtype="i32")
    below = key <= row
    return below if window is None else op.logical_and(below, key > row - window)
