"""Fused multiply-add of NumPy arrays: x y + z with one rounding, as the machine's instruction.

NumPy has no such function.  The sum is formed exactly and rounded to odd, which makes the second
rounding harmless (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_SPLIT = 2.0**27 + 1  # cuts a double into halves whose products are exact (Dekker)
_FAR = 200  # binary places beyond which a summand only tells on which side of a tie a sum lies


def fma(x: Any, y: Any, z: Any) -> Array:
    """x y + z, rounded once, for arrays of f32 or of f64."""
    with np.errstate(all="ignore"):
        return unguarded_fma(x, y, z)


def unguarded_fma(x: Any, y: Any, z: Any) -> Array:
    """The same for a caller that ignores NumPy's warnings already, which takes as long as two additions."""
    if x.dtype == np.float32:
        return _single(x, y, z)
    assert x.dtype == np.float64, x.dtype
    return _double(x, y, z)


def _single(x: Array, y: Array, z: Array) -> Array:
    """A product of two f32 is exact in f64.

    So is every number in the middle of two f32: a sum that is none, once rounded, lies on the same side of
    all of them as the exact one, and may be rounded again.
    """
    product = np.asarray(np.multiply(x, y, dtype=np.float64))
    total = np.asarray(product + z)
    if not (_some(total.view(np.int64) & _BELOW == _HALF) or _has_subnormals(total)):
        return total.astype(np.float32)
    high, low = _two_sum(product, np.asarray(z, np.float64))
    out: Array = np.where(np.isfinite(high), _to_odd(high, low), high).astype(np.float32)
    return out


def _some(mask: Array) -> bool:
    """mask.any(), without the Python that NumPy runs for it."""
    return bool(np.count_nonzero(mask))


def _has_subnormals(total: Array) -> bool:
    """Whether a number other than zero has fewer digits in f32."""
    small = np.abs(total) < _NORMAL
    return _some(small) and _some(small & (total != 0))


_BELOW, _HALF = (
    (1 << 29) - 1,
    1 << 28,
)  # the digits of an f64 beyond those of an f32, and half a unit
_NORMAL = 2.0**-126  # below it an f32 has fewer digits


def _double(x: Array, y: Array, z: Array) -> Array:
    usual = _moderate(x) & _moderate(y) & ((z == 0) | _moderate(z))
    if usual.all():
        return _sum(*_two_product(x, y), z)
    x, y, z = np.broadcast_arrays(x, y, z)
    finite = np.isfinite(x) & np.isfinite(y)
    plain = np.where(finite & np.isinf(z), z, x * y + z)  # x y alone may overflow
    out = np.where(usual, _sum(*_two_product(x, y), z), plain)
    rest = finite & np.isfinite(z) & (x != 0) & (y != 0) & ~usual
    if rest.any():
        out[rest] = _scaled(x[rest], y[rest], z[rest])
    return out


def _moderate(x: Array) -> Array:
    """Where no step over- or underflows."""
    size = np.abs(x)
    return (size > 2.0**-300) & (size < 2.0**300)


def _sum(high: Array, low: Array, z: Array) -> Array:
    """high + low + z, rounded once."""
    a, b = _two_sum(z, low)
    c, d = _two_sum(a, high)
    return np.asarray(c + _to_odd(*_two_sum(d, b)))


def _scaled(x: Array, y: Array, z: Array) -> Array:
    """The same on numbers of any size: brought near 1, and at the end back with one rounding."""
    (mx, ex), (my, ey), (mz, ez) = np.frexp(x), np.frexp(y), np.frexp(z)
    ep = ex + ey
    ez = np.where(z == 0, ep, ez)
    unit = np.maximum(np.maximum(ep, ez), -1200)
    high, low = (np.ldexp(p, np.maximum(ep - unit, -_FAR)) for p in _two_product(mx, my))
    third = np.ldexp(mz, np.maximum(ez - unit, -_FAR))
    total = _sum(high, low, third)
    normal = np.ldexp(total, unit)
    # A subnormal result is a multiple of 2^-1074: adding this number rounds to such multiples.
    coarse = np.ldexp(np.copysign(2.0**52, total), -1074 - np.minimum(unit, -800))
    a, b = _two_sum(third, low)
    c, d = _two_sum(a, high)
    e, f = _two_sum(coarse, c)
    g, h = _two_sum(f, d)
    tail = _to_odd(*_two_sum(g, _to_odd(*_two_sum(h, b))))
    small = np.copysign(np.ldexp((e + tail) - coarse, unit), total)
    out: Array = np.where(np.abs(total) < np.abs(coarse), small, normal)
    return out


def _two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """The product and its rounding error."""
    p = x * y
    (a, b), (c, d) = _halves(x), _halves(y)
    return p, ((a * c - p) + a * d + b * c) + b * d


def _halves(x: Array) -> tuple[Array, Array]:
    t = x * _SPLIT
    high = t - (t - x)
    return high, x - high


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """The sum and its rounding error (Knuth)."""
    s = x + y
    t = s - x
    return s, (x - (s - t)) + (y - t)


def _to_odd(high: Array, low: Array) -> Array:
    """high + low rounded to odd: an inexact sum goes to the neighbour whose last bit is set."""
    bits = high.view(np.int64)
    step = np.where((low > 0) == (high > 0), 1, -1)
    move = (low != 0) & (bits & 1 == 0)
    odd: Array = np.where(move, bits + step, bits).view(np.float64)
    return odd
