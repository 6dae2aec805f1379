"""Exponentials: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial of r, and a power of two."""

from __future__ import annotations

import math

from tessera.core.approximate.algebra import Integer, Logarithmic, Real
from tessera.core.approximate.arithmetic import (
    coefficients,
    fast_two_sum,
    nearest,
    parts,
    polynomial,
    power_of_two,
    rest,
    scale,
    scales,
)  # fmt: skip

# Past these the result is 0 or infinity; between them n fits a signed power of two in two steps.
_LOW = {"f32": -104.0, "f64": -746.0}
_HIGH = {"f32": 89.0, "f64": 710.0}


def _reduced(x: Real) -> tuple[Real, Real, Integer]:
    """r and n with x = n ln 2 + r, n also as an integer with two biases."""
    n, i = nearest(x, 1 / math.log(2), 2)
    high, low, *_ = parts(x, "ln2")
    return (-n).fma(low, (-n).fma(high, x)), n, i


def _clamped(x: Real) -> Real:
    return x.at_most(_HIGH[x.format.name]).at_least(_LOW[x.format.name])


def _above(x: Real, low: float) -> Real:
    """x, or the bound below it, for `_scale_or_zero`.

    An instruction scales 0 by any power; in steps a power must have the bits of one.
    """
    return x if scales(x) else x.at_least(low)


def _below(x: Real, high: float) -> Real:
    """x, or the bound above it: an instruction makes infinity of anything times 2^infinity, of NaN too."""
    return x if scales(x) else x.at_most(high)


def _scale_or_zero(x: Real, low: float, y: Real, n: Integer, power: Real) -> Real:
    """y 2^power, which is 0 where x is below a bound.

    There what underflows would take a hundred times as long as 0, by one instruction too: rows that hide
    columns have many of them.
    """
    return scale((x < low).where(0.0, y), n, power)


def exp(x: Real) -> Real:
    """e^x."""
    low = _LOW[x.format.name]
    r, n, i = _reduced(_above(_below(x, _HIGH[x.format.name]), low))
    q = polynomial(r, coefficients(x, "exp")).fma(r, 1.0).fma(r, 1.0)
    return _scale_or_zero(x, low, q, i, n)


def exp_of_sum(x: Real, low: Real) -> Real:
    """e^(x + low) for a low far below x, with hardly more than the last rounding."""
    if isinstance(x.algebra, Logarithmic):
        return Real(x.algebra, x.algebra.own_exp(x.raw)) * Real(
            x.algebra, x.algebra.own_exp(low.raw)
        )
    r, tail, n, i = _reduced_twice(_clamped(x), low)
    one, rest = fast_two_sum(x.const(1.0), r)
    return _scale_or_zero(x, _LOW[x.format.name], one + (rest + tail), i, n)


def times_exp_of_square(y: Real, x: Real, miss: Real, times: float) -> Real:
    """y e^(times miss - x^2) for a y near 1 and a tiny miss; the square is not rounded."""
    square = x * x
    n, i = nearest(square, -1 / math.log(2), 2)
    first, second = parts(x, "ln2_short")
    exact = n * first
    r = miss.fma(times, (-n).fma(second, (-x).fma(x, -exact)))
    less_one = polynomial(r, coefficients(x, "exp")).fma(r * r, r)
    return _scale_or_zero(-square, _LOW[x.format.name], y.fma(less_one, y), i, n)


def _reduced_twice(x: Real, low: Real) -> tuple[Real, Real, Real, Integer]:
    """r and e^r - 1 - r, with what the rounding of r left out, and n twice as in `_reduced`."""
    n, i = nearest(x, 1 / math.log(2), 2)
    first, second, *_ = parts(x, "ln2")
    r, error = fast_two_sum((-n).fma(first, x), (-n).fma(second, low))
    return r, polynomial(r, coefficients(x, "exp")).fma(r * r, error), n, i


def exp2(x: Real) -> Real:
    """2^x."""
    low = -float(x.format.bias + x.format.digits + 1)
    r, n, i = _split(x, low)
    q = polynomial(r, coefficients(x, "exp2")).fma(r, 1.0)
    return _scale_or_zero(x, low, q, i, n)


def _split(x: Real, low: float) -> tuple[Real, Real, Integer]:
    """r and n with x = n + r, n also as an integer with two biases for `scale` where it takes steps."""
    r = rest(x)
    if r is not None:
        return r, x - r, x.integer(0)
    bounded = _above(_below(x, 1.0 + x.format.bias + 1), low)
    n, i = nearest(bounded, 1.0, 2)
    return bounded - n, n, i


def expm1(x: Real) -> Real:
    """e^x - 1, accurate near 0: 2^n ((1 - 2^-n) + (e^r - 1))."""
    bounded = x.at_most(_HIGH[x.format.name]).at_least(-2.0 * x.format.digits)
    r, tail, n, i = _reduced_twice(bounded, x.const(0.0))
    # From 2^digits on the 1 is lost anyway.
    unit = (n < x.format.digits + 2.0).where(power_of_two(x, 3 * x.format.bias - i), 0.0)
    total, rest = fast_two_sum(1.0 - unit, r)  # also for n = 0, where that is 0
    return scale(total + (rest + tail), i, n).copysign(x)


def sigmoid(x: Real) -> Real:
    """1 / (1 + e^-x), as e^x / (1 + e^x) for negative x so that neither end loses digits."""
    low, size = _LOW[x.format.name], -abs(x)
    r, n, i = _reduced(_above(size, low))
    q = polynomial(r, coefficients(x, "exp")).fma(r, 1.0).fma(r, 1.0)
    e = _scale_or_zero(size, low, q, i, n)
    return (x < 0.0).where(e, 1.0) / (e + 1.0)


def tanh(x: Real) -> Real:
    """1 - 2 / (e^2|x| + 1), a polynomial below 0.55 where the two cancel."""
    size, square = abs(x), x * x
    bounded = size.at_most(10.0 if x.format.bits == 32 else 20.0)
    r, _, i = _reduced(bounded + bounded)
    power = power_of_two(x, i - x.format.bias)
    e = polynomial(r, coefficients(x, "exp")).fma(r, 1.0).fma(r, 1.0) * power
    small = (size * square).fma(polynomial(square, coefficients(x, "tanh")), size)
    return (size < 0.55).where(small, 1.0 - 2.0 / (e + 1.0)).copysign(x)


def _half_exp(size: Real) -> Real:
    """e^|x| / 2, which overflows where sinh and cosh do."""
    r, n, i = _reduced(size.at_most(_HIGH[size.format.name] + 1.0))
    q = polynomial(r, coefficients(size, "exp")).fma(r, 1.0).fma(r, 1.0)
    return scale(q, i - 1, n - 1.0)


def cosh(x: Real) -> Real:
    """e^|x| / 2 + e^-|x| / 2."""
    e = _half_exp(abs(x))
    return e + 0.25 / e


def sinh(x: Real) -> Real:
    """e^|x| / 2 - e^-|x| / 2, a polynomial below 1 where the two cancel."""
    size, square = abs(x), x * x
    e = _half_exp(size)
    small = (size * square).fma(polynomial(square, coefficients(x, "sinh")), size)
    return (size < 1.0).where(small, e - 0.25 / e).copysign(x)
