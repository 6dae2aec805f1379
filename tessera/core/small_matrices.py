"""Factors of small matrices and substitution, as primitives: every step of an element in one order.

A number less a sum of products is a chain of fused multiply-adds in ascending order.  Matrices of a batch do
not know of each other.  A matrix that has no Cholesky factor gives NaN from the column on where it is
found out; a pivot of 0 stays, as in LAPACK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import f32, f64, i64
from tessera.core.fma import fma
from tessera.core.primitive import Array, Definition, Params, Types
from tessera.core.types import TensorType

MOST = 32  # rows of a matrix: beyond, blocked algorithms are faster


def is_small(t: TensorType) -> bool:
    """Whether matrices are square and so small that kernels factor them."""
    if t.dtype not in (f32, f64) or t.rank < 2 or 0 in t.shape:
        return False
    n = t.shape[-1]
    return isinstance(n, int) and n == t.shape[-2] and n <= MOST


def is_open(t: TensorType) -> bool:
    """Whether a size that is still a symbol decides that."""
    return (
        t.dtype in (f32, f64) and t.rank >= 2 and not all(isinstance(n, int) for n in t.shape[-2:])
    )


def _supports(types: Types, p: Params) -> bool:
    return is_small(types[0])


def _less(s: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
    """s less the products of pairs, one after another."""
    for a, b in pairs:
        s = fma(-a, b, s)
    return s


def _cholesky(xs: Sequence[Array], p: Params) -> list[Array]:
    x = xs[0]
    n, y = x.shape[-1], np.zeros_like(x)
    for j in range(n):
        for i in range(j, n):
            s = _less(x[..., i, j], [(y[..., i, k], y[..., j, k]) for k in range(j)])
            if i == j:
                y[..., j, j] = np.where(s > 0, np.sqrt(s), x.dtype.type(np.nan))
            else:
                y[..., i, j] = s / y[..., j, j]
    return [y]


def _lu(xs: Sequence[Array], p: Params) -> list[Array]:
    """Rows are swapped for the first of the largest elements; swaps are counted by the sign."""
    a = np.array(xs[0])
    n, batch = a.shape[-1], a.shape[:-2]
    perm = np.broadcast_to(np.arange(n, dtype=np.int64), (*batch, n)).copy()
    sign = np.ones(batch, a.dtype)
    for j in range(n):
        best, at = np.abs(a[..., j, j]), np.full(batch, j)
        for i in range(j + 1, n):
            more = np.abs(a[..., i, j]) > best
            best, at = np.where(more, np.abs(a[..., i, j]), best), np.where(more, i, at)
        for i in range(j + 1, n):
            here = at == i
            for m in (a, perm[..., None]):
                up, down = m[..., j, :].copy(), m[..., i, :].copy()
                m[..., j, :] = np.where(here[..., None], down, up)
                m[..., i, :] = np.where(here[..., None], up, down)
        sign = np.where(at == j, sign, -sign)
        pivot = a[..., j, j]
        for i in range(j + 1, n):
            factor = np.where(pivot == 0, a[..., i, j], a[..., i, j] / pivot)
            a[..., i, j] = factor
            for k in range(j + 1, n):
                a[..., i, k] = fma(-factor, a[..., j, k], a[..., i, k])
    return [a, perm, sign.astype(a.dtype)]


def _lu_types(types: Types, p: Params) -> list[TensorType]:
    (t,) = types
    return [t, TensorType(i64, t.shape[:-1]), t.with_shape(t.shape[:-2])]


def _substitute(xs: Sequence[Array], p: Params) -> list[Array]:
    a, b = xs
    n, y = a.shape[-1], np.zeros_like(b)
    a = np.swapaxes(a, -1, -2) if p["transpose"] else a
    down = p["lower"] != p["transpose"]
    for i in range(n) if down else reversed(range(n)):
        known = range(i) if down else range(i + 1, n)
        s = _less(b[..., i, :], [(a[..., i, j, None], y[..., j, :]) for j in known])
        y[..., i, :] = s if p["unit_diagonal"] else s / a[..., i, i, None]
    return [y]


SMALL_MATRICES = (
    Definition("small_cholesky", _supports, lambda types, p: [types[0]], _cholesky),
    Definition("small_lu", _supports, _lu_types, _lu),
    Definition("small_substitute", _supports, lambda types, p: [types[1]], _substitute),
)
