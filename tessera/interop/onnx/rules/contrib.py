"""com.microsoft: node types that onnxruntime's own tools write into models."""

from __future__ import annotations

from typing import Any

from tessera.core.dtype import as_dtype, f32
from tessera.interop.onnx.rule import NodeCall, numpy_dtype, rule
from tessera.interop.onnx.rules.elementwise import sigmoid
from tessera.interop.onnx.rules.integers import centred, rounded_matmul, whole_matmul
from tessera.interop.onnx.rules.norm import _layer_norm, _rms_norm
from tessera.interop.onnx.rules.quantise import _requantized, bounds
from tessera.interop.onnx.rules.rnn import QuantisedWeights, _lstm
from tessera.interop.onnx.rules.windows import window
from tessera.lang import op
from tessera.ops.define import as_value

_MS = "com.microsoft"


@rule("Gelu", domain=_MS)
def _gelu(n: NodeCall, x: Any) -> Any:
    return op.gelu(x)


@rule("FastGelu", domain=_MS)
def _fast_gelu(n: NodeCall, x: Any, bias: Any = None) -> Any:
    return op.gelu(x if bias is None else op.add(x, bias), "tanh")


@rule("BiasGelu", domain=_MS)
def _bias_gelu(n: NodeCall, x: Any, bias: Any) -> Any:
    return op.gelu(op.add(x, bias))


@rule("QuickGelu", domain=_MS)
def _quick_gelu(n: NodeCall, x: Any) -> Any:
    return op.mul(x, sigmoid(op.mul(x, n.get("alpha", 1.702))))


@rule("FusedMatMul", domain=_MS)
def _fused_matmul(n: NodeCall, a: Any, b: Any) -> Any:
    a = op.swapaxes(a, -1, -2) if n.get("transA", 0) else a
    b = op.swapaxes(b, -1, -2) if n.get("transB", 0) else b
    return op.mul(op.matmul(a, b), n.get("alpha", 1.0))


@rule("FusedConv", domain=_MS)
def _fused_conv(n: NodeCall, x: Any, w: Any, bias: Any = None, more: Any = None) -> Any:
    p = window(n, x.shape[2:], w.shape[2:])
    y = op.conv(x, w, bias, groups=n.get("group", 1), **p)
    y = y if more is None else op.add(y, more)
    given = n.get("activation_params", [])
    made: dict[str, Any] = {
        "Relu": op.relu, "Tanh": op.tanh, "Sigmoid": sigmoid,
        "LeakyRelu": lambda v: op.leaky_relu(v, given[0]),
        "Clip": lambda v: op.clip(v, given[0], given[1]),
        "HardSigmoid": lambda v: op.clip(op.add(op.mul(v, given[0]), given[1]), 0, 1),
    }  # fmt: skip
    return made[n.need("activation")](y)


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=_MS)
def _skip_norm(
    n: NodeCall, x: Any, skip: Any, gain: Any, beta: Any = None, bias: Any = None
) -> Any:
    total = op.add(x, skip)
    if n.node.op.startswith("SkipSimplified"):
        total = total if beta is None else op.add(total, beta)
        return _rms_norm(n, total, gain), None, None, total
    total = total if bias is None else op.add(total, bias)
    y = _layer_norm(n, total, gain, beta)
    return (y[0] if isinstance(y, tuple) else y), None, None, total


@rule("DynamicQuantizeMatMul", domain=_MS)
def _dynamic_matmul(
    n: NodeCall, a: Any, b: Any, scale: Any, zero: Any = None, bias: Any = None
) -> Any:
    """A product with quantised weights; a is rounded to 8 bits over its own range first."""
    y = rounded_matmul(a, b, scale, zero)
    return y if bias is None else op.add(y, bias)


@rule("MatMulIntegerToFloat", domain=_MS)
def _integer_to_float(
    n: NodeCall, a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any = None, b_zero: Any = None,
    bias: Any = None,
) -> Any:  # fmt: skip
    y = op.cast(whole_matmul(a, a_zero, b, b_zero), f32)
    y = op.mul(y, op.mul(a_scale, b_scale))
    return y if bias is None else op.add(y, bias)


def _real(x: Any, scale: Any, zero: Any) -> Any:
    """Quantised numbers as floats."""
    wide = op.cast(x, f32)
    return op.mul(wide if zero is None else op.sub(wide, op.cast(zero, f32)), scale)


def _rounded(y: Any, scale: Any, zero: Any, like: Any) -> Any:
    to = numpy_dtype(like if zero is None else zero)
    limits = bounds(to)
    assert limits is not None
    q = op.round(op.div(y, scale))
    q = q if zero is None else op.add(q, op.cast(zero, f32))
    return op.cast(op.clip(q, *limits), as_dtype(to))


@rule("QLinearAdd", "QLinearMul", domain=_MS)
def _qlinear_binary(
    n: NodeCall, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, scale: Any,
    zero: Any = None,
) -> Any:  # fmt: skip
    f = op.add if n.node.op == "QLinearAdd" else op.mul
    return _rounded(f(_real(a, a_scale, a_zero), _real(b, b_scale, b_zero)), scale, zero, a)


@rule("QLinearSigmoid", "QLinearLeakyRelu", domain=_MS)
def _qlinear_unary(
    n: NodeCall, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None
) -> Any:
    y = _real(x, x_scale, x_zero)
    y = op.sigmoid(y) if n.node.op == "QLinearSigmoid" else op.leaky_relu(y, n.get("alpha", 0.01))
    return _rounded(y, scale, zero, x)


@rule("QLinearGlobalAveragePool", domain=_MS)
def _qlinear_pool(n: NodeCall, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any) -> Any:
    y = _real(x, x_scale, x_zero)
    axes = tuple(range(1, y.ndim - 1)) if n.get("channels_last", 0) else tuple(range(2, y.ndim))
    return _rounded(op.mean(y, axes, True), scale, zero, x)


@rule("QLinearConcat", domain=_MS)
def _qlinear_concat(n: NodeCall, scale: Any, zero: Any, *parts: Any) -> Any:
    groups = [parts[i : i + 3] for i in range(0, len(parts), 3)]
    joined = op.concat([_real(*g) for g in groups], n.need("axis"))
    return _rounded(joined, scale, zero, parts[0])


@rule("QGemm", domain=_MS)
def _qgemm(
    n: NodeCall, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, c: Any = None,
    scale: Any = None, zero: Any = None,
) -> Any:  # fmt: skip
    left, right = centred(a, a_zero, -2), centred(b, b_zero, 0 if n.get("transB", 0) else -1)
    left = op.transpose(left) if n.get("transA", 0) else left
    right = op.transpose(right) if n.get("transB", 0) else right
    y = op.matmul(left, right)
    y = y if c is None else op.add(y, c)
    by = op.mul(op.mul(a_scale, b_scale), n.get("alpha", 1.0))
    if scale is None:
        return op.mul(op.cast(y, f32), by)
    return _requantized(y, op.div(by, scale), zero, zero)


@rule("DynamicQuantizeLSTM", domain=_MS)
def _dynamic_lstm(
    n: NodeCall, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None,
    c: Any = None, p: Any = None, w_scale: Any = None, w_zero: Any = None, r_scale: Any = None,
    r_zero: Any = None,
) -> Any:  # fmt: skip
    """An LSTM with quantised weights, which are stored turned: (directions, inputs, gates)."""
    weights = (
        QuantisedWeights(as_value(w), w_scale, w_zero),
        QuantisedWeights(as_value(r), r_scale, r_zero),
    )
    return _lstm(n, x, *weights, b, lengths, h, c, p)
