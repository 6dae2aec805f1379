"""Fold tiles into memory in one order: instances one after the other, elements in row-major order.

A box is loaded, combined and stored.  Where tiles of indices say the places, which may be equal, a loop
goes through the elements one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.core.dims import Size
from tessera.ir.tile.ir import Memory, Tile
from tessera.lang.kernel.access import TensorBox, flattened
from tessera.lang.kernel.places import TilePlaces
from tessera.lang.kernel.values import KernelArray, KernelError, TileValue


def fold_into(
    places: TilePlaces,
    x: KernelArray,
    value: TileValue,
    box: TensorBox,
    mask: TileValue | None,
    how: str,
) -> None:
    """x = how(x, value) where a box lies."""
    w = places.w
    value = w.cast(value, x.dtype)
    if not box.picked:
        old = places.load(x, box)
        value = places.fitted(value, old.shape)
        made = TileValue(w.b.apply(how, old.tile, value.tile), value.axes, (None,) * value.rank)
        places.store(x, made, box, mask)
        return
    box = box if box.points else _as_points(places, box)
    picks, axes, shape = places.spread_points(x, box)
    value = places.fitted(value, shape)
    picks = places.dropped(picks, places.real(value, axes, mask), shape)
    lines = flattened(w, [value.tile, *picks.values()])
    if lines[0].shape == (1,):
        element = [w.b.reshape(t, ()) for t in lines]
        _fold_one(places, x, box, dict(zip(picks, element[1:], strict=True)), element[0], how)
        return
    kept = [_kept(places, t) for t in lines]

    def one(i: Size) -> None:
        element = [w.b.load(m, (i,), (1,), ()) for m in kept]
        _fold_one(places, x, box, dict(zip(picks, element[1:], strict=True)), element[0], how)

    w.each(lines[0].shape[0], one)


ATOMICS = ("add", "max", "min", "and", "or", "xor")
_ATOMIC_DTYPES = ("f32", "f64", "i32", "i64", "u32", "u64")


def fold_atomically(
    places: TilePlaces,
    x: KernelArray,
    value: TileValue,
    box: TensorBox,
    mask: TileValue | None,
    how: str,
) -> None:
    """The same by the atomics of a GPU: instances run side by side, in any order."""
    w = places.w
    if how not in ATOMICS or x.dtype.name not in _ATOMIC_DTYPES:
        raise KernelError(
            f"accumulate: there is no atomic {how} of {x.dtype}; there are {', '.join(ATOMICS)} of "
            f"{', '.join(_ATOMIC_DTYPES)}; leave atomic= out"
        )
    value = w.cast(value, x.dtype)
    box = box if box.points else _as_points(places, box)
    picks, axes, shape = places.spread_points(x, box)
    value = places.fitted(value, shape)
    picks = places.dropped(picks, places.real(value, axes, mask), shape)
    every = {**picks, **{i: w.b.broadcast(t, shape) for i, t in box.moves.items()}}
    w.b.scatter(x.memory, value.tile, every, box.at, (1,) * len(box.at), (), box.masked, atomic=how)


def _kept(places: TilePlaces, t: Tile) -> Memory:
    m = places.w.b.alloc(t.dtype, t.shape)
    places.w.b.store(m, t, (0,), t.shape)
    return m


def _fold_one(
    places: TilePlaces,
    x: KernelArray,
    box: TensorBox,
    picks: dict[int, Tile],
    value: Tile,
    how: str,
) -> None:
    """One element: read, combine, write; nothing where it lies outside."""
    b, every = places.w.b, {**picks, **box.moves}
    ones = (1,) * len(box.at)
    old = b.gather(x.memory, every, box.at, ones, (), box.masked)
    new = b.apply(how, old, value)
    b.scatter(x.memory, new, every, box.at, ones, (), box.masked, distinct=True)


def _as_points(places: TilePlaces, box: TensorBox) -> TensorBox:
    """Rows and columns, of which some are tiles of indices, as one index for every element."""
    w, picked = places.w, dict(box.picked)
    lines = [i for i in range(len(box.at)) if i in box.picked or i in box.kept]
    ranks = {i: picked[i].rank if i in picked else 1 for i in lines}
    broadcasts = len(picked) == 2 and max(ranks.values()) > 1
    out: dict[int, Any] = {}
    for n, i in enumerate(lines):
        if broadcasts:
            out[i] = picked[i]
            continue
        own = w.plain(w.b.index(0, (box.extent[i],), 0)) if i in box.kept else picked[i]
        behind = sum(ranks[j] for j in lines[n + 1 :])
        out[i] = w.reshape(own, (*own.shape, *(1,) * behind))
    extent = (1,) * len(box.at)
    return replace(box, extent=extent, kept=(), axes=(), picked=out, points=True)
