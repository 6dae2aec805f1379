"""The factors of a contraction: which varies along m, which along n, and how they lie in memory."""

from __future__ import annotations

from tessera.core.dims import symbols
from tessera.ir.schedule.ir import Apply, Axis, Cast, Read, Stage, Term


def factors(s: Stage) -> tuple[Term, Term]:
    """The factor that varies along m, and the one that varies along n."""
    m, n = s.axes[-2:]
    assert isinstance(s.term, Apply)
    a, b = s.term.operands
    swapped = any(n.name in symbols(i) for i in read_of(a).index) or any(
        m.name in symbols(i) for i in read_of(b).index
    )
    return (b, a) if swapped else (a, b)


def lies_along(t: Term, axis: Axis) -> bool:
    """Whether neighbours along an axis are neighbours in the memory of a factor."""
    index = read_of(t).index
    return bool(index) and axis.name in symbols(index[-1])


def read_of(t: Term) -> Read:
    """The read that a factor is, beneath its casts."""
    while isinstance(t, Cast):
        t = t.operand
    assert isinstance(t, Read), t
    return t
