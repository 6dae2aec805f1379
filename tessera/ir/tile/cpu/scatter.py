"""scatter: values put, added or compared to elements whose place is data, as a Tile program.

    y = x; y[i[n], c] += v[n, c]   ->   copy: y = x;   program c by 64: for n: y[i[n], c] += v[n, c]

Instances own parts of the result: some columns where there are many, some of the numbered rows where
there are few and most of them stay as they are.  Each goes through all indices in ascending order and keeps
to its part, so the order is that of core/scatters.py and nothing is written twice.  The copy is a launch of
its own, which is none where x and y lie in one place (ir/tile/cpu/writes.py); where most elements are
written, or sums are wider than x, an instance copies its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tessera.core.dims import Dim, Size, bounds, product, smaller
from tessera.core.dtype import i64
from tessera.core.scatters import JOINS, WIDE
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.cpu.writes import after_copy
from tessera.ir.tile.ir import Builder, Kernel, Tile
from tessera.ir.tile.launch import Expansion, Launch

_COLUMNS = 64  # of an instance
_LANES = 16  # of a vector: AVX-512 in f32
_PARTS = 8  # of the numbered rows where columns are few
_FEW = 1 << 12  # elements that are copied in the time of a launch
_DENSE = 4  # elements of x for each that is written, at most, where an instance copies its part
_SPARSE = 64  # elements for each index: a look at an index costs about as much as to copy 8 of them


def lower_scatter(join: str | None, step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """One kernel; narrow sums have a wide tensor in between, and a second kernel that rounds it."""
    x = types[step.operands[0]]
    wide = x.dtype.compute if join in WIDE else x.dtype
    if wide is x.dtype and not _is_dense(step, types):
        return after_copy(step, types, _Scatter(join, step, types, x).kernel(copied=True))
    return lower_with_copy(join, step, types)


def lower_with_copy(
    join: str | None, step: Primitive, types: Mapping[str, TensorType]
) -> Expansion:
    """The same where every instance copies what it owns itself."""
    x, out = types[step.operands[0]], step.results[0]
    wide = x.dtype.compute if join in WIDE else x.dtype
    kernel = _Scatter(join, step, types, TensorType(wide, x.shape)).kernel()
    if wide is x.dtype:
        return Expansion((Launch(kernel, step.operands, step.results),))
    kept = f"{out}_wide"
    first = Launch(kernel, step.operands, (kept,))
    second = Launch(_rounding(TensorType(wide, x.shape), x), (kept,), (out,))
    return Expansion((first, second), {kept: TensorType(wide, x.shape)})


def _is_dense(step: Primitive, types: Mapping[str, TensorType]) -> bool:
    """Whether it is known that a good part of the elements is written, or that there are few."""
    size, written = (types[step.operands[i]].size for i in (0, 1))
    small = isinstance(size, int) and size < _FEW
    return small or (isinstance(size, int) and isinstance(written, int) and written * _DENSE > size)


def _rounding(wide: TensorType, to: TensorType) -> Kernel:
    """A tensor in another dtype."""
    b, size = Builder("kernel"), wide.size
    x = b.parameter("x", TensorType(wide.dtype, (size,)))
    y = b.parameter("y", TensorType(to.dtype, (size,)), writable=True)
    at = b.program((size + _COLUMNS - 1) // _COLUMNS) * _COLUMNS
    value = b.load(x, (at,), (_COLUMNS,), masked=(0,))
    b.store(y, b.cast(value, to.dtype), (at,), (_COLUMNS,), masked=(0,))
    return b.finish()


class _Scatter:
    def __init__(
        self,
        join: str | None,
        step: Primitive,
        types: Mapping[str, TensorType],
        made: TensorType,
    ):
        self.join, self.b, self.made = join, Builder("kernel"), made
        self.axes: tuple[int, ...] = step.params["axes"]
        x, value, *indices = (types[n] for n in step.operands)
        self.shape = x.shape
        self.count = indices[0].size
        others = tuple(n for i, n in enumerate(x.shape) if i not in self.axes)
        self.x_type = x
        self.value_type = TensorType(value.dtype, (self.count, *others))
        self.index_types = [TensorType(t.dtype, (self.count,)) for t in indices]
        self.last = len(x.shape) - 1
        self.by_column = self.last not in self.axes
        self.part: tuple[Size, Size] | None = None  # of the first numbered axis; None: all

    def kernel(self, copied: bool = False) -> Kernel:
        """The kernel; what was copied before it has no x."""
        if not copied:
            self.x = self.b.parameter("x", self.x_type)
        self.parameters()
        ranges = self.grid(copied)
        if not copied:
            self.copy(ranges, 0, [])
        with self.b.loop(0, self.count) as n:
            self.update(n.variable, ranges)
        return self.b.finish()

    def parameters(self) -> None:
        b = self.b
        self.value = b.parameter("v", self.value_type)
        self.indices = [b.parameter(f"i{k}", t) for k, t in enumerate(self.index_types)]
        self.out = b.parameter("y", self.made, writable=True)

    def grid(self, copied: bool) -> list[tuple[Size, Size]]:
        """What this instance owns of each axis."""
        ranges: list[tuple[Size, Size]] = []
        for axis, n in enumerate(self.shape):
            if axis in self.axes:
                ranges.append((0, n))
            elif axis == self.last:
                ranges.append(self.block(n, _COLUMNS))
            else:
                at = self.b.program(n)
                ranges.append((at, at + 1))
        if not copied and self.is_narrow() and self.is_copy():
            first, n = self.axes[0], self.shape[self.axes[0]]
            each = (n + _PARTS - 1) // _PARTS
            start = smaller(self.b.program(_PARTS) * each, n)
            self.part = ranges[first] = (start, smaller(start + each, n))
        return ranges

    def is_narrow(self) -> bool:
        """Whether the axes beside the numbered ones are too few to share among instances."""
        rest = product(tuple(n for i, n in enumerate(self.shape) if i not in self.axes))
        return isinstance(rest, int) and rest < _COLUMNS

    def is_copy(self) -> bool:
        """Whether the copy is most of the work: each part costs a look at every index."""
        return bounds(product(self.shape) - _SPARSE * self.count)[0] >= 0

    def block(self, n: Size, width: int) -> tuple[Size, Size]:
        start = self.b.program((n + width - 1) // width) * width
        return start, smaller(start + width, n)

    # Copies

    def copy(self, ranges: Sequence[tuple[Size, Size]], axis: int, at: list[Size]) -> None:
        """The part of x that this instance owns, in vectors along the last axis."""
        start, stop = ranges[axis]
        if axis == self.last:
            cut = self.part is not None and self.axes[0] == self.last
            for span in _spans(start, stop, not cut):
                self.copy_line(at, span)
            return
        with self.b.loop(start, stop) as here:
            self.copy(ranges, axis + 1, [*at, here.variable])

    def copy_line(self, at: list[Size], span: tuple[Size, Size, int, bool]) -> None:
        start, stop, width, tail = span
        last = self.last
        with self.b.loop(start, stop, width) as column:
            box = ((*at, column.variable), (*(1 for _ in at), width), (last,))
            masked = (last,) if tail else ()
            value = self.b.load(self.x, *box, masked=masked)
            self.b.store(self.out, self.b.cast(value, self.made.dtype), *box, masked=masked)

    # Values

    def update(self, n: Dim, ranges: Sequence[tuple[Size, Size]]) -> None:
        picked = {axis: self.place(k, axis, n) for k, axis in enumerate(self.axes)}
        masked = self.axes  # what is outside is dropped
        at = [0 if i in self.axes else ranges[i][0] for i in range(len(self.shape))]
        if not self.by_column:
            self.put(n, picked, at, 1, masked, False)
            return
        for start, stop, width, tail in _spans(*ranges[self.last], True):
            with self.b.loop(start, stop, width) as column:
                self.put(n, picked, [*at[:-1], column.variable], width, masked, tail)

    def place(self, k: int, axis: int, n: Dim) -> Tile:
        """The number of the n-th index, which may be outside; -1 where the element is another instance's."""
        b, one = self.b, (1,) * self.by_column
        held = b.cast(b.load(self.indices[k], (n,), (1,), axes=()), i64)
        if self.part is not None and axis == self.axes[0]:
            start, stop = self.part
            mine = b.apply(
                "logical_and",
                b.apply("ge", held, b.index(start)),
                b.apply("lt", held, b.index(stop)),
            )
            held = b.apply("where", mine, held, b.full(i64, (), -1))
        return b.reshape(held, one)

    def put(
        self, n: Dim, picked: Mapping[int, Tile], at: Sequence[Size], width: int,
        masked: Sequence[int], tail: bool,
    ) -> None:  # fmt: skip
        """Join a value, or a line of them, to what is in its place."""
        b, last = self.b, self.last
        kept = (last,) if self.by_column else ()
        extent = tuple(width if i in kept else 1 for i in range(len(self.shape)))
        edges = (*masked, last) if tail else tuple(masked)
        own = [at[i] for i in range(len(self.shape)) if i not in self.axes]
        box = (1, *(1 for _ in own[1:]), width) if self.by_column else (1, *(1 for _ in own))
        edge = (len(own),) if tail else ()
        new = b.load(self.value, (n, *own), box, axes=(len(own),) if kept else (), masked=edge)
        new = b.cast(new, self.made.dtype)
        if self.join is not None:
            old = b.gather(self.out, picked, at, extent, kept, edges)
            new = b.apply(self.join, old, new)
        b.scatter(self.out, new, picked, at, extent, kept, edges)


def _spans(start: Size, stop: Size, at_end: bool) -> list[tuple[Size, Size, int, bool]]:
    """From start to stop: wide, in vectors, and what is left, masked at the end of an axis.

    What is left before another instance's part goes element by element.
    """
    found, at = [], start
    for width in (_COLUMNS, _LANES):
        end = (stop - start) // width * width + start
        found.append((at, end, width, False))
        at = end
    rest = (at, stop, _LANES if at_end else 1, at_end)
    return [s for s in (*found, rest) if s[0] != s[1]]


SCATTERS = {name: partial(lower_scatter, join) for name, join in JOINS.items()}
WITH_COPY = {name: partial(lower_with_copy, join) for name, join in JOINS.items()}
