"""Normalisation per channel: batchnorm, groupnorm, instancenorm on (batch, channels, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require
from tessera.core.dims import Size, product
from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote_all
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.batching import Mask, all_in_front, merged, shifted
from tessera.ops.cutting import first_axis
from tessera.ops.define import (
    ArrayLike,
    as_value,
    axis_of,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    letters,
    public,
    wide,
)
from tessera.ops.elementwise import add, mul, rsqrt, sub
from tessera.ops.normalization import layernorm
from tessera.ops.reduction import mean as mean_of
from tessera.ops.reduction import var as variance
from tessera.ops.shape import moveaxis, reshape, transpose

Tangents = Sequence[Value | None]


def _channels(p: Value, x: Value, axis: int) -> Value:
    """One number per channel, spread over x."""
    shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    return broadcast(reshape(p, shape), x.shape)


def _parameters(op: str, x: ArrayLike, *given: ArrayLike) -> list[Value]:
    """x and the parameters in one dtype."""
    values = [floating(as_value(p, op)) for p in (x, *given)]
    dtype = promote_all([v.dtype for v in values])
    return [cast_to(v, dtype) for v in values]


def _with_gain(x: ArrayLike, axis: int, gain: ArrayLike, bias: ArrayLike) -> list[ArrayLike]:
    """gain and bias as far as they are given; a bias alone gets a gain of ones."""
    if gain is None and bias is not None:
        v = floating(as_value(x))
        gain = full_of((v.shape[axis],), 1, v.dtype)
    return [p for p in (gain, bias) if p is not None]


def _channel_signature(types: Types, p: Params) -> str:
    names = letters(types[0].rank)
    rows, channel = " ".join(names), names[p["axis"]]
    return f"{rows}{f', {channel}' * (len(types) - 1)} -> {rows}"


def _batchnorm(x: Value, mean: Value, var: Value, *params: Value, axis: int, eps: float) -> Value:
    w, m, v, *ps = wide(x, mean, var, *params)
    scale = rsqrt(add(v, eps))
    y = mul(sub(w, _channels(m, w, axis)), _channels(scale, w, axis))
    if ps:
        y = mul(y, _channels(ps[0], y, axis))
    return cast_to(add(y, _channels(ps[1], y, axis)) if len(ps) > 1 else y, x.dtype)


def _batchnorm_reference(x: Any, mean: Any, var: Any, *params: Any, axis: int, eps: float) -> Any:
    shape = [n if i == axis else 1 for i, n in enumerate(x.shape)]
    m, v, *ps = (p.reshape(shape) for p in (mean, var, *params))
    y = (x - m) / np.sqrt(v + x.dtype.type(eps))
    if ps:
        y = y * ps[0]
    return y + ps[1] if len(ps) > 1 else y


def _batchnorm_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """Parameters of their own for each element: its channels are channels beside the others'."""
    if not any(batched[1:]):
        return batchnorm.bind(*operands, **shifted(n.params))
    x, *params = all_in_front(operands, batched)
    a = n.params["axis"] + 1
    front = transpose(x, (0, a, *(i for i in range(1, x.ndim) if i != a)))
    wide_x = reshape(front, (front.shape[0] * front.shape[1], *front.shape[2:]))
    flat = [reshape(p, (wide_x.shape[0],)) for p in params]
    y = reshape(batchnorm.bind(wide_x, *flat, **{**n.params, "axis": 0}), front.shape)
    return moveaxis(y, 1, a)


@define(
    signature=_channel_signature, kinds="f", decompose=_batchnorm, numpy=_batchnorm_reference,
    batch=_batchnorm_batch,
    onnx="BatchNormalization", domain=(0.5, 2.0),
    samples=(
        Sample((2, 3), (3,), (3,)), Sample((2, 3, 4), (3,), (3,), (3,), (3,)),
        Sample((2, 3), (2,), (2,), (2,), axis=0), Sample((0, 3), (3,), (3,)),
    ),
)  # fmt: skip
def batchnorm(
    x: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    gain: ArrayLike = None,
    bias: ArrayLike = None,
    axis: int = 1,
    eps: float = 1e-5,
) -> Value:
    """(x - mean) / sqrt(var + eps) * gain + bias with statistics given for each channel."""
    operands = _parameters("batchnorm", x, mean, var, *_with_gain(x, axis, gain, bias))
    k = axis_of("batchnorm", axis, operands[0].ndim)
    return batchnorm.bind(*operands, axis=k, eps=float(eps))


@public
def batchnorm_train(
    x: ArrayLike,
    gain: ArrayLike = None,
    bias: ArrayLike = None,
    axis: int = 1,
    eps: float = 1e-5,
) -> tuple[Value, Value, Value]:
    """batchnorm by the statistics of this batch: the result, and its mean and variance.

    The variance divides by the count; correct it by n / (n - 1) for a running estimate.
    """
    v = floating(as_value(x, "batchnorm_train"))
    k = axis_of("batchnorm_train", axis, v.ndim)
    rest = tuple(i for i in range(v.ndim) if i != k)
    (w,) = wide(v)
    m, s = mean_of(w, rest), variance(w, rest)
    y = batchnorm(w, m, s, gain, bias, k, eps)
    return tuple(cast_to(r, v.dtype) for r in (y, m, s))  # type: ignore[return-value]


def _groupnorm(x: Value, *params: Value, groups: Any, eps: float) -> Value:
    """A group is one row, and its channels are pieces of it."""
    w, *ps = wide(x, *params)
    each, places = w.shape[1] // groups, product(w.shape[2:])
    rows = reshape(w, (w.shape[0], groups, each * places))
    y = reshape(layernorm(rows, axis=2, eps=eps), (w.shape[0], groups, each, places))
    gain, bias = (*(reshape(p, (groups, each, 1)) for p in ps), None, None)[:2]
    y = y if gain is None else mul(y, broadcast(gain, y.shape))
    y = y if bias is None else add(y, broadcast(bias, y.shape))
    return reshape(cast_to(y, x.dtype), x.shape)


def _groupnorm_reference(x: Any, *params: Any, groups: int, eps: float) -> Any:
    inner = x.reshape(x.shape[0], groups, -1) if x.size else x.reshape(x.shape[0], groups, 0)
    count = x.dtype.type(max(inner.shape[-1], 1))
    c = inner - inner.sum(-1, keepdims=True) / count
    y = (c / np.sqrt((c * c).sum(-1, keepdims=True) / count + x.dtype.type(eps))).reshape(x.shape)
    shape = [1, x.shape[1], *[1] * (x.ndim - 2)]
    if params:
        y = y * params[0].reshape(shape)
    return y + params[1].reshape(shape) if len(params) > 1 else y


def _groupnorm_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """With parameters of its own each element has groups of its own."""
    if not any(batched[1:]):
        return merged(n, operands, batched)
    x, *params = all_in_front(operands, batched)
    front = moveaxis(x, 0, 1)
    channels = front.shape[1] * front.shape[2]
    flat = [reshape(p, (channels,)) for p in params]
    y = groupnorm.bind(
        reshape(front, (front.shape[0], channels, *front.shape[3:])), *flat,
        **{**n.params, "groups": x.shape[0] * n.params["groups"]},
    )  # fmt: skip
    return moveaxis(reshape(y, front.shape), 1, 0)


@define(
    signature=lambda types, p: _channel_signature(types, {"axis": 1}), kinds="f",
    decompose=_groupnorm, numpy=_groupnorm_reference, onnx="GroupNormalization",
    batch=_groupnorm_batch, factors=first_axis,
    samples=(
        Sample((2, 4), groups=2), Sample((2, 4, 3), groups=2, gain=(4,), bias=(4,)),
        Sample((2, 4, 3), groups=4, gain=(4,)), Sample((0, 4), groups=2),
    ),
)  # fmt: skip
def groupnorm(
    x: ArrayLike,
    groups: Size,
    gain: ArrayLike = None,
    bias: ArrayLike = None,
    eps: float = 1e-5,
) -> Value:
    """layernorm over each group of channels with its positions, times gain plus bias per channel."""
    operands = _parameters("groupnorm", x, *_with_gain(x, 1, gain, bias))
    v = operands[0]
    if v.ndim < 2:
        raise ShapeError(f"groupnorm: {v.type} has no channels; expected (batch, channels, ...)")
    if isinstance(groups, int) and groups < 1:
        raise OperandError(f"groupnorm: groups is {groups}, expected at least 1")
    if not require("divisible", v.shape[1], groups, "groupnorm: the channels"):
        raise ShapeError(
            f"groupnorm: {groups} groups do not divide the {v.shape[1]} channels of {v.type}"
        )
    return groupnorm.bind(*operands, groups=groups, eps=float(eps))


@public
def instancenorm(
    x: ArrayLike, gain: ArrayLike = None, bias: ArrayLike = None, eps: float = 1e-5
) -> Value:
    """layernorm over the positions of each channel: groupnorm with as many groups as channels."""
    v = as_value(x, "instancenorm")
    if v.ndim < 3:
        raise ShapeError(
            f"instancenorm: {v.type} has no positions; expected (batch, channels, ...)"
        )
    return groupnorm(v, v.shape[1], gain, bias, eps)
