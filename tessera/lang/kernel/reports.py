"""What a kernel says while it runs: tile.print and tile.check, on every target.

    tile.print("row", t)        ->   store t to a tensor with a place for each instance; print it afterwards
    tile.check(i < n, "past")   ->   store 1 for an instance in which it fails; raise after the kernel

So instances speak in the order of the grid, whichever threads ran them, and a kernel that says nothing is the
kernel that it was.  In a loop there is a place for each of its first turns, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size
from tessera.core.dtype import bool_
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Memory
from tessera.lang.kernel.access import TensorBox
from tessera.lang.kernel.memory import both
from tessera.lang.kernel.table import INTRINSICS, IntrinsicContext, intrinsic
from tessera.lang.kernel.values import KernelArray, KernelError, TileValue

_TURNS = (64, 16, 8)  # of one loop, of each of two, and of more, whose prints are kept


@dataclass(frozen=True)
class KernelReport:
    """What is said of the tensors that a kernel made for it."""

    kind: str  # "print" or "check"
    text: str
    axes: tuple[str, ...]  # of the grid
    count: int  # of the tensors
    location: Location | None
    tick: int = 0  # when it was written
    loops: tuple[int, ...] = ()  # when the loops around it began
    turns: tuple[int, ...] = ()  # how many turns of each are kept
    more: bool = False  # whether there may be more, of which the last tensor tells


def _hidden(
    p: IntrinsicContext, dtype: Any, shape: Sequence[int], turns: Sequence[int] = ()
) -> tuple[KernelArray, TensorBox]:
    """A tensor with a place for each instance and for turns of the loops around, and the box of this one."""
    places = p.places
    assert places.known_grid is not None
    counts: tuple[Size, ...] = (*(n for _, n in places.known_grid), *turns)
    m = Memory(f"report{len(places.hidden)}", TensorType(dtype, (*counts, *shape)), "global", True)
    places.hidden.append(m)
    p.w.b.parameters.append(m)
    grid = [places.counter(name) for name, _ in places.known_grid]
    lead = (*grid, *(a.turn for a, _ in zip(p.w.b.around, turns, strict=False)))
    rank, n = len(lead), len(shape)
    at, extent = (*lead, *(0,) * n), (*(1,) * rank, *shape)
    return KernelArray(m.name, m, parameter=False), TensorBox(
        at, extent, tuple(range(rank, rank + n)), (None,) * n, tuple(range(len(grid), rank))
    )


def _is_first(p: IntrinsicContext) -> bool:
    """Whether the grid is not known yet: the kernel is parsed once more."""
    p.places.speaks = True
    return p.places.known_grid is None


def _note(p: IntrinsicContext, kind: str, text: str, count: int, *more: Any) -> None:
    assert p.places.known_grid is not None
    axes = tuple(name.lstrip("_") for name, _ in p.places.known_grid)
    p.places.reports.append(KernelReport(kind, text, axes, count, p.location, *more))


@intrinsic(name="print")
def print_(p: IntrinsicContext, *values: Any) -> None:
    """Print texts and tiles after the kernel, for one instance after the other in the order of the grid.

    In a loop each turn prints, the first 64 of them, or the first 16 of each of two loops.
    """
    text = " ".join(
        x.replace("{", "{{").replace("}", "}}") if isinstance(x, str) else "{}" for x in values
    )
    if _is_first(p):
        return
    tiles = [p.w.tile(x) for x in values if not isinstance(x, str)]
    if p.places.live is not None:
        p.places.live.print(text, tiles)
        return
    around = p.w.b.around
    limit = _TURNS[min(len(around), len(_TURNS)) - 1]
    fits = [isinstance(a.turns, int) and a.turns <= limit for a in around]
    turns = [
        max(a.turns, 1) if f and isinstance(a.turns, int) else limit
        for a, f in zip(around, fits, strict=True)
    ]
    for x in tiles:
        array, box = _hidden(p, x.dtype, x.shape, turns)
        p.places.store(array, p.w.plain(x.tile), box, None)
    array, box = _hidden(p, bool_, (), turns)
    p.places.store(array, p.w.full(bool_, (), 1), box, both(p, None))
    more = [p.w.apply("ge", p.w.tile(a.turn), n)
            for a, n, f in zip(around, turns, fits, strict=True) if not f]  # fmt: skip
    if more:
        past = more[0]
        for x in more[1:]:
            past = p.w.apply("logical_or", past, x)
        array, box = _hidden(p, bool_, ())
        p.places.store(array, p.w.full(bool_, (), 1), box, both(p, past))
    loops = tuple(a.tick for a in around)
    count = len(tiles) + 1 + bool(more)
    _note(p, "print", text, count, p.w.b.tick(), loops, tuple(turns), bool(more))


@intrinsic()
def check(p: IntrinsicContext, condition: Any, message: str = "") -> None:
    """Raise after the kernel where a condition did not hold in some instance; past an edge it may not."""
    if not isinstance(message, str):
        raise KernelError(f"check: the message is {message!r:.40}, expected text")
    if isinstance(condition, Dim) or not isinstance(condition, TileValue | bool):
        raise KernelError(f"check: got {condition!r:.40}, expected a tile of truth values")
    if _is_first(p):
        return
    every: Any = INTRINSICS["all"].emit(p, p.w.condition(condition))
    if p.places.live is not None:
        p.places.live.check(message, p.w.tile(every), p.location)
        return
    failed = p.w.apply("logical_not", p.w.tile(every))
    array, box = _hidden(p, bool_, ())
    p.places.store(array, p.w.full(bool_, (), 1), box, both(p, failed))
    _note(p, "check", message, 1)


def speak(
    name: str,
    reports: Sequence[KernelReport],
    arrays: Sequence[Any],
    write: Callable[[str], Any] = print,
) -> None:
    """Print what a kernel has to say, and raise where a check failed."""
    own: list[tuple[KernelReport, list[Any]]] = []
    at = 0
    for r in reports:
        own.append((r, [np.asarray(x) for x in arrays[at : at + r.count]]))
        at += r.count
    said = [x for r, given in own if r.kind == "print" for x in _lines(r, given)]
    for instance, _, text, r in sorted(said, key=lambda x: x[:2]):
        write(f"{name}[{place(r.axes, instance)}] {text}")
    for r, given in own:
        if r.kind == "check" and given[-1].any():
            same = [
                x[-1]
                for s, x in own
                if (s.kind, s.text, s.location) == (r.kind, r.text, r.location)
            ]
            raise failure(name, r, np.argwhere(np.logical_or.reduce(same)).tolist(), given[-1].size)


Line = tuple[tuple[int, ...], tuple[int, ...], str, KernelReport]


def _lines(r: KernelReport, given: Sequence[Any]) -> Iterator[Line]:
    """What one print said: the instance, when in it, and the text."""
    tiles, ran = given[: r.count - 1 - r.more], given[r.count - 1 - r.more]
    rank = ran.ndim - len(r.turns)
    for i in map(tuple, np.argwhere(ran).tolist()):
        when = tuple(n for pair in zip(r.loops, i[rank:], strict=True) for n in pair)
        yield i[:rank], (*when, r.tick), r.text.format(*(x[i] for x in tiles)), r
    if r.more:
        kept = "of each loop " if len(r.turns) > 1 else ""
        for i in map(tuple, np.argwhere(given[-1]).tolist()):
            text = f"(more turns than the first {min(r.turns)} {kept}print {r.text!r})"
            yield i, (r.loops[0], 1 << 62, r.tick), text, r


def place(axes: Sequence[str], point: Sequence[int]) -> str:
    """The words for an instance."""
    return ", ".join(f"{n}={k}" for n, k in zip(axes, point, strict=True))


def failure(name: str, r: KernelReport, failed: Sequence[Sequence[int]], count: int) -> KernelError:
    """The error of a check that failed in these instances."""
    what = f" ({r.text})" if r.text else ""
    error = KernelError(
        f"{name}: the check{what} fails in {len(failed)} of {count} instances, the first of "
        f"them {place(r.axes, failed[0])}"
    )
    return error if r.location is None else error.at(r.location)
