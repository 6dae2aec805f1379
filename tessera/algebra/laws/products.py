"""Products of matrices with structure, with fewer operations than a full product: as ops, and exactly.

A triangle and a Gram matrix are halved again and again: only the blocks that are not zero, or not known
by symmetry, are multiplied.  After k halvings 1/2 + 1/2^(k+1) of the product is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra.laws import numbers as exact
from tessera.algebra.laws.numbers import Matrix, Numbers
from tessera.ir.graph.ir import Value
from tessera.ops import arrange, contraction, elementwise, fft, shape
from tessera.ops.matrix import adjoint

SMALLEST = 32  # below this a block is multiplied whole
DEEPEST = 4  # halvings


def halvings(n: Any) -> int:
    """How often a size is halved."""
    count = 0
    while isinstance(n, int | float) and n >= 2 * SMALLEST and count < DEEPEST:
        n, count = n // 2, count + 1
    return count


def part_done(n: Any) -> float:
    """Which part of a full product is done."""
    return 0.5 + 0.5 ** (halvings(n) + 1)


# Triangles


def _cut(x: Value, rows: tuple[int, int], columns: tuple[int, int]) -> Value:
    return shape.slice_(x, (rows[0], columns[0]), (rows[1], columns[1]))


def triangle_times(a: Value, b: Value, lower: bool, depth: int | None = None) -> Value:
    """The lower or upper triangle of a matrix times a matrix."""
    n, k = b.shape
    depth = halvings(n) if depth is None else depth
    if depth == 0:
        return contraction.matmul(arrange.tril(a) if lower else arrange.triu(a), b)
    h = n // 2
    top, bottom = (0, h), (h, n)
    tops, bottoms = _cut(b, top, (0, k)), _cut(b, bottom, (0, k))
    one = triangle_times(_cut(a, top, top), tops, lower, depth - 1)
    two = triangle_times(_cut(a, bottom, bottom), bottoms, lower, depth - 1)
    if lower:
        two = elementwise.add(two, contraction.matmul(_cut(a, bottom, top), tops))
    else:
        one = elementwise.add(one, contraction.matmul(_cut(a, top, bottom), bottoms))
    return shape.concat([one, two], 0)


def exact_triangle_times(numbers: Numbers, a: Matrix, b: Matrix, lower: bool) -> Matrix:
    """The same over exact numbers."""
    i, j = np.indices(a.shape)
    kept = np.where(i >= j if lower else i <= j, a, numbers.of(0))
    return exact.product(kept, b, numbers)


def gram(a: Value, depth: int | None = None) -> Value:
    """A.H @ A: blocks below the diagonal are the adjoints of those above it."""
    k, n = a.shape
    depth = halvings(min(k, n)) if depth is None else depth
    if depth == 0:
        return contraction.matmul(adjoint(a), a)
    h = n // 2
    left, right = _cut(a, (0, k), (0, h)), _cut(a, (0, k), (h, n))
    corner = contraction.matmul(adjoint(right), left)
    top = shape.concat([gram(left, depth - 1), adjoint(corner)], 1)
    return shape.concat([top, shape.concat([corner, gram(right, depth - 1)], 1)], 0)


# Three diagonals


def bands_times(low: Value, d: Value, up: Value, b: Value) -> Value:
    """The matrix with three diagonals times a matrix."""
    n, k = b.shape
    first, second, third = (shape.expand_dims(v, 1) for v in (low, d, up))
    main = elementwise.mul(second, b)
    below = elementwise.mul(first, _cut(b, (0, n - 1), (0, k)))
    above = elementwise.mul(third, _cut(b, (1, n), (0, k)))
    padded = shape.pad(below, ((1, 0), (0, 0)))
    return elementwise.add(elementwise.add(main, padded), shape.pad(above, ((0, 1), (0, 0))))


def exact_bands_times(numbers: Numbers, low: Matrix, d: Matrix, up: Matrix, b: Matrix) -> Matrix:
    """The same over exact numbers."""
    out = d[:, None] * b
    out[1:] = out[1:] + low[:, None] * b[:-1]
    out[:-1] = out[:-1] + up[:, None] * b[1:]
    return out


# Circulants


def convolve(c: Value, e: Value) -> Value:
    """The cyclic convolution of two vectors: the first column of a product of circulants."""
    if c.dtype.kind == "c" or e.dtype.kind == "c":
        return fft.ifft(elementwise.mul(fft.fft(c), fft.fft(e)))
    n = c.shape[0]
    return fft.irfft(elementwise.mul(fft.rfft(c), fft.rfft(e)), n)


def exact_convolve(numbers: Numbers, c: Matrix, e: Matrix) -> Matrix:
    """The same over exact numbers."""
    return exact.product(_circulant(c), e, numbers)


def deconvolve(c: Value) -> Value:
    """The vector whose cyclic convolution with c is (1, 0, 0, ...)."""
    if c.dtype.kind == "c":
        return fft.ifft(elementwise.reciprocal(fft.fft(c)))
    return fft.irfft(elementwise.reciprocal(fft.rfft(c)), c.shape[0])


def exact_deconvolve(numbers: Numbers, c: Matrix) -> Matrix:
    """The same over exact numbers."""
    return exact.inverse(_circulant(c), numbers)[:, 0]


def _circulant(c: Matrix) -> Matrix:
    n = len(c)
    return np.asarray(c[(np.arange(n)[:, None] - np.arange(n)[None, :]) % n], object)
