"""Intervals of sizes: between which numbers a position is when the axes in it run.

An axis runs from 0 to its size.  Every function has a range of its own, whatever the signs: i % 8
is in 0..7 for any i.  The ends are sizes without axes, or None where no bound is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tessera.core.dims import Atom, Dim, Size, Symbol, bounds, larger, smaller, symbol, symbols

Interval = tuple[Size | None, Size | None]


def extremes(x: Size, sizes: Mapping[str, Size]) -> Interval:
    """Bounds of x over its axes."""
    if isinstance(x, int):
        return x, x
    return _extremes(x, tuple([(n, sizes[n]) for n in symbols(x) if n in sizes]))


@lru_cache(maxsize=1 << 14)
def _extremes(x: Dim, known: tuple[tuple[str, Size], ...]) -> Interval:
    """Kernels ask the same of many loops."""
    sizes = dict(known)
    low: Size | None = 0
    high: Size | None = 0
    for monomial, factor in x.terms:
        term: Interval = (1, 1)
        for atom, power in monomial:
            for _ in range(power):
                term = _product(term, _range(atom, sizes))
        least, most = _scaled(term, factor)
        low = None if low is None or least is None else low + least
        high = None if high is None or most is None else high + most
    return low, high


def inside(x: Size, limit: Size, sizes: Mapping[str, Size]) -> bool:
    """Whether 0 <= x < limit for all values of the axes."""
    low, high = extremes(x, sizes)
    return is_natural(low) and high is not None and bounds(limit - high)[0] > 0


def is_natural(x: Size | None) -> bool:
    """Whether a size is known and known not to be negative."""
    return x is not None and bounds(x)[0] >= 0


def _range(atom: Atom, sizes: Mapping[str, Size]) -> Interval:
    if isinstance(atom, Symbol):
        known = sizes.get(atom.name)
        return (symbol(atom.name), symbol(atom.name)) if known is None else (0, known - 1)
    left, right = extremes(atom.left, sizes), extremes(atom.right, sizes)
    if atom.function in ("max", "min"):
        return chosen(atom.function, left, right)
    if right[0] is None or bounds(right[0])[0] < 1:
        return None, None  # by 0, or by a number of any sign
    return (_quotient if atom.function == "//" else _remainder)(left, right)


def chosen(function: str, left: Interval, right: Interval) -> Interval:
    """The larger or the smaller of two: a maximum is at least either, a minimum at most either."""
    choose, sure = (larger, 0) if function == "max" else (smaller, 1)
    ends: list[Size | None] = []
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        known = [x for x in (a, b) if x is not None]
        ends.append(
            choose(*known) if len(known) == 2 else known[0] if known and i == sure else None
        )
    return ends[0], ends[1]


def _quotient(left: Interval, right: Interval) -> Interval:
    """Of a positive divisor: as it grows, the quotient comes nearer to 0, or to -1 from below."""
    (low, high), (least, most) = left, right
    assert least is not None
    if least == most:
        return None if low is None else low // least, None if high is None else high // least
    if low is not None:
        low = (
            smaller(low // least, 0) if not is_natural(low) else 0 if most is None else low // most
        )
    return low, None if high is None else larger(high // least, -1)


def _remainder(left: Interval, right: Interval) -> Interval:
    """Of a positive divisor: below it and not negative; the whole range where it is within one period."""
    (low, high), (least, most) = left, right
    assert least is not None
    if low is not None and high is not None:
        if is_natural(low) and bounds(least - high)[0] > 0:
            return left
        if isinstance(least, int) and least == most and low // least == high // least:
            return low % least, high % least
    return 0, None if most is None else most - 1


def _scaled(x: Interval, factor: int) -> Interval:
    low, high = (None if end is None else end * factor for end in x)
    return (low, high) if factor > 0 else (high, low)


def _product(x: Interval, y: Interval) -> Interval:
    """The extremes are among the products of the ends; which, the signs say."""
    for a, b in ((x, y), (y, x)):
        if a[0] == a[1] and isinstance(a[0], int):
            return _scaled(b, a[0])
    if is_natural(x[0]) and is_natural(y[0]):
        return _times(x[0], y[0]), _times(x[1], y[1])
    if None in x or None in y:
        return None, None
    ends = [_times(a, b) for a in x for b in y]
    low = high = ends[0]
    for end in ends[1:]:
        assert low is not None
        assert high is not None
        assert end is not None
        low, high = smaller(low, end), larger(high, end)
    return low, high


def _times(a: Size | None, b: Size | None) -> Size | None:
    return None if a is None or b is None else a * b
