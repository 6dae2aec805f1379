"""Scalar ops on complex numbers as formulas of their real and imaginary parts.

    exp(x + iy)   ->   (exp(x) cos(y), exp(x) sin(y))

FORMULAS has a row for each scalar op that takes complex numbers; transform/split_complex.py puts the
formulas in place of the ops.  Sums and products are rounded one by one.  Values at infinity, zeros with
signs and NaN are those of C99, Annex G, but that products and quotients have no rules for infinities of
their own, as NumPy's have none (docs/numerics.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tessera.core.dtype import bool_, f32, f64
from tessera.core.pairs import Pair
from tessera.ir.graph.ir import Value
from tessera.ops.define import FUNCTIONS, cast_to, full_of

_LN2, _LN10 = math.log(2.0), math.log(10.0)


class Part:
    """A real tensor with the operators of Python, whose graph they write."""

    __slots__ = ("value",)

    def __init__(self, value: Value):
        self.value = value

    def apply(self, name: str, *others: Any) -> Part:
        """An op on this tensor and others, or numbers."""
        return Part(FUNCTIONS[name](self.value, *(_raw(x) for x in others)))

    def __add__(self, other: Any) -> Part:
        return self.apply("add", other)

    def __sub__(self, other: Any) -> Part:
        return self.apply("sub", other)

    def __rsub__(self, other: float) -> Part:
        return Part(FUNCTIONS["sub"](other, self.value))

    def __mul__(self, other: Any) -> Part:
        return self.apply("mul", other)

    def __truediv__(self, other: Any) -> Part:
        return self.apply("div", other)

    def __rtruediv__(self, other: float) -> Part:
        return Part(FUNCTIONS["div"](other, self.value))

    def __neg__(self) -> Part:
        return self.apply("neg")

    def __abs__(self) -> Part:
        return self.apply("abs")

    def __lt__(self, other: Any) -> Part:
        return self.apply("lt", other)

    def __le__(self, other: Any) -> Part:
        return self.apply("le", other)

    def __gt__(self, other: Any) -> Part:
        return self.apply("gt", other)

    def __ge__(self, other: Any) -> Part:
        return self.apply("ge", other)

    def equals(self, other: Any) -> Part:
        """Whether both are the same number."""
        return self.apply("eq", other)

    def __and__(self, other: Part) -> Part:
        return self.apply("logical_and", other)

    def __or__(self, other: Part) -> Part:
        return self.apply("logical_or", other)

    def __invert__(self) -> Part:
        return self.apply("logical_not")

    def where(self, x: Any, y: Any) -> Part:
        """x where this holds, else y."""
        return self.apply("where", x, y)

    @property
    def is_inf(self) -> Part:
        return self.apply("isinf")

    @property
    def is_finite(self) -> Part:
        return self.apply("isfinite")

    @property
    def is_zero(self) -> Part:
        return self.apply("eq", 0.0)

    def copysign(self, other: Part) -> Part:
        """This magnitude with the sign of another number."""
        return self.apply("copysign", other)

    def const(self, value: float) -> Part:
        """A tensor of one number, of this shape and dtype."""
        return Part(full_of(self.value.shape, value, self.value.dtype))

    def choose(self, wide: float, narrow: float) -> float:
        """A constant for f64, or for f32."""
        return wide if self.value.dtype is f64 else narrow


def _raw(x: Any) -> Any:
    return x.value if isinstance(x, Part) else x


def part(condition: Part, x: Pair, y: Pair) -> Pair:
    """The pair x where a condition holds, else y."""
    return Pair(condition.where(x.re, y.re), condition.where(x.im, y.im))


# Arithmetic -------------------------------------------------------------------------------------


def _div(x: Pair, w: Pair) -> Pair:
    """Smith (1962): both divided by the larger part of w, so that squares stay in range."""
    upright = abs(w.re) >= abs(w.im)
    large, small = upright.where(w.re, w.im), upright.where(w.im, w.re)
    zero = w.re.is_zero & w.im.is_zero
    ratio = zero.where(0.0, small / large)
    total = zero.where(abs(w.re), large + small * ratio)
    p, q = upright.where(x.re, x.im), upright.where(x.im, x.re)
    top = p + q * ratio
    left, right = upright.where(q, p * ratio), upright.where(p * ratio, q)
    return Pair(top / total, (left - right) / total)


def _reciprocal(w: Pair) -> Pair:
    upright = abs(w.re) >= abs(w.im)
    large, small = upright.where(w.re, w.im), upright.where(w.im, w.re)
    ratio = small / large
    total = large + small * ratio
    return Pair(upright.where(1.0, ratio) / total, -(upright.where(ratio, 1.0) / total))


def absolute(z: Pair) -> Part:
    """The length, without overflow on the way."""
    length: Part = z.re.apply("hypot", z.im)
    return length


def _sign(z: Pair) -> Pair:
    """z over its length; of infinite numbers the direction, if one part is finite."""
    half = (abs(z.re) > z.re.choose(2.0**1000, 2.0**120)) | (
        abs(z.im) > z.re.choose(2.0**1000, 2.0**120)
    )
    factor = half.where(z.re.const(0.5), 1.0)
    near = Pair(z.re * factor, z.im * factor)
    length = absolute(near)
    nothing, far, corner = length.is_zero, length.is_inf, z.re.is_inf & z.im.is_inf

    def direction(x: Part) -> Part:
        edge = corner.where(x.const(math.nan), x.is_inf.where(_unit(x), 0.0))
        return nothing.where(0.0, far.where(edge, x / length))

    return Pair(direction(near.re), direction(near.im))


def _unit(x: Part) -> Part:
    """1 with the sign of x."""
    return x.const(1.0).copysign(x)


def _turned(z: Pair) -> Pair:
    """i z."""
    return Pair(-z.im, z.re)


def _turned_back(z: Pair) -> Pair:
    """-i z."""
    return Pair(z.im, -z.re)


# Exponentials ------------------------------------------------------------------------------------


def _reduced(x: Part) -> tuple[Part, Part]:
    """x less a number where e^x may overflow, and what e to the rest is multiplied by."""
    top, shift = x.choose(709.0, 88.0), x.choose(600.0, 60.0)
    large = abs(x) > top
    return large.where(abs(x) - shift, abs(x)).copysign(x), large.where(
        x.const(math.exp(shift)), 1.0
    )


def _exp(z: Pair) -> Pair:
    x, y = z
    large = x > x.choose(709.0, 88.0)
    shift = x.choose(600.0, 60.0)
    size, factor = (
        large.where(x - shift, x).apply("exp"),
        large.where(x.const(math.exp(shift)), 1.0),
    )
    wild = ~y.is_finite
    re = size * y.apply("cos") * factor
    im = size * y.apply("sin") * factor
    # Where y has no direction: 0 at -infinity, and a length at infinity.
    gone, far = x.equals(-math.inf) & wild, x.equals(math.inf) & wild
    re, im = gone.where(0.0, far.where(math.inf, re)), gone.where(0.0, im)
    return part(y.is_zero, Pair(size * factor, y), Pair(re, im))


def _expm1(z: Pair) -> Pair:
    """expm1(x) cos(y) - 2 sin(y/2)^2, which keeps digits near 0."""
    x, y = z
    half = (y * 0.5).apply("sin")
    near = Pair(
        x.apply("expm1") * y.apply("cos") - half * half * 2.0, x.apply("exp") * y.apply("sin")
    )
    grown = _exp(z)
    far = Pair(grown.re - 1.0, grown.im)
    usual = x.is_finite & y.is_finite & (x < x.choose(700.0, 80.0))
    made = part(usual, near, far)
    return Pair(made.re + 0.0, y.is_zero.where(y, made.im))


def _sinh(z: Pair) -> Pair:
    """(sinh x cos y, cosh x sin y)."""
    x, y = z
    t, factor = _reduced(x)
    re = t.apply("sinh") * y.apply("cos") * factor
    im = t.apply("cosh") * y.apply("sin") * factor
    re = (x.is_inf & ~y.is_finite).where(x, x.is_zero.where(x, re))
    return Pair(y.is_zero.where(x.apply("sinh"), re), y.is_zero.where(y, im))


def _cosh(z: Pair) -> Pair:
    """(cosh x cos y, sinh x sin y)."""
    x, y = z
    t, factor = _reduced(x)
    re = t.apply("cosh") * y.apply("cos") * factor
    im = t.apply("sinh") * y.apply("sin") * factor
    re = (x.is_inf & ~y.is_finite).where(math.inf, re)
    flat = x.is_zero | y.is_zero
    zero = x.const(0.0).copysign(_unit(x) * _unit(y))
    return Pair(y.is_zero.where(x.apply("cosh"), re), flat.where(zero, im))


def _tanh(z: Pair) -> Pair:
    """Kahan (1987): with t = tan y and s = sinh x, ((1 + t^2) rho s, t) / (1 + (1 + t^2) s^2)."""
    x, y = z
    s, t = x.apply("sinh"), y.apply("tan")
    beta = t * t + 1.0
    rho = (s * s + 1.0).apply("sqrt")
    below = beta * s * s + 1.0
    near = Pair(beta * rho * s / below, t / below)
    away = (abs(x) * -2.0).apply("exp")
    far = Pair(_unit(x), y.apply("sin") * y.apply("cos") * 4.0 * away)
    made = part(abs(x) > x.choose(20.0, 10.0), far, near)
    limit = Pair(_unit(x), y.const(0.0).copysign(y))
    made = Pair(x.is_zero.where(x, y.is_finite.where(made.re, math.nan)), made.im)
    made = part(x.is_inf, limit, made)
    return Pair(y.is_zero.where(x.apply("tanh"), made.re), y.is_zero.where(y, made.im))


def _sin(z: Pair) -> Pair:
    return _turned_back(_sinh(_turned(z)))


def _cos(z: Pair) -> Pair:
    return _cosh(_turned(z))


def _tan(z: Pair) -> Pair:
    return _turned_back(_tanh(_turned(z)))


# Logarithms and roots ----------------------------------------------------------------------------


def _log_length(x: Part, y: Part) -> Part:
    """log |x + iy|: by log1p near length 1, and scaled where squares leave the range."""
    a, b = abs(x), abs(y)
    larger, smaller = (a < b).where(b, a), (a < b).where(a, b)
    huge, tiny = x.choose(2.0**1000, 2.0**120), x.choose(2.0**-1000, 2.0**-120)
    up, down = larger < tiny, larger > huge
    power = x.choose(60.0, 30.0)
    factor = up.where(x.const(2.0**power), down.where(x.const(0.5), 1.0))
    back = up.where(x.const(-power * _LN2), down.where(x.const(_LN2), 0.0))
    far = (x * factor).apply("hypot", y * factor).apply("log") + back
    near = ((larger - 1.0) * (larger + 1.0) + smaller * smaller).apply("log1p") * 0.5
    return ((larger > 0.5) & (larger < 2.0)).where(near, far)


def _log(z: Pair) -> Pair:
    return Pair(_log_length(*z), z.im.apply("atan2", z.re))


def _log_to(base: float) -> Callable[[Pair], Pair]:
    def log(z: Pair) -> Pair:
        made = _log(z)
        return Pair(made.re * (1.0 / base), made.im * (1.0 / base))

    return log


def _log1p(z: Pair) -> Pair:
    x, y = z
    small = (abs(x) < 0.5) & (abs(y) < 0.5)
    near = (x * (x + 2.0) + y * y).apply("log1p") * 0.5
    return Pair(small.where(near, _log_length(x + 1.0, y)), y.apply("atan2", x + 1.0))


def _sqrt(z: Pair) -> Pair:
    """Of half of |z| + |x| the root, and y over twice that root; scaled by powers of 4."""
    x, y = z
    a, b = abs(x), abs(y)
    larger = (a < b).where(b, a)
    huge, tiny = x.choose(2.0**1000, 2.0**120), x.choose(2.0**-1000, 2.0**-100)
    down, up = larger > huge, larger < tiny
    power = x.choose(54, 26)
    factor = down.where(x.const(2.0**-4), up.where(x.const(2.0 ** (2 * power)), 1.0))
    back = down.where(x.const(2.0**2), up.where(x.const(2.0**-power), 1.0))
    p, q = a * factor, b * factor
    root = ((p + p.apply("hypot", q)) * 0.5).apply("sqrt")
    other = root.is_zero.where(0.0, q / (root * 2.0))
    root, other = root * back, other * back
    right = x >= 0.0
    made = Pair(right.where(root, other), right.where(other, root).copysign(y))
    edge = y.is_inf
    lost = (x.equals(-math.inf) & ~y.is_finite).where(math.nan, made.re)
    unknown = ~(x.equals(x)) & ~edge
    im = edge.where(y, unknown.where(math.nan, made.im))
    return Pair(edge.where(math.inf, unknown.where(math.nan, lost)), im)


# Inverses of trigonometric and hyperbolic functions, after Kahan (1987) ------------------------------


def _around_one(z: Pair) -> tuple[Pair, Pair]:
    """The roots of 1 - z and of 1 + z."""
    return _sqrt(Pair(1.0 - z.re, -z.im)), _sqrt(Pair(z.re + 1.0, z.im))


def _is_far(z: Pair) -> Part:
    """Whether 1 is nothing beside a number."""
    edge = z.re.choose(1e100, 1e15)
    far: Part = (abs(z.re) > edge) | (abs(z.im) > edge)
    return far


def _asin(z: Pair) -> Pair:
    x, y = z
    below, above = _around_one(z)
    re = x.apply("atan2", below.re * above.re - below.im * above.im)
    im = (below.re * above.im - below.im * above.re).apply("asinh")
    away = Pair(x.apply("atan2", abs(y)), (_log_length(x, y) + _LN2).copysign(y))
    made = part(_is_far(z), away, Pair(re, im))
    return Pair(x.is_zero.where(x, made.re), made.im)


def _acos(z: Pair) -> Pair:
    x, y = z
    below, above = _around_one(z)
    re = below.re.apply("atan2", above.re) * 2.0
    im = (above.re * below.im - above.im * below.re).apply("asinh")
    away = Pair(abs(y).apply("atan2", x), (_log_length(x, y) + _LN2).copysign(-y))
    made = part(_is_far(z), away, Pair(re, im))
    return Pair(x.is_zero.where(math.pi / 2, made.re), made.im)


def _acosh(z: Pair) -> Pair:
    """acos, turned so that the real part is not negative."""
    angle = _acos(z)
    return Pair(abs(angle.im), angle.re.copysign(z.im))


def _atanh(z: Pair) -> Pair:
    """(log1p(4x / ((1 - x)^2 + y^2)) / 4, angle of (1 - x)(1 + x) - y^2 + 2iy, halved)."""
    x, y = z
    far = _is_far(z)
    p, q = far.where(0.0, x), far.where(0.0, y)
    size = abs(p)
    rest = 1.0 - size
    pole = rest.is_zero & (abs(q) < 1e-4)  # where y^2 may be too small for the format
    re = pole.where(
        (abs(q) * 0.5).apply("log") * -0.5,
        (size * 4.0 / (rest * rest + q * q)).apply("log1p") * 0.25,
    )
    im = (q * 2.0).apply("atan2", rest * (size + 1.0) - q * q) * 0.5
    near = Pair(x.is_zero.where(x, re.copysign(x)), im)
    infinite = x.is_inf | y.is_inf
    small = infinite.where(x.const(0.0).copysign(x), _reciprocal(z).re)
    return part(far, Pair(small, y.equals(y).where(_unit(y) * (math.pi / 2), y)), near)


def _asinh(z: Pair) -> Pair:
    return _turned_back(_asin(_turned(z)))


def _atan(z: Pair) -> Pair:
    return _turned_back(_atanh(_turned(z)))


# Powers --------------------------------------------------------------------------------------------


def _pow(z: Pair, w: Pair) -> Pair:
    """exp(w log z), of c64 with the digits of c128; z**0 is 1, 0**w is 0 if w has a positive real part."""
    narrow = z.re.value.dtype
    wide = [Pair(*(Part(cast_to(p.value, f64)) for p in x)) for x in (z, w)]
    made = _exp(_log(wide[0]).times(wide[1]))
    if narrow is f32:
        made = Pair(*(Part(cast_to(p.value, f32)) for p in made))
    empty = z.re.is_zero & z.im.is_zero
    nothing = (w.re > 0.0).where(w.re.const(0.0), math.nan)
    none = w.re.is_zero & w.im.is_zero
    re = none.where(1.0, empty.where(nothing, made.re))
    return Pair(re, none.where(0.0, empty.where(nothing, made.im)))


# The table -----------------------------------------------------------------------------------------


def _each(name: str) -> Callable[[Pair], Pair]:
    return lambda z: Pair(z.re.apply(name), z.im.apply(name))


def _either(name: str) -> Callable[[Pair], Part]:
    return lambda z: z.re.apply(name) | z.im.apply(name)


FORMULAS: dict[str, Callable[..., Any]] = {
    "add": Pair.plus,
    "sub": Pair.minus,
    "mul": Pair.times,
    "div": _div,
    "recip": _reciprocal,
    "square": lambda z: z.times(z),
    "neg": lambda z: Pair(-z.re, -z.im),
    "pos": lambda z: z,
    "pow": _pow,
    "abs": absolute,
    "sign": _sign,
    "eq": lambda z, w: z.re.equals(w.re) & z.im.equals(w.im),
    "ne": lambda z, w: z.re.apply("ne", w.re) | z.im.apply("ne", w.im),
    "real": lambda z: z.re,
    "imag": lambda z: z.im,
    "conj": lambda z: Pair(z.re, -z.im),
    "round": _each("round"),
    "is_nan": _either("isnan"),
    "is_inf": _either("isinf"),
    "is_finite": lambda z: z.re.is_finite & z.im.is_finite,
    "where": part,
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log2": _log_to(_LN2),
    "log10": _log_to(_LN10),
    "log1p": _log1p,
    "sqrt": _sqrt,
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "asin": _asin,
    "acos": _acos,
    "atan": _atan,
    "sinh": _sinh,
    "cosh": _cosh,
    "tanh": _tanh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
}


def as_bool(z: Pair) -> Part:
    """Whether a number is not 0."""
    made: Part = z.re.apply("ne", 0.0) | z.im.apply("ne", 0.0)
    assert made.value.dtype is bool_
    return made
