"""Copies that convolutions read: images with their channels last and their padding, weights tap by tap."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.dims import Size
from tessera.core.dtype import DType, i64
from tessera.core.types import TensorType
from tessera.ir.tile.gpu.blocks import power
from tessera.ir.tile.gpu.conv_numbers import Numbers
from tessera.ir.tile.gpu.conv_plan import Images, Piece, Three
from tessera.ir.tile.ir import Builder, Kernel, Tile

_PIXELS, _CHANNELS = 64, 64  # of a tile that is turned
_ROWS, _DEPTH = 16, 64  # of weights that a block packs


class Turned:
    """x[n, c, ...] as x[n, ..., c], with zeros around, being written."""

    def __init__(self, images: Images):
        self.t, self.b = images, Builder("channels_last")
        self.pixels = min(power(images.pixels), _PIXELS)
        self.channels = min(power(images.depth), _CHANNELS)

    def kernel(self) -> Kernel:
        """The kernel: a tile of pixels and channels for each block."""
        t, b = self.t, self.b
        plain = t.beside.places == 1 and t.low == (0, 0, 0) and t.padded == t.sizes
        shape = (t.pixels,) if plain else t.sizes
        self.x = b.parameter("x", TensorType(t.dtype, (t.count, t.groups, t.channels, *shape)))
        kept = TensorType(t.dtype, (t.count, t.pixels, t.groups, t.depth))
        y = b.parameter("y", kept, writable=True)
        image, group = b.program(t.count), b.program(t.groups)
        at = b.program(-(-t.pixels // self.pixels)) * self.pixels
        first = b.program(-(-t.depth // self.channels)) * self.channels
        if t.beside.places > 1:
            tile = self.windows(image, group, at, first)
        else:
            tile = b.transpose((self.lines if plain else self.places)(image, group, at, first))
        masked = [1] if t.pixels % self.pixels else []
        masked += [3] if t.depth % self.channels else []
        extent = (1, self.pixels, 1, self.channels)
        b.store(y, tile, (image, at, group, first), extent, axes=(1, 3), masked=masked)
        return b.finish()

    def lines(self, image: Size, group: Size, at: Size, first: Size) -> Tile:
        """Pixels that lie as they came."""
        extent = (1, 1, self.channels, self.pixels)
        place = (image, group, first, at)
        return self.b.load(self.x, place, extent, axes=(2, 3), masked=(2, 3))

    def places(self, image: Size, group: Size, at: Size, first: Size) -> Tile:
        """Pixels that have zeros between them."""
        t, numbers = self.t, Numbers(self.b, self.t.pixels + self.pixels)
        line = numbers.line(at, (1, self.pixels), 1, t.pixels - 1)
        picked = {3 + i: numbers.index(n) for i, n in enumerate(numbers.places(line, t.padded))}
        place = (image, group, first, *(-n for n in t.low))
        extent = (1, 1, self.channels, 1, 1, 1)
        return self.b.gather(self.x, picked, place, extent, axes=(2, 3), masked=(2, 3, 4, 5))

    def windows(self, image: Size, group: Size, at: Size, first: Size) -> Tile:
        """Places of windows beside the channels: number k of a pixel is channel k % channels of place k // channels."""
        b, t, numbers = self.b, self.t, Numbers(self.b, self.t.pixels + self.pixels)
        line = numbers.line(at, (self.pixels, 1), 0, t.pixels - 1)
        z, y, column = numbers.places(line, t.padded)
        places, channel = beside(b, numbers, t, first, self.channels)
        start = numbers.mul(column, t.beside.stride)
        x = b.apply("add", start, numbers.mul(places, t.beside.dilation))
        picked = {2: channel, **{3 + i: numbers.index(n) for i, n in enumerate((z, y, x))}}
        place = (image, group, 0, *(-n for n in t.low))
        return b.gather(self.x, picked, place, (1,) * 6, masked=(2, 3, 4, 5))


def beside(b: Builder, numbers: Numbers, t: Images, first: Size, n: int) -> tuple[Tile, Tile]:
    """The place and the channel of the numbers of a pixel from `first` on; behind the last, a channel that is none."""
    line = numbers.line(first, (1, n), 1, t.depth)
    place, channel = numbers.split(line, t.channels)
    inside = b.apply("lt", place, numbers.full(place, t.beside.places))
    none = b.full(i64, (1, 1), t.channels)
    return place, b.apply("where", inside, numbers.index(channel), none)


def pack_weights(p: Piece, window: Three) -> Kernel:
    """w[g, o, c, ...] as w[g, o, tap, c], channels filled up with zeros."""
    b, t, made = Builder("pack"), p.images, p.results.made
    places = (*p.taps.window[:2], window[2])
    w = b.parameter("w", TensorType(t.dtype, (t.groups, made, t.channels, *places)))
    kept = TensorType(t.dtype, (t.groups, made, p.taps.count, t.depth))
    out = b.parameter("packed", kept, writable=True)
    rows, depth = min(power(made), _ROWS), min(power(t.depth), _DEPTH)
    group, row = b.program(t.groups), b.program(-(-made // rows)) * rows
    first = b.program(-(-t.depth // depth)) * depth
    masked = [1] if made % rows else []
    with b.loop(0, p.taps.count) as loop:
        at = places_of(loop.variable, p.taps.window)
        if t.beside.places > 1:
            numbers = Numbers(b, t.depth + depth)
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
        into = (group, row, loop.variable, first)
        b.store(out, tile, into, (1, rows, 1, depth), axes=(1, 3), masked=[*masked, *behind])
    return b.finish()


def pack_turned(pieces: Sequence[Piece], window: Three, dtype: DType) -> Kernel:
    """w[g, o, c, ...] as w[g, c, tap, o], turned round, the taps of each phase after those of the last."""
    b, t, made = Builder("pack_turned"), pieces[0].images, pieces[0].results.made
    w = b.parameter("w", TensorType(dtype, (t.groups, t.channels, made, *window)))
    kept = TensorType(dtype, (t.groups, made, max(taps_of(pieces), 1), t.depth))
    out = b.parameter("packed", kept, writable=True)
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
            into = (group, row, p.taps.first + loop.variable, first)
            b.store(out, tile, into, (1, rows, 1, depth), axes=(1, 3), masked=masked)
    return b.finish()


def taps_of(pieces: Sequence[Piece]) -> int:
    """Taps of all pieces."""
    return sum(p.taps.count for p in pieces)


def places_of(tap: Size, window: Three) -> tuple[Size, Size, Size]:
    """The place of a tap along each axis of its window."""
    _, high, wide = (max(n, 1) for n in window)
    return tap // (high * wide), tap // wide % high, tap % wide
