"""Ranges whose bounds are data: loaded numbers, scalar arguments, results of folds.

for j in tile.range(first, last)              counter 0, 1, ... last - first - 1 of a loop that data bound;
j = first + counter for nb in tile.range_n(k, T.n, stop=length)   spans that end at length
"""

from __future__ import annotations

from typing import Any

from tessera.core.dims import Dim, Size
from tessera.core.dtype import i64
from tessera.lang.kernel.table import IntrinsicContext
from tessera.lang.kernel.values import (
    AxisSpan,
    KernelError,
    LoopRange,
    Moved,
    RunTimeCount,
    TileValue,
)
from tessera.lang.kernel.writer import KernelWriter

MOST = 1 << 30  # rounds of a loop that data bound: a counter of 32 bits holds them


def data_range(
    p: IntrinsicContext, start: Any, stop: Any, step: int, ahead: int | None
) -> LoopRange:
    """Positions from a start to a stop, at least one of which is data."""
    w, last = p.w, _whole(p, stop, "the stop of a range")
    if not isinstance(start, TileValue):
        return LoopRange(start, MOST, step, lambda i: i, ahead, last)
    first = _whole(p, start, "the start of a range")
    return LoopRange(0, MOST, 1, _positions(w, first, step), ahead, _rounds(w, first, last, step))


def data_blocks(
    p: IntrinsicContext, size: Size, start: Any, stop: Any, step: int, ahead: int | None
) -> LoopRange:
    """Blocks of an axis from a start to a stop, at least one of which is data."""
    w, last = p.w, _whole(p, stop, "the stop of a range")
    end, start = w.apply("min", last, w.tile(size)), w.known(start)
    if not isinstance(start, TileValue):
        key = (last.tile,)

        def block(i: Any) -> AxisSpan:
            return AxisSpan(size, i, step, False, Moved(None, end.tile, key))

        return LoopRange(start, MOST, step, block, ahead, end)
    first = _whole(p, start, "the start of a range")
    place = _positions(w, first, step)

    def moved(i: Any) -> AxisSpan:
        here = place(i).tile
        return AxisSpan(size, 0, step, False, Moved(here, end.tile, here))

    return LoopRange(0, MOST, 1, moved, ahead, _rounds(w, first, end, step))


def _whole(p: IntrinsicContext, x: Any, what: str) -> TileValue:
    """A bound as an i64 number."""
    if isinstance(x, TileValue):
        return p.places.one(x, what)
    if isinstance(x, bool) or not isinstance(x, int | Dim):
        raise KernelError(f"{what} is {x!r:.40}, expected a whole number")
    return p.w.tile(x, i64)


def _rounds(w: KernelWriter, first: TileValue, last: TileValue, step: int) -> TileValue:
    """How many positions there are; none where the last comes before the first."""
    length = w.apply("add", w.apply("sub", last, first), step - 1)
    found: TileValue = w.apply(
        "where", w.apply("lt", first, last), w.apply("floor_div", length, step), 0
    )
    return found


def _positions(w: KernelWriter, first: TileValue, step: int) -> Any:
    def at(i: Any) -> RunTimeCount:
        made = w.apply("add", first, w.tile(i * step, i64))
        return RunTimeCount(made.tile, (), ())

    return at
