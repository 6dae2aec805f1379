"""The gamma function, its logarithm and the derivative of that.

From 5/2 on they are Stirling's series, as a polynomial of 1/x^2; below it a polynomial around 2, to
which log(x (x + 1)), or log x alone, brings smaller numbers.  Negative numbers are reflected:
Gamma(x) Gamma(-x) = -pi / (x sin(pi x)).
"""

from __future__ import annotations

import math

from tessera.core.approximate.algebra import Real, Truth
from tessera.core.approximate.arithmetic import (
    Pair,
    coefficients,
    fast_two_sum,
    parts,
    polynomial,
    two_product,
    two_sum,
)  # fmt: skip
from tessera.core.approximate.exponential import exp_of_sum
from tessera.core.approximate.logarithm import log
from tessera.core.approximate.power import log_pair

_FAR = 2.5  # from here on Stirling's series


def lgamma(x: Real) -> Real:
    """log |Gamma(x)|."""
    size = abs(x)
    small, below = size < 0.5, size < 1.5
    t = small.where(size, size - below.where(1.0, 2.0))
    main, main_low, tail = _above_two(t)
    around = main + (tail + main_low)
    high, low = log_pair(small.where(size.fma(size, size), size))
    near = below.where((main - high) + ((tail + main_low) - low), around)
    far, far_low = _stirling(size, high, low)
    y = (size < _FAR).where(near, far + far_low)
    (y,) = (x < 0.0).rare(lambda: (_reflected(size, small, small.where(around, y)),), (y,))
    y = _is_pole(x).where(math.inf, y)
    return (size < math.inf).where(y, x)


def _above_two(t: Real) -> tuple[Real, Real, Real]:
    """lgamma(2 + t) for |t| <= 1/2: t times the slope at 2, its rounding error, and the rest."""
    first, second, *_ = parts(t, "less_euler")
    rest = polynomial(t, coefficients(t, "lgamma")).fma(t, second)
    return *two_product(t, t.const(first)), rest * t


def _stirling(x: Real, high: Real, low: Real) -> Pair:
    """lgamma x from the logarithm of x: (x - 1/2) (log x - 1) + (log 2 pi - 1) / 2 + g(1 / x^2) / x.

    Written so, it overflows where the result does.
    """
    inverse = 1.0 / x
    series = inverse * polynomial(inverse * inverse, coefficients(x, "stirling"))
    factor = x - 0.5
    less_one, error = fast_two_sum(high, x.const(-1.0))
    p, p_low = two_product(factor, less_one)
    first, second, *_ = parts(x, "stirling")
    total, rest = two_sum(p, x.const(first))
    rest = rest + (factor.fma(low + error, p_low) + (series + second))
    return total, (total < math.inf).where(rest, 0.0)


def _reflected(size: Real, small: Truth, y: Real) -> Real:
    """lgamma(-x) from x and lgamma x: -(y + log(x sin(pi x) / pi)).

    Where x is small the logarithms of its square would underflow: there y lacks -log(x + x^2).
    """
    r = size - size.round()
    sine = abs(r) * _sinc(r)
    return -(y + log(small.where(sine / (size + 1.0), sine * size)))


def _sinc(r: Real) -> Real:
    """sin(pi r) / (pi r) for |r| <= 1/2."""
    return polynomial(r * r, coefficients(r, "sinc"))


def _is_pole(x: Real) -> Truth:
    return (x <= 0.0) & x.floor().equals(x)


def gamma(x: Real) -> Real:
    """The gamma function: below 5/2 a polynomial around 2, from there on e^lgamma."""
    size = abs(x)
    small, below = size < 0.5, size < 1.5
    t = small.where(size, size - below.where(1.0, 2.0))
    around = polynomial(t, coefficients(x, "gamma")).fma(t, 1.0)
    divisor = small.where(size.fma(size, size), below.where(size, 1.0))
    far, far_low = _stirling(size, *log_pair(size))
    far, far_low = far.at_most(_MOST), (far < _MOST).where(far_low, 0.0)
    y = (size < _FAR).where(around / divisor, exp_of_sum(far, far_low))
    (y,) = (x < 0.0).rare(lambda: (_gamma_below(size, around, far, far_low),), (y,))
    y = _is_pole(x).where(x.equals(0.0).where(1.0 / x, math.nan), y)
    return (size < math.inf).where(y, (x > 0.0).where(x, math.nan))


_MOST = 2000.0  # lgamma from where on e^lgamma is infinite, and 0 below 0


def _gamma_below(size: Real, around: Real, far: Real, far_low: Real) -> Real:
    """Gamma(-x) = -pi / (x sin(pi x) Gamma(x)) from Gamma(2 + t) near 0, and from lgamma(x) elsewhere.

    Half of the power comes first and half last, so that nothing underflows but the result.
    """
    whole = size.round()
    r = size - whole
    half = whole * 0.5
    signed = half.floor().equals(half).where(-r, r)
    sine, sine_low = two_product(signed, _sinc(r))  # over -pi
    small, below, near = size < 0.5, size < 1.5, size < _FAR
    power = near.where(1.0, exp_of_sum(far * -0.5, far_low * -0.5))
    factor = below.where(1.0, size) * near.where(around, 1.0)
    divisor, low = two_product(sine, factor)
    low = sine_low.fma(factor, low)
    inverse, top = 1.0 / divisor, small.where(size + 1.0, power)
    q = top * inverse
    miss = (-q).fma(low, (-q).fma(divisor, top))
    y = q * power
    return (abs(q) < math.inf).where((miss * inverse).fma(power, y), y)


def digamma(x: Real) -> Real:
    """The derivative of lgamma: a polynomial times the distance to its zero, from 2 on a series.

    Below 0 it is that of 1 - x, less pi / tan(pi x).
    """
    negative = x < 0.0
    z = negative.where(1.0 - x, x)
    small = z < 1.0
    first, second, third, _ = parts(x, "digamma_zero")
    t = small.where(z, z - 1.0)  # from 1 on, which is exact
    distance = ((t - (first - 1.0)) - second) - third
    near = distance * polynomial(t - 0.5, coefficients(x, "digamma"))
    near = small.where(near - 1.0 / z, near)
    inverse = 1.0 / z
    square = inverse * inverse
    series = square.fma(polynomial(square, coefficients(x, "harmonic")), inverse * 0.5)
    y = (z < 2.0).where(near, log(z) - series)
    (y,) = negative.rare(lambda: (_less_cotangent(y, x),), (y,))
    y = _is_pole(x).where(x.equals(0.0).where((-1.0 / x), math.nan), y)
    return (abs(x) < math.inf).where(y, (x > 0.0).where(x, math.nan))


def _less_cotangent(y: Real, x: Real) -> Real:
    """y - pi / tan(pi x)."""
    r = x - x.round()
    inverse = 1.0 / r
    miss = (-inverse).fma(r, 1.0) * inverse
    tail = r.fma(polynomial(r * r, coefficients(x, "cotangent")), miss)
    total, error = two_sum(y, -inverse)
    return (abs(total) < math.inf).where(total + (error - tail), total)
