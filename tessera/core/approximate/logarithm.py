"""Logarithms: x = 2^k (1 + f) with 1 + f between the roots of 1/2 and 2, and a polynomial of f."""

from __future__ import annotations

import math

from tessera.core.approximate.algebra import Real
from tessera.core.approximate.arithmetic import (
    Pair,
    coefficients,
    fast_two_sum,
    parts,
    polynomial,
    two_product,
)  # fmt: skip

_ROOT_HALF = {"f32": 0x3F3504F3, "f64": 0x3FE6A09E667F3BCD}  # the bits of the root of 1/2


def _split(x: Real) -> tuple[Real, Real, Real]:
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
    k, m, _ = _split(x)
    f = m - 1.0
    high, low, *_ = parts(x, "ln2")
    return _at_the_edges(x, k.fma(high, f + k.fma(low, _tail(f))))


def log2(x: Real) -> Real:
    """The logarithm to the base 2."""
    k, m, _ = _split(x)
    high, low = _to_base(m - 1.0, "log2e")
    s, e = fast_two_sum(k, high)
    return _at_the_edges(x, k.equals(0.0).where(high + low, s + (e + low)))


def log10(x: Real) -> Real:
    """The logarithm to the base 10."""
    k, m, _ = _split(x)
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
    """log(1 + x): the error of 1 + x is given back to f."""
    u = x + 1.0
    t = u - 1.0
    error = (1.0 - (u - t)) + (x - t)
    k, m, inverse = _split(u)
    f = (m - 1.0) + (u < 2.0 ** (x.format.digits + 1)).where(error * inverse, 0.0)
    high, low, *_ = parts(x, "ln2")
    y = k.fma(high, f + k.fma(low, _tail(f)))
    return _at_the_edges(u, y).copysign(x)
