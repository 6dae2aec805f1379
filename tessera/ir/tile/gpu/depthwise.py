"""Depthwise convolutions on a GPU: each channel alone, read in place, without a product of matrices.

    y[n, c, p] = add over taps t of w[c, t] * x[n, c, p * stride + place(t)]
->  block (n and c, p by 512): for t: acc = fma(gather(x, p * stride + place(t)), w[c, t], acc)

The sum is one chain over taps.  The derivative in the kernel adds windows up in 512 lanes, each of which
takes every
512th window of a leaf; then come lanes as a tree, and leaves as a tree: an order that belongs to the op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tessera.core.dims import Size, smaller
from tessera.core.dtype import DType
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import MULTIPROCESSORS, power
from tessera.ir.tile.gpu.channels_last import places_of
from tessera.ir.tile.gpu.conv_numbers import PositionNumbers
from tessera.ir.tile.gpu.conv_plan import Three, three
from tessera.ir.tile.gpu.folds import tree
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_LANES = 512  # windows that a block takes at once
_TAPS = 16  # whose sums a block holds
_UNROLLED = 32  # taps that are written out
_MOST = 64  # leaves
_COLUMNS = 256  # weights that a block joins the leaves of


@dataclass(frozen=True)
class Depthwise:
    """A convolution whose groups have one channel, and `made` results of each."""

    images: int
    channels: int
    made: int
    sizes: Three
    window: Three
    counts: Three
    stride: Three
    dilation: Three
    low: Three
    dtype: DType

    @staticmethod
    def of(x: TensorType, w: TensorType, y: TensorType, p: Mapping[str, Any]) -> Depthwise:
        """The sizes of a convolution."""
        return Depthwise(
            int(x.shape[0]), int(x.shape[1]), int(w.shape[0]) // int(x.shape[1]),
            three(x.shape[2:], 1), three(w.shape[2:], 1), three(y.shape[2:], 1),
            three(p["stride"], 1), three(p["dilation"], 1), three([a for a, _ in p["padding"]], 0), x.dtype,
        )  # fmt: skip

    @property
    def taps(self) -> int:
        """Taps of a window."""
        return prod(self.window)

    @property
    def windows(self) -> int:
        """Windows of an image."""
        return prod(self.counts)

    @property
    def planes(self) -> int:
        """Channels of all results."""
        return self.channels * self.made

    def seen(
        self, b: Builder, x: Memory, plane: Tile, places: Sequence[Tile], tap: Size
    ) -> Tile:  # fmt: skip
        """What windows have at a tap; zeros where there is no x."""
        at = [
            k * d - a
            for k, d, a in zip(places_of(tap, self.window), self.dilation, self.low, strict=True)
        ]
        picked = {0: plane, **{1 + i: t for i, t in enumerate(places)}}
        found = b.gather(x, picked, (0, *at), (1,) * 4, (), masked=(0, 1, 2, 3))
        return b.cast(found, self.dtype.accum)

    def starts(self, numbers: PositionNumbers, window: Tile) -> list[Tile]:
        """Where windows begin along each axis."""
        found = numbers.places(window, self.counts)
        pairs = zip(found, self.stride, strict=True)
        return [numbers.index(numbers.mul(n, s)) for n, s in pairs]


def forward(p: Depthwise) -> Kernel:
    """The kernel: planes of x, weights, planes of results."""
    b = Builder("depthwise")
    x = b.parameter("x", TensorType(p.dtype, (p.images * p.channels, *p.sizes)))
    w = b.parameter("w", TensorType(p.dtype, (p.planes, p.taps)))
    total = p.images * p.planes
    y = b.parameter("y", TensorType(p.dtype, (total, p.windows)), writable=True)
    lanes = min(power(p.windows), _LANES)
    rows = min(_LANES // lanes, power(total))
    row = b.program(-(-total // rows)) * rows
    at = b.program(-(-p.windows // lanes)) * lanes
    numbers = PositionNumbers(b, (total + rows) * max(p.windows, prod(p.sizes)) + lanes)
    plane = numbers.line(row, (rows, 1), 0, total - 1)
    places = p.starts(numbers, numbers.line(at, (1, lanes), 1))
    source = numbers.index(numbers.split(plane, p.made)[0])
    weights = numbers.index(numbers.split(plane, p.planes)[1])

    def add(acc: Tile, tap: Size) -> Tile:
        factor = b.gather(w, {0: weights}, (0, tap), (1, 1), (0, 1), masked=(0,))
        value = p.seen(b, x, source, places, tap)
        return b.apply("fma", value, b.cast(factor, p.dtype.accum), acc)

    acc = b.full(p.dtype.accum, (rows, lanes), 0)
    if p.taps <= _UNROLLED:
        for tap in range(p.taps):
            acc = add(acc, tap)
    else:
        with b.loop(0, p.taps, 1, [acc]) as loop:
            loop.carry(add(loop.carried[0], loop.variable))
        (acc,) = loop.results
    masked = [0] if total % rows else []
    masked += [1] if p.windows % lanes else []
    b.store(y, b.cast(acc, p.dtype), (row, at), (rows, lanes), masked=masked)
    return b.finish()


class DepthwiseWeights:
    """The derivative in the kernel, being written."""

    def __init__(self, p: Depthwise):
        self.p, self.b = p, Builder("depthwise_weights")
        self.total = p.images * p.windows
        wanted = max(min(8 * MULTIPROCESSORS // p.planes, _MOST), 1)
        self.leaf = -(-self.total // wanted // _LANES) * _LANES + _LANES
        self.leaves = -(-self.total // self.leaf)
        self.sums = TensorType(p.dtype.accum, (self.leaves, p.planes, p.taps))

    def kernel(self) -> Kernel:
        """The kernel: planes of x, of ct, sums of leaves."""
        b, p = self.b, self.p
        x = b.parameter("x", TensorType(p.dtype, (p.images * p.channels, *p.sizes)))
        ct = b.parameter("ct", TensorType(p.dtype, (p.images, p.planes, p.windows)))
        out = b.parameter("sums", self.sums, writable=True)
        leaf, plane = b.program(self.leaves), b.program(p.planes)
        for first in range(0, p.taps, _TAPS):
            taps = range(first, min(first + _TAPS, p.taps))
            begin = [b.full(p.dtype.accum, (1, _LANES), 0) for _ in taps]
            start = leaf * self.leaf
            with b.loop(start, smaller(start + self.leaf, self.total), _LANES, begin) as loop:
                numbers = PositionNumbers(b, (self.total + self.leaf) * p.channels)
                line = numbers.line(loop.variable, (1, _LANES), 1)
                image, window = numbers.split(line, p.windows)
                picked = {0: numbers.index(image), 2: numbers.index(window)}
                given = b.gather(ct, picked, (0, plane, 0), (1, 1, 1), (), masked=(0, 2))
                given = b.cast(given, p.dtype.accum)
                source = b.apply(
                    "add", numbers.index(numbers.mul(image, p.channels)),
                    b.index(plane // p.made, (1, 1)),
                )  # fmt: skip
                places = p.starts(numbers, window)
                loop.carry(
                    *(
                        b.apply("fma", p.seen(b, x, source, places, t), given, acc)
                        for t, acc in zip(taps, loop.carried, strict=True)
                    )
                )
            for t, acc in zip(taps, loop.results, strict=True):
                total = b.reshape(tree(b, "add", acc, 1), (1, 1, 1))
                b.store(out, total, (leaf, plane, t), (1, 1, 1))
        return b.finish()


def join(sums: TensorType, dtype: DType) -> Kernel:
    """The tree over leaves."""
    b, leaves = Builder("join_leaves"), int(sums.shape[0])
    total = prod(int(n) for n in sums.shape[1:])
    x = b.parameter("sums", TensorType(sums.dtype, (leaves, total)))
    w = b.parameter("w", TensorType(dtype, (total,)), writable=True)
    n = min(power(total), _COLUMNS)
    at = b.program(-(-total // n)) * n
    found = b.load(x, (0, at), (power(leaves), n), masked=(0, 1), fill=-0.0)
    value = b.reshape(b.cast(tree(b, "add", found, 0), dtype), (n,))
    b.store(w, value, (at,), (n,), masked=(0,) if total % n else ())
    return b.finish()


def lower_forward(names: tuple[str, str, str], p: Depthwise) -> Expansion:
    """The launch of y from x and w."""
    x, w, y = names
    return Expansion((Launch(forward(p), (x, w), (y,), Threads(4)),))


def lower_weights(names: tuple[str, str, str], p: Depthwise) -> Expansion:
    """The launches of w from x and ct."""
    x, ct, w = names
    made = DepthwiseWeights(p)
    return Expansion(
        (
            Launch(made.kernel(), (x, ct), ("sums",), Threads(4)),
            Launch(join(made.sums, p.dtype), ("sums",), (w,), Threads(4)),
        ),
        {"sums": made.sums},
    )
