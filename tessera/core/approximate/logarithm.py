"""Logarithms: x = 2^k (1 + f) with 1 + f between the roots of 1/2 and 2, and a polynomial of f."""

from __future__ import annotations

import math

from tessera.core.approximate.algebra import Logarithmic, Real
from tessera.core.approximate.arithmetic import (
    Pair,
    coefficients,
    fast_two_sum,
    parts,
    polynomial,
    two_product,
    two_sum,
)  # fmt: skip

_ROOT_HALF = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}  # the bits of the root of 1/2


def split(x: Real) -> tuple[Real, Real, Real]:
    """k, 1 + f and 2^-k of a positive finite x; 2^-k only where it is a normal number."""
    f = x.format
    tiny = x < f.smallest
    b = tiny.where(x * 2.0**f.digits, x).bits()
    k = (b - _ROOT_HALF[f.name]) >> f.fraction
    shifted = k << f.fraction
    m = (b - shifted).from_bits()
    inverse = ((f.bias << f.fraction) - shifted).from_bits()
    return k.real() - tiny.where(float(f.digits), 0.0), m, inverse


def _tail(f: Real) -> Real:
    """log(1 + f) - f."""
    cubic = polynomial(f, coefficients(f, "log"))
    return (f * f) * cubic.fma(f, -0.5)


def _at_the_edges(x: Real, y: Real) -> Real:
    """y, but -inf at 0, NaN below, and x itself where it is infinite or NaN."""
    y = (x < math.inf).where(y, x)
    return (x > 0.0).where(y, x.equals(0.0).where(-math.inf, x * math.nan))


def log(x: Real) -> Real:
    """The natural logarithm."""
    if isinstance(x.algebra, Logarithmic):
        return Real(x.algebra, x.algebra.own_log(x.raw))
    k, m, _ = split(x)
    f = m - 1.0
    high, low, *_ = parts(x, "ln2")
    return _at_the_edges(x, k.fma(high, f + k.fma(low, _tail(f))))


def log2(x: Real) -> Real:
    """The logarithm to the base 2."""
    k, m, _ = split(x)
    high, low = _to_base(m - 1.0, "log2e")
    s, e = fast_two_sum(k, high)
    return _at_the_edges(x, k.equals(0.0).where(high + low, s + (e + low)))


def log10(x: Real) -> Real:
    """The logarithm to the base 10."""
    k, m, _ = split(x)
    high, low = _to_base(m - 1.0, "log10e")
    whole, part, *_ = parts(x, "log10_2")
    p, e1 = two_product(k, x.const(whole))
    s, e2 = fast_two_sum(p, high)
    y = s + (e2 + (low + k.fma(part, e1)))
    return _at_the_edges(x, k.equals(0.0).where(high + low, y))


def _to_base(f: Real, factor: str) -> Pair:
    """log(1 + f) times a number: f - f^2/2 is kept with its rounding errors."""
    half, error = two_product(f, f * 0.5)
    first, rest = fast_two_sum(f, -half)
    tail = polynomial(f, coefficients(f, "log")).fma(f * f * f, rest - error)
    high, low, *_ = parts(f, factor)
    p, e = two_product(first, f.const(high))
    return p, e + first.fma(low, tail * high)


def log1p(x: Real) -> Real:
    """log(1 + x)."""
    return _log_of_sum(*_one_more(x), x.const(0.0), x.const(0.0)).copysign(x)


def _one_more(x: Real) -> Pair:
    """1 + x and its rounding error."""
    return two_sum(x.const(1.0), x)


def _log_of_sum(u: Real, error: Real, low: Real, doublings: Real) -> Real:
    """log((u + error) 2^doublings) + low: what is below the digits of u is given back to f."""
    k, m, inverse = split(u)
    f = (m - 1.0) + (u < 2.0 ** (u.format.digits + 1)).where(error * inverse, 0.0)
    k = k + doublings
    first, second, *_ = parts(u, "ln2")
    return _at_the_edges(u, k.fma(first, f + k.fma(second, _tail(f) + low)))


def asinh(x: Real) -> Real:
    """log1p(v) with v = |x| + x^2 / (1 + root(1 + x^2)); log(2 |x|) where x^2 counts alone."""
    size = abs(x)
    bounded = size.at_most(_large(x))
    square = bounded * bounded
    v = square / ((square + 1.0).sqrt() + 1.0) + bounded
    return _log1p_or_double(v, size).copysign(x)


def acosh(x: Real) -> Real:
    """log1p(t + root(2 t + t^2)) with t = x - 1; log(2 x) where x^2 counts alone."""
    t = x.at_most(_large(x)) - 1.0
    y = _log1p_or_double(t + t.fma(t, t + t).sqrt(), x)
    return (x < 1.0).where(math.nan, y)


def _log1p_or_double(v: Real, x: Real) -> Real:
    """log(1 + v), or log(2 x) where x is large."""
    large = x >= _large(x)
    u, error = _one_more(v)
    zero = x.const(0.0)
    return _log_of_sum(large.where(x, u), large.where(0.0, error), zero, large.where(1.0, 0.0))


def atanh(x: Real) -> Real:
    """log1p(v) / 2 with v = 2 |x| / (1 - |x|); an error e of the quotient counts e / (1 + |x|)."""
    size = abs(x)
    d, rest = fast_two_sum(x.const(1.0), -size)
    v = (size + size) / d
    miss = (-v).fma(rest, (-v).fma(d, size + size))
    low = (size < 1.0).where(miss * size.fma(-0.5, 1.0), 0.0)
    return (0.5 * _log_of_sum(*_one_more(v), low, x.const(0.0))).copysign(x)


def _large(x: Real) -> float:
    return float(2.0 ** (x.format.digits // 2 + 2))
