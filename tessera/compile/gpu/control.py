"""Control flow on a device: the regions of an op are programs, and what they pass on stays where it is.

Only a condition travels to the host.  The steps of a scan, and of a loop that counts, need none.  A step
writes over what it was given where nothing else reads that, and a scan's slices are written where they
belong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tessera.compile.gpu.bind import Bound
from tessera.ir.graph.ir import Graph, Node, Value
from tessera.ir.graph.op import Params
from tessera.ir.schedule.memory import size_of
from tessera.ops.elementwise import add, lt
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.memory import DeviceArray, empty
from tessera.runtime.cuda.rows import copy_rows
from tessera.runtime.gpu.bound_program import NOWHERE

_LINE = 16  # bytes at whose multiples a slice must begin
_MANY = 16  # launches of a step that are worth a copy of its slices

Arrays = Sequence[DeviceArray]
Run = Callable[[Arrays], list[DeviceArray]]


@dataclass(frozen=True)
class DeviceRegion:
    """A graph as a program at known sizes, and the arrays that it has from elsewhere."""

    program: Bound
    constants: Arrays

    def __call__(self, xs: Arrays, into: Mapping[int, DeviceArray] = NOWHERE) -> list[DeviceArray]:
        return self.program.run([*xs, *self.constants], into)

    @property
    def bytes(self) -> int:
        """What a run takes beside its inputs, while the results of the run before are held."""
        p = self.program.planned
        return p.plan.peak + sum(size_of(p.types[n]) for n in p.outputs)


# A graph that may use the memory of some of its inputs, as a program.
Make = Callable[[Graph, frozenset[int]], DeviceRegion]


def controlled(n: Node, params: Params, make: Make) -> tuple[Run, int]:
    """What runs an op with regions, and the bytes that it takes meanwhile."""
    run, regions = _CONTROL[n.op.control](n, params, make)
    return partial(apart, run), max(r.bytes for r in regions)


def apart(run: Run, operands: Arrays) -> list[DeviceArray]:
    """Results in memory of their own: what a program reads it may write over later."""
    taken = list(operands)
    out: list[DeviceArray] = []
    for y in reversed(run(operands)):  # of a slice and all slices, which come last, these stay
        mixed = any(x.ptr <= y.ptr < x.ptr + x.nbytes for x in taken)
        out.append(y.copy() if mixed else y)
        taken.append(y)
    return out[::-1]


# cond


def _cond(n: Node, params: Params, make: Make) -> tuple[Run, Sequence[DeviceRegion]]:
    yes, no = (make(r, frozenset()) for r in n.regions)
    return lambda xs: (yes if _holds(xs[0]) else no)(xs[1:]), (yes, no)


def _holds(x: DeviceArray) -> bool:
    return bool(x.numpy())


# Loops: what a step may write over


def looping(make: Make, body: Graph, carry: int) -> DeviceRegion:
    """The body as a program that writes over what it carries where that has no other reader."""
    free = frozenset(range(carry))
    while True:
        region = make(body, free)
        wrong = region.program.planned.overwritten - _exclusive(region.program, carry)
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


def _begin(region: DeviceRegion, carry: Arrays) -> list[DeviceArray]:
    """What a loop begins with; a copy of what its steps write over."""
    written = region.program.planned.overwritten
    return [x.copy() if i in written else x for i, x in enumerate(carry)]


def _while(n: Node, params: Params, make: Make) -> tuple[Run, Sequence[DeviceRegion]]:
    count = len(n.results)
    test = make(n.regions[0], frozenset())
    body = looping(make, n.regions[1], count)
    counter = counts(n.regions[0], n.regions[1])

    def run(xs: Arrays) -> list[DeviceArray]:
        carry, outer = _begin(body, xs[:count]), xs[count:]
        if counter is not None:
            for _ in range(counter.steps(xs)):
                carry = body([*carry, *outer])
            return carry
        while _holds(test([*carry, *outer])[0]):
            carry = body([*carry, *outer])
        return carry

    return run, (test, body)


@dataclass(frozen=True)
class CountedLoop:
    """A loop that goes on while a number is below another: where both come from, and the step."""

    start: int  # the operand that counts
    stop: int | np.ndarray[Any, np.dtype[Any]]  # an operand, or the number itself

    def steps(self, xs: Arrays) -> int:
        """How many steps there will be."""
        stop = xs[self.stop].numpy() if isinstance(self.stop, int) else self.stop
        return max(int(stop) - int(xs[self.start].numpy()), 0)


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
    program = body.program
    stacked, p = range(carry, len(program.planned.outputs)), program.planned
    types = [p.types[p.outputs[i]] for i in stacked]
    shapes = [(length, *(int(size) for size in t.shape)) for t in types]
    steps = range(length)[::-1] if params["reverse"] else range(length)
    still = _is_worth_copies(program, carry, slices)
    own = {} if still else program.own_memory

    def run(xs: Arrays) -> list[DeviceArray]:
        state, outer = _begin(body, xs[:carry]), xs[carry + slices :]
        rows = [_FirstAxis.spread(x, still) for x in xs[carry : carry + slices]]
        ys = [
            _FirstAxis.empty(s, t.dtype.np, program.gpu) for s, t in zip(shapes, types, strict=True)
        ]
        placed = [(i, y) for i, y in zip(stacked, ys, strict=True) if i in own]
        copied = [(i, y) for i, y in zip(stacked, ys, strict=True) if i not in own]
        for at in steps:
            into = {i: y[at] for i, y in placed}
            outs = body([*state, *[r.at(at) for r in rows], *outer], into)
            for i, y in copied:
                y.put(at, outs[i])
            state = outs[:carry]
        return [*state, *(y.together() for y in ys)]

    return run, (body,)


def _is_worth_copies(p: Bound, carry: int, slices: int) -> bool:
    """Whether to copy slices to one address: many launches whose addresses come again are a graph.

    A slice that is carried on must stay where it is.
    """
    kept = any(carry <= cell < carry + slices for cell in p.cells_of_outputs[:carry])
    return p.launches >= _MANY and not kept


class _FirstAxis:
    """The slices of an array along its first axis, each at an address that kernels accept."""

    def __init__(self, x: DeviceArray, shape: tuple[int, ...], dtype: Any, pitch: int):
        self.x, self.shape, self.dtype, self.pitch = x, shape, np.dtype(dtype), pitch
        self.width = prod(shape[1:]) * self.dtype.itemsize
        self.still: DeviceArray | None = None  # where each slice is copied before it is read

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: Any, gpu: Gpu) -> _FirstAxis:
        """Slices that have yet to be written."""
        width = prod(shape[1:]) * np.dtype(dtype).itemsize
        pitch = -(-width // _LINE) * _LINE
        if pitch == width:
            return _FirstAxis(empty(shape, dtype, gpu), shape, dtype, pitch)
        return _FirstAxis(empty((shape[0] * pitch,), np.int8, gpu), shape, dtype, pitch)

    @staticmethod
    def spread(x: DeviceArray, still: bool) -> _FirstAxis:
        """The slices of an array, further apart if need be, or all at one address when read."""
        width = x.nbytes // max(x.shape[0], 1)
        if still:
            out = _FirstAxis(x, x.shape, x.dtype, width)
            out.still = empty(x.shape[1:], x.dtype, x.gpu)
            return out
        if width % _LINE == 0 and x.ptr % _LINE == 0:
            return _FirstAxis(x, x.shape, x.dtype, width)
        out = _FirstAxis.empty(x.shape, x.dtype, x.gpu)
        copy_rows(x.gpu, out.x.ptr, out.pitch, x.ptr, width, width, x.shape[0])
        return out

    def __getitem__(self, i: int) -> DeviceArray:
        x = self.x
        at = x.ptr + i * self.pitch
        return DeviceArray(self.shape[1:], self.dtype, x.gpu, at, x.owner)

    def at(self, i: int) -> DeviceArray:
        """A slice to be read."""
        if self.still is None:
            return self[i]
        source = self.x.ptr + i * self.pitch
        copy_rows(self.x.gpu, self.still.ptr, self.width, source, self.pitch, self.width, 1)
        return self.still

    def put(self, i: int, y: DeviceArray) -> None:
        """Copy a slice to its place."""
        to = self.x.ptr + i * self.pitch
        copy_rows(self.x.gpu, to, self.pitch, y.ptr, self.pitch, self.width, 1)

    def together(self) -> DeviceArray:
        """The slices as one array."""
        x = self.x
        if self.pitch == self.width:
            return x
        out = empty(self.shape, self.dtype, x.gpu)
        copy_rows(x.gpu, out.ptr, self.width, x.ptr, self.pitch, self.width, self.shape[0])
        return out


_CONTROL: dict[str, Callable[[Node, Params, Make], tuple[Run, Sequence[DeviceRegion]]]] = {
    "branch": _cond,
    "while": _while,
    "scan": _scan,
}
