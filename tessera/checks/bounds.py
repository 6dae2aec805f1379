"""bounds: every access is inside its memory, or here are sizes and an instance where it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from tessera.checks.concrete import (
    Array,
    Env,
    InstanceEvent,
    arrays_for,
    events,
    instances,
    run_instance,
    shape_at,
    shown,
    try_sizes,
)
from tessera.checks.findings import Finding, Verdict, finding
from tessera.core.dims import Size
from tessera.core.prove import prove
from tessera.ir.tile.ir import Kernel, Operation
from tessera.ir.tile.scope import Access, AccessWalk

TOOL = "bounds"
_EVENTS = 100_000  # accesses that are tried


def check_bounds(
    kernel: Kernel,
    sizes: Mapping[str, int] | None = None,
    arrays: Sequence[Array] | None = None,
    promised: bool = False,
) -> Verdict:
    """Prove that no access leaves its memory, or find one that does and run it.

    Sizes that are given are the only ones looked at; so is data, where positions are read from it.
    Numbers of our own say nothing of indices where the author has promised what they are.
    """
    proved = 0
    unsure: dict[Operation, list[int]] = {}
    for access in AccessWalk(kernel, sizes).accesses():
        axes = unproved_axes(access)
        if axes:
            unsure[access.op] = axes
        else:
            proved += 1
    open_ = {op: n for op, n in unsure.items() if not (promised and "picked" in op.attributes)}
    found = _witnesses(kernel, open_, sizes, arrays) if open_ else {}
    left = [op for op in unsure if op not in found]
    return Verdict(TOOL, kernel.name, proved, tuple(map(_text, left)), tuple(found.values()))


def unproved_axes(a: Access) -> list[int]:
    """The axes along which an access is not proved to stay inside."""
    facts = a.context.facts
    return [
        axis
        for axis, n in enumerate(a.shape)
        if axis not in a.masked and not _inside(facts, a.low[axis], a.high[axis], n)
    ]


def _inside(facts: Sequence[Size], low: Size | None, high: Size | None, n: Size) -> bool:
    if low is None or high is None:
        return False
    return prove(facts, low) and prove(facts, n - 1 - high)


def _text(op: Operation) -> str:
    assert op.memory is not None
    return f"{op.name} {op.memory.name} at [{', '.join(map(str, op.attributes['at']))}]"


def _witnesses(
    kernel: Kernel,
    unsure: Mapping[Operation, Sequence[int]],
    known: Mapping[str, int] | None,
    arrays: Sequence[Array] | None,
) -> dict[Operation, Finding]:
    """An instance that leaves the memory, for each operation where there is one."""
    found: dict[Operation, Finding] = {}
    picks = any("picked" in op.attributes for op in unsure)
    left = _EVENTS
    for sizes in try_sizes(kernel, known):
        for instance in instances(kernel, sizes):
            for e in islice(events(kernel, sizes, instance), max(left, 0)):
                left -= 1
                if e.op in unsure and e.op not in found:
                    outside = _outside(e, unsure[e.op], sizes)
                    if outside is not None:
                        found[e.op] = _finding(kernel, sizes, instance, e, outside)
            if picks:
                _run_picks(kernel, sizes, instance, arrays, unsure, found)
        if len(found) == len(unsure):
            break
    return found


def _outside(e: InstanceEvent, axes: Sequence[int], sizes: Env) -> tuple[int, int] | None:
    """An axis along which a box leaves its memory, and the first element outside."""
    assert e.op.memory is not None
    shape = shape_at(e.op.memory, sizes)
    for axis in axes:
        if axis in e.op.attributes.get("picked", ()):
            continue
        if e.low[axis] < 0:
            return axis, e.low[axis]
        if e.high[axis] >= shape[axis]:
            return axis, max(e.low[axis], shape[axis])
    return None


def _finding(
    kernel: Kernel, sizes: Env, instance: Env, e: InstanceEvent, outside: tuple[int, int]
) -> Finding:
    assert e.op.memory is not None
    axis, place = outside
    arrays = arrays_for(kernel, sizes)
    error = None if arrays is None else run_instance(kernel, sizes, instance, arrays)
    n = shape_at(e.op.memory, sizes)[axis]
    loops = e.loops([name for name, _ in kernel.grid])
    return finding(
        TOOL, "error", kernel.name, e.op,
        f"{e.op.name} reaches element {place} of axis {axis} of {e.op.memory}, which has {n}",
        shown(sizes, instance, **loops, axis=axis, index=place),
        f"mask axis {axis}, or let the position stay below {e.op.memory.type.shape[axis]}",
        confirmed=error is not None,
    )  # fmt: skip


def _run_picks(
    kernel: Kernel,
    sizes: Env,
    instance: Env,
    arrays: Sequence[Array] | None,
    unsure: Mapping[Operation, Sequence[int]],
    found: dict[Operation, Finding],
) -> None:
    """Positions that are read from data: run on the data given, or on any."""
    data = [a.copy() for a in arrays] if arrays is not None else arrays_for(kernel, sizes)
    if data is None:
        return
    stopped: list[Operation] = []
    error = run_instance(kernel, sizes, instance, data, stopped=stopped)
    if error is None or stopped[0] not in unsure or stopped[0] in found:
        return
    found[stopped[0]] = finding(
        TOOL, "error", kernel.name, stopped[0], error.message, shown(sizes, instance),
        "mask the picked axis, or clamp the index tile", confirmed=True,
    )  # fmt: skip
