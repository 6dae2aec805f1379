"""What approximations share: polynomials, powers of two, sums and products with their errors."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.approximate.algebra import Integer, Real, Scaler, Truth
from tessera.core.approximate.coefficients import COEFFICIENTS, NUMBERS

Pair = tuple[Real, Real]  # an unevaluated sum; the second is within half a unit of the first's last


def coefficients(x: Real, name: str) -> tuple[float, ...]:
    """The coefficients of a polynomial for the format of x."""
    return COEFFICIENTS[x.format.name][name]


def parts(x: Real, name: str) -> tuple[float, ...]:
    """A number to several times the digits of the format of x."""
    return NUMBERS[x.format.name][name]


def polynomial(x: Real, terms: Sequence[float]) -> Real:
    """terms[0] + terms[1] x + ...; long ones as two interleaved halves, for shorter chains."""
    if len(terms) > 8:
        square = x * x
        return horner(square, terms[1::2]).fma(x, horner(square, terms[::2]))
    return horner(x, terms)


def horner(x: Real, terms: Sequence[float]) -> Real:
    """terms[0] + x (terms[1] + x (...))."""
    y = x.const(terms[-1])
    for c in reversed(terms[:-1]):
        y = y.fma(x, c)
    return y


def nearest(x: Real, factor: float, biases: int = 0) -> tuple[Real, Integer]:
    """The integer n nearest to factor x, and n plus so many biases in the low bits of an integer."""
    magic = x.format.magic + biases * x.format.bias
    t = x.fma(factor, magic)
    return t - magic, t.bits()


def scale(x: Real, n: Integer, power: Real) -> Real:
    """x 2^power, rounded once, for x near 1 or 0 and n the power with two biases (see `nearest`)."""
    quick = scaled(x, power)
    return scale_in_steps(x, n) if quick is None else quick


def scales(x: Real) -> bool:
    """Whether the machine has one instruction for x 2^power."""
    return isinstance(x.algebra, Scaler) and x.algebra.scales()


def scaled(x: Real, power: Real) -> Real | None:
    """x 2^power by one instruction, if the machine has it."""
    if not isinstance(x.algebra, Scaler) or not scales(x):
        return None
    return Real(x.algebra, x.algebra.scaled(x.raw, power.raw))


def rest(x: Real) -> Real | None:
    """x less the integer nearest to it by one instruction, if the machine scales and has that too."""
    if not isinstance(x.algebra, Scaler) or not x.algebra.rests():
        return None
    return Real(x.algebra, x.algebra.rest(x.raw))


def scale_in_steps(x: Real, n: Integer) -> Real:
    """x 2^n in two steps: 2^n alone may lie outside of the format."""
    half = n >> 1
    return x * power_of_two(x, half) * power_of_two(x, n - half)


def power_of_two(like: Real, n: Integer) -> Real:
    """2^n for an n with one bias that is the exponent of a normal number; its high bits are lost."""
    return (n << like.format.fraction).from_bits()


def is_nan(x: Real) -> Truth:
    """Whether x is not a number."""
    return ~x.equals(x)


def two_sum(x: Real, y: Real) -> Pair:
    """The sum and its rounding error (Knuth)."""
    s = x + y
    t = s - x
    return s, (x - (s - t)) + (y - t)


def fast_two_sum(x: Real, y: Real) -> Pair:
    """The sum and its rounding error for |x| >= |y| (Dekker)."""
    s = x + y
    return s, y - (s - x)


def two_product(x: Real, y: Real) -> Pair:
    """The product and its rounding error."""
    p = x * y
    return p, x.fma(y, -p)
