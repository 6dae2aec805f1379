"""Special functions that are written with ops: probabilities, entropies, incomplete gamma and beta, Bessel functions.

Series and continued fractions run a fixed number of steps, enough for the accuracy of f64 up to arguments of a few hundred.
"""

from __future__ import annotations

import math

from tessera.ir.graph.ir import Value
from tessera.ops.control import fori_loop
from tessera.ops.creation import full_like, ones_like
from tessera.ops.define import ArrayLike, cast_to, floating, meet, public
from tessera.ops.elementwise import (
    abs,
    add,
    div,
    eq,
    erfc,
    erfcinv,
    exp,
    ge,
    gt,
    isnan,
    le,
    lgamma,
    log,
    log1p,
    logaddexp,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    neg,
    pow,
    sin,
    sub,
    where,
)


def _float(op: str, *xs: ArrayLike) -> list[Value]:
    return [cast_to(v, floating(v).dtype) for v in meet(op, xs)]


# Entropies


@public
def xlogy(x: ArrayLike, y: ArrayLike) -> Value:
    """x log(y), and 0 where x is 0."""
    a, b = _float("xlogy", x, y)
    zero = eq(a, 0)
    safe = where(zero, 1, b)
    return where(zero, where(isnan(b), b, 0), mul(a, log(safe)))


@public
def xlog1py(x: ArrayLike, y: ArrayLike) -> Value:
    """x log(1 + y), and 0 where x is 0."""
    a, b = _float("xlog1py", x, y)
    zero = eq(a, 0)
    return where(zero, where(isnan(b), b, 0), mul(a, log1p(where(zero, 0, b))))


@public
def entr(x: ArrayLike) -> Value:
    """-x log(x), 0 at 0 and -inf below."""
    (v,) = _float("entr", x)
    y = neg(xlogy(v, where(gt(v, 0), v, 1)))
    return where(lt(v, 0), float("-inf"), y)


@public
def rel_entr(x: ArrayLike, y: ArrayLike) -> Value:
    """x log(x / y), 0 where x is 0 and y is not negative, inf beyond."""
    a, b = _float("rel_entr", x, y)
    both, zero = gt(minimum(a, b), 0), eq(where(ge(b, 0), a, 1), 0)
    safe_a, safe_b = where(both, a, 1), where(both, b, 1)
    y_ = mul(safe_a, log(div(safe_a, safe_b)))
    return where(both, y_, where(zero, 0, full_like(a, float("inf"))))


# The normal distribution


@public
def ndtr(x: ArrayLike) -> Value:
    """The distribution function of the standard normal distribution."""
    (v,) = _float("ndtr", x)
    return mul(erfc(mul(v, -math.sqrt(0.5))), 0.5)


@public
def ndtri(p: ArrayLike) -> Value:
    """The inverse of ndtr."""
    (v,) = _float("ndtri", p)
    return mul(erfcinv(mul(v, 2)), -math.sqrt(2))


@public
def logit(p: ArrayLike) -> Value:
    """log(p / (1 - p)), the inverse of sigmoid."""
    (v,) = _float("logit", p)
    return sub(log(v), log1p(neg(v)))


# Gamma and beta


@public
def gammaln(x: ArrayLike) -> Value:
    """log |gamma(x)|."""
    return lgamma(x)


@public
def betaln(a: ArrayLike, b: ArrayLike) -> Value:
    """log of the beta function."""
    x, y = _float("betaln", a, b)
    return sub(add(lgamma(x), lgamma(y)), lgamma(add(x, y)))


@public
def factorial(n: ArrayLike) -> Value:
    """n!, as a float."""
    (v,) = _float("factorial", n)
    return where(lt(v, 0), 0, exp(lgamma(add(where(lt(v, 0), 0, v), 1))))


_STEPS = 400  # of series and continued fractions; each ends by itself as terms vanish


def _series(a: Value, x: Value) -> Value:
    """The regularised lower incomplete gamma function, for x below a + 1."""

    def step(i: Value, state: tuple[Value, Value]) -> tuple[Value, Value]:
        term, total = state
        term = mul(term, div(x, add(a, add(cast_to(i, a.dtype), 1))))
        return term, add(total, term)

    first = div(ones_like(a), a)
    _, total = fori_loop(0, _STEPS, step, (first, first))
    return mul(total, exp(sub(sub(xlogy(a, x), x), lgamma(a))))


def _small(x: Value) -> Value:
    """x kept from 0, for the quotients of a continued fraction."""
    tiny = 1e-30
    return where(lt(abs(x), tiny), tiny, x)


def _fraction(a: Value, x: Value) -> Value:
    """The regularised upper incomplete gamma function by Lentz's method, for x above a + 1."""
    b = sub(add(x, 1), a)
    d = div(1.0, _small(b))

    def step(i: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
        b, c, d, h = state
        k = add(cast_to(i, a.dtype), 1)
        top = neg(mul(k, sub(k, a)))
        b = add(b, 2)
        d = div(1.0, _small(add(mul(top, d), b)))
        c = _small(add(b, div(top, c)))
        return b, c, d, mul(h, mul(c, d))

    *_, h = fori_loop(0, _STEPS, step, (b, full_like(a, 1e30), d, d))
    return mul(h, exp(sub(sub(xlogy(a, x), x), lgamma(a))))


def _incomplete(op: str, a: ArrayLike, x: ArrayLike) -> tuple[Value, Value, Value]:
    s, v = _float(op, a, x)
    low = lt(v, add(s, 1))
    inside = gt(v, 0)
    below = _series(s, where(low, maximum(v, 0), 0))
    above = _fraction(s, where(low, add(s, 2), v))
    bad = logical_or(lt(v, 0), le(s, 0))
    nan = full_like(s, float("nan"))
    lower = where(inside, where(low, below, sub(1, above)), 0)
    upper = where(inside, where(low, sub(1, below), above), 1)
    return where(bad, nan, lower), where(bad, nan, upper), s


@public
def gammainc(a: ArrayLike, x: ArrayLike) -> Value:
    """The regularised lower incomplete gamma function, for a above 0."""
    return _incomplete("gammainc", a, x)[0]


@public
def gammaincc(a: ArrayLike, x: ArrayLike) -> Value:
    """The regularised upper incomplete gamma function, for a above 0."""
    return _incomplete("gammaincc", a, x)[1]


def _beta_fraction(a: Value, b: Value, x: Value) -> Value:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    total, up, down = add(a, b), add(a, 1), sub(a, 1)
    d = div(1.0, _small(sub(1, div(mul(total, x), up))))

    def term(state: tuple[Value, ...], top: Value) -> tuple[Value, ...]:
        c, d, h = state
        d = div(1.0, _small(add(mul(top, d), 1)))
        c = _small(add(div(top, c), 1))
        return c, d, mul(h, mul(c, d))

    def step(i: Value, state: tuple[Value, ...]) -> tuple[Value, ...]:
        m = add(cast_to(i, a.dtype), 1)
        two = mul(m, 2)
        even = div(mul(mul(m, sub(b, m)), x), mul(add(down, two), add(a, two)))
        odd = div(mul(neg(mul(add(a, m), add(total, m))), x), mul(add(a, two), add(up, two)))
        return term(term(state, even), odd)

    return fori_loop(0, _STEPS, step, (ones_like(a), d, d))[2]  # type: ignore[no-any-return]


@public
def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """The regularised incomplete beta function, for a and b above 0 and x from 0 to 1."""
    p, q, v = _float("betainc", a, b, x)
    turned = gt(v, div(add(p, 1), add(add(p, q), 2)))
    s, t = where(turned, q, p), where(turned, p, q)
    y = where(turned, sub(1, v), v)
    front = exp(sub(add(xlogy(s, y), xlog1py(t, neg(y))), betaln(s, t)))
    found = div(mul(front, _beta_fraction(s, t, y)), s)
    found = where(turned, sub(1, found), found)
    found = where(le(v, 0), 0, where(ge(v, 1), 1, found))
    return where(logical_or(lt(v, 0), gt(v, 1)), full_like(v, float("nan")), found)


# Bessel functions


def _bessel(order: int, x: Value) -> Value:
    """exp(-|x|) times the modified Bessel function: the power series, and its asymptotic one for large x."""
    size = abs(x)
    large = gt(size, 30.0)
    near = where(large, 1, size)
    half = mul(mul(near, near), 0.25)

    def power(i: Value, state: tuple[Value, Value]) -> tuple[Value, Value]:
        term, total = state
        k = add(cast_to(i, x.dtype), 1)
        term = div(mul(term, half), mul(k, add(k, float(order))))
        return term, add(total, term)

    first = ones_like(near) if order == 0 else mul(near, 0.5)
    _, total = fori_loop(0, 100, power, (first, first))
    far = where(large, size, 30)
    mu, term, series = 4.0 * order * order, ones_like(far), ones_like(far)
    for k in range(1, 25):
        term = mul(term, div(-(mu - (2 * k - 1) ** 2) / (8.0 * k), far))
        series = add(series, term)
    wide = div(series, pow(mul(far, 2 * math.pi), 0.5))
    y = where(large, wide, mul(total, exp(neg(near))))
    return y if order == 0 else mul(y, where(lt(x, 0), -1, ones_like(x)))


@public
def i0e(x: ArrayLike) -> Value:
    """exp(-|x|) times the modified Bessel function of order 0."""
    return _bessel(0, _float("i0e", x)[0])


@public
def i1e(x: ArrayLike) -> Value:
    """exp(-|x|) times the modified Bessel function of order 1."""
    return _bessel(1, _float("i1e", x)[0])


@public
def i0(x: ArrayLike) -> Value:
    """The modified Bessel function of order 0."""
    (v,) = _float("i0", x)
    return mul(_bessel(0, v), exp(abs(v)))


@public
def i1(x: ArrayLike) -> Value:
    """The modified Bessel function of order 1."""
    (v,) = _float("i1", x)
    return mul(_bessel(1, v), exp(abs(v)))


# Numbers


@public
def sinc(x: ArrayLike) -> Value:
    """sin(pi x) / (pi x), and 1 at 0."""
    (v,) = _float("sinc", x)
    turned = mul(v, math.pi)
    safe = where(eq(turned, 0), 1, turned)
    return where(eq(turned, 0), 1, div(sin(safe), safe))


@public
def heaviside(x: ArrayLike, at_zero: ArrayLike) -> Value:
    """0 below 0, 1 above, and a number of one's own at 0."""
    v, h = _float("heaviside", x, at_zero)
    return where(eq(v, 0), h, where(isnan(v), v, cast_to(gt(v, 0), v.dtype)))


@public
def deg2rad(x: ArrayLike) -> Value:
    """Degrees as radians."""
    return mul(_float("deg2rad", x)[0], math.pi / 180)


@public
def rad2deg(x: ArrayLike) -> Value:
    """Radians as degrees."""
    return mul(_float("rad2deg", x)[0], 180 / math.pi)


@public
def fmax(x: ArrayLike, y: ArrayLike) -> Value:
    """The larger of two numbers, and the other where one is NaN."""
    a, b = meet("fmax", (x, y))
    if a.dtype.kind != "f":
        return maximum(a, b)
    return where(isnan(a), b, where(isnan(b), a, maximum(a, b)))


@public
def fmin(x: ArrayLike, y: ArrayLike) -> Value:
    """The smaller of two numbers, and the other where one is NaN."""
    a, b = meet("fmin", (x, y))
    if a.dtype.kind != "f":
        return minimum(a, b)
    return where(isnan(a), b, where(isnan(b), a, minimum(a, b)))


@public
def logaddexp2(x: ArrayLike, y: ArrayLike) -> Value:
    """log2(2**x + 2**y) without overflow."""
    a, b = _float("logaddexp2", x, y)
    return div(logaddexp(mul(a, math.log(2)), mul(b, math.log(2))), math.log(2))
