"""Primitives that act on each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.dtype import FORMATS, as_dtype, bool_
from tessera.interop.jax.rules.table import RULES, Params, rule
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.ops.reinterpret import bitcast

_SAME = """add sub mul atan2 pow nextafter eq ne lt le gt ge neg sign floor ceil exp exp2 log log1p expm1
sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sqrt rsqrt cbrt erf erfc lgamma digamma abs
square real imag stop_gradient"""
_OTHER = {
    "max": "maximum", "min": "minimum", "rem": "fmod", "logistic": "sigmoid", "erf_inv": "erfinv",
    "and": "bitwise_and",
    "or": "bitwise_or", "xor": "bitwise_xor", "not": "bitwise_invert", "shift_left": "bitwise_left_shift",
    "is_finite": "isfinite", "complex": "complex",
    "logaddexp": "logaddexp",
    "add_any": "add", "igamma": "gammainc", "igammac": "gammaincc", "bessel_i0e": "i0e", "bessel_i1e": "i1e",
    "regularized_incomplete_beta": "betainc", "zeta": "zeta",
}  # fmt: skip


def _plain(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p, *xs: f(*xs)


for _name in _SAME.split():
    RULES[_name] = _plain(getattr(op, _name))
for _name, _ours in _OTHER.items():
    RULES[_name] = _plain(getattr(op, _ours))


@rule("conj")
def _conj(p: Params, x: Value) -> Value:
    """Of a real number, too, a complex one."""
    return op.conj(x) if x.dtype.kind == "c" else op.complex(x, op.zeros_like(x))


@rule("shift_right_arithmetic")
def _shift_right(p: Params, x: Value, by: Value) -> Value:
    """Whatever the type, the first bit is a sign."""
    if x.dtype.kind == "i":
        return op.bitwise_right_shift(x, by)
    signed = FORMATS[f"i{x.dtype.bits}"]
    return bitcast(op.bitwise_right_shift(bitcast(x, signed), bitcast(by, signed)), x.dtype)


@rule("lt_to")
def _lt_to(p: Params, x: Value, y: Value) -> Value:
    """The order in which NaN comes after all numbers."""
    if x.dtype.kind != "f":
        return op.lt(x, y)
    return op.logical_or(op.lt(x, y), op.logical_and(op.isnan(y), op.logical_not(op.isnan(x))))


@rule("le_to")
def _le_to(p: Params, x: Value, y: Value) -> Value:
    return op.le(x, y) if x.dtype.kind != "f" else op.logical_or(op.le(x, y), op.isnan(y))


@rule("copy", "copy_p")
def _copy(p: Params, x: Value) -> Value:
    return x


@rule("optimization_barrier")
def _barrier(p: Params, *xs: Value) -> Any:
    return list(op.barrier(*xs))


@rule("div")
def _div(p: Params, x: Value, y: Value) -> Value:
    """Whole numbers are divided towards 0."""
    if x.dtype.kind not in "iu":
        return op.div(x, y)
    q = op.floor_divide(x, y)
    if x.dtype.kind == "u":
        return q
    apart = op.logical_and(op.ne(op.mul(q, y), x), op.lt(q, 0))
    return op.where(apart, op.add(q, 1), q)


@rule("shift_right_logical")
def _shift_right_logical(p: Params, x: Value, n: Value) -> Value:
    if x.dtype.kind == "u":
        return op.bitwise_right_shift(x, n)
    unsigned = as_dtype(f"u{x.dtype.bits}")
    moved = op.bitwise_right_shift(op.cast(x, unsigned), op.cast(n, unsigned))
    return op.cast(moved, x.dtype)


@rule("integer_pow")
def _integer_pow(p: Params, x: Value) -> Value:
    """Products of squares."""
    y, out, square = abs(p["y"]), None, x
    while y:
        if y & 1:
            out = square if out is None else op.mul(out, square)
        y >>= 1
        square = op.mul(square, square) if y else square
    if out is None:
        return op.ones_like(x)
    return op.reciprocal(out) if p["y"] < 0 else out


@rule("round")
def _round(p: Params, x: Value) -> Value:
    if int(p["rounding_method"]) == 1:
        return op.round(x)
    away = op.floor(op.add(op.abs(x), 0.5))
    return op.copysign(away, x)


@rule("clamp")
def _clamp(p: Params, low: Value, x: Value, high: Value) -> Value:
    return op.minimum(op.maximum(x, low), high)


@rule("select_n")
def _select(p: Params, which: Value, *cases: Value) -> Value:
    if which.dtype is bool_:
        return op.where(which, cases[1], cases[0])
    out = cases[0]
    for k, c in enumerate(cases[1:], 1):
        out = op.where(op.eq(which, k), c, out)
    return out


@rule("convert_element_type")
def _convert(p: Params, x: Value) -> Value:
    to = as_dtype(p["new_dtype"])
    if to is bool_ and x.dtype.kind != "b":
        return op.ne(x, 0)
    if x.dtype.kind == "c" and to.kind != "c":
        x = op.real(x)
    return op.cast(x, to)


@rule("bitcast_convert_type")
def _bitcast(p: Params, x: Value) -> Value:
    return bitcast(x, as_dtype(p["new_dtype"]))


@rule("reduce_precision")
def _precision(p: Params, x: Value) -> Value:
    """To the digits of another format and back."""
    formats = {(8, 7): "bf16", (5, 10): "f16", (8, 23): "f32", (11, 52): "f64"}
    name = formats.get((p["exponent_bits"], p["mantissa_bits"]))
    if name is None:
        raise KeyError("reduce_precision to a format that no dtype has")
    return op.cast(op.cast(x, as_dtype(name)), x.dtype)
