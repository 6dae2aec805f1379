"""inside: the elements that terms read are in their tensors; where data says the place, it is clamped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.core.constraints import Guard
from tessera.core.dims import Size, bounds, symbol
from tessera.core.intervals import Interval, chosen, extremes, is_natural
from tessera.core.prove import prove
from tessera.ir.schedule.ir import Apply, Literal, Position, Term


def facts_of(guards: Sequence[Guard]) -> list[Size]:
    """What guards say about sizes, as sizes that are at least 0."""
    found: list[Size] = []
    for g in guards:
        if g.kind == "divisible":
            found.append(g.right * (g.left // g.right) - g.left)
        else:
            found += (
                [g.left - g.right] if g.kind == "at_least" else [g.left - g.right, g.right - g.left]
            )
    return [f for f in found if not isinstance(f, int)]


def is_inside(i: Size | Term, n: Size, axes: Mapping[str, Size], facts: Sequence[Size]) -> bool:
    """Whether an index is proved to lie in 0..n-1 for all values of the axes, and of the data."""
    low, high = place_of(i, axes) if isinstance(i, Term) else extremes(i, axes)
    if is_natural(low) and high is not None and bounds(n - high)[0] > 0:
        return True
    if isinstance(i, Term):
        if low is None or high is None:
            return False
        return prove(facts, low) and prove(facts, n - 1 - high)
    # The axes are counters, whose names the prover knows not to be negative.
    known = [*facts, *(size - 1 - symbol(name) for name, size in axes.items())]
    return prove(known, i) and prove(known, n - 1 - i)


def place_of(t: Term, axes: Mapping[str, Size]) -> Interval:
    """Bounds of a place that is computed from data."""
    match t:
        case Position(value=value):
            return extremes(value, axes)
        case Literal(value=int(value)):
            return value, value
        case Apply(scalar="min" | "max" as name, operands=(a, b)):
            return chosen(name, place_of(a, axes), place_of(b, axes))
        case Apply(scalar="add", operands=(a, b)):
            (low, high), (least, most) = place_of(a, axes), place_of(b, axes)
            return (
                None if low is None or least is None else low + least,
                None if high is None or most is None else high + most,
            )
    return None, None
