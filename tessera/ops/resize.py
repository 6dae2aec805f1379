"""Resize: images and signals (batch, channels, ...) at other spatial sizes.

Interpolation is separable and linear, so that each axis is one product with a matrix of weights
that is made on the host from its two sizes; derivatives follow from the product.

Where an output element reads: with align_corners, i * (n - 1) / (made - 1), so that first and last
elements stay; without, (i + 1/2) / scale - 1/2, so that areas stay; nearest reads floor(i / scale).
The scale is made / n, or the one that was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.core.dims import Dim
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value, concrete
from tessera.ops.contraction import contract
from tessera.ops.define import ArrayLike, as_value, cast_to, floating, letters, public
from tessera.ops.gather import gather
from tessera.ops.shape import moveaxis
from tessera.ops.windows import spatial


def static_size(op: str, x: Value, axis: int) -> int:
    """The size of an axis, which must be a number."""
    n = x.shape[axis]
    if isinstance(n, Dim):
        raise ShapeError(
            f"{op}: axis {axis} of {x.type} is symbolic, but its weights need a number; give the axis "
            "a number in the annotation"
        )
    return int(n)


def weighted_sums(x: Value, weights: Any, axis: int) -> Value:
    """x with its elements along an axis replaced by weighted sums of them."""
    names = letters(x.ndim)
    out = ["w" if i == axis else a for i, a in enumerate(names)]
    spec = f"{' '.join(names)}, w {names[axis]} -> {' '.join(out)}"
    return contract(spec, x, cast_to(concrete(np.asarray(weights, np.float64)), x.dtype))


def _places(n: int, made: int, scale: float, corners: bool) -> Any:
    i = np.arange(made, dtype=np.float64)
    if corners:
        return i * ((n - 1) / (made - 1) if made > 1 else 0.0)
    return (i + 0.5) / scale - 0.5


def _linear(at: Any, n: int) -> Any:
    """Weights of both neighbours; beyond an end, that end."""
    at = np.clip(at, 0, n - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(n)))


def _cubic(at: Any, n: int, a: float = -0.75) -> Any:
    """Weights of four neighbours by Keys' kernel; beyond an end, that end again."""
    first = np.floor(at).astype(int)
    weights = np.zeros((len(at), n))
    for step in range(-1, 3):
        d = np.abs(at - (first + step))
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        value = np.where(d <= 1, near, np.where(d < 2, far, 0.0))
        np.add.at(weights, (np.arange(len(at)), np.clip(first + step, 0, n - 1)), value)
    return weights


_KERNELS: dict[str, Callable[[Any, int], Any]] = {"linear": _linear, "cubic": _cubic}


@public
def resize(
    x: ArrayLike,
    size: Any = None,
    scale: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Value:
    """x (batch, channels, ...) at other spatial sizes, given as sizes or as a scale.

    mode is "nearest", "linear" (over every spatial axis: bilinear for images) or "cubic".
    """
    v = as_value(x, "resize")
    if mode != "nearest" and mode not in _KERNELS:
        raise OperandError(f"resize: mode is {mode!r}, expected 'nearest', 'linear' or 'cubic'")
    if mode == "nearest" and align_corners:
        raise OperandError("resize: align_corners has no meaning for mode 'nearest'")
    if v.ndim < 3:
        raise ShapeError(f"resize: x is {v.type}, expected (batch, channels, ...)")
    if (size is None) == (scale is None):
        raise OperandError("resize: give either size or scale")
    rank = v.ndim - 2
    sizes = None if size is None else spatial("resize", "size", size, rank, 1)
    scales = None if scale is None else _scales(scale, rank)
    y = v if mode == "nearest" else floating(v)
    for i in range(rank):
        n = static_size("resize", v, 2 + i)
        if n == 0:
            raise ShapeError(f"resize: axis {2 + i} of {v.type} is empty")
        made = sizes[i] if sizes is not None else math.floor(n * scales[i])  # type: ignore[index]
        ratio = scales[i] if scales is not None else made / n
        if made == n and ratio == 1:
            continue
        y = _resized(y, 2 + i, n, made, ratio, mode, align_corners)
    return y


def _scales(scale: Any, rank: int) -> tuple[float, ...]:
    given = tuple(scale) if isinstance(scale, tuple | list) else (scale,) * rank
    if len(given) != rank or not all(isinstance(s, int | float) and s > 0 for s in given):
        raise OperandError(
            f"resize: scale is {scale!r}, expected a positive number or one for each of {rank} axes"
        )
    return tuple(float(s) for s in given)


def _resized(
    x: Value, axis: int, n: int, made: int, scale: float, mode: str, corners: bool
) -> Value:
    if mode == "nearest":
        places = np.floor(np.arange(made) / scale)
        index = np.clip(places, 0, n - 1).astype(np.int64)
        return moveaxis(gather(x, concrete(index), axes=(axis,)), 0, axis)
    weights = _KERNELS[mode](_places(n, made, scale, corners), n)
    return weighted_sums(x, weights, axis)


@public
def interpolate(
    x: ArrayLike,
    size: Any = None,
    scale: Any = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Value:
    """resize under its other name."""
    return resize(x, size, scale, mode, align_corners)
