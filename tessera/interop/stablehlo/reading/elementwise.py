"""Ops that act on each element: JAX's primitives under other names."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.constant import Constant
from tessera.core.dtype import bool_
from tessera.interop.jax.rules import RULES as PRIMITIVES
from tessera.interop.stablehlo.reading.table import RULES, OpFrame, rule
from tessera.interop.stablehlo.tree import HloOp, Resource, resource
from tessera.interop.stablehlo.writer import StableHloError
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.ops.define import as_value

_PRIMITIVE = {
    "abs": "abs", "add": "add", "and": "and", "atan2": "atan2", "cbrt": "cbrt", "ceil": "ceil",
    "clamp": "clamp",
    "complex": "complex", "cosine": "cos", "divide": "div", "exponential": "exp",
    "exponential_minus_one": "expm1",
    "floor": "floor", "imag": "imag", "is_finite": "is_finite", "log": "log", "log_plus_one": "log1p",
    "logistic": "logistic", "maximum": "max", "minimum": "min", "multiply": "mul",
    "negate": "neg", "not": "not",
    "or": "or", "power": "pow", "real": "real", "remainder": "rem", "rsqrt": "rsqrt",
    "shift_left": "shift_left",
    "shift_right_arithmetic": "shift_right_arithmetic",
    "shift_right_logical": "shift_right_logical", "sign": "sign",
    "sine": "sin", "sqrt": "sqrt", "subtract": "sub", "tan": "tan", "tanh": "tanh", "xor": "xor",
    "optimization_barrier": "optimization_barrier",
    "chlo.acos": "acos", "chlo.acosh": "acosh", "chlo.asin": "asin", "chlo.asinh": "asinh",
    "chlo.atan": "atan",
    "chlo.atanh": "atanh", "chlo.conj": "conj", "chlo.cosh": "cosh", "chlo.digamma": "digamma",
    "chlo.erf": "erf",
    "chlo.erf_inv": "erf_inv", "chlo.erfc": "erfc", "chlo.lgamma": "lgamma", "chlo.next_after": "nextafter",
    "chlo.sinh": "sinh", "chlo.square": "square", "chlo.tan": "tan", "atan": "atan",
    "acos": "acos", "asin": "asin",
    "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh",
    "chlo.log1p": "log1p", "chlo.bessel_i1e": "bessel_i1e", "chlo.zeta": "zeta",
}  # fmt: skip


def _primitive(name: str) -> Any:
    run = PRIMITIVES[name]
    return lambda frame, o, *xs: run(o.attributes, *xs)


for _theirs, _jax in _PRIMITIVE.items():
    RULES[_theirs if "." in _theirs else f"stablehlo.{_theirs}"] = _primitive(_jax)


@rule("constant")
def _constant(frame: OpFrame, o: HloOp) -> Value:
    value = o.attributes["value"]
    if isinstance(value, Resource):
        value = resource(frame.module, value, o.line)
    return as_value(np.array(value))


@rule("compare")
def _compare(frame: OpFrame, o: HloOp, x: Value, y: Value) -> Value:
    """By direction; the total order of floats puts NaN last, and is asked for zeros of one sign."""
    words = list(o.attributes.get("words", []))
    way = words[0] if words else o.attributes["comparison_direction"]
    kind = words[1] if len(words) > 1 else o.attributes.get("compare_type", "")
    total = kind == "TOTALORDER" and x.dtype.kind == "f"
    if total and way in ("GT", "GE"):
        x, y, way = y, x, {"GT": "LT", "GE": "LE"}[way]
    if total and way in ("LT", "LE"):
        return PRIMITIVES["lt_to" if way == "LT" else "le_to"]({}, x, y)  # type: ignore[no-any-return]
    names = {"EQ": op.eq, "NE": op.ne, "LT": op.lt, "LE": op.le, "GT": op.gt, "GE": op.ge}
    return names[way](x, y)


@rule("select")
def _select(frame: OpFrame, o: HloOp, which: Value, a: Value, b: Value) -> Value:
    return op.where(which, a, b)


@rule("convert")
def _convert(frame: OpFrame, o: HloOp, x: Value) -> Value:
    to = o.types[0].dtype
    if to is bool_ and x.dtype.kind != "b":
        return op.ne(x, 0)
    if x.dtype.kind == "c" and to.kind != "c":
        x = op.real(x)
    return op.cast(x, to)


@rule("bitcast_convert")
def _bitcast(frame: OpFrame, o: HloOp, x: Value) -> Value:
    to = o.types[0]
    if to.dtype is x.dtype:
        return x
    return PRIMITIVES["bitcast_convert_type"]({"new_dtype": to.dtype}, x)  # type: ignore[no-any-return]


@rule("chlo.polygamma")
def _polygamma(frame: OpFrame, o: HloOp, order: Value, x: Value) -> Value:
    """The order is one whole number, which the module states."""
    found = _numbers(order)
    if len(found) != 1 or not all(n == int(n) for n in found):
        raise StableHloError(
            f"stablehlo: line {o.line}: chlo.polygamma has the order {order.type}, expected one whole number "
            "for all elements, as a constant of the module"
        )
    return op.polygamma(int(found.pop()), x)


def _numbers(v: Value) -> set[float]:
    """The numbers of a constant that may have been broadcast; none where they are not known."""
    while v.node is not None and v.node.op.view is not None:
        v = v.node.operands[0]
    held = v.node.params.get("value") if v.node is not None else v.storage
    array = held.array if isinstance(held, Constant) else held
    return set() if array is None else set(np.asarray(array).reshape(-1).tolist())


@rule("round_nearest_even")
def _round_even(frame: OpFrame, o: HloOp, x: Value) -> Value:
    return op.round(x)


@rule("round_nearest_afz")
def _round_away(frame: OpFrame, o: HloOp, x: Value) -> Value:
    return PRIMITIVES["round"]({"rounding_method": 0}, x)  # type: ignore[no-any-return]


@rule("popcnt")
def _popcount(frame: OpFrame, o: HloOp, x: Value) -> Value:
    total = op.zeros_like(x)
    for k in range(x.dtype.bits):
        total = op.add(total, op.bitwise_and(op.bitwise_right_shift(x, k), 1))
    return total


@rule("reduce_precision")
def _precision(frame: OpFrame, o: HloOp, x: Value) -> Value:
    given = o.attributes.get("format")
    if given is not None:  # e8m7
        exponent, mantissa = map(int, str(given)[1:].split("m"))
    else:
        exponent, mantissa = o.attributes["exponent_bits"], o.attributes["mantissa_bits"]
    p = {"exponent_bits": exponent, "mantissa_bits": mantissa}
    return PRIMITIVES["reduce_precision"](p, x)  # type: ignore[no-any-return]
