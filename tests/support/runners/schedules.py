"""Schedules of a program for the law of bits: other nests for its kernels, from all over their spaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.schedule.nests.space import nests

SCHEDULES = 50


def spread_over(found: Sequence[Nest], count: int) -> list[Nest]:
    """So many nests, from everywhere in a space."""
    return [found[i * len(found) // count] for i in range(min(count, len(found)))]


def schedules(p: Program, count: int = SCHEDULES) -> Iterator[Program]:
    """Distinct schedules of a program; where it has many kernels, each has a few nests."""
    spaces = {s.name: list(nests(s)) for s in p.steps if isinstance(s, Kernel)}
    few = count if len(spaces) == 1 else 4
    spaces = {name: spread_over(found, few) for name, found in spaces.items()}
    seen = set()
    for i in range(4 * count):  # digits of i to the base of few say which nest a kernel has
        steps = tuple(
            replace(s, nest=spaces[s.name][i // few ** (j % 4) % len(spaces[s.name])])
            if isinstance(s, Kernel)
            else s
            for j, s in enumerate(p.steps)
        )
        q = replace(p, steps=steps)
        if q.hash not in seen:
            seen.add(q.hash)
            yield q
        if len(seen) == count:
            return
    raise AssertionError(f"{p.name} has {len(seen)} schedules only")
