"""The plan of a convolution on a GPU: the layout of its tensors while matrix units multiply them.

    y[n, o, p] = add over taps t and channels c of w[o, t, c] * x[pixel(n, p) + place(t), c]

Images lie channels last, with the padding in memory and channels filled up with zeros, so that a window
never leaves them: a tap is an offset of pixels, and no load needs a mask.  Where a group has few channels,
the places of a window along the last axis lie beside them.  The sum is one chain over taps and channels, in
this order, whatever block computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tessera.core.convolutions import MOST_AXES, all_phases
from tessera.core.dtype import DType
from tessera.core.types import TensorType

_FEW = 8  # channels of a group: fewer lie beside the places of a window
_DEPTHS = ((64, 1.0), (32, 1.1), (16, 1.5))  # of a step, and what a product costs in it

_WIDE_STEP = (
    32  # at most, where threads multiply: 64 by 64 by 64 in two stages leave room for 3 blocks only
)

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Beside:
    """Places of a window along the last axis that lie beside the channels; then that axis counts windows."""

    places: int = 1
    dilation: int = 1
    stride: int = 1


@dataclass(frozen=True)
class Images:
    """Images in memory: channels last, `low` zeros before the first place of each axis."""

    count: int
    groups: int
    channels: int  # of a group, as they came
    sizes: Three  # as they came
    low: Three
    padded: Three
    depth: int  # numbers of a group at a pixel
    step: int  # of them that are multiplied at once
    dtype: DType
    beside: Beside = Beside()

    @property
    def pixels(self) -> int:
        """Pixels of an image."""
        return prod(self.padded)

    @property
    def wide(self) -> bool:
        """Whether threads multiply, which no matrix unit does for numbers of so many bits.

        Threads side by side have the columns of a product, and those of its right factor must be neighbours
        in shared memory: so pixels are rows, and weights lie with the channels that they make last.
        """
        return is_wide(self.dtype)

    @property
    def type(self) -> TensorType:
        """As a matrix: a row for each pixel of each image."""
        return TensorType(self.dtype, (self.count * self.pixels, self.groups * self.depth))


@dataclass(frozen=True)
class Taps:
    """Where windows look: the place of tap k along an axis is start + k * dilation."""

    window: Three
    dilation: Three
    stride: Three
    start: Three
    counts: Three  # how many windows there are
    first: int = 0  # tap of the packed weights
    begin: Three = (
        0,
        0,
        0,
    )  # of the places of the kernel, turned round, that they are, if it is turned
    every: Three = (1, 1, 1)

    @property
    def count(self) -> int:
        """Taps of a window."""
        return prod(self.window)

    def reach(self, padded: Three) -> int:
        """The pixels between the first tap of a window and the last."""
        ends = [max(k - 1, 0) * d for k, d in zip(self.window, self.dilation, strict=True)]
        return (ends[0] * padded[1] + ends[1]) * padded[2] + ends[2]

    @property
    def span(self) -> Three:
        """The places of each axis that windows reach, at least one."""
        ends = [
            a + max(n - 1, 0) * s + max(k - 1, 0) * d + 1
            for a, n, s, k, d in zip(
                self.start, self.counts, self.stride, self.window, self.dilation, strict=True
            )
        ]
        return three(ends, 1)


@dataclass(frozen=True)
class Results:
    """Where results lie, channels first: (image, slot, group, channel, window)."""

    made: int  # channels of a group
    counts: Three
    slot: int = 0
    slots: int = 1


@dataclass(frozen=True)
class ImplicitProduct:
    """One implicit product: images, where windows look, and where results go."""

    images: Images
    taps: Taps
    results: Results

    @property
    def windows(self) -> int:
        """Windows in all images."""
        return self.images.count * prod(self.taps.counts)


def three(given: Sequence[Any], fill: int) -> Three:
    """Numbers of three axes: those that an op does not have come first."""
    numbers = (*(fill,) * (MOST_AXES - len(given)), *(int(n) for n in given))
    return numbers[0], numbers[1], numbers[2]


def depth_of(channels: int) -> tuple[int, int]:
    """The numbers of a group at a pixel, and how many are multiplied at once."""
    best = min(_DEPTHS, key=lambda s: -(-channels // s[0]) * s[0] * s[1])
    return -(-channels // best[0]) * best[0], best[0]


def step_of(step: int, dtype: DType) -> int:
    """How many numbers are multiplied at once."""
    return min(step, _WIDE_STEP) if is_wide(dtype) else step


def is_wide(dtype: DType) -> bool:
    """Whether no matrix unit multiplies numbers of a dtype."""
    return dtype.bits > 16 and dtype.policy.math != "tf32"


def forward(x: TensorType, w: TensorType, y: TensorType, p: Mapping[str, Any]) -> ImplicitProduct:
    """The piece of a convolution."""
    groups, channels = int(p["groups"]), int(w.shape[1])
    window, dilation, stride = (three(v, 1) for v in (w.shape[2:], p["dilation"], p["stride"]))
    counts, low = three(y.shape[2:], 1), three([a for a, _ in p["padding"]], 0)
    results = Results(int(w.shape[0]) // groups, counts)
    before = three([max(a, 0) for a in low], 0)
    start = three([b - a for a, b in zip(low, before, strict=True)], 0)
    if channels <= _FEW and window[2] > 1:
        beside = Beside(window[2], dilation[2], stride[2])
        taps = Taps(
            (*window[:2], 1), (*dilation[:2], 1), (*stride[:2], 1), (*start[:2], 0), counts
        )  # fmt: skip
        before = (*before[:2], low[2])
    else:
        beside, taps = Beside(), Taps(window, dilation, stride, start, counts)
    depth, step = depth_of(channels * beside.places)
    images = Images(
        int(x.shape[0]), groups, channels, three(x.shape[2:], 1), before, taps.span, depth,
        step_of(step, x.dtype), x.dtype, beside,
    )  # fmt: skip
    return ImplicitProduct(images, taps, results)


def backward(
    ct: TensorType, w: TensorType, x: TensorType, p: Mapping[str, Any]
) -> list[ImplicitProduct]:
    """The pieces of the derivative in x: each phase of the stride is a convolution of ct with some taps.

    Phases have the same number of windows, though some of the last may belong to no place of x.
    """
    groups, channels, made = int(p["groups"]), int(w.shape[0]) // int(p["groups"]), int(w.shape[1])
    window, sizes = three(w.shape[2:], 1), three(x.shape[2:], 1)
    filled = {
        "stride": three(p["stride"], 1), "dilation": three(p["dilation"], 1),
        "padding": [(0, 0)] * (MOST_AXES - len(p["padding"])) + list(p["padding"]),
    }  # fmt: skip
    found = all_phases(window, filled)
    counts = three([-(-n // s) for n, s in zip(sizes, filled["stride"], strict=True)], 1)
    lows = [three([a.low for a in phases], 0) for phases in found]
    before = three([max(0, *(low[i] for low in lows)) for i in range(MOST_AXES)], 0)
    pieces: list[tuple[Taps, Results]] = []
    first = 0
    for phases, low in zip(found, lows, strict=True):
        taps = Taps(
            three([a.size for a in phases], 1), three([a.dilation for a in phases], 1), (1, 1, 1),
            three([b - a for a, b in zip(low, before, strict=True)], 0),
            counts, first,
            three([a.first for a in phases], 0), three([a.every for a in phases], 1),
        )  # fmt: skip
        first += taps.count
        pieces.append((taps, Results(made, counts, len(pieces), len(found))))
    depth, step = depth_of(channels)
    padded = three([max(t.span[i] for t, _ in pieces) for i in range(MOST_AXES)], 1)
    images = Images(
        int(ct.shape[0]), groups, channels, three(ct.shape[2:], 1), before, padded, depth,
        step_of(step, ct.dtype), ct.dtype,
    )  # fmt: skip
    return [ImplicitProduct(images, taps, results) for taps, results in pieces]
