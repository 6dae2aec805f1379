"""Grid sampling: images (batch, channels, ...) read at places between their pixels.

A place is given by coordinates from -1 to 1, the last spatial axis first, as in PyTorch: with align_corners
-1 and 1 are the centres of the first and the last pixel, without, their outer edges.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tessera.core.constraints import unify
from tessera.core.dtype import i64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.arrange import linspace
from tessera.ops.contraction import matmul
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, broadcast, cast_to, public
from tessera.ops.elementwise import (
    abs,
    add,
    clip,
    eq,
    floor,
    ge,
    le,
    logical_and,
    mul,
    remainder,
    round,
    sub,
    where,
)
from tessera.ops.gather import gather
from tessera.ops.resize import static_size
from tessera.ops.shape import expand_dims, moveaxis, reshape, slice_, stack

MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
_A = -0.75  # of Keys' cubic kernel, as in resize


@public
def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
) -> Value:
    """x (batch, channels, ...) read at a grid (batch, ..., rank) of coordinates from -1 to 1."""
    v, g = as_value(x, "grid_sample"), as_value(grid, "grid_sample")
    _check(v, g, mode, padding)
    rank = v.ndim - 2
    sizes = [static_size("grid_sample", v, 2 + i) for i in range(rank)]
    places = [_coordinate(g, rank - 1 - i) for i in range(rank)]
    at = [_pixel(p, n, align_corners) for p, n in zip(places, sizes, strict=True)]
    if mode != "cubic":
        at = [_padded(p, n, padding, align_corners) for p, n in zip(at, sizes, strict=True)]
    taps = [_taps(p, mode) for p in at]
    out: Value | None = None
    for corner in itertools.product(*taps):
        indices, weight = [], None
        for (place, w), n in zip(corner, sizes, strict=True):
            if mode == "cubic":
                place = _padded(place, n, padding, align_corners)
            index, w = _index(place, w, n, padding)
            indices.append(index)
            weight = w if weight is None else mul(weight, w)
        part = _read(v, indices)
        part = part if weight is None else mul(part, expand_dims(weight, 1))
        out = part if out is None else add(out, part)
    assert out is not None, "a rank of at least one"
    return out


def _check(v: Value, g: Value, mode: str, padding: str) -> None:
    rank = v.ndim - 2
    for name, x, known in (("mode", mode, MODES), ("padding", padding, PADDINGS)):
        if x not in known:
            raise OperandError(
                f"grid_sample: {name} is {x!r}, expected {', '.join(map(repr, known))}"
            )
    if rank < 1 or g.ndim != v.ndim or not unify(g.shape[-1], rank, "grid_sample: the grid"):
        raise ShapeError(
            f"grid_sample: x is {v.type} and the grid {g.type}, expected (batch, channels, ...) and (batch, "
            "..., rank) "
            "of as many axes"
        )
    if not unify(g.shape[0], v.shape[0], "grid_sample: the batch"):
        raise ShapeError(
            f"grid_sample: x is {v.type} and the grid {g.type}, expected one size of the batch"
        )
    if v.dtype.kind != "f" or g.dtype is not v.dtype:
        raise DTypeError(
            f"grid_sample: x is {v.type} and the grid {g.type}, expected one floating-point dtype; cast "
            "with astype"
        )
    if 0 in v.shape[2:]:
        raise ShapeError(f"grid_sample: {v.type} has no pixels")


def _coordinate(g: Value, i: int) -> Value:
    starts = (*(0 for _ in range(g.ndim - 1)), i)
    return reshape(slice_(g, starts, (*g.shape[:-1], i + 1)), g.shape[:-1])


def _pixel(p: Value, n: int, corners: bool) -> Value:
    if corners:
        return mul(add(p, 1), (n - 1) / 2)
    return sub(mul(add(p, 1), n / 2), 0.5)


def _padded(p: Value, n: int, padding: str, corners: bool) -> Value:
    """A place that is brought inside by the border or by reflections."""
    if padding == "reflection":
        p = _reflected(p, n, corners)
    return p if padding == "zeros" else clip(p, 0, n - 1)


def _reflected(p: Value, n: int, corners: bool) -> Value:
    low, span = (0.0, float(n - 1)) if corners else (-0.5, float(n))
    if span == 0:
        return mul(p, 0)
    far = remainder(abs(sub(p, low)), 2 * span)
    return add(where(le(far, span), far, sub(2 * span, far)), low)


def _taps(p: Value, mode: str) -> list[tuple[Value, Value | None]]:
    """The neighbours of a place with their weights."""
    if mode == "nearest":
        return [(round(p), None)]
    first = floor(p)
    t = sub(p, first)
    if mode == "linear":
        return [(first, sub(1, t)), (add(first, 1), t)]
    return [(add(first, i), _keys(abs(sub(t, i)), far=i in (-1, 2))) for i in range(-1, 3)]


def _keys(d: Value, far: bool) -> Value:
    if far:
        return sub(mul(add(mul(sub(mul(d, _A), 5 * _A), d), 8 * _A), d), 4 * _A)
    return add(mul(mul(sub(mul(d, _A + 2), _A + 3), d), d), 1)


def _index(place: Value, weight: Value | None, n: int, padding: str) -> tuple[Value, Value | None]:
    """The pixel at a whole place, with a weight of zero where there is none and zeros are wanted."""
    if padding == "zeros":
        inside = cast_to(logical_and(ge(place, 0), le(place, n - 1)), place.dtype)
        weight = inside if weight is None else mul(weight, inside)
    safe = where(eq(place, place), place, 0)  # NaN is no place
    return cast_to(clip(safe, 0, n - 1), i64), weight


def _read(v: Value, indices: list[Value]) -> Value:
    """The channels of each image at its indices, channels second."""
    batch = reshape(_numbers(v.shape[0]), (v.shape[0], *(1 for _ in range(indices[0].ndim - 1))))
    rows = broadcast(batch, indices[0].shape)
    found = gather(v, rows, *indices, axes=(0, *range(2, v.ndim)))
    return moveaxis(found, -1, 1)


def _numbers(n: Any) -> Value:
    return iota((n,), 0)


@public
def affine_grid(theta: ArrayLike, shape: Any, align_corners: bool = False) -> Value:
    """The grid for grid_sample that moves images of a shape by matrices (batch, rank, rank + 1)."""
    t = as_value(theta, "affine_grid")
    sizes = [int(n) for n in tuple(shape)[2:]]
    rank = len(sizes)
    if t.ndim != 3 or not all(
        unify(t.shape[1 + i], rank + i, "affine_grid: theta") for i in range(2)
    ):
        raise ShapeError(
            f"affine_grid: theta is {t.type}, expected (batch, {rank}, {rank + 1}) for images of {rank} axes"
        )
    axes = []
    for n in sizes:
        edge = 1.0 if align_corners else 1 - 1 / n
        axes.append(linspace(-edge, edge, n, dtype=t.dtype))
    base = []
    for i in reversed(range(rank)):
        ones = [1] * rank
        ones[i] = sizes[i]
        base.append(broadcast(reshape(axes[i], tuple(ones)), tuple(sizes)))
    base.append(add(mul(base[0], 0), 1))
    points = reshape(stack(base, axis=-1), (math.prod(sizes), rank + 1))
    moved = matmul(points, moveaxis(t, 1, 2))
    return reshape(moved, (t.shape[0], *sizes, rank))
