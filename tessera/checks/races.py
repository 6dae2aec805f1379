"""races: no two program instances touch one element of global memory where one of them writes it.

Two instances differ along some axis of the grid: let it be the first one, so that the axes before it
are equal and those after it are free.  For every pair of accesses and every such axis the statement
"an element is common to both" is refuted, or sizes and two instances are found that share one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from tessera.checks.concrete import (
    MOST_ELEMENTS,
    Array,
    Env,
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
from tessera.core.dims import Size, substitute, symbol
from tessera.core.prove import refute
from tessera.ir.tile.interp import Instance
from tessera.ir.tile.ir import Kernel, Memory, Operation
from tessera.ir.tile.scope import Access, AccessWalk

TOOL = "races"
Pair = tuple[Operation, Operation]


def check_races(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    arrays: Sequence[Array] | None = None,
    promised: bool = False,
) -> Verdict:
    """Prove that instances keep out of each other's way in global memory, or show two that do not.

    Of indices that are data, numbers of our own say nothing where the author has promised what they are.
    """
    unsure: list[Pair] = []
    proved = 0
    for a, b in _pairs(AccessWalk(kernel, sizes).accesses()):
        if _apart(kernel, a, b):
            proved += 1
        else:
            unsure.append((a.op, b.op))
    open_ = [p for p in unsure if not (promised and any(map(is_promised, p)))]
    found = _witnesses(kernel, open_, sizes, arrays) if open_ else {}
    named = {_key(*p) for p in found}
    left = [_text(*p) for p in unsure if _key(*p) not in named]
    return Verdict(TOOL, kernel.name, proved, tuple(left), tuple(found.values()))


def is_promised(op: Operation) -> bool:
    """Whether the places of an access are data: they are what its author says of them."""
    return "picked" in op.attributes


def _key(a: Operation, b: Operation) -> frozenset[Operation]:
    return frozenset((a, b))


def _text(a: Operation, b: Operation) -> str:
    assert a.memory is not None
    return f"{a.name} and {b.name} of {a.memory.name} by different instances"


def _pairs(accesses: Iterator[Access]) -> Iterator[tuple[Access, Access]]:
    """Accesses of one global memory, of which one writes; the same boxes only once."""
    groups: dict[Memory, list[Access]] = {}
    seen: set[Any] = set()
    for a in accesses:
        key = (a.memory, a.writes, a.low, a.high, a.context.facts)
        if a.memory.space == "global" and (key not in seen or None in a.low):
            seen.add(key)
            groups.setdefault(a.memory, []).append(a)
    for group in groups.values():
        for a, b in combinations_with_replacement(group, 2):
            if a.writes or b.writes:
                yield a, b


def _apart(kernel: Kernel, a: Access, b: Access) -> bool:
    """Whether two accesses of different instances never share an element."""
    names = [name for name, _ in kernel.grid]
    for i, name in enumerate(names):
        other = {n: symbol(f"{n}_b") for n in names[i:]}
        mine, theirs = symbol(name), other[name]
        for order in (theirs - mine - 1, mine - theirs - 1):
            if not _never_meet(a, b, other, [order]):
                return False
            if a is b:
                break  # which of the two comes first does not matter
    return True


def _never_meet(a: Access, b: Access, other: Mapping[str, Size], more: Sequence[Size]) -> bool:
    """Whether the elements of a, and of b with some counters renamed, are never the same."""
    rename = {**{n: symbol(f"{n}_b") for n in b.context.counters}, **other}
    facts = [*a.context.facts, *(substitute(f, rename) for f in b.context.facts), *more]
    for axis, n in enumerate(a.shape):
        x = symbol(f"_x{axis}")
        facts.append(n - 1 - x)
        for access, names in ((a, {}), (b, rename)):
            low, high = access.low[axis], access.high[axis]
            if low is not None:
                facts.append(x - substitute(low, names))
            if high is not None:
                facts.append(substitute(high, names) - x)
    return refute(_useful(facts))


def _useful(facts: Sequence[Size]) -> list[Size]:
    """Facts without doubles; constants that hold say nothing."""
    return [f for f in dict.fromkeys(facts) if not isinstance(f, int) or f < 0]


# Witnesses ------------------------------------------------------------------------------------


def _witnesses(
    kernel: Kernel,
    unsure: Sequence[Pair],
    known: Mapping[str, int] | None,
    arrays: Sequence[Array] | None,
) -> dict[Pair, Finding]:
    """Two instances and an element that they share, for each memory where there are such."""
    found: dict[frozenset[Operation], tuple[Pair, Finding]] = {}
    memories = {a.memory for a, _ in unsure}
    picks = any("picked" in op.attributes for pair in unsure for op in pair)
    for sizes in try_sizes(kernel, known):
        tried: set[frozenset[Operation]] = set()
        for pair, element, who in _shared(kernel, sizes, memories, picks, arrays):
            before = found.get(_key(*pair))
            if _key(*pair) not in tried and (before is None or not before[1].confirmed):
                tried.add(_key(*pair))
                made = _finding(kernel, sizes, pair, element, who, arrays)
                if before is None or made.confirmed:
                    found[_key(*pair)] = pair, made
        memories -= {pair[0].memory for pair, f in found.values() if f.confirmed}
        if not memories:
            break
    return dict(found.values())


Shared = tuple[Pair, tuple[int, ...], tuple[Env, Env]]


def _shared(
    kernel: Kernel,
    sizes: Env,
    memories: set[Memory | None],
    picks: bool,
    arrays: Sequence[Array] | None,
) -> Iterator[Shared]:
    """Elements of the memories that two instances touch, one of them writing."""
    marks = {m: _Marks(shape_at(m, sizes)) for m in kernel.parameters if m in memories}
    if any(m.size > MOST_ELEMENTS for m in marks.values()):
        return
    who = instances(kernel, sizes)
    for writes in (True, False):
        for number, instance in enumerate(who):
            for op, where in _touched(kernel, sizes, instance, writes, picks, arrays):
                mark = marks.get(op.memory) if op.memory is not None else None
                hit = None if mark is None else mark.touch(where, number, op, writes)
                if hit is not None:
                    element, first, other = hit
                    yield (other, op), element, (who[first], instance)


class _Marks:
    """Who wrote each element of a memory, and by which operation."""

    def __init__(self, shape: tuple[int, ...]):
        self.size = int(np.prod(shape))
        self.owner = np.full(shape if self.size <= MOST_ELEMENTS else (), -1, np.int32)
        self.by = np.zeros(self.owner.shape, np.int32)
        self.operations: list[Operation] = []

    def touch(
        self, where: Any, number: int, op: Operation, writes: bool
    ) -> tuple[tuple[int, ...], int, Operation] | None:
        """Mark elements; one that another instance wrote before, with that instance and operation."""
        owner = self.owner[where]
        foreign = (owner >= 0) & (owner != number)
        hit = None
        if foreign.any():
            place = np.argwhere(foreign)[0]
            first = int(owner[tuple(place)])
            element = tuple(
                int(np.broadcast_to(i, owner.shape)[tuple(place)])
                for i in np.ix_(*(np.arange(s.start, s.stop) for s in where))
            ) if all(isinstance(s, slice) for s in where) else tuple(
                int(i[tuple(place)]) for i in where
            )  # fmt: skip
            hit = element, first, self.operations[int(self.by[where][tuple(place)])]
        if writes:
            if op not in self.operations:
                self.operations.append(op)
            self.owner[where] = number
            self.by[where] = self.operations.index(op)
        return hit


def _touched(
    kernel: Kernel,
    sizes: Env,
    instance: Env,
    writes: bool,
    picks: bool,
    arrays: Sequence[Array] | None,
) -> Iterator[tuple[Operation, Any]]:
    """The operations that write, or those that read, and the elements that they touch, as an index."""
    if not picks:
        for e in events(kernel, sizes, instance):
            if _does(e.op, writes) and e.op.memory in kernel.parameters:
                yield e.op, clipped(e, sizes)
        return
    log: list[tuple[Operation, Any]] = []
    data = [a.copy() for a in arrays] if arrays is not None else arrays_for(kernel, sizes)
    if data is not None:
        run_instance(kernel, sizes, instance, data, lambda op, i, _: _log(op, i, writes, log))
    yield from log


def _does(op: Operation, writes: bool) -> bool:
    return op.traits.writes if writes else op.traits.reads


def _log(op: Operation, i: Instance, writes: bool, log: list[Any]) -> None:
    if not _does(op, writes):
        return
    log.append((op, touched_places(op, i)))


def touched_places(op: Operation, i: Instance) -> Any:
    """The elements that an access has just touched, as index arrays."""
    if "picked" in op.attributes:
        tiles = op.operands[1:] if op.name == "scatter" else op.operands
        shape = op.operands[0].shape if op.name == "scatter" else op.results[0].shape
        _, index, inside = i.picked(op, [i.tiles[t] for t in tiles], shape)
    else:
        _, index, inside = i.places(op)
    return tuple(np.broadcast_to(x, inside.shape)[inside] for x in index)


def _finding(
    kernel: Kernel,
    sizes: Env,
    pair: Pair,
    element: tuple[int, ...],
    who: tuple[Env, Env],
    arrays: Sequence[Array] | None,
) -> Finding:
    first, op = pair
    assert op.memory is not None
    confirmed = all(
        _reaches(kernel, sizes, w, o, element, arrays) for w, o in zip(who, pair, strict=True)
    )
    verb = "write" if op.traits.writes else "write and read"
    return finding(
        TOOL, "error", kernel.name, op,
        f"two instances {verb} element {list(element)} of {op.memory} ({first.name}, {op.name})",
        shown(sizes, {}, instances=[tuple(w.values()) for w in who], element=list(element)),
        "let the position depend on every grid variable, in steps of at least the extent; what "
        "several instances add up needs a part for each and a second kernel that joins them",
        confirmed,
    )  # fmt: skip


def _reaches(
    kernel: Kernel,
    sizes: Env,
    instance: Env,
    op: Operation,
    element: tuple[int, ...],
    arrays: Sequence[Array] | None,
) -> bool:
    """Whether an operation of an instance touches an element when the interpreter runs it."""
    data = [a.copy() for a in arrays] if arrays is not None else arrays_for(kernel, sizes)
    if data is None:
        return False
    hits: list[bool] = []

    def watch(o: Operation, i: Instance, _: Any) -> None:
        if o is op:
            places = touched_places(o, i)
            same = [p == e for p, e in zip(places, element, strict=True)]
            hits.append(bool(np.all(same, axis=0).any()) if same else True)

    run_instance(kernel, sizes, instance, data, watch)
    return any(hits)
