"""Pooling: the largest, the mean or the norm of each sliding window of (batch, channels, ...).

Where several elements of a window are largest, max_pool shares the derivative among them, as max.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.errors import OperandError, ShapeError
from tessera.core.scalar import is_winner, with_zeros
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Sample
from tessera.ops.batching import merged
from tessera.ops.define import (
    ArrayLike,
    as_value,
    cast_to,
    define,
    floating,
    public,
    wide,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import div, pow
from tessera.ops.pool_grad import avg_pool_grad, max_pool_tangent
from tessera.ops.pool_windows import (
    held,
    held_reference,
    inside,
    lowest,
    pool_types,
    seen,
    seen_reference,
    settle,
)
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import mean
from tessera.ops.reduction import sum as sum_of
from tessera.ops.resize import static_size, weighted_sums
from tessera.ops.windows import spatial

_SAMPLES = (
    Sample((1, 2, 5), size=2), Sample((2, 1, 6), size=3, stride=2, padding=1),
    Sample((1, 1, 4, 5), size=(2, 3), stride=(1, 2)), Sample((0, 2, 4), size=2),
    Sample((1, 1, 5), size=2, ceil_mode=True), Sample((1, 1, 1), size=1),
)  # fmt: skip


# The largest


def _max_reference(x: Any, **p: Any) -> Any:
    fill = (
        -np.inf
        if x.dtype.kind not in "biu"
        else 0
        if x.dtype.kind in "bu"
        else np.iinfo(x.dtype).min
    )
    windows, axes = seen_reference(x, fill, p), inside(p)
    m = np.max(windows, axis=axes)
    if m.dtype.kind in "biu" or np.all(m):
        return m
    return with_zeros("max", m, np.any(is_winner("max", windows), axis=axes))


def _max_jvp(n: Node, ts: Sequence[Value | None]) -> Any:
    """On a GPU, an op that its kernels know; elsewhere what the decomposition says."""
    (t,) = ts
    if n.results[0].device.kind == "cpu" or t is None:
        return NotImplemented
    return max_pool_tangent.bind(n.operands[0], n.results[0], t, **n.params)


@define(
    infer=lambda types, p: pool_types("max_pool", types, p), kinds="uif", onnx="MaxPool", jvp=_max_jvp,
    decompose=lambda x, **p: max_of(seen(x, lowest(x.dtype), p), inside(p)), kernel="pool",
    numpy=_max_reference, samples=(*_SAMPLES, Sample((1, 1, 7), size=2, dilation=3)), batch=merged,
)  # fmt: skip
def max_pool(
    x: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    """The largest element of each window; the stride is the window's size unless given."""
    v, params = settle("max_pool", x, 0, size, stride, padding, dilation, ceil_mode)
    return max_pool.bind(v, **params)


# The mean


def _avg(x: Value, include_pad: bool, **p: Any) -> Value:
    (w,) = wide(x)
    total = sum_of(seen(w, 0, p), inside(p))
    return cast_to(div(total, held(w, p, include_pad)), x.dtype)


def _avg_reference(x: Any, include_pad: bool, **p: Any) -> Any:
    total = np.sum(seen_reference(x, 0, p), axis=inside(p))
    return total / held_reference(x, p, include_pad, total.shape[2:])


def _avg_jvp(n: Node, ts: Sequence[Value | None]) -> Any:
    """On a GPU the op is linear; elsewhere its decomposition is."""
    (t,) = ts
    if n.results[0].device.kind == "cpu" or t is None:
        return NotImplemented
    return avg_pool.bind(t, **n.params)


def _avg_transpose(n: Node, ct: Value, k: int) -> Value:
    return avg_pool_grad.bind(ct, sizes=n.operands[0].shape[2:], **n.params)


@define(
    infer=lambda types, p: pool_types("avg_pool", types, p), kinds="f", onnx="AveragePool",
    jvp=_avg_jvp, transpose=_avg_transpose, decompose=_avg, numpy=_avg_reference, batch=merged,
    kernel="pool",
    samples=(
        *_SAMPLES, Sample((1, 1, 5), size=3, padding=1, count_include_pad=False),
        Sample((1, 1, 6), size=3, stride=2, padding=1, ceil_mode=True),
    ),
)  # fmt: skip
def avg_pool(
    x: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """The mean of each window; padding counts as zeros, or not at all."""
    v, params = settle("avg_pool", x, 0, size, stride, padding, 1, ceil_mode)
    return avg_pool.bind(floating(v), **params, include_pad=bool(count_include_pad))


@public
def lp_pool(
    x: ArrayLike, size: Any, p: float = 2.0, stride: Any = None, ceil_mode: bool = False
) -> Value:
    """(sum of |x| ** p) ** (1 / p) over each window."""
    if not p > 0:
        raise OperandError(f"lp_pool: p is {p}, expected a positive number")
    v, params = settle(
        "lp_pool", floating(as_value(x, "lp_pool")), 0, size, stride, 0, 1, ceil_mode
    )
    total = sum_of(seen(pow(absolute(v), p), 0, params), inside(params))
    return pow(total, 1 / p)


# By number of spatial axes


def _checked(op: str, x: ArrayLike, rank: int) -> Value:
    v = as_value(x, op)
    if v.ndim != rank + 2:
        raise ShapeError(
            f"{op}: x is {v.type}, expected (batch, channels, ...) with {rank} spatial axes"
        )
    return v


@public
def max_pool1d(
    x: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    """max_pool over one spatial axis."""
    return max_pool(_checked("max_pool1d", x, 1), size, stride, padding, dilation, ceil_mode)


@public
def max_pool2d(
    x: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    """max_pool over two spatial axes."""
    return max_pool(_checked("max_pool2d", x, 2), size, stride, padding, dilation, ceil_mode)


@public
def max_pool3d(
    x: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    """max_pool over three spatial axes."""
    return max_pool(_checked("max_pool3d", x, 3), size, stride, padding, dilation, ceil_mode)


@public
def avg_pool1d(
    x: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """avg_pool over one spatial axis."""
    v = _checked("avg_pool1d", x, 1)
    return avg_pool(v, size, stride, padding, ceil_mode, count_include_pad)


@public
def avg_pool2d(
    x: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """avg_pool over two spatial axes."""
    v = _checked("avg_pool2d", x, 2)
    return avg_pool(v, size, stride, padding, ceil_mode, count_include_pad)


@public
def avg_pool3d(
    x: ArrayLike,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value:
    """avg_pool over three spatial axes."""
    v = _checked("avg_pool3d", x, 3)
    return avg_pool(v, size, stride, padding, ceil_mode, count_include_pad)


# Over all there is, and into a given number of windows


def _positions(op: str, x: ArrayLike) -> tuple[Value, tuple[int, ...]]:
    v = as_value(x, op)
    if v.ndim < 3:
        raise ShapeError(f"{op}: x is {v.type}, expected (batch, channels, ...)")
    return v, tuple(range(2, v.ndim))


@public
def global_avg_pool(x: ArrayLike, keepdims: bool = True) -> Value:
    """The mean of each channel over all its positions."""
    v, axes = _positions("global_avg_pool", x)
    return mean(v, axes, keepdims)


@public
def global_max_pool(x: ArrayLike, keepdims: bool = True) -> Value:
    """The largest element of each channel over all its positions."""
    v, axes = _positions("global_max_pool", x)
    return max_of(v, axes, keepdims)


@public
def adaptive_avg_pool(x: ArrayLike, size: Any) -> Value:
    """The means of `size` windows that cover each spatial axis as evenly as whole numbers allow."""
    v, axes = _positions("adaptive_avg_pool", x)
    y = floating(v)
    for axis, n in zip(axes, spatial("adaptive_avg_pool", "size", size, len(axes), 0), strict=True):
        y = weighted_sums(y, _adaptive_weights(static_size("adaptive_avg_pool", y, axis), n), axis)
    return y


def _adaptive_weights(n: int, made: int) -> Any:
    """Row i is the mean from floor(i * n / made) up to ceil((i + 1) * n / made)."""
    i, j = np.arange(made)[:, None], np.arange(n)
    start, stop = i * n // max(made, 1), -(-(i + 1) * n // max(made, 1))
    return ((j >= start) & (j < stop)) / np.maximum(stop - start, 1)


@public
def adaptive_avg_pool1d(x: ArrayLike, size: Any) -> Value:
    """adaptive_avg_pool over one spatial axis."""
    return adaptive_avg_pool(_checked("adaptive_avg_pool1d", x, 1), size)


@public
def adaptive_avg_pool2d(x: ArrayLike, size: Any) -> Value:
    """adaptive_avg_pool over two spatial axes."""
    return adaptive_avg_pool(_checked("adaptive_avg_pool2d", x, 2), size)


@public
def adaptive_avg_pool3d(x: ArrayLike, size: Any) -> Value:
    """adaptive_avg_pool over three spatial axes."""
    return adaptive_avg_pool(_checked("adaptive_avg_pool3d", x, 3), size)
