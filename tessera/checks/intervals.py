"""Intervals through scalar ops: the range of results, what may go wrong, and how far errors grow.

A rule is given operands as arrays of bounds and returns the bounds of the exact result; rounding is
added by the caller.  `bad` says for which elements a NaN or a division by zero is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.scalar import SCALARS

Array = np.ndarray[Any, np.dtype[Any]]
INF = np.inf


@dataclass
class Hull:
    """Bounds of each element of a tile: of computed values, of their error, and what they are.

    Equal numbers in `key` are elements with equal values.
    """

    lo: Array
    hi: Array
    err: Array  # distance to the result of exact arithmetic
    nan: Array  # whether NaN is possible
    key: Array
    bad: Array  # the number of a doubt that an element comes from, or 0

    @property
    def parts(self) -> tuple[Array, ...]:
        """The arrays of bounds, one after the other."""
        return self.lo, self.hi, self.err, self.nan, self.key, self.bad

    def map(self, f: Callable[[Array], Array]) -> Hull:
        """The same elements, moved."""
        return Hull(*map(f, self.parts))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.lo.shape)

    @property
    def point(self) -> Array:
        """Where the value is known."""
        return np.asarray((self.lo == self.hi) & ~self.nan & np.isfinite(self.lo))

    @property
    def size(self) -> Array:
        """The largest magnitude."""
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    def has(self, value: float) -> Array:
        """Where a value is possible."""
        return (self.lo <= value) & (self.hi >= value)


@dataclass
class IntervalResult:
    """Bounds of a result, and where something may go wrong."""

    lo: Array
    hi: Array
    nan: Array | bool = False
    zero: Array | bool = False  # division by zero, or the logarithm of it
    err: Array | None = None  # from the errors of the operands; None when it has no bound
    exact: bool = False  # nothing is rounded
    wild: bool = False  # there is no rule, so that anything is possible


def _clean(lo: Array, hi: Array) -> tuple[Array, Array]:
    return np.where(np.isnan(lo), -INF, lo), np.where(np.isnan(hi), INF, hi)


def add(a: Hull, b: Hull) -> IntervalResult:
    """a + b."""
    lo, hi = _clean(a.lo + b.lo, a.hi + b.hi)
    nan = (a.has(INF) & b.has(-INF)) | (a.has(-INF) & b.has(INF))
    return IntervalResult(lo, hi, nan, err=a.err + b.err)


def negate(a: Hull) -> Hull:
    """-a, which is exact."""
    return Hull(-a.hi, -a.lo, a.err, a.nan, a.key, a.bad)


def sub(a: Hull, b: Hull) -> IntervalResult:
    """a - b."""
    return add(a, negate(b))


def mul(a: Hull, b: Hull) -> IntervalResult:
    """a b."""
    ends = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    ends = [np.where(np.isnan(e), 0, e) for e in ends]
    nan = (a.has(0) & (b.size == INF)) | (b.has(0) & (a.size == INF))
    err = _times(a.size, b.err) + _times(b.size, a.err) + _times(a.err, b.err)
    return IntervalResult(np.minimum.reduce(ends), np.maximum.reduce(ends), nan, err=err)


def _times(x: Array, e: Array) -> Array:
    """x e, where nothing times an error of nothing is nothing."""
    return np.where((x == 0) | (e == 0), 0, x * e)


def div(a: Hull, b: Hull) -> IntervalResult:
    """a / b."""
    zero = b.has(0)
    ends = [x / y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    ends = [np.where(np.isnan(e), 0, e) for e in ends]
    lo, hi = np.minimum.reduce(ends), np.maximum.reduce(ends)
    lo, hi = np.where(zero, -INF, lo), np.where(zero, INF, hi)
    nan = (zero & a.has(0)) | ((a.size == INF) & (b.size == INF))
    least = np.minimum(np.abs(b.lo), np.abs(b.hi)) - b.err
    grown = a.err + _times(np.maximum(np.abs(lo), np.abs(hi)), b.err)
    err = np.where(
        zero | (least <= 0), np.where(grown == 0, 0, INF), grown / np.where(least > 0, least, 1)
    )
    return IntervalResult(lo, hi, nan, zero, err=err)


def _pick(f: Callable[..., Array]) -> Callable[[Hull, Hull], IntervalResult]:
    def rule(a: Hull, b: Hull) -> IntervalResult:
        return IntervalResult(
            f(a.lo, b.lo), f(a.hi, b.hi), a.nan | b.nan, err=np.maximum(a.err, b.err), exact=True
        )

    return rule


def fma(a: Hull, b: Hull, c: Hull) -> IntervalResult:
    """a b + c, rounded once; bounds are widened by what f64 loses."""
    p = mul(a, b)
    assert p.err is not None
    inner = Hull(p.lo, p.hi, p.err, np.zeros_like(a.nan | b.nan), a.key, a.bad)
    r = add(inner, c)
    slack = 2.0**-50 * (np.maximum(np.abs(p.lo), np.abs(p.hi)) + c.size)
    slack = np.where(np.isfinite(slack), slack, 0)
    return IntervalResult(r.lo - slack, r.hi + slack, r.nan | p.nan, err=r.err)


def square(a: Hull) -> IntervalResult:
    """a a, which is not negative."""
    low = np.where(a.has(0), 0, np.minimum(a.lo * a.lo, a.hi * a.hi))
    return IntervalResult(
        low, np.maximum(a.lo * a.lo, a.hi * a.hi), err=_times(2 * a.size, a.err) + a.err**2
    )


def absolute(a: Hull) -> IntervalResult:
    """|a|."""
    low = np.where(a.has(0), 0, np.minimum(np.abs(a.lo), np.abs(a.hi)))
    return IntervalResult(low, a.size, err=a.err, exact=True)


def power(a: Hull, b: Hull) -> IntervalResult:
    """a ** b, by its corners where a is positive or b is a whole number."""
    ends = [np.power(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    whole = b.point & (b.lo == np.floor(b.lo))
    even = whole & a.has(0) & (b.lo > 0)
    ends = [np.where(np.isnan(e), 0, e) for e in ends]
    lo, hi = np.minimum.reduce(ends), np.maximum.reduce(ends)
    lo = np.where(even, np.minimum(lo, 0), lo)
    odd = (a.lo < 0) & ~whole
    pole = a.has(0) & (b.lo < 0)
    lo, hi = np.where(pole | odd, -INF, lo), np.where(pole | odd, INF, hi)
    exact = (a.err == 0) & (b.err == 0)
    return IntervalResult(lo, hi, odd, pole, err=np.where(exact, 0, INF))


# Monotone functions: the domain, and a bound of the derivative from lowest and highest argument.
Slope = Callable[[Array, Array], Array]


def _flat(k: float) -> Slope:
    return lambda lo, hi: np.full(np.broadcast(lo, hi).shape, k)


_RISING: dict[str, tuple[float, float, Slope | None]] = {
    "exp": (-INF, INF, lambda lo, hi: np.exp(hi)),
    "exp2": (-INF, INF, lambda lo, hi: np.exp2(hi)),
    "expm1": (-INF, INF, lambda lo, hi: np.exp(hi)),
    "log": (0, INF, lambda lo, hi: 1 / lo),
    "log2": (0, INF, lambda lo, hi: 1.4427 / lo),
    "log10": (0, INF, lambda lo, hi: 0.4343 / lo),
    "log1p": (-1, INF, lambda lo, hi: 1 / (1 + lo)),
    "sqrt": (0, INF, lambda lo, hi: 0.5 / np.sqrt(lo)),
    "cbrt": (-INF, INF, None),
    "tanh": (-INF, INF, _flat(1)), "sigmoid": (-INF, INF, _flat(0.25)),
    "erf": (-INF, INF, _flat(1.1284)), "atan": (-INF, INF, _flat(1)),
    "asinh": (-INF, INF, _flat(1)), "sinh": (-INF, INF, lambda lo, hi: np.exp(np.maximum(-lo, hi))),
    "asin": (-1, 1, None), "atanh": (-1, 1, None), "acosh": (1, INF, None),
    "floor": (-INF, INF, None), "ceil": (-INF, INF, None), "round": (-INF, INF, None),
    "trunc": (-INF, INF, None), "sign": (-INF, INF, None), "pos": (-INF, INF, _flat(1)),
}  # fmt: skip
_FALLING: dict[str, tuple[float, float, Slope | None]] = {
    "rsqrt": (0, INF, lambda lo, hi: 0.5 * lo**-1.5), "erfc": (-INF, INF, _flat(1.1284)),
    "neg": (-INF, INF, _flat(1)), "acos": (-1, 1, None),
}  # fmt: skip
_EXACT = frozenset(("neg", "pos", "floor", "ceil", "round", "trunc", "sign"))
_POLES = {"log": 0.0, "log2": 0.0, "log10": 0.0, "rsqrt": 0.0, "log1p": -1.0, "atanh": 1.0}


def monotone(name: str, a: Hull) -> IntervalResult:
    """A function that rises or falls, from its ends."""
    low, high, slope = _RISING.get(name) or _FALLING[name]
    f = SCALARS[name].numpy
    ends = [np.asarray(f(np.clip(x, low, high))) for x in (a.lo, a.hi)]
    lo, hi = ends if name in _RISING else ends[::-1]
    outside = (a.lo < low) | (a.hi > high)
    pole = np.asarray(False)
    if name in _POLES:
        edge = _POLES[name]
        pole = a.has(edge) | a.has(-edge) if name == "atanh" else a.lo <= edge
    err = np.where(a.err == 0, 0, INF)
    if slope is not None:
        steep = slope(np.maximum(a.lo - a.err, low), np.minimum(a.hi + a.err, high))
        err = np.where(a.err == 0, 0, np.where(np.isnan(steep), INF, steep) * a.err)
    lo, hi = _clean(lo, hi)
    return IntervalResult(lo, hi, outside, pole, err=err, exact=name in _EXACT)


def recip(a: Hull) -> IntervalResult:
    """1 / a."""
    one = np.ones_like(a.lo)
    return div(Hull(one, one, 0 * one, np.zeros_like(a.nan), a.key, a.bad), a)


def wave(a: Hull) -> IntervalResult:
    """sin or cos."""
    one = np.ones_like(a.lo)
    return IntervalResult(-one, one, a.size == INF, err=a.err)


def cosh(a: Hull) -> IntervalResult:
    """cosh, which is even."""
    low = np.where(a.has(0), 0, np.minimum(np.abs(a.lo), np.abs(a.hi)))
    steep = np.exp(a.size + a.err)
    return IntervalResult(np.cosh(low), np.cosh(a.size), err=np.where(a.err == 0, 0, steep * a.err))


def hypot(a: Hull, b: Hull) -> IntervalResult:
    """sqrt(a a + b b)."""
    x, y = absolute(a), absolute(b)
    return IntervalResult(np.hypot(x.lo, y.lo), np.hypot(x.hi, y.hi), err=a.err + b.err)


def logaddexp(a: Hull, b: Hull) -> IntervalResult:
    """log(exp a + exp b), between the larger one and that plus log 2."""
    hi = np.logaddexp(a.hi, b.hi)
    return IntervalResult(np.maximum(a.lo, b.lo), hi, (a.size == INF) & (b.size == INF) & a.has(INF),
                  err=np.maximum(a.err, b.err))  # fmt: skip


def angle(a: Hull, b: Hull) -> IntervalResult:
    """atan2."""
    pi = np.full(np.broadcast(a.lo, b.lo).shape, np.pi)
    return IntervalResult(-pi, pi, err=np.where((a.err == 0) & (b.err == 0), 0, INF))


_RULES: dict[str, Callable[..., IntervalResult]] = {
    "add": add, "sub": sub, "mul": mul, "div": div, "max": _pick(np.maximum), "min": _pick(np.minimum),
    "fma": fma, "square": square, "abs": absolute, "pow": power, "recip": recip, "sin": wave, "cos": wave,
    "cosh": cosh, "hypot": hypot, "logaddexp": logaddexp, "atan2": angle,
}  # fmt: skip


def bounds_of(name: str, xs: Sequence[Hull]) -> IntervalResult:
    """The bounds of a scalar op on floats."""
    if name in _RISING or name in _FALLING:
        return monotone(name, xs[0])
    if name in _RULES:
        return _RULES[name](*xs)
    shape = np.broadcast(*(x.lo for x in xs)).shape
    return IntervalResult(np.full(shape, -INF), np.full(shape, INF), True, wild=True)


_ORDER: dict[str, Callable[[Hull, Hull], tuple[Array, Array]]] = {
    # where the answer is surely true, and where it is surely false
    "lt": lambda a, b: (a.hi < b.lo, a.lo >= b.hi), "le": lambda a, b: (a.hi <= b.lo, a.lo > b.hi),
    "gt": lambda a, b: (a.lo > b.hi, a.hi <= b.lo), "ge": lambda a, b: (a.lo >= b.hi, a.hi < b.lo),
    "eq": lambda a, b: (a.point & b.point & (a.lo == b.lo), (a.hi < b.lo) | (a.lo > b.hi)),
    "ne": lambda a, b: ((a.hi < b.lo) | (a.lo > b.hi), a.point & b.point & (a.lo == b.lo)),
}  # fmt: skip


def compare(name: str, a: Hull, b: Hull) -> IntervalResult | None:
    """A comparison as 0 or 1, or both; None when it is none."""
    rule = _ORDER.get(name)
    if rule is None:
        return None
    yes, no = rule(a, b)
    sure = ~(a.nan | b.nan)
    return IntervalResult((yes & sure).astype(float), 1 - (no & sure).astype(float), exact=True,
                  err=np.zeros(yes.shape))  # fmt: skip


def test(name: str, a: Hull) -> IntervalResult | None:
    """is_finite, is_inf and is_nan as 0 or 1, or both; None when it is none of them."""
    finite = np.isfinite(a.lo) & np.isfinite(a.hi) & ~a.nan
    infinite = (a.lo == a.hi) & np.isinf(a.lo) & ~a.nan
    sure = {"is_finite": (finite, infinite), "is_inf": (infinite, finite),
            "is_nan": (np.zeros_like(a.nan), ~a.nan)}.get(name)  # fmt: skip
    if sure is None:
        return None
    return IntervalResult(sure[0].astype(float), 1 - sure[1].astype(float), err=np.zeros(a.shape))
