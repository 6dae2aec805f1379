"""Folds and scans by a function over tuples of tiles, one element after the other along an axis.

    def step(a, b): return a[0] * b[0], a[1] * b[0] + b[1]
    tile.scan((decay, x), step, axis=0)

The order is that of the elements, so the function need be neither associative nor commutative, and the bits
are those of this order on every target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.core.dims import Size
from tessera.core.dtype import DType, bool_
from tessera.core.errors import ShapeError
from tessera.ir.tile.ir import Memory, Tile
from tessera.lang.kernel.scratch import cut, keep, put, whole
from tessera.lang.kernel.table import IntrinsicContext
from tessera.lang.kernel.values import Axes, AxisElements, KernelError, TileValue


class Lines:
    """Tiles of one shape, cut along an axis."""

    def __init__(self, p: IntrinsicContext, xs: Any, axis: int, name: str):
        self.p, self.single = p, not isinstance(xs, tuple | list)
        given = [p.w.tile(x) for x in ((xs,) if self.single else xs)]
        if not given:
            raise KernelError(f"{name}: got no tile")
        given = p.w.spread(name, given)
        rank = max(x.rank for x in given)
        if not -rank <= axis < rank:
            raise ShapeError(f"{name}: axis {axis} is no axis of {given[0].type}")
        self.axis = axis % rank
        shape = tuple(max(x.shape[i] if x.rank else 1 for x in given) for i in range(rank))
        self.tiles = [p.w.broadcast(x, shape) for x in given]
        self.axes: Axes = p.w.meeting(name, self.tiles)
        self.count = shape[self.axis]
        self.kept = [keep(p.w, x.tile) for x in self.tiles]
        place = self.axes[self.axis]
        self.edge = self._edge(place) if place is not None and not place.exact else None
        self.begins = place is None or place.exact or p.w.begins_inside(place)

    def _edge(self, place: AxisElements) -> Memory:
        """Which elements lie on the axis, one after the other."""
        inside = self.p.w.inside(self.tiles[0], self.axis, place)
        return keep(self.p.w, self.p.w.b.reshape(inside, (self.count,)))

    @property
    def dtypes(self) -> list[DType]:
        """Of the tiles."""
        return [x.dtype for x in self.tiles]

    def others(self) -> Axes:
        """The places of the axes that stay."""
        return tuple(a for i, a in enumerate(self.axes) if i != self.axis)

    def at(self, i: Size) -> list[Tile]:
        """The elements at one place."""
        return [cut(self.p.w, m, self.axis, i) for m in self.kept]

    def value(self, t: Tile) -> TileValue:
        """A tile of the axes that stay."""
        return TileValue(t, self.others(), (None,) * len(t.shape))

    def call(self, f: Any, a: Sequence[Tile], b: Sequence[Tile]) -> list[Tile]:
        """What a function makes of two elements, in the dtypes of the first."""
        given = [[self.value(t) for t in part] for part in (a, b)]
        args = [x[0] if self.single else tuple(x) for x in given]
        made = self.p.invoke(f, args)
        outs = made if isinstance(made, tuple | list) else (made,)
        if len(outs) != len(a):
            raise KernelError(f"the function of a fold gives {len(outs)} tiles, expected {len(a)}")
        w = self.p.w
        return [w.broadcast(w.tile(y, x.dtype), x.shape).tile for x, y in zip(a, outs, strict=True)]

    def joined(self, f: Any, state: Sequence[Tile], i: Size) -> list[Tile]:
        """The state after an element: an accumulator for each tile, and whether it has begun."""
        b, here = self.p.w.b, self.at(i)
        acc, begun = state[: len(here)], state[len(here) :]
        new = self.call(f, acc, here)
        if begun:
            new = [b.apply("where", begun[0], x, y) for x, y in zip(new, here, strict=True)]
        if self.edge is None:
            return [*new, *([b.full(bool_, (), True)] if begun else [])]
        inside = b.load(self.edge, (i,), (1,), ())
        new = [b.apply("where", inside, x, y) for x, y in zip(new, acc, strict=True)]
        return [*new, *([b.apply("logical_or", begun[0], inside)] if begun else [])]

    def start(self, init: Any, first: Size) -> tuple[list[Tile], bool]:
        """The state before the first element, or after it if there is no other."""
        w = self.p.w
        if init is not None:
            given = (init,) if self.single else tuple(init)
            if len(given) != len(self.tiles):
                raise KernelError(f"init has {len(given)} values, expected {len(self.tiles)}")
            shape = tuple(n for i, n in enumerate(self.tiles[0].shape) if i != self.axis)
            pairs = zip(given, self.tiles, strict=True)
            return [w.broadcast(w.tile(x, t.dtype), shape).tile for x, t in pairs], False
        if self.begins and first == 0:
            return self.at(first), True
        return [*self.at(first), w.b.full(bool_, (), False)], False


def fold_by(p: IntrinsicContext, xs: Any, f: Any, axis: int, keepdims: bool, init: Any) -> Any:
    """A fold along an axis by a function."""
    lines = Lines(p, xs, axis, "reduce")
    state, done = lines.start(init, 0)
    body: Callable[[Size, Sequence[Tile]], list[Tile]] = lambda i, s: lines.joined(f, s, i)  # noqa: E731
    state = p.w.turns(1 if done else 0, lines.count, state, body)
    out = [lines.value(t) for t in state[: len(lines.tiles)]]
    if keepdims:
        out = [_expanded(p, x, lines.axis) for x in out]
    return out[0] if lines.single else tuple(out)


def _expanded(p: IntrinsicContext, x: TileValue, axis: int) -> TileValue:
    axes, pads = list(x.axes), list(x.pads)
    axes.insert(axis, None)
    pads.insert(axis, None)
    return TileValue(p.w.b.expand(x.tile, axis), tuple(axes), tuple(pads))


def scan_by(
    p: IntrinsicContext, xs: Any, f: Any, axis: int, reverse: bool, exclusive: bool, init: Any
) -> Any:
    """The folds up to each element along an axis, or of those before it, by a function."""
    if exclusive and init is None:
        raise KernelError("scan: an exclusive one needs init, the fold of no elements")
    lines, w = Lines(p, xs, axis, "scan"), p.w
    last = lines.count - 1
    outs = [w.b.alloc(t.dtype, t.shape) for t in lines.tiles]
    state, done = lines.start(init, last if reverse else 0)
    if done:
        _write(lines, outs, state, 0)

    def body(i: Size, before: Sequence[Tile]) -> list[Tile]:
        at = last - i if reverse else i
        after = lines.joined(f, before, at)
        _write(lines, outs, before if exclusive else after, at)
        return after

    w.turns(1 if done else 0, lines.count, state, body)
    made = [TileValue(whole(w, m), lines.axes, (None,) * len(lines.axes)) for m in outs]
    return made[0] if lines.single else tuple(made)


def _write(lines: Lines, outs: Sequence[Memory], state: Sequence[Tile], at: Size) -> None:
    for m, t in zip(outs, state, strict=False):
        put(lines.p.w, m, t, lines.axis, at)
