"""What the kernels of convolutions share: the problem, its reduced axes, what windows see of x."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tessera.core.convolutions import MOST_AXES, ConvolutionLeaves
from tessera.core.dims import Size, larger, product, smaller
from tessera.core.dtype import DType
from tessera.core.folds import LANES, LEVELS
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Builder, Memory, Tile

ACCUMULATORS = 24  # vectors of 16 that a block of outputs holds
ENOUGH = 16  # instances, so that no thread waits
_WIDE = 4 * LANES  # elements that are copied at once
_UNROLLED = 12  # places of a window that are written out


@dataclass(frozen=True)
class ConvolutionProblem:
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
    def of(x: TensorType, w: TensorType, y: TensorType, p: Mapping[str, Any]) -> ConvolutionProblem:
        """The problem of a step, with axes of one element before those that it has."""
        more = MOST_AXES + 2 - x.rank
        made, channels, groups = w.shape[0], w.shape[1], p["groups"]
        assert isinstance(made, int), w
        assert isinstance(channels, int), w

        def spatial(given: Sequence[Any], one: int) -> tuple[Any, ...]:
            return (*(one,) * more, *given)

        low = [a for a, _ in p["padding"]]
        return ConvolutionProblem(
            x.shape[0], groups, channels, made // groups, spatial(x.shape[2:], 1),
            spatial(w.shape[2:], 1), spatial(y.shape[2:], 1), spatial(p["stride"], 1),
            spatial(p["dilation"], 1), spatial(low, 0), x.dtype,
        )  # fmt: skip

    @cached_property
    def leaves(self) -> ConvolutionLeaves:
        return ConvolutionLeaves.of((self.channels, *self.window))

    def span(self, axis: int, count: Size) -> Size:
        """Places of x that so many neighbouring windows see; those between them are left out."""
        return (count - 1) * self.stride[axis] + (self.window[axis] - 1) * self.gap(axis, count) + 1

    def gap(self, axis: int, count: Size) -> int:
        """How far apart two places of a window lie in a copy of what so many windows see.

        Where places of a window are farther apart than its neighbours reach, what none sees is not copied;
        along x, whole lines are.
        """
        if axis == MOST_AXES - 1 or not isinstance(count, int):
            return self.dilation[axis]
        return min(self.dilation[axis], max((count - 1) * self.stride[axis] + 1, 1))

    def place(self, axis: int, count: Size, at: Size) -> Size:
        """Where a place of such a copy lies in x, behind its first."""
        gap, dilation = self.gap(axis, count), self.dilation[axis]
        return at if gap == dilation else at // gap * dilation + at % gap


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


def leaf_spans(leaves: ConvolutionLeaves, leaf: Size) -> list[Span]:
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


def join(b: Builder, kept: Memory, count: Size, rows: Size, first: Size = 0) -> None:
    """The leaves of kept[leaf, row, column] as a tree, in the place of the first."""
    width: Any = kept.type.shape[2]
    levels = (count - 1).bit_length() if isinstance(count, int) else LEVELS
    for level in range(levels):
        step = 1 << level
        with b.loop(0, larger(count - step, 0), 2 * step) as pair, b.loop(0, rows) as row:
            i, r = pair.variable, first + row.variable
            low, high = (b.load(kept, (k, r, 0), (1, 1, width), axes=(2,)) for k in (i, i + step))
            b.store(kept, b.apply("add", low, high), (i, r, 0), (1, 1, width), axes=(2,))


class Seen:
    """What windows see of x, in scratch: (image, channel, z, y, x), zeros where there is no x."""

    def __init__(
        self,
        b: Builder,
        p: ConvolutionProblem,
        x: Memory,
        images: int,
        channels: int,
        counts: Sequence[Size],
    ):
        self.b, self.p, self.x, self.counts = b, p, x, counts
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
            plane, row = (p.place(i, self.counts[i], here[2 + i]) for i in range(2))
            at = (batch + here[0], group, channel + here[1], start[0] + plane, start[1] + row)
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
        gaps = (p.gap(i, n) for i, n in enumerate(self.counts))
        place = (n * s + j * d for n, j, s, d in zip(at, k, p.stride, gaps, strict=True))
        return self.b.load(self.scratch, (image, channel, *place), (1,) * 5, axes=(3, 4))


def panel_width(made: int) -> int:
    """Out channels that a block computes: the width that leaves the fewest lanes idle."""
    widths = (64, 48, 32, 16)
    return min(widths, key=lambda n: (-(-made // n) * n, -n))
