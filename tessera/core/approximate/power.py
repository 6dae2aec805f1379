"""Powers and roots."""

from __future__ import annotations

import math

from tessera.core.approximate.algebra import Logarithmic, Real
from tessera.core.approximate.arithmetic import (
    Pair,
    coefficients,
    fast_two_sum,
    is_nan,
    nearest,
    parts,
    polynomial,
    power_of_two,
    two_product,
    two_sum,
)  # fmt: skip
from tessera.core.approximate.exponential import exp_of_sum
from tessera.core.approximate.logarithm import log, split


def rsqrt(x: Real) -> Real:
    """1 / root of x, both rounded, and their errors made good."""
    y = 1.0 / x.sqrt()
    p, low = two_product(x, y)
    miss = (-low).fma(y, (-p).fma(y, 1.0))
    return ((x > 0.0) & (x < math.inf)).where((y * 0.5).fma(miss, y), y)


def hypot(x: Real, y: Real) -> Real:
    """The root of x^2 + y^2, scaled so that squares stay in range."""
    a, b = abs(x), abs(y)
    a, b = (a < b).where(b, a), (a < b).where(a, b)
    edge, down, up = (float(n) for n in _scales(x.format.bias))
    large, small = a > 2.0**edge, a < 2.0**-edge
    factor = large.where(2.0**-down, small.where(2.0**up, 1.0))
    back = large.where(2.0**down, small.where(2.0**-up, 1.0))
    a, b = a * factor, b * factor
    h = a.fma(a, b * b).sqrt() * back
    h = (is_nan(x) | is_nan(y)).where(math.nan, h)
    return (abs(x).equals(math.inf) | abs(y).equals(math.inf)).where(math.inf, h)


def _scales(bias: int) -> tuple[int, int, int]:
    """Beyond 2^+-edge numbers are moved down or up by powers of two before they are squared."""
    return bias // 2 - 4, bias // 2 + 2, bias - 30


def cbrt(x: Real) -> Real:
    """The cube root: x = 2^(3q) m, a polynomial for m^(-1/3), refined."""
    size = abs(x)
    k, m, _ = split(size)
    q, i = nearest(k, 1 / 3, 1)
    _, j = nearest(k - 3.0 * q, 1.0, 1)
    m = m * power_of_two(x, j)
    z = polynomial(m, coefficients(x, "cbrt"))
    for _ in range(1 if x.format.bits == 32 else 2):
        e = 1.0 - m * (z * z * z)
        z = (z * e).fma(e.fma(e.fma(14 / 81, 2 / 9), 1 / 3), z)
    square = z * z
    y = m * square
    p, low = two_product(y, y)
    rest = (-low).fma(y, (-p).fma(y, m))
    y = (rest * square).fma(1 / 3, y) * power_of_two(x, i)
    usual = (size < math.inf) & (size > 0.0)
    return usual.where(y.copysign(x), x)


def pow(x: Real, y: Real) -> Real:
    """x^y = e^(y log |x|), the logarithm to twice the digits; special cases as in C.

    For the exponents -1, 1 and 2 the result is correctly rounded, so that one which the program writes as a
    number (ops/elementwise.py) has the bits of one that is a tensor.
    """
    size = abs(x)
    high, low = log_pair(size)
    p, e = two_product(y, high)
    e = y.fma(low, e)
    out = exp_of_sum(p, (abs(p) < 4096.0).where(e, 0.0))
    # Where the logarithm or the exponent is infinite only the sides of 1 count.
    edge = size.equals(0.0) | size.equals(math.inf) | abs(y).equals(math.inf)
    grows = ((size < 1.0) & (y < 0.0)) | ((size > 1.0) & (y > 0.0))
    out = edge.where(grows.where(math.inf, size.equals(1.0).where(1.0, 0.0)), out)
    half = y * 0.5
    whole = y.floor().equals(y)
    odd = whole & ~half.floor().equals(half)
    negative = x.bits() < 0
    out = (negative & odd).where(-out, out)
    no_root = (x < 0.0) & (x > -math.inf) & ~whole & (abs(y) < math.inf)
    out = (no_root | is_nan(x) | is_nan(y)).where(math.nan, out)
    out = (y.equals(0.0) | x.equals(1.0)).where(1.0, out)
    for n, exact in ((-1.0, 1.0 / x), (1.0, x), (2.0, x * x)):
        out = y.equals(n).where(exact, out)
    return out


def log_pair(x: Real) -> Pair:
    """log x = k ln 2 + 2 atanh(s) with s = f / (2 + f), to nearly twice the digits."""
    if isinstance(x.algebra, Logarithmic):
        return log(x), x.const(0.0)
    k, m, _ = split(x)
    f = m - 1.0
    d, rest = fast_two_sum(x.const(2.0), f)
    inverse = 1.0 / d
    s = f * inverse
    s_low = (-s).fma(rest, (-s).fma(d, f)) * inverse
    t, t_low = two_product(s, s)
    t_low = (s + s).fma(s_low, t_low)
    third, third_low, *_ = parts(x, "third")
    w, w_low = fast_two_sum(
        x.const(third), (t * polynomial(t, coefficients(x, "atanh"))) + third_low
    )
    q, q_low = two_product(t, w)
    q_low = t.fma(w_low, t_low.fma(w, q_low))
    a, a_low = two_product(s, q)
    a_low = s.fma(q_low, s_low.fma(q, a_low))
    total, low = fast_two_sum(s, a)
    low = (low + (s_low + a_low)) * 2.0
    ln2, ln2_low, *_ = parts(x, "ln2")
    b, b_low = two_product(k, x.const(ln2))
    high, error = two_sum(b, total * 2.0)
    return fast_two_sum(high, error + (k.fma(ln2_low, b_low) + low))
