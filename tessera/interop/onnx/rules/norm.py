"""Normalization."""

from __future__ import annotations

import math
from typing import Any

from tessera.core.dtype import f32
from tessera.interop.onnx.rule import NodeCall, at_once, axis_of, rule
from tessera.lang import op
from tessera.ops.define import as_value


@rule("BatchNormalization")
def _batch_norm(n: NodeCall, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    x = as_value(x)
    eps = n.get("epsilon", 1e-5)
    training = n.get("training_mode", 0) if n.version >= 14 else n.version >= 7 and n.outputs > 1
    if not training or (n.version < 7 and n.get("is_test", 0)):
        factor = at_once(lambda s, v: op.div(s, op.sqrt(op.add(v, eps))), scale, var)
        shift = at_once(lambda b, m, f: op.sub(b, op.mul(m, f)), bias, mean, factor)
        y = op.mul(x, op.cast(_per_channel(factor, x.ndim), x.dtype))
        return op.add(y, op.cast(_per_channel(shift, x.ndim), x.dtype))
    momentum = n.get("momentum", 0.9)
    axes = tuple(k for k in range(x.ndim) if k != 1)
    m, v = op.mean(x, axes), op.var(x, axes)
    y = op.cast(op.batchnorm(x, m, v, scale, bias, 1, eps), x.dtype)
    kept = [
        op.add(op.mul(old, momentum), op.cast(op.mul(new, 1 - momentum), old.dtype))
        for old, new in ((as_value(mean), m), (as_value(var), v))
    ]
    return (y, *kept)


def _per_channel(v: Any, rank: int) -> Any:
    return op.reshape(v, (1, -1, *(1,) * (rank - 2)))


@rule("InstanceNormalization")
def _instance_norm(n: NodeCall, x: Any, scale: Any, bias: Any) -> Any:
    return op.instancenorm(x, scale, bias, n.get("epsilon", 1e-5))


@rule("GroupNormalization")
def _group_norm(n: NodeCall, x: Any, scale: Any, bias: Any) -> Any:
    x = as_value(x)
    groups = n.need("num_groups")
    each = x.shape[1] // groups
    if n.version < 21:  # one number for each group
        scale, bias = (op.repeat(v, int(each)) for v in (scale, bias))
    shape = tuple(x.shape)
    wide = op.cast(x, f32) if x.dtype.bits < 32 else x
    split = op.reshape(wide, (shape[0], groups, -1))
    mean = op.mean(split, -1, True)
    var = op.var(split, -1, keepdims=True)
    y = op.div(op.sub(split, mean), op.sqrt(op.add(var, n.get("epsilon", 1e-5))))
    y = op.cast(op.reshape(y, shape), x.dtype)
    return op.add(op.mul(y, _per_channel(scale, x.ndim)), _per_channel(bias, x.ndim))


@rule("LayerNormalization")
def _layer_norm(n: NodeCall, x: Any, scale: Any, bias: Any = None) -> Any:
    x = as_value(x)
    axis, eps = axis_of(n.get("axis", -1), x.ndim), n.get("epsilon", 1e-5)
    if axis == x.ndim - 1 and n.outputs == 1 and len(scale.shape) == 1 and x.dtype.bits >= 32:
        return op.layernorm(x, scale, bias, -1, eps)
    wide = op.cast(x, f32) if x.dtype.bits < 32 else x
    axes = tuple(range(axis, x.ndim))
    mean = op.mean(wide, axes, True)
    centred = op.sub(wide, mean)
    inverse = op.rsqrt(op.add(op.mean(op.square(centred), axes, True), eps))
    y = op.mul(op.cast(op.mul(centred, inverse), x.dtype), scale)
    y = op.cast(y if bias is None else op.add(y, bias), x.dtype)
    return y, op.cast(mean, f32 if x.dtype.bits < 32 else x.dtype), inverse


@rule("RMSNormalization")
def _rms_norm(n: NodeCall, x: Any, scale: Any) -> Any:
    x = as_value(x)
    axis, eps = axis_of(n.get("axis", -1), x.ndim), n.get("epsilon", 1e-5)
    wide = op.cast(x, f32) if x.dtype.bits < 32 else x
    axes = tuple(range(axis, x.ndim))
    inverse = op.rsqrt(op.add(op.mean(op.square(wide), axes, True), eps))
    return op.mul(op.cast(op.mul(wide, inverse), scale.dtype), scale)


@rule("SimplifiedLayerNormalization")
def _simplified(n: NodeCall, x: Any, scale: Any) -> Any:
    return _rms_norm(n, x, scale)


@rule("MeanVarianceNormalization")
def _mvn(n: NodeCall, x: Any) -> Any:
    axes = tuple(n.get("axes", [0, 2, 3]))
    centred = op.sub(x, op.mean(x, axes, True))
    return op.div(centred, op.add(op.sqrt(op.mean(op.square(centred), axes, True)), 1e-9))


@rule("LRN")
def _lrn(n: NodeCall, x: Any) -> Any:
    """Each element over a power of the squares of its neighbours in the axis of channels."""
    x = as_value(x)
    size = n.need("size")
    low, high = math.floor((size - 1) / 2), math.ceil((size - 1) / 2)
    width = [(0, 0), (low, high), *[(0, 0)] * (x.ndim - 2)]
    squares = op.moveaxis(op.pad(op.square(x), width), 1, -1)
    total = op.moveaxis(op.sum(op.windows(squares, size), -1), -1, 1)
    base = op.add(op.mul(total, n.get("alpha", 1e-4) / size), n.get("bias", 1.0))
    return op.div(x, op.pow(base, n.get("beta", 0.75)))
