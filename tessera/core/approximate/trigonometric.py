"""Circular functions and their inverses.

An angle is n pi/2 + r with |r| <= pi/4; the last two bits of n tell which of sin r and cos r the
result is, and its sign.
"""

from __future__ import annotations

import math

from tessera.core.approximate.algebra import Integer, Real, Truth
from tessera.core.approximate.arithmetic import (
    coefficients,
    fast_two_sum,
    nearest,
    parts,
    polynomial,
    two_product,
    two_sum,
)  # fmt: skip

_FAR = {"f32": 2.0**15, "f64": 2.0**24}  # up to here three parts of pi/2 are enough
_STEP = {"f32": 3, "f64": 4}  # entries of the table of 2/pi are 2^step binary places apart


def _quarters(x: Real) -> tuple[Real, Integer]:
    """r and n of an angle, n in the low bits."""
    n, _ = nearest(x, 2 / math.pi)
    first, second, third, _ = parts(x, "half_pi")
    r = n.fma(-third, n.fma(-second, n.fma(-first, x)))
    r, n = _is_far(x).rare(lambda: _far_quarters(x)[1:], (r, n))
    return r, (n + x.format.magic).bits()


def _quarters_pair(x: Real) -> tuple[Real, Real, Integer]:
    """The same with what the rounding of r left out."""
    n, _ = nearest(x, 2 / math.pi)
    first, second, third, _ = parts(x, "half_pi")
    p, p_low = two_product(n, x.const(second))
    a, a_low = two_sum(n.fma(-first, x), -p)
    r, low = fast_two_sum(a, n.fma(-third, a_low - p_low))
    low, r, n = _is_far(x).rare(lambda: _far_quarters(x), (low, r, n))
    return r, low, (n + x.format.magic).bits()


def _is_far(x: Real) -> Truth:
    return abs(x) > _FAR[x.format.name]


def _far_quarters(x: Real) -> tuple[Real, Real, Real]:
    """What r leaves out, r and n of any angle.

    That is x (2/pi) mod 4 from those digits of 2/pi that count (Payne and Hanek, 1983).
    """
    f, table, step = x.format, parts(x, "angles"), _STEP[x.format.name]
    bits = x.bits()
    exponent = ((bits >> f.fraction) & (2 * f.bias + 1)) - (f.bias + f.fraction)
    entry = (exponent < 0).where_integer(0, exponent) >> step
    whole = (bits - (entry << (step + f.fraction))).from_bits()
    at = entry << 2
    t = [(at + i).lookup(table) for i in range(4)]
    high, a = two_product(whole, t[0])
    b, c = two_product(whole, t[1])
    d, e = two_product(whole, t[2])
    s, u = two_sum(_modulo_4(high), _modulo_4(a))
    s, v = two_sum(s, _modulo_4(b))
    n = s.round()
    s, low = s - n, x - x  # NaN for an infinite angle
    for term in (u, v, c, d, e, whole * t[3]):
        s, error = two_sum(s, term)
        low = low + error
    first, second, *_ = parts(x, "half_pi")
    r, error = two_product(s, x.const(first))
    r, low = fast_two_sum(r, error + s.fma(second, low * first))
    return low, r, n


def _modulo_4(x: Real) -> Real:
    return x - 4.0 * (x * 0.25).round()


def _sine(r: Real) -> Real:
    t = r * r
    return (r * t).fma(polynomial(t, coefficients(r, "sin")), r).copysign(r)


def _cosine(r: Real) -> Real:
    t = r * r
    return polynomial(t, coefficients(r, "cos")).fma(t, -0.5).fma(t, 1.0)


def _is_odd(n: Integer) -> Truth:
    return (n & 1).equals(1)


def _negated(x: Real, n: Integer) -> Real:
    """-x where n, counted mod 4, is 2 or 3: adding there turns the first bit."""
    return (x.bits() + ((n & 2) << (x.format.bits - 2))).from_bits()


def sin(x: Real) -> Real:
    """The sine."""
    r, n = _quarters(x)
    return _negated(_is_odd(n).where(_cosine(r), _sine(r)), n)


def cos(x: Real) -> Real:
    """The cosine: the sine a quarter later."""
    r, n = _quarters(x)
    return _negated(_is_odd(n).where(_sine(r), _cosine(r)), n + (n & 1))


def tan(x: Real) -> Real:
    """The tangent: sine over cosine, or minus its inverse.

    An error of r counts 1 / cos^2 times in the tangent, and so about 1 / cos times in the sine.
    """
    r, low, n = _quarters_pair(x)
    odd, t = _is_odd(n), r * r
    tail = (r * t).fma(polynomial(t, coefficients(r, "sin")), low * t.fma(0.65, 1.0))
    s, c = r + tail, _cosine(r)
    return x.equals(0.0).where(x, odd.where(-c, s) / odd.where(s, c))


def _asin_parts(size: Real) -> tuple[Truth, Real, Real]:
    """Whether |x| > 1/2, root((1 - |x|) / 2) if so, else |x|, and what to add for its asin."""
    large = size > 0.5
    t = large.where((1.0 - size) * 0.5, size * size)
    root = large.where(t.sqrt(), size)
    return large, root, root * t * polynomial(t, coefficients(size, "asin"))


def asin(x: Real) -> Real:
    """The inverse of the sine: pi/2 - 2 asin(root((1 - |x|) / 2)) for large |x|."""
    large, root, tail = _asin_parts(abs(x))
    first, second, *_ = parts(x, "half_pi")
    high, low = fast_two_sum(x.const(first), -2.0 * root)
    turned = high - (tail.fma(2.0, -second) - low)
    return large.where(turned, root + tail).copysign(x)


def acos(x: Real) -> Real:
    """The inverse of the cosine."""
    large, root, tail = _asin_parts(abs(x))
    first, second, *_ = parts(x, "half_pi")
    y = root + tail
    middle = first - (y.copysign(x) - second)
    outer = (x < 0.0).where(2.0 * (first - (y - second)), 2.0 * y)
    return large.where(outer, middle)


def atan(x: Real) -> Real:
    """The inverse of the tangent."""
    return _angle(abs(x), x.const(1.0), None).copysign(x)


def atan2(y: Real, x: Real) -> Real:
    """The angle of the point (x, y)."""
    ay, ax = abs(y), abs(x)
    edge = x.format.smallest * 2.0**x.format.digits
    large = (ax > 1.0 / edge) | (ay > 1.0 / edge)  # their sum must not overflow
    small = (ax < edge) & (ay < edge)  # nor may products with tan(pi / 8) lose digits
    factor = large.where(0.25, small.where(2.0**x.format.digits, 1.0))
    both = ax.equals(math.inf) & ay.equals(math.inf)
    ay, ax = both.where(1.0, ay * factor), both.where(1.0, ax * factor)
    return _angle(ay, ax, x.bits() < 0).copysign(y)


def _angle(y: Real, x: Real, left: Truth | None) -> Real:
    """The angle of (x, y), or of (-x, y) where left, for x and y >= 0.

    The quotient is at most tan(pi / 8): of y and x, of y - x and y + x, or of -x and y.
    """
    low, high = y <= 0.41421356 * x, y > 2.4142135 * x
    above = low.where(y, high.where(-x, y - x))
    below = low.where(x, high.where(y, y + x))
    t = above / below.equals(0.0).where(1.0, below)
    first, second, *_ = parts(x, "half_pi")
    base = low.where(0.0, high.where(first, first / 2))
    rest = low.where(0.0, high.where(second, second / 2))
    if left is not None:
        base = left.where(2.0 * first - base, base)
        rest = left.where(2.0 * second - rest, rest)
        t = left.where(-t, t)
    square = t * t
    tail = (t * square).fma(polynomial(square, coefficients(x, "atan")), rest)
    total, error = fast_two_sum(base, t)  # also where the base is 0
    return total + (error + tail)
