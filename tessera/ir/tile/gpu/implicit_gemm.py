"""Convolution as an implicit product: images are read where windows look, nothing is unfolded in memory.

    y[n, o, p] = add over t, c of w[o, t, c] * x[pixel(n, p) + place(t), c]
->  block (o by 128, n and p by 128): for t, c by 64: acc = dot(load(w, o, t, c), gather(x, pixels +
place(t), c), acc)

The sum is one chain over taps and channels; the block's shape does not change a bit.  Of factors of 32 bits
and more, which threads multiply, the product is turned: rows are windows, and columns out channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tessera.core.dims import Size
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import MULTIPROCESSORS, power
from tessera.ir.tile.gpu.channels_last import places_of
from tessera.ir.tile.gpu.conv_numbers import PositionNumbers
from tessera.ir.tile.gpu.conv_plan import Images, ImplicitProduct
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Threads

_ENOUGH = MULTIPROCESSORS * 2 // 3  # blocks: fewer are made smaller


@dataclass(frozen=True)
class ConvBlock:
    """A block of out channels by windows, and how many threads compute it."""

    made: int
    windows: int
    warps: int = 4
    stages: int = 3


class ImplicitGemm:
    """The product of one piece, being written."""

    def __init__(self, p: ImplicitProduct, taps: int, block: ConvBlock | None = None):
        self.p, self.b, self.taps = p, Builder("conv"), taps
        self.block = block or default_block(p)

    @property
    def threads(self) -> Threads:
        return Threads(self.block.warps, self.block.stages)

    def kernel(self) -> Kernel:
        """The kernel: images, packed weights, results."""
        b, p = self.b, self.p
        images, made, slots = p.images, p.results.made, p.results.slots
        dtype, groups = images.dtype, images.groups
        x = b.parameter("x", images.type)
        w = b.parameter("w", packed_type(images, made, self.taps))
        made_type = TensorType(dtype, (images.count, slots, groups, made, prod(p.taps.counts)))
        y = b.parameter("y", made_type, writable=True)
        at = b.program(-(-p.windows // self.block.windows)) * self.block.windows
        group = b.program(groups)
        row = b.program(-(-made // self.block.made)) * self.block.made
        pixels = self.pixels(at)
        sides = self.block.made, self.block.windows
        acc = b.full(dtype.accum, sides[::-1] if images.wide else sides, 0)
        depth, step = images.depth, images.step
        each, taps = depth // step, p.taps
        with b.loop(0, taps.count * each, 1, [acc]) as loop:
            tap, part = loop.variable // each, loop.variable % each * step
            seen = b.gather(
                x, {0: pixels}, (self.place(tap), group * depth + part), (1, step),
                axes=(0, 1) if images.wide else (1, 0),
            )  # fmt: skip
            weights = self.weights(w, group, row, taps.first * depth + loop.variable * step)
            factors = (seen, weights) if images.wide else (weights, seen)
            loop.carry(b.dot(*factors, loop.carried[0]))
        value = b.cast(loop.results[0], dtype)
        self.store(y, b.transpose(value) if images.wide else value, at, group, row)
        return b.finish()

    def weights(self, w: Memory, group: Size, row: Size, at: Size) -> Tile:
        """The weights of some out channels, from a number of a window on."""
        n, step, odd = self.block.made, self.p.images.step, self.p.results.made % self.block.made
        if self.p.images.wide:
            return self.b.load(
                w, (group, at, row), (1, step, n), axes=(1, 2), masked=(2,) if odd else ()
            )
        return self.b.load(
            w, (group, row, at), (1, n, step), axes=(1, 2), masked=(1,) if odd else ()
        )

    def pixels(self, at: Size) -> Tile:
        """The pixel at which each window begins; those behind the last look where it does."""
        p, taps, wide = self.p, self.p.taps, self.p.images.wide
        numbers = PositionNumbers(
            self.b, max(p.windows, p.images.count * p.images.pixels) + self.block.windows
        )
        n = self.block.windows
        line = numbers.line(at, (n, 1) if wide else (1, n), 0 if wide else 1)
        image, *places = numbers.places(line, (p.images.count, *taps.counts))
        moved = [
            numbers.add(numbers.mul(x, s), a)
            for x, s, a in zip(places, taps.stride, taps.start, strict=True)
        ]
        last = p.images.count * p.images.pixels - 1 - taps.reach(p.images.padded)
        return numbers.index(numbers.joined([image, *moved], (1, *p.images.padded)), last)

    def place(self, tap: Size) -> Size:
        """The pixels between a window's first place and one of its taps."""
        taps, (_, rows, columns) = self.p.taps, self.p.images.padded
        z, y, x = places_of(tap, taps.window)
        return (z * taps.dilation[0] * rows + y * taps.dilation[1]) * columns + x * taps.dilation[2]

    def store(self, y: Memory, value: Tile, at: Size, group: Size, row: Size) -> None:
        """Results where they belong; those of windows behind the last are dropped."""
        p, r = self.p, self.p.results
        numbers = PositionNumbers(self.b, p.windows + self.block.windows)
        line = numbers.line(at, (1, self.block.windows), 1)
        image, window = numbers.split(line, prod(p.taps.counts))
        masked = (0, 3, 4) if r.made % self.block.made else (0, 4)
        picked = {0: numbers.index(image), 4: numbers.index(window)}
        place, extent = (0, r.slot, group, row, 0), (1, 1, 1, self.block.made, 1)
        self.b.scatter(y, value, picked, place, extent, axes=(3, 4), masked=masked, distinct=True)


def packed_type(images: Images, made: int, taps: int) -> TensorType:
    """Packed weights: by group, out channel, tap and channel; of wide ones the out channel comes last."""
    depth = taps * images.depth
    sides = (depth, made) if images.wide else (made, depth)
    return TensorType(images.dtype, (images.groups, *sides))


def default_block(p: ImplicitProduct) -> ConvBlock:
    """The block of a piece."""
    made = max(min(power(p.results.made), 128), 16)
    if p.images.wide:
        return ConvBlock(min(made, 64), max(min(power(p.windows), 64), 16), 4, 2)
    windows = max(min(power(p.windows), 128), 16)
    rows = -(-p.results.made // made) * p.images.groups
    while windows > 32 and -(-p.windows // windows) * rows < _ENOUGH:
        windows //= 2
    return ConvBlock(made, windows, 8 if made * windows >= 128 * 128 else 4, 4)
