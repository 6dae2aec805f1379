"""Pooling: the largest, the mean or the norm of each sliding window of (batch, channels, ...).

Where several elements of a window are largest, max_pool shares the derivative among them, as max.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import same
from tessera.core.dims import Dim, Size, larger, product, smaller
from tessera.core.dtype import DType
from tessera.core.errors import OperandError, ShapeError
from tessera.core.scalar import is_winner, with_zeros
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.batching import merged
from tessera.ops.convolution import Pairs, padding_pairs
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    public,
    wide,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import add, div, maximum, minimum, mul, pow, sub
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import mean
from tessera.ops.reduction import sum as sum_of
from tessera.ops.resize import static_size, weighted_sums
from tessera.ops.shape import pad, reshape
from tessera.ops.windows import count, reach, spatial, window_reference, windows

_SAMPLES = (
    Sample((1, 2, 5), size=2), Sample((2, 1, 6), size=3, stride=2, padding=1),
    Sample((1, 1, 4, 5), size=(2, 3), stride=(1, 2)), Sample((0, 2, 4), size=2),
    Sample((1, 1, 5), size=2, ceil_mode=True), Sample((1, 1, 1), size=1),
)  # fmt: skip


def _settle(
    op: str,
    x: ArrayLike,
    rank: int,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
) -> tuple[Value, dict[str, Any]]:
    """x and the parameters of its windows.

    overhang is what ceil_mode puts after the padding, so that a last window that starts in x or in
    the padding before it, but does not fit, counts too.
    """
    v = as_value(x, op)
    rank = rank or v.ndim - 2
    if v.ndim != rank + 2 or rank < 1:
        raise ShapeError(
            f"{op}: x is {v.type}, expected (batch, channels, ...) with {max(rank, 0) or 'some'} spatial axes"
        )
    sizes = spatial(op, "size", size, rank, 1)
    steps = sizes if stride is None else spatial(op, "stride", stride, rank, 1)
    gaps = spatial(op, "dilation", dilation, rank, 1)
    spans = [reach(k, d) for k, d in zip(sizes, gaps, strict=True)]
    pairs = padding_pairs(op, padding, v.shape[2:], spans, steps)
    for (a, b), span in zip(pairs, spans, strict=True):
        if not isinstance(a, Dim) and not isinstance(b, Dim) and max(a, b) >= span:
            raise OperandError(
                f"{op}: padding {(a, b)} must be smaller than the window, which spans {span}"
            )
    extra = tuple(
        _overhang(n, p, span, s) if ceil else 0
        for n, p, span, s in zip(v.shape[2:], pairs, spans, steps, strict=True)
    )
    params = {"size": sizes, "stride": steps, "padding": pairs, "overhang": extra}
    return v, {**params, "dilation": gaps}


def _overhang(n: Size, padding: tuple[Size, Size], span: Size, stride: Size) -> Size:
    low, high = padding
    rest = low + n + high - span
    last = smaller((rest + stride - 1) // stride, (n + low - 1) // stride)
    return larger(last * stride - rest, 0)


def _pool_types(op: str, types: Types, p: Params) -> list[TensorType]:
    t = types[0]
    sizes = []
    for i, n in enumerate(t.shape[2:]):
        low, high = p["padding"][i]
        long = low + n + high + p["overhang"][i]
        sizes.append(count(op, i, long, p["size"][i], p["stride"][i], p["dilation"][i]))
    return [t.with_shape((*t.shape[:2], *sizes))]


def _ends(padding: Pairs, overhang: Sequence[Size]) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """What goes before and after each of the axes."""
    high = tuple(b + more for (_, b), more in zip(padding, overhang, strict=True))
    return (0, 0, *(a for a, _ in padding)), (0, 0, *high)


def _seen(x: Value, fill: Any, p: Params) -> Value:
    """The windows of x, with a fill around it."""
    low, high = _ends(p["padding"], p["overhang"])
    if any(not isinstance(n, int) or n for n in (*low, *high)):
        value = full_of((), fill, x.dtype)
        x = pad.bind(x, value, low=low, high=high, inner=(0,) * x.ndim)
    return windows.bind(x, size=p["size"], stride=p["stride"], dilation=p["dilation"])


def _seen_reference(x: Any, fill: Any, p: Params) -> Any:
    ends: Any = _ends(p["padding"], p["overhang"])
    if any(map(any, ends)):
        x = np.pad(x, list(zip(*ends, strict=True)), constant_values=fill)
    return window_reference(x, p["size"], p["stride"], p["dilation"])


def _inside(p: Params) -> tuple[int, ...]:
    """The axes of the windows that count the elements of one window."""
    rank = len(p["size"])
    return tuple(range(2 + rank, 2 + 2 * rank))


# The largest


def _lowest(dtype: DType) -> Any:
    """What no element is below."""
    if dtype.kind == "f":
        return float("-inf")
    return 0 if dtype.kind in "bu" else -(2 ** (dtype.bits - 1))


def _max_reference(x: Any, **p: Any) -> Any:
    fill = (
        -np.inf
        if x.dtype.kind not in "biu"
        else 0
        if x.dtype.kind in "bu"
        else np.iinfo(x.dtype).min
    )
    seen, axes = _seen_reference(x, fill, p), _inside(p)
    m = np.max(seen, axis=axes)
    if m.dtype.kind in "biu" or np.all(m):
        return m
    return with_zeros("max", m, np.any(is_winner("max", seen), axis=axes))


@define(
    infer=lambda types, p: _pool_types("max_pool", types, p), kinds="uif", onnx="MaxPool",
    decompose=lambda x, **p: max_of(_seen(x, _lowest(x.dtype), p), _inside(p)),
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
    v, params = _settle("max_pool", x, 0, size, stride, padding, dilation, ceil_mode)
    return max_pool.bind(v, **params)


# The mean


def _held(x: Value, p: Params, include: bool) -> Value | Size:
    """How many elements each window holds: those of x, and of the padding if it is included."""
    if include and all(same(n, 0) for n in p["overhang"]):
        return product(p["size"])
    places = _pool_types("avg_pool", [x.type], p)[0].shape
    total: Value | None = None
    for i, n in enumerate(x.shape[2:]):
        low, high = p["padding"][i]
        start = sub(mul(iota((places[2 + i],)), p["stride"][i]), low)
        stop = minimum(add(start, p["size"][i]), n + high if include else n)
        held = sub(stop, start if include else maximum(start, 0))
        shape = (*(1,) * i, places[2 + i], *(1,) * (len(places) - 3 - i))
        along = broadcast(reshape(held, shape), places[2:])
        total = along if total is None else mul(total, along)
    assert total is not None
    return broadcast(cast_to(total, x.dtype), places)


def _held_reference(x: Any, p: Params, include: bool, places: Sequence[int]) -> Any:
    total: Any = 1
    for i, n in enumerate(x.shape[2:]):
        low, high = p["padding"][i]
        start = np.arange(places[i]) * p["stride"][i] - low
        stop = np.minimum(start + p["size"][i], n + high if include else n)
        held = stop - (start if include else np.maximum(start, 0))
        total = total * held.reshape(-1, *(1,) * (len(places) - 1 - i))
    return total.astype(x.dtype)


def _avg(x: Value, include_pad: bool, **p: Any) -> Value:
    (w,) = wide(x)
    total = sum_of(_seen(w, 0, p), _inside(p))
    return cast_to(div(total, _held(w, p, include_pad)), x.dtype)


def _avg_reference(x: Any, include_pad: bool, **p: Any) -> Any:
    total = np.sum(_seen_reference(x, 0, p), axis=_inside(p))
    return total / _held_reference(x, p, include_pad, total.shape[2:])


@define(
    infer=lambda types, p: _pool_types("avg_pool", types, p), kinds="f", onnx="AveragePool",
    decompose=_avg, numpy=_avg_reference, batch=merged,
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
    v, params = _settle("avg_pool", x, 0, size, stride, padding, 1, ceil_mode)
    return avg_pool.bind(floating(v), **params, include_pad=bool(count_include_pad))


@public
def lp_pool(
    x: ArrayLike, size: Any, p: float = 2.0, stride: Any = None, ceil_mode: bool = False
) -> Value:
    """(sum of |x| ** p) ** (1 / p) over each window."""
    if not p > 0:
        raise OperandError(f"lp_pool: p is {p}, expected a positive number")
    v, params = _settle(
        "lp_pool", floating(as_value(x, "lp_pool")), 0, size, stride, 0, 1, ceil_mode
    )
    total = sum_of(_seen(pow(absolute(v), p), 0, params), _inside(params))
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
