"""Elementwise arithmetic, comparison, logic and activation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from tessera.core.dtype import f32, i64
from tessera.interop.onnx.rule import NodeCall, is_text, rule, scalar_like
from tessera.lang import op
from tessera.ops.define import as_value


def sigmoid(x: Any) -> Any:
    """op.sigmoid, but zero where that is below the normal numbers.

    Networks that train with SiLU multiply it with inputs far below -87, and what reads the result multiplies
    subnormal numbers, which takes a processor a hundred times as long.  onnxruntime's own has none either.
    """
    y = op.sigmoid(x)
    if y.dtype.kind != "f" or y.dtype.bits < 32:
        return y
    return op.where(op.lt(y, float(np.finfo(y.dtype.np).tiny)), op.zeros_like(y), y)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": op.abs, "Acos": op.acos, "Acosh": op.acosh, "Asin": op.asin, "Asinh": op.asinh,
    "Atan": op.atan, "Atanh": op.atanh, "Ceil": op.ceil, "Cos": op.cos, "Cosh": op.cosh,
    "Erf": op.erf, "Exp": op.exp, "Floor": op.floor, "HardSwish": op.hardswish, "IsNaN": op.isnan,
    "Log": op.log, "Mish": op.mish, "Neg": op.neg, "Not": op.logical_not, "Relu": op.relu,
    "Reciprocal": op.reciprocal, "Round": op.round, "Sigmoid": sigmoid, "Sign": op.sign,
    "Sin": op.sin, "Sinh": op.sinh, "Softplus": op.softplus, "Softsign": op.softsign,
    "Sqrt": op.sqrt, "Tan": op.tan, "Tanh": op.tanh, "BitwiseNot": op.bitwise_invert,
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": op.add, "Sub": op.sub, "Mul": op.mul, "And": op.logical_and, "Or": op.logical_or,
    "Xor": op.logical_xor, "Greater": op.gt, "GreaterOrEqual": op.ge, "Less": op.lt,
    "LessOrEqual": op.le, "BitwiseAnd": op.bitwise_and, "BitwiseOr": op.bitwise_or,
    "BitwiseXor": op.bitwise_xor,
}  # fmt: skip
_SEVERAL: dict[str, Callable[[Any, Any], Any]] = {
    "Max": op.maximum, "Min": op.minimum, "Sum": op.add,
}  # fmt: skip


def _enter_unary(name: str, f: Callable[[Any], Any]) -> None:
    rule(name)(lambda n, x: f(x))


def _enter_binary(name: str, f: Callable[[Any, Any], Any]) -> None:
    rule(name)(lambda n, a, b: f(*aligned(n, a, b)))


def _enter_several(name: str, f: Callable[[Any, Any], Any]) -> None:
    rule(name)(lambda n, *xs: reduce(f, xs))


for _name, _f in _UNARY.items():
    _enter_unary(_name, _f)
for _name, _g in _BINARY.items():
    _enter_binary(_name, _g)
for _name, _g in _SEVERAL.items():
    _enter_several(_name, _g)


def aligned(n: NodeCall, a: Any, b: Any) -> tuple[Any, Any]:
    """Operands of a binary node; before version 7 an attribute says where b stands along a."""
    if n.version >= 7 or not n.get("broadcast", 0) or "axis" not in n.node.attributes:
        return a, b
    tail = len(a.shape) - n.need("axis") - len(b.shape)
    return a, op.reshape(b, (*b.shape, *(1,) * tail))


@rule("Div")
def _div(n: NodeCall, a: Any, b: Any) -> Any:
    """Quotients; of integers the part before the point."""
    a, b = map(as_value, aligned(n, a, b))
    if a.dtype.kind not in "iu":
        return op.div(a, b)
    q = op.floor_divide(a, b)
    if a.dtype.kind == "u":
        return q
    rest = op.logical_and(op.ne(op.mul(q, b), a), op.ne(op.lt(a, 0), op.lt(b, 0)))
    return op.add(q, op.cast(rest, a.dtype))


@rule("Mod")
def _mod(n: NodeCall, a: Any, b: Any) -> Any:
    return op.fmod(a, b) if n.get("fmod", 0) else op.remainder(a, b)


@rule("Pow")
def _pow(n: NodeCall, a: Any, b: Any) -> Any:
    """Powers in the dtype of the base."""
    a, b = map(as_value, aligned(n, a, b))
    if b.storage is not None and b.storage.size == 1 and b.ndim <= a.ndim and a.dtype.kind == "f":
        return op.pow(a, float(b.storage.item()))
    if a.dtype is b.dtype:
        return op.pow(a, b)
    if a.dtype.kind == "f":
        return op.pow(a, op.cast(b, a.dtype))
    if b.dtype.kind == "f":
        wide = b.dtype if b.dtype.bits >= 32 else f32
        return op.cast(op.pow(op.cast(a, wide), op.cast(b, wide)), a.dtype)
    return op.cast(op.pow(op.cast(a, i64), op.cast(b, i64)), a.dtype)


@rule("Mean")
def _mean(n: NodeCall, *xs: Any) -> Any:
    return op.div(reduce(op.add, xs), len(xs))


@rule("BitShift")
def _bitshift(n: NodeCall, a: Any, b: Any) -> Any:
    left = n.need("direction") == "LEFT"
    return (op.bitwise_left_shift if left else op.bitwise_right_shift)(a, b)


@rule("Equal")
def _equal(n: NodeCall, a: Any, b: Any) -> Any:
    if is_text(a) or is_text(b):
        return np.asarray(a == b, bool)
    return op.eq(*aligned(n, a, b))


@rule("Where", moves=True)
def _where(n: NodeCall, condition: Any, x: Any, y: Any) -> Any:
    return op.where(condition, x, y)


@rule("IsInf")
def _isinf(n: NodeCall, x: Any) -> Any:
    found = op.isinf(x)
    if not n.get("detect_positive", 1):
        found = op.logical_and(found, op.lt(x, 0))
    if not n.get("detect_negative", 1):
        found = op.logical_and(found, op.gt(x, 0))
    return found


@rule("Clip")
def _clip(n: NodeCall, x: Any, low: Any = None, high: Any = None) -> Any:
    if n.version < 11:
        low, high = n.get("min"), n.get("max")
        low, high = (None if v is None else scalar_like(x, v) for v in (low, high))
    x = op.maximum(x, low) if low is not None else as_value(x)
    return op.minimum(x, high) if high is not None else x


# Activation -----------------------------------------------------------------------------------


@rule("LeakyRelu")
def _leaky_relu(n: NodeCall, x: Any) -> Any:
    return op.leaky_relu(x, n.get("alpha", 0.01))


@rule("PRelu")
def _prelu(n: NodeCall, x: Any, slope: Any) -> Any:
    if n.version < 7 and len(slope.shape) == 1:
        slope = op.reshape(slope, (-1, *(1,) * (len(x.shape) - 2)))
    return op.where(op.lt(x, 0), op.mul(slope, x), x)


@rule("Elu")
def _elu(n: NodeCall, x: Any) -> Any:
    return op.elu(x, n.get("alpha", 1.0))


@rule("Celu")
def _celu(n: NodeCall, x: Any) -> Any:
    return op.celu(x, n.get("alpha", 1.0))


@rule("Selu")
def _selu(n: NodeCall, x: Any) -> Any:
    alpha, gamma = n.get("alpha", 1.67326319217681884765625), n.get("gamma", 1.05070102214813232)
    return op.mul(op.where(op.gt(x, 0), x, op.mul(alpha, op.expm1(op.minimum(x, 0)))), gamma)


@rule("HardSigmoid")
def _hard_sigmoid(n: NodeCall, x: Any) -> Any:
    return op.clip(op.add(op.mul(x, n.get("alpha", 0.2)), n.get("beta", 0.5)), 0, 1)


@rule("Swish")
def _swish(n: NodeCall, x: Any) -> Any:
    return op.mul(x, sigmoid(op.mul(x, n.get("alpha", 1.0))))


@rule("ThresholdedRelu")
def _thresholded_relu(n: NodeCall, x: Any) -> Any:
    return op.where(op.gt(x, n.get("alpha", 1.0)), x, op.zeros_like(x))


@rule("Shrink")
def _shrink(n: NodeCall, x: Any) -> Any:
    bias, width = n.get("bias", 0.0), n.get("lambd", 0.5)
    x = as_value(x)
    wide = op.cast(x, f32) if x.dtype.kind != "f" else x
    low = op.where(op.lt(wide, -width), op.add(wide, bias), op.zeros_like(wide))
    return op.cast(op.where(op.gt(wide, width), op.sub(wide, bias), low), x.dtype)


@rule("Gelu")
def _gelu(n: NodeCall, x: Any) -> Any:
    return op.gelu(x, n.get("approximate", "none"))


@rule("Hardmax")
def _hardmax(n: NodeCall, x: Any) -> Any:
    x, shape, axis = _normal_axis(n, x)
    most = op.argmax(x, axis=axis)
    return op.reshape(op.one_hot(most, x.shape[axis], x.dtype, axis=axis), shape)


@rule("Softmax")
def _softmax(n: NodeCall, x: Any) -> Any:
    x, shape, axis = _normal_axis(n, x)
    return op.reshape(op.softmax(x, axis), shape)


@rule("LogSoftmax")
def _log_softmax(n: NodeCall, x: Any) -> Any:
    x, shape, axis = _normal_axis(n, x)
    return op.reshape(op.log_softmax(x, axis), shape)


def _normal_axis(n: NodeCall, x: Any) -> tuple[Any, tuple[Any, ...], int]:
    """The axis that sums to 1; before version 13 all axes from it on are one."""
    x = as_value(x)
    shape = tuple(x.shape)
    if n.version >= 13:
        axis = n.get("axis", -1)
        return x, shape, axis % max(x.ndim, 1)
    axis = n.get("axis", 1) % max(x.ndim, 1)
    if x.ndim and axis == x.ndim - 1:
        return x, shape, axis
    return op.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:]))), shape, 1
