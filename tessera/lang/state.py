"""State objects: values that a program carries from step to step, updated functionally."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.constraints import require, unify
from tessera.core.errors import ShapeError, TesseraError, located
from tessera.ir.graph.ir import concrete, host_data
from tessera.lang import op
from tessera.lang.annotation import TensorSpec, spec_of
from tessera.ops.define import as_value
from tessera.ops.places import looked_at


@tree.node
@dataclass(frozen=True)
class KVCache:
    """Keys and values of the positions seen so far: two tensors (batch, heads, max, dim), a count.

    `cache = cache.append(k, v)` returns a new cache; the old one is unchanged.
    """

    K: Any
    V: Any
    length: Any  # i32 scalar: how many positions are filled

    def __class_getitem__(cls, items: Any) -> TensorSpec:
        return spec_of(items if isinstance(items, tuple) else (items,))

    @staticmethod
    @blames_arguments
    def empty(batch: Any, heads: Any, size: Any, dim: Any, dtype: Any = "f32") -> KVCache:
        """A cache with room for `size` positions."""
        blank = op.zeros((batch, heads, size, dim), dtype)
        if blank.data is None:
            return KVCache(blank, blank, concrete(0, "i32"))
        # Memory of their own, which a step that the cache is donated to writes in place.
        keys, values = (
            concrete(np.zeros(blank.shape, blank.dtype.np), blank.dtype) for _ in range(2)
        )
        return KVCache(keys, values, concrete(0, "i32"))

    @blames_arguments
    def append(self, k: Any, v: Any) -> KVCache:
        """The cache with the positions of k and v, both (batch, heads, seq, dim), after its own.

        Positions past the room are an error where the length is known; a program that is traced drops them, and raises
        under ts.checked().
        """
        try:
            return _appended(self, as_value(k, _APPEND), as_value(v, _APPEND))
        except TesseraError as e:
            error = located(e)
        raise error


_APPEND = "KVCache.append"


def _appended(c: KVCache, k: Any, v: Any) -> KVCache:
    for name, held, new in (("K", c.K, k), ("V", c.V, v)):
        _check(name, held, new)
    if not unify(k.shape[2], v.shape[2], f"{_APPEND}: the positions of K and V"):
        raise ShapeError(f"{_APPEND}: got K {k.type} and V {v.type}, expected as many positions")
    room, more = c.K.shape[2], k.shape[2]
    if not require("at_least", room, more, f"{_APPEND}: the room of the cache"):
        raise ShapeError(
            f"{_APPEND}: got {more} positions for a cache of {room}; make a larger one"
        )
    what = f"{more} more positions in a cache of {room}"
    length = looked_at(f"{_APPEND}: length", c.length, 0, room - more, what)
    if length.data is not None and length.device.kind == "cpu" and isinstance(more, int):
        start = (0, 0, length, 0)
        keys, values = (op.dynamic_update_slice(x, y, start) for x, y in ((c.K, k), (c.V, v)))
        return KVCache(keys, values, concrete(host_data(length) + more, "i32"))
    filled = op.cast(op.minimum(length + more, room), "i32")
    return KVCache(_joined(c.K, k, length), _joined(c.V, v, length), filled)


def _joined(held: Any, new: Any, length: Any) -> Any:
    """A cache with new positions from a length on, those past its room dropped, in one pass that may be in place."""
    room, more = held.shape[2], new.shape[2]
    place = op.arange(room) - length
    written = op.logical_and(place >= 0, place < more)
    moved = new if more == 1 else op.take(new, op.clip(place, 0, more - 1), axis=2)
    return op.where(op.reshape(written, (room, 1)), moved, held)


def _check(name: str, held: Any, new: Any) -> None:
    """The dtype and all axes but that of positions are those of the cache."""
    fits = new.ndim == 4 and held.dtype is new.dtype
    if not fits or not all(
        unify(held.shape[a], new.shape[a], f"{_APPEND}: axis {a} of {name}") for a in (0, 1, 3)
    ):
        b, h, _, d = held.shape
        raise ShapeError(
            f"{_APPEND}: got {new.type} for {name}, expected {held.dtype}[{b},{h},positions,{d}] as in the cache "
            f"{held.type}"
        )
