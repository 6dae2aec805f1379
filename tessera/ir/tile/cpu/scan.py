"""scan: running folds and linear recurrences as Tile programs, in the order of core/scans.py.

    y[r, i] = y[r, i-1] + x[r, i]   ->   program r by 4: for i: acc += load(x, r, i); store(acc)

The tensor is seen as (outer, axis, inner).  Where inner has many elements they are the lanes of one
chain; where it has one, an instance runs the chains of four rows side by side, since each step of a
chain waits for the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tessera.core.dims import Dim, Size, product, smaller
from tessera.core.evaluate import identity
from tessera.core.scalar import Number
from tessera.core.scans import FOLDS
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel, Tile
from tessera.ir.tile.launch import Expansion, Launch

_ROWS = 4  # chains side by side
_COLUMNS = 64  # of an instance, and the lanes of its chain
_LANES = 16  # of a vector: AVX-512 in f32

Body = Callable[[Builder, Tile, Sequence[Tile]], Tile]  # (what was before, elements here) -> next


def _fold_body(name: str, b: Builder, last: Tile, xs: Sequence[Tile]) -> Tile:
    return b.apply(FOLDS[name], last, xs[0])


def _recurrence_body(b: Builder, last: Tile, xs: Sequence[Tile]) -> Tile:
    return b.apply("add", b.apply("mul", xs[0], last), xs[1])


def _start(name: str, t: TensorType) -> Number:
    """What the first step starts from so that a fold's first result is its first element."""
    wide = t.dtype.compute
    if name == "linear_recurrence":
        return 0
    if name == "cumsum" and wide.kind == "f":
        return -0.0  # 0.0 + -0.0 is 0.0
    return identity(FOLDS[name], wide)


def lower_scan(body: Body, step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """One kernel for the whole tensor."""
    return Expansion((Launch(_Scan(body, step, types).kernel(), step.operands, step.results),))


class _Scan:
    def __init__(self, body: Body, step: Primitive, types: Mapping[str, TensorType]):
        self.body, self.b, self.reverse = body, Builder("kernel"), step.params["reverse"]
        t, axis = types[step.results[0]], step.params["axis"]
        self.shape = (product(t.shape[:axis]), t.shape[axis], product(t.shape[axis + 1 :]))
        self.dtype, self.start = t.dtype, _start(step.primitive, t)
        seen = TensorType(t.dtype, self.shape)
        self.ins = [self.b.parameter(f"x{i}", seen) for i in range(len(step.operands))]
        self.out = self.b.parameter("y", seen, writable=True)

    def kernel(self) -> Kernel:
        outer, _, inner = self.shape
        if inner == 1:
            self.rows(outer)
        else:
            self.columns(self.b.program(outer), inner)
        return self.b.finish()

    def rows(self, outer: Size) -> None:
        """Several rows at once, and one by one those that are left."""
        first = self.b.program((outer + _ROWS - 1) // _ROWS) * _ROWS
        stop = smaller(first + _ROWS, outer)
        whole = (stop - first) // _ROWS * _ROWS + first
        for start, end, count in ((first, whole, _ROWS), (whole, stop, 1)):
            if start == end:
                continue
            with self.b.loop(start, end, count) as group:
                self.chains([(group.variable + i, 0) for i in range(count)], 1, False)

    def columns(self, row: Dim, inner: Size) -> None:
        """The columns of an instance: as wide as possible, then in vectors, then masked."""
        first = self.b.program((inner + _COLUMNS - 1) // _COLUMNS) * _COLUMNS
        stop = smaller(first + _COLUMNS, inner)
        start = first
        for width in (_COLUMNS, _LANES):
            end = (stop - first) // width * width + first
            self.wide(row, start, end, width, False)
            start = end
        self.wide(row, start, stop, _LANES, True)

    def wide(self, row: Dim, start: Size, end: Size, width: int, tail: bool) -> None:
        if start == end:
            return
        with self.b.loop(start, end, width) as column:
            self.chains([(row, column.variable)], width, tail)

    def chains(self, places: Sequence[tuple[Size, Size]], width: int, tail: bool) -> None:
        """Chains side by side, from the elements at (outer, inner) on."""
        b, n, compute = self.b, self.shape[1], self.dtype.compute
        begin = [b.full(compute, (width,), self.start) for _ in places]
        masked = (2,) if tail else ()
        with b.loop(0, n, 1, begin) as step:
            i = n - 1 - step.variable if self.reverse else step.variable
            made = []
            for last, (outer, inner) in zip(step.carried, places, strict=True):
                at, box = (outer, i, inner), (1, 1, width)
                xs = [
                    b.cast(b.load(m, at, box, axes=(2,), masked=masked), compute) for m in self.ins
                ]
                y = self.body(b, last, xs)
                b.store(self.out, b.cast(y, self.dtype), at, box, axes=(2,), masked=masked)
                made.append(y)
            step.carry(*made)


SCANS = {
    **{name: partial(lower_scan, partial(_fold_body, name)) for name in FOLDS},
    "linear_recurrence": partial(lower_scan, _recurrence_body),
}
