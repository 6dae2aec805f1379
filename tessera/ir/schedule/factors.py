"""The factors of a contraction: which varies along m, which along n, and how they are laid out in memory.

A factor is a read, or a read of something narrower that is widened and scaled: `f32(w[k, n]) * s[n]`.
Several numbers may share an element: `f32(w[k // 2, n] >> k % 2 * 4 & 15)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tessera.core.dims import Dim, Size, SizeFunction, Symbol, symbol, symbols
from tessera.ir.schedule.ir import Apply, Axis, Cast, Literal, Position, Read, Stage, Term, reads

_SCALES = ("mul", "add", "sub", "and", "shift_left", "shift_right")
_PACKED, _NARROW = 4, 64  # columns of a contraction that is computed turned


def factors(s: Stage) -> tuple[Term, Term]:
    """The factor that varies along m, and the one that varies along n."""
    m, n = s.axes[-2:]
    assert isinstance(s.term, Apply)
    a, b = s.term.operands
    return (b, a) if n.name in axes_of(a) or m.name in axes_of(b) else (a, b)


def lies_along(t: Term, axis: Axis) -> bool:
    """Whether neighbours along an axis are neighbours in the memory of a factor."""
    index = read_of(t).index
    return bool(index) and axis.name in symbols(index[-1])


def read_of(t: Term) -> Read:
    """The read that a factor is, beneath its casts and scales."""
    return max(reads(t), key=lambda r: (len(axes_of(r)), len(r.index)))


def is_plain(t: Term) -> bool:
    """Whether a factor is a read, maybe in another dtype."""
    return isinstance(t, Read) or (isinstance(t, Cast) and is_plain(t.operand))


def widens(t: Term) -> bool:
    """Whether a factor may be made while it is read: narrow numbers, widened and scaled."""
    found = list(reads(t))
    if not found or not _is_scaled(t) or any(isinstance(i, Term) for r in found for i in r.index):
        return False
    main = read_of(t)
    others = [r for r in found if r != main]
    return main.dtype.bits < t.dtype.accum.bits and all(
        len(axes_of(r)) < len(axes_of(main)) for r in others
    )


def _is_scaled(t: Term) -> bool:
    if isinstance(t, Apply):
        return t.scalar in _SCALES and all(map(_is_scaled, t.operands))
    plain = isinstance(t, Read | Literal | Position)
    return plain or (isinstance(t, Cast) and _is_scaled(t.operand))


def unpacks(t: Term, over: str) -> bool:
    """Whether a factor takes its numbers out of elements that hold several of neighbours along an axis.

    Vectors lie along another axis, so that neighbours are shifted and masked alike.
    """
    main = read_of(t)
    if not main.index or over in symbols(main.index[-1]):
        return False
    return all(symbols(p) <= {over} for p in _positions(t)) and all(
        _stand_alone(r.index, over) for r in reads(t)
    )


def _stand_alone(index: Sequence[Size | Term], over: str) -> bool:
    """Whether each place is a number, an axis, or a whole quotient of the axis that is packed, and none is
    there twice.
    """
    named = [a for i in index if isinstance(i, Dim) for a in symbols(i)]
    return len(set(named)) == len(named) and all(
        isinstance(i, int) or (isinstance(i, Dim) and _is_axis_or_quotient(i, over)) for i in index
    )


def _is_axis_or_quotient(i: Dim, over: str) -> bool:
    match i.terms:
        case (((((Symbol(), 1),), 1)),):
            return True
        case (((((SizeFunction("//", left, int()), 1),), 1)),):
            return left == symbol(over)
    return False


def _positions(t: Term) -> Iterator[Size]:
    """The positions that a term computes with."""
    if isinstance(t, Position):
        yield t.value
    for o in t.children():
        yield from _positions(o)


def has_positions(t: Term) -> bool:
    """Whether a factor depends on where it is read, beside what is read there."""
    return any(True for _ in _positions(t))


def period(t: Term, over: Axis) -> int:
    """How many neighbours along an axis are in one element of a factor."""
    found = [
        a.right
        for r in reads(t)
        for i in r.index
        if isinstance(i, Dim)
        for monomial, _ in i.terms
        for a, _ in monomial
        if isinstance(a, SizeFunction) and a.function == "//" and a.left == over.variable
    ]
    return math.lcm(*(n for n in found if isinstance(n, int)))


def axes_of(t: Term) -> frozenset[str]:
    """The axes that the reads of a factor move with."""
    return frozenset(a for r in reads(t) for i in r.index for a in symbols(i))


def is_better_turned(s: Stage) -> bool:
    """Whether a contraction has few columns and a left factor that lies along its many rows.

    To pack that factor would take as long as the products; turned, it is read as it lies.
    """
    m, n = s.axes[-2:]
    if not isinstance(m.size, int) or not isinstance(n.size, int):
        return False
    left, _ = factors(s)
    return _PACKED < n.size <= _NARROW and m.size >= 4 * n.size and lies_along(left, m)


def bare(t: Term) -> Term:
    """A factor before it is widened: matrix units multiply narrow numbers as they are."""
    return t.operand if isinstance(t, Cast) and t.operand.dtype.kind == t.dtype.kind else t
