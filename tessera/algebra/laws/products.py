"""Products of matrices with structure, with fewer operations than a full product: as ops, and exactly.

A triangle and a Gram matrix are cut into strips: only the blocks that are not zero, or not known by symmetry,
are multiplied.  With k strips 1/2 + 1/(2 k) of the product is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.algebra.laws import numbers as exact
from tessera.algebra.laws.numbers import Matrix, NumberSystem
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


def exact_triangle_times(numbers: NumberSystem, a: Matrix, b: Matrix, lower: bool) -> Matrix:
    """The same over exact numbers."""
    i, j = np.indices(a.shape)
    kept = np.where(i >= j if lower else i <= j, a, numbers.of(0))
    return exact.product(kept, b, numbers)


def gram(a: Value) -> Value:
    """A.H @ A: strips of rows from the diagonal on; what is before it is the adjoint of what is above."""
    k, n = a.shape
    if strips(min(k, n)) == 1:  # so thin that the copies cost more than the product
        return contraction.matmul(adjoint(a), a)
    ends = _ends(n)
    above = [_self_adjoint_strip(a, first, last) for first, last in ends]
    rows = []
    for i, (first, last) in enumerate(ends):
        before = [
            adjoint(_cut(above[j], (0, ends[j][1] - start), (first - start, last - start)))
            for j, (start, _) in enumerate(ends[:i])
        ]
        rows.append(shape.concat([*before, above[i]], 1) if before else above[i])
    return shape.concat(rows, 0)


def _self_adjoint_strip(a: Value, first: int, last: int) -> Value:
    """Rows of A.H @ A from the diagonal on.

    The block on the diagonal is symmetric to the last bit, as every element is one chain of products; a
    complex one is made so.
    """
    k, n = a.shape
    strip = contraction.matmul(adjoint(_cut(a, (0, k), (first, last))), _cut(a, (0, k), (first, n)))
    if a.dtype.kind != "c":
        return strip
    size = last - first
    square, rest = _cut(strip, (0, size), (0, size)), _cut(strip, (0, size), (size, n - first))
    at = constant(np.arange(size))
    below = elementwise.ge(shape.expand_dims(at, 1), at)
    return shape.concat([elementwise.where(below, square, adjoint(square)), rest], 1)


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


def exact_bands_times(
    numbers: NumberSystem, low: Matrix, d: Matrix, up: Matrix, b: Matrix
) -> Matrix:
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


def exact_convolve(numbers: NumberSystem, c: Matrix, e: Matrix) -> Matrix:
    """The same over exact numbers."""
    return exact.product(_circulant(c), e, numbers)


def deconvolve(c: Value) -> Value:
    """The vector whose cyclic convolution with c is (1, 0, 0, ...)."""
    if c.dtype.kind == "c":
        return fft.ifft(elementwise.reciprocal(fft.fft(c)))
    return fft.irfft(elementwise.reciprocal(fft.rfft(c)), c.shape[0])


def exact_deconvolve(numbers: NumberSystem, c: Matrix) -> Matrix:
    """The same over exact numbers."""
    return exact.inverse(_circulant(c), numbers)[:, 0]


def _circulant(c: Matrix) -> Matrix:
    n = len(c)
    return np.asarray(c[(np.arange(n)[:, None] - np.arange(n)[None, :]) % n], object)


# Rings


def rings(u: Value, v: Value) -> Value:
    """The cyclic convolution of two grids."""
    y = fft.ifftn(elementwise.mul(fft.fftn(u), fft.fftn(v)))
    return y if y.dtype in (u.dtype, v.dtype) else elementwise.real(y)


def exact_grid(numbers: NumberSystem, w: Matrix, sizes: Any, offsets: Any) -> Matrix:
    """A kernel as a grid: what lies past the end comes back at the start."""
    out = np.full(sizes, numbers.of(0), object)
    for at in np.ndindex(w.shape):
        place = tuple((i - o) % n for i, o, n in zip(at, offsets, sizes, strict=True))
        out[place] = out[place] + w[at]
    return out


def exact_rings(numbers: NumberSystem, u: Matrix, v: Matrix) -> Matrix:
    """From the definition."""
    out = np.full(u.shape, numbers.of(0), object)
    for i in np.ndindex(u.shape):
        for j in np.ndindex(v.shape):
            place = tuple((p + q) % n for p, q, n in zip(i, j, u.shape, strict=True))
            out[place] = out[place] + u[i] * v[j]
    return out
