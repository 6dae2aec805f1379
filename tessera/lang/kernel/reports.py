"""What a kernel says while it runs: tile.print and tile.check, on every target.

    tile.print("row", t)        ->   store t to a tensor with a place for each instance; print it afterwards
    tile.check(i < n, "past")   ->   store 1 for an instance in which it fails; raise after the kernel

So instances speak in the order of the grid, whichever threads ran them, and a kernel that says nothing is the
kernel that it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size
from tessera.core.dtype import bool_
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Memory
from tessera.lang.kernel.access import Box
from tessera.lang.kernel.memory import both
from tessera.lang.kernel.table import INTRINSICS, Program, intrinsic
from tessera.lang.kernel.values import Array, KernelError, TileValue


@dataclass(frozen=True)
class Report:
    """What is said of the tensors that a kernel made for it."""

    kind: str  # "print" or "check"
    text: str
    axes: tuple[str, ...]  # of the grid
    count: int  # of the tensors
    location: Location | None


def _hidden(p: Program, dtype: Any, shape: Sequence[int]) -> tuple[Array, Box]:
    """A tensor with a place for each instance, and the box of this one."""
    places = p.places
    assert places.known_grid is not None
    counts: tuple[Size, ...] = tuple(n for _, n in places.known_grid)
    m = Memory(f"report{len(places.hidden)}", TensorType(dtype, (*counts, *shape)), "global", True)
    places.hidden.append(m)
    p.w.b.parameters.append(m)
    lead = tuple(places.counter(name) for name, _ in places.known_grid)
    rank, n = len(lead), len(shape)
    at, extent = (*lead, *(0,) * n), (*(1,) * rank, *shape)
    return Array(m.name, m, parameter=False), Box(
        at, extent, tuple(range(rank, rank + n)), (None,) * n, ()
    )


def _is_first(p: Program) -> bool:
    """Whether the grid is not known yet: the kernel is parsed once more."""
    p.places.speaks = True
    return p.places.known_grid is None


def _note(p: Program, kind: str, text: str, count: int) -> None:
    assert p.places.known_grid is not None
    axes = tuple(name.lstrip("_") for name, _ in p.places.known_grid)
    p.places.reports.append(Report(kind, text, axes, count, p.location))


@intrinsic(name="print")
def print_(p: Program, *values: Any) -> None:
    """Print texts and tiles after the kernel, for one instance after the other in the order of the grid."""
    if p.depth:
        raise KernelError(
            "print: it stands in a loop that runs; print what the loop carries after it, or step through the "
            "kernel with ts.interpret(step=True)"
        )
    if _is_first(p):
        return
    text = " ".join(x if isinstance(x, str) else "{}" for x in values)
    tiles = [p.w.tile(x) for x in values if not isinstance(x, str)]
    for x in tiles:
        array, box = _hidden(p, x.dtype, x.shape)
        p.places.store(array, p.w.plain(x.tile), box, None)
    array, box = _hidden(p, bool_, ())
    p.places.store(array, p.w.full(bool_, (), 1), box, both(p, None))
    _note(p, "print", text, len(tiles) + 1)


@intrinsic()
def check(p: Program, condition: Any, message: str = "") -> None:
    """Raise after the kernel where a condition did not hold in some instance; past an edge it may not."""
    if not isinstance(message, str):
        raise KernelError(f"check: the message is {message!r:.40}, expected text")
    if isinstance(condition, Dim) or not isinstance(condition, TileValue | bool):
        raise KernelError(f"check: got {condition!r:.40}, expected a tile of truth values")
    if _is_first(p):
        return
    every: Any = INTRINSICS["all"].emit(p, p.w.condition(condition))
    failed = p.w.apply("logical_not", p.w.tile(every))
    array, box = _hidden(p, bool_, ())
    p.places.store(array, p.w.full(bool_, (), 1), box, both(p, failed))
    _note(p, "check", message, 1)


def speak(
    name: str, reports: Sequence[Report], arrays: Sequence[Any], write: Callable[[str], Any] = print
) -> None:
    """Print what a kernel has to say, and raise where a check failed."""
    at = 0
    failed: KernelError | None = None
    for r in reports:
        own = [np.asarray(x) for x in arrays[at : at + r.count]]
        at += r.count
        ran = np.argwhere(own[-1])
        if r.kind == "print":
            for i in map(tuple, ran):
                where = ", ".join(f"{n}={k}" for n, k in zip(r.axes, i, strict=True))
                write(f"{name}[{where}] " + r.text.format(*(x[i] for x in own[:-1])))
        elif len(ran) and failed is None:
            where = ", ".join(f"{n}={k}" for n, k in zip(r.axes, ran[0], strict=True))
            what = f" ({r.text})" if r.text else ""
            failed = KernelError(
                f"{name}: the check{what} fails in {len(ran)} of {own[-1].size} instances, the first of "
                f"them {where}"
            )
            failed = failed if r.location is None else failed.at(r.location)
    if failed is not None:
        raise failed
