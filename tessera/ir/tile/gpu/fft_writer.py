"""The kernels of Fourier transforms on a GPU: what a thread reads, computes and writes.

A thread has one place of some axes, its lanes, and holds elements of a line as pairs of numbers.  An element
has the operations of core/fourier.py, so the bits are those of the CPU and do not depend on what is batched
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tessera.core.dtype import DType, f32, i64, u32, u64
from tessera.core.fourier import FourierPass, FourierPlan, factor_of, small, split
from tessera.core.pairs import Pair
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.number import TileNumber, numbers_of

LANES = 128  # of a block, one to a thread

Fixed = tuple[int]  # one place of an axis that no thread moves along
Hook = Callable[["TransformWriter", Pair, int], Pair]


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


class TransformWriter:
    """Writes one kernel: what the threads of a block do, each with one element of all axes of lanes.

    Lanes are numbered through, so that a tile has one axis and all tiles lie in registers in one way.
    """

    width = LANES

    def __init__(self, t: Transform, name: str, sizes: Sequence[int]):
        self.t, self.b, self.sizes = t, Builder(name), tuple(sizes)
        self.real = numbers_of(t.order)
        self.count = prod(sizes)
        self.rest = self.count % self.width != 0  # whether some threads have nothing to do
        self.starts: dict[tuple[Any, ...], Tile] = {}
        self.twice: dict[int, Tile] = {}

    def made(
        self, x: LanePlace, y: LanePlace, source: Sequence[int], target: Sequence[int]
    ) -> tuple[Memory, Memory]:
        """The parameters: what is read, what is made."""
        plan = self.t.plan
        self.shapes = [x.shape(self.t, source), y.shape(self.t, target)]
        given = self.parameter("x", prod(self.shapes[0]), x.packed(self.t))
        self.table = self.parameter("roots", 2 * plan.size, self.t.dtype is f32)
        made = self.parameter("y", prod(self.shapes[1]), y.packed(self.t))
        self.start()
        return given, made

    def start(self) -> None:
        """The places of the lanes along their axes."""
        b = self.b
        number = b.index(b.program(-(-self.count // self.width)) * self.width, (self.width,), 0)
        self.lanes: list[Tile | None] = [None] * len(self.sizes)  # None: always 0
        left = number
        self.inside = b.apply("lt", number, self.whole(self.count)) if self.rest else None
        moved = [a for a, n in enumerate(self.sizes) if n > 1]
        for a in reversed(moved):
            size = self.whole(self.sizes[a])
            first = a == moved[0]
            self.lanes[a] = left if first else b.apply("mod", left, size)
            left = left if first else b.apply("floor_div", left, size)

    def parameter(self, name: str, count: int, packed: bool) -> Memory:
        """A memory of real numbers, or of words that hold two."""
        kind = TensorType(u64, (count // 2,)) if packed else TensorType(self.t.dtype, (count,))
        return self.b.parameter(name, kind, name == "y")

    def kernel(self) -> Kernel:
        return self.b.finish()

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
            b, at = self.b, self.b.full(i64, (self.width,), 0)
            for a, stride in moved:
                tile = lanes[a]
                if tile is not None:
                    at = b.apply(
                        "add", at, b.apply("mul", tile, b.full(i64, (self.width,), stride))
                    )
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
        return self.real(self.b, self.b.full(self.t.dtype, (self.width,), 0.0))

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
        return v.times(self.numbers(self.t.plan.spectrum + j, 2)).swapped

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
        return self.b.full(i64, (self.width,), n)

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

    def apart(self, a: Pair, b: Pair, near: Tile, far: Tile) -> Pair:
        """The element of a real transform from those of the complex one at the places near and far."""
        first, second = split(a, b, self.picked(self.t.plan.halves, near).scaled(0.5), 0.5)
        ends = Pair(a.re + a.im, self.zero()), Pair(a.re - a.im, self.zero())
        return self.chosen(near, far, (first, second), ends)

    def joined(self, x: LanePlace, m: Memory, n: int) -> Pair:
        """The element of twice the complex transform, of n elements, from those of a real one."""
        near, far = self.mirrored(n)
        a, b = (self.pick(x, m, i) for i in (near, far))
        root = self.picked(self.t.plan.halves, near)
        first, second = split(a, b, Pair(root.re, -root.im), None)
        ends = Pair(a.re + b.re, a.re - b.re)
        return self.chosen(near, far, (first, second), (ends, ends))

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
