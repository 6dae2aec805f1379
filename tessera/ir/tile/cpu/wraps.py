"""Reads that go around an end of an axis once, as those of `roll`: where the two sides meet.

    x[(c + 3) % 100] for c < 100, in chunks of 16
->  x[c + 3] for c < 96; by place, from both ends, for c < 112; beyond, x[c - 97]
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dims import Size, symbols
from tessera.ir.schedule.index import Wrap, wrap_of
from tessera.ir.schedule.ir import Axis, Read, Term

# Ends for which a loop over columns is cut.  Each is two loops more, which a compiler takes time for; a roll
# by 1 and by -1 has two.
_MOST_ENDS = 6

Stretch = tuple[int, int | None]  # the first column, and the one after the last; None: to the end


def wrap_along(r: Read, columns: Axis) -> tuple[int, Wrap] | None:
    """The axis of a read that goes around an end as columns go on, where it is the only one that moves."""
    if any(isinstance(x, Term) for x in r.index):
        return None
    moving = [i for i, x in enumerate(r.index) if columns.name in symbols(x)]
    if len(moving) != 1:
        return None
    found = wrap_of(r.index[moving[0]], {columns.name: columns.size})
    return None if found is None else (moving[0], found)


def cut_at_ends(wraps: Sequence[Wrap], size: Size, width: int) -> list[Stretch]:
    """Stretches of whole chunks: in all but those of one chunk, every read lies on one side of its end."""
    ends = {w.size - w.before for w in wraps}
    known = [e for e in ends if isinstance(e, int)]
    if not known or len(known) != len(ends) or len(ends) > _MOST_ENDS or not isinstance(size, int):
        return [(0, None)]
    cuts = {c for e in known for c in (e // width * width, -(-e // width) * width)}
    inner = sorted(c for c in cuts if 0 < c < size // width * width)
    return list(zip([0, *inner], [*inner, None], strict=True))


def side_of(wrap: Wrap, stretch: Stretch) -> int | None:
    """Whether all of a stretch lies before the end, 0, or beyond it, 1; None: it may lie on both sides."""
    low, high = stretch
    end = wrap.size - wrap.before
    if not isinstance(end, int):
        return None
    if low >= end:
        return 1
    return 0 if high is not None and high <= end else None
