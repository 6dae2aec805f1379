"""Pooling on a GPU: windows are read in place, one tap after the other; gradients look at the windows
of a pixel.

    y[p] = max over taps t of x[p * stride + t]      dx[i] = add over windows p that see i of share[p]
    where x[i] = y[p]
->  block (planes, p by 512): for t: acc = max(acc, gather(x, p * stride + t))

A gradient adds its windows up in one chain, from the last that sees a pixel to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import inf, prod
from typing import Any

from tessera.core.dims import Size
from tessera.core.dtype import DType, i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu.channels_last import places_of
from tessera.ir.tile.gpu.conv_numbers import PositionNumbers
from tessera.ir.tile.gpu.conv_plan import Three, three
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_LANES = 512  # elements that a block makes
_UNROLLED = 32  # taps that are written out


@dataclass(frozen=True)
class PoolWindows:
    """Windows over planes: one for each image and channel."""

    planes: int
    sizes: Three
    window: Three
    counts: Three
    stride: Three
    dilation: Three
    low: Three
    high: Three  # padding that counts as elements, where padding does
    dtype: DType

    @staticmethod
    def of(x: TensorType, y: TensorType, p: Mapping[str, Any]) -> PoolWindows:
        """The sizes of a pooling of x."""
        low, high = ([pair[i] for pair in p["padding"]] for i in (0, 1))
        return PoolWindows(
            prod(int(n) for n in x.shape[:2]), three(x.shape[2:], 1), three(p["size"], 1),
            three(y.shape[2:], 1), three(p["stride"], 1), three(p["dilation"], 1), three(low, 0),
            three(high, 0), x.dtype,
        )  # fmt: skip

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return prod(self.window)

    def type(self, sizes: Three, dtype: DType | None = None) -> TensorType:
        """A tensor of planes."""
        return TensorType(dtype or self.dtype, (self.planes, *sizes))


class Lanes:
    """A block of planes by places: what a kernel of pooling makes."""

    def __init__(self, b: Builder, p: PoolWindows, sizes: Three):
        self.b, self.p, self.sizes, self.total = b, p, sizes, prod(sizes)
        self.lanes = min(power(self.total), _LANES)
        self.rows = min(_LANES // self.lanes, power(p.planes))
        self.row = b.program(-(-p.planes // self.rows)) * self.rows
        self.at = b.program(-(-self.total // self.lanes)) * self.lanes
        self.numbers = PositionNumbers(b, self.total + self.lanes + sum(p.low))
        self.plane = b.index(self.row, (self.rows, 1), 0)
        line = self.numbers.line(self.at, (1, self.lanes), 1)
        self.places = self.numbers.places(line, sizes)

    def gather(self, m: Memory, places: Sequence[Tile], at: Sequence[Size], fill: float) -> Tile:
        """Elements of the planes, wide; `fill` where there are none."""
        picked = {0: self.plane, **{1 + i: t for i, t in enumerate(places)}}
        found = self.b.gather(m, picked, (0, *at), (1,) * 4, (), (0, 1, 2, 3), fill)
        return self.b.cast(found, self.p.dtype.accum)

    def own(self, m: Memory) -> Tile:
        """The elements of a tensor (planes, places) at the places of this block."""
        found = self.b.load(m, (self.row, self.at), (self.rows, self.lanes), masked=(0, 1))
        return self.b.cast(found, self.p.dtype.accum)

    def store(self, m: Memory, value: Tile) -> None:
        """Write what was made to (planes, places)."""
        masked = [0] if self.p.planes % self.rows else []
        masked += [1] if self.total % self.lanes else []
        made = self.b.cast(value, m.type.dtype)
        self.b.store(m, made, (self.row, self.at), (self.rows, self.lanes), masked=masked)

    def over_taps(
        self, x: Memory, fill: float, acc: Tile, add: Callable[[Tile, Tile], Tile]
    ) -> Tile:
        """acc after all taps of windows, in order."""
        b, p = self.b, self.p
        pairs = zip(self.places, p.stride, strict=True)
        starts = [self.numbers.index(self.numbers.mul(n, s)) for n, s in pairs]

        def step(acc: Tile, tap: Size) -> Tile:
            at = zip(places_of(tap, p.window), p.dilation, p.low, strict=True)
            return add(acc, self.gather(x, starts, [k * d - a for k, d, a in at], fill))

        if p.taps <= _UNROLLED:
            for tap in range(p.taps):
                acc = step(acc, tap)
            return acc
        with b.loop(0, p.taps, 1, [acc]) as loop:
            loop.carry(step(loop.carried[0], loop.variable))
        return loop.results[0]

    def held(self, counts: Sequence[Tile], include: bool) -> Tile:
        """How many elements windows with these numbers hold."""
        b, p = self.b, self.p
        total: Tile | None = None

        def one(n: int) -> Tile:
            return b.full(i64, (1, 1), n)

        for n, s, k, size, low, high in zip(
            counts, p.stride, p.window, p.sizes, p.low, p.high, strict=True
        ):
            start = b.apply("sub", b.apply("mul", n, one(s)), one(low))
            stop = b.apply(
                "min", b.apply("add", start, one(k)), one(size + high if include else size)
            )
            begin = start if include else b.apply("max", start, one(0))
            along = b.apply("sub", stop, begin)
            total = along if total is None else b.apply("mul", total, along)
        assert total is not None
        return b.cast(total, p.dtype.accum)


def forward(p: PoolWindows, mean: bool, include: bool = True) -> Kernel:
    """The largest of each window, or the mean."""
    b = Builder("avg_pool" if mean else "max_pool")
    x = b.parameter("x", p.type(p.sizes))
    y = b.parameter("y", TensorType(p.dtype, (p.planes, prod(p.counts))), writable=True)
    block = Lanes(b, p, p.counts)
    begin = b.full(p.dtype.accum, (block.rows, block.lanes), 0 if mean else -inf)
    fold = "add" if mean else "max"
    acc = block.over_taps(x, 0 if mean else -inf, begin, lambda a, c: b.apply(fold, a, c))
    if mean:
        counts = [block.numbers.index(n) for n in block.places]
        acc = b.apply("div", acc, b.broadcast(block.held(counts, include), acc.shape))
    block.store(y, acc)
    return b.finish()


def shares(p: PoolWindows) -> Kernel:
    """What each of the largest elements of a window gets of its cotangent."""
    b, wide = Builder("max_pool_shares"), p.dtype.accum
    flat = TensorType(p.dtype, (p.planes, prod(p.counts)))
    x, y, ct = b.parameter("x", p.type(p.sizes)), b.parameter("y", flat), b.parameter("ct", flat)
    out = b.parameter("shares", flat.with_dtype(wide), writable=True)
    block = Lanes(b, p, p.counts)
    top = block.own(y)

    def count(acc: Tile, found: Tile) -> Tile:
        return b.apply("add", acc, b.cast(b.apply("eq", found, top), wide))

    many = block.over_taps(x, -inf, b.full(wide, (block.rows, block.lanes), 0), count)
    many = b.apply("max", many, b.full(wide, (1, 1), 1))
    block.store(out, b.apply("div", block.own(ct), many))
    return b.finish()


def max_gradient(p: PoolWindows) -> Kernel:
    """Shares added up where x equals the result of a window."""
    b = Builder("max_pool_grad")
    x = b.parameter("x", TensorType(p.dtype, (p.planes, prod(p.sizes))))
    y = b.parameter("y", p.type(p.counts))
    share = b.parameter("shares", p.type(p.counts, p.dtype.accum))
    dx = b.parameter("dx", TensorType(p.dtype, (p.planes, prod(p.sizes))), writable=True)
    block = Lanes(b, p, p.sizes)
    own, zero = block.own(x), b.full(p.dtype.accum, (1, 1), 0)
    acc = b.full(p.dtype.accum, (block.rows, block.lanes), 0)
    for windows, at, sees in _seeing(block):
        won = b.apply("eq", own, block.gather(y, windows, at, 0))
        won = won if sees is None else b.apply("logical_and", won, sees)
        found = block.gather(share, windows, at, 0)
        acc = b.apply("add", acc, b.apply("where", won, found, zero))
    block.store(dx, acc)
    return b.finish()


def avg_gradient(p: PoolWindows, include: bool) -> Kernel:
    """Cotangents over what windows hold, added up where they came from."""
    b = Builder("avg_pool_grad")
    ct = b.parameter("ct", p.type(p.counts))
    dx = b.parameter("dx", TensorType(p.dtype, (p.planes, prod(p.sizes))), writable=True)
    block = Lanes(b, p, p.sizes)
    zero = b.full(p.dtype.accum, (1, 1), 0)
    acc = b.full(p.dtype.accum, (block.rows, block.lanes), 0)
    for windows, at, sees in _seeing(block):
        pairs = zip(windows, at, strict=True)
        counts = [b.apply("add", n, b.full(i64, (1, 1), k)) for n, k in pairs]
        many = b.apply("max", block.held(counts, include), b.full(p.dtype.accum, (1, 1), 1))
        found = block.gather(ct, windows, at, 0)
        found = b.apply("div", found, b.broadcast(many, found.shape))
        found = found if sees is None else b.apply("where", sees, found, zero)
        acc = b.apply("add", acc, found)
    block.store(dx, acc)
    return b.finish()


def _seeing(block: Lanes) -> Iterator[tuple[list[Tile], tuple[int, ...], Tile | None]]:
    """The windows that may see each pixel: numbers along each axis, what to add to them, and which do see
    it.
    """
    b, p, numbers = block.b, block.p, block.numbers
    firsts, rests = [], []
    for here, low, s in zip(block.places, p.low, p.stride, strict=True):
        first, rest = numbers.split(numbers.add(here, low), s)
        firsts.append(numbers.index(first))
        rests.append(rest)
    reaches = [(k - 1) * d + 1 for k, d in zip(p.window, p.dilation, strict=True)]
    spans = [range(-(-n // s)) for n, s in zip(reaches, p.stride, strict=True)]
    for back in combinations(*spans):
        sees: Tile | None = None
        for rest, j, s, d, n in zip(rests, back, p.stride, p.dilation, reaches, strict=True):
            tests = []
            place = numbers.add(rest, j * s)  # of the pixel in the window
            if j * s + s - 1 >= n:
                tests.append(b.apply("lt", place, numbers.full(place, n)))
            if d > 1:
                tests.append(b.apply("eq", numbers.split(place, d)[1], numbers.full(place, 0)))
            for t in tests:
                sees = t if sees is None else b.apply("logical_and", sees, t)
        yield firsts, tuple(-j for j in back), sees


def _max_pool(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    (x,), (y,) = step.operands, step.results
    p = PoolWindows.of(types[x], types[y], step.params)
    return _launches(types[y], Launch(forward(p, False), (x,), (y,), Threads(4)))


def _avg_pool(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    (x,), (y,) = step.operands, step.results
    p = PoolWindows.of(types[x], types[y], step.params)
    kernel = forward(p, True, step.params["include_pad"])
    return _launches(types[y], Launch(kernel, (x,), (y,), Threads(4)))


def _max_pool_grad(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    (x, y, ct), (dx,) = step.operands, step.results
    p = PoolWindows.of(types[x], types[y], step.params)
    return _launches(
        types[dx],
        Launch(shares(p), (x, y, ct), ("shares",), Threads(4)),
        Launch(max_gradient(p), (x, y, "shares"), (dx,), Threads(4)),
        shares=p.type(p.counts, p.dtype.accum),
    )


def _avg_pool_grad(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    (ct,), (dx,) = step.operands, step.results
    p = PoolWindows.of(types[dx], types[ct], step.params)
    kernel = avg_gradient(p, step.params["include_pad"])
    return _launches(types[dx], Launch(kernel, (ct,), (dx,), Threads(4)))


def _launches(made: TensorType, *launches: Launch, **between: TensorType) -> Expansion:
    """The launches, none where nothing is made."""
    return Expansion((), {}) if 0 in made.shape else Expansion(launches, between)


POOLS = {
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "max_pool_grad": _max_pool_grad,
    "avg_pool_grad": _avg_pool_grad,
}
