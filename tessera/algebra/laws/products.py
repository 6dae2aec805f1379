"""Products of matrices with structure, with fewer operations than a full product: as ops, and exactly.

A triangle and a Gram matrix are cut into strips: only the blocks that are not zero, or not known by symmetry,
are multiplied.  With k strips 1/2 + 1/(2 k) of the product is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra.laws import numbers as exact
from tessera.algebra.laws.numbers import Matrix, Numbers
from tessera.ir.graph.ir import Value
from tessera.ops import arrange, contraction, elementwise, fft, shape
from tessera.ops.creation import constant
from tessera.ops.matrix import adjoint

NARROWEST, WIDE = (
    32,
    128,
)  # columns of a strip at least, and of one that is worth a product of its own
FEW, MOST = 4, 8  # strips as long as they are not too narrow, and as long as they are wide


def strips(n: Any) -> int:
    """Into how many strips a size is cut."""
    if not isinstance(n, int | float) or n < NARROWEST:
        return 1
    return int(min(n // NARROWEST, max(FEW, min(n // WIDE, MOST))))


def part_done(n: Any) -> float:
    """Which part of a full product is done."""
    return 0.5 + 0.5 / strips(n)


def _ends(n: int) -> list[tuple[int, int]]:
    count = strips(n)
    return [(n * i // count, n * (i + 1) // count) for i in range(count)]


# Triangles


def _cut(x: Value, rows: tuple[int, int], columns: tuple[int, int]) -> Value:
    return shape.slice_(x, (rows[0], columns[0]), (rows[1], columns[1]))


def triangle_times(a: Value, b: Value, lower: bool) -> Value:
    """The lower or upper triangle of a matrix times a matrix: of each strip of rows what is not zero."""
    n, k = b.shape
    kept = arrange.tril(a) if lower else arrange.triu(a)
    found = []
    for first, last in _ends(n):
        seen = (0, last) if lower else (first, n)
        found.append(contraction.matmul(_cut(kept, (first, last), seen), _cut(b, seen, (0, k))))
    return shape.concat(found, 0)


def exact_triangle_times(numbers: Numbers, a: Matrix, b: Matrix, lower: bool) -> Matrix:
    """The same over exact numbers."""
    i, j = np.indices(a.shape)
    kept = np.where(i >= j if lower else i <= j, a, numbers.of(0))
    return exact.product(kept, b, numbers)


def gram(a: Value) -> Value:
    """A.H @ A: strips of rows up to the diagonal; what is above it is the adjoint of what is below."""
    k, n = a.shape
    if strips(min(k, n)) == 1:  # so thin that the copies cost more than the product
        return contraction.matmul(adjoint(a), a)
    found = []
    for first, last in _ends(n):
        strip = contraction.matmul(
            adjoint(_cut(a, (0, k), (first, last))), _cut(a, (0, k), (0, last))
        )
        found.append(shape.pad(strip, ((0, 0), (0, n - last))))
    below = shape.concat(found, 0)
    at = constant(np.arange(n))
    return elementwise.where(elementwise.ge(shape.expand_dims(at, 1), at), below, adjoint(below))


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
