"""Exact numbers: Gaussian rationals, the field of p^2 elements, and power series over either.

Complex numbers are pairs a + bi with i^2 = -1.  Over a prime p = 3 mod 4 the pairs are a field in which
a + bi -> a - bi is x -> x^p, and the elements of absolute value 1 are a cyclic group of order p + 1.  So a
root of unity of order n, whose conjugate is its inverse, is there whenever n divides p + 1: for
p = 2^61 - 1 that is every power of two.

A float is a fraction with a power of two below, so floats have exact images in all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[Any]  # of exact numbers, dtype object

MERSENNE = 2**61 - 1  # the largest Mersenne prime whose numbers fit 64 bits


class NoInverse(ArithmeticError):
    """A matrix or number that a law inverts has no inverse: the instance says nothing."""


class ExactNumber:
    """An exact number: it meets machine numbers exactly."""

    __slots__ = ()

    def _met(self, x: Any) -> Any:
        """x as a number of the same system."""
        if isinstance(x, type(self)):
            return x
        if isinstance(x, Fraction):
            return self._lift(x, Fraction(0))
        if isinstance(x, int | float | complex | np.generic):
            x = complex(x)
            return self._lift(Fraction(x.real), Fraction(x.imag))
        return None

    def _lift(self, re: Fraction, im: Fraction) -> Any:
        raise TypeError(type(self))

    def _sum(self, other: Any) -> Any:
        raise TypeError(type(self))

    def _product(self, other: Any) -> Any:
        raise TypeError(type(self))

    def __neg__(self) -> Any:
        raise TypeError(type(self))

    def _key(self) -> Any:
        raise TypeError(type(self))

    def __add__(self, other: Any) -> Any:
        met = self._met(other)
        return NotImplemented if met is None else self._sum(met)

    def __mul__(self, other: Any) -> Any:
        met = self._met(other)
        return NotImplemented if met is None else self._product(met)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Any) -> Any:
        return self + -other

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __eq__(self, other: object) -> bool:
        met = self._met(other)
        return met is not None and self._key() == met._key()

    def __hash__(self) -> int:
        return hash(self._key())


class Rational(ExactNumber):
    """a + bi with fractions a and b."""

    __slots__ = ("im", "re")

    def __init__(self, re: Fraction | int, im: Fraction | int = 0):
        self.re, self.im = Fraction(re), Fraction(im)

    def _lift(self, re: Fraction, im: Fraction) -> Rational:
        return Rational(re, im)

    def _key(self) -> Any:
        return self.re, self.im

    def _sum(self, other: Rational) -> Rational:
        return Rational(self.re + other.re, self.im + other.im)

    def _product(self, other: Rational) -> Rational:
        a, b, c, d = self.re, self.im, other.re, other.im
        if not b and not d:
            return Rational(a * c)
        return Rational(a * c - b * d, a * d + b * c)

    def __neg__(self) -> Rational:
        return Rational(-self.re, -self.im)

    def conjugate(self) -> Rational:
        """a - bi."""
        return Rational(self.re, -self.im)

    def inverse(self) -> Rational:
        """The number whose product with this one is 1."""
        size = self.re * self.re + self.im * self.im
        if not size:
            raise NoInverse("0 has no inverse")
        return Rational(self.re / size, -self.im / size)

    def __bool__(self) -> bool:
        return bool(self.re or self.im)

    def __repr__(self) -> str:
        return f"{self.re}+{self.im}i" if self.im else str(self.re)


class Modular(ExactNumber):
    """a + bi with a and b modulo a prime."""

    __slots__ = ("im", "p", "re")

    def __init__(self, re: int, im: int, p: int):
        self.re, self.im, self.p = re % p, im % p, p

    def _lift(self, re: Fraction, im: Fraction) -> Modular:
        p = self.p
        return Modular(_residue(re, p), _residue(im, p), p)

    def _key(self) -> Any:
        return self.re, self.im

    def _sum(self, other: Modular) -> Modular:
        return Modular(self.re + other.re, self.im + other.im, self.p)

    def _product(self, other: Modular) -> Modular:
        a, b, c, d = self.re, self.im, other.re, other.im
        return Modular(a * c - b * d, a * d + b * c, self.p)

    def __neg__(self) -> Modular:
        return Modular(-self.re, -self.im, self.p)

    def conjugate(self) -> Modular:
        """a - bi."""
        return Modular(self.re, -self.im, self.p)

    def inverse(self) -> Modular:
        """The number whose product with this one is 1."""
        size = (self.re * self.re + self.im * self.im) % self.p
        if not size:
            raise NoInverse("0 has no inverse")
        back = pow(size, -1, self.p)
        return Modular(self.re * back, -self.im * back, self.p)

    def __bool__(self) -> bool:
        return bool(self.re or self.im)

    def __repr__(self) -> str:
        return f"{self.re}+{self.im}i"


def _residue(x: Fraction, p: int) -> int:
    return x.numerator * pow(x.denominator, -1, p)


class PowerSeries(ExactNumber):
    """c0 + c1 t + c2 t^2 + ... up to a fixed order, over a field of exact numbers."""

    __slots__ = ("terms",)

    def __init__(self, terms: Sequence[Any]):
        self.terms = tuple(terms)

    def _lift(self, re: Fraction, im: Fraction) -> PowerSeries:
        first = self.terms[0]._lift(re, im)
        return PowerSeries([first] + [first - first] * (len(self.terms) - 1))

    def _key(self) -> Any:
        return self.terms

    def _sum(self, other: PowerSeries) -> PowerSeries:
        return PowerSeries([a + b for a, b in zip(self.terms, other.terms, strict=True)])

    def __neg__(self) -> PowerSeries:
        return PowerSeries([-a for a in self.terms])

    def _product(self, other: PowerSeries) -> PowerSeries:
        out = [self.terms[0] - self.terms[0]] * len(self.terms)
        for i, a in enumerate(self.terms):
            if a:
                for j, b in enumerate(other.terms[: len(out) - i]):
                    if b:
                        out[i + j] = out[i + j] + a * b
        return PowerSeries(out)

    def conjugate(self) -> PowerSeries:
        """The series with conjugate terms: t is real."""
        return PowerSeries([a.conjugate() for a in self.terms])

    def inverse(self) -> PowerSeries:
        """1 / c0 times the geometric series of the rest."""
        first = self.terms[0].inverse()
        out = [first]
        for n in range(1, len(self.terms)):
            total = self.terms[n] * out[0]
            for k in range(1, n):
                total = total + self.terms[k] * out[n - k]
            out.append(-(total * first))
        return PowerSeries(out)

    def __bool__(self) -> bool:
        return any(map(bool, self.terms))

    def __repr__(self) -> str:
        return " + ".join(f"({a})t^{k}" for k, a in enumerate(self.terms) if a) or "0"


@dataclass(frozen=True)
class NumberSystem:
    """A number system: how numbers get into it, and its roots."""

    name: str
    lift: Callable[[Fraction, Fraction], Any]
    root: Callable[[int], Any]  # a root of unity of that order with conjugate = inverse
    sqrt: Callable[[int], Any]  # of a positive integer, real
    order: int = 0  # terms of a power series, 0 for a field

    def of(self, x: complex | Fraction) -> Any:
        """The image of a number: floats are taken exactly."""
        if isinstance(x, Fraction):
            return self.lift(x, Fraction(0))
        x = complex(x)
        return self.lift(Fraction(x.real), Fraction(x.imag))

    def met(self, x: Any) -> Any:
        """x, lifted if it is a machine number."""
        return x if isinstance(x, ExactNumber) else self.of(x)

    def array(self, x: Any) -> Matrix:
        """The image of an array of machine numbers."""
        x = np.asarray(x)
        out = np.empty(x.shape, object)
        for at in np.ndindex(x.shape):
            out[at] = self.of(x[at].item())
        return out

    def zeros(self, *shape: int) -> Matrix:
        """An array of zeros."""
        return np.full(shape, self.of(0), object)

    def eye(self, n: int) -> Matrix:
        """The identity matrix."""
        out = self.zeros(n, n)
        out[range(n), range(n)] = self.of(1)
        return out

    def random(self, rng: Random, *, real: bool = False) -> Any:
        """A small random number."""
        re = Fraction(rng.randint(-9, 9), rng.randint(1, 5))
        return self.lift(re, Fraction(0 if real else rng.randint(-9, 9)))


def _no_root(n: int) -> Any:
    raise NoInverse(f"the rationals have no root of unity of order {n}")


def _rational_root(n: int) -> Any:
    powers = {1: Rational(1), 2: Rational(-1), 4: Rational(0, 1)}
    return powers[n] if n in powers else _no_root(n)


def _rational_sqrt(n: int) -> Any:
    whole = round(n**0.5)
    if whole * whole != n:
        raise NoInverse(f"{n} is no square of a rational")
    return Rational(whole)


RATIONALS = NumberSystem("rationals", Rational, _rational_root, _rational_sqrt)


@cache
def modulo(p: int = MERSENNE) -> NumberSystem:
    """The field of p^2 elements for a prime p = 3 mod 4."""
    assert p % 4 == 3, p

    def lift(re: Fraction, im: Fraction) -> Modular:
        return Modular(_residue(re, p), _residue(im, p), p)

    def sqrt(n: int) -> Modular:
        found = pow(n, (p + 1) // 4, p)
        if found * found % p != n % p:
            raise NoInverse(f"{n} is no square modulo {p}")
        return Modular(found, 0, p)

    return NumberSystem(f"pairs modulo {p}", lift, cache(lambda n: _circle_root(n, p)), sqrt)


def _circle_root(n: int, p: int) -> Modular:
    """A root of unity of order n on the circle |x| = 1: x^(p-1) is on it for every x."""
    if (p + 1) % n:
        raise NoInverse(f"no root of unity of order {n} modulo {p}")
    one = Modular(1, 0, p)
    for a in range(1, 1000):
        x = Modular(a, 1, p)
        root: Modular = raised(x.conjugate() * x.inverse(), (p + 1) // n)
        if all(raised(root, n // q) != one for q in _factors(n)):
            return root
    raise NoInverse(f"found no root of unity of order {n} modulo {p}")


def _factors(n: int) -> list[int]:
    return [q for q in range(2, n + 1) if n % q == 0 and all(q % r for r in range(2, q))]


def raised(x: Any, k: int) -> Any:
    """The k-th power of a number."""
    out = None
    while k:
        if k & 1:
            out = x if out is None else out * x
        x, k = x * x, k >> 1
    return out if out is not None else x * x.inverse()


@cache
def with_roots(n: int) -> NumberSystem:
    """A field that has a root of unity of order n and a real square root of n."""
    if MERSENNE % n == n - 1:
        return modulo()
    step = 4 * n if n % 4 else n
    p = (2**40 // step) * step - 1
    while not (_is_prime(p) and pow(n, (p - 1) // 2, p) == 1):
        p -= step
    return modulo(p)


def _is_prime(n: int) -> bool:
    """Miller and Rabin's test, certain below 3.3e24 with these bases."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if any(n % b == 0 for b in bases):
        return n in bases
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for b in bases:
        x = pow(b, odd, n)
        if x not in (1, n - 1) and all(pow(x, 2**k, n) != n - 1 for k in range(1, twos)):
            return False
    return True


@cache
def series(field: NumberSystem, order: int = 5) -> NumberSystem:
    """Power series over a field, cut off after `order` terms."""
    zero = field.of(0)

    def constant(x: Any) -> PowerSeries:
        return PowerSeries([x] + [zero] * (order - 1))

    return NumberSystem(
        f"power series over the {field.name}",
        lambda re, im: constant(field.lift(re, im)),
        lambda n: constant(field.root(n)),
        lambda n: constant(field.sqrt(n)),
        order,
    )


def times_t(a: Matrix) -> Matrix:
    """The array of series times t."""
    out = np.empty(a.shape, object)
    for at in np.ndindex(a.shape):
        s: Any = a[at]
        out[at] = PowerSeries((s.terms[0] - s.terms[0], *s.terms[:-1]))
    return out


def inverse(a: Matrix, numbers: NumberSystem) -> Matrix:
    """The inverse of a square matrix by elimination; NoInverse when there is none."""
    n = len(a)
    work = np.concatenate([a, numbers.eye(n)], 1)
    for k in range(n):
        row = next((i for i in range(k, n) if _unit(work[i, k])), None)
        if row is None:
            raise NoInverse("the matrix is singular")
        work[[k, row]] = work[[row, k]]
        work[k] = work[k] * work[k, k].inverse()
        for i in range(n):
            if i != k and work[i, k]:
                work[i] = work[i] - work[k] * work[i, k]
    return work[:, n:]


def _unit(x: Any) -> bool:
    return bool(x.terms[0] if isinstance(x, PowerSeries) else x)


def product(a: Matrix, b: Matrix, numbers: NumberSystem) -> Matrix:
    """The matrix product, also when the inner size is 0."""
    if a.shape[-1] == 0:
        return numbers.zeros(*a.shape[:-1], *b.shape[1:])
    return np.asarray(a @ b, object)


def conjugate(a: Matrix) -> Matrix:
    """Every element's conjugate."""
    return np.frompyfunc(lambda x: x.conjugate(), 1, 1)(a) if a.size else a


def power(a: Matrix, k: int, numbers: NumberSystem) -> Matrix:
    """The k-th power of a square matrix; negative powers are those of the inverse."""
    if k < 0:
        return power(inverse(a, numbers), -k, numbers)
    out = numbers.eye(len(a))
    for _ in range(k):
        out = product(out, a, numbers)
    return out


def exponential(a: Matrix, numbers: NumberSystem) -> Matrix:
    """The sum of a^k / k! for a matrix of series without constant term."""
    out = total = numbers.eye(len(a))
    for k in range(1, numbers.order):
        out = product(out, a, numbers) * numbers.of(Fraction(1, k))
        total = total + out
    return total


def logarithm(a: Matrix, numbers: NumberSystem) -> Matrix:
    """The sum of -(1 - a)^k / k for a matrix of series whose constant term is 1."""
    rest = numbers.eye(len(a)) - a
    out, total = numbers.eye(len(a)), numbers.zeros(*a.shape)
    for k in range(1, numbers.order):
        out = product(out, rest, numbers)
        total = total - out * numbers.of(Fraction(1, k))
    return total


def square_root(a: Matrix, numbers: NumberSystem) -> Matrix:
    """The binomial series of (1 + x)^(1/2) for a matrix of series whose constant term is the identity."""
    rest = a - numbers.eye(len(a))
    power, total, factor = numbers.eye(len(a)), numbers.eye(len(a)), Fraction(1)
    for k in range(1, numbers.order):
        power = product(power, rest, numbers)
        factor *= (Fraction(1, 2) - (k - 1)) / k
        total = total + power * numbers.of(factor)
    if not np.all(product(total, total, numbers) == a):
        raise NoInverse("the constant term of the series is not the identity")
    return total


def pseudoinverse(a: Matrix, numbers: NumberSystem) -> Matrix:
    """The inverse of Moore and Penrose of a matrix of full rank."""
    h = conjugate(a.T)
    if a.shape[0] >= a.shape[1]:
        return product(inverse(product(h, a, numbers), numbers), h, numbers)
    return product(h, inverse(product(a, h, numbers), numbers), numbers)


def dft(n: int, numbers: NumberSystem) -> Matrix:
    """The matrix of w^(jk) with w the conjugate of the root of unity of order n."""
    w = numbers.root(n).conjugate()
    powers = [raised(w, k) if k else numbers.of(1) for k in range(n)]
    out = numbers.zeros(n, n)
    for j, k in np.ndindex(n, n):
        out[j, k] = powers[j * k % n]
    return out
