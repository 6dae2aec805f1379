"""Matrix products and convolutions."""

from __future__ import annotations

from typing import Any

from tessera.interop.onnx.rule import NodeCall, Quantised, rule, turned
from tessera.interop.onnx.rules.elementwise import sigmoid
from tessera.interop.onnx.rules.integers import scaled_conv, scaled_matmul, transposed
from tessera.interop.onnx.rules.windows import convolved, window
from tessera.lang import op
from tessera.ops.define import as_value


@rule("MatMul")
def _matmul(n: NodeCall, a: Any, b: Any) -> Any:
    return _product(a, b, n.whole(0), n.whole(1))


def _product(a: Any, b: Any, left: Quantised | None, right: Quantised | None) -> Any:
    """A product of matrices, by the quantised numbers that both were made from if that is faster."""
    found = None if left is None or right is None else scaled_matmul(left, right)
    return op.matmul(a, b) if found is None else found


_FEW = 48  # rows that read a matrix faster where its lines lie along its columns


@rule("Gemm")
def _gemm(n: NodeCall, a: Any, b: Any, c: Any = None) -> Any:
    a, b = as_value(a), as_value(b)
    alpha, beta = n.get("alpha", 1.0), n.get("beta", 1.0)
    left, right = n.whole(0), n.whole(1)
    if n.get("transA", 0):
        a, left = op.transpose(a), transposed(left)
    if n.get("transB", 0):
        few = isinstance(a.shape[0], int) and a.shape[0] <= _FEW
        b, right = turned(b) if few else op.transpose(b), transposed(right)
    y = _product(a, b, left, right)
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


# Convolution ----------------------------------------------------------------------------------


@rule("Conv")
def _conv(n: NodeCall, x: Any, w: Any, bias: Any = None) -> Any:
    p = window(n, x.shape[2:], n.get("kernel_shape", w.shape[2:]))
    groups, image, weights = n.get("group", 1), n.whole(0), n.whole(1)
    found = None if image is None or weights is None else scaled_conv(groups, image, weights, p)
    if found is None:
        return convolved(x, w, bias, groups, p)
    return (
        found
        if bias is None
        else op.add(found, op.reshape(bias, (1, -1, *(1,) * (len(x.shape) - 2))))
    )


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
