"""Activations: functions of one element, and the gated pairs built from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tessera.core.constraints import require
from tessera.core.errors import OperandError, ShapeError
from tessera.core.scalar import Expr, apply, arg, const
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample
from tessera.ops.define import (
    ArrayLike,
    as_value,
    axis_of,
    cast_to,
    define,
    floating,
    full_of,
    meet,
    public,
    unary,
    wide,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    add,
    erfc,
    exp,
    gt,
    logaddexp,
    logical_and,
    lt,
    minimum,
    mul,
    neg,
    sigmoid,
    square,
    sub,
    tanh,
    where,
)
from tessera.ops.shape import split

Tangents = Sequence[Value | None]
X = arg(0)
_SAMPLES = (Sample((3,)), Sample((2, 3)), Sample(()), Sample((0, 2)))


def _mask(condition: Value, x: Value) -> Value:
    """1 where the condition holds and 0 elsewhere, in the dtype of x."""
    return cast_to(condition, x.dtype)


def _pick(condition: Value, x: Value, a: Any, b: Any) -> Value:
    """a where the condition holds, b elsewhere; numbers take the dtype of x."""
    a, b = (v if isinstance(v, Value) else full_of(x.shape, v, x.dtype) for v in (a, b))
    return where(condition, a, b)


def _between(x: Value, low: float, high: float) -> Value:
    return _mask(logical_and(gt(x, low), lt(x, high)), x)


# Without parameters

relu = unary("relu", "The larger of x and 0.", floats=True, kinds="f", onnx="Relu",
             body=apply("max", X, const(0.0)),
             partials=lambda y, x: (_mask(gt(y, 0), x),))  # fmt: skip
relu6 = unary("relu6", "x, but at least 0 and at most 6.", floats=True, kinds="f",
              body=apply("min", apply("max", X, const(0.0)), const(6.0)),
              partials=lambda y, x: (_between(x, 0, 6),))  # fmt: skip
silu = unary("silu", "x times sigmoid(x).", floats=True, kinds="f",
             body=apply("mul", X, apply("sigmoid", X)),
             partials=lambda y, x: (_silu_slope(y, x),))  # fmt: skip
softsign = unary("softsign", "x / (1 + |x|).", floats=True, kinds="f", onnx="Softsign",
                 body=apply("div", X, apply("add", apply("abs", X), const(1.0))),
                 partials=lambda y, x: (square(sub(1.0, absolute(y))),))  # fmt: skip


def _small(x: Expr) -> Expr:
    """log(1 + exp(-|x|)): what softplus has beside max(x, 0)."""
    return apply("log1p", apply("exp", apply("neg", apply("abs", x))))


log_sigmoid = unary("log_sigmoid", "Logarithm of sigmoid(x), without overflow.", floats=True,
                    kinds="f",
                    body=apply("sub", apply("min", X, const(0.0)), _small(X)),
                    partials=lambda y, x: (sigmoid(neg(x)),))  # fmt: skip
_SIXTH = apply("div", apply("add", X, const(3.0)), const(6.0))
_HARD = apply("min", apply("max", _SIXTH, const(0.0)), const(1.0))
hardsigmoid = unary("hardsigmoid", "(x + 3) / 6, but at least 0 and at most 1.", floats=True,
                    kinds="f", onnx="HardSigmoid", body=_HARD,
                    partials=lambda y, x: (mul(_between(x, -3, 3), 1 / 6),))  # fmt: skip
hardswish = unary("hardswish", "x times hardsigmoid(x).", floats=True, kinds="f",
                  onnx="HardSwish", body=apply("mul", X, _HARD),
                  partials=lambda y, x: (_hardswish_slope(x),))  # fmt: skip
_SOFTPLUS = apply("add", apply("max", X, const(0.0)), _small(X))
# tanh(log(1 + e)) is n / (n + 2) with n = e (e + 2), and 1 from e^20 on.
_CAPPED = apply("exp", apply("min", X, const(20.0)))
_MISH = apply("mul", _CAPPED, apply("add", _CAPPED, const(2.0)))
mish = unary("mish", "x times tanh(softplus(x)).", floats=True, kinds="f", onnx="Mish",
             body=apply("mul", X, apply("div", _MISH, apply("add", _MISH, const(2.0)))),
             partials=lambda y, x: (_mish_slope(x),))  # fmt: skip
tanhshrink = unary("tanhshrink", "x - tanh(x).", floats=True, kinds="f",
                   body=apply("sub", X, apply("tanh", X)),
                   partials=lambda y, x: (square(tanh(x)),))  # fmt: skip

# The constants that keep mean 0 and variance 1 (Klambauer and others, 2017, section 2).
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _silu_slope(y: Value, x: Value) -> Value:
    s = sigmoid(x)
    return add(s, mul(y, sub(1.0, s)))


def _hardswish_slope(x: Value) -> Value:
    middle = add(mul(x, 1 / 3), 0.5)
    return _pick(gt(x, -3), x, _pick(lt(x, 3), x, middle, 1.0), 0.0)


def _mish_slope(x: Value) -> Value:
    h = tanh(logaddexp(x, 0.0))
    return add(h, mul(mul(x, sigmoid(x)), sub(1.0, square(h))))


@public
def swish(x: ArrayLike, beta: float = 1.0) -> Value:
    """x times sigmoid(beta * x)."""
    v = floating(as_value(x, "swish"))
    return silu(v) if beta == 1 else mul(v, sigmoid(mul(v, beta)))


# With parameters


def _by_slope(slope: Callable[..., Value]) -> Callable[[Node, Tangents], Value | None]:
    """The JVP of y = f(x) from slope(y, x, **params) = f'(x); of narrow floats it is rounded once."""

    def jvp(n: Node, ts: Tangents) -> Value | None:
        if ts[0] is None:
            return None
        y, x, t = wide(n.results[0], n.operands[0], ts[0])
        return cast_to(mul(slope(y, x, **n.params), t), n.results[0].dtype)

    return jvp


# (1 + tanh(u)) / 2 is sigmoid(2 u), which takes less time and is precise far left, where tanh is nearly -1.
_GELU_SCALE, _GELU_CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715


def _gelu_body(p: Params) -> Expr:
    if p["approximate"] == "none":
        half = apply("mul", X, const(0.5))
        return apply("mul", half, apply("erfc", apply("mul", X, const(-math.sqrt(0.5)))))
    cube = apply("mul", apply("mul", X, X), X)
    inner = apply("add", X, apply("mul", cube, const(_GELU_CUBIC)))
    return apply("mul", X, apply("sigmoid", apply("mul", inner, const(_GELU_SCALE))))


def _gelu_slope(y: Value, x: Value, approximate: str) -> Value:
    if approximate == "none":
        density = mul(exp(mul(square(x), -0.5)), 1 / math.sqrt(2 * math.pi))
        return add(mul(erfc(mul(x, -math.sqrt(0.5))), 0.5), mul(x, density))
    s = sigmoid(mul(add(x, mul(mul(square(x), x), _GELU_CUBIC)), _GELU_SCALE))
    inner = mul(add(mul(square(x), 3 * _GELU_CUBIC), 1.0), _GELU_SCALE)
    return add(s, mul(mul(mul(x, s), sub(1.0, s)), inner))


@define(
    signature="... -> ...", body=_gelu_body, kinds="f", jvp=_by_slope(_gelu_slope), onnx="Gelu",
    samples=(*_SAMPLES, Sample((2, 3), approximate="tanh")),
)  # fmt: skip
def gelu(x: ArrayLike, approximate: str = "none") -> Value:
    """x times the normal distribution function of x; approximate="tanh" replaces erf by a tanh."""
    if approximate not in ("none", "tanh"):
        raise OperandError(f"gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    return gelu.bind(floating(as_value(x, "gelu")), approximate=approximate)


@define(
    signature="... -> ...", kinds="f", onnx="LeakyRelu",
    body=lambda p: apply("where", apply("gt", X, const(0.0)), X, apply("mul", X, const(p["slope"]))),
    jvp=_by_slope(lambda y, x, slope: _pick(gt(x, 0), x, 1.0, slope)),
    samples=(*_SAMPLES, Sample((2, 3), slope=0.2)),
)  # fmt: skip
def leaky_relu(x: ArrayLike, slope: float = 0.01) -> Value:
    """x where it is positive, slope times x elsewhere."""
    return leaky_relu.bind(floating(as_value(x, "leaky_relu")), slope=float(slope))


def _elu_body(alpha: float, width: float, scale: float) -> Expr:
    """scale * (x where positive, alpha * expm1(x / width) elsewhere)."""
    low = apply("min", X, const(0.0))
    bent = apply("expm1", low if width == 1 else apply("div", low, const(width)))
    y = apply("where", apply("gt", X, const(0.0)), X, apply("mul", bent, const(alpha)))
    return y if scale == 1 else apply("mul", y, const(scale))


def _elu_slope(x: Value, alpha: float, width: float, scale: float) -> Value:
    low = minimum(x, 0.0)
    bent = mul(exp(low if width == 1 else mul(low, 1 / width)), scale * alpha / width)
    return _pick(gt(x, 0), x, scale, bent)


@define(
    signature="... -> ...", body=lambda p: _elu_body(p["alpha"], 1.0, 1.0), kinds="f", onnx="Elu",
    jvp=_by_slope(lambda y, x, alpha: _elu_slope(x, alpha, 1.0, 1.0)),
    samples=(*_SAMPLES, Sample((2, 3), alpha=0.5)),
)  # fmt: skip
def elu(x: ArrayLike, alpha: float = 1.0) -> Value:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    return elu.bind(floating(as_value(x, "elu")), alpha=float(alpha))


@define(
    signature="... -> ...", body=lambda p: _elu_body(p["alpha"], p["alpha"], 1.0), kinds="f",
    jvp=_by_slope(lambda y, x, alpha: _elu_slope(x, alpha, alpha, 1.0)), onnx="Celu",
    samples=(*_SAMPLES, Sample((2, 3), alpha=0.5)),
)  # fmt: skip
def celu(x: ArrayLike, alpha: float = 1.0) -> Value:
    """x where it is positive, alpha * (exp(x / alpha) - 1) elsewhere."""
    if alpha == 0:
        raise OperandError("celu: alpha is 0, and x is divided by it")
    return celu.bind(floating(as_value(x, "celu")), alpha=float(alpha))


selu = unary("selu", "The scaled elu that keeps mean 0 and variance 1.", floats=True, kinds="f",
             onnx="Selu", body=_elu_body(_SELU_ALPHA, 1.0, _SELU_SCALE),
             partials=lambda y, x: (_elu_slope(x, _SELU_ALPHA, 1.0, _SELU_SCALE),))  # fmt: skip


def _softplus_body(p: Params) -> Expr:
    b = p["beta"]
    if b == 1:
        return _SOFTPLUS
    x = apply("mul", X, const(b))
    return apply("div", apply("add", apply("max", x, const(0.0)), _small(x)), const(b))


@define(
    signature="... -> ...", body=_softplus_body, kinds="f", onnx="Softplus",
    jvp=_by_slope(lambda y, x, beta: sigmoid(x if beta == 1 else mul(x, beta))),
    samples=(*_SAMPLES, Sample((2, 3), beta=2.0)),
)  # fmt: skip
def softplus(x: ArrayLike, beta: float = 1.0) -> Value:
    """log(1 + exp(beta * x)) / beta, without overflow."""
    if beta == 0:
        raise OperandError("softplus: beta is 0, and the result is divided by it")
    return softplus.bind(floating(as_value(x, "softplus")), beta=float(beta))


@define(
    signature="... -> ...", kinds="f",
    body=lambda p: apply("min", apply("max", X, const(p["low"])), const(p["high"])),
    jvp=_by_slope(lambda y, x, low, high: _between(x, low, high)),
    samples=(*_SAMPLES, Sample((2, 3), low=-0.5, high=0.7)),
)  # fmt: skip
def hardtanh(x: ArrayLike, low: float = -1.0, high: float = 1.0) -> Value:
    """x, but at least low and at most high; the derivative at both ends is 0."""
    if low > high:
        raise OperandError(f"hardtanh: low {low} is above high {high}")
    return hardtanh.bind(floating(as_value(x, "hardtanh")), low=float(low), high=float(high))


@define(
    signature="... -> ...", kinds="f", onnx="ThresholdedRelu",
    body=lambda p: apply("where", apply("gt", X, const(p["level"])), X, const(p["value"])),
    jvp=_by_slope(lambda y, x, level, value: _mask(gt(x, level), x)),
    samples=(Sample((3,), 0.1, 0.5), Sample((2, 3), -0.5, 2.0), Sample((0, 2), 0.0, 0.0)),
)  # fmt: skip
def threshold(x: ArrayLike, level: float, value: float) -> Value:
    """x where it is above the level, the value elsewhere."""
    v = floating(as_value(x, "threshold"))
    return threshold.bind(v, level=float(level), value=float(value))


def _outside(p: Params) -> Expr:
    return apply("gt", apply("abs", X), const(p["width"]))


@define(
    signature="... -> ...", kinds="f",
    body=lambda p: apply("where", _outside(p), X, const(0.0)),
    jvp=_by_slope(lambda y, x, width: _mask(gt(absolute(x), width), x)),
    samples=(*_SAMPLES, Sample((2, 3), width=0.2)),
)  # fmt: skip
def hardshrink(x: ArrayLike, width: float = 0.5) -> Value:
    """x where it is further than width from 0, 0 elsewhere."""
    return hardshrink.bind(floating(as_value(x, "hardshrink")), width=float(width))


@define(
    signature="... -> ...", kinds="f", onnx="Shrink",
    body=lambda p: apply(
        "where", _outside(p), apply("sub", X, apply("copysign", const(p["width"]), X)), const(0.0)
    ),
    jvp=_by_slope(lambda y, x, width: _mask(gt(absolute(x), width), x)),
    samples=(*_SAMPLES, Sample((2, 3), width=0.2)),
)  # fmt: skip
def softshrink(x: ArrayLike, width: float = 0.5) -> Value:
    """x moved towards 0 by width, and 0 where it is within width of 0."""
    if width < 0:
        raise OperandError(f"softshrink: width is {width}, expected at least 0")
    return softshrink.bind(floating(as_value(x, "softshrink")), width=float(width))


# With further operands


@define(
    signature="..., ... -> ...", kinds="f", onnx="PRelu",
    body=apply("where", apply("gt", X, const(0.0)), X, apply("mul", X, arg(1))),
    partials=lambda y, x, a: (_pick(gt(x, 0), x, 1.0, a), minimum(x, 0.0)),
    samples=(Sample((3,), (3,)), Sample((2, 3), (3,)), Sample((2, 3), ()), Sample((0,), (1,))),
)  # fmt: skip
def prelu(x: ArrayLike, slope: ArrayLike) -> Value:
    """x where it is positive, slope times x elsewhere; the slope broadcasts to x."""
    v, a = (floating(as_value(o, "prelu")) for o in (x, slope))
    return prelu.bind(*meet("prelu", (v, a)))


@public
def glu(x: ArrayLike, axis: int = -1) -> Value:
    """The first half of x along an axis times the sigmoid of the second half."""
    a, b = halves("glu", x, axis)
    return mul(a, sigmoid(b))


@public
def swiglu(x: ArrayLike, axis: int = -1) -> Value:
    """The silu of the first half of x along an axis times the second half."""
    a, b = halves("swiglu", x, axis)
    return mul(silu(a), b)


@public
def geglu(x: ArrayLike, axis: int = -1) -> Value:
    """The gelu of the first half of x along an axis times the second half."""
    a, b = halves("geglu", x, axis)
    return mul(gelu(a), b)


def halves(op: str, x: ArrayLike, axis: int) -> tuple[Value, Value]:
    """Both halves of x along an axis."""
    v = floating(as_value(x, op))
    k = axis_of(op, axis, v.ndim)
    if not require("divisible", v.shape[k], 2, f"{op}: axis {k}"):
        raise ShapeError(f"{op}: axis {k} of {v.type} is {v.shape[k]}, expected an even size")
    a, b = split(v, 2, k)
    return a, b
