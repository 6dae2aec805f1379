"""Matrix products and convolutions."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import i32
from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.rule import Call, rule
from tessera.lang import op
from tessera.ops.define import as_value


@rule("MatMul")
def _matmul(n: Call, a: Any, b: Any) -> Any:
    return op.matmul(a, b)


@rule("Gemm")
def _gemm(n: Call, a: Any, b: Any, c: Any = None) -> Any:
    a, b = as_value(a), as_value(b)
    alpha, beta = n.get("alpha", 1.0), n.get("beta", 1.0)
    a = op.transpose(a) if n.get("transA", 0) else a
    b = op.transpose(b) if n.get("transB", 0) else b
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
def _einsum(n: Call, *xs: Any) -> Any:
    return op.einsum(n.need("equation").replace(" ", ""), *xs)


@rule("MatMulInteger")
def _matmul_integer(n: Call, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    left, right = centred(a, a_zero, -2), centred(b, b_zero, -1)
    return op.matmul(left, right)


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


def window(n: Call, sizes: Any, kernel: Any) -> dict[str, Any]:
    """Stride, padding and dilation of sliding windows over axes of these sizes."""
    rank = len(sizes)
    stride = tuple(n.get("strides", [1] * rank))
    dilation = tuple(n.get("dilations", [1] * rank))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    return {"stride": stride, "dilation": dilation, "padding": _padding(n, sizes, spans, stride)}


def _padding(n: Call, sizes: Any, spans: Any, stride: Any) -> tuple[tuple[Any, Any], ...]:
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
def _conv(n: Call, x: Any, w: Any, bias: Any = None) -> Any:
    p = window(n, x.shape[2:], n.get("kernel_shape", w.shape[2:]))
    return op.conv(x, w, bias, groups=n.get("group", 1), **p)


@rule("ConvInteger")
def _conv_integer(n: Call, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    p = window(n, x.shape[2:], w.shape[2:])
    return op.conv(centred(x, x_zero, 1), centred(w, w_zero, 0), groups=n.get("group", 1), **p)


@rule("ConvTranspose")
def _conv_transpose(n: Call, x: Any, w: Any, bias: Any = None) -> Any:
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
def _causal_conv(n: Call, x: Any, w: Any, bias: Any = None, past: Any = None) -> Any:
    """A depthwise convolution over the past, whose last elements are the next state."""
    x, k = as_value(x), w.shape[2]
    before = op.zeros((*x.shape[:2], k - 1), x.dtype) if past is None else past
    whole = op.concat([before, x], 2)
    y = op.conv(whole, w, bias, groups=x.shape[1])
    if n.get("activation", "none") in ("silu", "swish"):
        y = op.silu(y)
    start = whole.shape[2] - (k - 1)
    return y, op.index(whole, (slice(None), slice(None), slice(start, None)))
