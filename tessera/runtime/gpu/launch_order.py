"""Order launches: which must wait for which, from the memory that they read and write.

    a = f(x); b = g(y); c = a + b    ->    c waits for a and b, which wait for nothing

A launch waits for those before it that wrote what it touches, and for those that still read what it writes;
of them only for the last ones, since these wait for the others.  Dependent launches
(ir/target/triton/dependent_launch.py) wait for the one before them as well: to follow one launch that ends
costs them less than to run beside it and to be waited for by others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Place = tuple[int, int, int]  # a cell, and the first and last byte of a stretch from there


@dataclass(frozen=True)
class Touched:
    """The memory that a launch reads and writes."""

    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    early: bool = False  # whether it begins while the one before it ends


@dataclass
class _Stretch:
    """Bytes of a cell, the launch that wrote them last, and those that have read them since."""

    first: int
    last: int
    writer: int | None
    readers: list[int] = field(default_factory=list)


def order(launches: Sequence[Touched]) -> list[tuple[int, ...]]:
    """For each launch, the launches before it that it waits for."""
    cells: dict[int, list[_Stretch]] = {}
    before: list[int] = []  # for each launch all that it waits for in the end, as bits
    out = []
    for i, touched in enumerate(launches):
        found = {j for j in _conflicts(cells, touched) if j != i}
        if touched.early and i and launches[i - 1].early:
            found.add(i - 1)
        known, waits = 0, []
        for j in sorted(found, reverse=True):
            if not known >> j & 1:
                waits.append(j)
                known |= before[j] | 1 << j
        before.append(known)
        out.append(tuple(reversed(waits)))
        _note(cells, touched, i)
    return out


def _conflicts(cells: dict[int, list[_Stretch]], t: Touched) -> Iterator[int]:
    for s in _meeting(cells, t.reads):
        if s.writer is not None:
            yield s.writer
    for s in _meeting(cells, t.writes):
        yield from s.readers
        if s.writer is not None:
            yield s.writer


def _meeting(cells: dict[int, list[_Stretch]], places: Sequence[Place]) -> Iterator[_Stretch]:
    for cell, first, last in places:
        for s in cells.get(cell, ()):
            if s.first <= last and first <= s.last:
                yield s


def _note(cells: dict[int, list[_Stretch]], t: Touched, i: int) -> None:
    for cell, first, last in t.reads:
        known = cells.setdefault(cell, [])
        same = next((s for s in known if (s.first, s.last) == (first, last)), None)
        if same is None:  # who wrote it is noted where it was written
            same = _Stretch(first, last, None)
            known.append(same)
        same.readers.append(i)
    for cell, first, last in t.writes:
        inside = [s for s in cells.get(cell, ()) if not (first <= s.first and s.last <= last)]
        cells[cell] = [*inside, _Stretch(first, last, i)]
