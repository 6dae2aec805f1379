"""inside: every access of a kernel is in its memory, but along the axes that it masks.

Three proofs are tried, from the quickest on: intervals of the counters, inequalities between positions
(core/prove.py), and, where all sizes are numbers, every value of the counters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tessera.core.dims import Size, SizeFunction, Symbol, bounds, substitute, symbols
from tessera.core.errors import VerifyError
from tessera.core.intervals import inside
from tessera.core.prove import prove
from tessera.ir.tile.ir import Kernel, Operation
from tessera.ir.tile.scope import Access, AccessWalk, Known, LoopContext

_FEW, _POINTS = 1 << 10, 1 << 20  # values of all counters of an access: tried first, tried at all
_SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 64, 65, 127, 257, 300, 347, 513, 519, 1033)


@dataclass(frozen=True)
class Loose:
    """An access that is not proved to lie inside along an axis."""

    access: Access
    axis: int

    def __str__(self) -> str:
        a = self.access
        low, high, n = a.low[self.axis], a.high[self.axis], a.shape[self.axis]
        where = "anywhere" if low is None or high is None else f"from {low} to {high}"
        return (
            f"{a.op.name} of {a.memory.name} is not proved to lie inside: axis {self.axis} of size {n} "
            f"is reached {where}"
        )


def verify_inside(kernel: Kernel, facts: Sequence[Size] = ()) -> None:
    """Raise VerifyError when an access of a kernel is not known to lie in its memory."""
    for found in loose_accesses(kernel, facts):
        raise VerifyError(f"{kernel.name}: {found}").at(found.access.op.location)


def loose_accesses(kernel: Kernel, facts: Sequence[Size] = ()) -> list[Loose]:
    """The accesses of a kernel that may leave their memory; facts are sizes of at least 0.

    Where sizes are symbols and no proof is found, every access is tried at some of them.
    """
    found = list(_loose(kernel, facts, {}))
    names = {s for x in found for s in x.access.context.names(x.access.low + x.access.high)}
    if not found or not names:
        return found
    suspects = {(x.access.op, x.axis) for x in found}
    outside: list[Loose] = []
    for i in range(len(_SIZES)):
        sizes = {name: _SIZES[(i + 5 * j) % len(_SIZES)] for j, name in enumerate(sorted(names))}
        if all(bounds(substitute(f, sizes))[1] >= 0 for f in facts):
            outside += _loose(kernel, facts, sizes, suspects)
        if outside:
            break
    return outside


def _loose(
    kernel: Kernel, facts: Sequence[Size], sizes: Mapping[str, int],
    only: Collection[tuple[Operation, int]] | None = None,
) -> Iterator[Loose]:  # fmt: skip
    known: dict[tuple[LoopContext, Size | None, Size | None, Size], bool] = {}
    for a in AccessWalk(kernel, sizes, facts).accesses():
        for axis, n in enumerate(a.shape):
            if axis in a.masked or (only is not None and (a.op, axis) not in only):
                continue
            key = a.context, a.low[axis], a.high[axis], n
            if key not in known:
                known[key] = is_inside(*key)
            if not known[key]:
                yield Loose(a, axis)


def is_inside(context: LoopContext, low: Size | None, high: Size | None, n: Size) -> bool:
    """Whether 0 <= low <= high < n is proved for all values of the counters."""
    if low is None or high is None:
        return False
    return _is_inside(context.known, low, high, n)


@lru_cache(maxsize=1 << 14)
def _is_inside(known: Known, low: Size, high: Size, n: Size) -> bool:
    """Kernels of one op for several dtypes, and a kernel before and after a pass, ask the same."""
    facts, counts = known.facts, known.counts
    if all(inside(x, n, counts) for x in (low, high)):
        return True
    if any(bounds(f)[1] < 0 for f in facts):
        return True  # it never runs
    ranges = _ranges(facts, counts, {s for x in (low, high, n) for s in symbols(x)})
    count = math.inf if ranges is None else math.prod(ranges.values())
    if ranges is not None and count <= _FEW:
        return _holds(facts, low, high, n, ranges)
    if prove(facts, low) and prove(facts, n - 1 - high):
        return True
    return ranges is not None and count <= _POINTS and _holds(facts, low, high, n, ranges)


def _holds(
    facts: Sequence[Size], low: Size, high: Size, n: Size, ranges: Mapping[str, int]
) -> bool:
    """Whether it holds at every point."""
    grid = np.meshgrid(*(np.arange(c) for c in ranges.values()), indexing="ij", sparse=True)
    env = dict(zip(ranges, grid, strict=True))
    runs: Any = True
    for f in facts:
        if symbols(f) <= ranges.keys():
            runs = runs & (_values(f, env) >= 0)
    ok = (_values(low, env) >= 0) & (_values(n - high, env) > 0)
    return bool(np.all(ok | ~np.asarray(runs)))


def _ranges(
    facts: Sequence[Size], below: Mapping[str, Size], names: set[str]
) -> dict[str, int] | None:
    """How often each counter runs, of these and of those on which their ends depend; None: sizes are no
    numbers.
    """
    found = set(names)
    for f in reversed(facts):
        if symbols(f) & found:
            found |= symbols(f)
    counts: dict[str, int] = {}
    for name in sorted(found):
        count = below.get(name)
        if not isinstance(count, int):
            return None
        counts[name] = max(count, 0)
    return counts


_NUMPY = {"//": np.floor_divide, "%": np.mod, "max": np.maximum, "min": np.minimum}


def _values(x: Size, env: Mapping[str, Any]) -> Any:
    """A position at every point."""
    if isinstance(x, int):
        return np.asarray(x)
    total: Any = 0
    for monomial, factor in x.terms:
        term: Any = factor
        for atom, power in monomial:
            term = term * _value(atom, env) ** power
        total = total + term
    return total


def _value(atom: Symbol | SizeFunction, env: Mapping[str, Any]) -> Any:
    if isinstance(atom, Symbol):
        return env[atom.name]
    return _NUMPY[atom.function](_values(atom.left, env), _values(atom.right, env))
