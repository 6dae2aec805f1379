"""Normalisation over axes, groups and batches."""

from __future__ import annotations

from typing import Any

from tessera.core.dims import product
from tessera.core.dtype import u8
from tessera.interop.torch.rule import AtenCall, NoRuleError, as_dtype, number, rule, wide
from tessera.lang import op


def _standard(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """(x - mean) / sqrt(var + eps) along axes, with the mean and the reciprocal of the root."""
    mean = op.mean(x, axis=axes, keepdims=True)
    apart = op.sub(x, mean)
    var = op.mean(op.square(apart), axis=axes, keepdims=True)
    rstd = op.rsqrt(op.add(var, number(eps, x.dtype)))
    return op.mul(apart, rstd), mean, rstd


@rule("native_layer_norm")
def _layer_norm(n: AtenCall, x: Any, shape: Any, gain: Any, bias: Any, eps: float) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    dtype = wide(x.dtype)
    y, mean, rstd = _standard(as_dtype(x, dtype), axes, eps)
    y = y if gain is None else op.mul(y, as_dtype(gain, dtype))
    y = y if bias is None else op.add(y, as_dtype(bias, dtype))
    kept = [as_dtype(v, d or dtype) for v, d in zip((mean, rstd), n.dtypes[1:], strict=True)]
    return as_dtype(y, n.dtype), *kept


@rule("native_group_norm")
def _group_norm(
    n: AtenCall,
    x: Any,
    gain: Any,
    bias: Any,
    batch: Any,
    channels: Any,
    places: Any,
    groups: int,
    eps: float,
) -> Any:
    dtype = wide(x.dtype)
    grouped = op.reshape(as_dtype(x, dtype), (batch, groups, channels // groups * places))
    y, mean, rstd = _standard(grouped, (2,), eps)
    y = op.reshape(y, x.shape)
    view = (1, channels, *(1,) * (x.ndim - 2))
    y = y if gain is None else op.mul(y, op.reshape(as_dtype(gain, dtype), view))
    y = y if bias is None else op.add(y, op.reshape(as_dtype(bias, dtype), view))
    kept = [as_dtype(op.squeeze(v, 2), n.dtypes[1] or dtype) for v in (mean, rstd)]
    return as_dtype(y, n.dtype), *kept


def _per_channel(v: Any, x: Any, dtype: Any) -> Any:
    return op.reshape(as_dtype(v, dtype), (1, x.shape[1], *(1,) * (x.ndim - 2)))


def _normalised(x: Any, mean: Any, rstd: Any, gain: Any, bias: Any) -> Any:
    """(x - mean) * rstd * gain + bias for each channel."""
    dtype = mean.dtype
    rstd = rstd if gain is None else op.mul(rstd, as_dtype(gain, dtype))
    y = op.mul(
        op.sub(as_dtype(x, dtype), _per_channel(mean, x, dtype)), _per_channel(rstd, x, dtype)
    )
    return y if bias is None else op.add(y, _per_channel(bias, x, dtype))


def _known(n: AtenCall, x: Any, gain: Any, bias: Any, mean: Any, var: Any, eps: float) -> Any:
    dtype = wide(x.dtype)
    rstd = op.rsqrt(op.add(as_dtype(var, dtype), number(eps, dtype)))
    return as_dtype(_normalised(x, as_dtype(mean, dtype), rstd, gain, bias), n.dtype)


@rule("_native_batch_norm_legit_no_training")
def _batch_norm_eval(
    n: AtenCall, x: Any, gain: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    empty = op.zeros((0,), n.dtypes[1])
    return _known(n, x, gain, bias, mean, var, eps), empty, empty


@rule("native_batch_norm")
def _native_batch_norm(
    n: AtenCall,
    x: Any,
    gain: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        return _batch_norm_eval(n, x, gain, bias, mean, var, momentum, eps)
    if mean is not None:
        raise NoRuleError("running statistics that are written to")
    return _trained(n, x, gain, bias, eps)[:3]


def _statistics(x: Any) -> tuple[Any, Any]:
    """The mean and the variance of each channel over the batch."""
    axes, wider = (0, *range(2, x.ndim)), as_dtype(x, wide(x.dtype))
    mean = op.mean(wider, axis=axes)
    apart = op.sub(wider, _per_channel(mean, x, wider.dtype))
    return mean, op.mean(op.square(apart), axis=axes)


def _trained(n: AtenCall, x: Any, gain: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    mean, var = _statistics(x)
    rstd = op.rsqrt(op.add(var, number(eps, var.dtype)))
    return as_dtype(_normalised(x, mean, rstd, gain, bias), n.dtype), mean, rstd, var


@rule("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(
    n: AtenCall, x: Any, gain: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    return _trained(n, x, gain, bias, eps)[:3]


def _moved(x: Any, mean: Any, var: Any, held: Any, momentum: float) -> tuple[Any, Any]:
    """Running statistics after a batch; PyTorch keeps the variance without bias."""
    count = product(tuple(x.shape)) // x.shape[1]
    ratio = op.div(as_dtype(count, var.dtype), as_dtype(count - 1, var.dtype))
    free = op.mul(var, ratio)
    pairs = zip(held, (mean, free), strict=True)
    keep, take = 1 - momentum, momentum
    found = [
        op.add(
            op.mul(h, number(keep, h.dtype)), op.mul(as_dtype(v, h.dtype), number(take, h.dtype))
        )
        for h, v in pairs
    ]
    return found[0], found[1]


@rule("_native_batch_norm_legit_functional")
def _batch_norm(
    n: AtenCall,
    x: Any,
    gain: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training:
        empty = op.zeros((0,), n.dtypes[1])
        return _known(n, x, gain, bias, mean, var, eps), empty, empty, mean, var
    y, found, rstd, spread = _trained(n, x, gain, bias, eps)
    return y, found, rstd, *_moved(x, found, spread, (mean, var), momentum)


@rule("_batch_norm_with_update_functional")
def _batch_norm_update(
    n: AtenCall, x: Any, gain: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    y, found, rstd, spread = _trained(n, x, gain, bias, eps)
    moved = _moved(x, found, spread, (mean, var), momentum)
    return y, found, rstd, op.zeros((0,), u8), *moved
