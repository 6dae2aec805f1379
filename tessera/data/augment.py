"""Augmentations of batches of images (batch, channels, height, width), each sample by a key of its own.

They are written with ops: they run in jit, on any device, and have derivatives.  A sample is changed by its
key alone, so that batches may be cut as they like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.core.blame import brief
from tessera.core.errors import OperandError, ShapeError
from tessera.lang import op
from tessera.lang.vmap import vmap
from tessera.ops.define import as_value, public
from tessera.ops.random_bits import split as _split

_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


def _images(name: str, keys: Any, x: Any) -> Any:
    v = as_value(x, name)
    if v.ndim != 4:
        raise ShapeError(f"{name}: x is {v.type}, expected (batch, channels, height, width)")
    k = as_value(keys, name)
    if k.ndim != 2 or k.dtype.name != "u32" or k.shape[1] != 2:
        raise OperandError(
            f"{name}: the keys are {k.type}, expected u32[{v.shape[0]},2], one key for each image; use "
            "ts.split(key, n)"
        )
    return v


def _each(f: Callable[[Any, Any], Any], keys: Any, x: Any) -> Any:
    return vmap(f)(keys, x)


@public
def flip(keys: Any, x: Any, p: float = 0.5, axis: int = -1) -> Any:
    """Images mirrored along an axis with probability p."""
    v = _images("flip", keys, x)
    return _each(
        lambda k, y: op.where(op.random.bernoulli(k, p, ()), op.flip(y, axis=axis), y), keys, v
    )


@public
def crop(keys: Any, x: Any, size: int | Sequence[int], padding: int = 0) -> Any:
    """A part of each image, of this height and width, at a random place, after padding with zeros."""
    v = _images("crop", keys, x)
    high, wide = (size, size) if isinstance(size, int) else size
    if padding:
        v = op.pad(v, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    room = v.shape[2] - high, v.shape[3] - wide
    if min(room) < 0:
        raise ShapeError(
            f"crop: size is {high} by {wide}, more than images of {v.shape[2]} by {v.shape[3]}; use padding="
        )

    def one(k: Any, y: Any) -> Any:
        ks = _keys(k, 2)
        at = [op.random.randint(ks[i], (), 0, room[i] + 1) for i in range(2)]
        return op.dynamic_slice(y, (0, at[0], at[1]), (y.shape[0], high, wide))

    return _each(one, keys, v)


def _keys(key: Any, n: int) -> Any:
    return _split(key, n)


def _factor(k: Any, amount: float, dtype: Any) -> Any:
    if amount == 0:
        return op.full((), 1.0, dtype)
    return op.cast(op.random.uniform(k, (), max(0.0, 1 - amount), 1 + amount), dtype)


@public
def brightness(keys: Any, x: Any, amount: float) -> Any:
    """Images multiplied by a number between 1 - amount and 1 + amount."""
    return _each(lambda k, y: y * _factor(k, amount, y.dtype), keys, _images("brightness", keys, x))


def _grey(y: Any) -> Any:
    if y.shape[0] == 1:
        return y
    if y.shape[0] != 3:
        raise ShapeError(f"saturation: images have {y.shape[0]} channels, expected 1 or 3")
    return sum(c * y[i : i + 1] for i, c in enumerate(_LUMA))


@public
def contrast(keys: Any, x: Any, amount: float) -> Any:
    """Images whose distance from their mean is multiplied by a number between 1 - amount and 1 + amount."""

    def one(k: Any, y: Any) -> Any:
        mean = op.mean(_grey(y) if y.shape[0] == 3 else y)
        return mean + (y - mean) * _factor(k, amount, y.dtype)

    return _each(one, keys, _images("contrast", keys, x))


@public
def saturation(keys: Any, x: Any, amount: float) -> Any:
    """Images whose distance from grey is multiplied by a number between 1 - amount and 1 + amount."""

    def one(k: Any, y: Any) -> Any:
        grey = _grey(y)
        return grey + (y - grey) * _factor(k, amount, y.dtype)

    return _each(one, keys, _images("saturation", keys, x))


@public
def cutout(keys: Any, x: Any, size: int) -> Any:
    """Images with a square of zeros of this size around a random pixel."""

    def one(k: Any, y: Any) -> Any:
        ks, inside = _keys(k, 2), []
        for i in range(2):
            n = y.shape[1 + i]
            start = op.random.randint(ks[i], (), 0, n) - size // 2
            place = op.arange(n)
            inside.append(op.logical_and(place >= start, place < start + size))
        hidden = op.logical_and(op.expand_dims(inside[0], 1), op.expand_dims(inside[1], 0))
        return op.where(hidden, op.cast(0.0, y.dtype), y)

    return _each(one, keys, _images("cutout", keys, x))


@public
def affine(
    keys: Any,
    x: Any,
    rotate: float = 0.0,
    scale: float = 0.0,
    translate: float = 0.0,
    padding: str = "zeros",
) -> Any:
    """Images turned by up to `rotate` degrees, scaled by up to 1 +- scale, moved by up to a share of their
    size.
    """
    v = _images("affine", keys, x)

    def matrix(k: Any) -> Any:
        ks = _keys(k, 4)
        turn = op.random.uniform(ks[0], (), -rotate, rotate) if rotate else op.full((), 0.0)
        turn = turn * (math.pi / 180)
        s = 1 / op.random.uniform(ks[1], (), 1 - scale, 1 + scale) if scale else op.full((), 1.0)
        move = [
            op.random.uniform(ks[2 + i], (), -2 * translate, 2 * translate)
            if translate
            else op.full((), 0.0)
            for i in range(2)
        ]
        ratio = v.shape[2] / v.shape[3]
        c, d = op.cos(turn) * s, op.sin(turn) * s
        return op.stack([op.stack([c, -d * ratio, move[0]]), op.stack([d / ratio, c, move[1]])])

    grid = op.affine_grid(vmap(matrix)(as_value(keys, "affine")), v.shape)
    return op.grid_sample(v, op.cast(grid, v.dtype), padding=padding)


@public
def normalize(x: Any, mean: Any, deviation: Any) -> Any:
    """(x - mean) / deviation, with a number for each channel of (batch, channels, ...)."""
    v = as_value(x, "normalize")
    for name, given in (("mean", mean), ("deviation", deviation)):
        if not hasattr(given, "__len__") or len(given) != v.shape[1]:
            raise OperandError(
                f"normalize: {name} is {brief(given, 40)}, expected {v.shape[1]} numbers, one for each "
                "channel"
            )
    shape = (-1, *(1 for _ in range(v.ndim - 2)))
    m, d = (
        op.reshape(op.cast(op.stack([*map(_number, y)]), v.dtype), shape) for y in (mean, deviation)
    )
    return (v - m) / d


def _number(x: Any) -> Any:
    return as_value(x, "normalize")
