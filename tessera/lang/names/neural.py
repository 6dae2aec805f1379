"""Functions of torch.nn.functional that are not ops: shuffles of pixels, windows as columns, distances,
bags.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require
from tessera.core.dtype import i64
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.accumulate import cumsum
from tessera.ops.contraction import einsum, matmul
from tessera.ops.define import ArrayLike, as_value, cast_to, floating, public
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    logical_and,
    maximum,
    mul,
    square,
    stop_gradient,
    sub,
)
from tessera.ops.elementwise import pow as pow_
from tessera.ops.gather import take
from tessera.ops.linalg import vector_norm
from tessera.ops.neural import embedding
from tessera.ops.random import gumbel
from tessera.ops.reduction import max as max_
from tessera.ops.reduction import mean
from tessera.ops.reduction import sum as sum_
from tessera.ops.shape import expand_dims, matrix_transpose, pad, reshape, swapaxes, transpose
from tessera.ops.softmax import softmax
from tessera.ops.windows import spatial, windows


@public
def linear(x: ArrayLike, w: ArrayLike, bias: ArrayLike = None) -> Value:
    """x @ w.mT + bias: w is (out, in), as PyTorch keeps it."""
    y = matmul(x, matrix_transpose(w))
    return y if bias is None else add(y, bias)


@public
def bilinear(x: ArrayLike, y: ArrayLike, w: ArrayLike, bias: ArrayLike = None) -> Value:
    """x[i] w[o, i, j] y[j] for every o: w is (out, in 1, in 2)."""
    out = einsum("...i,oij,...j->...o", x, w, y)
    return out if bias is None else add(out, bias)


@public
def pixel_shuffle(x: ArrayLike, factor: int) -> Value:
    """(..., c r^2, h, w) to (..., c, h r, w r): channels become pixels."""
    v = as_value(x)
    *front, c, h, w = _axes("pixel_shuffle", v, 3)
    _divides("pixel_shuffle", "channels", c, factor * factor)
    n = len(front)
    parts = reshape(v, (*front, c // factor**2, factor, factor, h, w))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return reshape(transpose(parts, order), (*front, c // factor**2, h * factor, w * factor))


@public
def pixel_unshuffle(x: ArrayLike, factor: int) -> Value:
    """(..., c, h r, w r) to (..., c r^2, h, w): pixels become channels."""
    v = as_value(x)
    *front, c, h, w = _axes("pixel_unshuffle", v, 3)
    _divides("pixel_unshuffle", "height", h, factor)
    _divides("pixel_unshuffle", "width", w, factor)
    n = len(front)
    parts = reshape(v, (*front, c, h // factor, factor, w // factor, factor))
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return reshape(transpose(parts, order), (*front, c * factor**2, h // factor, w // factor))


@public
def channel_shuffle(x: ArrayLike, groups: int) -> Value:
    """The channels, axis 1, of all groups in turn."""
    v = as_value(x)
    b, c, *rest = _axes("channel_shuffle", v, 2)
    _divides("channel_shuffle", "channels", c, groups)
    return reshape(swapaxes(reshape(v, (b, groups, c // groups, *rest)), 1, 2), v.shape)


def _axes(op: str, v: Value, least: int) -> Sequence[Any]:
    if v.ndim < least:
        raise ShapeError(f"{op}: x is {v.type}, expected {least} axes or more")
    return v.shape


def _divides(op: str, what: str, n: Any, by: int) -> None:
    if not require("divisible", n, by, f"{op}: the {what}"):
        raise ShapeError(f"{op}: {by} does not divide the {n} {what}")


@public
def unfold(x: ArrayLike, size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Value:
    """The windows of images (batch, channels, ...) as columns (batch, channels * window, windows)."""
    v = as_value(x)
    if v.ndim != 4:
        raise ShapeError(f"unfold: x is {v.type}, expected (batch, channels, height, width)")
    rows, columns = spatial("unfold", "padding", padding, 2, 0)
    padded = pad(v, ((0, 0), (0, 0), (rows, rows), (columns, columns)))
    cut = windows(padded, spatial("unfold", "size", size, 2, 1), stride, dilation)
    b, c, h, w, *window = cut.shape
    return reshape(transpose(cut, (0, 1, 4, 5, 2, 3)), (b, c * window[0] * window[1], h * w))


@public
def normalize(x: ArrayLike, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Value:
    """x divided by its p-norm along an axis, or by eps where that is larger."""
    v = floating(as_value(x))
    return div(v, maximum(vector_norm(v, axis=axis, keepdims=True, ord=p), eps))


@public
def pairwise_distance(
    x: ArrayLike, y: ArrayLike, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False
) -> Value:
    """The p-norm of x - y + eps along the last axis."""
    apart = add(sub(x, y), eps)
    return vector_norm(apart, axis=-1, keepdims=keepdims, ord=p)


@public
def pdist(x: ArrayLike, p: float = 2.0) -> Value:
    """The distances of all pairs of rows, (0, 1), (0, 2) ... (n - 2, n - 1)."""
    v = floating(as_value(x))
    if v.ndim != 2 or not isinstance(v.shape[0], int):
        raise ShapeError(f"pdist: x is {v.type}, expected a matrix with a known number of rows")
    i, j = np.triu_indices(v.shape[0], 1)
    return vector_norm(sub(take(v, i, 0), take(v, j, 0)), axis=-1, ord=p)


@public
def local_response_norm(
    x: ArrayLike, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Value:
    """x over (k + alpha times the mean of squares of `size` neighbouring channels) to the power beta."""
    v = floating(as_value(x))
    c = _axes("local_response_norm", v, 2)[1]
    width = [(0, 0)] * v.ndim
    width[1] = (size // 2, (size - 1) // 2)
    squares: Any = pad(square(v), tuple(width))
    terms = [squares[:, i : i + c] for i in range(size)]
    mean_ = mul(functools.reduce(add, terms), alpha / size)
    return div(v, pow_(add(mean_, k), beta))


@public
def embedding_bag(
    ids: ArrayLike, table: ArrayLike, mode: str = "mean", weights: ArrayLike = None
) -> Value:
    """The sums, means or maxima of the rows that each bag (batch, n) of ids names."""
    rows = embedding(table, ids)
    if weights is not None:
        if mode != "sum":
            raise OperandError(f"embedding_bag: weights go with mode 'sum', got mode {mode!r}")
        rows = mul(rows, expand_dims(cast_to(as_value(weights), rows.dtype), -1))
    folds = {"sum": sum_, "mean": mean, "max": max_}
    if mode not in folds:
        raise OperandError(f"embedding_bag: mode is {mode!r}, expected sum, mean or max")
    return folds[mode](rows, -2)


@public
def gumbel_softmax(
    key: Any, logits: ArrayLike, tau: float = 1.0, hard: bool = False, axis: int = -1
) -> Value:
    """A sample of a relaxed one-hot vector; hard: one-hot, with the slope of the relaxed one."""
    v = floating(as_value(logits))
    soft = softmax(div(add(v, gumbel(key, v.shape, dtype=v.dtype)), tau), axis)
    if not hard:
        return soft
    top = eq(soft, max_(soft, axis, True))
    first = cast_to(logical_and(top, eq(cumsum(cast_to(top, i64), axis % v.ndim), 1)), v.dtype)
    return add(first, sub(soft, stop_gradient(soft)))


@public
def adaptive_max_pool(x: ArrayLike, size: int | Sequence[int | None]) -> Value:
    """The largest element of each of `size` windows that cover the last axes evenly; None keeps an axis."""
    v = as_value(x)
    if isinstance(size, int) and v.ndim < 2:
        raise ShapeError(f"adaptive_max_pool: got {v.type}, expected (batch, channels, ...)")
    wanted = (size,) * max(v.ndim - 2, 1) if isinstance(size, int) else tuple(size)
    if len(wanted) > v.ndim:
        raise ShapeError(f"adaptive_max_pool: got {len(wanted)} sizes for {v.type}")
    for axis, n in enumerate(wanted, v.ndim - len(wanted)):
        v = v if n is None else _largest_of(v, n, axis)
    return v


def _largest_of(v: Value, n: int, axis: int) -> Value:
    """The largest of n windows along an axis; a window that is shorter than others repeats its last place."""
    have = v.shape[axis]
    if not isinstance(have, int) or n < 1 or have < 1:
        raise ShapeError(
            f"adaptive_max_pool: axis {axis} of {v.type} to {n} windows; expected a known size above 0 and "
            "one window or more"
        )
    k = np.arange(n)
    starts, ends = k * have // n, -(-(k + 1) * have // n)
    places = np.minimum(starts[:, None] + np.arange((ends - starts).max()), ends[:, None] - 1)
    picked = take(v, as_value(places.ravel()), axis=axis)
    split = reshape(picked, (*v.shape[:axis], *places.shape, *v.shape[axis + 1 :]))
    return max_(split, axis=axis + 1)
