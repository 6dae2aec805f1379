"""Systems and determinants of Toeplitz matrices T[i, j] = t[n - 1 + i - j], in n^2 steps and memory for
vectors.

Solutions are found by Levinson's recursion, determinants by Durbin's when T is symmetric positive definite,
else by Gauss's elimination in the displacement of T.  With the cyclic shift Z and the shift Z' that changes
the sign where it wraps, Z T - T Z' = G H^T has rank two.  Fourier transforms make both shifts diagonal, and
what is left of

    C[i, j] = (g[i] . h[j]) / (d[i] - e[j])

after a step of elimination has this form too: rows are exchanged as for any matrix, and only vectors are
kept (Gohberg, Kailath, Olshevsky 1995).  The inverse X has X[i, j + 1] = X[i - 1, j] + P[i] . Q[j] with P =
X G and Q = X^T H, so that the sums along its diagonals, which are the derivative of the determinant, are
correlations of P and Q.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import unify
from tessera.core.dtype import DType
from tessera.core.errors import ShapeError
from tessera.core.host import scipy
from tessera.core.promotion import promote
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Sample
from tessera.ops.batching import leading
from tessera.ops.creation import constant
from tessera.ops.cutting import vectors
from tessera.ops.define import (
    FLOATS,
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
)
from tessera.ops.elementwise import add, conj, mul, real, sub
from tessera.ops.fft import fft, ifft, irfft, rfft
from tessera.ops.matrix import Tangents, hosted
from tessera.ops.reduction import sum as total
from tessera.ops.shape import concat, expand_dims, flip, matrix_transpose, slice_

Array = Any


# Solutions --------------------------------------------------------------------------------------


def _wide(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _solved(t: Array, b: Array) -> Array:
    """One system after another, in double precision."""
    out = np.empty_like(b)
    for i in np.ndindex(t.shape[:-1]):
        out[i] = _solved_one(_wide(t[i]), _wide(b[i])) if b[i].size else b[i]
    return out


def _solved_one(t: Array, b: Array) -> Array:
    """By Levinson's recursion; where a leading minor vanishes, by the factors of the matrix."""
    linalg = scipy("linalg")
    n = len(b)
    column, row = t[n - 1 :], t[n - 1 :: -1]
    if not (np.all(np.isfinite(t)) and np.all(np.isfinite(b))):
        return np.full_like(b, np.nan)
    try:
        x = linalg.solve_toeplitz((column, row), b, check_finite=False)
        rest = b - linalg.matmul_toeplitz((column, row), x, check_finite=False)
        size = np.abs(t).sum() * np.abs(x).max(initial=0.0) + np.abs(b).max(initial=0.0)
        if np.abs(rest).max(initial=0.0) <= 1e3 * np.finfo(np.float64).eps * size:
            return x
    except np.linalg.LinAlgError:
        pass
    return np.linalg.solve(linalg.toeplitz(column, row), b)


def product(t: Value, x: Value) -> Value:
    """T times columns, as a part of a convolution."""
    *batch, n, k = x.shape
    m = 2 * n - 1
    start = (*(0 for _ in batch), n - 1, 0)
    if t.dtype.kind == "c" or x.dtype.kind == "c":
        y = ifft(mul(expand_dims(fft(t, m), -1), fft(x, m, -2)), m, -2)
    else:
        y = irfft(mul(expand_dims(rfft(t, m), -1), rfft(x, m, -2)), m, -2)
    return slice_(y, start, (*batch, m, k))


def _solve_jvp(n: Node, ts: Tangents) -> Value | None:
    """T dx = db - dT x."""
    dt, db = ts
    if dt is not None:
        moved = product(dt, n.results[0])
        db = sub(full_of(moved.shape, 0, moved.dtype) if db is None else db, moved)
    return None if db is None else toeplitz_solve.bind(n.operands[0], db)


@define(
    infer=lambda types, p: types[1:2], call="toeplitz_solve", kinds=FLOATS, linear=(1,), jvp=_solve_jvp,
    transpose=lambda n, ct, k: toeplitz_solve.bind(flip(n.operands[0], -1), ct), batch=leading,
    numpy=hosted("toeplitz_solve", "holds the diagonals of a singular matrix", _solved),
    samples=(
        Sample(np.array([0.2, 1.0, 5.0, -1.0, 0.3]), (3, 2)), Sample(np.array([2.0]), (1, 1)),
    ),
)  # fmt: skip
def toeplitz_solve(t: ArrayLike, b: ArrayLike) -> Value:
    """The x with T x = b for the columns of b, from the 2 n - 1 diagonals t, the upper right one first."""
    x, y = (floating(as_value(v, "toeplitz_solve")) for v in (t, b))
    if (
        y.ndim < 2
        or x.shape[:-1] != y.shape[:-2]
        or not unify(x.shape[-1], 2 * y.shape[-2] - 1, "toeplitz_solve: the diagonals")
    ):
        raise ShapeError(
            f"toeplitz_solve: the diagonals are {x.type} for columns {y.type}, expected 2 n - 1 for n rows"
        )
    dtype = promote(x.dtype, y.dtype)
    return toeplitz_solve.bind(cast_to(x, dtype), cast_to(y, dtype))


# Determinants -----------------------------------------------------------------------------------


def _slogdets(t: Array) -> tuple[Array, Array]:
    shape = t.shape[:-1]
    sign, size = np.empty(shape, t.dtype), np.empty(shape, t.real.dtype)
    for i in np.ndindex(shape):
        sign[i], size[i] = _slogdet(_wide(t[i]))
    return sign, size


def _slogdet(t: Array) -> tuple[Any, Any]:
    if not np.all(np.isfinite(t)):
        return np.nan, np.nan
    n = (len(t) + 1) // 2
    mirrored = t.dtype.kind != "c" and np.array_equal(t, t[::-1])
    found = _by_durbin(t[n - 1 :]) if mirrored else None
    return _by_displacement(t, n) if found is None else found


def _by_durbin(c: Array) -> tuple[float, float] | None:
    """Of a symmetric positive definite matrix, by the errors of prediction; None when it is not one."""
    if not c[0] > 0:
        return None
    r = c[1:] / c[0]
    y, error, size = np.zeros(len(r)), 1.0, 0.0
    for k in range(len(r)):
        reflection = -(r[k] + r[:k][::-1] @ y[:k]) / error
        y[:k] += reflection * y[:k][::-1]
        y[k] = reflection
        error *= (1 - reflection) * (1 + reflection)
        if not error > 1e-13:
            return None
        size += np.log(error)
    return 1.0, float(size + len(c) * np.log(c[0]))


def _root(n: int, k: Array) -> Array:
    """exp(-2 pi i k / n)."""
    return np.exp(-2j * np.pi * (k % n) / n)


def _by_displacement(t: Array, n: int) -> tuple[Any, float]:
    is_real = t.dtype.kind != "c"
    scale = float(np.abs(t).max()) or 1.0
    t = t.astype(complex) / scale
    k = np.arange(n)
    d, e, back = _root(n, k), _root(2 * n, 2 * k + 1), _root(2 * n, -k)
    row = np.append((t[n:] - t[: n - 1])[::-1], 0)
    column = np.append(2 * t[n - 1], t[: n - 1] + t[n:])
    first, last = np.eye(n)[0], np.eye(n)[n - 1]
    g = np.stack([np.fft.fft(x, norm="ortho") for x in (first, column)])
    h = np.stack([np.fft.ifft(back * x, norm="ortho") for x in (row, last)])
    # det T = det C det D, and D has the diagonal exp(-i pi k / n).
    phase, size = (-1j) ** ((n - 1) % 4), n * np.log(scale)
    for j in range(n):
        left = (g[0] * h[0, j] + g[1] * h[1, j]) / (d - e[j])
        best = int(np.argmax(np.abs(left)))
        pivot = left[best]
        if pivot == 0:
            return 0.0, -np.inf
        phase *= pivot / abs(pivot) * (1 if best == 0 else -1)
        size += np.log(abs(pivot))
        right = (g[0, best] * h[0, j + 1 :] + g[1, best] * h[1, j + 1 :]) / (d[best] - e[j + 1 :])
        chosen = g[:, best].copy()
        for x in (d, left):  # the first row takes the place of the pivot's
            x[best] = x[0]
        g[:, best] = g[:, 0]
        d, left = d[1:], left[1:]
        own = h[:, j].copy()
        g = g[:, 1:] - chosen[:, None] * (left / pivot)
        h[:, j + 1 :] -= own[:, None] * (right / pivot)
    return np.sign(phase.real) if is_real else phase, float(size)


def diagonal_sums(t: Value) -> Value:
    """The sums of the inverse along its diagonals, from the lower left one to the upper right one."""
    *batch, m = t.shape
    n = (m + 1) // 2
    first, last = (_unit(i, n, batch, t.dtype) for i in (0, n - 1))
    above, below = _cut(t, 0, n - 1), _cut(t, n, m)
    a = concat([flip(sub(below, above), -1), full_of((*batch, 1), 0, t.dtype)], -1)
    c = concat([mul(_cut(t, n - 1, n), 2), add(above, below)], -1)
    p = toeplitz_solve(t, concat([first, expand_dims(c, -1)], -1))
    q = toeplitz_solve(flip(t, -1), concat([expand_dims(a, -1), last], -1))
    return _sums_of(matrix_transpose(p), matrix_transpose(q), n)


def _unit(i: int, n: int, batch: Sequence[Any], dtype: DType) -> Value:
    return broadcast(constant(np.eye(n)[:, i : i + 1].astype(dtype.np)), (*batch, n, 1))


def _cut(x: Value, start: int, stop: int) -> Value:
    """Elements of the last axis."""
    before = x.shape[:-1]
    return slice_(x, (*(0 for _ in before), start), (*before, stop))


def _sums_of(p: Value, q: Value, n: int) -> Value:
    """From two rows P and Q each: R[i, j] is the sum of P[:, i] Q[:, j]."""
    dtype, k = p.dtype.np, np.arange(n)
    own = mul(p, constant((k > 0).astype(dtype)))  # without R[0, :]
    # X[0, m] = (R[0, m - 1] - sum of R[i, m + i - 1] over i from 1 on, around the ring) / 2
    corner = total(mul(_cut(p, 0, 1), _turned(q, n)), -2)
    start = mul(sub(corner, _turned(_correlated(own, q, n), n)), 0.5)
    plain, weighed = (_along(x, q, n) for x in (own, mul(own, constant(k.astype(dtype)))))
    # On and above the diagonal: D[m] = (n - m) X[0, m] + sum of (n - m - i) R[i, m + i - 1].
    count = constant((n - k).astype(dtype))
    inner = sub(mul(count, _cut(plain, n - 1, 2 * n - 1)), _cut(weighed, n - 1, 2 * n - 1))
    upper = add(mul(count, start), inner)
    if n == 1:
        return upper
    # Below: X[k, 0] = X[0, n - k] + sum of R[i, n - k + i - 1] over i up to k, then (n - i) R[i, i - k - 1].
    head = flip(add(_cut(start, 1, n), _cut(plain, n, 2 * n - 1)), -1)
    far = sub(mul(_cut(plain, 0, n - 1), n), _cut(weighed, 0, n - 1))
    lower = add(mul(constant((n - k[1:]).astype(dtype)), head), flip(far, -1))
    return concat([flip(lower, -1), upper], -1)


def _turned(q: Value, n: int) -> Value:
    """The elements moved one place to the right around the ring."""
    return concat([_cut(q, n - 1, n), _cut(q, 0, n - 1)], -1)


def _along(p: Value, q: Value, n: int) -> Value:
    """The sums of P[:, i] Q[:, i + m] for m from -n to n - 1, at m + n."""
    both = _correlated(p, q, 2 * n)
    return concat([_cut(both, n, 2 * n), _cut(both, 0, n)], -1)


def _correlated(p: Value, q: Value, m: int) -> Value:
    """The sums of P[:, i] Q[:, i + m] around a ring of m places."""
    turned = conj(fft(conj(p) if p.dtype.kind == "c" else p, m))
    y = ifft(total(mul(turned, fft(q, m)), -2))
    return y if p.dtype.kind == "c" else real(y)


def _slogdet_types(types: Any, p: Any) -> list[TensorType]:
    (t,) = types
    batch = t.shape[:-1]
    return [TensorType(t.dtype, batch), TensorType(t.dtype.real, batch)]


def _slogdet_jvp(n: Node, ts: Tangents) -> tuple[Value | None, Value] | None:
    """The sum of dT[i, j] X[j, i], whose imaginary part turns the phase."""
    (dt,) = ts
    if dt is None:
        return None
    moved = total(mul(dt, diagonal_sums(n.operands[0])), -1)
    if moved.dtype.kind != "c":
        return None, moved
    size = real(moved)
    return mul(n.results[0], sub(moved, cast_to(size, moved.dtype))), size


@define(
    infer=_slogdet_types, call="toeplitz_slogdet", kinds=FLOATS, multiple=True, numpy=_slogdets,
    jvp=_slogdet_jvp, batch=leading, factors=vectors,
    samples=(Sample(np.array([0.2, 1.0, 5.0, -1.0, 0.3])), Sample(np.array([0.3, 1.0, 5.0, 1.0, 0.3]))),
)  # fmt: skip
def toeplitz_slogdet(t: ArrayLike) -> tuple[Value, ...]:
    """Sign (or phase) and logarithm of the determinant of the matrix with the 2 n - 1 diagonals t."""
    x = floating(as_value(t, "toeplitz_slogdet"))
    if x.ndim < 1 or (isinstance(x.shape[-1], int) and x.shape[-1] % 2 == 0):
        raise ShapeError(f"toeplitz_slogdet: the diagonals are {x.type}, expected 2 n - 1 of them")
    return toeplitz_slogdet.bind_many(x)
