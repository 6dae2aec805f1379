"""Solutions with the Laplacian that is zero outside of a grid, in time n log n and with no iteration.

Sines are the eigenvectors along every axis, so that transforms along all but the first one leave a
system of three diagonals -1, 2 + mu, -1 along it for each wave.  With 2 + mu = r + 1/r and
Q[j] = 1 - r^(2 j) its elimination has closed multipliers m[i] = r Q[i + 1] / Q[i + 2]:

    y[i] = f[i] + m[i - 1] y[i - 1]        x[i] = m[i] (y[i] + x[i + 1])
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tessera.ir.graph.ir import Value
from tessera.ops.accumulate import linear_recurrence
from tessera.ops.creation import constant
from tessera.ops.define import cast_to, full_of
from tessera.ops.elementwise import add, asinh, div, exp, expm1, imag, mul, neg, sqrt
from tessera.ops.fft import rfft
from tessera.ops.shape import broadcast_to, concat, expand_dims, flip, reshape, slice_


def solve_laplacian(b: Value, sizes: Sequence[int], steps: Sequence[float]) -> Value:
    """x with the Laplacian of x = b for real columns b on a flattened grid."""
    grid = reshape(b, tuple(sizes) if b.shape[1] == 1 else (*sizes, b.shape[1]))
    later = range(1, len(sizes))
    for axis in later:
        grid = sines(grid, axis)
    ahead, back = _multipliers(sizes, steps, grid)
    swept = linear_recurrence(ahead, grid, axis=0)
    found = linear_recurrence(back, mul(back, swept), axis=0, reverse=True)
    for axis in later:
        found = sines(found, axis)
    scale = -(steps[0] ** 2) * math.prod(2.0 / (n + 1) for n in sizes[1:])
    return reshape(mul(found, scale), b.shape)


def sines(x: Value, axis: int) -> Value:
    """sum over j of x[j] sin(pi (j + 1) (k + 1) / (n + 1)), by the transform of an odd signal."""
    n = x.shape[axis]
    row = tuple(1 if i == axis else s for i, s in enumerate(x.shape))
    zero = full_of(row, 0, x.dtype)
    odd = concat([zero, x, zero, neg(flip(x, axis))], axis)
    start = tuple(int(i == axis) for i in range(x.ndim))
    stop = tuple(n + 1 if i == axis else s for i, s in enumerate(x.shape))
    return cast_to(mul(slice_(imag(rfft(odd, axis=axis)), start, stop), -0.5), x.dtype)


def _multipliers(sizes: Sequence[int], steps: Sequence[float], grid: Value) -> tuple[Value, Value]:
    """m[i - 1] and m[i] along the first axis for each wave along the others."""
    n, rest = sizes[0], (1,) * (grid.ndim - 1)
    if len(sizes) == 1:  # r = 1, where Q[j] stands for j
        q, r = constant(np.arange(n + 2.0).reshape(n + 2, *rest)), None
    else:
        log_r = neg(mul(asinh(mul(sqrt(_waves(sizes, steps)), 0.5)), 2.0))
        log_r = expand_dims(log_r, -1) if grid.ndim > len(sizes) else log_r
        doubled = constant(np.arange(0.0, 2 * n + 4, 2).reshape(n + 2, *rest))
        q, r = neg(expm1(mul(doubled, log_r))), exp(log_r)

    def part(i: int) -> Value:
        return slice_(q, (i, *(0 for _ in rest)), (i + n, *q.shape[1:]))

    found = []
    for i in (0, 1):
        m = div(part(i), part(i + 1))
        m = m if r is None else mul(m, r)
        found.append(broadcast_to(cast_to(m, grid.dtype), grid.shape))
    return found[0], found[1]


def _waves(sizes: Sequence[int], steps: Sequence[float]) -> Value:
    """mu for each wave along the axes after the first: a sum of tables of one axis each."""
    total: Value | None = None
    for i, (n, h) in enumerate(zip(sizes[1:], steps[1:], strict=True)):
        w = 4.0 * (steps[0] / h * np.sin(np.pi * np.arange(1, n + 1) / (2 * (n + 1)))) ** 2
        shape = [1] * len(sizes)
        shape[i + 1] = n
        along = constant(w.reshape(shape))
        total = along if total is None else add(total, along)
    assert total is not None, sizes
    return total
