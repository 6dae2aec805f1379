"""within: prove that positions are on an axis, for every counter of the grid and of loops.

A position that rises with a counter is largest where the counter is:

    size - (start + length) at _q0 = count - 1    >= 0   ->   no mask
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.dims import Size, bounds, substitute, symbol, symbols

Limits = Mapping[
    str, tuple[Size, Size]
]  # of each counter: its first value, and the one after the last


def covers(start: Size, length: int, size: Size, limits: Limits) -> bool:
    """Whether elements from start on all lie on an axis of a size, whatever the counters are."""
    return _least(start, limits) >= 0 and _least(size - start - length, limits) >= 0


def starts_inside(start: Size) -> bool:
    """Whether a position is never negative."""
    return bounds(start)[0] >= 0


def _least(x: Size, limits: Limits) -> float:
    """A lower bound of a position, by the extremes of the counters that it rises or falls with."""
    for _ in range(len(limits) + 1):
        if bounds(x)[0] >= 0:
            break
        name = next((n for n in sorted(symbols(x)) if n in limits and _slope(x, n)), None)
        if name is None:
            break
        low, high = limits[name]
        x = substitute(x, {name: low if _slope(x, name) > 0 else high - 1})
    return bounds(x)[0]


def _slope(x: Size, name: str) -> int:
    """1 where a position never falls with a counter, -1 where it never rises, 0 where that is open."""
    low, high = bounds(substitute(x, {name: symbol(name) + 1}) - x)
    return 1 if low >= 0 else -1 if high <= 0 else 0
