"""barriers: what the threads of an instance write to shared memory is seen before others read it.

An instance may be many threads, each with some elements of a tile, so that between two accesses of
one element of shared memory, of which one writes, every thread must have passed a barrier.  What an
asynchronous store writes is there after a wait and then a barrier.

The proof reads the kernel in order, each loop twice, with the accesses since the last barrier in
hand; a fault is found by following the instances of small sizes element by element.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tessera.checks.concrete import (
    Array,
    Env,
    Event,
    arrays_for,
    clipped,
    events,
    instances,
    run_instance,
    shape_at,
    shown,
    try_sizes,
)
from tessera.checks.findings import Finding, Verdict, finding
from tessera.checks.races import touched_places
from tessera.core.dims import Size, substitute, symbol
from tessera.core.prove import prove, refute
from tessera.ir.tile.interp import Instance
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation, walk
from tessera.ir.tile.scope import Access, Context, Walk

TOOL = "barriers"


def check_barriers(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    arrays: Sequence[Array] | None = None,
) -> Verdict:
    """Prove that barriers stand between accesses of shared memory, or show where one is missing."""
    if not any(m.space == "shared" for m in kernel.scratch()):
        return Verdict(TOOL, kernel.name, note="no shared memory")
    proof = _Proof(kernel, sizes)
    proof.run()
    if not proof.unsure:
        return Verdict(TOOL, kernel.name, proof.proved)
    found = _witnesses(kernel, sizes) or _picked(kernel, proof.unsure, sizes, arrays)
    left = [] if found else [_text(a, b) for a, b in proof.unsure]
    return Verdict(TOOL, kernel.name, proof.proved, tuple(left), tuple(found))


def _text(a: Operation, b: Operation) -> str:
    assert a.memory is not None
    return f"no barrier between {a.name} and {b.name} of {a.memory.name}"


# Proof ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Since:
    """An access since the last barrier, in terms of the counters that are in force now."""

    access: Access
    names: Mapping[str, Size] = field(default_factory=dict)  # counters of earlier iterations
    facts: tuple[Size, ...] = ()
    flying: bool = False  # stored asynchronously, and not waited for

    def rename(self, counter: str, to: Size, fact: Sequence[Size] = ()) -> _Since:
        """The same access, of an earlier iteration."""
        one = {counter: to}
        names = {**one, **{k: substitute(v, one) for k, v in self.names.items()}}
        facts = tuple(substitute(f, one) for f in self.facts)
        return replace(self, names=names, facts=(*facts, *fact))


class _Proof(Walk):
    """Follows the accesses since the last barrier through the blocks of a kernel."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int] | None):
        super().__init__(kernel, sizes)
        self.proved, self.fresh = 0, 0
        self.unsure: dict[tuple[Operation, Operation], None] = {}
        self.inner: dict[Operation, Context] = {}

    def run(self) -> None:
        for _ in self.accesses():  # so that the ranges of index tiles are known
            pass
        self.follow(self.kernel.body, self.outermost(), [])

    def follow(self, block: Block, context: Context, since: list[_Since]) -> list[_Since]:
        for op in block.operations:
            if op.block is not None:
                since = self.loop(op, context, since)
            elif op.traits.meets:
                since = [s for s in since if s.flying]
            elif op.traits.waits:
                since = self.wait(op, since)
            elif op.memory is not None and op.memory.space == "shared":
                if op.traits.reads or op.traits.writes:
                    new = _Since(self.access(op, context), flying=op.traits.flies)
                    self.compare(since, new)
                    since = [*since, new]
        return since

    def wait(self, op: Operation, since: list[_Since]) -> list[_Since]:
        """All have arrived; which ones have when some may be pending is not followed."""
        if op.attributes["pending"]:
            return since
        return [replace(s, flying=False) for s in since]

    def loop(self, op: Operation, context: Context, since: list[_Since]) -> list[_Since]:
        assert op.block is not None
        if op not in self.inner:
            self.inner[op] = self.inside(op, context)
        inner = self.inner[op]
        counter, now = inner.counters[-1], symbol(inner.counters[-1])
        after = self.follow(op.block, inner, since)
        self.fresh += 1
        before = symbol(f"_b{self.fresh}")
        one = any(o.name == "barrier" for o in op.block.operations)
        again = [
            s.rename(counter, before, [now - 1 - before, *([before + 1 - now] if near else [])])
            for s in after
            if s not in since
            for near in [one and not s.flying]  # what is older is behind the barrier
        ]
        kept = [s for s in since if s.flying or not one]
        last = self.follow(op.block, inner, [*kept, *again])
        self.fresh += 1
        done = symbol(f"_b{self.fresh}")
        out = [s.rename(counter, done) for s in (*after, *last)]
        a = op.attributes
        runs = one and prove(context.facts, context.position(a["stop"] - 1 - a["start"]))
        return _once([*out, *(s for s in since if s.flying or not runs)])

    def compare(self, since: Iterable[_Since], new: _Since) -> None:
        for old in since:
            a, b = old.access, new.access
            if a.memory is not b.memory or not (a.writes or b.writes):
                continue
            if self.apart(old, new):
                self.proved += 1
            else:
                self.unsure[a.op, b.op] = None

    def apart(self, old: _Since, new: _Since) -> bool:
        """Whether an earlier access and one now never touch the same element."""
        a, b = old.access, new.access
        if a.op is b.op and not old.flying and a.low == tuple(
            substitute(x, old.names) if x is not None else None for x in a.low
        ):  # fmt: skip
            return not a.op.traits.by_data  # each thread writes its own elements again
        facts = [*(substitute(f, old.names) for f in a.context.facts), *old.facts, *b.context.facts]
        for axis, n in enumerate(a.shape):
            x = symbol(f"_x{axis}")
            facts.append(n - 1 - x)
            for access, names in ((a, old.names), (b, {})):
                low, high = access.low[axis], access.high[axis]
                if low is not None:
                    facts.append(x - substitute(low, names))
                if high is not None:
                    facts.append(substitute(high, names) - x)
        return refute(list(dict.fromkeys(facts)))


def _once(since: Iterable[_Since]) -> list[_Since]:
    out: list[_Since] = []
    for s in since:
        if s not in out:
            out.append(s)
    return out


# Witnesses ------------------------------------------------------------------------------------


def _witnesses(kernel: Kernel, known: Mapping[str, int] | None) -> list[Finding]:
    """The first fault of each pair of operations."""
    found: dict[tuple[Operation, Operation], Finding] = {}
    for sizes in try_sizes(kernel, known):
        for instance in instances(kernel, sizes, 4):
            thread = _Threads(kernel, sizes)
            for e in events(kernel, sizes, instance):
                thread.meet(e)
            for pair, element, flying in thread.faults:
                if pair not in found:
                    found[pair] = _finding(kernel, sizes, instance, pair, element, flying)
        if found:
            break
    return list(found.values())


def _picked(
    kernel: Kernel,
    unsure: Iterable[tuple[Operation, Operation]],
    known: Mapping[str, int] | None,
    arrays: Sequence[Array] | None,
) -> list[Finding]:
    """Faults of indexed accesses, which only a run shows."""
    if not any("picked" in op.attributes for pair in unsure for op in pair):
        return []
    found: dict[tuple[Operation, Operation], Finding] = {}
    for sizes in try_sizes(kernel, known, 8):
        for instance in instances(kernel, sizes, 4):
            for pair, element, flying in _followed(kernel, sizes, instance, arrays).faults:
                if pair not in found:
                    found[pair] = _finding(kernel, sizes, instance, pair, element, flying)
        if found:
            break
    return list(found.values())


class _Threads:
    """Element by element, what was accessed since the last barrier, and what is on its way."""

    def __init__(self, kernel: Kernel, sizes: Env):
        self.sizes, self.epoch = sizes, 1
        self.keys: dict[Any, int] = {}
        self.faults: list[tuple[tuple[Operation, Operation], tuple[int, ...], bool]] = []
        self.flying: list[Event] = []
        shared = [m for m in kernel.scratch() if m.space == "shared"]
        self.state = {m: _State(shape_at(m, sizes)) for m in shared}
        self.operations = list(walk(kernel.body))
        self.number = {op: i for i, op in enumerate(self.operations)}

    def meet(self, e: Event, places: Any = None) -> None:
        if e.op.traits.meets:
            self.epoch += 1
        elif e.op.traits.waits:
            while len(self.flying) > e.op.attributes["pending"]:
                self.arrive(self.flying.pop(0))
        elif e.op.memory in self.state and places is not None:
            self.access(e, places)
        elif e.op.memory in self.state and "picked" not in e.op.attributes and e.low:
            self.access(e, clipped(e, self.sizes))

    def access(self, e: Event, where: Any) -> None:
        assert e.op.memory is not None
        s = self.state[e.op.memory]
        mine = self.keys.setdefault((e.op, e.low), len(self.keys) + 1)
        self.fault(e, where, s.flying[where] > 0, s.flying[where] - 1, True)
        written = s.written[where] == self.epoch
        if e.op.traits.reads:
            self.fault(e, where, written, s.writer[where], False)
            s.read[where], s.reader[where] = self.epoch, self.number[e.op]
            return
        self.fault(e, where, written & (s.key[where] != mine), s.writer[where], False)
        self.fault(e, where, s.read[where] == self.epoch, s.reader[where], False)
        if e.op.traits.flies:
            s.flying[where] = self.number[e.op] + 1
            self.flying.append(e)
        else:
            s.written[where], s.writer[where], s.key[where] = self.epoch, self.number[e.op], mine

    def arrive(self, e: Event) -> None:
        assert e.op.memory is not None
        s, where = self.state[e.op.memory], clipped(e, self.sizes)
        s.flying[where] = 0
        s.written[where], s.writer[where], s.key[where] = self.epoch, self.number[e.op], 0

    def fault(self, e: Event, where: Any, bad: Array, other: Array, flying: bool) -> None:
        if not bad.any():
            return
        place = tuple(np.argwhere(bad)[0])
        element = tuple(
            int(p) + s.start if isinstance(s, slice) else int(s[place])
            for p, s in zip(place if len(place) == len(where) else where, where, strict=True)
        )
        pair = (self.operations[int(other[place])], e.op)
        self.faults.append((pair, element, flying))


class _State:
    """Of each element of a memory: when and by which operation it was written and read."""

    def __init__(self, shape: tuple[int, ...]):
        made = (np.zeros(shape, np.int32) for _ in range(6))
        self.written, self.writer, self.read, self.reader, self.key, self.flying = made


def _finding(
    kernel: Kernel,
    sizes: Env,
    instance: Env,
    pair: tuple[Operation, Operation],
    element: tuple[int, ...],
    flying: bool,
) -> Finding:
    first, op = pair
    assert op.memory is not None
    what = "before a wait" if flying else "with no barrier between"
    advice = "wait() and then barrier()" if flying else "barrier()"
    memory: Memory = op.memory
    confirmed = _shows(kernel, sizes, instance, pair)
    line = "" if first.location is None else f" (first at {first.location})"
    return finding(
        TOOL, "error", kernel.name, op,
        f"{first.name} and then {op.name} of element {list(element)} of {memory} {what}{line}",
        shown(sizes, instance, element=list(element)),
        f"{advice} before the {op.name}",
        confirmed,
    )  # fmt: skip


def _shows(kernel: Kernel, sizes: Env, instance: Env, pair: tuple[Operation, Operation]) -> bool:
    """Whether the accesses that the interpreter makes have the fault."""
    return any(p == pair for p, _, _ in _followed(kernel, sizes, instance, None).faults)


def _followed(
    kernel: Kernel, sizes: Env, instance: Env, arrays: Sequence[Array] | None
) -> _Threads:
    """What the accesses of an instance do, as the interpreter makes them."""
    data = [a.copy() for a in arrays] if arrays is not None else arrays_for(kernel, sizes)
    threads = _Threads(kernel, sizes)

    def watch(op: Operation, i: Instance, _: Any) -> None:
        a = op.attributes
        if op.memory is None and not op.traits.orders:
            return
        low = tuple(map(i.number, a.get("at", ())))
        high = tuple(x + n - 1 for x, n in zip(low, a.get("extent", ()), strict=True))
        places = touched_places(op, i) if "picked" in a else None
        threads.meet(Event(op, i.variables, low, high), places)

    if data is not None:
        run_instance(kernel, sizes, instance, data, watch)
    return threads
