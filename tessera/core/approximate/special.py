"""The error function, its complement, and their inverses."""

from __future__ import annotations

import math

from tessera.core.approximate.algebra import Real, Truth
from tessera.core.approximate.arithmetic import coefficients, horner, polynomial
from tessera.core.approximate.exponential import times_exp_of_square
from tessera.core.approximate.logarithm import log

_SMALL = 1.25  # below it erf is a polynomial; in f32 another one reaches from there to 1
_LAST = 4.0  # from there erf is 1 in f32: 1 - erf(4) is 1.5e-8, half an ulp is 3e-8
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
    y, miss = _erfcx(x)
    return times_exp_of_square(y, x, miss, 1.5)


def _erfcx(x: Real) -> tuple[Real, Real]:
    """e^(x^2) erfc(x) of a positive x, and the relative error of 1 / (x + k) in it."""
    k = 2.0 if x.format.bits == 32 else 3.0
    w = 1.0 / (x + k)
    miss = (-w).fma(x, (-w).fma(k, 1.0))
    return w * horner(w, coefficients(x, "erfcx")), miss


def erfinv(x: Real) -> Real:
    """The inverse of erf."""
    size = abs(x)
    rest = 1.0 - size
    middle = rest >= _EDGE
    y = _inverse(size, rest, middle, (size + 1.0) * rest)
    y = size.equals(1.0).where(math.inf, y)
    return (x < 0.0).where(-y, y)  # of -0 too it is 0, as SciPy has it


def erfcinv(x: Real) -> Real:
    """The inverse of erfc."""
    other = 2.0 - x
    rest = (x < 1.0).where(x, other)
    middle = rest >= _EDGE
    y = _inverse(1.0 - rest, rest, middle, x * other)
    y = rest.equals(0.0).where(math.inf, y)
    return (x < 1.0).where(y, -y)  # of 1 it is -0, as SciPy has it


_EDGE = 0.09  # erfc of about 1.2: in the middle of the function a polynomial


def _inverse(x: Real, y: Real, middle: Truth, q: Real) -> Real:
    """erfinv(x) for a positive x, from 1 - x and from q = 1 - x^2, which is needed in the middle alone.

    There it is x times a polynomial of -log q.  Where y is small, z with erfc z = y is the root of
    z^2 - log(e^(z^2) erfc z) + log y, and one step of Newton's method follows a polynomial.
    """
    w = -log(middle.where(q, y))
    near = x * polynomial(w, coefficients(x, "erfinv"))
    s = w.sqrt()
    start = s * polynomial(1.0 / (s + 1.0), coefficients(x, "erfinv_far"))
    scaled, _ = _erfcx(start)
    miss = start.fma(start, -w) - log(scaled)
    return middle.where(near, start - miss * (scaled * (0.5 * math.sqrt(math.pi))))
