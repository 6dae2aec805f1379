"""Phases of a stride brought together: neighbours of x come from different products.

x[n, c, i] = phases[n, i % stride, c, i // stride]
"""

from __future__ import annotations

from math import prod

from tessera.core.dtype import DType
from tessera.core.types import TensorType
from tessera.ir.schedule.gpu_blocks import power
from tessera.ir.tile.gpu.conv_numbers import PositionNumbers
from tessera.ir.tile.gpu.conv_plan import Three
from tessera.ir.tile.ir import Builder, Kernel

_LANES = 1024  # elements that a block moves


def merge_phases(
    images: int, channels: int, sizes: Three, counts: Three, stride: Three, dtype: DType
) -> Kernel:
    """The kernel: a block of channels by places of x."""
    b, total = Builder("merge_phases"), prod(sizes)
    held = TensorType(dtype, (images, prod(stride), channels, *counts))
    phases = b.parameter("phases", held)
    x = b.parameter("x", TensorType(dtype, (images, channels, total)), writable=True)
    lanes = min(power(total), _LANES)
    rows = min(_LANES // lanes, power(channels))
    image, row = b.program(images), b.program(-(-channels // rows)) * rows
    at = b.program(-(-total // lanes)) * lanes
    numbers = PositionNumbers(b, total + lanes)
    places = numbers.places(numbers.line(at, (1, lanes), 1), sizes)
    split = [numbers.split(n, s) for n, s in zip(places, stride, strict=True)]
    phase = numbers.joined([rest for _, rest in split], stride)
    picked = {1: numbers.index(phase), 2: b.index(row, (rows, 1), 0)}
    picked |= {3 + i: numbers.index(n) for i, (n, _) in enumerate(split)}
    place = (image, 0, 0, 0, 0, 0)
    found = b.gather(phases, picked, place, (1,) * 6, (), masked=(1, 2, 3, 4, 5))
    masked = [1] if channels % rows else []
    masked += [2] if total % lanes else []
    b.store(x, found, (image, row, at), (1, rows, lanes), axes=(1, 2), masked=masked)
    return b.finish()
