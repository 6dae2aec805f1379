"""Special functions of SciPy: normal distribution, incomplete gamma and beta, entropies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dtype import bool_, i64
from tessera.core.errors import DTypeError
from tessera.ir.graph.ir import Value
from tessera.lang.custom_rules import custom_jvp
from tessera.lang.names.together import together
from tessera.lang.transforms import jvp
from tessera.ops.arrange import broadcast_arrays
from tessera.ops.control import while_loop
from tessera.ops.creation import full, full_like, ones_like, zeros_like
from tessera.ops.define import ArrayLike, AxisLike, as_value, cast_to, floating, public
from tessera.ops.elementwise import abs as abs_
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    erfc,
    erfcinv,
    exp,
    expm1,
    floor,
    gamma,
    ge,
    gt,
    isnan,
    le,
    lgamma,
    log,
    log1p,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    ne,
    neg,
    remainder,
    signbit,
    sqrt,
    square,
    sub,
    where,
)
from tessera.ops.elementwise import pow as pow_
from tessera.ops.elementwise import round as round_
from tessera.ops.reduction import any as any_
from tessera.ops.reduction import logsumexp
from tessera.ops.reduction import sum as sum_
from tessera.ops.whole import whole

# Normal distribution ----------------------------------------------------------------------------


@public
def ndtr(x: ArrayLike) -> Value:
    """The distribution function of the normal distribution."""
    return mul(erfc(mul(floating(as_value(x)), -math.sqrt(0.5))), 0.5)


@public
def ndtri(p: ArrayLike) -> Value:
    """The x with ndtr(x) = p."""
    return mul(erfcinv(mul(floating(as_value(p)), 2)), -math.sqrt(2))


_FAR = {"f64": 10.0, "f32": 5.0}  # from where on the asymptotic series of erfc has all digits


@public
def erfcx(x: ArrayLike) -> Value:
    """exp(x^2) erfc(x), which does not underflow."""
    v = floating(as_value(x))
    if v.dtype.kind != "f":
        raise DTypeError(f"erfcx: {v.type} is complex, expected real numbers")
    wide = cast_to(v, v.dtype.compute)
    end = _FAR[wide.dtype.name]
    near, far = minimum(wide, end), maximum(wide, end)
    step = div(-0.5, square(far))
    series = ones_like(far)
    for k in range(11, 0, -1):
        series = add(1, mul(mul(step, 2 * k - 1), series))
    series = div(series, mul(far, math.sqrt(math.pi)))
    return cast_to(where(lt(wide, end), mul(exp(square(near)), erfc(near)), series), v.dtype)


@public
def log_ndtr(x: ArrayLike) -> Value:
    """The logarithm of ndtr, exact far to the left too."""
    v = floating(as_value(x))
    left = minimum(v, -1.0)
    low = sub(log(mul(erfcx(mul(left, -math.sqrt(0.5))), 0.5)), mul(square(left), 0.5))
    high = log1p(mul(erfc(mul(maximum(v, -1.0), math.sqrt(0.5))), -0.5))
    return where(lt(v, -1.0), low, high)


# Logarithms of odds and entropies -----------------------------------------------------------------


@public
def logit(p: ArrayLike) -> Value:
    """log(p / (1 - p))."""
    v = floating(as_value(p))
    return sub(log(v), log1p(neg(v)))


@public
def xlogy(x: ArrayLike, y: ArrayLike) -> Value:
    """x log(y), 0 where x is 0 and y is a number."""
    a, b = together(x, y)
    none = logical_and(eq(a, 0), logical_not(isnan(b)))
    return where(none, zeros_like(mul(a, b)), mul(a, log(where(none, ones_like(b), b))))


@public
def xlog1py(x: ArrayLike, y: ArrayLike) -> Value:
    """x log(1 + y), 0 where x is 0 and y is a number."""
    a, b = together(x, y)
    none = logical_and(eq(a, 0), logical_not(isnan(b)))
    return where(none, zeros_like(mul(a, b)), mul(a, log1p(where(none, zeros_like(b), b))))


@public
def entr(x: ArrayLike) -> Value:
    """-x log(x), 0 at 0 and -infinity below."""
    v = floating(as_value(x))
    return where(lt(v, 0), full_like(v, float("-inf")), neg(xlogy(maximum(v, 0), maximum(v, 0))))


@public
def rel_entr(x: ArrayLike, y: ArrayLike) -> Value:
    """x log(x / y), 0 where x is 0 and y >= 0, infinity where it is undefined."""
    a, b = together(x, y)
    good = logical_and(gt(a, 0), gt(b, 0))
    value = mul(a, sub(log(where(good, a, ones_like(a))), log(where(good, b, ones_like(b)))))
    edge = where(logical_and(eq(a, 0), ge(b, 0)), zeros_like(value), full_like(value, float("inf")))
    return where(logical_or(isnan(a), isnan(b)), add(a, b), where(good, value, edge))


@public
def log1mexp(x: ArrayLike) -> Value:
    """log(1 - exp(-x)) for positive x."""
    v = floating(as_value(x))
    near = lt(v, math.log(2))
    small, large = where(near, v, ones_like(v)), where(near, ones_like(v), v)
    return where(near, log(neg(expm1(neg(small)))), log1p(neg(exp(neg(large)))))


@public
def logmeanexp(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The logarithm of the mean of exp(x)."""
    v = floating(as_value(x))
    return sub(logsumexp(v, axis, keepdims), log(sum_(ones_like(v), axis, keepdims)))


@public
def squareplus(x: ArrayLike, b: float = 4.0) -> Value:
    """(x + sqrt(x^2 + b)) / 2, a smooth relu."""
    v = floating(as_value(x))
    return mul(add(v, sqrt(add(square(v), b))), 0.5)


@public
def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Value:
    """(x^lmbda - 1) / lmbda, log(x) at lmbda = 0."""
    a, b = together(x, lmbda)
    safe = where(eq(b, 0), ones_like(b), b)
    return where(eq(b, 0), log(a), div(expm1(mul(safe, log(a))), safe))


@public
def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Value:
    """boxcox of 1 + x, exact near 0."""
    a, b = together(x, lmbda)
    safe = where(eq(b, 0), ones_like(b), b)
    return where(eq(b, 0), log1p(a), div(expm1(mul(safe, log1p(a))), safe))


# Gamma and beta -----------------------------------------------------------------------------------


@public
def betaln(a: ArrayLike, b: ArrayLike) -> Value:
    """The logarithm of the beta function."""
    x, y = together(a, b)
    return sub(add(lgamma(x), lgamma(y)), lgamma(add(x, y)))


@public
def factorial(n: ArrayLike) -> Value:
    """n!, as gamma(n + 1); 0 for negative n."""
    v = floating(as_value(n))
    return where(lt(v, 0), zeros_like(v), gamma(add(maximum(v, 0), 1)))


@public
def comb(n: ArrayLike, k: ArrayLike) -> Value:
    """How many ways there are to choose k of n."""
    a, b = together(n, k)
    good = logical_and(logical_and(ge(b, 0), le(b, a)), ge(a, 0))
    x, y = where(good, a, ones_like(a)), where(good, b, zeros_like(b))
    found = exp(neg(add(log(add(x, 1)), betaln(add(sub(x, y), 1), add(y, 1)))))
    whole = logical_and(eq(x, floor(x)), eq(y, floor(y)))
    return where(good, where(whole, round_(found), found), zeros_like(found))


@public
def gammasgn(x: ArrayLike) -> Value:
    """The sign of the gamma function: -1 between -1 and 0, and so on; NaN at whole numbers below 0."""
    (v,) = together(x)
    whole = floor(v)
    odd = where(eq(remainder(whole, 2.0), 0.0), 1.0, -1.0)
    pole = logical_and(lt(v, 0.0), eq(whole, v))
    sign = where(signbit(v), where(pole, math.nan, where(eq(v, 0.0), -1.0, odd)), 1.0)
    return where(ne(v, v), v, sign)


@public
def poch(z: ArrayLike, m: ArrayLike) -> Value:
    """gamma(z + m) / gamma(z)."""
    a, b = together(z, m)
    both = add(a, b)
    found = mul(exp(sub(lgamma(both), lgamma(a))), mul(gammasgn(both), gammasgn(a)))
    return where(eq(b, 0), ones_like(found), found)


@public
def multigammaln(a: ArrayLike, d: int) -> Value:
    """The logarithm of the gamma function of d dimensions."""
    d = whole("multigammaln", "d", d)
    v = floating(as_value(a))
    total = full_like(v, d * (d - 1) / 4 * math.log(math.pi))
    for i in range(d):
        total = add(total, lgamma(sub(v, i / 2)))
    return total


@public
def zeta(x: ArrayLike, q: ArrayLike = 1.0) -> Value:
    """The Hurwitz zeta function, the sum of (k + q)^-x over k >= 0, for x > 1 and q > 0."""
    s, v = together(x, q)
    far = add(v, _TERMS)
    total = zeros_like(mul(s, v))
    for k in range(_TERMS):
        total = add(total, pow_(add(v, k), neg(s)))
    total = add(total, add(div(pow_(far, sub(1, s)), sub(s, 1)), mul(pow_(far, neg(s)), 0.5)))
    factor, term = s, pow_(far, neg(add(s, 1)))
    for k, b in enumerate(_BERNOULLI, 1):
        total = add(total, mul(mul(factor, term), b / math.factorial(2 * k)))
        factor = mul(factor, mul(add(s, 2 * k - 1), add(s, 2 * k)))
        term = div(term, square(far))
    at_one = where(eq(s, 1), full_like(total, float("inf")), total)
    return where(lt(s, 1), full_like(total, float("nan")), at_one)


_TERMS = 10  # terms before the tail by Euler and Maclaurin
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


@public
def gammainc(a: ArrayLike, x: ArrayLike) -> Value:
    """The lower incomplete gamma function divided by gamma(a)."""
    found: Value = _gammainc(*together(a, x))
    return found


@public
def gammaincc(a: ArrayLike, x: ArrayLike) -> Value:
    """The upper incomplete gamma function divided by gamma(a)."""
    found: Value = _gammaincc(*together(a, x))
    return found


def _regularised(a: Any, x: Any, lower: bool) -> Value:
    """By the series below a + 1, by the continued fraction above."""
    a, x = broadcast_arrays(a, x)
    wide = a.dtype.compute
    u, v = cast_to(a, wide), cast_to(x, wide)
    far, end = eq(u, float("inf")), eq(v, float("inf"))  # all of the weight is at infinity
    good = logical_and(logical_and(gt(u, 0), ge(v, 0)), logical_not(logical_and(far, end)))
    u, v = where(logical_and(good, logical_not(far)), u, ones_like(u)), where(good, v, ones_like(v))
    below = lt(v, add(u, 1))
    inside = where(logical_or(eq(v, 0), end), ones_like(v), v)
    factor = exp(sub(sub(mul(u, log(inside)), inside), lgamma(u)))
    p = mul(factor, _series(u, where(below, inside, mul(u, 0.5))))
    q = mul(factor, _fraction(u, where(below, add(u, 2), inside)))
    empty = logical_or(eq(v, 0), far)
    low = where(empty, zeros_like(p), where(end, ones_like(p), where(below, p, sub(1, q))))
    high = where(empty, ones_like(p), where(end, zeros_like(p), where(below, sub(1, p), q)))
    found = where(good, low if lower else high, full_like(low, float("nan")))
    none = logical_and(eq(a, 0), gt(x, 0))  # all of the weight is at 0
    return cast_to(where(none, full_like(low, float(lower)), found), a.dtype)


_MOST = 2000  # steps of a series or of a continued fraction


def _series(a: Value, x: Value) -> Value:
    """The sum of x^n / (a (a + 1) ... (a + n)); an element that has settled stays, whatever others need."""
    eps = _half_unit(a)

    def step(c: Any) -> Any:
        k, n, term, total, going = c
        term = mul(term, div(x, n))
        total = where(going, add(total, term), total)
        return add(k, 1), add(n, 1), term, total, logical_and(going, gt(term, mul(total, eps)))

    first = div(1, a)
    start = (full((), 0, i64), add(a, 1), first, first, full_like(a, True, dtype=bool_))
    total: Value = while_loop(_unsettled, step, start)[3]
    return total


def _half_unit(x: Value) -> float:
    """Half of the distance between 1 and the next number: a change of that is none."""
    return float(np.finfo(x.dtype.np).eps) / 2


def _unsettled(state: Any) -> Value:
    """Whether a loop of (step, ..., which elements go on) does so."""
    return logical_and(lt(state[0], _MOST), any_(state[-1]))


def _fraction(a: Value, x: Value) -> Value:
    """Lentz's continued fraction of the upper function.

    A factor next to 1 is as near as it comes: rounding keeps it from being 1 for ever.
    """
    eps, tiny = 2 * _half_unit(a), 1e-30

    def step(s: Any) -> Any:
        k, b, c, d, h, going = s
        n = cast_to(k, a.dtype)
        top = mul(neg(n), sub(n, a))
        b = add(b, 2)
        d = div(1, _away(add(mul(top, d), b), tiny))
        c = _away(add(b, div(top, c)), tiny)
        change = mul(d, c)
        h = where(going, mul(h, change), h)
        return add(k, 1), b, c, d, h, logical_and(going, gt(abs_(sub(change, 1)), eps))

    b = sub(add(x, 1), a)
    d = div(1, _away(b, tiny))
    start = (full((), 1, i64), b, full_like(b, 1 / tiny), d, d, full_like(b, True, dtype=bool_))
    found: Value = while_loop(_unsettled, step, start)[4]
    return found


def _away(x: Value, tiny: float) -> Value:
    return where(lt(abs_(x), tiny), full_like(x, tiny), x)


def _incomplete(lower: bool) -> Any:
    """The function with its derivatives: in x by its density, in a through the loops."""

    @custom_jvp
    def f(a: Any, x: Any) -> Any:
        return _regularised(a, x, lower)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (a, x), (da, dx) = primals, tangents
        density = exp(sub(sub(mul(sub(a, 1), log(x)), x), lgamma(a)))
        out, slope = jvp(lambda u: _regularised(u, x, lower), (a,), (ones_like(a),))
        return out, add(mul(slope, da), mul(density if lower else neg(density), dx))

    return f


_gammainc, _gammaincc = _incomplete(True), _incomplete(False)


@public
def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """The incomplete beta function divided by beta(a, b)."""
    found: Value = _betainc(*together(a, b, x))
    return found


def _beta_part(a: Any, b: Any, x: Any) -> Value:
    a, b, x = broadcast_arrays(a, b, x)
    wide = a.dtype.compute
    u, v, w = (cast_to(t, wide) for t in (a, b, x))
    good = logical_and(logical_and(gt(u, 0), gt(v, 0)), logical_and(ge(w, 0), le(w, 1)))
    inside = logical_and(gt(w, 0), lt(w, 1))
    safe = where(inside, w, full_like(w, 0.5))
    turned = gt(safe, div(add(u, 1), add(add(u, v), 2)))
    p, q = where(turned, v, u), where(turned, u, v)
    y = where(turned, sub(1, safe), safe)
    p, q = where(good, p, ones_like(p)), where(good, q, ones_like(q))
    factor = exp(sub(add(mul(p, log(y)), mul(q, log1p(neg(y)))), add(betaln(p, q), log(p))))
    found = mul(factor, _beta_fraction(p, q, y))
    found = where(turned, sub(1, found), found)
    ended = where(inside, found, where(le(w, 0), zeros_like(found), ones_like(found)))
    return cast_to(where(good, ended, full_like(ended, float("nan"))), a.dtype)


def _beta_fraction(a: Value, b: Value, x: Value) -> Value:
    """Lentz's continued fraction of the incomplete beta function."""
    eps, tiny = 2 * _half_unit(a), 1e-30

    def half(top: Value, c: Value, d: Value, h: Value) -> tuple[Value, Value, Value, Value]:
        d = div(1, _away(add(1, mul(top, d)), tiny))
        c = _away(add(1, div(top, c)), tiny)
        change = mul(d, c)
        return c, d, mul(h, change), change

    def step(s: Any) -> Any:
        k, c, d, before, going = s
        h = before
        m = cast_to(k, a.dtype)
        twice = add(a, mul(m, 2))
        even = div(mul(mul(m, sub(b, m)), x), mul(sub(twice, 1), twice))
        c, d, h, _ = half(even, c, d, h)
        odd = div(mul(mul(neg(add(a, m)), add(add(a, b), m)), x), mul(twice, add(twice, 1)))
        c, d, h, change = half(odd, c, d, h)
        going, before = logical_and(going, gt(abs_(sub(change, 1)), eps)), where(going, h, before)
        return add(k, 1), c, d, before, going

    d = div(1, _away(sub(1, div(mul(add(a, b), x), add(a, 1))), tiny))
    start = (full((), 1, i64), ones_like(d), d, d, full_like(d, True, dtype=bool_))
    found: Value = while_loop(_unsettled, step, start)[3]
    return found


@custom_jvp
def _betainc(a: Any, b: Any, x: Any) -> Any:
    return _beta_part(a, b, x)


@_betainc.defjvp
def _betainc_jvp(primals: Any, tangents: Any) -> Any:
    (a, b, x), (da, db, dx) = primals, tangents
    density = exp(sub(add(mul(sub(a, 1), log(x)), mul(sub(b, 1), log1p(neg(x)))), betaln(a, b)))
    out, by_a = jvp(lambda u: _beta_part(u, b, x), (a,), (ones_like(a),))
    _, by_b = jvp(lambda u: _beta_part(a, u, x), (b,), (ones_like(b),))
    return out, add(add(mul(by_a, da), mul(by_b, db)), mul(density, dx))
