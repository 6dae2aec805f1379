"""The determinant of a Toeplitz matrix T in n^2 steps and memory for vectors, by its displacement.

With shifts Z and Z', the second one with a change of sign where it wraps, Z T - T Z' has rank two.  Fourier
transforms make both shifts diagonal, so that C = F T D^-1 F.H, with unitary F and D, has the elements

    C[i, j] = (g[i] . h[j]) / (d[i] - e[j])

of two columns g, two rows h and roots of unity d, e.  What is left of C after a step of Gauss's elimination has
this form too, with other g and h: rows are exchanged as for any matrix, and only vectors are kept
(Gohberg, Kailath, Olshevsky 1995).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tessera.core.dtype import c128, f64
from tessera.ir.graph.ir import Value
from tessera.ops.control import scan
from tessera.ops.creation import constant
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    ge,
    imag,
    log,
    mul,
    real,
    sign,
    stop_gradient,
    sub,
    where,
)
from tessera.ops.elementwise import complex as complex_
from tessera.ops.fft import fft, ifft
from tessera.ops.reduction import argmax, prod
from tessera.ops.reduction import max as largest
from tessera.ops.reduction import sum as total
from tessera.ops.shape import concat, expand_dims, flip, slice_, squeeze


class _Pair(NamedTuple):
    """Complex numbers as their parts, whose kernels are compiled."""

    re: Value
    im: Value

    def minus(self, y: _Pair) -> _Pair:
        return _Pair(sub(self.re, y.re), sub(self.im, y.im))

    def times(self, y: _Pair) -> _Pair:
        return _Pair(
            sub(mul(self.re, y.re), mul(self.im, y.im)), add(mul(self.re, y.im), mul(self.im, y.re))
        )

    def over(self, y: _Pair) -> _Pair:
        """The quotient, 0 where y is zero."""
        size = y.square()
        safe = where(eq(size, 0), 1, size)
        x = self.times(_Pair(y.re, mul(y.im, -1)))
        return _Pair(div(x.re, safe), div(x.im, safe))

    def square(self) -> Value:
        return add(mul(self.re, self.re), mul(self.im, self.im))

    def where(self, mark: Value, other: Any) -> _Pair:
        """These where marked, elsewhere the others."""
        y = other if isinstance(other, _Pair) else _Pair(other, other)
        return _Pair(where(mark, self.re, y.re), where(mark, self.im, y.im))

    def summed(self, axis: int, keepdims: bool = False) -> _Pair:
        return _Pair(*(total(x, axis, keepdims=keepdims) for x in self))

    def at(self, mark: Value) -> _Pair:
        """The element of the last axis at the one place that is marked; the axis stays."""
        return self.where(mark, 0).summed(-1, keepdims=True)


class _Rest(NamedTuple):
    """What is left of C: rows that were not eliminated lie behind the others."""

    d: _Pair  # (n,), of the rows
    g: _Pair  # (2, n)
    h: _Pair  # (2, n)


def slogdet_toeplitz(t: Value, n: int) -> tuple[Value, Value]:
    """Sign (or phase) and logarithm of the determinant of T[i, j] = t[n - 1 + i - j]."""
    most = stop_gradient(largest(absolute(cast_to(t, c128))))
    scale = where(eq(most, 0), 1, most)  # squares stay within the format
    e = _parts(constant(_root(2 * n, 2 * np.arange(n) + 1)))
    wide = div(cast_to(t, c128), scale)
    start = _Rest(_parts(constant(_root(n, np.arange(n)))), *_generators(wide, n))

    def body(c: _Rest, k: Value) -> tuple[_Rest, tuple[_Pair, Value]]:
        return _eliminated(c, e, k, n)

    _, (pivots, turned) = scan(body, start, constant(np.arange(n)))
    size = add(mul(total(log(pivots.square())), 0.5), mul(log(scale), n))
    # det T = det C det D, and D has the diagonal exp(-i pi k / n).
    phase = mul(prod(mul(sign(complex_(*pivots)), turned)), (-1j) ** ((n - 1) % 4))
    return (phase if t.dtype.kind == "c" else sign(real(phase))), size


def _parts(x: Value) -> _Pair:
    return _Pair(real(x), imag(x))


def _root(n: int, k: Any) -> Any:
    """exp(-2 pi i k / n)."""
    return np.exp(-2j * np.pi * (k % n) / n)


def _generators(t: Value, n: int) -> tuple[_Pair, _Pair]:
    """g and h: the transforms of what Z T - T Z' has in its first row and in its last column."""
    zero = full_of((1,), 0, c128)
    above, below = slice_(t, (0,), (n - 1,)), slice_(t, (n,), (2 * n - 1,))
    corner = mul(slice_(t, (n - 1,), (n,)), 2)
    row = concat([flip(sub(below, above)), zero], 0)
    column = concat([corner, add(above, below)], 0)
    first, last = (constant(np.eye(n)[i].astype(complex)) for i in (0, n - 1))
    back = constant(_root(2 * n, -np.arange(n)))
    g = _rows(fft(first, norm="ortho"), fft(column, norm="ortho"))
    h = _rows(*(ifft(mul(back, x), norm="ortho") for x in (row, last)))
    return g, h


def _rows(x: Value, y: Value) -> _Pair:
    return _parts(concat([expand_dims(x, 0), expand_dims(y, 0)], 0))


def _eliminated(c: _Rest, e: _Pair, k: Value, n: int) -> tuple[_Rest, tuple[_Pair, Value]]:
    """One step: the largest element of column k is the pivot, its row is exchanged with row k."""
    here = constant(np.arange(n))
    own = eq(here, k)
    right = c.h.at(own)
    column = c.g.times(right).summed(0).over(c.d.minus(e.at(own))).where(ge(here, k), 0)
    best = eq(here, argmax(column.square(), 0))
    pivot, left = column.at(best), c.g.at(best)
    row = c.h.times(left).summed(0).over(c.d.at(best).minus(e))
    d, g, column = (_exchanged(x, own, best) for x in (c.d, c.g, column))
    zero = _Pair(full_of((), 0, f64), full_of((), 0, f64))
    g = g.minus(left.times(zero.where(own, column.over(pivot))))
    h = c.h.minus(right.times(row.over(pivot)))
    same = total(cast_to(where(own, best, False), f64))
    return _Rest(d, g, h), (_Pair(*map(squeeze, pivot)), sub(mul(same, 2), 1))


def _exchanged(x: _Pair, one: Value, other: Value) -> _Pair:
    """The elements of the last axis at two places exchanged."""
    return x.at(other).where(one, x.at(one).where(other, x))
