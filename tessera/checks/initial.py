"""initial: no element of scratch is read before it is written, if what is read reaches a result.

A read is proved when one earlier store covers it, alone or swept by loops that have ended.  Where that
fails, kernels are run twice with different numbers in fresh scratch: a result that differs is a fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tessera.checks.concrete import (
    Array,
    Env,
    arrays_for,
    clipped,
    events,
    instances,
    random_array,
    run_instance,
    shape_at,
    shown,
    try_sizes,
)
from tessera.checks.findings import Finding, Verdict, finding
from tessera.checks.races import touched_places
from tessera.core.dims import Size, substitute, symbol, symbols
from tessera.core.prove import prove
from tessera.ir.tile.interp import Instance
from tessera.ir.tile.ir import Kernel, Memory, Operation
from tessera.ir.tile.scope import Access, Context, Walk

TOOL = "initial"
_STORES = 4  # at either end, that are asked whether they cover a load
_CONFIRMS = 2  # instances that are run
_EVENTS = 60_000  # accesses that are followed


def check_initial(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    arrays: Sequence[Array] | None = None,
) -> Verdict:
    """Prove that scratch is written before it is read, or show a result that depends on garbage."""
    reads, written = [], dict[Memory, list[Access]]()
    proved = 0
    for a in Walk(kernel, sizes).accesses():
        if a.memory.space == "global":
            continue
        if a.writes:
            written.setdefault(a.memory, []).append(a)
        elif any(_covers(w, a) for w in _few(written.get(a.memory, []))):
            proved += 1
        else:
            reads.append(a.op)
    if not reads:
        return Verdict(TOOL, kernel.name, proved)
    found = _witness(kernel, sizes, arrays)
    left = () if found else tuple(f"{op.name} of {op.memory}" for op in reads)
    return Verdict(TOOL, kernel.name, proved, left, tuple(found))


def _few(stores: list[Access]) -> list[Access]:
    """The first and the last stores, one of which covers most loads."""
    return stores if len(stores) <= 2 * _STORES else stores[:_STORES] + stores[-_STORES:]


def _covers(w: Access, r: Access) -> bool:
    """Whether an earlier store writes all that a load reads, over the loops that have ended."""
    if None in w.low or None in r.low or w.op.traits.by_data:
        return False
    ended = [c for c in w.context.counters if c not in r.context.counters]
    last = _last_of(w.context, ended)
    facts = list(r.context.facts)
    if last is None or not all(prove(facts, n) for n in last.values()):
        return False  # a loop may not run at all
    used: set[str] = set()
    for axis, (low, high) in enumerate(zip(w.low, w.high, strict=True)):
        assert low is not None
        assert high is not None
        mine = [c for c in ended if c in symbols(low)]
        if len(mine) > 1 or used & set(mine):
            return False
        if mine:
            used |= set(mine)
            step = substitute(low, {mine[0]: symbol(mine[0]) + 1}) - low
            if not isinstance(step, int) or not 0 <= step <= high - low + 1:
                return False
            low, high = substitute(low, {mine[0]: 0}), substitute(high, {mine[0]: last[mine[0]]})
        x, (first, end) = symbol("_x"), (r.low[axis], r.high[axis])
        assert first is not None
        assert end is not None
        here = [*facts, x - first, end - x, r.shape[axis] - 1 - x]
        if not (prove(here, x - low) and prove(here, high - x)):
            return False
    return True


def _last_of(context: Context, ended: Sequence[str]) -> dict[str, Size] | None:
    """The last value of each counter of a loop that has ended, if no such loop bounds another."""
    last: dict[str, Size] = {}
    for name in ended:
        fact = next(f for f in context.facts if name in symbols(f))
        step = fact - substitute(fact, {name: symbol(name) + 1})
        rest = substitute(fact, {name: 0})
        if not isinstance(step, int) or symbols(rest) & set(ended):
            return None
        last[name] = rest // step
    return last


# Witnesses ------------------------------------------------------------------------------------


def _witness(
    kernel: Kernel, known: Mapping[str, int] | None, arrays: Sequence[Array] | None
) -> list[Finding]:
    tries, left = _CONFIRMS, _EVENTS
    for sizes in try_sizes(kernel, known, 8):
        for instance in instances(kernel, sizes, 3):
            garbage, count = _reads_garbage(kernel, sizes, instance, left)
            left -= count
            if not garbage:
                continue
            runs = [_Run(kernel, sizes, instance, arrays, seed) for seed in (1, 2)]
            if runs[0].first is not None and runs[0].differs(runs[1]):
                return [_finding(kernel, sizes, instance, *runs[0].first)]
            tries -= 1
            if tries == 0:
                return []
    return []


def _reads_garbage(kernel: Kernel, sizes: Env, instance: Env, most: int) -> tuple[bool, int]:
    """Whether an instance reads scratch that it has not written, and after how many accesses.

    It goes by positions alone; what a gather or a scatter touches depends on data.
    """
    written: dict[Memory, Array] = {}
    count = 0
    for e in islice(events(kernel, sizes, instance, None), max(most, 0)):
        count += 1
        m = e.op.memory
        if m is None or m.space == "global":
            continue
        if e.op.traits.makes:
            written[m] = np.zeros(shape_at(m, sizes), bool)
        elif "picked" in e.op.attributes:
            written[m][...] = True
        elif e.op.traits.writes:
            written[m][clipped(e, sizes)] = True
        elif not np.all(written[m][clipped(e, sizes)]):
            return True, count
    return False, count


class _Run:
    """An instance run with some numbers in fresh scratch, and its first read of one of those."""

    def __init__(
        self,
        kernel: Kernel,
        sizes: Env,
        instance: Env,
        arrays: Sequence[Array] | None,
        seed: int,
    ):
        self.rng = np.random.default_rng(seed)
        self.written: dict[Memory, Array] = {}
        self.first: tuple[Operation, tuple[int, ...]] | None = None
        data = [a.copy() for a in arrays] if arrays is not None else arrays_for(kernel, sizes)
        self.results = [] if data is None else data
        if data is not None:
            run_instance(kernel, sizes, instance, data, self.watch)

    def watch(self, op: Operation, i: Instance, _: Any) -> None:
        m = op.memory
        if m is None or m.space == "global":
            return
        if op.traits.makes:
            data = i.memories[m]
            data[...] = random_array(data.shape, m.type.dtype, self.rng)
            self.written[m] = np.zeros(data.shape, bool)
        elif op.traits.writes:
            self.written[m][touched_places(op, i)] = True
        elif op.traits.reads and self.first is None:
            places = touched_places(op, i)
            seen = self.written[m][places]
            if not np.all(seen):
                bad = int(np.argmin(seen))
                self.first = op, tuple(int(p.reshape(-1)[bad]) for p in places)

    def differs(self, other: _Run) -> bool:
        """Whether a result is not the same."""
        pairs = zip(self.results, other.results, strict=True)
        return any(a.tobytes() != b.tobytes() for a, b in pairs)


def _finding(
    kernel: Kernel, sizes: Env, instance: Env, op: Operation, element: tuple[int, ...]
) -> Finding:
    return finding(
        TOOL, "error", kernel.name, op,
        f"{op.name} reads element {list(element)} of {op.memory}, which nothing has written, and a "
        "result depends on it",
        shown(sizes, instance, element=list(element)),
        "store to all of the scratch before the loop, or read only what was stored",
        confirmed=True,
    )  # fmt: skip
