"""The factors of a contraction: which varies along m, which along n, and how they are laid out in memory.

A factor is a read, or a read of something narrower that is widened and scaled: `f32(w[k, n]) * s[n]`.
"""

from __future__ import annotations

from tessera.core.dims import symbols
from tessera.ir.schedule.ir import Apply, Axis, Cast, Literal, Read, Stage, Term, reads

_SCALES = ("mul", "add", "sub")
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
    return isinstance(t, Read | Literal) or (isinstance(t, Cast) and _is_scaled(t.operand))


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
