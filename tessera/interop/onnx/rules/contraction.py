"""Matrix products and convolutions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dtype import f32, i32
from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.rule import NodeCall, at_once, host, is_known, numpy_dtype, rule, turned
from tessera.interop.onnx.rules.elementwise import sigmoid
from tessera.lang import op
from tessera.ops.define import as_value


@rule("MatMul")
def _matmul(n: NodeCall, a: Any, b: Any) -> Any:
    return op.matmul(a, b)


_FEW = 48  # rows that read a matrix faster where its lines lie along its columns


@rule("Gemm")
def _gemm(n: NodeCall, a: Any, b: Any, c: Any = None) -> Any:
    a, b = as_value(a), as_value(b)
    alpha, beta = n.get("alpha", 1.0), n.get("beta", 1.0)
    a = op.transpose(a) if n.get("transA", 0) else a
    if n.get("transB", 0):
        few = isinstance(a.shape[0], int) and a.shape[0] <= _FEW
        b = turned(b) if few else op.transpose(b)
    y = op.matmul(a, b)
    if alpha != 1:
        y = op.mul(y, _number(alpha, y))
    if c is None or beta == 0:
        return y
    c = as_value(c)
    return op.add(y, c if beta == 1 else op.mul(c, _number(beta, c)))


def _number(x: float, like: Any) -> Any:
    """A factor that an integer product may take too."""
    return int(x) if like.dtype.kind in "iu" else x


@rule("Einsum")
def _einsum(n: NodeCall, *xs: Any) -> Any:
    return op.einsum(n.need("equation").replace(" ", ""), *xs)


@rule("MatMulInteger")
def _matmul_integer(n: NodeCall, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    return whole_matmul(a, a_zero, b, b_zero)


_EXACT = 1 << 24  # f32 holds all whole numbers up to it


def _largest(x: Any, zero: Any) -> int:
    """What no quantised number less its zero point goes beyond."""
    info = np.iinfo(numpy_dtype(x))
    low, high = int(info.min), int(info.max)
    if zero is None:
        return max(-low, high)
    if not is_known(zero):
        return high - low
    points = host(zero, "a zero point").astype(np.int64)
    return int(max((high - points).max(), (points - low).max())) if points.size else high - low


def _room(a: Any, a_zero: Any, b: Any, b_zero: Any) -> int:
    """How many products f32 adds up without rounding."""
    return _EXACT // (_largest(a, a_zero) * _largest(b, b_zero))


def whole_matmul(a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    """A product of quantised numbers in i32, by f32 products of parts that are exact."""
    a, b = as_value(a), as_value(b)
    room, depth = _room(a, a_zero, b, b_zero), a.shape[-1]
    left = at_once(lambda x, z: centred(x, z, -2), a, a_zero)
    right = at_once(lambda x, z: centred(x, z, -1), b, b_zero)
    if room < 64 or not isinstance(depth, int) or b.ndim < 2:
        return op.matmul(left, right)
    left, right = at_once(_float, left), at_once(_float, right)
    total: Any = None
    for at in range(0, max(depth, 1), room):
        part = slice(at, min(at + room, depth))
        rows = at_once(lambda v, k=part: op.index(v, (..., k, slice(None))), right)
        y = op.cast(op.matmul(op.index(left, (..., part)), rows), i32)
        total = y if total is None else op.add(total, y)
    return total


def whole_conv(n: NodeCall, x: Any, x_zero: Any, w: Any, w_zero: Any, p: dict[str, Any]) -> Any:
    """A convolution of quantised numbers in i32, by f32 convolutions that are exact."""
    x, w = as_value(x), as_value(w)
    groups = n.get("group", 1)
    kernel = [int(s) for s in w.shape[2:]]
    room = _room(x, x_zero, w, w_zero) // max(math.prod(kernel), 1)
    left = centred(x, x_zero, 1)
    right = at_once(lambda v, z: centred(v, z, 0), w, w_zero)
    channels = int(w.shape[1])
    if room < 1 or (groups > 1 and room < channels):
        return op.conv(left, right, groups=groups, **p)
    left, right = _float(left), at_once(_float, right)
    if room >= channels:
        return op.cast(convolved(left, right, None, groups, p), i32)
    total: Any = None
    for at in range(0, channels, room):
        part = (slice(None), slice(at, min(at + room, channels)))
        kept = at_once(lambda v, k=part: op.index(v, k), right)
        y = op.cast(convolved(op.index(left, part), kept, None, 1, p), i32)
        total = y if total is None else op.add(total, y)
    return total


def _float(x: Any) -> Any:
    return op.cast(x, f32)


def centred(x: Any, zero: Any, axis: int) -> Any:
    """Quantised numbers less their zero point, which may be one for each place along an axis."""
    wide = op.cast(x, i32)
    if zero is None:
        return wide
    point = op.cast(zero, i32)
    if len(point.shape) == 1 and point.shape[0] != 1:
        rank = len(wide.shape)
        point = op.reshape(point, tuple(-1 if k == axis % rank else 1 for k in range(rank)))
    return op.sub(wide, point if len(point.shape) != 1 else op.reshape(point, ()))


# Convolution ----------------------------------------------------------------------------------


def window(n: NodeCall, sizes: Any, kernel: Any) -> dict[str, Any]:
    """Stride, padding and dilation of sliding windows over axes of these sizes."""
    rank = len(sizes)
    stride = tuple(n.get("strides", [1] * rank))
    dilation = tuple(n.get("dilations", [1] * rank))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return {"stride": stride, "dilation": dilation, "padding": _padding(n, sizes, spans, stride)}


def _padding(n: NodeCall, sizes: Any, spans: Any, stride: Any) -> tuple[tuple[Any, Any], ...]:
    auto = n.get("auto_pad", "NOTSET")
    rank = len(sizes)
    if auto in ("NOTSET", ""):
        pads = n.get("pads", [0] * 2 * rank)
        if len(pads) != 2 * rank:
            raise OnnxError(f"pads is {pads}, expected {2 * rank} numbers")
        return tuple((pads[k], pads[k + rank]) for k in range(rank))
    if auto == "VALID":
        return ((0, 0),) * rank
    pairs = []
    for size, span, s in zip(sizes, spans, stride, strict=True):
        total = max((-(-int(size) // s) - 1) * s + span - int(size), 0)
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return tuple(pairs)


@rule("Conv")
def _conv(n: NodeCall, x: Any, w: Any, bias: Any = None) -> Any:
    p = window(n, x.shape[2:], n.get("kernel_shape", w.shape[2:]))
    return convolved(x, w, bias, n.get("group", 1), p)


def convolved(x: Any, w: Any, bias: Any, groups: int, p: dict[str, Any]) -> Any:
    """A convolution; spatial axes of one place are left out, which vectors run along otherwise."""
    rank = len(x.shape) - 2
    one = [
        k
        for k in range(rank)
        if x.shape[2 + k] == 1 and w.shape[2 + k] == 1 and p["padding"][k] == (0, 0)
    ]
    one = one[: rank - 1]
    if not one:
        return op.conv(x, w, bias, groups=groups, **p)
    rest = [k for k in range(rank) if k not in one]
    short = {name: tuple(v[k] for k in rest) for name, v in p.items()}
    x, w = (op.reshape(v, (*v.shape[:2], *(v.shape[2 + k] for k in rest))) for v in (x, w))
    y = op.conv(x, w, bias, groups=groups, **short)
    sizes = [1] * rank
    for k, size in zip(rest, y.shape[2:], strict=True):
        sizes[k] = size
    return op.reshape(y, (*y.shape[:2], *sizes))


@rule("ConvInteger")
def _conv_integer(n: NodeCall, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    p = window(n, x.shape[2:], w.shape[2:])
    return whole_conv(n, x, x_zero, w, w_zero, p)


@rule("ConvTranspose")
def _conv_transpose(n: NodeCall, x: Any, w: Any, bias: Any = None) -> Any:
    rank = len(x.shape) - 2
    kernel = w.shape[2:]
    stride, dilation = n.get("strides", [1] * rank), n.get("dilations", [1] * rank)
    extra = list(n.get("output_padding", [0] * rank))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    auto, want = n.get("auto_pad", "NOTSET"), n.get("output_shape")
    pads = n.get("pads", [0] * 2 * rank)
    pairs = [(pads[k], pads[k + rank]) for k in range(rank)]
    if want is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        sizes = want[-rank:] if want else [s * t for s, t in zip(x.shape[2:], stride, strict=True)]
        pairs = []
        for k in range(rank):
            total = stride[k] * (x.shape[2 + k] - 1) + extra[k] + spans[k] - sizes[k]
            if total < 0:
                extra[k], total = extra[k] - total, 0
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if auto == "SAME_UPPER" else (large, small))
    return _spread(x, w, bias, stride, pairs, extra, dilation, n.get("group", 1))


def _spread(
    x: Any, w: Any, bias: Any, stride: Any, pairs: Any, extra: Any, dilation: Any, groups: int
) -> Any:
    """conv_transpose; more output padding than a stride is zeros, to which the bias is added."""
    fits = all(e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True))
    given = extra if fits else [0] * len(extra)
    y = op.conv_transpose(
        x, w, bias if fits else None, stride=tuple(stride), padding=tuple(pairs),
        output_padding=tuple(given), dilation=tuple(dilation), groups=groups,
    )  # fmt: skip
    if fits:
        return y
    y = op.pad(y, [(0, 0), (0, 0), *((0, e) for e in extra)])
    if bias is None:
        return y
    return op.add(y, op.reshape(bias, (1, -1, *(1,) * len(extra))))


@rule("CausalConvWithState")
def _causal_conv(n: NodeCall, x: Any, w: Any, bias: Any = None, past: Any = None) -> Any:
    """A depthwise convolution over the past, whose last elements are the next state."""
    x, k = as_value(x), w.shape[2]
    before = op.zeros((*x.shape[:2], k - 1), x.dtype) if past is None else past
    whole = op.concat([before, x], 2)
    y = op.conv(whole, w, bias, groups=x.shape[1])
    if n.get("activation", "none") in ("silu", "swish"):
        y = op.mul(y, sigmoid(y))
    start = whole.shape[2] - (k - 1)
    return y, op.index(whole, (slice(None), slice(None), slice(start, None)))
