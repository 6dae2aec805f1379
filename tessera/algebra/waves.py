"""Eigenvalues and eigenvectors that the structure of an operator tells: sines and cosines on grids.

A stencil that adds weighted neighbours along the axes, the same on both sides, has products of waves as
eigenvectors, one wave for each axis.  With w the weight of a neighbour along an axis, its wave turns by an
angle t from point to point and adds -4 w sin(t / 2)^2 to the sum of all weights:

    zero outside    sin(t (i + 1)), t = pi (j + 1) / (n + 1)
    as at the edge  cos(t (i + 1/2)), t = pi j / n
    periodic        cos(t i) and sin(t i), t = 2 pi f / n

So f(A) X takes transforms along the axes, the values of f, and the transforms back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.algebra.constructors.poisson import sines
from tessera.algebra.operator import Operator
from tessera.core.dtype import DType, complex_of
from tessera.ir.graph.ir import Value
from tessera.ops.creation import constant
from tessera.ops.define import cast_to
from tessera.ops.elementwise import add, imag, mul, real
from tessera.ops.fft import fft, ifft
from tessera.ops.gather import take
from tessera.ops.shape import reshape
from tessera.ops.spectrum import dct, idct

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Spectrum:
    """All eigenvalues of a self-adjoint operator, and the vectors of some of them as columns."""

    values: Array
    vectors: Callable[[Array, DType], Value]  # numbers of values -> orthonormal columns
    weighted: Callable[[Value, Value], Value]  # real weights, real columns -> V diag(weights) V.H X

    def function(self, weights: Value, x: Value) -> Value:
        """V diag(weights) V.H X for as many weights as there are values."""
        if weights.dtype.kind == "c":
            return _joined(self.function(real(weights), x), self.function(imag(weights), x))
        if x.dtype.kind == "c":
            return _joined(self.function(weights, real(x)), self.function(weights, imag(x)))
        return cast_to(self.weighted(weights, x), x.dtype)

    def zeros(self) -> Array:
        """Which values are zero but for the rounding of the largest."""
        size = np.abs(self.values)
        return np.asarray(size <= 8 * np.finfo(np.float64).eps * size.max(initial=0.0))

    def mapped(self, f: Callable[[Array], Array]) -> Spectrum:
        """The same vectors with other values."""
        return replace(self, values=f(self.values))

    def chosen(self, count: int, which: str) -> Array:
        """The numbers of the values that are wanted first; of equal ones those that come first."""
        v = self.values
        key = {"magnitude": -np.abs(v), "largest": -v, "smallest": v}[which]
        return np.argsort(key, kind="stable")[:count]


def spectrum_of(a: Operator) -> Spectrum | None:
    """What the structure of an operator tells of its spectrum, None when that is nothing."""
    return None if a.record.spectrum is None else a.record.spectrum(a)


def spectrum_of_stencil(
    taps: Mapping[tuple[int, ...], float], sizes: Sequence[int], boundary: str
) -> Spectrum | None:
    """The spectrum of a stencil of neighbours along the axes, None when it is another one."""
    near = all(sum(map(abs, at)) <= 1 for at in taps)
    even = all(taps.get(tuple(-o for o in at)) == w for at, w in taps.items())
    if not (near and even) or any(isinstance(w, complex) for w in taps.values()):
        return None
    total = np.full(tuple(sizes), math.fsum(taps.values()))
    for axis, n in enumerate(sizes):
        side = taps.get(tuple(int(i == axis) for i in range(len(sizes))), 0.0)
        part = -4 * side * np.sin(_turns(n, boundary) / 2) ** 2
        total += part.reshape([n if i == axis else 1 for i in range(len(sizes))])
    return Spectrum(
        total.reshape(-1),
        lambda at, dtype: _products(at, sizes, boundary, dtype),
        lambda weights, x: _WEIGHTED[boundary](weights, x, sizes),
    )


def _turns(n: int, boundary: str) -> Array:
    """The angle from point to point of every wave along an axis of n points."""
    j = np.arange(n)
    if boundary == "dirichlet":
        return np.pi * (j + 1) / (n + 1)
    return np.pi * j / n if boundary == "neumann" else 2 * np.pi * ((j + 1) // 2) / n


def _products(at: Array, sizes: Sequence[int], boundary: str, dtype: DType) -> Value:
    """For each number of a product of waves its values on the grid, as columns."""
    found: Value | None = None
    for axis, j in enumerate(np.unravel_index(at, tuple(sizes))):
        shape = [n if i == axis else 1 for i, n in enumerate(sizes)]
        part = constant(_waves(sizes[axis], j, boundary).reshape(*shape, len(at)))
        found = part if found is None else mul(found, part)
    assert found is not None, sizes
    return cast_to(reshape(found, (math.prod(sizes), len(at))), dtype)


def _waves(n: int, j: Array, boundary: str) -> Array:
    """The waves of these numbers along an axis, of length one; angles are reduced as whole numbers."""
    i = np.arange(n)[:, None]
    if boundary == "dirichlet":
        waves = np.sin(np.pi * ((i + 1) * (j + 1) % (2 * n + 2)) / (n + 1))
        return np.asarray(waves * (2 / (n + 1)) ** 0.5)
    if boundary == "neumann":
        waves = np.cos(np.pi * ((2 * i + 1) * j % (4 * n)) / (2 * n))
        alone = j == 0
    else:
        f = (j + 1) // 2
        angle = 2 * np.pi * (i * f % n) / n
        waves = np.where(j % 2 == 1, np.cos(angle), np.sin(angle))
        waves = np.where(j == 0, 1.0, waves)
        alone = (j == 0) | (2 * f == n)
    return np.asarray(waves * np.where(alone, 1 / n, 2 / n) ** 0.5)


# Transforms -------------------------------------------------------------------------------------


def _joined(x: Value, y: Value) -> Value:
    """x + i y."""
    dtype = complex_of(x.dtype)
    return add(cast_to(x, dtype), mul(cast_to(y, dtype), 1j))


def _by_sines(weights: Value, x: Value, sizes: Sequence[int]) -> Value:
    grid = reshape(x, (*sizes, x.shape[1]))
    for axis in range(len(sizes)):
        grid = sines(grid, axis)
    scale = math.prod(2.0 / (n + 1) for n in sizes)
    grid = mul(grid, mul(reshape(weights, (*sizes, 1)), scale))
    for axis in range(len(sizes)):
        grid = sines(grid, axis)
    return reshape(grid, x.shape)


def _by_cosines(weights: Value, x: Value, sizes: Sequence[int]) -> Value:
    grid = reshape(x, (*sizes, x.shape[1]))
    for axis in range(len(sizes)):
        grid = dct(grid, axis=axis, norm="ortho")
    grid = mul(grid, reshape(weights, (*sizes, 1)))
    for axis in range(len(sizes)):
        grid = idct(grid, axis=axis, norm="ortho")
    return reshape(grid, x.shape)


def _by_rings(weights: Value, x: Value, sizes: Sequence[int]) -> Value:
    grid = cast_to(reshape(x, (*sizes, x.shape[1])), complex_of(x.dtype))
    spread = reshape(weights, tuple(sizes))
    for axis, n in enumerate(sizes):
        grid = fft(grid, axis=axis)
        k = np.arange(n)  # turns of a transform; waves are numbered 0, cos 1, sin 1, cos 2, ...
        spread = take(
            spread, constant(np.where(2 * k <= n, np.maximum(2 * k - 1, 0), 2 * (n - k))), axis
        )
    grid = mul(grid, cast_to(reshape(spread, (*sizes, 1)), grid.dtype))
    for axis in range(len(sizes)):
        grid = ifft(grid, axis=axis)
    return reshape(real(grid), x.shape)


_WEIGHTED = {"dirichlet": _by_sines, "neumann": _by_cosines, "periodic": _by_rings}
