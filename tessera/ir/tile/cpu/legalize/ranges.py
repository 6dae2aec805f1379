"""Ranges: the numbers between which a position is, when the loops around it are known."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tessera.core.dims import Atom, Size, SizeFunction

Range = tuple[float, float]


def range_of(x: Size, counters: Mapping[str, Range]) -> Range:
    """The least and the largest value of a position; a name that is no counter is at least 1."""
    if isinstance(x, int):
        return x, x
    low = high = 0.0
    for monomial, factor in x.terms:
        ends = [float(factor)]
        for atom, power in monomial:
            for _ in range(power):
                ends = [_times(a, b) for a in _ends(ends) for b in _atom(atom, counters)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def loop_range(start: Size, stop: Size, step: int, counters: Mapping[str, Range]) -> Range:
    """The values that a counter takes."""
    first, _ = range_of(start, counters)
    _, end = range_of(stop, counters)
    if isinstance(start, int) and math.isfinite(end):
        return start, max(start + (end - 1 - start) // step * step, start)
    return first, end - 1


def _ends(xs: list[float]) -> list[float]:
    return [min(xs), max(xs)]


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _atom(atom: Atom, counters: Mapping[str, Range]) -> Range:
    if not isinstance(atom, SizeFunction):
        return counters.get(atom.name, (-math.inf if atom.name.startswith("_") else 1, math.inf))
    (low, high), (least, most) = range_of(atom.left, counters), range_of(atom.right, counters)
    match atom.function:
        case "max":
            return max(low, least), max(high, most)
        case "min":
            return min(low, least), min(high, most)
        case "%":
            return 0, most - 1
    if low < 0 or least < 1:
        return -math.inf, math.inf
    down = 0.0 if math.isinf(most) else low // most
    return down, math.inf if math.isinf(high) else high // least
