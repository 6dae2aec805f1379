"""The error function and its complement."""

from __future__ import annotations

from tessera.core.approximate.algebra import Real
from tessera.core.approximate.arithmetic import coefficients, horner, polynomial
from tessera.core.approximate.exponential import times_exp_of_square

_SMALL = 1.25  # below it erf is a polynomial; in f32 another one reaches from there to 1
_LAST = 4.0
_MIDDLE = (_SMALL + _LAST) / 2


def erf(x: Real) -> Real:
    """A polynomial near 0, 1 - erfc beyond."""
    size = abs(x)
    near = _erf_near(size)
    if x.format.bits == 32:
        far = 1.0 - polynomial(size.at_most(_LAST) - _MIDDLE, coefficients(x, "erfc_far"))
    else:
        far = 1.0 - _erfc_far(size.at_most(6.0))
    return (size < _SMALL).where(near, far).copysign(x)


def _erf_near(size: Real) -> Real:
    return polynomial(size * size, coefficients(size, "erf")).fma(size, size)


def erfc(x: Real) -> Real:
    """e^(-x^2) times a polynomial; near 0 in f64, whose polynomial does not reach it, 1 - erf."""
    size, narrow = abs(x), x.format.bits == 32
    # Below 0 the result is 2 long before the small part underflows, which would take long.
    last = (x < 0.0).where(6.0, x.const(11.0 if narrow else 28.0))
    far = _erfc_far(size.at_most(last))
    far = (x < 0.0).where(2.0 - far, far)
    if narrow:
        return far
    return (size < 0.8).where(1.0 - _erf_near(size).copysign(x), far)


def _erfc_far(x: Real) -> Real:
    """erfc of a positive x: e^(-x^2) times w times a polynomial of w = 1 / (x + k).

    The relative error of w counts about one and a half times; the exponent takes it back.
    """
    k = 2.0 if x.format.bits == 32 else 3.0
    w = 1.0 / (x + k)
    miss = (-w).fma(x, (-w).fma(k, 1.0))
    y = w * horner(w, coefficients(x, "erfcx"))
    return times_exp_of_square(y, x, miss, 1.5)
