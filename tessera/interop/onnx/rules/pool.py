"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.rule import NodeCall, integers, rule
from tessera.interop.onnx.rules.windows import window
from tessera.lang import op
from tessera.ops.define import as_value


def _over(n: NodeCall, x: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The window and its parameters, with the overhang of ceil_mode after the padding."""
    size = tuple(n.need("kernel_shape"))
    if len(size) != len(x.shape) - 2:
        raise OnnxError(f"kernel_shape is {list(size)} for {len(x.shape) - 2} spatial axes")
    return size, window(n, x.shape[2:], size)


def _overhang(n: NodeCall, x: Any, size: Any, p: dict[str, Any]) -> list[int]:
    """What ceil_mode adds after each axis, so that a last window that begins inside fits."""
    out = []
    for k, (low, high) in enumerate(p["padding"]):
        length, s = int(x.shape[2 + k]), p["stride"][k]
        span = (size[k] - 1) * p["dilation"][k] + 1
        rest = low + length + high - span
        last = min(-(-rest // s), (length + low - 1) // s)
        out.append(max(last * s - rest, 0) if n.get("ceil_mode", 0) else 0)
    return out


def _windows(x: Any, size: Any, p: dict[str, Any], extra: Any, fill: Any) -> Any:
    """The elements of each window, along one last axis."""
    width = [(0, 0), (0, 0)]
    width += [(a, b + e) for (a, b), e in zip(p["padding"], extra, strict=True)]
    padded = op.pad(x, width, fill) if any(map(any, width)) else x
    seen = op.windows(padded, size, p["stride"], p["dilation"])
    return op.reshape(seen, (*seen.shape[: len(seen.shape) - len(size)], math.prod(size)))


@rule("MaxPool")
def _max_pool(n: NodeCall, x: Any) -> Any:
    x = as_value(x)
    size, p = _over(n, x)
    spans = [(k - 1) * d + 1 for k, d in zip(size, p["dilation"], strict=True)]
    usual = all(max(pair) < s for pair, s in zip(p["padding"], spans, strict=True))
    if usual and not n.wants(1):
        return op.max_pool(x, size, ceil_mode=bool(n.get("ceil_mode", 0)), **p)
    extra, low = _overhang(n, x, size, p), _lowest(x.dtype)
    seen = _windows(x, size, p, extra, low)
    best = op.argmax(seen, -1, True)
    y = op.squeeze(op.take_along_axis(seen, best, -1), -1)
    if not n.wants(1):
        return y
    places = _windows(_numbered(x.shape, n.get("storage_order", 0)), size, p, extra, -1)
    at = op.take_along_axis(op.broadcast_to(places, seen.shape), best, -1)
    return y, op.squeeze(at, -1)


def _lowest(dtype: Any) -> Any:
    if dtype.kind == "f":
        return float("-inf")
    return 0 if dtype.kind == "u" else -(2 ** (dtype.bits - 1))


def _numbered(shape: Any, columns_first: int) -> Any:
    """The index of each element in the flat tensor."""
    sizes = tuple(map(int, shape))
    if not columns_first:
        return np.arange(math.prod(sizes)).reshape(sizes)
    order = (*range(len(sizes) - 1, 1, -1),)
    inner = np.arange(math.prod(sizes[2:])).reshape(sizes[2:][::-1])
    turned = inner.transpose([len(order) - 1 - k for k in range(len(order))])
    outer = np.arange(sizes[0] * sizes[1]).reshape(*sizes[:2], *(1,) * (len(sizes) - 2))
    return outer * math.prod(sizes[2:]) + turned


@rule("AveragePool")
def _average_pool(n: NodeCall, x: Any) -> Any:
    x = as_value(x)
    size, p = _over(n, x)
    include = bool(n.get("count_include_pad", 0))
    spans = [(k - 1) * d + 1 for k, d in zip(size, p["dilation"], strict=True)]
    usual = all(max(pair) < s for pair, s in zip(p["padding"], spans, strict=True))
    if usual and all(d == 1 for d in p["dilation"]):
        return op.avg_pool(x, size, p["stride"], p["padding"], bool(n.get("ceil_mode", 0)), include)
    extra = _overhang(n, x, size, p)
    total = op.sum(_windows(x, size, p, extra, 0), -1)
    ones = np.ones((1, 1, *map(int, x.shape[2:])), np.float32)
    if include:
        ones = np.pad(ones, [(0, 0), (0, 0), *p["padding"]], constant_values=1)
        q = {**p, "padding": ((0, 0),) * len(size)}
        count = op.sum(_windows(ones, size, q, extra, 0), -1)
    else:
        count = op.sum(_windows(ones, size, p, extra, 0), -1)
    return op.cast(op.div(total, op.cast(count, total.dtype)), x.dtype)


@rule("LpPool")
def _lp_pool(n: NodeCall, x: Any) -> Any:
    x = as_value(x)
    size, p = _over(n, x)
    power = n.get("p", 2)
    seen = _windows(op.abs(x), size, p, _overhang(n, x, size, p), 0)
    return op.pow(op.sum(op.pow(seen, float(power)), -1), 1.0 / power)


@rule("GlobalAveragePool")
def _global_average_pool(n: NodeCall, x: Any) -> Any:
    return op.global_avg_pool(x)


@rule("GlobalMaxPool")
def _global_max_pool(n: NodeCall, x: Any) -> Any:
    return op.global_max_pool(x)


@rule("GlobalLpPool")
def _global_lp_pool(n: NodeCall, x: Any) -> Any:
    power = n.get("p", 2)
    axes = tuple(range(2, len(x.shape)))
    return op.pow(op.sum(op.pow(op.abs(x), float(power)), axes, True), 1.0 / power)


@rule("MaxUnpool")
def _max_unpool(n: NodeCall, x: Any, indices: Any, shape: Any = None) -> Any:
    """Elements put back where their indices say in the tensor that was pooled, zeros elsewhere."""
    x = as_value(x)
    size = n.need("kernel_shape")
    rank = len(size)
    stride, pads = n.get("strides", [1] * rank), n.get("pads", [0] * 2 * rank)
    inferred = [
        (int(x.shape[2 + k]) - 1) * stride[k] + size[k] - pads[k] - pads[k + rank]
        for k in range(rank)
    ]
    full = (*x.shape[:2], *inferred)
    out = op.zeros((math.prod(map(int, full)),), x.dtype)
    y = op.reshape(op.scatter(out, op.reshape(x, (-1,)), op.reshape(indices, (-1,))), full)
    if shape is None:
        return y
    want = integers(shape, "output_shape")
    return op.pad(y, [(0, w - int(h)) for w, h in zip(want, full, strict=True)])
