"""The derivative of a convolution in its kernel: a product over all windows, in leaves that join as a tree.

    w[o, t, c] = add over windows q of ct[q, o] * x[pixel(q) + place(t), c]
->  block (leaf, o by 128, t and c by 128): for q of the leaf by 64: acc = dot(load(ct, o, q), gather(x,
pixels(q) + place(t), c), acc)
    w = tree over leaves

How many windows a leaf has follows from the sizes of the op alone; inside a leaf the sum is one chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tessera.core.convolutions import has_vectors
from tessera.core.dims import Size, smaller
from tessera.core.dtype import i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import MULTIPROCESSORS, power
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu import conv_plan
from tessera.ir.tile.gpu.channels_last import ChannelsLast
from tessera.ir.tile.gpu.conv_numbers import PositionNumbers
from tessera.ir.tile.gpu.conv_plan import Images, ImplicitProduct, Three, depth_of, three
from tessera.ir.tile.gpu.folds import tree
from tessera.ir.tile.gpu.implicit_gemm import ConvBlock
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch, Threads

_LEAF = 512  # windows: leaves are multiples of it
_MOST = 64  # leaves
_WIDE = 128  # of a side of the product that is worth a block of threads
_COLUMNS = 256  # weights that a block joins the leaves of


class WeightsGemm:
    """The product, being written."""

    def __init__(self, p: ImplicitProduct, given: Images, block: ConvBlock | None = None):
        self.p, self.given, self.b = p, given, Builder("conv_weights")
        self.block = block or default_block(p)
        self.leaf, self.leaves = leaves_of(p)
        self.columns = p.taps.count * p.images.depth
        self.partial = TensorType(
            p.images.dtype.accum, (self.leaves, given.groups, p.results.made, self.columns)
        )

    @property
    def threads(self) -> Threads:
        return Threads(self.block.warps, self.block.stages)

    def kernel(self) -> Kernel:
        """The kernel: what it is given, images, sums of leaves."""
        b, p, made = self.b, self.p, self.p.results.made
        ct, x = b.parameter("ct", self.given.type), b.parameter("x", p.images.type)
        out = b.parameter("sums", self.partial, writable=True)
        leaf, group = b.program(self.leaves), b.program(self.given.groups)
        column = b.program(-(-self.columns // self.block.windows)) * self.block.windows
        row = b.program(-(-made // self.block.made)) * self.block.made
        place, channel = self.taps(column, group)
        first = leaf * self.leaf
        stop = smaller(first + self.leaf, p.windows) if p.windows % self.leaf else first + self.leaf
        acc = b.full(p.images.dtype.accum, (self.block.made, self.block.windows), 0)
        with b.loop(first, stop, self.step, [acc]) as loop:
            left = self.cotangents(ct, loop.variable, group * self.given.depth + row)
            rows = b.cast(b.apply("add", self.pixels(loop.variable), place), i64)
            right = b.gather(x, {0: rows, 1: channel}, (0, 0), (1, 1), (), masked=(0, 1))
            loop.carry(b.dot(left, right, loop.carried[0]))
        dropped = [2] if made % self.block.made else []
        dropped += [3] if self.columns % self.block.windows else []
        extent = (1, 1, self.block.made, self.block.windows)
        b.store(
            out, loop.results[0], (leaf, group, row, column), extent, axes=(2, 3), masked=dropped
        )
        return b.finish()

    def cotangents(self, ct: Memory, at: Size, row: Size) -> Tile:
        """What windows from `at` on are given: zeros behind the last."""
        g, numbers = self.given, self.numbers
        behind = (1,) if g.depth % self.block.made else ()
        if g.low == (0, 0, 0) and g.padded == g.sizes:
            masked = (0, *behind) if self.p.windows % self.step else behind
            extent = (self.step, self.block.made)
            return self.b.load(ct, (at, row), extent, axes=(1, 0), masked=masked)
        line = numbers.line(at, (1, self.step), 1)
        image, *places = numbers.places(line, (g.count, *g.sizes))
        moved = [numbers.add(n, low) for n, low in zip(places, g.low, strict=True)]
        pixels = numbers.index(numbers.joined([image, *moved], (1, *g.padded)))
        extent = (1, self.block.made)
        return self.b.gather(ct, {0: pixels}, (0, row), extent, (1, 0), masked=(0, *behind))

    @property
    def numbers(self) -> PositionNumbers:
        """Arithmetic of windows, pixels and columns, also of those behind the last."""
        p = self.p
        images = p.images.count + self.step // prod(p.taps.counts) + 2
        pixels = images * max(p.images.pixels, self.given.pixels)
        return PositionNumbers(self.b, max(pixels, self.leaf * (self.leaves + 1), self.columns))

    @property
    def step(self) -> int:
        """Windows that are multiplied at once."""
        return 64 if self.p.images.dtype.bits <= 16 else 32

    def taps(self, column: Size, group: Size) -> tuple[Tile, Tile]:
        """The offset in pixels and the channel of columns of the product."""
        p, taps = self.p, self.p.taps
        numbers = self.numbers
        line = numbers.line(column, (1, self.block.windows), 1)
        tap, channel = numbers.split(line, p.images.depth)
        places = numbers.places(tap, taps.window)
        moved = [numbers.mul(x, d) for x, d in zip(places, taps.dilation, strict=True)]
        here = self.b.apply(
            "add", numbers.index(channel), self.b.index(group * p.images.depth, (1, 1))
        )
        return numbers.joined(moved, p.images.padded), here

    def pixels(self, at: Size) -> Tile:
        """The pixel at which each window begins; those behind the last look behind all images."""
        p, taps, numbers = self.p, self.p.taps, self.numbers
        line = numbers.line(at, (self.step, 1), 0)
        image, *places = numbers.places(line, (p.images.count, *taps.counts))
        moved = [
            numbers.add(numbers.mul(x, s), a)
            for x, s, a in zip(places, taps.stride, taps.start, strict=True)
        ]
        return numbers.joined([image, *moved], (1, *p.images.padded))


def join_leaves(product: WeightsGemm, window: Three) -> Kernel:
    """The tree over leaves, and weights where they belong: (group, out channel, channel, place)."""
    p, t, b = product.p, product.p.images, Builder("join_leaves")
    leaves, places = product.leaves, prod(window)
    rows = t.groups * p.results.made
    total = rows * product.columns
    sums = b.parameter("sums", TensorType(t.dtype.accum, (leaves, total)))
    kept = TensorType(t.dtype, (rows, t.channels, places))
    w = b.parameter("w", kept, writable=True)
    n = min(power(total), _COLUMNS)
    at = b.program(-(-total // n)) * n
    numbers = PositionNumbers(b, 2 * total + n)
    found = b.load(sums, (0, at), (power(leaves), n), masked=(0, 1), fill=-0.0)
    value = b.cast(tree(b, "add", found, 0), t.dtype)
    row, column = numbers.split(numbers.line(at, (1, n), 1), product.columns)
    tap, channel = numbers.split(column, t.depth)
    place = numbers.index(tap)
    if t.beside.places > 1:
        x, channel = numbers.split(channel, t.channels)
        # What fills the depth up stands for places behind the last, of a row that is none.
        inside = b.apply("lt", x, numbers.full(x, t.beside.places))
        tap = b.apply("add", numbers.mul(tap, window[2]), x)
        place = b.apply("where", inside, numbers.index(tap), b.full(i64, (1, 1), places))
    picked = {0: numbers.index(row), 1: numbers.index(channel), 2: place}
    b.scatter(w, value, picked, (0, 0, 0), (1, 1, 1), (), masked=(0, 1, 2), distinct=True)
    return b.finish()


def conv_weights(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The launches: x and ct are turned, multiplied, and the leaves are joined."""
    x, ct = step.operands
    (w,) = step.results
    p = conv_plan.forward(types[x], types[w], types[ct], step.params)
    given = _given(p, types[x], types[w], types[ct], step.params)
    product = WeightsGemm(p, given)
    kernel = join_leaves(product, three(types[w].shape[2:], 1))
    return Expansion(
        (
            Launch(ChannelsLast(p.images).kernel(), (x,), ("images",), Threads(4)),
            Launch(ChannelsLast(given).kernel(), (ct,), ("given",), Threads(4)),
            Launch(product.kernel(), ("given", "images"), ("sums",), product.threads),
            Launch(kernel, ("sums",), (w,), Threads(4)),
        ),
        {"images": p.images.type, "given": given.type, "sums": product.partial},
    )


def _given(
    p: ImplicitProduct, x: TensorType, w: TensorType, ct: TensorType, params: Mapping[str, Any]
) -> Images:
    """How cotangents lie: as the derivative in x reads them, which can share the copy."""
    if has_vectors(w):
        return conv_plan.backward(ct, w, x, params)[0].images
    depth, at_once = depth_of(p.results.made)
    return replace(
        p.images, channels=p.results.made, sizes=p.taps.counts, low=(0, 0, 0), padded=p.taps.counts,
        depth=depth, step=at_once, beside=conv_plan.Beside(),
    )  # fmt: skip


def leaves_of(p: ImplicitProduct) -> tuple[int, int]:
    """The windows of a leaf, and how many leaves there are: by the sizes of the op, so that many blocks
    share a long sum.
    """
    sides = -(-p.results.made // _WIDE) * -(-p.taps.count * p.images.depth // _WIDE)
    wanted = max(min(2 * MULTIPROCESSORS // (sides * p.images.groups), _MOST), 1)
    leaf = max(-(-p.windows // wanted // _LEAF) * _LEAF, _LEAF)
    return leaf, -(-p.windows // leaf)


def default_block(p: ImplicitProduct) -> ConvBlock:
    """The block of the product: out channels by taps and channels."""
    made = max(min(power(p.results.made), 128), 16)
    wide = max(min(power(p.taps.count * p.images.depth), 128), 16)
    if p.images.dtype.bits > 16:
        return ConvBlock(min(made, 64), min(wide, 64), 4, 2)
    return ConvBlock(made, wide, 8 if made * wide >= 128 * 128 else 4, 3)
