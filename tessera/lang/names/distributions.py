"""Distribution functions under SciPy's names, and small functions that are written with special ones."""

from __future__ import annotations

import math

from tessera.ir.graph.ir import Value
from tessera.lang.names.special import betainc, betaln, gammainc, gammaincc, gammasgn, zeta
from tessera.lang.names.together import together
from tessera.ops.define import ArrayLike, public
from tessera.ops.elementwise import abs as abs_
from tessera.ops.elementwise import (
    add,
    cos,
    div,
    eq,
    exp,
    expm1,
    floor,
    ge,
    gt,
    le,
    lgamma,
    log,
    log1p,
    logical_and,
    logical_or,
    lt,
    mul,
    ne,
    neg,
    remainder,
    sin,
    sqrt,
    square,
    sub,
    where,
)
from tessera.ops.elementwise import pow as pow_
from tessera.ops.whole import whole

# Gamma and beta --------------------------------------------------------------------------------


@public
def rgamma(x: ArrayLike) -> Value:
    """1 / gamma(x), which is 0 at 0, -1, -2, ..."""
    (v,) = together(x)
    pole = logical_and(le(v, 0.0), eq(floor(v), v))
    inner = where(pole, 1.0, v)
    return where(pole, 0.0, mul(gammasgn(inner), exp(neg(lgamma(inner)))))


@public
def beta(a: ArrayLike, b: ArrayLike) -> Value:
    """gamma(a) gamma(b) / gamma(a + b)."""
    a, b = together(a, b)
    sign = mul(mul(gammasgn(a), gammasgn(b)), gammasgn(add(a, b)))
    return mul(sign, exp(betaln(a, b)))


@public
def betaincc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """1 - betainc(a, b, x), without cancellation."""
    a, b, x = together(a, b, x)
    return betainc(b, a, sub(1.0, x))


@public
def zetac(x: ArrayLike) -> Value:
    """Riemann's zeta function minus 1, for x > 1."""
    (v,) = together(x)
    return zeta(v, 2.0)


@public
def perm(n: ArrayLike, k: ArrayLike) -> Value:
    """n (n - 1) ... (n - k + 1): the sequences of k among n; 0 where k > n or either is below 0."""
    n, k = together(n, k)
    bad = logical_or(gt(k, n), logical_or(lt(n, 0.0), lt(k, 0.0)))
    safe = where(bad, n * 0.0 + 1.0, sub(n, k))
    found = exp(sub(lgamma(add(where(bad, 1.0, n), 1.0)), lgamma(add(safe, 1.0))))
    return where(bad, 0.0, found)


# Small functions -------------------------------------------------------------------------------


@public
def cosm1(x: ArrayLike) -> Value:
    """cos(x) - 1, exact near 0."""
    (v,) = together(x)
    return mul(square(sin(mul(v, 0.5))), -2.0)


@public
def exp10(x: ArrayLike) -> Value:
    """10 ** x."""
    (v,) = together(x)
    return pow_(10.0, v)


@public
def exprel(x: ArrayLike) -> Value:
    """(exp(x) - 1) / x, which is 1 at 0."""
    (v,) = together(x)
    zero = eq(v, 0.0)
    safe = where(zero, 1.0, v)
    return where(zero, 1.0, where(eq(v, math.inf), math.inf, div(expm1(safe), safe)))


@public
def powm1(x: ArrayLike, y: ArrayLike) -> Value:
    """x ** y - 1 for x > 0, exact near 0."""
    x, y = together(x, y)
    return expm1(mul(y, log(x)))


@public
def inv_boxcox(y: ArrayLike, power: ArrayLike) -> Value:
    """The x of which y = boxcox(x, power)."""
    y, power = together(y, power)
    zero = eq(power, 0.0)
    safe = where(zero, 1.0, power)
    return where(zero, exp(y), exp(div(log1p(where(zero, 0.0, mul(y, safe))), safe)))


@public
def inv_boxcox1p(y: ArrayLike, power: ArrayLike) -> Value:
    """The x of which y = boxcox1p(x, power)."""
    y, power = together(y, power)
    zero = eq(power, 0.0)
    safe = where(zero, 1.0, power)
    return where(zero, expm1(y), expm1(div(log1p(where(zero, 0.0, mul(y, safe))), safe)))


@public
def pseudo_huber(delta: ArrayLike, r: ArrayLike) -> Value:
    """delta^2 (sqrt(1 + (r / delta)^2) - 1): a smooth Huber loss."""
    delta, r = together(delta, r)
    u = square(div(r, delta))
    # sqrt(1 + u) - 1 = u / (sqrt(1 + u) + 1) does not cancel
    return mul(square(delta), div(u, add(sqrt(add(u, 1.0)), 1.0)))


@public
def diric(x: ArrayLike, n: int) -> Value:
    """The periodic sinc sin(n x / 2) / (n sin(x / 2))."""
    n = whole("diric", "n", n)
    (v,) = together(x)
    below = sin(mul(v, 0.5))
    zero = lt(abs_(below), 1e-9)
    turn = remainder(mul(floor(add(div(v, 2 * math.pi), 0.5)), n - 1.0), 2.0)
    at_zero = where(eq(turn, 0.0), 1.0, -1.0)
    return where(zero, at_zero, div(sin(mul(v, 0.5 * n)), mul(where(zero, 1.0, below), float(n))))


def _degrees(x: ArrayLike) -> Value:
    """An angle of degrees in [0, 360)."""
    (v,) = together(x)
    return remainder(v, 360.0)


@public
def sindg(x: ArrayLike) -> Value:
    """The sine of an angle in degrees, exact at multiples of 90."""
    v = _degrees(x)
    whole = eq(remainder(v, 180.0), 0.0)
    found = where(whole, 0.0, sin(mul(v, math.pi / 180)))
    return where(eq(v, 90.0), 1.0, where(eq(v, 270.0), -1.0, found))


@public
def cosdg(x: ArrayLike) -> Value:
    """The cosine of an angle in degrees, exact at multiples of 90."""
    v = _degrees(x)
    whole = eq(remainder(add(v, 90.0), 180.0), 0.0)
    found = where(whole, 0.0, cos(mul(v, math.pi / 180)))
    return where(eq(v, 0.0), 1.0, where(eq(v, 180.0), -1.0, found))


@public
def tandg(x: ArrayLike) -> Value:
    """The tangent of an angle in degrees."""
    return div(sindg(x), cosdg(x))


@public
def cotdg(x: ArrayLike) -> Value:
    """The cotangent of an angle in degrees."""
    return div(cosdg(x), sindg(x))


@public
def radian(d: ArrayLike, m: ArrayLike, s: ArrayLike) -> Value:
    """Degrees, minutes and seconds as radians."""
    d, m, s = together(d, m, s)
    return mul(add(d, add(div(m, 60.0), div(s, 3600.0))), math.pi / 180)


# Means -----------------------------------------------------------------------------------------

_STEPS = 8  # the number of right digits doubles with each; f64 has 16 after six


@public
def agm(a: ArrayLike, b: ArrayLike) -> Value:
    """The arithmetic-geometric mean of numbers above 0."""
    a, b = together(a, b)
    zero = eq(mul(a, b), 0.0)
    for _ in range(_STEPS + 4):
        a, b = mul(add(a, b), 0.5), sqrt(mul(a, b))
    return where(zero, 0.0, a)


@public
def ellipkm1(p: ArrayLike) -> Value:
    """The complete elliptic integral of the first kind at m = 1 - p."""
    (v,) = together(p)
    return div(0.5 * math.pi, agm(1.0, sqrt(v)))


@public
def ellipk(m: ArrayLike) -> Value:
    """The complete elliptic integral of the first kind, of the parameter m = k^2 <= 1."""
    (v,) = together(m)
    return ellipkm1(sub(1.0, v))


@public
def ellipe(m: ArrayLike) -> Value:
    """The complete elliptic integral of the second kind, of the parameter m = k^2 <= 1."""
    (v,) = together(m)
    one = eq(v, 1.0)
    a, b, total, scale = add(mul(v, 0.0), 1.0), sqrt(sub(1.0, where(one, 0.0, v))), mul(v, 0.5), 0.5
    for _ in range(_STEPS):
        c = mul(sub(a, b), 0.5)
        a, b, scale = mul(add(a, b), 0.5), sqrt(mul(a, b)), 2 * scale
        total = add(total, mul(square(c), scale))
    return where(one, 1.0, mul(div(0.5 * math.pi, a), sub(1.0, total)))


# Distribution functions ------------------------------------------------------------------------


@public
def chdtr(v: ArrayLike, x: ArrayLike) -> Value:
    """The distribution function of chi-square with v degrees of freedom."""
    v, x = together(v, x)
    return gammainc(mul(v, 0.5), mul(x, 0.5))


@public
def chdtrc(v: ArrayLike, x: ArrayLike) -> Value:
    """1 - chdtr(v, x)."""
    v, x = together(v, x)
    return gammaincc(mul(v, 0.5), mul(x, 0.5))


@public
def gdtr(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """The distribution function of the gamma distribution of rate a and shape b."""
    a, b, x = together(a, b, x)
    return gammainc(b, mul(a, x))


@public
def gdtrc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """1 - gdtr(a, b, x)."""
    a, b, x = together(a, b, x)
    return gammaincc(b, mul(a, x))


@public
def pdtr(k: ArrayLike, m: ArrayLike) -> Value:
    """The chance of at most k events of Poisson's distribution of mean m."""
    k, m = together(k, m)
    return gammaincc(add(floor(k), 1.0), m)


@public
def pdtrc(k: ArrayLike, m: ArrayLike) -> Value:
    """1 - pdtr(k, m)."""
    k, m = together(k, m)
    return gammainc(add(floor(k), 1.0), m)


@public
def bdtr(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Value:
    """The chance of at most k of n events of probability p."""
    return sub(1.0, bdtrc(k, n, p))


@public
def bdtrc(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Value:
    """The chance of more than k of n events of probability p."""
    k, n, p = together(k, n, p)
    k = floor(k)
    all_of_them = logical_and(ge(k, n), logical_and(ge(p, 0.0), le(p, 1.0)))
    return where(all_of_them, 0.0, betainc(add(k, 1.0), where(all_of_them, 1.0, sub(n, k)), p))


@public
def nbdtr(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Value:
    """The chance of at most k failures before n successes of probability p."""
    k, n, p = together(k, n, p)
    return betainc(n, add(floor(k), 1.0), p)


@public
def nbdtrc(k: ArrayLike, n: ArrayLike, p: ArrayLike) -> Value:
    """1 - nbdtr(k, n, p)."""
    k, n, p = together(k, n, p)
    return betainc(add(floor(k), 1.0), n, sub(1.0, p))


@public
def fdtr(m: ArrayLike, n: ArrayLike, x: ArrayLike) -> Value:
    """The distribution function of F with m and n degrees of freedom."""
    m, n, x = together(m, n, x)
    u = mul(m, x)
    return betainc(mul(m, 0.5), mul(n, 0.5), div(u, add(n, u)))


@public
def fdtrc(m: ArrayLike, n: ArrayLike, x: ArrayLike) -> Value:
    """1 - fdtr(m, n, x)."""
    m, n, x = together(m, n, x)
    return betainc(mul(n, 0.5), mul(m, 0.5), div(n, add(n, mul(m, x))))


@public
def stdtr(v: ArrayLike, x: ArrayLike) -> Value:
    """The distribution function of Student's t with v degrees of freedom."""
    v, x = together(v, x)
    tail = mul(betainc(mul(v, 0.5), 0.5, div(v, add(v, square(x)))), 0.5)
    return where(ne(x, x), x, where(gt(x, 0.0), sub(1.0, tail), tail))
