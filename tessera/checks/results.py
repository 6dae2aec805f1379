"""results: every element of what a kernel makes is written.

A result is proved when one store covers it as the counters run; where that fails, boxes are listed at
sizes that are tried, and an element that no instance writes is a witness: it stays 0.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np

from tessera.checks.concrete import (
    MOST_ELEMENTS,
    Env,
    clipped,
    events,
    instances,
    shape_at,
    shown,
    try_sizes,
)
from tessera.checks.findings import Finding, Verdict, finding
from tessera.ir.tile.coverage import is_covered
from tessera.ir.tile.ir import Kernel, Memory, Operation, walk

TOOL = "results"
_MOST_INSTANCES = 400  # of a grid that is followed whole


def check_results(
    kernel: Kernel, names: Collection[str] | None, sizes: Mapping[str, int] | None
) -> Verdict:
    """Prove that the parameters of these names are written whole, or show an element that is not.

    Of a kernel whose arguments are not told from its results there is nothing to ask.
    """
    made = [m for m in kernel.parameters if m.name in (names or ())]
    open_ = [m for m in made if not is_covered(kernel, m)]
    found, unproved = [], []
    for m in open_:
        gap = _gap(kernel, m, sizes)
        if gap is None:
            unproved.append(f"{m.name} is written whole")
        else:
            found.append(gap)
    return Verdict(TOOL, kernel.name, len(made) - len(open_), tuple(unproved), tuple(found))


def _gap(kernel: Kernel, m: Memory, known: Mapping[str, int] | None) -> Finding | None:
    """An element that no store reaches; None where stores depend on data, or reach all that is tried."""
    writes = [op for op in walk(kernel.body) if op.memory is m and op.traits.writes]
    if any(op.traits.by_data for op in writes):
        return None
    for sizes in try_sizes(kernel, known):
        shape = shape_at(m, sizes)
        every = instances(kernel, sizes, _MOST_INSTANCES + 1)
        if not 0 < math.prod(shape) <= MOST_ELEMENTS or len(every) > _MOST_INSTANCES:
            continue
        written = _written(kernel, m, sizes, every)
        if not written.all():
            return _found(kernel, m, sizes, written, writes)
    return None


def _written(kernel: Kernel, m: Memory, sizes: Env, every: list[Env]) -> np.ndarray:
    written = np.zeros(shape_at(m, sizes), bool)
    for instance in every:
        for e in events(kernel, sizes, instance, None):
            if e.op.memory is m and e.op.traits.writes:
                written[clipped(e, sizes)] = True
    return written


def _found(
    kernel: Kernel, m: Memory, sizes: Env, written: np.ndarray, writes: list[Operation]
) -> Finding:
    place = tuple(int(i) for i in np.argwhere(~written)[0])
    return finding(
        TOOL, "warning", kernel.name, writes[-1] if writes else None,
        f"{written.size - int(written.sum())} of {written.size} elements of {m.name} are written by no "
        "instance; "
        "they are 0",
        shown(sizes, {}, element=place),
        "return a tile of each block of the grid, store to every block, or say that it is meant: "
        "tile.empty(..., partial=True)",
        True,
    )  # fmt: skip
