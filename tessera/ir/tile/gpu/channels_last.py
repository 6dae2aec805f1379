"""Copies that convolutions read: images with their channels last and their padding, weights tap by tap."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tessera.core.dims import Size
from tessera.core.dtype import DType, i64
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.tile.gpu.conv_numbers import PositionNumbers
from tessera.ir.tile.gpu.conv_plan import Images, ImplicitProduct, Three
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile

_PIXELS, _CHANNELS = 64, 64  # of a tile that is turned
_ROWS, _DEPTH = 16, 64  # of weights that a block packs


class ChannelsLast:
    """x[n, c, ...] as x[n, ..., c], with zeros around, being written."""

    def __init__(self, images: Images):
        self.t, self.b = images, Builder("channels_last")
        self.source = images.pixels if images.beside.places > 1 else prod(images.sizes)
        self.pixels = min(power(self.source), _PIXELS)
        self.channels = min(power(images.depth), _CHANNELS)

    def kernel(self) -> Kernel:
        """The kernel: a tile of pixels and channels for each block, and some of the zeros around."""
        t, b = self.t, self.b
        apart = t.beside.places > 1
        shape = t.sizes if apart else (self.source,)
        self.x = b.parameter("x", TensorType(t.dtype, (t.count, t.groups, t.channels, *shape)))
        kept = TensorType(t.dtype, (t.count, t.pixels, t.groups, t.depth))
        self.y = b.parameter("y", kept, writable=True)
        image, group = b.program(t.count), b.program(t.groups)
        block = b.program(-(-self.source // self.pixels))
        first = b.program(-(-t.depth // self.channels)) * self.channels
        at = block * self.pixels
        if apart or (t.low == (0, 0, 0) and t.padded == t.sizes):
            tile = (self.windows if apart else self.lines)(image, group, at, first)
            masked = [1] if t.pixels % self.pixels else []
            masked += [3] if t.depth % self.channels else []
            extent = (1, self.pixels, 1, self.channels)
            b.store(self.y, tile, (image, at, group, first), extent, axes=(1, 3), masked=masked)
            return b.finish()
        self.inner(image, group, at, first)
        self.around(image, group, block, first)
        return b.finish()

    def lines(self, image: Size, group: Size, at: Size, first: Size) -> Tile:
        """Pixels as they came, with their channels last."""
        extent = (1, 1, self.channels, self.pixels)
        place = (image, group, first, at)
        return self.b.transpose(
            self.b.load(self.x, place, extent, axes=(2, 3), masked=(2, 3))
        )  # fmt: skip

    def inner(self, image: Size, group: Size, at: Size, first: Size) -> None:
        """Pixels at their places among the zeros; those that no window reaches are dropped."""
        b, t, numbers = self.b, self.t, PositionNumbers(self.b, 2 * self.t.pixels + self.source)
        line = numbers.line(at, (self.pixels, 1), 0)
        z, *rest = numbers.places(line, t.sizes)
        places = [numbers.add(n, low) for n, low in zip((z, *rest), t.low, strict=True)]
        into = numbers.index(numbers.joined(places, t.padded))
        for place, low, size, n in zip(places, t.low, t.sizes, t.padded, strict=True):
            if low + size > n:
                inside = b.apply("lt", place, numbers.full(place, n))
                into = b.apply("where", inside, into, b.full(i64, (1, 1), t.pixels))
        tile = self.lines(image, group, at, first)
        # A pixel behind the last comes to lie behind the last plane, but perhaps inside of the padding.
        whole = b.apply("lt", line, numbers.full(line, self.source))
        into = b.apply("where", whole, into, b.full(i64, (1, 1), t.pixels))
        self.put(tile, into, (image, group, first))

    def around(self, image: Size, group: Size, block: Size, first: Size) -> None:
        """Zeros where there is no pixel, among the places that are this block's."""
        b, t = self.b, self.t
        blocks = -(-self.source // self.pixels)
        part = -(-t.pixels // blocks)
        piece = min(power(part), _PIXELS)
        part = -(-part // piece) * piece
        numbers = PositionNumbers(b, 2 * blocks * part)
        zeros = b.full(t.dtype, (piece, self.channels), 0)
        with b.loop(0, part, piece) as loop:
            line = numbers.line(block * part + loop.variable, (piece, 1), 0)
            taken = None
            for n, low, size in zip(numbers.places(line, t.padded), t.low, t.sizes, strict=True):
                for name, end in (("ge", low), ("lt", low + size)):
                    test = b.apply(name, n, numbers.full(n, end))
                    taken = test if taken is None else b.apply("logical_and", taken, test)
            assert taken is not None
            nowhere = b.full(i64, (1, 1), t.pixels)
            into = b.apply("where", taken, nowhere, numbers.index(line))
            self.put(zeros, into, (image, group, first))

    def put(self, tile: Tile, into: Tile, at: tuple[Size, Size, Size]) -> None:
        """Rows of channels to pixels; to none where there is no such pixel."""
        image, group, first = at
        masked = (1, 3) if self.t.depth % self.channels else (1,)
        self.b.scatter(
            self.y, tile, {1: into}, (image, 0, group, first), (1, 1, 1, self.channels),
            axes=(1, 3), masked=masked, distinct=True,
        )  # fmt: skip

    def windows(self, image: Size, group: Size, at: Size, first: Size) -> Tile:
        """Places of windows beside the channels: number k of a pixel is channel k % channels of place k
        // channels.
        """
        b, t, numbers = self.b, self.t, PositionNumbers(self.b, self.t.pixels + self.pixels)
        line = numbers.line(at, (self.pixels, 1), 0, t.pixels - 1)
        z, y, column = numbers.places(line, t.padded)
        places, channel = beside(b, numbers, t, first, self.channels)
        start = numbers.mul(column, t.beside.stride)
        x = b.apply("add", start, numbers.mul(places, t.beside.dilation))
        picked = {2: channel, **{3 + i: numbers.index(n) for i, n in enumerate((z, y, x))}}
        place = (image, group, 0, *(-n for n in t.low))
        return b.gather(self.x, picked, place, (1,) * 6, masked=(2, 3, 4, 5))


def beside(
    b: Builder, numbers: PositionNumbers, t: Images, first: Size, n: int
) -> tuple[Tile, Tile]:
    """The place and the channel of the numbers of a pixel from `first` on; behind the last, a channel
    that is none.
    """
    line = numbers.line(first, (1, n), 1, t.depth)
    place, channel = numbers.split(line, t.channels)
    inside = b.apply("lt", place, numbers.full(place, t.beside.places))
    none = b.full(i64, (1, 1), t.channels)
    return place, b.apply("where", inside, numbers.index(channel), none)


def pack_weights(p: ImplicitProduct, window: Three) -> Kernel:
    """w[g, o, c, ...] as w[g, o, tap, c], or w[g, tap, c, o] if wide, channels filled up with zeros."""
    b, t, made = Builder("pack"), p.images, p.results.made
    places = (*p.taps.window[:2], window[2])
    w = b.parameter("w", TensorType(t.dtype, (t.groups, made, t.channels, *places)))
    out = packed(b, t, made, p.taps.count)
    rows, depth = min(power(made), _ROWS), min(power(t.depth), _DEPTH)
    group, row = b.program(t.groups), b.program(-(-made // rows)) * rows
    first = b.program(-(-t.depth // depth)) * depth
    masked = [1] if made % rows else []
    with b.loop(0, p.taps.count) as loop:
        at = places_of(loop.variable, p.taps.window)
        if t.beside.places > 1:
            numbers = PositionNumbers(b, t.depth + depth)
            place, channel = beside(b, numbers, t, first, depth)
            picked = {2: channel, 5: numbers.index(place)}
            tile = b.gather(
                w,
                picked,
                (group, row, 0, *at),
                (1, rows, 1, 1, 1, 1),
                axes=(1, 2),
                masked=(1, 2, 5),
            )
        else:
            extent = (1, rows, depth, 1, 1, 1)
            tile = b.load(w, (group, row, first, *at), extent, axes=(1, 2), masked=(1, 2))
        behind = [3] if t.depth % depth else []
        store_packed(b, t, out, tile, (group, row, loop.variable, first), [*masked, *behind])
    return b.finish()


def packed(b: Builder, t: Images, made: int, taps: int) -> Memory:
    """Where packed weights are written."""
    shape = (taps, t.depth, made) if t.wide else (made, taps, t.depth)
    return b.parameter("packed", TensorType(t.dtype, (t.groups, *shape)), writable=True)


def store_packed(
    b: Builder, t: Images, out: Memory, tile: Tile, into: tuple[Size, Size, Size, Size],
    masked: Sequence[int],
) -> None:  # fmt: skip
    """Weights of some out channels at a tap, at (group, out channel, tap, channel)."""
    group, row, tap, first = into
    rows, depth = tile.shape
    if t.wide:
        behind = [{1: 3, 3: 2}[i] for i in masked]
        extent = (1, 1, depth, rows)
        b.store(
            out, b.transpose(tile), (group, tap, first, row), extent, axes=(2, 3), masked=behind
        )
    else:
        b.store(out, tile, into, (1, rows, 1, depth), axes=(1, 3), masked=masked)


def pack_turned(pieces: Sequence[ImplicitProduct], window: Three, dtype: DType) -> Kernel:
    """w[g, o, c, ...] as w[g, c, tap, o], turned round, the taps of each phase after those of the last."""
    b, t, made = Builder("pack_turned"), pieces[0].images, pieces[0].results.made
    w = b.parameter("w", TensorType(dtype, (t.groups, t.channels, made, *window)))
    out = packed(b, t, made, max(taps_of(pieces), 1))
    rows, depth = min(power(made), _ROWS), min(power(t.depth), _DEPTH)
    group, row = b.program(t.groups), b.program(-(-made // rows)) * rows
    first = b.program(-(-t.depth // depth)) * depth
    masked = [1] if made % rows else []
    masked += [3] if t.depth % depth else []
    for p in pieces:
        with b.loop(0, p.taps.count) as loop:
            there = places_of(loop.variable, p.taps.window)
            at = [
                n - 1 - (a + k * u)
                for n, a, k, u in zip(window, p.taps.begin, p.taps.every, there, strict=True)
            ]
            place = (group, first, row, *at)
            tile = b.load(w, place, (1, depth, rows, 1, 1, 1), axes=(2, 1), masked=(1, 2))
            store_packed(b, t, out, tile, (group, row, p.taps.first + loop.variable, first), masked)
    return b.finish()


def taps_of(pieces: Sequence[ImplicitProduct]) -> int:
    """Taps of all pieces."""
    return sum(p.taps.count for p in pieces)


def places_of(tap: Size, window: Three) -> tuple[Size, Size, Size]:
    """The place of a tap along each axis of its window."""
    _, high, wide = (max(n, 1) for n in window)
    return tap // (high * wide), tap // wide % high, tap % wide
