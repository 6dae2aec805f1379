"""Access: boxes of tensors, and elements at places that are data, read and written.

Every place is checked when the kernel runs: what is outside of a tensor reads `fill` and is not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.errors import ShapeError
from tessera.ir.tile.ir import NOWHERE, Tile
from tessera.ir.tile.rules import broadcast, canonical
from tessera.lang.kernel.values import Axes, AxisElements, KernelArray, KernelError, TileValue
from tessera.lang.kernel.writer import KernelWriter, demand_fit


@dataclass(frozen=True)
class TensorBox:
    """A part of a tensor: one entry for each of its axes."""

    at: tuple[Size, ...]
    extent: tuple[int, ...]
    kept: tuple[int, ...]  # axes that the tile has
    axes: tuple[AxisElements | None, ...]  # of the tile
    masked: tuple[int, ...]
    picked: Mapping[int, TileValue] = field(default_factory=dict)  # tiles of indices
    moves: Mapping[int, Tile] = field(default_factory=dict)  # one number along an axis
    points: bool = False  # whether the picked tiles broadcast, and are all that the tile has

    @property
    def is_data(self) -> bool:
        """Whether the place of the box is known when the kernel runs, not before."""
        return bool(self.picked or self.moves)


class BoxAccess:
    """Reads and writes boxes."""

    w: KernelWriter

    def load(
        self, array: KernelArray, box: TensorBox, fill: Any = 0, unchecked: bool = False
    ) -> TileValue:
        """The elements of a box; outside of the tensor lies `fill`, unless picked places are unchecked."""
        m = array.memory
        if not isinstance(fill, bool | int | float):
            raise KernelError(f"load: fill is {fill!r:.40}, expected a number")
        demand_fit(fill, array.dtype, "load: as fill ")
        if box.points:
            return self._points(array, box, fill, unchecked)
        if box.picked:
            return self._gather(array, box, fill, unchecked)
        if box.moves:
            t = self.w.b.gather(m, box.moves, box.at, box.extent, box.kept, box.masked, fill)
        else:
            t = self.w.b.load(m, box.at, box.extent, box.kept, box.masked, fill)
        pad = canonical("load", fill, m.type.dtype)
        return TileValue(t, box.axes, tuple(None if _ends(a) else pad for a in box.axes))

    # Indices

    def _index(self, array: KernelArray, x: TileValue) -> TileValue:
        if x.dtype.kind not in "iu":
            raise KernelError(f"{array.name}: indices are {x.type}, expected a tile of integers")
        return self.w.cast(x, i64)

    def spread_points(
        self, array: KernelArray, box: TensorBox
    ) -> tuple[dict[int, Tile], Axes, tuple[int, ...]]:
        """Tiles of indices of one shape, the places that they have, and the shape."""
        made = [self._index(array, x) for x in box.picked.values()]
        rank = max(x.rank for x in made)
        made = [self.w.lead(x, rank) if x.rank else x for x in made]
        shape = broadcast("at", [x.shape for x in made])
        tiles = [self.w.b.broadcast(x.tile, shape) for x in made]
        return dict(zip(box.picked, tiles, strict=True)), self.w.meeting("at", made), shape

    def _points(self, array: KernelArray, box: TensorBox, fill: Any, unchecked: bool) -> TileValue:
        """Elements whose places tiles of indices say together, as NumPy broadcasts them."""
        picks, axes, _ = self.spread_points(array, box)
        outside = tuple(i for i in box.masked if not (unchecked and i in box.picked))
        picks = {**picks, **box.moves}
        t = self.w.b.gather(array.memory, picks, box.at, box.extent, (), outside, fill)
        return TileValue(t, axes, (None,) * len(axes))

    def _flat(
        self, array: KernelArray, box: TensorBox
    ) -> tuple[dict[int, Tile], tuple[int, ...], tuple[int, ...], Axes, bool]:
        """Picks of a box with one axis for all of them, its order, the tile's own shape and places.

        Axes of the rows come before those of the columns.  A tile of rank 1 picks along its own axis; where
        one of two has more axes, they broadcast.
        """
        made = [self._index(array, x) for x in box.picked.values()]
        first, last = next(iter(box.picked)), len(box.at) - 1
        if len(made) == 2 and all(x.rank < 2 for x in made):
            rows, cols = made
            made = [self.w.reshape(rows, (*rows.shape, *(1,) * cols.rank)), cols]
        if len(made) == 2:
            rank = max(x.rank for x in made)
            made = [self.w.lead(x, rank) if x.rank else x for x in made]
            shape = broadcast("load", [x.shape for x in made])
            axes = self.w.meeting("load", made)
        else:
            shape, axes = made[0].shape, made[0].axes
        # The box has one axis for all that is picked: tiles of other ranks are flattened for it.
        kept = box.kept
        before = bool(kept) and kept[0] < first  # rows of the grid before columns that are picked
        flat = [self._line_of(x, shape, before, bool(kept)) for x in made]
        order = (first,) if not kept else (*kept, last) if before else (first, *kept)
        other = tuple(box.extent[i] for i in kept)
        sizes = (*other, *shape) if before else (*shape, *other)
        axes = (*box.axes, *axes) if before else (*axes, *box.axes)
        return {**dict(zip(box.picked, flat, strict=True)), **box.moves}, order, sizes, axes, before

    def _gather(self, array: KernelArray, box: TensorBox, fill: Any, unchecked: bool) -> TileValue:
        """Elements at the places that tiles of integers hold."""
        picks, order, sizes, axes, _ = self._flat(array, box)
        outside = tuple(i for i in box.masked if not (unchecked and i in box.picked))
        t = self.w.b.gather(array.memory, picks, box.at, box.extent, order, outside, fill)
        assert math.prod(t.shape) == math.prod(sizes), (t, sizes)
        return TileValue(self.w.b.reshape(t, sizes), axes, (None,) * len(axes))

    def _line_of(self, x: TileValue, shape: tuple[int, ...], before: bool, beside: bool) -> Tile:
        """Indices of a shape in one axis, beside an axis of the box if there is one."""
        t = self.w.b.broadcast(x.tile, shape)
        n = math.prod(shape)
        return self.w.b.reshape(t, ((1, n) if before else (n, 1)) if beside else (n,))

    # Writing

    def store(
        self, array: KernelArray, value: TileValue, box: TensorBox, mask: TileValue | None,
        distinct: bool = True
    ) -> None:  # fmt: skip
        """Write a tile to a box; under a mask only where it is true."""
        array.memory.writable = True
        value = self.w.cast(value, array.dtype)
        if box.points:
            self._store_points(array, value, box, mask, distinct)
            return
        if box.picked:
            self._store_picked(array, value, box, mask, distinct)
            return
        value = self.fitted(value, tuple(box.extent[i] for i in box.kept))
        mask = self._before_end(value, box, mask)
        if mask is not None:
            self._scatter(array, value, box, mask)
        elif box.moves:
            places = {i: self._number(t, value.rank) for i, t in box.moves.items()}
            self.w.b.scatter(
                array.memory, value.tile, places, box.at, box.extent, box.kept, box.masked, distinct
            )
        else:
            self.w.b.store(array.memory, value.tile, box.at, box.extent, box.kept, box.masked)

    def _number(self, t: Tile, rank: int) -> Tile:
        return t if not rank else self.w.b.reshape(t, (1,) * rank)

    def fitted(self, value: TileValue, shape: tuple[int, ...]) -> TileValue:
        """A tile in the shape of the place that it is written to."""
        if value.shape == shape:
            return value
        if value.rank > len(shape):
            raise ShapeError(f"store: the tile is {value.type}, but the place has shape {shape}")
        return self.w.broadcast(value, shape)

    def _before_end(
        self, value: TileValue, box: TensorBox, mask: TileValue | None
    ) -> TileValue | None:
        """A mask that also leaves out what lies past the ends that data give."""
        for i, a in enumerate(box.axes):
            if a is None or not _ends(a):
                continue
            own = self.w.plain(self.w.inside(value, i, a))
            mask = own if mask is None else self.w.apply("logical_and", mask, own)
        return mask

    def _store_points(
        self,
        array: KernelArray,
        value: TileValue,
        box: TensorBox,
        mask: TileValue | None,
        distinct: bool,
    ) -> None:
        picks, axes, shape = self.spread_points(array, box)
        value = self.fitted(value, shape)
        picks = self.dropped(picks, self.real(value, axes, mask), shape)
        moves = {i: self.w.b.broadcast(t, shape) for i, t in box.moves.items()}
        self.w.b.scatter(
            array.memory, value.tile, {**picks, **moves}, box.at, box.extent, (), box.masked, distinct
        )  # fmt: skip

    def real(self, value: TileValue, axes: Axes, mask: TileValue | None) -> TileValue | None:
        """A mask that leaves out elements of a tile, or of its indices, past the edge of where they come
        from.
        """
        for i, (a, b) in enumerate(zip(value.axes, axes, strict=True)):
            place = self.w.same_axis("store", a, b)
            if place is None or place.exact:
                continue
            own = self.w.plain(self.w.inside(value, i, place))
            mask = own if mask is None else self.w.apply("logical_and", mask, own)
        return mask

    def dropped(
        self, picks: dict[int, Tile], mask: TileValue | None, shape: tuple[int, ...]
    ) -> dict[int, Tile]:
        """Indices that name no element where a mask is false."""
        if mask is None:
            return picks
        w, axis = self.w, next(iter(picks))
        mask = w.lead(mask, len(shape)) if mask.rank else mask
        moved = w.b.apply("where", mask.tile, picks[axis], w.b.full(i64, (), NOWHERE))
        return {**picks, axis: w.b.broadcast(moved, shape)}

    def _store_picked(
        self,
        array: KernelArray,
        value: TileValue,
        box: TensorBox,
        mask: TileValue | None,
        distinct: bool,
    ) -> None:
        picks, order, sizes, axes, _ = self._flat(array, box)
        value = self.fitted(value, sizes)
        mask = self.real(value, axes, mask)
        shape = tuple(broadcast("store", [t.shape for t in picks.values() if t.shape] + (
            [tuple(box.extent[i] if i in box.kept else 1 for i in order)] if box.kept else [])))  # fmt: skip
        flat = self.w.b.reshape(value.tile, shape)
        if mask is not None:
            mask = self.w.broadcast(mask, sizes)
            own = {i: self.w.b.broadcast(picks[i], shape) for i in box.picked}
            flags = self.w.plain(self.w.b.reshape(mask.tile, shape))
            picks = {**picks, **self.dropped(own, flags, shape)}
        self.w.b.scatter(
            array.memory, flat, picks, box.at, box.extent, order, box.masked, distinct
        )  # fmt: skip

    def _scatter(
        self, array: KernelArray, value: TileValue, box: TensorBox, mask: TileValue
    ) -> None:
        """Where the mask is false an element is sent past the end, where it is dropped."""
        axis = box.kept[-1] if box.kept else len(box.at) - 1
        if axis < 0:
            raise KernelError(f"store: {array.name} has no axis, so a mask has no place")
        w, n = self.w, value.rank
        far = w.b.full(i64, (), NOWHERE)
        steps = w.b.full(i64, (), 0)
        if box.kept:
            ones = (*(1,) * (n - 1), box.extent[axis])
            steps = w.b.index(0, ones, n - 1)
        if axis in box.moves:
            steps = w.b.apply("add", steps, box.moves[axis])
        mask = w.lead(mask, n) if mask.rank else mask
        moved = w.b.apply("where", mask.tile, steps, far)
        kept, extent = box.kept[:-1], list(box.extent)
        extent[axis] = 1
        order = (*kept, axis) if box.kept else ()
        if box.kept:
            moved = w.b.broadcast(moved, value.shape)
        masked = tuple(sorted({*box.masked, axis}))
        places = {i: self._number(t, n) for i, t in box.moves.items()} | {axis: moved}
        w.b.scatter(array.memory, value.tile, places, box.at, extent, order, masked, distinct=True)


def _ends(a: AxisElements | None) -> bool:
    """Whether data end an axis before its tensor does."""
    return a is not None and a.moved is not None and a.moved.until is not None


def flattened(w: KernelWriter, x: Sequence[Tile]) -> list[Tile]:
    """Tiles as lines."""
    return [w.b.reshape(t, (math.prod(t.shape),)) for t in x]
