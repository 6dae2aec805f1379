"""Programs of control flow on a device: of each region one, which may write over what it is given.

runtime/gpu/control.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.compile.gpu.bind import Bound
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.graph.op import Params
from tessera.ir.schedule.memory import size_of
from tessera.ops.elementwise import add, lt
from tessera.runtime.gpu.control import (
    Arrays,
    Branch,
    CountedLoop,
    DeviceRegion,
    Run,
    ScanLoop,
    WhileLoop,
    apart,
)

_MANY = 16  # launches of a step that are worth a copy of its slices

# A graph that may use the memory of some of its inputs, as a program.
Make = Callable[[Graph, frozenset[int]], DeviceRegion]


def region_of(program: Bound, constants: Arrays) -> DeviceRegion:
    """A program, and the arrays that it has from elsewhere, as a region."""
    p = program.planned
    taken = p.plan.peak + sum(size_of(p.types[n]) for n in p.outputs)
    return DeviceRegion(program, constants, taken, p.overwritten)


def controlled(n: Node, params: Params, make: Make) -> tuple[Run, int]:
    """What runs an op with regions, and the bytes that it takes meanwhile."""
    run, regions = _CONTROL[n.op.control](n, params, make)
    return partial(apart, run), max(r.bytes for r in regions)


def _cond(n: Node, params: Params, make: Make) -> tuple[Run, Sequence[DeviceRegion]]:
    yes, no = (make(r, frozenset()) for r in n.regions)
    return Branch(yes, no), (yes, no)


# Loops: what a step may write over


def looping(make: Make, body: Graph, carry: int) -> DeviceRegion:
    """The body as a program that writes over what it carries where that has no other reader."""
    free = frozenset(range(carry))
    while True:
        region = make(body, free)
        wrong = region.written - _exclusive(region.program, carry)
        if not wrong:
            return region
        free -= wrong


def _exclusive(p: Bound, carry: int) -> frozenset[int]:
    """The carried values that lie, after any number of steps, where nothing else does."""
    cells = p.cells_of_outputs
    given = p.cells.inputs + len(p.planned.tables)
    alone = {i for i in range(carry) if cells.count(cells[i]) == 1}
    while True:
        kept = {i for i in alone if cells[i] >= given or cells[i] in alone}
        if kept == alone:
            return frozenset(alone)
        alone = kept


def _while(n: Node, params: Params, make: Make) -> tuple[Run, Sequence[DeviceRegion]]:
    count = len(n.results)
    test = make(n.regions[0], frozenset())
    body = looping(make, n.regions[1], count)
    return WhileLoop(test, body, count, counts(*n.regions)), (test, body)


def counts(test: Graph, body: Graph) -> CountedLoop | None:
    """The count of a loop whose test is i < n, for an i that grows by 1 and an n that stays; None for
    others.
    """
    end = test.outputs[0].node
    if end is None or end.op is not lt.op:
        return None
    places = {v: i for i, v in enumerate(test.inputs)}
    here, there = end.operands
    start = places.get(here, -1)
    if not 0 <= start < len(body.outputs) or here.dtype.kind not in "iu":
        return None
    grown = body.outputs[start].node
    if grown is None or grown.op is not add.op or not _grows(grown, body.inputs[start]):
        return None
    stop: Any = places.get(there, -1)
    if stop < 0:
        stop = _number(there)
    elif stop < len(body.outputs) and body.outputs[stop] is not body.inputs[stop]:
        return None
    return None if stop is None else CountedLoop(start, stop)


def _grows(n: Node, x: Value) -> bool:
    """Whether a sum is x + 1."""
    a, b = n.operands
    other = b if a is x else a if b is x else None
    return other is not None and _number(other) is not None and int(_number(other)) == 1


def _number(v: Value) -> Any:
    """The number that a value always is; None for others."""
    if v.node is None or v.ndim:
        return None
    value: Any = v.node.params.get("value")
    if v.node.op.makes == "number":
        return np.asarray(value)
    return value.array if v.node.op.makes == "data" else None


# scan


def _scan(n: Node, params: Params, make: Make) -> tuple[Run, Sequence[DeviceRegion]]:
    carry, slices, length = params["carry"], params["xs"], int(params["length"])
    body = looping(make, n.regions[0], carry)
    p = body.program.planned
    types = [p.types[y] for y in p.outputs[carry:]]
    ys = tuple(((length, *(int(size) for size in t.shape)), t.dtype.np) for t in types)
    steps = range(length)[::-1] if params["reverse"] else range(length)
    still = _is_worth_copies(body.program, carry, slices)
    return ScanLoop(body, carry, slices, steps, ys, still), (body,)


def _is_worth_copies(p: Bound, carry: int, slices: int) -> bool:
    """Whether to copy slices to one address: many launches whose addresses come again are a graph.

    A slice that is carried on must stay where it is.
    """
    kept = any(carry <= cell < carry + slices for cell in p.cells_of_outputs[:carry])
    return p.launches >= _MANY and not kept


_CONTROL: dict[str, Callable[[Node, Params, Make], tuple[Run, Sequence[DeviceRegion]]]] = {
    "branch": _cond,
    "while": _while,
    "scan": _scan,
}
