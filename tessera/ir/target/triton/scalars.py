"""How each scalar op is written in Triton, by kind of dtype.

A row is an expression of the operands {0} {1} {2}; {f} and {i} are their type and the integer type of
the same width, {bits} its width.  A row may call a helper of HELPERS.  Ops without a row for a kind are
approximations (core/approximate).  Narrow floats are computed in f32.
"""

from __future__ import annotations

_SAME = {"pos": "{0}", "conj": "{0}", "real": "{0}", "where": "tl.where({0}, {1}, {2})"}
_COMPARE = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}
_NAN = "propagate_nan=tl.PropagateNan.ALL"
FLOAT = (
    _SAME
    | _COMPARE
    | {
        "add": "{0} + {1}",
        "sub": "{0} - {1}",
        "mul": "{0} * {1}",
        "div": "{divide}",
        "neg": "{0} * -1.0",  # Triton's sign would subtract from 0, which loses that of 0
        "recip": "{invert}",
        "square": "{0} * {0}",
        "fma": "tl.fma({0}, {1}, {2})",
        "abs": "tl.abs({0})",
        "sqrt": "{root}",
        "rsqrt": "{root_invert}",
        "floor": "tl.floor({0})",
        "ceil": "tl.ceil({0})",
        "trunc": "tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))",
        "round": "round_even({0}, {magic})",
        "copysign": "copy_sign({0}, {1}, {i}, {f}, {most})",
        "max": f"tl.maximum({{0}}, {{1}}, {_NAN})",
        "min": f"tl.minimum({{0}}, {{1}}, {_NAN})",
        "is_nan": "{0} != {0}",
        "is_inf": 'tl.abs({0}) == float("inf")',
        "is_finite": 'tl.abs({0}) < float("inf")',
        "bits": "{0}.to(tl.uint{bits}, bitcast=True)",
        "signbit": "{0}.to({i}, bitcast=True) < 0",
        "sign": "sign_of({0})",
        "fmod": "libdevice.fmod({0}, {1})",
        "mod": "float_rest({0}, {1}, {i}, {f}, {most})",
        "floor_div": "float_quotient({0}, {1}, {i}, {f}, {most})",
        "nextafter": "next_after({0}, {1}, {i}, {f}, {most}, {far})",
    }
)
INTEGER = (
    _SAME
    | _COMPARE
    | {
        "add": "{0} + {1}",
        "sub": "{0} - {1}",
        "mul": "{0} * {1}",
        "square": "{0} * {0}",
        "neg": "0 - {0}",
        "and": "{0} & {1}",
        "or": "{0} | {1}",
        "xor": "{0} ^ {1}",
        "invert": "~{0}",
        "max": "tl.maximum({0}, {1})",
        "min": "tl.minimum({0}, {1})",
        "shift_left": "tl.where(({1} >= 0) & ({1} < {bits}), {0} << ({1} & {last}), 0).to({f})",
        "floor": "{0}",
        "ceil": "{0}",
        "trunc": "{0}",
        "round": "{0}",
        "is_nan": "{0} != {0}",
        "is_inf": "{0} != {0}",
        "is_finite": "{0} == {0}",
    }
)
SIGNED = INTEGER | {
    "abs": "tl.where({0} < 0, 0 - {0}, {0})",
    "sign": "tl.minimum(tl.maximum({0}, -1), 1).to({f})",
    "shift_right": "{0} >> tl.where(({1} >= 0) & ({1} < {bits}), {1}, {last}).to({f})",
    "fmod": "whole_rest({0}, {1})",
    "mod": "whole_mod({0}, {1})",
    "floor_div": "whole_quotient({0}, {1})",
}
UNSIGNED = INTEGER | {
    "abs": "{0}",
    "from_bits": "{0}.to(tl.float{bits}, bitcast=True)",
    "sign": "tl.minimum({0}, 1).to({f})",
    "shift_right": "tl.where({1} < {bits}, {0} >> ({1} & {last}), 0).to({f})",
    "fmod": "{0} % tl.where({1} == 0, 1, {1}).to({f})",
    "mod": "{0} % tl.where({1} == 0, 1, {1}).to({f})",
    "philox_low": "philox({0}, {1}, {2}, {3}, 0)",
    "philox_high": "philox({0}, {1}, {2}, {3}, 1)",
    "floor_div": "tl.where({1} == 0, 0, {0} // tl.where({1} == 0, 1, {1}).to({f})).to({f})",
}
BOOL = (
    _SAME
    | _COMPARE
    | {
        "and": "{0} & {1}",
        "or": "{0} | {1}",
        "xor": "{0} ^ {1}",
        "add": "{0} | {1}",
        "mul": "{0} & {1}",
        "max": "{0} | {1}",
        "min": "{0} & {1}",
        "logical_and": "{0} & {1}",
        "logical_or": "{0} | {1}",
        "logical_xor": "{0} ^ {1}",
        "logical_not": "{0} == 0",
        "invert": "{0} == 0",
        # One bit, whose sign would make True the smaller one.
        "lt": "({0} == 0) & {1}",
        "le": "({0} == 0) | {1}",
        "gt": "{0} & ({1} == 0)",
        "ge": "{0} | ({1} == 0)",
    }
)
TEMPLATES = {"f": FLOAT, "i": SIGNED, "u": UNSIGNED, "b": BOOL}

# In f32, where all that is stored has 16 bits or fewer: the instructions of the GPU, whose errors of at
# most 2^-16 vanish in that rounding.  A fast division is 0 where the divisor is above 2^126.
NARROW = {
    "div": "{0} / {1}",
    "recip": "1.0 / {0}",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "exp": "tl.exp2({0} * 1.4426950408889634)",
    "exp2": "tl.exp2({0})",
    "sigmoid": "libdevice.fast_dividef(1.0, 1.0 + tl.exp2({0} * -1.4426950408889634))",
    "tanh": "narrow_tanh({0})",
    "erf": "narrow_erf({0})",
    "erfc": "narrow_erfc({0})",
    "log1p": "narrow_log1p({0})",
    "expm1": "narrow_expm1({0})",
    "atan": "narrow_atan({0})",
}
HELPERS = {
    # Near 0 the least polynomials of relative error; elsewhere the sum with 1 loses nothing that counts.
    "narrow_log1p": """
@triton.jit
def narrow_log1p(x):
    p = tl.fma(tl.fma(x, 0.15757138, -0.18127258), x, 0.1994241)
    p = tl.fma(tl.fma(tl.fma(tl.fma(p, x, -0.24953355), x, 0.33334038), x, -0.5000037), x, 1.0)
    return tl.where(tl.abs(x) < 0.25, x * p, tl.log2(x + 1.0) * 0.6931472)
""",
    "narrow_expm1": """
@triton.jit
def narrow_expm1(x):
    p = tl.fma(tl.fma(x, 0.008333325, 0.041775152), x, 0.16666739)
    p = tl.fma(tl.fma(p, x, 0.49999827), x, 1.0)
    return tl.where(tl.abs(x) < 0.25, x * p, tl.exp2(x * 1.4426950408889634) - 1.0)
""",
    "narrow_atan": """
@triton.jit
def narrow_atan(x):
    size = tl.abs(x)
    t = tl.where(size > 1.0, 1.0 / size, size)
    s = t * t
    p = tl.fma(tl.fma(tl.fma(s, 0.007863109, -0.037012197), s, 0.08387029), s, -0.13487145)
    p = tl.fma(tl.fma(tl.fma(p, s, 0.19881472), s, -0.33326513), s, 0.99999934) * t
    r = tl.where(size > 1.0, 1.5707964 - p, p)
    return tl.where(x < 0, r * -1.0, tl.where(x == 0, x, r))
""",
    "narrow_tanh": """
@triton.jit
def narrow_tanh(x):
    e = tl.exp2(tl.abs(x) * -2.8853900817779268)
    far = libdevice.fast_dividef(1.0 - e, 1.0 + e)
    near = x * tl.fma(x * x, -0.33333334, 1.0)
    return tl.where(tl.abs(x) < 0.03125, near, tl.where(x < 0, far * -1.0, far))
""",
    "narrow_erfc": """
@triton.jit
def narrow_erfc(x):
    y = tl.abs(x)
    t = libdevice.fast_dividef(1.0, y + 1.5)
    p = tl.fma(tl.fma(t, 1.7156703, -3.5435302), t, 1.5550846)
    p = tl.fma(tl.fma(tl.fma(p, t, 0.85307544), t, 0.8552324), t, 0.56398)
    r = p * t * tl.exp2(y * y * -1.4426950408889634)
    return tl.where(x < 0, 2.0 - r, r)
""",
    "narrow_erf": """
@triton.jit
def narrow_erf(x):
    square = x * x
    near = x * tl.fma(tl.fma(square, 0.11283792, -0.37612638), square, 1.1283792)
    far = 1.0 - narrow_erfc(tl.abs(x))
    return tl.where(square < 0.0625, near, tl.where(x < 0, far * -1.0, far))
""",
    "sign_of": """
@triton.jit
def sign_of(x):
    sign = tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0)).to(x.dtype)
    return tl.where(x != x, x, sign)
""",
    # A divisor of 0 gives 0; the least integer over -1 wraps to itself.
    "whole_rest": """
@triton.jit
def whole_rest(x, y):
    return x % tl.where((y == 0) | (y == -1), 1, y).to(y.dtype)
""",
    "whole_mod": """
@triton.jit
def whole_mod(x, y):
    rest = whole_rest(x, y)
    return tl.where((rest != 0) & ((rest ^ y) < 0), rest + y, rest)
""",
    "whole_quotient": """
@triton.jit
def whole_quotient(x, y):
    odd = (y == 0) | (y == -1)
    by = tl.where(odd, 1, y).to(y.dtype)
    near, rest = x // by, x % by
    whole = tl.where((rest != 0) & ((rest ^ y) < 0), near - 1, near)
    return tl.where(y == 0, 0, tl.where(odd, 0 - x, whole)).to(x.dtype)
""",
    "float_rest": """
@triton.jit
def float_rest(x, y, i: tl.constexpr, f: tl.constexpr, most: tl.constexpr):
    rest = libdevice.fmod(x, y)
    moved = tl.where((y < 0) != (rest < 0), rest + y, rest)
    return tl.where(rest != 0, moved, copy_sign(rest * 0.0, y, i, f, most))
""",
    # The quotient without its remainder is near a whole number, which rounding then finds; where a
    # side is infinite or the divisor is 0, the floor of the plain quotient is right.
    "float_quotient": """
@triton.jit
def float_quotient(x, y, i: tl.constexpr, f: tl.constexpr, most: tl.constexpr):
    rest = libdevice.fmod(x, y)
    plain = tl.div_rn(x, y) if f == tl.float32 else x / y
    even = x - rest
    near = tl.div_rn(even, y) if f == tl.float32 else even / y
    about = tl.where((rest != 0) & ((y < 0) != (rest < 0)), near - 1.0, near)
    floor = tl.floor(about)
    whole = tl.where(about - floor > 0.5, floor + 1.0, floor)
    signed = tl.where(about != 0, whole, copy_sign(plain * 0.0, plain, i, f, most))
    odd = (y == 0) | (tl.abs(x) == float("inf")) | (tl.abs(y) == float("inf"))
    return tl.where(odd, tl.floor(plain), signed)
""",
    # Words of 32 bits, as core/philox.py has them; key and counter come in 64.
    "philox": """
@triton.jit
def philox(k0, k1, counter, rest, high: tl.constexpr):
    c0, c1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c2, c3 = rest.to(tl.uint32), (rest >> 32).to(tl.uint32)
    e0, e1 = k0.to(tl.uint32), k1.to(tl.uint32)
    m0, m1 = tl.full((), 0xD2511F53, tl.uint64), tl.full((), 0xCD9E8D57, tl.uint64)
    for _ in tl.static_range(10):
        p0, p1 = c0.to(tl.uint64) * m0, c2.to(tl.uint64) * m1
        c0, c1 = (p1 >> 32).to(tl.uint32) ^ c1 ^ e0, p1.to(tl.uint32)
        c2, c3 = (p0 >> 32).to(tl.uint32) ^ c3 ^ e1, p0.to(tl.uint32)
        e0 += tl.full((), 0x9E3779B9, tl.uint32)
        e1 += tl.full((), 0xBB67AE85, tl.uint32)
    if high:
        return c2.to(tl.uint64) | (c3.to(tl.uint64) << 32)
    return c0.to(tl.uint64) | (c1.to(tl.uint64) << 32)
""",
    "next_after": """
@triton.jit
def next_after(x, y, i: tl.constexpr, f: tl.constexpr, most: tl.constexpr, far: tl.constexpr):
    a, b = x.to(i, bitcast=True), y.to(i, bitcast=True)
    left, right = a & most, b & most
    at = tl.where(a < 0, 0 - left, a)
    to = tl.where(b < 0, 0 - right, b)
    moved = tl.where((at < to) != (a < 0), a + 1, a - 1)
    first = (b & (-most - 1)) | 1
    step = tl.where(left == 0, first, moved)
    kept = tl.where(at == to, b, step).to(i)
    nan = (left > far) | (right > far)
    return tl.where(nan, most, kept).to(i).to(f, bitcast=True)
""",
}
NEEDS = {
    "narrow_erf": ("narrow_erfc",),
    "whole_mod": ("whole_rest",),
    "float_rest": ("copy_sign",),
    "float_quotient": ("copy_sign",),
}
