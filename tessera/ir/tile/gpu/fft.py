"""fft: Fourier transforms on a GPU, some passes of core/fourier.py to a launch.

    x[Q, j, p] -> y[k, Q, p]    Q < done, j and k < radix, p < left; done * radix * left is the length

A thread holds the elements j of a Q and a p, runs the passes whose radices multiply to `radix` on them, and
writes the elements k.  Neighbouring threads read and write neighbouring p, or Q where one p is left: memory
is read and written in whole lines, and the order after the last launch is that of the transform.  An
element has the operations of the definition, so the bits are those of the CPU and do not depend on what is
batched with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

from tessera.core.dtype import DType, f32, i64, u32, u64
from tessera.core.fourier import FourierPass, FourierPlan, factor_of, small, split
from tessera.core.pairs import Pair
from tessera.core.tables import Table, fourier_table
from tessera.core.transforms import axes_of
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads
from tessera.ir.tile.number import TileNumber, numbers_of

_LANES = 128  # of a block, one to a thread
_RADIX = {32: 16, 64: 16}  # elements that a thread holds at most, by the bits of a part

Fixed = tuple[int]  # one place of an axis that no thread moves along
Hook = Callable[["_TransformWriter", Pair, int], Pair]


@dataclass(frozen=True)
class LanePlace:
    """A buffer of elements along an axis, and how their parts lie in it."""

    buffer: str
    form: str  # complex, pairs (two real numbers to an element) or real
    swapped: bool = False  # whether imaginary parts are taken for real ones

    def shape(self, t: Transform, split: Sequence[int]) -> tuple[int, ...]:
        """The shape of its memory, in real numbers, where the axis is cut into several."""
        inside: dict[str, tuple[int, ...]] = {
            "complex": (*split, t.inner, 2), "pairs": (*split, 2, t.inner), "real": (*split, t.inner),
        }  # fmt: skip
        return (t.outer, *inside[self.form])

    def packed(self, t: Transform) -> bool:
        """Whether the parts of an element are one word of 64 bits."""
        return t.dtype is f32 and (
            self.form == "complex" or (self.form == "pairs" and t.inner == 1)
        )

    def boxed(self, part: int, axes: Sequence[int | Fixed]) -> list[int | Fixed]:
        """The axes of memory: a lane axis by its number, or a fixed place."""
        first, *middle, last = axes
        which: Fixed = (part,)
        return {
            "complex": [first, *middle, last, which], "pairs": [first, *middle, which, last],
            "real": [first, *middle, last],
        }[self.form]  # fmt: skip


@dataclass(frozen=True)
class Transform:
    """A transform of n elements along the middle of three axes."""

    kind: str
    n: int
    outer: int
    inner: int
    dtype: DType  # of the real numbers
    norm: str
    order: str

    @property
    def halved(self) -> bool:
        """Whether two real numbers are one complex one."""
        return self.kind in ("rfft", "irfft") and self.n % 2 == 0

    @property
    def inverse(self) -> bool:
        return self.kind in ("ifft", "irfft")

    @property
    def factor(self) -> float | None:
        return factor_of(self.n, self.norm, self.inverse)

    @property
    def plan(self) -> FourierPlan:
        return FourierPlan(self.n // 2, True) if self.halved else FourierPlan(self.n)


def lower_transform(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of a transform along one axis after another."""
    given, axes = types[step.operands[0]], axes_of(step.params)
    known = all(isinstance(s, int) for s in (*given.shape, step.params.get("n", 1)))
    if 0 in given.shape or not known or given.dtype.real.bits not in _RADIX:
        return None
    shape, source, whole = [int(s) for s in given.shape], step.operands[0], _Launches()
    for i, axis in enumerate(axes):
        n = int(step.params.get("n", shape[axis]))
        t = Transform(
            step.primitive, n, prod(shape[:axis]), prod(shape[axis + 1 :]), given.dtype.real,
            step.params["norm"], step.order,
        )  # fmt: skip
        target = step.results[0] if i == len(axes) - 1 else f"part{i}"
        if target != step.results[0]:
            whole.between[target] = given
        _Along(t, i, whole).run(source, target)
        source = target
    return Expansion(tuple(whole.launches), whole.between, whole.tables)


class _Launches:
    """What a step becomes."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.between: dict[str, TensorType] = {}
        self.tables: dict[str, Table] = {}


class _Along:
    """The launches of a transform along one axis."""

    def __init__(self, t: Transform, number: int, whole: _Launches):
        self.t, self.plan, self.number, self.whole = t, t.plan, number, whole
        self.table = f"roots{number}"
        kind = TensorType(t.dtype, (self.plan.size, 2))
        whole.tables[self.table] = fourier_table(self.plan, kind, by_root=True)

    def scratch(self, count: int) -> LanePlace:
        """Room for so many elements of all lines."""
        name = f"passes{self.number}_{len(self.whole.between)}"
        t = self.t
        self.whole.between[name] = TensorType(t.dtype, (t.outer, count, t.inner, 2))
        return LanePlace(name, "complex")

    def run(self, source: str, target: str) -> None:
        t, n = self.t, self.plan.n
        real = "pairs" if t.halved else "real"
        x = LanePlace(source, real if t.kind == "rfft" else "complex")
        y = LanePlace(target, real if t.kind == "irfft" else "complex")
        if t.kind == "irfft":
            x = self.joined(x) if t.halved else self.mirrored(x)
        x, whole = replace(x, swapped=t.inverse), y.form in ("complex", "pairs")
        if not self.plan.chirped and whole and t.kind != "rfft":
            self.passes(x, replace(y, swapped=t.inverse), None, t.factor)
            return
        if self.plan.chirped:
            x, made = self.begun(x), self.scratch(self.plan.length)
            self.passes(x, made)
            back = self.scratch(self.plan.length)
            self.passes(made, back, _TransformWriter.spectrum)
            z = replace(back, swapped=True)
        else:
            z = self.scratch(n)
            self.passes(x, z)
        if t.kind == "rfft" and t.halved:
            if self.plan.chirped:
                z = self.finished(z, self.scratch(n), n, None)
            self.taken_apart(z, y)
            return
        count = t.n // 2 + 1 if t.kind == "rfft" else n
        self.finished(z, replace(y, swapped=t.inverse), count, t.factor)

    # Passes

    def passes(
        self, x: LanePlace, y: LanePlace, hook: Hook | None = None, factor: float | None = None
    ) -> None:
        """The passes of the plan, in groups that a thread runs on what it holds."""
        groups = _grouped(self.plan.passes, _RADIX[self.t.dtype.bits])
        if not groups:  # of one element
            self.finished(x, y, 1, factor)
        for i, group in enumerate(groups):
            last = i == len(groups) - 1
            target = y if last else self.scratch(self.plan.length)
            self.group(group, x, target, None if i else hook, factor if last else None)
            x = target

    def group(
        self,
        passes: Sequence[FourierPass],
        x: LanePlace,
        y: LanePlace,
        hook: Hook | None,
        factor: float | None,
    ) -> None:
        t, radix = self.t, prod(p.radix for p in passes)
        done, left = passes[0].stride, passes[-1].count
        w = _TransformWriter(self, "fft_passes", (t.outer, done, left, t.inner))
        source, target = w.made(x, y, (done, radix, left), (radix, done, left))
        held = [w.get(x, source, (0, 1, (j,), 2, 3)) for j in range(radix)]
        if hook is not None:
            held = [hook(w, v, j * left) for j, v in enumerate(held)]
        for k, v in enumerate(w.transformed(passes, held)):
            w.put(y, target, (0, (k,), 1, 2, 3), v, factor)
        w.launch(x, y)

    # Before and behind the passes, element by element

    def begun(self, x: LanePlace) -> LanePlace:
        """The elements times the chirp, and zeros behind them."""
        y = self.scratch(self.plan.length)
        w = _TransformWriter(self, "fft_chirp", (self.t.outer, self.plan.length, self.t.inner))
        source, target = w.made(x, y, (self.plan.n,), (self.plan.length,))
        v = w.get(x, source, (0, 1, 2), bounded=True).times(w.numbers(self.plan.chirp))
        inside, zero = w.below(w.index, self.plan.n), w.zero()
        w.put(y, target, (0, 1, 2), Pair(*(w.where(inside, part, zero) for part in v)))
        w.launch(x, y)
        return y

    def finished(self, x: LanePlace, y: LanePlace, count: int, factor: float | None) -> LanePlace:
        """The first elements, times the chirp and the factor of the norm."""
        w = _TransformWriter(self, "fft_end", (self.t.outer, count, self.t.inner))
        source, target = w.made(x, y, (self.plan.length,), (count,))
        v = w.get(x, source, (0, 1, 2))
        if self.plan.chirped:
            v = v.times(w.numbers(self.plan.chirp))
        w.put(y, target, (0, 1, 2), v, factor)
        w.launch(x, y)
        return y

    def taken_apart(self, x: LanePlace, y: LanePlace) -> None:
        """The elements of a real transform from those of a complex one of half the length."""
        m = self.plan.n
        w = _TransformWriter(self, "fft_apart", (self.t.outer, m + 1, self.t.inner))
        source, target = w.made(x, y, (m,), (m + 1,))
        near, far = w.mirrored(m)
        a, b = (w.pick(x, source, i) for i in (near, w.around(far, m)))
        first, second = split(a, b, w.picked(self.plan.halves, near).scaled(0.5), 0.5)
        ends = Pair(a.re + a.im, w.zero()), Pair(a.re - a.im, w.zero())
        made = w.chosen(near, far, (first, second), ends)
        w.put(y, target, (0, 1, 2), made, self.t.factor)
        w.launch(x, y)

    def joined(self, x: LanePlace) -> LanePlace:
        """Twice the complex transform from the elements of a real one."""
        m = self.plan.n
        y = self.scratch(m)
        w = _TransformWriter(self, "fft_join", (self.t.outer, m, self.t.inner))
        source, target = w.made(x, y, (m + 1,), (m,))
        near, far = w.mirrored(m)
        a, b = (w.pick(x, source, i) for i in (near, far))
        root = w.picked(self.plan.halves, near)
        first, second = split(a, b, Pair(root.re, -root.im), None)
        ends = Pair(a.re + b.re, a.re - b.re)
        w.put(y, target, (0, 1, 2), w.chosen(near, far, (first, second), (ends, ends)))
        w.launch(x, y)
        return y

    def mirrored(self, x: LanePlace) -> LanePlace:
        """All elements of a transform of real numbers from the first half of them."""
        n = self.plan.n
        y = self.scratch(n)
        w = _TransformWriter(self, "fft_mirror", (self.t.outer, n, self.t.inner))
        source, target = w.made(x, y, (n // 2 + 1,), (n,))
        near, _ = w.mirrored(n)
        v = w.pick(x, source, near)
        im = w.where(w.below(w.index, n // 2 + 1), v.im, -v.im)
        im = w.where(w.below(near, 1), w.zero(), im)
        w.put(y, target, (0, 1, 2), Pair(v.re, im))
        w.launch(x, y)
        return y


class _TransformWriter:
    """Writes one kernel: what the threads of a block do, each with one element of all axes of lanes.

    Lanes are numbered through, so that a tile has one axis and all tiles lie in registers in one way.
    """

    def __init__(self, along: _Along, name: str, sizes: Sequence[int]):
        self.along, self.t, self.b, self.sizes = along, along.t, Builder(name), tuple(sizes)
        self.real = numbers_of(along.t.order)
        self.count = prod(sizes)
        self.rest = self.count % _LANES != 0  # whether some threads have nothing to do
        self.starts: dict[tuple[Any, ...], Tile] = {}
        self.twice: dict[int, Tile] = {}

    def made(
        self, x: LanePlace, y: LanePlace, source: Sequence[int], target: Sequence[int]
    ) -> tuple[Memory, Memory]:
        """The parameters; the places of the lanes along their axes."""
        b, plan = self.b, self.along.plan
        self.shapes = [x.shape(self.t, source), y.shape(self.t, target)]
        given = self.parameter("x", prod(self.shapes[0]), x.packed(self.t))
        self.table = self.parameter("roots", 2 * plan.size, self.t.dtype is f32)
        made = self.parameter("y", prod(self.shapes[1]), y.packed(self.t))
        number = b.index(b.program(-(-self.count // _LANES)) * _LANES, (_LANES,), 0)
        self.lanes: list[Tile | None] = [None] * len(self.sizes)  # None: always 0
        left = number
        self.inside = b.apply("lt", number, self.whole(self.count)) if self.rest else None
        moved = [a for a, n in enumerate(self.sizes) if n > 1]
        for a in reversed(moved):
            size = self.whole(self.sizes[a])
            first = a == moved[0]
            self.lanes[a] = left if first else b.apply("mod", left, size)
            left = left if first else b.apply("floor_div", left, size)
        return given, made

    def parameter(self, name: str, count: int, packed: bool) -> Memory:
        """A memory of real numbers, or of words that hold two."""
        kind = TensorType(u64, (count // 2,)) if packed else TensorType(self.t.dtype, (count,))
        return self.b.parameter(name, kind, name == "y")

    def launch(self, x: LanePlace, y: LanePlace) -> None:
        launch = Launch(
            self.b.finish(), (x.buffer, self.along.table), (y.buffer,), Threads(_LANES // 32)
        )
        self.along.whole.launches.append(launch)

    # Elements

    def place(
        self, shape: Sequence[int], axes: Sequence[int | Fixed], lanes: Sequence[Tile | None]
    ) -> tuple[Tile, int]:
        """Where the elements of the lanes lie: a tile, and what is added for a fixed place."""
        strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
        fixed = sum(a[0] * s for a, s in zip(axes, strides, strict=True) if isinstance(a, tuple))
        moved = tuple(
            (a, s) for a, s in zip(axes, strides, strict=True) if not isinstance(a, tuple)
        )
        key = (prod(shape), *moved, *(id(t) for t in lanes))
        if key not in self.starts:
            b, at = self.b, self.b.full(i64, (_LANES,), 0)
            for a, stride in moved:
                tile = lanes[a]
                if tile is not None:
                    at = b.apply("add", at, b.apply("mul", tile, b.full(i64, (_LANES,), stride)))
            if self.inside is not None:  # what has nothing to do is out of memory
                at = b.apply("where", self.inside, at, self.whole(prod(shape)))
            self.starts[key] = at
        return self.starts[key], fixed

    def get(
        self, x: LanePlace, m: Memory, axes: Sequence[int | Fixed], bounded: bool = False
    ) -> Pair:
        """The elements of the lanes, zeros behind the last one; bounded where lanes reach further."""
        return self.read(x, m, axes, self.lanes, bounded or self.rest)

    def read(
        self, x: LanePlace, m: Memory, axes: Sequence[int | Fixed], lanes: Sequence[Tile | None],
        masked: bool,
    ) -> Pair:  # fmt: skip
        def part(i: int) -> TileNumber:
            at, fixed = self.place(self.shapes[0], x.boxed(i, axes), lanes)
            return self.real(self.b, self.at(m, at, fixed, masked))

        if x.packed(self.t):
            at, fixed = self.place(_words(self.shapes[0]), x.boxed(0, axes), lanes)
            v = self.unpacked(self.at(m, at, fixed, masked))
            return v.swapped if x.swapped else v
        im = self.zero() if x.form == "real" else part(1)
        v = Pair(part(0), im)
        return v.swapped if x.swapped else v

    def at(self, m: Memory, place: Tile, fixed: int, masked: bool) -> Tile:
        return self.b.gather(m, {0: place}, (fixed,), (1,), (), (0,) if masked else ())

    def put(
        self,
        y: LanePlace,
        m: Memory,
        axes: Sequence[int | Fixed],
        v: Pair,
        factor: float | None = None,
    ) -> None:
        """Write the elements of the lanes, times a factor."""
        v = v.swapped if y.swapped else v
        v = v if factor is None else v.scaled(factor)
        if y.packed(self.t):
            at, fixed = self.place(_words(self.shapes[1]), y.boxed(0, axes), self.lanes)
            self.write(m, self.packed(v), at, fixed)
            return
        for i, value in enumerate(v[:1] if y.form == "real" else v):
            at, fixed = self.place(self.shapes[1], y.boxed(i, axes), self.lanes)
            self.write(m, value.tile, at, fixed)

    def write(self, m: Memory, tile: Tile, at: Tile, fixed: int) -> None:
        masked = (0,) if self.rest else ()
        self.b.scatter(m, tile, {0: at}, (fixed,), (1,), (), masked, distinct=True)

    def unpacked(self, word: Tile) -> Pair:
        """The parts that a word holds: the real one in its lower half."""
        b = self.b
        high = b.apply("shift_right", word, b.full(u64, (), 32))
        parts = (b.apply("from_bits", b.cast(half, u32)) for half in (word, high))
        return Pair(*(self.real(b, p) for p in parts))

    def packed(self, v: Pair) -> Tile:
        b = self.b
        low, high = (b.cast(b.apply("bits", part.tile), u64) for part in v)
        return b.apply("or", low, b.apply("shift_left", high, b.full(u64, (), 32)))

    def zero(self) -> TileNumber:
        return self.real(self.b, self.b.full(self.t.dtype, (_LANES,), 0.0))

    # Passes

    def transformed(self, passes: Sequence[FourierPass], held: list[Pair]) -> list[Pair]:
        """Passes on what a thread holds: rows[k][j] becomes rows[k + count k'][j']."""
        left, rows, width = passes[-1].count, [held], len(held)
        for p in passes:
            width //= p.radix
            made: list[list[Pair]] = [[] for _ in range(len(rows) * p.radix)]
            for j in range(width):
                roots = self.roots(p, left * j)
                for k, row in enumerate(rows):
                    y = small([row[j + width * i] for i in range(p.radix)])
                    if roots:
                        y[1:] = [v.times(w) for v, w in zip(y[1:], roots, strict=True)]
                    for i, v in enumerate(y):
                        made[k + len(rows) * i].append(v)
            rows = made
        return [row[0] for row in rows]

    def roots(self, p: FourierPass, j: int) -> list[Pair]:
        """What the elements behind the first of a small transform are multiplied by, for p from j on."""
        if p.count == 1:
            return []
        return [self.numbers(p.roots + k * p.count + j, 2) for k in range(p.radix - 1)]

    def spectrum(self, v: Pair, j: int) -> Pair:
        """Elements from j on times those of the chirp's transform, for the way back."""
        return v.times(self.numbers(self.along.plan.spectrum + j, 2)).swapped

    def numbers(self, first: int, axis: int = 1) -> Pair:
        """Numbers of the table, one for each place of a lane axis."""
        place, b = self.lanes[axis], self.b
        if place is not None:
            return self.picked(first, place, self.rest)
        if self.t.dtype is f32:
            return self.unpacked(b.load(self.table, (first,), (1,), ()))
        tiles = [b.load(self.table, (2 * first + i,), (1,), ()) for i in (0, 1)]
        return Pair(*(self.real(b, tile) for tile in tiles))

    # Places that mirror each other

    @property
    def index(self) -> Tile:
        """The place of the middle axis of three."""
        return self.lanes[1] or self.whole(0)

    def mirrored(self, n: int) -> tuple[Tile, Tile]:
        """The smaller of the places k and n - k, and the other one."""
        k = self.index
        near = self.b.apply("min", k, self.b.apply("sub", self.whole(n), k))
        return near, self.b.apply("sub", self.whole(n), near)

    def whole(self, n: int) -> Tile:
        return self.b.full(i64, (_LANES,), n)

    def around(self, place: Tile, n: int) -> Tile:
        """A place, or 0 for n."""
        return self.b.apply("where", self.b.apply("eq", place, self.whole(n)), self.whole(0), place)

    def below(self, place: Tile, n: int) -> Tile:
        return self.b.apply("lt", place, self.whole(n))

    def where(self, condition: Tile, a: TileNumber, b: TileNumber) -> TileNumber:
        return self.real(self.b, self.b.apply("where", condition, a.tile, b.tile))

    def chosen(
        self, near: Tile, far: Tile, pair: tuple[Pair, Pair], ends: tuple[Pair, Pair]
    ) -> Pair:
        """Of what two places that mirror each other give, what belongs to the place of a lane."""
        b, edge = self.b, self.below(near, 1)
        first = b.apply("eq", self.index, near)
        inner = b.apply(
            "logical_and", first, b.apply("lt", near, far)
        )  # in the middle the second one
        return Pair(
            *(
                self.where(edge, self.where(first, s, t), self.where(inner, p, q))
                for p, q, s, t in zip(*pair, *ends, strict=True)
            )
        )

    def pick(self, x: LanePlace, m: Memory, place: Tile) -> Pair:
        """The elements of the lanes at other places of the middle axis."""
        lanes = [self.lanes[0], place, self.lanes[2]]
        return self.read(x, m, (0, 1, 2), lanes, masked=True)

    def picked(self, first: int, place: Tile, masked: bool = True) -> Pair:
        """Numbers of the table at places from the first on."""
        if self.t.dtype is f32:
            return self.unpacked(self.at(self.table, place, first, masked))
        if id(place) not in self.twice:
            self.twice[id(place)] = self.b.apply("mul", place, self.whole(2))
        pairs = self.twice[id(place)]
        tiles = (self.at(self.table, pairs, 2 * first + i, masked) for i in (0, 1))
        return Pair(*(self.real(self.b, t) for t in tiles))


def _words(shape: Sequence[int]) -> list[int]:
    """The shape of memory whose innermost two numbers are one word."""
    pair = max(i for i, n in enumerate(shape) if n != 1)
    return [1 if i == pair else n for i, n in enumerate(shape)]


@cache
def _grouped(passes: tuple[FourierPass, ...], most: int) -> tuple[tuple[FourierPass, ...], ...]:
    """Passes in as few groups as hold at most so many elements, the groups as small as they can be."""
    best: list[tuple[int, int, tuple[tuple[FourierPass, ...], ...]]] = [(0, 0, ())]
    for end in range(1, len(passes) + 1):
        found = []
        for begin in range(end):
            size = prod(p.radix for p in passes[begin:end])
            if size <= most:
                count, total, groups = best[begin]
                found.append((count + 1, total + size, (*groups, passes[begin:end])))
        best.append(min(found, key=lambda f: f[:2]))
    return best[-1][2]


TRANSFORMS = dict.fromkeys(("fft", "ifft", "rfft", "irfft"), lower_transform)
