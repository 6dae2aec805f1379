"""Elementwise ops: one element of the result from one of each operand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tessera.core.dtype import bool_, f32
from tessera.interop.torch.rule import (
    AtenCall,
    NoRuleError,
    as_dtype,
    is_value,
    met,
    number,
    rule,
    wide,
)
from tessera.lang import op

# Whatever the dtype, the result has it.
_SAME: dict[str, Callable[[Any], Any]] = {
    "ceil": op.ceil, "floor": op.floor, "neg": op.neg,
    "trunc": op.trunc, "round": op.round, "square": op.square, "conj": op.conj,
    "_conj": op.conj, "bitwise_not": op.bitwise_invert, "alias": lambda x: x, "clone": lambda x: x,
    "detach": lambda x: x, "lift_fresh_copy": lambda x: x, "resolve_conj": lambda x: x,
    "positive": lambda x: x,
    "lift_fresh": lambda x: x, "alias_copy": lambda x: x, "_conj_physical": op.conj, "conj_physical": op.conj,
}  # fmt: skip


def _sign(x: Any) -> Any:
    """The sign of NaN is 0."""
    found = op.sign(x)
    return op.where(op.isnan(x), number(0, x.dtype), found) if x.dtype.kind == "f" else found


def _relu(x: Any) -> Any:
    return op.relu(x) if x.dtype.kind == "f" else op.maximum(x, number(0, x.dtype))


_SAME |= {"relu": _relu, "sgn": _sign, "sign": _sign}
# Integers and bools become the default float.
_FLOAT = {
    "acos": op.acos, "acosh": op.acosh, "asin": op.asin, "asinh": op.asinh, "atan": op.atan,
    "atanh": op.atanh, "cos": op.cos, "cosh": op.cosh, "digamma": op.digamma, "erf": op.erf,
    "erfc": op.erfc, "erfinv": op.erfinv, "exp": op.exp, "exp2": op.exp2, "expm1": op.expm1,
    "lgamma": op.lgamma, "log": op.log, "log10": op.log10, "log1p": op.log1p, "log2": op.log2,
    "reciprocal": op.reciprocal, "rsqrt": op.rsqrt, "sigmoid": op.sigmoid, "sin": op.sin,
    "sinh": op.sinh, "sqrt": op.sqrt, "tan": op.tan, "tanh": op.tanh,
}  # fmt: skip
# The same, of several steps: narrow floats are rounded once, at the end.
_WIDE = {
    "i0": op.i0, "special_i0e": op.i0e, "special_i1": op.i1, "special_i1e": op.i1e, "sinc": op.sinc,
    "special_ndtri": op.ndtri, "special_erfcx": op.erfcx, "special_log_ndtr": op.log_ndtr,
}  # fmt: skip
_WHOLE = {"ceil", "floor", "trunc", "round"}  # of integers these are the integers themselves
_TESTS = {
    "isinf": op.isinf,
    "isnan": op.isnan,
    "logical_not": op.logical_not,
    "signbit": op.signbit,
}
_ARITHMETIC = {
    "atan2": op.atan2, "copysign": op.copysign, "hypot": op.hypot, "maximum": op.maximum,
    "minimum": op.minimum, "nextafter": op.nextafter, "logaddexp": op.logaddexp,
}  # fmt: skip
_COMPARISONS = {"eq": op.eq, "ne": op.ne, "lt": op.lt, "le": op.le, "gt": op.gt, "ge": op.ge}
_LOGIC = {
    "logical_and": op.logical_and, "logical_or": op.logical_or, "logical_xor": op.logical_xor,
}  # fmt: skip
_BITS = {
    "bitwise_and": op.bitwise_and, "bitwise_or": op.bitwise_or, "bitwise_xor": op.bitwise_xor,
    "bitwise_left_shift": op.bitwise_left_shift, "bitwise_right_shift": op.bitwise_right_shift,
}  # fmt: skip


def _unary(f: Callable[[Any], Any], whole: bool) -> Callable[..., Any]:
    def run(n: AtenCall, x: Any, **_: Any) -> Any:
        x = as_dtype(x, n.dtype)
        return x if whole and x.dtype.kind in "iub" else f(x)

    return run


def _unary_wide(f: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(n: AtenCall, x: Any) -> Any:
        return as_dtype(f(as_dtype(x, wide(n.dtype))), n.dtype)

    return run


def _tested(f: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(n: AtenCall, x: Any) -> Any:
        return f(as_dtype(x, bool_) if f is op.logical_not else x)

    return run


def _binary(f: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(n: AtenCall, x: Any, y: Any) -> Any:
        return f(as_dtype(x, n.dtype), as_dtype(y, n.dtype))

    return run


def _compared(f: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(n: AtenCall, x: Any, y: Any) -> Any:
        dtype = met(x, y)
        if dtype.kind in "iu" and not is_value(y) and isinstance(y, int):
            low, high = (-(1 << dtype.bits - 1), 1 << dtype.bits - 1)
            if not (low <= y < high if dtype.kind == "i" else 0 <= y < 1 << dtype.bits):
                raise NoRuleError(f"{y} does not fit {dtype}")
        return f(as_dtype(x, dtype), as_dtype(y, dtype))

    return run


def _logical(f: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def run(n: AtenCall, x: Any, y: Any) -> Any:
        return f(as_dtype(x, bool_), as_dtype(y, bool_))

    return run


def _bitwise(f: Callable[[Any, Any], Any], name: str) -> Callable[..., Any]:
    logic = {"bitwise_and": op.logical_and, "bitwise_or": op.logical_or, "bitwise_xor": op.ne}

    def run(n: AtenCall, x: Any, y: Any) -> Any:
        g = logic[name] if n.dtype is bool_ else f
        return g(as_dtype(x, n.dtype), as_dtype(y, n.dtype))

    return run


for _name, _f in _SAME.items():
    rule(_name)(_unary(_f, _name in _WHOLE))
for _name, _f in _FLOAT.items():
    rule(_name)(_unary(_f, False))
for _name, _f in _WIDE.items():
    rule(_name)(_unary_wide(_f))
for _name, _f in _TESTS.items():
    rule(_name)(_tested(_f))
for _name, _g in _ARITHMETIC.items():
    rule(_name, f"{_name}.Tensor", f"{_name}.Scalar")(_binary(_g))
for _name, _g in _COMPARISONS.items():
    rule(f"{_name}.Tensor", f"{_name}.Scalar")(_compared(_g))
for _name, _g in _LOGIC.items():
    rule(_name)(_logical(_g))
for _name, _g in _BITS.items():
    rule(f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.Scalar_Tensor", f"{_name}.Tensor_Scalar")(
        _bitwise(_g, _name)
    )
for _name, _g in {"gcd": op.gcd, "lcm": op.lcm}.items():
    rule(_name)(_binary(_g))
for _name, _g in {
    "__lshift__": op.bitwise_left_shift,
    "__rshift__": op.bitwise_right_shift,
}.items():
    rule(f"{_name}.Tensor", f"{_name}.Scalar")(_binary(_g))


@rule("abs")
def _abs(n: AtenCall, x: Any) -> Any:
    return x if x.dtype is bool_ else as_dtype(op.abs(x), n.dtype)


@rule("copy")
def _copy(n: AtenCall, x: Any, y: Any, non_blocking: bool = False) -> Any:
    return op.broadcast_to(as_dtype(y, n.dtype), x.shape)


@rule("add.Tensor", "add.Scalar")
def _add(n: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = as_dtype(x, n.dtype), as_dtype(y, n.dtype)
    if n.dtype is bool_:
        return op.logical_or(x, y) if alpha else x
    return op.add(x, y if _is_one(alpha) else op.mul(y, as_dtype(alpha, n.dtype)))


@rule("sub.Tensor", "sub.Scalar")
def _sub(n: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    x, y = as_dtype(x, n.dtype), as_dtype(y, n.dtype)
    return op.sub(x, y if _is_one(alpha) else op.mul(y, as_dtype(alpha, n.dtype)))


@rule("rsub.Tensor", "rsub.Scalar")
def _rsub(n: AtenCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    return _sub(n, y, x, alpha)


@rule("prims.fma.default")
def _fma(n: AtenCall, x: Any, y: Any, z: Any) -> Any:
    x, y, z = (as_dtype(v, wide(n.dtype)) for v in (x, y, z))
    return as_dtype(op.add(op.mul(x, y), z), n.dtype)


def _is_one(alpha: Any) -> bool:
    return not is_value(alpha) and alpha == 1


@rule("mul.Tensor", "mul.Scalar")
def _mul(n: AtenCall, x: Any, y: Any) -> Any:
    x, y = as_dtype(x, n.dtype), as_dtype(y, n.dtype)
    return op.logical_and(x, y) if n.dtype is bool_ else op.mul(x, y)


@rule(
    "div.Tensor",
    "true_divide.Tensor",
    "div.Scalar",
    "div.Tensor_mode",
    "div.Scalar_mode",
    "floor_divide",
)
def _div(n: AtenCall, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    x, y = as_dtype(x, n.dtype), as_dtype(y, n.dtype)
    mode = "floor" if n.target == "aten.floor_divide.default" else rounding_mode
    if mode is None:
        return op.div(x, y)
    if mode == "floor":
        return _floor_divided(x, y)
    if n.dtype.kind in "iu":
        return op.floor_divide(op.sub(x, op.fmod(x, y)), y)
    return op.trunc(op.div(x, y))


def _floor_divided(x: Any, y: Any) -> Any:
    """By the remainder, as Python: NaN for an infinite x, -1 for an infinite y of the other sign."""
    found = op.floor_divide(x, y)
    if x.dtype.kind != "f":
        return found
    nan, low = number(math.nan, x.dtype), number(-1, x.dtype)
    apart = op.ne(op.signbit(x), op.signbit(y))
    beyond = op.logical_and(op.isinf(y), op.logical_and(apart, op.ne(x, 0)))
    lost = op.logical_and(op.isinf(x), op.ne(y, 0))
    return op.where(lost, nan, op.where(beyond, low, found))


@rule("fmod.Tensor", "fmod.Scalar")
def _fmod(n: AtenCall, x: Any, y: Any) -> Any:
    return op.fmod(as_dtype(x, n.dtype), as_dtype(y, n.dtype))


@rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(n: AtenCall, x: Any, y: Any) -> Any:
    return op.remainder(as_dtype(x, n.dtype), as_dtype(y, n.dtype))


@rule("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(n: AtenCall, x: Any, y: Any) -> Any:
    if n.dtype is bool_:
        raise NoRuleError("powers of bools")
    if not is_value(y) and n.dtype.kind in "fc" and y in (0.5, -0.5, 2, 1):
        by: dict[Any, Callable[[Any], Any]] = {
            0.5: op.sqrt,
            -0.5: op.rsqrt,
            2: op.square,
            1: lambda x: x,
        }
        return by[y](as_dtype(x, n.dtype))
    return op.pow(as_dtype(x, n.dtype), as_dtype(y, n.dtype))


@rule("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar")
def _zeta(n: AtenCall, x: Any, q: Any) -> Any:
    return as_dtype(op.zeta(as_dtype(x, wide(n.dtype)), as_dtype(q, wide(n.dtype))), n.dtype)


@rule("igamma", "igammac")
def _gammainc(n: AtenCall, a: Any, x: Any) -> Any:
    f = op.gammainc if n.target == "aten.igamma.default" else op.gammaincc
    return as_dtype(f(as_dtype(a, wide(n.dtype)), as_dtype(x, wide(n.dtype))), n.dtype)


@rule("polygamma")
def _polygamma(n: AtenCall, order: int, x: Any) -> Any:
    return as_dtype(op.polygamma(order, as_dtype(x, wide(n.dtype))), n.dtype)


@rule("ldexp.Tensor")
def _ldexp(n: AtenCall, x: Any, power: Any) -> Any:
    return op.mul(as_dtype(x, n.dtype), op.exp2(as_dtype(power, n.dtype)))


@rule("fmax")
def _fmax(n: AtenCall, x: Any, y: Any) -> Any:
    x, y = as_dtype(x, n.dtype), as_dtype(y, n.dtype)
    return _without_nan(op.maximum, x, y)


@rule("fmin")
def _fmin(n: AtenCall, x: Any, y: Any) -> Any:
    x, y = as_dtype(x, n.dtype), as_dtype(y, n.dtype)
    return _without_nan(op.minimum, x, y)


def _without_nan(f: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind != "f":
        return f(x, y)
    return op.where(op.isnan(x), y, op.where(op.isnan(y), x, f(x, y)))


@rule("clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor")
def _clamp(n: AtenCall, x: Any, low: Any = None, high: Any = None) -> Any:
    x = as_dtype(x, n.dtype)
    if low is not None:
        x = op.maximum(x, as_dtype(low, n.dtype))
    return x if high is None else op.minimum(x, as_dtype(high, n.dtype))


@rule("clamp_max", "clamp_max.Tensor")
def _clamp_max(n: AtenCall, x: Any, high: Any) -> Any:
    return _clamp(n, x, None, high)


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def _where(n: AtenCall, c: Any, x: Any, y: Any) -> Any:
    return op.where(as_dtype(c, bool_), as_dtype(x, n.dtype), as_dtype(y, n.dtype))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(n: AtenCall, x: Any, mask: Any, value: Any) -> Any:
    return op.where(as_dtype(mask, bool_), as_dtype(value, n.dtype), x)


@rule(
    "_to_copy",
    "to.dtype",
    "to.dtype_layout",
    "prims.convert_element_type.default",
    "_to_copy.default",
)
def _to_copy(n: AtenCall, x: Any, *_: Any, **__: Any) -> Any:
    return as_dtype(x, n.dtype)


@rule("round.decimals")
def _round(n: AtenCall, x: Any, decimals: int = 0) -> Any:
    x = as_dtype(x, n.dtype)
    if x.dtype.kind != "f":
        return x
    by = number(10.0 ** abs(decimals), x.dtype)
    if decimals >= 0:
        return op.div(op.round(op.mul(x, by)), by)
    return op.mul(op.round(op.div(x, by)), by)


@rule("gelu")
def _gelu(n: AtenCall, x: Any, approximate: str = "none") -> Any:
    return op.gelu(x, approximate=approximate)


@rule("silu")
def _silu(n: AtenCall, x: Any) -> Any:
    return op.silu(x)


@rule("elu")
def _elu(
    n: AtenCall, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Any:
    down = op.expm1(op.mul(x, number(input_scale, x.dtype)))
    y = op.where(op.gt(x, 0), x, op.mul(down, number(alpha, x.dtype)))
    return op.mul(y, number(scale, x.dtype))


@rule("leaky_relu")
def _leaky_relu(n: AtenCall, x: Any, slope: float = 0.01) -> Any:
    return op.where(op.gt(x, 0), x, op.mul(x, number(slope, x.dtype)))


@rule("hardtanh")
def _hardtanh(n: AtenCall, x: Any, low: Any = -1.0, high: Any = 1.0) -> Any:
    return _clamp(n, x, low, high)


@rule("logit")
def _logit(n: AtenCall, x: Any, eps: float | None = None) -> Any:
    x = as_dtype(x, n.dtype)
    if eps is not None:
        x = op.clip(x, number(eps, x.dtype), number(1 - eps, x.dtype))
    return op.log(op.div(x, op.sub(number(1, x.dtype), x)))


@rule("polar")
def _polar(n: AtenCall, r: Any, angle: Any) -> Any:
    return op.complex(op.mul(r, op.cos(angle)), op.mul(r, op.sin(angle)))


@rule("complex")
def _complex(n: AtenCall, re: Any, im: Any) -> Any:
    return op.complex(re, im)


@rule("real")
def _real(n: AtenCall, x: Any) -> Any:
    return op.real(x) if x.dtype.kind == "c" else x


@rule("imag")
def _imag(n: AtenCall, x: Any) -> Any:
    return op.imag(x)


@rule("angle")
def _angle(n: AtenCall, x: Any) -> Any:
    if x.dtype.kind == "c":
        return op.atan2(op.imag(x), op.real(x))
    x = as_dtype(x, n.dtype)
    turned = op.where(op.lt(x, 0), number(math.pi, x.dtype), number(0, x.dtype))
    return op.where(op.isnan(x), x, turned)


@rule("_softmax", "softmax.int")
def _softmax(n: AtenCall, x: Any, axis: int, half_to_float: Any = False) -> Any:
    return _over(op.softmax, n, x, axis)


@rule("_log_softmax", "log_softmax.int")
def _log_softmax(n: AtenCall, x: Any, axis: int, half_to_float: Any = False) -> Any:
    return _over(op.log_softmax, n, x, axis)


def _over(f: Any, n: AtenCall, x: Any, axis: int) -> Any:
    """f along an axis, in 32 bits for narrow floats, as PyTorch does it."""
    if not x.ndim:
        return op.reshape(_over(f, n, op.reshape(x, (1,)), 0), ())
    x = as_dtype(x, wide(n.dtype if n.dtype.kind == "f" else f32))
    return as_dtype(f(x, axis=axis), n.dtype)
