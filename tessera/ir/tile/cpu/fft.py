"""Kernels of Fourier transforms along one axis, as core/fourier.py defines them.

An instance brings `lanes` transforms into scratch, real and imaginary parts apart and the lanes next
to each other, runs the passes from one scratch memory to another, and writes the result back:

    columns   the axis is not the last one: lanes are neighbours in memory
    rows      it is the last one: a block of 16 rows is turned round on its way
    line      it is the last one and there are few rows: one lane, vectors along the transform

What a vector holds changes no bit, since an element has the same operations wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tessera.core.dims import Size, product, smaller
from tessera.core.dtype import DType
from tessera.core.fourier import FourierPass, FourierPlan, factor_of, small, split
from tessera.core.pairs import Pair
from tessera.core.processor import transform_vector
from tessera.core.tables import fourier_table
from tessera.core.transforms import axes_of
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import LAW, Primitive
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch
from tessera.ir.tile.number import TileNumber, numbers_of

LANES = 16  # transforms in one vector: AVX-512 in f32


Box = tuple[Sequence[Size], Sequence[int], Sequence[int]]  # at, extent, axes
Lanes = tuple[Size, int]  # the first one and how many


@dataclass(frozen=True)
class FftSchedule:
    """How transforms are laid out in scratch; no choice changes a bit."""

    lanes: int = LANES  # transforms of an instance
    few: int = 16  # rows below which each is transformed by itself
    long: int = 8192  # elements from which scratch for many rows is more than a cache holds
    register: int = field(default_factory=transform_vector)  # bytes that passes compute on at once


@dataclass(frozen=True)
class Side:
    """A tensor as a transform sees it: `outer` blocks of `count` elements that lie `inner` apart."""

    form: str  # complex, pairs (real numbers, two to an element) or real
    count: int
    outer: Size
    inner: Size
    layout: str  # columns, rows or line

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape of its memory, in real numbers."""
        if self.layout == "columns":
            middle: dict[str, tuple[Size, ...]] = {
                "complex": (self.inner, 2), "pairs": (2, self.inner), "real": (self.inner,),
            }  # fmt: skip
            return (self.outer, self.count, *middle[self.form])
        if self.layout == "line":
            return (self.outer, self.count) if self.form == "real" else (self.outer, self.count, 2)
        return (self.outer, self.count if self.form == "real" else 2 * self.count)

    @property
    def unit(self) -> int:
        """Elements that are moved at once."""
        if self.layout == "columns":
            return 1
        return LANES // 2 if self.layout == "rows" and self.form != "real" else LANES

    def lane_axis(self) -> int:
        """The axis of the memory along which lanes lie."""
        return {"complex": 2, "pairs": 3, "real": 2}[self.form] if self.layout == "columns" else 0

    def place(self, start: Sequence[Size], j: Size, width: int, lanes: int) -> Box:
        """The box of elements j to j + width in memory."""
        if self.layout == "columns":
            at = {
                "complex": ((start[0], j, start[1], 0), (1, 1, lanes, 2), (3, 2)),
                "pairs": ((start[0], j, 0, start[1]), (1, 1, 2, lanes), (2, 3)),
                "real": ((start[0], j, start[1]), (1, 1, lanes), (2,)),
            }
            return at[self.form]
        if self.layout == "line":
            whole = ((start[0], j, 0), (1, width, 2), (2, 1))
            return ((start[0], j), (1, width), (1,)) if self.form == "real" else whole
        size = 1 if self.form == "real" else 2
        return (start[0], j * size), (lanes, width * size), (0, 1)

    def room(self, j: Size, width: int, lanes: int) -> Box:
        """The box of the same elements in scratch, as a tile of the same order but for rows."""
        parts = 1 if self.form == "real" else 2
        if self.layout == "columns":
            axes: tuple[int, ...] = (0, 2)
        else:
            axes = (0, 1) if self.layout == "line" else (1, 0, 2)
        kept = tuple(a for a in axes if a != 0) if parts == 1 else axes
        return (0, j, 0), (parts, width, lanes), kept


@dataclass(frozen=True)
class Transform:
    """A transform of n elements along one axis: fft, ifft, rfft or irfft."""

    kind: str
    n: int
    outer: Size  # product of the sizes before the axis
    inner: Size  # and after it
    dtype: DType  # of the real numbers
    norm: str = "backward"
    schedule: FftSchedule = field(default_factory=FftSchedule)
    order: str = LAW  # any: products are rounded with the sums that they are added to

    @property
    def halved(self) -> bool:
        """Whether two real numbers are one complex one."""
        return self.kind in ("rfft", "irfft") and self.n % 2 == 0

    @cached_property
    def plan(self) -> FourierPlan:
        return FourierPlan(self.n // 2, True) if self.halved else FourierPlan(self.n)

    @property
    def layout(self) -> str:
        if self.inner != 1:
            return "columns"
        few = isinstance(self.outer, int) and self.outer < self.schedule.few
        alone = few or self.plan.length >= self.schedule.long or self.schedule.lanes == 1
        return "line" if alone else "rows"

    @property
    def direct(self) -> bool:
        """Whether passes read and write memory themselves.

        Not when there is one pass: instances may overlap, and a kernel that stores where it has just
        loaded would be taken for one whose result may lie in the place of its operand.
        """
        plain = self.kind in ("fft", "ifft") and not self.plan.chirped
        columns = self.layout == "columns" and self.lanes > 1
        return plain and columns and len(self.plan.passes) > 1

    @property
    def lanes(self) -> int:
        """Transforms of an instance."""
        if self.layout == "line":
            return 1
        count, most = self.inner if self.layout == "columns" else self.outer, self.schedule.lanes
        return count if isinstance(count, int) and 0 < count < most else most

    @property
    def operand(self) -> Side:
        if self.kind == "rfft":
            return self._real()
        return self._side("complex", self.n // 2 + 1 if self.kind == "irfft" else self.n)

    @property
    def result(self) -> Side:
        if self.kind == "irfft":
            return self._real()
        return self._side("complex", self.n // 2 + 1 if self.kind == "rfft" else self.n)

    def _real(self) -> Side:
        return self._side(*(("pairs", self.n // 2) if self.halved else ("real", self.n)))

    def _side(self, form: str, count: int) -> Side:
        return Side(form, count, self.outer, self.inner, self.layout)

    def kernel(self) -> Kernel:
        """The kernel; its parameters are the operand, the plan's table, the result."""
        return TransformWriter(self).kernel()


@dataclass(frozen=True)
class Planes:
    """Elements: (part, element, lane) in scratch, or complex columns; which part is the real one."""

    memory: Memory
    re: int = 0
    side: Side | None = None  # None: scratch
    factor: float | None = None  # of the norm, for what is written

    @property
    def swapped(self) -> Planes:
        return replace(self, re=1 - self.re)


class TransformWriter:
    """Writes the kernel of a transform."""

    def __init__(self, t: Transform, operands: int = 1):
        self.t, self.b, self.plan, self.lanes = t, Builder(f"{t.kind}{t.n}"), t.plan, t.lanes
        shapes = {"x" if operands == 1 else f"x{i}": t.operand.shape for i in range(operands)}
        shapes |= {"table": (2, self.plan.size), "y": t.result.shape}
        *self.xs, self.table, self.y = (
            self.b.parameter(name, TensorType(t.dtype, shape), writable=name == "y")
            for name, shape in shapes.items()
        )
        self.here, self.there = self.room(), self.room()
        self.factor = factor_of(t.n, t.norm, t.kind in ("ifft", "irfft"))
        self.real = numbers_of(t.order)
        self.at = self.start()

    def room(self) -> Planes:
        """Scratch for the elements of all lanes."""
        t = self.t
        size = max(self.plan.length, t.operand.count, t.result.count)
        return Planes(self.b.alloc(t.dtype, (2, size, self.lanes)))

    def kernel(self) -> Kernel:
        t = self.t
        if t.direct:
            self.straight()
            return self.b.finish()
        self.bring(t.operand)
        if t.kind == "irfft":
            self.join() if t.halved else self.mirror()
        if t.kind in ("ifft", "irfft"):
            self.exchange()
        self.transform()
        if t.kind in ("ifft", "irfft"):
            self.exchange()
        if t.kind == "rfft" and t.halved:
            self.take_apart()
        self.send(t.result)
        return self.b.finish()

    def straight(self) -> None:
        """Complex columns: the first pass reads memory, the last one writes it."""
        scratch = [self.here, self.there]
        chain = [Planes(self.xs[0], 0, self.t.operand)]
        chain += [scratch[i % 2] for i in range(len(self.plan.passes) - 1)]
        chain.append(Planes(self.y, 0, self.t.result, self.factor))
        if self.t.kind == "ifft":
            chain = [c.swapped for c in chain]
        self.along(chain)

    def along(self, chain: Sequence[Planes]) -> None:
        """Pass after pass from each of these to the next."""
        for p, source, target in zip(self.plan.passes, chain, chain[1:], strict=False):
            self.here, self.there = source, target
            self.one_pass(p)

    # Memory

    def start(self) -> list[Size]:
        """Where the lanes of this instance begin; the last ones overlap instead of reaching out."""
        t = self.t
        lead = [self.b.program(t.outer)] if t.layout != "rows" else []
        if t.layout == "line":
            return [lead[0]]
        count = t.inner if t.layout == "columns" else t.outer
        block = self.b.program((count + self.lanes - 1) // self.lanes)
        first: Size = block * self.lanes
        if isinstance(count, int) and count >= self.lanes and count % self.lanes:
            first = smaller(first, count - self.lanes)
        return [*lead, first]

    def masked(self, side: Side) -> tuple[int, ...]:
        """The axis of lanes where their number may be below that of an instance."""
        count = side.inner if side.layout == "columns" else side.outer
        known = isinstance(count, int) and count >= self.lanes
        return () if known or side.layout == "line" else (side.lane_axis(),)

    def bring(self, side: Side) -> None:
        """Elements from memory into scratch; real ones get an imaginary part of 0."""

        def move(j: Size, width: int) -> None:
            at, extent, axes = side.place(self.at, j, width, self.lanes)
            tile = self.b.load(self.xs[0], at, extent, axes, self.masked(side))
            at, extent, axes = side.room(j, width, self.lanes)
            if side.layout == "rows":
                turned = self.b.transpose(tile)
                tile = self.b.reshape(turned, [extent[a] for a in axes])
            self.b.store(self.here.memory, tile, at, extent, axes)
            if side.form == "real":
                zero = self.b.full(self.t.dtype, tile.shape, 0.0)
                self.b.store(self.here.memory, zero, (1, *at[1:]), extent, axes)

        self.blocks(side.count, side.unit, move)

    def send(self, side: Side) -> None:
        """Elements from scratch into memory, times the factor of the norm."""

        def move(j: Size, width: int) -> None:
            at, extent, axes = side.room(j, width, self.lanes)
            tile = self.scaled(self.b.load(self.here.memory, at, extent, axes), self.factor)
            at, extent, axes = side.place(self.at, j, width, self.lanes)
            if side.layout == "rows":
                tile = self.b.transpose(self.b.reshape(tile, extent[::-1]))
            self.b.store(self.y, tile, at, extent, axes, self.masked(side))

        self.blocks(side.count, side.unit, move)

    def scaled(self, x: Tile, factor: float | None) -> Tile:
        if factor is None:
            return x
        return self.b.apply("mul", x, self.b.full(self.t.dtype, (), factor))

    def blocks(self, count: int, unit: int, do: Callable[[Size, int], None]) -> None:
        """Elements in units; the last one overlaps the one before instead of being short.

        What is done twice has the same bits, since it goes from one memory to another.
        """
        if count <= unit:
            do(0, count)
            return
        with self.b.loop(0, count // unit * unit, unit) as loop:
            do(loop.variable, unit)
        if count % unit:
            do(count - unit, unit)

    def get(self, planes: Planes, j: Size, width: int = 1, lanes: Lanes | None = None) -> Pair:
        """Elements from j on: all or some lanes of one, or the only lane of several."""
        if planes.side is not None:
            return self.fetch(planes, planes.side, j, lanes or (0, self.lanes))
        boxes = (self.vector(p, j, width, lanes) for p in (planes.re, 1 - planes.re))
        return Pair(*(self.real(self.b, self.b.load(planes.memory, *box)) for box in boxes))

    def put(
        self, planes: Planes, j: Size, x: Pair, width: int = 1, lanes: Lanes | None = None
    ) -> None:
        if planes.side is not None:
            self.deliver(planes, planes.side, j, x, lanes or (0, self.lanes))
            return
        for part, value in ((planes.re, x.re), (1 - planes.re, x.im)):
            tile = self.scaled(value.tile, planes.factor)
            self.b.store(planes.memory, tile, *self.vector(part, j, width, lanes))

    def fetch(self, planes: Planes, side: Side, j: Size, lanes: Lanes) -> Pair:
        """The lanes of a complex column, whose parts go apart through a window."""
        (outer, inner), (lane, count) = self.at, lanes
        box = side.place((outer, inner + lane), j, 1, count)
        both = self.b.load(planes.memory, *box, self.masked(side))
        window = self.b.alloc(self.t.dtype, (2, count))
        self.b.store(window, both, (0, 0), (2, count))
        parts = (
            self.b.load(window, (p, 0), (1, count), axes=(1,)) for p in (planes.re, 1 - planes.re)
        )
        return Pair(*(self.real(self.b, t) for t in parts))

    def deliver(self, planes: Planes, side: Side, j: Size, x: Pair, lanes: Lanes) -> None:
        """The inverse of fetch, times the factor of the norm."""
        (outer, inner), (lane, count) = self.at, lanes
        window = self.b.alloc(self.t.dtype, (2, count))
        for part, value in ((planes.re, x.re), (1 - planes.re, x.im)):
            self.b.store(window, value.tile, (part, 0), (1, count), axes=(1,))
        both = self.scaled(self.b.load(window, (0, 0), (2, count)), planes.factor)
        box = side.place((outer, inner + lane), j, 1, count)
        self.b.store(planes.memory, both, *box, self.masked(side))

    def vector(self, part: int, j: Size, width: int, lanes: Lanes | None) -> Box:
        first, count = lanes or (0, self.lanes)
        return (part, j, first), (1, width, count), (1 if self.lanes == 1 else 2,)

    def number(self, at: Size, width: int = 1) -> Pair:
        """Numbers of the table: one for all lanes, or one for each element of a lane."""
        parts = (
            self.b.load(self.table, (p, at), (1, width), axes=(1,) if self.lanes == 1 else ())
            for p in (0, 1)
        )
        return Pair(*(self.real(self.b, t) for t in parts))

    def each(self, start: int, stop: int, do: Callable[[Size, int], None]) -> None:
        """Elements from start to stop: one by one, or by vectors when there is one lane."""
        step = 1 if self.lanes > 1 else LANES
        whole = start + (stop - start) // step * step
        if whole > start:
            with self.b.loop(start, whole, step) as loop:
                do(loop.variable, step)
        if whole < stop:
            do(whole, stop - whole)

    def exchange(self) -> None:
        """Real and imaginary parts change places, by name."""
        self.here, self.there = self.here.swapped, self.there.swapped

    # Steps of core/fourier.py

    def transform(self) -> None:
        if not self.plan.chirped:
            self.passes()
            return
        n, length = self.plan.n, self.plan.length
        self.multiply(n, self.plan.chirp)

        def clear(j: Size, width: int) -> None:
            self.put(self.here, j, Pair(self.zero(width), self.zero(width)), width)

        self.each(n, length, clear)
        self.passes()
        self.multiply(length, self.plan.spectrum)
        self.exchange()
        self.passes()
        self.exchange()
        self.multiply(n, self.plan.chirp)

    def multiply(self, count: int, at: int) -> None:
        """The first elements times numbers of the table."""

        def do(j: Size, width: int) -> None:
            x = self.get(self.here, j, width).times(self.number(at + j, width))
            self.put(self.here, j, x, width)

        self.each(0, count, do)

    def passes(self) -> None:
        for p in self.plan.passes:
            self.one_pass(p)
            self.here, self.there = self.there, self.here

    def one_pass(self, p: FourierPass) -> None:
        """From here to there."""
        if p.count == 1:
            self.row(p, 0)
            return
        with self.b.loop(0, p.count) as loop:
            self.row(p, loop.variable)

    def row(self, p: FourierPass, i: Size) -> None:
        """The small transforms that share their roots."""
        first, count = p.roots + i * (p.radix - 1), p.radix - 1 if p.count > 1 else 0
        roots = [self.root(first + k) for k in range(count)]
        if self.lanes == 1:
            step = next(w for w in (16, 8, 4, 2, 1) if w <= p.stride)
            self.blocks(p.stride, step, lambda q, w: self.butterfly(p, i, q, roots, w, None))
            return
        most = max(self.t.schedule.register * 8 // self.t.dtype.bits, 1)
        self.blocks(p.stride, 1, lambda q, _: self.blocks(
            self.lanes, most, lambda lane, w: self.butterfly(p, i, q, roots, 1, (lane, w))
        ))  # fmt: skip

    def root(self, at: Size) -> Pair:
        """One number of the table."""
        parts = (self.b.load(self.table, (p, at), (1, 1), axes=()) for p in (0, 1))
        return Pair(*(self.real(self.b, t) for t in parts))

    def butterfly(
        self,
        p: FourierPass,
        i: Size,
        q: Size,
        roots: Sequence[Pair],
        width: int,
        lanes: Lanes | None,
    ) -> None:
        places = ((i + p.count * j) * p.stride + q for j in range(p.radix))
        x = [self.get(self.here, place, width, lanes) for place in places]
        y = small(x)
        if roots:
            y[1:] = [v.times(w) for v, w in zip(y[1:], roots, strict=True)]
        for k, v in enumerate(y):
            self.put(self.there, (i * p.radix + k) * p.stride + q, v, width, lanes)

    # Real transforms

    def take_apart(self) -> None:
        """The elements of a real transform from those of a complex one of half the length."""
        m, zero = self.plan.n, self.zero()
        z = self.get(self.here, 0)
        self.put(self.there, 0, Pair(z.re + z.im, zero))
        self.put(self.there, m, Pair(z.re - z.im, zero))
        self.pairs(lambda root: root.scaled(0.5), 0.5)

    def join(self) -> None:
        """Twice the complex transform from the elements of a real one."""
        first, last = (self.get(self.here, j).re for j in (0, self.plan.n))
        self.put(self.there, 0, Pair(first + last, first - last))
        self.pairs(lambda root: Pair(root.re, -root.im), None)

    def pairs(self, change: Callable[[Pair], Pair], factor: float | None) -> None:
        m = self.plan.n
        with self.b.loop(1, m // 2 + 1) as loop:
            k = loop.variable
            root = change(self.root(self.plan.halves + k))
            a, b = (self.get(self.here, j) for j in (k, m - k))
            first, second = split(a, b, root, factor)
            self.put(self.there, k, first)
            self.put(self.there, m - k, second)
        self.here, self.there = self.there, self.here

    def mirror(self) -> None:
        """All elements of a transform of real numbers from the first half of them."""
        n = self.plan.n
        self.put(self.here, 0, Pair(self.get(self.here, 0).re, self.zero()))
        with self.b.loop(1, n // 2 + 1) as loop:
            x = self.get(self.here, loop.variable)
            self.put(self.here, n - loop.variable, Pair(x.re, -x.im))

    def zero(self, width: int = 1) -> TileNumber:
        return self.real(self.b, self.b.full(self.t.dtype, (self.lanes * width,), 0.0))


def lower_transform(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """A kernel for each axis, one after another."""
    t, axes = types[step.operands[0]], axes_of(step.params)
    launches, between, tables = [], {}, {}
    for i, axis in enumerate(axes):
        shape = t.shape
        n = step.params.get("n", shape[axis])
        made = Transform(
            step.primitive, n, product(shape[:axis]), product(shape[axis + 1 :]), t.dtype.real,
            step.params["norm"], order=step.order,
        )  # fmt: skip
        source = f"part{i - 1}" if i else step.operands[0]
        target = step.results[0] if i == len(axes) - 1 else f"part{i}"
        if target != step.results[0]:
            between[target] = t
        tables[f"table{i}"] = fourier_table(made.plan, TensorType(made.dtype, (2, made.plan.size)))
        launches.append(Launch(made.kernel(), (source, f"table{i}"), (target,)))
    return Expansion(tuple(launches), between, tables)


TRANSFORMS = dict.fromkeys(("fft", "ifft", "rfft", "irfft"), lower_transform)
