"""Control flow on a device: the regions of an op are programs, and what they pass on stays where it is.

Only a condition travels to the host.  The steps of a scan, and of a loop that counts, need none.  A step
writes over what it was given where nothing else reads that, and a scan's slices are written where they
belong.  compile/gpu/control.py makes the programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.memory import DeviceArray, empty
from tessera.runtime.cuda.rows import copy_rows
from tessera.runtime.gpu.bound_program import NOWHERE, BoundProgram

_LINE = 16  # bytes at whose multiples a slice must begin

Arrays = Sequence[DeviceArray]
Run = Callable[[Arrays], list[DeviceArray]]


@dataclass(frozen=True)
class DeviceRegion:
    """A graph as a program at known sizes, and the arrays that it has from elsewhere."""

    program: BoundProgram[Any]
    constants: Arrays
    bytes: int  # that a run takes beside its inputs, while the results of the run before are held
    written: frozenset[int] = frozenset()  # the inputs that it writes over

    def __call__(self, xs: Arrays, into: Mapping[int, DeviceArray] = NOWHERE) -> list[DeviceArray]:
        return self.program.run([*xs, *self.constants], into)

    def begin(self, carry: Arrays) -> list[DeviceArray]:
        """What a loop begins with; a copy of what its steps write over."""
        return [x.copy() if i in self.written else x for i, x in enumerate(carry)]


def apart(run: Run, operands: Arrays) -> list[DeviceArray]:
    """Results in memory of their own: what a program reads it may write over later."""
    taken = list(operands)
    out: list[DeviceArray] = []
    for y in reversed(run(operands)):  # of a slice and all slices, which come last, these stay
        mixed = any(x.ptr <= y.ptr < x.ptr + x.nbytes for x in taken)
        out.append(y.copy() if mixed else y)
        taken.append(y)
    return out[::-1]


def _holds(x: DeviceArray) -> bool:
    return bool(x.numpy())


@dataclass(frozen=True)
class Branch:
    """One of two programs, as the first operand says."""

    yes: DeviceRegion
    no: DeviceRegion

    def __call__(self, xs: Arrays) -> list[DeviceArray]:
        return (self.yes if _holds(xs[0]) else self.no)(xs[1:])


@dataclass(frozen=True)
class CountedLoop:
    """A loop that goes on while a number is below another: where both come from, and the step."""

    start: int  # the operand that counts
    stop: int | np.ndarray[Any, np.dtype[Any]]  # an operand, or the number itself

    def steps(self, xs: Arrays) -> int:
        """How many steps there will be."""
        stop = xs[self.stop].numpy() if isinstance(self.stop, int) else self.stop
        return max(int(stop) - int(xs[self.start].numpy()), 0)


@dataclass(frozen=True)
class WhileLoop:
    """A body, as long as a test of what it carries holds, or so often as the loop counts."""

    test: DeviceRegion
    body: DeviceRegion
    count: int  # of the values that are carried
    counter: CountedLoop | None

    def __call__(self, xs: Arrays) -> list[DeviceArray]:
        body, carry, outer = self.body, self.body.begin(xs[: self.count]), xs[self.count :]
        if self.counter is not None:
            for _ in range(self.counter.steps(xs)):
                carry = body([*carry, *outer])
            return carry
        while _holds(self.test([*carry, *outer])[0]):
            carry = body([*carry, *outer])
        return carry


@dataclass(frozen=True)
class ScanLoop:
    """A body for each slice of some operands, with what it makes of them as slices of results."""

    body: DeviceRegion
    carry: int  # values that are carried
    slices: int  # operands whose slices steps read
    steps: range
    ys: tuple[
        tuple[tuple[int, ...], DTypeLike], ...
    ]  # shapes and dtypes of the results of all steps
    still: bool  # whether steps read and write at one address, from where slices are copied

    def __call__(self, xs: Arrays) -> list[DeviceArray]:
        carry, stop, body = self.carry, self.carry + self.slices, self.body
        state, outer = body.begin(xs[:carry]), xs[stop:]
        rows = [_FirstAxis.spread(x, self.still) for x in xs[carry:stop]]
        ys = [_FirstAxis.empty(shape, dtype, body.program.gpu) for shape, dtype in self.ys]
        own = {} if self.still else body.program.own_memory
        placed = [(i, y) for i, y in enumerate(ys, carry) if i in own]
        copied = [(i, y) for i, y in enumerate(ys, carry) if i not in own]
        for at in self.steps:
            into = {i: y[at] for i, y in placed}
            outs = body([*state, *[r.at(at) for r in rows], *outer], into)
            for i, y in copied:
                y.put(at, outs[i])
            state = outs[:carry]
        return [*state, *(y.together() for y in ys)]


class _FirstAxis:
    """The slices of an array along its first axis, each at an address that kernels accept."""

    def __init__(self, x: DeviceArray, shape: tuple[int, ...], dtype: DTypeLike, pitch: int):
        self.x, self.shape, self.dtype, self.pitch = x, shape, np.dtype(dtype), pitch
        self.width = prod(shape[1:]) * self.dtype.itemsize
        self.still: DeviceArray | None = None  # where each slice is copied before it is read

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: DTypeLike, gpu: Gpu) -> _FirstAxis:
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
