"""Convolutions as Tile programs, in the order of core/convolutions.py.

    y[b, o, p] = sum over c, k of x[b, c, p*stride + k*dilation - low] * w[o, c, k]
->  program (b, rows of p, o by 64): copy the x that is seen to scratch, zeros where there is none;
        for p by 6: for c, k: acc[p] = fma(x[c, p + k], w[c, k, o:o+64], acc[p]); turn and store

Vectors lie along the out channels where there are enough of them (kernels packed once, before), and
along the last spatial axis otherwise.  All convolutions are seen with three spatial axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tessera.core.convolutions import MOST_AXES, Leaves
from tessera.core.dims import Size, larger, product, smaller
from tessera.core.dtype import DType
from tessera.core.folds import LANES, LEVELS
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.ir.tile.launch import Expansion, Launch

ACCUMULATORS = 24  # vectors of 16 that a block of outputs holds
_WIDE = 4 * LANES  # elements that are copied at once
_UNROLLED = 12  # places of a window that are written out
_PIXELS = 448  # outputs along the spatial axes of an instance
_ENOUGH = 16  # instances, so that no thread waits


@dataclass(frozen=True)
class Problem:
    """A convolution: channels and out channels are those of a group."""

    batch: Size
    groups: int
    channels: int
    made: int
    sizes: tuple[Size, ...]  # of x, of the window and of the outputs, along three axes
    window: tuple[int, ...]
    counts: tuple[Size, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[Size, ...]
    dtype: DType

    @staticmethod
    def of(x: TensorType, w: TensorType, y: TensorType, p: Mapping[str, Any]) -> Problem:
        """The problem of a step, with axes of one element before those that it has."""
        more = MOST_AXES + 2 - x.rank
        made, channels, groups = w.shape[0], w.shape[1], p["groups"]
        assert isinstance(made, int), w
        assert isinstance(channels, int), w

        def spatial(given: Sequence[Any], one: int) -> tuple[Any, ...]:
            return (*(one,) * more, *given)

        low = [a for a, _ in p["padding"]]
        return Problem(
            x.shape[0], groups, channels, made // groups, spatial(x.shape[2:], 1),
            spatial(w.shape[2:], 1), spatial(y.shape[2:], 1), spatial(p["stride"], 1),
            spatial(p["dilation"], 1), spatial(low, 0), x.dtype,
        )  # fmt: skip

    @cached_property
    def leaves(self) -> Leaves:
        return Leaves.of((self.channels, *self.window))

    def span(self, axis: int, count: Size) -> Size:
        """Places of x that so many neighbouring windows see."""
        return (count - 1) * self.stride[axis] + (self.window[axis] - 1) * self.dilation[axis] + 1


def runs(start: Size, stop: Size, height: int) -> Iterator[tuple[Size, Size, int]]:
    """Loops over an axis in blocks of at most `height`: of two even heights where the size is known."""
    size = stop - start
    if isinstance(size, int):
        blocks = -(-size // height)
        if blocks == 0:
            return
        low, high = size // blocks, size % blocks
        if high:
            yield start, start + high * (low + 1), low + 1
        yield start + high * (low + 1), stop, low
        return
    middle = size // height * height + start
    yield start, middle, height
    if height > 1:
        yield middle, stop, 1


Span = tuple[Size, Size]  # from the first place of an axis up to the last


def leaf_spans(leaves: Leaves, leaf: Size) -> list[Span]:
    """The places of a leaf along every reduced axis."""
    sizes, cut = leaves.sizes, leaves.axis
    spans: list[Span] = [(0, n) for n in sizes]
    if leaves.pieces != 1:
        first = (leaf % leaves.pieces if cut else leaf) * leaves.step
        spans[cut] = first, smaller(first + leaves.step, sizes[cut])
    rest = leaf // leaves.pieces
    for i in reversed(range(cut)):
        at = rest % sizes[i] if i else rest
        spans[i], rest = (at, at + 1), rest // sizes[i]
    return spans


def walk(
    b: Builder, spans: Sequence[Span], sums: Sequence[Tile],
    step: Callable[[tuple[Size, ...], Sequence[Tile]], Sequence[Tile]],
    at: tuple[Size, ...] = (),
) -> Sequence[Tile]:  # fmt: skip
    """Sums after `step` at every place of the spans, in order; a few inner places are written out."""
    if not spans:
        return step(at, sums)
    (start, stop), rest = spans[0], spans[1:]
    if stop - start == 1:
        return walk(b, rest, sums, step, (*at, start))
    lengths = [z - a for a, z in spans]
    if at and all(isinstance(n, int) for n in lengths) and product(tuple(lengths)) <= _UNROLLED:
        for i in range(stop - start):
            sums = walk(b, rest, sums, step, (*at, start + i))
        return sums
    with b.loop(start, stop, 1, sums) as loop:
        loop.carry(*walk(b, rest, loop.carried, step, (*at, loop.variable)))
    return loop.results


def join(b: Builder, kept: Memory, count: Size, rows: Size) -> None:
    """The leaves of kept[leaf, row, column] as a tree, in the place of the first."""
    width: Any = kept.type.shape[2]
    levels = (count - 1).bit_length() if isinstance(count, int) else LEVELS
    for level in range(levels):
        step = 1 << level
        with b.loop(0, larger(count - step, 0), 2 * step) as pair, b.loop(0, rows) as row:
            i, r = pair.variable, row.variable
            low, high = (b.load(kept, (k, r, 0), (1, 1, width), axes=(2,)) for k in (i, i + step))
            b.store(kept, b.apply("add", low, high), (i, r, 0), (1, 1, width), axes=(2,))


class Seen:
    """What windows see of x, in scratch: (image, channel, z, y, x), zeros where there is no x."""

    def __init__(
        self, b: Builder, p: Problem, x: Memory, images: int, channels: int, counts: Sequence[Size]
    ):
        self.b, self.p, self.x = b, p, x
        z, y, width = (p.span(i, n) for i, n in enumerate(counts))
        shape = (images, channels, z, y, (width + LANES - 1) // LANES * LANES)
        self.scratch = b.alloc(p.dtype.accum, shape)

    def bring(self, batch: Size, group: Size, channel: Size, first: Sequence[Size]) -> None:
        """Copy what windows from these on see."""
        b, p = self.b, self.p
        images, channels, planes, rows, width = self.scratch.type.shape
        start = [n * s - a for n, s, a in zip(first, p.stride, p.low, strict=True)]
        with (
            b.loop(0, images) as image,
            b.loop(0, channels) as c,
            b.loop(0, planes) as z,
            b.loop(0, rows) as y,
        ):
            here = (image.variable, c.variable, z.variable, y.variable)
            at = (
                batch + here[0], group, channel + here[1], start[0] + here[2], start[1] + here[3],
            )  # fmt: skip
            middle = width // _WIDE * _WIDE
            for low, high, part in ((0, middle, _WIDE), (middle, width, LANES)):
                if low == high:
                    continue
                with b.loop(low, high, part) as x:
                    line = b.load(
                        self.x, (*at, start[2] + x.variable), (1, 1, 1, 1, 1, part), axes=(5,),
                        masked=(0, 2, 3, 4, 5),
                    )  # fmt: skip
                    b.store(
                        self.scratch, b.cast(line, p.dtype.accum), (*here, x.variable),
                        (1, 1, 1, 1, part), axes=(4,),
                    )  # fmt: skip

    def load(self, image: Size, channel: Size, at: Sequence[Size], k: Sequence[Size]) -> Tile:
        """The place k of the window at `at`, as a tile of one element."""
        p = self.p
        place = (n * s + j * d for n, j, s, d in zip(at, k, p.stride, p.dilation, strict=True))
        return self.b.load(self.scratch, (image, channel, *place), (1,) * 5, axes=(3, 4))


def lower_conv(step: Primitive, types: Mapping[str, TensorType]) -> Expansion:
    """The kernels of a convolution."""
    x, w = step.operands
    (y,) = step.results
    p = Problem.of(types[x], types[w], types[y], step.params)
    width = panel_width(p.made)
    packed = Channels(p, width).packed
    return Expansion(
        (
            Launch(pack(p, width), (w,), ("packed",)),
            Launch(Channels(p, width).kernel(), (x, "packed"), (y,)),
        ),
        {"packed": packed},
    )


def panel_width(made: int) -> int:
    """Out channels that a block computes: the width that leaves the fewest lanes idle."""
    widths = (64, 48, 32, 16)
    return min(widths, key=lambda n: (-(-made // n) * n, -n))


def pack(p: Problem, width: int) -> Kernel:
    """The kernel that packs weights: (group, panel, channel and place, out channel)."""
    b = Builder("pack")
    taps = p.channels * product(p.window)
    w = b.parameter("w", TensorType(p.dtype, (p.groups, p.made, taps)))
    panels = -(-p.made // width)
    out = b.parameter(
        "packed", TensorType(p.dtype.accum, (p.groups, panels, taps, width)), writable=True
    )
    group, panel, part = b.program(p.groups), b.program(panels), b.program(width // LANES)
    first = panel * width + part * LANES
    masked = (1,) if p.made % width else ()
    whole = taps // LANES * LANES
    for start, stop, size in ((0, whole, LANES), (whole, taps, 1)):
        if start == stop:
            continue
        with b.loop(start, stop, size) as k:
            at = k.variable
            square = b.load(w, (group, first, at), (1, LANES, size), axes=(1, 2), masked=masked)
            turned = b.transpose(b.cast(square, p.dtype.accum))
            b.store(out, turned, (group, panel, at, part * LANES), (1, 1, size, LANES), axes=(2, 3))
    return b.finish()


class Channels:
    """The kernel whose vectors lie along the out channels.

    The outputs of an instance are numbered through: whole images, or rows of one image.
    """

    def __init__(self, p: Problem, width: int):
        self.p, self.width, self.b = p, width, Builder("conv")
        self.panels = -(-p.made // width)
        self.taps = p.channels * product(p.window)
        self.packed = TensorType(p.dtype.accum, (p.groups, self.panels, self.taps, width))
        self.height = ACCUMULATORS // (width // LANES)
        self.images, self.rows = share(p, self.panels)

    def kernel(self) -> Kernel:
        b, p = self.b, self.p
        x = b.parameter("x", TensorType(p.dtype, (p.batch, p.groups, p.channels, *p.sizes)))
        self.w = b.parameter("w", self.packed)
        plane = p.counts[1] * p.counts[2]
        y = TensorType(p.dtype, (p.batch, p.groups, p.made, p.counts[0], plane))
        self.y = b.parameter("y", y, writable=True)
        batch = b.program(p.batch // self.images) * self.images
        group, z = b.program(p.groups), b.program(p.counts[0])
        first = b.program((p.counts[1] + self.rows - 1) // self.rows) * self.rows
        panel = b.program(self.panels)
        even = isinstance(p.counts[1], int) and p.counts[1] % self.rows == 0
        rows = self.rows if even else smaller(first + self.rows, p.counts[1]) - first
        self.seen = Seen(b, p, x, self.images, p.channels, (1, self.rows, p.counts[2]))
        self.seen.bring(batch, group, 0, (z, first, 0))
        self.run = rows * p.counts[2]  # outputs of an image
        room = (self.images * self.rows * p.counts[2] + LANES - 1) // LANES * LANES
        self.kept = b.alloc(p.dtype.accum, (p.leaves.count, room, self.width))
        self.sums(group, panel)
        join(b, self.kept, p.leaves.count, self.images * self.run)
        with b.loop(0, self.images) as image:
            i = image.variable
            self.send(i * self.run, (batch + i, group, panel * self.width, z, first * p.counts[2]))
        return b.finish()

    def sums(self, group: Size, panel: Size) -> None:
        """The sums of all leaves and outputs of the instance."""
        count = self.p.leaves.count
        with self.b.loop(0, count) as leaf:
            number = 0 if count == 1 else leaf.variable
            for start, stop, height in runs(0, self.images * self.run, self.height):
                with self.b.loop(start, stop, height) as output:
                    outputs = [output.variable + i for i in range(height)]
                    self.block(number, group, panel, outputs)

    def place(self, output: Size) -> tuple[Size, Size, Size]:
        """Where an output lies: image, y, x."""
        y, x = output // self.p.counts[2], output % self.p.counts[2]
        return (y // self.rows, y % self.rows, x) if self.images > 1 else (0, y, x)

    def block(self, leaf: Size, group: Size, panel: Size, outputs: Sequence[Size]) -> None:
        """Outputs in registers: the chains of a leaf."""
        b, p = self.b, self.p
        places = [self.place(n) for n in outputs]

        def step(k: tuple[Size, ...], sums: Sequence[Tile]) -> list[Tile]:
            number = ((k[0] * p.window[0] + k[1]) * p.window[1] + k[2]) * p.window[2] + k[3]
            weights = b.load(self.w, (group, panel, number, 0), (1, 1, 1, self.width), axes=(2, 3))
            made = []
            for (image, y, x), total in zip(places, sums, strict=True):
                seen = self.seen.load(image, k[0], (0, y, x), k[1:])
                made.append(b.apply("fma", seen, weights, total))
            return made

        start = [b.full(p.dtype.accum, (1, self.width), 0.0) for _ in outputs]
        sums = walk(b, leaf_spans(p.leaves, leaf), start, step)
        for n, total in zip(outputs, sums, strict=True):
            b.store(self.kept, total, (leaf, n, 0), (1, 1, self.width), axes=(1, 2))

    def send(self, start: Size, at: tuple[Size, ...]) -> None:
        """Finished sums to the output: 16 outputs of 16 channels are turned round in registers."""
        b, p = self.b, self.p
        batch, group, channel, z, place = at
        whole = self.run // LANES * LANES
        masked = (2,) if p.made % self.width else ()
        with b.loop(0, whole, LANES) as output, b.loop(0, self.width, LANES) as part:
            n, c = output.variable, part.variable
            square = b.load(self.kept, (0, start + n, c), (1, LANES, LANES), axes=(1, 2))
            b.store(
                self.y, b.cast(b.transpose(square), p.dtype),
                (batch, group, channel + c, z, place + n), (1, 1, LANES, 1, LANES),
                axes=(2, 4), masked=masked,
            )  # fmt: skip
        with b.loop(whole, self.run) as output:
            n = output.variable
            column = b.load(self.kept, (0, start + n, 0), (1, 1, self.width), axes=(2,))
            b.store(
                self.y, b.cast(column, p.dtype), (batch, group, channel, z, place + n),
                (1, 1, self.width, 1, 1), axes=(2,), masked=masked,
            )  # fmt: skip


def share(p: Problem, panels: int) -> tuple[int, int]:
    """Images and rows of outputs of an instance: enough to use weights often, few enough to share."""
    z, y, x = p.counts
    if not isinstance(x, int) or not isinstance(y, int):
        return 1, 4
    rows = min(max(_PIXELS // max(x, 1), 1), max(y, 1))
    outer = product((p.batch, z)) * p.groups * panels
    while isinstance(outer, int) and rows > 1 and outer * -(-y // rows) < _ENOUGH:
        rows -= 1
    rows = -(-y // -(-y // rows)) if y else 1
    images = 1
    while (
        rows == y and isinstance(outer, int) and isinstance(p.batch, int)
        and p.batch % (2 * images) == 0 and 2 * images * x * y <= _PIXELS
        and outer // (2 * images) >= _ENOUGH
    ):  # fmt: skip
        images *= 2
    return images, rows


CONVOLUTIONS = {"conv": lower_conv}
