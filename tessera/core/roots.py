"""Roots of unity exp(-2 pi i k / n), rounded once to f64 on every machine.

The turn k / n is brought into an eighth of a circle by whole numbers.  The rest is a Taylor series in
pairs of doubles, and a product of two roots where there are many: only additions and products, which
round the same everywhere.
"""

from __future__ import annotations

from functools import reduce
from math import factorial
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Double = tuple[Any, Any]  # a number as the sum of two doubles, the second far below the first

_SPLIT = 2.0**27 + 1  # cuts a double into halves whose products are exact (Dekker)
_TURN = (6.283185307179586, 2.4492935982947064e-16)  # 2 pi
_STEP = 1024  # roots of the fine table: a position is coarse * _STEP + fine
_PIECE = 1 << 16  # roots that are computed at once, so that they stay in a cache
_LAST = 24  # power of the last term: (pi/4)^25 / 25! is below 2^-90


def roots(k: Array, n: int) -> tuple[Array, Array]:
    """The real and imaginary parts of exp(-2 pi i k / n) for a line of whole numbers k."""
    pieces = [_roots(k[i : i + _PIECE], n) for i in range(0, max(len(k), 1), _PIECE)]
    real, imaginary = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return real, imaginary


def _roots(k: Array, n: int) -> tuple[Array, Array]:
    eighths = np.asarray(k, np.int64) % n * 8
    quarter = (eighths + n) // (2 * n)  # the nearest quarter of the circle
    rest = eighths - quarter * (2 * n)
    cosine, sine = _of_angles(np.abs(rest), 8 * n)
    sine = np.where(rest < 0, -sine, sine)
    turn = quarter % 4
    real = np.choose(turn, [cosine, -sine, -cosine, sine])
    imaginary = np.choose(turn, [-sine, -cosine, sine, cosine])
    return real + 0.0, imaginary + 0.0  # without negative zeros


def _of_angles(k: Array, n: int) -> tuple[Array, Array]:
    """cos and sin of 2 pi k / n, at most an eighth of a turn: from those of two parts of k."""
    low, high = k % _STEP, k // _STEP
    small, large = (np.arange(x.max(initial=0) + 1) for x in (low, high))
    (a, b), (c, d) = _circle(small, n), _circle(large * _STEP, n)
    (a, b), (c, d) = ([_at(x, i) for x in pair] for pair, i in (((a, b), low), ((c, d), high)))
    cosine = _plus(_times(a, c), _times((-b[0], -b[1]), d))
    sine = _plus(_times(b, c), _times(a, d))
    return cosine[0], sine[0]


def _at(x: Double, i: Array) -> Double:
    return x[0][i], x[1][i]


def _circle(k: Array, n: int) -> tuple[Double, Double]:
    angle = _times(_quotient(k.astype(np.float64), float(n)), _TURN)
    return _series(angle, 0), _series(angle, 1)


def _series(x: Double, first: int) -> Double:
    """cos (first = 0) or sin (first = 1) of a small angle."""
    square = _times(x, x)
    powers = range(_LAST + first, -1, -2)
    terms = [_quotient_of((-1) ** (i // 2), factorial(i)) for i in powers]
    total = reduce(lambda t, c: _plus(_times(t, square), c), terms)
    return _times(total, x) if first else total


def _quotient_of(x: int, y: int) -> Double:
    """x / y of whole numbers; their own division rounds once."""
    high = x / y
    p, q = high.as_integer_ratio()
    return high, (x * q - p * y) / (q * y)


def _quotient(x: Array, y: float) -> Double:
    q = x / y
    p, e = _product(q, y)
    return q, ((x - p) - e) / y


def _plus(x: Double, y: Double) -> Double:
    s = x[0] + y[0]
    t = s - x[0]
    return _normal(s, ((x[0] - (s - t)) + (y[0] - t)) + (x[1] + y[1]))


def _times(x: Double, y: Double) -> Double:
    p, e = _product(x[0], y[0])
    return _normal(p, e + (x[0] * y[1] + x[1] * y[0]))


def _normal(high: Any, low: Any) -> Double:
    s = high + low
    return s, low - (s - high)


def _product(x: Any, y: Any) -> Double:
    """The product of two doubles and its rounding error."""
    p = x * y
    (a, b), (c, d) = _halves(x), _halves(y)
    return p, ((a * c - p) + a * d + b * c) + b * d


def _halves(x: Any) -> Double:
    t = x * _SPLIT
    high = t - (t - x)
    return high, x - high
