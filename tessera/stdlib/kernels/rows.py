"""Kernels on rows: softmax and the norms, forward and backward.

A row is one tile, so its sums have the order of the policy whatever rows share a block.  Sums over rows are
chains within stretches of a fixed length, which a second pass adds up.
"""

from __future__ import annotations

import math

from tessera.core.dtype import f32
from tessera.lang import tile
from tessera.lang.kernel.decorate import kernel
from tessera.lang.kernel.signature import KTile

STRETCH = 256  # rows whose sums are one chain


def wide(x):
    """A tile in the precision that it is computed in."""
    return tile.cast(x, f32) if x.dtype.bits < 32 else x


@kernel
def softmax(x: KTile["M", "D"]):
    row = wide(tile.load(x))
    e = tile.exp(row - tile.max(row, axis=1, keepdims=True))
    return tile.cast(e * (1 / tile.sum(e, axis=1, keepdims=True)), x.dtype)


@kernel
def softmax_back(y: KTile["M", "D"], ct: KTile["M", "D"]):
    p, c = wide(tile.load(y)), wide(tile.load(ct))
    return tile.cast(p * (c - tile.sum(p * c, axis=1, keepdims=True)), y.dtype)


@kernel
def layernorm(x: KTile["M", "D"], gain: KTile["D"], bias: KTile["D"], *, eps: float, stats: bool):
    row = wide(tile.load(x))
    mean = tile.mean(row, axis=1)
    centred = row - mean[:, None]
    rate = tile.rsqrt(tile.mean(centred * centred, axis=1) + eps)
    y = scaled(centred * rate[:, None], gain, bias)
    return (tile.cast(y, x.dtype), mean, rate) if stats else tile.cast(y, x.dtype)


@kernel
def rmsnorm(x: KTile["M", "D"], gain: KTile["D"], *, eps: float, stats: bool):
    row = wide(tile.load(x))
    rate = tile.rsqrt(tile.mean(row * row, axis=1) + eps)
    y = scaled(row * rate[:, None], gain, None)
    return (tile.cast(y, x.dtype), rate) if stats else tile.cast(y, x.dtype)


def scaled(y, gain, bias):
    """y * gain + bias, of those that are given."""
    if gain is not None:
        y = y * wide(tile.load(gain))
    return y if bias is None else y + wide(tile.load(bias))


@kernel
def norm_back(
    x: KTile["M", "D"], mean: KTile["M"], rate: KTile["M"], gain: KTile["D"], ct: KTile["M", "D"],
    *, sums: bool,
):  # fmt: skip
    """The cotangent of x, and for each stretch of rows the sums of those of gain and bias.

    Without a mean it is that of rmsnorm.
    """
    stretches = (x.shape[0] + STRETCH - 1) // STRETCH
    first = tile.program(stretches) * STRETCH
    count = math.gcd(tile.context().m, STRETCH)
    dx, ones = tile.empty(x.shape, x.dtype), tile.ones((1, count), rate.dtype)
    dgain = tile.zeros((1, x.shape[1]), rate.dtype)
    dbias = dgain
    for mb in tile.range_m(x.shape, count, start=first, stop=first + STRETCH):
        c, r = wide(tile.load(ct, mb)), tile.load(rate, mb)[:, None]
        hat = wide(tile.load(x, mb))
        if mean is not None:
            hat = hat - tile.load(mean, mb)[:, None]
        hat = hat * r
        g = c if gain is None else c * wide(tile.load(gain))
        along = hat * tile.mean(g * hat, axis=1, keepdims=True)
        if mean is not None:
            along = along + tile.mean(g, axis=1, keepdims=True)
        tile.store(dx, tile.cast((g - along) * r, x.dtype), mb)
        if sums:
            dgain, dbias = tile.dot(ones, c * hat, dgain), tile.dot(ones, c, dbias)
    if not sums:
        return dx
    parts = tile.empty((2, stretches, x.shape[1]), rate.dtype)
    tile.store(parts, dgain[None], at=(0, first // STRETCH, 0))
    tile.store(parts, dbias[None], at=(1, first // STRETCH, 0))
    return dx, parts
