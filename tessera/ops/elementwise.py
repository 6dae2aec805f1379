"""Elementwise arithmetic, comparison, logic, bit, rounding and special functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import DType, as_dtype, complex_of, f64
from tessera.core.errors import DTypeError, OperandError
from tessera.core.host import scipy
from tessera.core.rounding import round_to, top_of
from tessera.core.scalar import SCALARS, apply, arg, const
from tessera.core.signature import broadcast_shapes
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Sample
from tessera.ops.define import (
    FUNCTIONS,
    ArrayLike,
    OpFunction,
    as_value,
    as_value_of,
    binary,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    meet,
    unary,
)
from tessera.ops.whole import whole

Tangents = Sequence[Value | None]


def _both(ts: Tangents, combine: Any, only_second: Any = lambda t: t) -> Value | None:
    p, q = ts
    if p is None or q is None:
        return p if q is None else only_second(q)
    total: Value = combine(p, q)
    return total


# Arithmetic

add = binary(
    "add", "Sum of two tensors.", kinds="buifc", pairs=True, onnx="Add",
    jvp=lambda n, ts: _both(ts, add), transpose=lambda n, ct, k: ct, linear=(),
)  # fmt: skip
sub = binary(
    "sub", "Difference of two tensors.", kinds="uifc", pairs=True, onnx="Sub",
    jvp=lambda n, ts: _both(ts, sub, neg), transpose=lambda n, ct, k: neg(ct) if k else ct,
)  # fmt: skip
mul = binary(
    "mul", "Product of two tensors, element by element.", pairs=True, onnx="Mul", linear=(0, 1),
    transpose=lambda n, ct, k: mul(ct, n.operands[1 - k]),
)  # fmt: skip


def _div_jvp(n: Node, ts: Tangents) -> Value | None:
    p, q = ts
    top = None if p is None else div(p, n.operands[1])
    if q is None:
        return top
    low = neg(mul(div(n.results[0], n.operands[1]), q))
    return low if top is None else add(top, low)


div = binary(
    "div", "True quotient of two tensors.", floats=True, onnx="Div", linear=(0,), jvp=_div_jvp,
    transpose=lambda n, ct, k: div(ct, n.operands[1]), domain=(0.5, 2.0),
)  # fmt: skip
floor_divide = binary(
    "floor_divide", "Largest whole number not above the quotient.", scalar="floor_div", kinds="uif",
    partials=lambda y, a, b: (None, None), domain=(0.6, 9.7),
)  # fmt: skip
remainder = binary(
    "remainder", "Remainder with the sign of the divisor.", scalar="mod", kinds="uif", onnx="Mod",
    partials=lambda y, a, b: (1.0, neg(floor_divide(a, b))), domain=(0.6, 9.7),
)  # fmt: skip
fmod = binary(
    "fmod", "Remainder with the sign of the dividend.", kinds="uif",
    partials=lambda y, a, b: (1.0, neg(trunc(div(a, b)))), domain=(0.6, 9.7),
)  # fmt: skip
neg = unary("neg", "Negation.", kinds="uifc", pairs=True, onnx="Neg", linear=(0,),
            transpose=lambda n, ct, k: neg(ct))  # fmt: skip
positive = unary("positive", "The tensor itself.", scalar="pos", kinds="uifc", onnx="Identity",
                 linear=(0,), transpose=lambda n, ct, k: ct)  # fmt: skip
reciprocal = unary(
    "reciprocal", "One over x.", scalar="recip", floats=True, onnx="Reciprocal",
    partials=lambda y, x: (neg(mul(y, y)),), domain=(0.5, 3.0),
)  # fmt: skip
square = unary("square", "x times x.", kinds="uifc", pairs=True, partials=lambda y, x: (mul(x, 2),))


def _abs_jvp(n: Node, ts: Tangents) -> Value | None:
    (x,), (t,) = n.operands, ts
    if t is None:
        return None
    if x.dtype.kind == "c":
        safe = where(eq(n.results[0], 0), 1.0, n.results[0])
        return div(real(mul(conj(x), t)), safe)
    return mul(sign(x), t)


abs = unary("abs", "Absolute value.", kinds="uifc", result="real", onnx="Abs", jvp=_abs_jvp)


def _sign_jvp(n: Node, ts: Tangents) -> Value | None:
    """A complex sign turns by what of t lies across it, over the length of x; 0 where x is 0 or real."""
    (x,), (t,), y = n.operands, ts, n.results[0]
    if t is None or x.dtype.kind != "c":
        return None
    length = abs(x)
    across = sub(t, mul(y, real(mul(conj(y), t))))
    zero = eq(length, 0)
    return where(zero, 0, div(across, where(zero, 1.0, length)))


sign = unary("sign", "-1, 0 or 1; x over its absolute value for complex x.", kinds="uifc",
             onnx="Sign", jvp=_sign_jvp)  # fmt: skip


def _pow_jvp(n: Node, ts: Tangents) -> Value | None:
    (x, e), (p, q), y = n.operands, ts, n.results[0]
    total = None
    if p is not None:
        slope = mul(e, pow(x, sub(e, 1)))
        total = mul(where(eq(e, 0), 0.0, slope), p)
    if q is not None:
        log_x = log(where(eq(x, 0), 1.0, x))
        term = mul(mul(y, where(eq(x, 0), 0.0, log_x)), q)
        total = term if total is None else add(total, term)
    return total


def _power(x: Any, y: Any) -> Any:
    if x.dtype.kind == "i" and (y < 0).any():
        raise DTypeError("pow: an integer to a negative power is no integer; cast to a float first")
    return SCALARS["pow"].numpy(x, y)


def _written_power(x: Value, e: float) -> Value | None:
    """x to a power that the program writes as a number, where one op has the bits of the function."""
    short: dict[float, Any] = {2: square, 1: positive, -1: reciprocal}
    return short[e](x) if x.dtype.kind == "f" and e in short else None


pow = binary(
    "pow",
    "x to the power y; correctly rounded for 1, 2 and -1.",
    kinds="uifc", onnx="Pow", jvp=_pow_jvp, by_number=_written_power, numpy=_power, domain=(0.5, 2.0),
)  # fmt: skip
maximum = binary(
    "maximum", "The larger of two tensors; NaN if either is.", scalar="max", kinds="buif", onnx="Max",
    partials=lambda y, a, b: (_share(a, b, gt), _share(b, a, gt)),
)  # fmt: skip
minimum = binary(
    "minimum", "The smaller of two tensors; NaN if either is.", scalar="min", kinds="buif", onnx="Min",
    partials=lambda y, a, b: (_share(a, b, lt), _share(b, a, lt)),
)  # fmt: skip


def _share(a: Value, b: Value, wins: Any) -> Value:
    """1 where a wins, 1/2 at a tie, 0 elsewhere."""
    one = where(wins(a, b), 1.0, where(eq(a, b), 0.5, 0.0))
    return cast_to(one, a.dtype)


def _share_of_length(y: Value, a: Value) -> Value:
    """a / y, and 0 for the vector of length 0."""
    return div(a, where(eq(y, 0), 1, y))


hypot = binary("hypot", "Length of the vector (x, y).", floats=True, kinds="f",
               partials=lambda y, a, b: (_share_of_length(y, a), _share_of_length(y, b)),
               domain=(0.5, 2.0))  # fmt: skip
copysign = binary("copysign", "Magnitude of x with the sign of y.", floats=True, kinds="f",
                  partials=lambda y, a, b: (mul(sign(a), copysign(1.0, b)), None))  # fmt: skip
nextafter = binary("nextafter", "The next representable number from x towards y.", floats=True,
                   kinds="f", partials=lambda y, a, b: (1.0, None), moves=True)  # fmt: skip


def _share_of_sum(a: Value, b: Value) -> Value:
    """exp(a) / (exp(a) + exp(b)), 1/2 for equal infinities too; no rounded logarithm is in it."""
    far = FUNCTIONS["logical_and"](eq(a, b), FUNCTIONS["isinf"](a))
    return FUNCTIONS["sigmoid"](sub(where(far, 0, a), where(far, 0, b)))


_APART = apply("exp", apply("neg", apply("abs", apply("sub", arg(0), arg(1)))))
logaddexp = binary(
    "logaddexp", "log(exp(x) + exp(y)) without overflow.", floats=True, kinds="f",
    body=apply("where", apply("eq", arg(0), arg(1)),  # infinities too
               apply("add", arg(0), const(math.log(2.0))),
               apply("add", apply("max", arg(0), arg(1)), apply("log1p", _APART))),
    numpy=SCALARS["logaddexp"].numpy,
    partials=lambda y, a, b: (_share_of_sum(a, b), _share_of_sum(b, a)),
)  # fmt: skip


# Comparison

eq = binary(
    "eq", "Whether x equals y.", result="bool", onnx="Equal", partials=lambda y, a, b: (None, None)
)
ne = binary("ne", "Whether x differs from y.", result="bool", partials=lambda y, a, b: (None, None))
lt = binary("lt", "Whether x is less than y.", result="bool", kinds="buif", onnx="Less",
            partials=lambda y, a, b: (None, None))  # fmt: skip
le = binary("le", "Whether x is at most y.", result="bool", kinds="buif", onnx="LessOrEqual",
            partials=lambda y, a, b: (None, None))  # fmt: skip
gt = binary("gt", "Whether x is greater than y.", result="bool", kinds="buif", onnx="Greater",
            partials=lambda y, a, b: (None, None))  # fmt: skip
ge = binary("ge", "Whether x is at least y.", result="bool", kinds="buif", onnx="GreaterOrEqual",
            partials=lambda y, a, b: (None, None))  # fmt: skip

# Logic and bits: integers in the samples, since floats have no bits to combine

_INTS = np.array([5, -3, 0, 7])
_SHIFTS = np.array([1, 0, 3, 2])
_TRUTH = np.array([True, False, True, False]), np.array([True, True, False, False])
_bits = (Sample(_INTS, _SHIFTS), Sample(*_TRUTH))

bitwise_and = binary("bitwise_and", "Bits set in both.", scalar="and", kinds="bui",
                     onnx="BitwiseAnd", samples=_bits)  # fmt: skip
bitwise_or = binary("bitwise_or", "Bits set in either.", scalar="or", kinds="bui",
                    onnx="BitwiseOr", samples=_bits)  # fmt: skip
bitwise_xor = binary("bitwise_xor", "Bits set in just one.", scalar="xor", kinds="bui",
                     onnx="BitwiseXor", samples=_bits)  # fmt: skip
bitwise_invert = unary("bitwise_invert", "Every bit flipped.", scalar="invert", kinds="bui",
                       onnx="BitwiseNot", samples=(Sample(_INTS), Sample(_TRUTH[0])))  # fmt: skip
bitwise_left_shift = binary("bitwise_left_shift", "Bits moved up.", scalar="shift_left", kinds="ui",
                            samples=_bits[:1])  # fmt: skip
bitwise_right_shift = binary("bitwise_right_shift", "Bits moved down, keeping the sign.",
                             scalar="shift_right", kinds="ui", samples=_bits[:1])  # fmt: skip
logical_and = binary(
    "logical_and", "Whether both are true.", kinds="b", onnx="And", samples=_bits[1:]
)
logical_or = binary(
    "logical_or", "Whether either is true.", kinds="b", onnx="Or", samples=_bits[1:]
)
logical_xor = binary(
    "logical_xor", "Whether just one is true.", kinds="b", onnx="Xor", samples=_bits[1:]
)
logical_not = unary("logical_not", "Whether it is false.", kinds="b", onnx="Not",
                    samples=(Sample(_TRUTH[0]),))  # fmt: skip

# Rounding

floor = unary("floor", "Largest whole number not above x.", kinds="uif", onnx="Floor",
              partials=lambda y, x: (None,), domain=(0.1, 0.9))  # fmt: skip
ceil = unary("ceil", "Smallest whole number not below x.", kinds="uif", onnx="Ceil",
             partials=lambda y, x: (None,), domain=(0.1, 0.9))  # fmt: skip
trunc = unary("trunc", "Whole part of x.", kinds="uif", partials=lambda y, x: (None,),
              domain=(0.1, 0.9))  # fmt: skip


def _to_decimals(x: ArrayLike, decimals: int = 0) -> Value:
    """Nearest multiple of 10**-decimals, ties to even; as in NumPy the scaled number is rounded."""
    v = as_value(x, "round")
    digits = whole("round", "decimals", decimals)
    whole_numbers = v.dtype.kind in "ui"
    if digits == 0 or (digits > 0 and whole_numbers):
        return round.bind(v)
    if whole_numbers:
        return cast_to(_to_decimals(cast_to(v, f64), digits), v.dtype)
    if digits > 0:
        return div(round.bind(mul(v, 10.0**digits)), 10.0**digits)
    return mul(round.bind(div(v, 10.0**-digits)), 10.0**-digits)


round: OpFunction[..., Value] = unary("round", "Nearest whole number, ties to even.", kinds="uifc",
              onnx="Round", partials=lambda y, x: (None,), domain=(0.1, 0.4), front=_to_decimals)  # fmt: skip

# Exponentials and logarithms

exp = unary("exp", "e to the power x.", floats=True, onnx="Exp", partials=lambda y, x: (y,))
exp2 = unary("exp2", "2 to the power x.", floats=True, kinds="f",
             partials=lambda y, x: (mul(y, math.log(2)),))  # fmt: skip
expm1 = unary("expm1", "exp(x) - 1, precise near 0.", floats=True,
              partials=lambda y, x: (add(y, 1.0),))  # fmt: skip
log = unary("log", "Natural logarithm.", floats=True, onnx="Log",
            partials=lambda y, x: (reciprocal(x),), domain=(0.5, 3.0))  # fmt: skip
log2 = unary("log2", "Logarithm to base 2.", floats=True,
             partials=lambda y, x: (reciprocal(mul(x, math.log(2))),), domain=(0.5, 3.0))  # fmt: skip
log10 = unary("log10", "Logarithm to base 10.", floats=True,
              partials=lambda y, x: (reciprocal(mul(x, math.log(10))),), domain=(0.5, 3.0))  # fmt: skip
log1p = unary("log1p", "log(1 + x), precise near 0.", floats=True,
              partials=lambda y, x: (reciprocal(add(x, 1.0)),), domain=(-0.5, 3.0))  # fmt: skip
sqrt = unary("sqrt", "Square root.", floats=True, onnx="Sqrt",
             partials=lambda y, x: (div(0.5, y),), domain=(0.5, 3.0))  # fmt: skip
rsqrt = unary("rsqrt", "One over the square root.", floats=True, kinds="f",
              partials=lambda y, x: (mul(div(y, x), -0.5),), domain=(0.5, 3.0))  # fmt: skip
cbrt = unary("cbrt", "Cube root.", floats=True, kinds="f",
             partials=lambda y, x: (div(1 / 3, mul(y, y)),), domain=(0.5, 3.0))  # fmt: skip

# Trigonometric and hyperbolic

_UNIT = (-0.9, 0.9)
sin = unary("sin", "Sine.", floats=True, onnx="Sin", partials=lambda y, x: (cos(x),))
cos = unary("cos", "Cosine.", floats=True, onnx="Cos", partials=lambda y, x: (neg(sin(x)),))
tan = unary("tan", "Tangent.", floats=True, onnx="Tan",
            partials=lambda y, x: (add(mul(y, y), 1.0),), domain=(-1.2, 1.2))  # fmt: skip
asin = unary("asin", "Inverse sine.", floats=True, onnx="Asin", domain=_UNIT,
             partials=lambda y, x: (reciprocal(sqrt(sub(1.0, mul(x, x)))),))  # fmt: skip
acos = unary("acos", "Inverse cosine.", floats=True, onnx="Acos", domain=_UNIT,
             partials=lambda y, x: (neg(reciprocal(sqrt(sub(1.0, mul(x, x))))),))  # fmt: skip
atan = unary("atan", "Inverse tangent.", floats=True, onnx="Atan",
             partials=lambda y, x: (reciprocal(add(mul(x, x), 1.0)),))  # fmt: skip
sinh = unary("sinh", "Hyperbolic sine.", floats=True, onnx="Sinh", partials=lambda y, x: (cosh(x),))
cosh = unary(
    "cosh", "Hyperbolic cosine.", floats=True, onnx="Cosh", partials=lambda y, x: (sinh(x),)
)
tanh = unary("tanh", "Hyperbolic tangent.", floats=True, onnx="Tanh",
             partials=lambda y, x: (sub(1.0, mul(y, y)),))  # fmt: skip
asinh = unary("asinh", "Inverse hyperbolic sine.", floats=True, onnx="Asinh",
              partials=lambda y, x: (reciprocal(sqrt(add(mul(x, x), 1.0))),))  # fmt: skip
acosh = unary("acosh", "Inverse hyperbolic cosine.", floats=True, onnx="Acosh", domain=(1.2, 3.0),
              partials=lambda y, x: (reciprocal(mul(sqrt(sub(x, 1.0)), sqrt(add(x, 1.0)))),))  # fmt: skip
atanh = unary("atanh", "Inverse hyperbolic tangent.", floats=True, onnx="Atanh", domain=_UNIT,
              partials=lambda y, x: (reciprocal(sub(1.0, mul(x, x))),))  # fmt: skip


def _atan2_partials(y: Value, a: Value, b: Value) -> tuple[Value, Value]:
    r = add(mul(a, a), mul(b, b))
    return div(b, r), neg(div(a, r))


atan2 = binary("atan2", "Angle of the vector (y, x).", floats=True, kinds="f",
               partials=_atan2_partials, domain=(0.5, 2.0))  # fmt: skip

# Special functions

_TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)
sigmoid = unary("sigmoid", "1 / (1 + exp(-x)) without overflow.", floats=True, kinds="f",
                onnx="Sigmoid", partials=lambda y, x: (mul(y, sub(1.0, y)),))  # fmt: skip
erf = unary("erf", "Error function.", floats=True, kinds="f", onnx="Erf",
            partials=lambda y, x: (mul(exp(neg(mul(x, x))), _TWO_OVER_SQRT_PI),))  # fmt: skip
erfc = unary("erfc", "1 - erf(x), precise for large x.", floats=True, kinds="f",
             partials=lambda y, x: (mul(exp(neg(mul(x, x))), -_TWO_OVER_SQRT_PI),))  # fmt: skip
erfinv = unary("erfinv", "Inverse error function.", floats=True, kinds="f", domain=_UNIT,
               partials=lambda y, x: (mul(exp(mul(y, y)), 1 / _TWO_OVER_SQRT_PI),))  # fmt: skip
erfcinv = unary("erfcinv", "Inverse of erfc, precise near 0.", floats=True, kinds="f",
                partials=lambda y, x: (mul(exp(mul(y, y)), -1 / _TWO_OVER_SQRT_PI),),
                domain=(0.1, 1.9))  # fmt: skip
lgamma = unary("lgamma", "Logarithm of the absolute value of the gamma function.", floats=True,
               kinds="f", partials=lambda y, x: (digamma(x),), domain=(0.5, 3.0))  # fmt: skip
gamma = unary("gamma", "Gamma function.", floats=True, kinds="f",
              partials=lambda y, x: (mul(y, digamma(x)),), domain=(0.5, 3.0))  # fmt: skip


@define(
    signature="... -> ...", call="polygamma", total=True, kinds="f",
    numpy=lambda x, order: _polygamma(order, x),
    jvp=lambda n, ts: mul(polygamma(n.params["order"] + 1, n.operands[0]), ts[0]),
    samples=(Sample(1, (3,)), Sample(2, (2, 2))), domain=(0.5, 3.0),
)  # fmt: skip
def polygamma(order: int, x: ArrayLike) -> Value:
    """Derivative of digamma of this order, 0 for digamma itself."""
    order = whole("polygamma", "order", order)
    if order < 0:
        raise OperandError(f"polygamma: order is {order}, expected 0 or more")
    return polygamma.bind(floating(as_value(x)), order=order)


def _polygamma(order: int, x: Any) -> Any:
    return scipy("special").polygamma(order, x).astype(x.dtype)


digamma = unary("digamma", "Derivative of lgamma.", floats=True, kinds="f",
                partials=lambda y, x: (polygamma(1, x),), domain=(0.5, 3.0))  # fmt: skip

# Classification and complex parts

isnan = unary("isnan", "Whether x is not a number.", scalar="is_nan", result="bool", onnx="IsNaN",
              partials=lambda y, x: (None,))  # fmt: skip
isinf = unary("isinf", "Whether x is infinite.", scalar="is_inf", result="bool", onnx="IsInf",
              partials=lambda y, x: (None,))  # fmt: skip
isfinite = unary("isfinite", "Whether x is neither infinite nor NaN.", scalar="is_finite",
                 result="bool", partials=lambda y, x: (None,))  # fmt: skip
signbit = unary("signbit", "Whether the sign bit is set.", kinds="f", floats=True, result="bool",
                partials=lambda y, x: (None,))  # fmt: skip
real = unary("real", "Real part.", result="real", linear=(0,),
             transpose=lambda n, ct, k: cast_to(ct, n.operands[0].dtype))  # fmt: skip
imag = unary("imag", "Imaginary part.", kinds="c", result="real", jvp=lambda n, ts: imag(ts[0]),
             transpose=lambda n, ct, k: complex(mul(ct, 0.0), neg(ct)),
             samples=(Sample(np.array([1 + 2j, -1j])),))  # fmt: skip
conj = unary("conj", "Complex conjugate.", kinds="uifc", pairs=True, jvp=lambda n, ts: conj(ts[0]),
             transpose=lambda n, ct, k: conj(ct))  # fmt: skip


def _complex(re: Any, im: Any) -> Any:
    """re + 1j * im would lose signed zeros and infinities."""
    z = np.empty(re.shape, np.complex64 if re.dtype == np.float32 else np.complex128)
    z.real, z.imag = re, im
    return z


@define(
    signature="..., ... -> ...", call="complex", total=True, kinds="f", numpy=_complex,
    infer=lambda types, p: [types[0].with_dtype(complex_of(types[0].dtype))],
    samples=(Sample((3,), (3,)),), transpose=lambda n, ct, k: neg(imag(ct)) if k else real(ct),
    jvp=lambda n,
    ts: complex(*(mul(x, 0.0) if t is None else t for x, t in zip(n.operands, ts, strict=True))),
)  # fmt: skip
def complex(re: ArrayLike, im: ArrayLike) -> Value:
    """A complex tensor from its real and imaginary parts."""
    return complex.bind(*meet("complex", (re, im), floats=True))


def _where_jvp(n: Node, ts: Tangents) -> Value | None:
    _, p, q = ts
    if p is None and q is None:
        return None
    return where(n.operands[0], 0 if p is None else p, 0 if q is None else q)


@define(
    signature="..., ..., ... -> ...", body=apply("where", arg(0), arg(1), arg(2)),
    kinds=("b", "buifc", "buifc"), numpy=np.where, result=lambda types, p: types[1].dtype,
    onnx="Where", linear=(1, 2), moves=True,
    jvp=_where_jvp,
    transpose=lambda n, ct, k: (
        where(n.operands[0], ct, 0) if k == 1 else where(n.operands[0], 0, ct)
    ),
    samples=(Sample(np.array([True, False, True]), (3,), (3,)), Sample(np.array(True), (2,), ())),
)  # fmt: skip
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Value:
    """x where the condition holds, y elsewhere."""
    c = as_value(condition, "where")
    a, b = meet("where", (x, y))
    if c.shape != a.shape:
        shape = broadcast_shapes("where", [c.type, a.type])
        c, a, b = (broadcast(v, shape) for v in (c, a, b))
    return where.bind(c, a, b)


def _clip_jvp(n: Node, ts: Tangents) -> Value | None:
    x, low, high = n.operands
    # Where min is above max, the result is max.
    by_x, by_low, by_high = ts
    terms = []
    if by_x is not None:
        terms.append(where(logical_and(ge(x, low), le(x, high)), by_x, 0))
    if by_low is not None:
        terms.append(where(logical_and(lt(x, low), le(low, high)), by_low, 0))
    if by_high is not None:
        terms.append(where(logical_or(gt(x, high), gt(low, high)), by_high, 0))
    total = None
    for t in terms:
        total = t if total is None else add(total, t)
    return total


@define(
    signature="..., ..., ... -> ...", body=apply("min", apply("max", arg(0), arg(1)), arg(2)),
    kinds="uif", onnx="Clip",
    jvp=_clip_jvp, moves=True,
    samples=(Sample((5,), -0.5, 0.7), Sample((2, 3), (3,), 1.5)),
)  # fmt: skip
def clip(x: ArrayLike, min: ArrayLike = None, max: ArrayLike = None) -> Value:
    """x, but at least min and at most max; at an end the slope is that of x, 1."""
    v = as_value(x, "clip")
    if min is not None and max is not None:
        return clip.bind(*meet("clip", (v, min, max)))
    if min is None and max is None:
        return v
    v, end = meet("clip", (v, max if min is None else min))
    if v.dtype.kind != "f":
        return maximum(v, end) if max is None else minimum(v, end)
    far = top_of(v.dtype)
    if min is None:
        return clip.bind(v, full_of(v.shape, -far, v.dtype), end)
    return clip.bind(v, end, full_of(v.shape, far, v.dtype))


def _cast(x: Any, dtype: Any) -> Any:
    if dtype.kind == "b":
        return x != 0
    if x.dtype.kind == "c" and dtype.kind != "c":
        x = x.real
    return round_to(x, dtype)


def _cast_types(types: Sequence[TensorType], p: Any) -> list[TensorType]:
    source, to = types[0].dtype, p["dtype"]
    if source.kind == "c" and to.kind in "uif":
        raise DTypeError(
            f"cast: {types[0]} to {to} would drop the imaginary part; take op.real or op.imag first"
        )
    return [types[0].with_dtype(to)]


def _cast_back(ct: Value, to: DType) -> Value:
    """The cotangent of a cast's operand; each side carries it with the scale of its dtype."""
    if ct.dtype.kind == "c" and to.kind == "f":
        ct = real(ct)
    by = to.scale / ct.dtype.scale
    if by == 1:
        return cast_to(ct, to)
    return cast_to(mul(ct, by), to) if ct.dtype.bits > to.bits else mul(cast_to(ct, to), by)


@define(
    signature="... -> ...", body=arg(0), infer=_cast_types, numpy=_cast, moves=True, casts=True, pairs=True,
    onnx="Cast",
    jvp=lambda n, ts: cast_to(ts[0], n.params["dtype"]) if n.params["dtype"].kind in "fc" else None,
    transpose=lambda n, ct, k: _cast_back(ct, n.operands[0].dtype),
    samples=(Sample((3,), dtype="f32"), Sample((2,), dtype="bf16"), Sample((2, 2), dtype="i32")),
)  # fmt: skip
def cast(x: ArrayLike, dtype: Any) -> Value:
    """x in another dtype, rounded as that dtype's policy says."""
    to = as_dtype(dtype)
    return cast_to(as_value_of(to, x, "cast"), to)


@define(
    signature="... -> ...", body=arg(0), numpy=lambda x: x, moves=True, onnx="Identity",
    jvp=lambda n, ts: None, samples=(Sample((3,)),),
)  # fmt: skip
def stop_gradient(x: ArrayLike) -> Value:
    """x, as a constant for differentiation."""
    return stop_gradient.bind(as_value(x))
