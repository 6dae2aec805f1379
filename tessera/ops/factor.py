"""Factorisations of matrices: cholesky, qr, lu, eigh, eig, svd."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.constraints import require, same
from tessera.core.dims import smaller
from tessera.core.dtype import complex_of, i64
from tessera.core.errors import OperandError, RuleError
from tessera.core.host import scipy
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops import small_matrices
from tessera.ops.arrange import eye, tril, triu
from tessera.ops.batching import leading
from tessera.ops.contraction import matmul
from tessera.ops.creation import iota
from tessera.ops.define import FLOATS, ArrayLike, cast_to, define
from tessera.ops.elementwise import (
    add,
    conj,
    eq,
    logical_and,
    mul,
    real,
    reciprocal,
    sub,
    where,
)
from tessera.ops.gauge import (
    NULL,
    clusters,
    generic_eigenvectors,
    generic_singular_vectors,
)
from tessera.ops.matrix import (
    Tangents,
    adjoint,
    as_matrix,
    diagonal,
    differences,
    hermitian_part,
    hosted,
    matrix_diag,
    reciprocal_or_zero,
    square_matrix,
)
from tessera.ops.reduction import sum
from tessera.ops.shape import expand_dims, matrix_transpose
from tessera.ops.solve import solve, triangular_solve, well_conditioned

DIVERGED = "did not converge; check it for NaN and infinite elements"


def positive_definite(*shape: int) -> Any:
    """A stack of symmetric positive definite matrices for samples."""
    x = well_conditioned(*shape)
    return x + np.swapaxes(x, -1, -2)


def _hermitian(x: Any) -> Any:
    """(x + its adjoint) / 2, which is x to the bit when x is Hermitian."""
    return (x + np.swapaxes(x.conj(), -1, -2)) / 2


_SQUARE = (
    Sample(positive_definite(3, 3)), Sample(positive_definite(2, 3, 3)), Sample(np.full((1, 1), 4.0)),
    Sample(np.zeros((0, 0))), Sample(np.zeros((0, 2, 2))),
)  # fmt: skip
_TALL = (
    Sample(well_conditioned(4, 3)), Sample(well_conditioned(2, 3, 3)), Sample(np.full((1, 1), 2.0)),
    Sample(np.zeros((3, 0))), Sample(np.zeros((0, 2, 2))),
)  # fmt: skip

# Cholesky ---------------------------------------------------------------------------------------


_INDEFINITE = "is not positive definite; add a multiple of the identity or use op.eigh"


def _cholesky_jvp(n: Node, ts: Tangents) -> Value | None:
    """dL = L phi(L^-1 dA L^-H) where phi takes the lower triangle and half of the diagonal."""
    (t,), factor = ts, n.results[0]
    if t is None:
        return None
    inner = triangular_solve(factor, adjoint(triangular_solve(factor, hermitian_part(t))))
    half = mul(eye(factor.shape[-1], dtype=factor.dtype), 0.5)
    return matmul(factor, sub(tril(inner), mul(inner, half)))


@define(
    signature="... n! n! -> ... n! n!", call="cholesky", kinds=FLOATS, jvp=_cholesky_jvp,
    numpy=hosted("cholesky", _INDEFINITE, lambda x: np.linalg.cholesky(_hermitian(x))),
    small=small_matrices.cholesky(_INDEFINITE),
    samples=(*_SQUARE, Sample(positive_definite(3, 3), upper=True)),
)  # fmt: skip
def cholesky(x: ArrayLike, upper: bool = False) -> Value:
    """The lower triangular L with L @ L.H = x for the Hermitian part of x, or L.H with upper."""
    factor = cholesky.bind(square_matrix("cholesky", x))
    return adjoint(factor) if upper else factor


# QR ---------------------------------------------------------------------------------------------


def _qr_types(types: Types, p: Params) -> list[TensorType]:
    *batch, m, n = types[0].shape
    k = m if p["complete"] else smaller(m, n)
    return [types[0].with_shape((*batch, m, k)), types[0].with_shape((*batch, k, n))]


def _qr_jvp(n: Node, ts: Tangents) -> tuple[Value, Value] | None:
    """With C = Q^H dA R^-1 and the skew part W of its lower triangle: dR = (C - W) R."""
    (t,), (q, r) = ts, n.results
    if t is None:
        return None
    rows, columns = t.shape[-2:]
    if not require("at_least", rows, columns, "qr: the rows and columns of a derivative") or (
        n.params["complete"] and same(rows, columns) is not True
    ):
        raise RuleError(
            f"qr has no derivative for {t.type}{' in mode complete' if n.params['complete'] else ''}; "
            "it needs mode reduced and at least as many rows as columns"
        )
    scaled = _divide_right(t, r)
    inner = matmul(adjoint(q), scaled)
    strict = tril(inner, -1)
    skew = sub(strict, adjoint(strict))
    if t.dtype.kind == "c":  # the diagonal of R stays real
        d = diagonal(inner)
        skew = add(skew, matrix_diag(sub(d, real(d))))
    change = sub(inner, skew)
    return sub(scaled, matmul(q, change)), matmul(change, r)


def _divide_right(x: Value, r: Value) -> Value:
    """x @ inv(r) for an upper triangular r."""
    y = triangular_solve(r, matrix_transpose(x), lower=False, transpose=True)
    return matrix_transpose(y)


@define(
    infer=_qr_types, call="qr", kinds=FLOATS, multiple=True, jvp=_qr_jvp, batch=leading,
    numpy=lambda x, complete: np.linalg.qr(x, "complete" if complete else "reduced"),
    samples=(*_TALL, Sample(well_conditioned(3, 3), mode="complete")),
)  # fmt: skip
def qr(x: ArrayLike, mode: str = "reduced") -> tuple[Value, ...]:
    """(Q, R) with Q @ R = x, orthonormal columns in Q and zeros below the diagonal of R."""
    if mode not in ("reduced", "complete"):
        raise OperandError(f"qr: mode is {mode!r}, expected 'reduced' or 'complete'")
    return qr.bind_many(as_matrix("qr", x), complete=mode == "complete")


# LU ---------------------------------------------------------------------------------------------


def _lu_types(types: Types, p: Params) -> list[TensorType]:
    *batch, m, n = types[0].shape
    k = smaller(m, n)
    return [
        TensorType(i64, (*batch, m)),
        types[0].with_shape((*batch, m, k)),
        types[0].with_shape((*batch, k, n)),
    ]


def _lu(x: Any) -> Any:
    if x.size == 0:
        *batch, m, n = x.shape
        k, rows = min(m, n), np.broadcast_to(np.arange(m), (*batch, m))
        return rows, np.zeros((*batch, m, k), x.dtype), np.zeros((*batch, k, n), x.dtype)
    place, lower, upper = scipy("linalg").lu(x, p_indices=True, check_finite=False)
    return np.argsort(place, axis=-1), lower, upper


def _lu_jvp(n: Node, ts: Tangents) -> tuple[None, Value, Value] | None:
    """With C = L^-1 dA[perm] U^-1: dL is L times its strict lower triangle, dU the rest times U."""
    (t,), (perm, lower, upper) = ts, n.results
    if t is None:
        return None
    size = t.shape[-1]
    if same(t.shape[-2], size) is not True:
        raise RuleError(f"lu has no derivative for {t.type}; it needs a square matrix")
    columns = iota((size, size), 1)
    moved = matmul(cast_to(eq(expand_dims(perm, -1), columns), t.dtype), t)
    inner = _divide_right(triangular_solve(lower, moved, unit_diagonal=True), upper)
    return None, matmul(lower, tril(inner, -1)), matmul(triu(inner), upper)


@define(
    infer=_lu_types, call="lu", kinds=FLOATS, multiple=True, numpy=_lu, jvp=_lu_jvp, batch=leading,
    small=small_matrices.lu,
    samples=(
        Sample(well_conditioned(3, 3)[::-1]), Sample(well_conditioned(2, 2, 2)),
        Sample(np.zeros((0, 0))), Sample(np.zeros((0, 2, 2))),
    ),
)  # fmt: skip
def lu(x: ArrayLike) -> tuple[Value, ...]:
    """(perm, L, U): rows perm of x are L @ U, with ones on the diagonal of L and pivots by size."""
    return lu.bind_many(as_matrix("lu", x))


# Hermitian eigenvalues --------------------------------------------------------------------------


def _eigh_types(types: Types, p: Params) -> list[TensorType]:
    t = types[0]
    return [TensorType(t.dtype.real, t.shape[:-1]), t]


def _eigh(x: Any, generic: bool) -> Any:
    w, v = np.linalg.eigh(_hermitian(x))
    return w, generic_eigenvectors(w, v) if generic else v


def reciprocal_apart(x: Value, same: Value) -> Value:
    """1 / x, and 0 where `same` holds."""
    return where(same, 0, reciprocal(where(same, 1, x)))


def pairs_equal(ids: Value) -> Value:
    """Whether i and j are in one cluster, at (i, j)."""
    return eq(expand_dims(ids, -1), expand_dims(ids, -2))


def eigh_tangents(w: Value, ids: Value, inner: Value) -> tuple[Value, Value]:
    """dw and V^H dV from V^H dA V: vectors of one cluster do not turn into each other."""
    turn = mul(inner, reciprocal_apart(differences(w), pairs_equal(ids)))
    return real(diagonal(inner)), turn


# Its derivative is in transform/spectral.py, since it may choose other vectors.
@define(
    infer=_eigh_types, call="eigh", kinds=FLOATS, multiple=True, samples=_SQUARE, batch=leading,
    numpy=hosted("eigh", DIVERGED, _eigh),
)  # fmt: skip
def eigh(x: ArrayLike) -> tuple[Value, ...]:
    """(w, V): ascending eigenvalues and orthonormal eigenvectors of the Hermitian part of x."""
    return eigh.bind_many(square_matrix("eigh", x), generic=False)


def _eigvalsh_jvp(n: Node, ts: Tangents) -> Value | None:
    (t,) = ts
    if t is None:
        return None
    _, v = eigh(n.operands[0])
    return real(sum(mul(conj(v), matmul(hermitian_part(t), v)), -2))


@define(
    signature="... n! n! -> ... n!", call="eigvalsh", kinds=FLOATS, jvp=_eigvalsh_jvp,
    result="real", samples=_SQUARE,
    numpy=hosted("eigvalsh", DIVERGED, lambda x: np.linalg.eigvalsh(_hermitian(x))),
)  # fmt: skip
def eigvalsh(x: ArrayLike) -> Value:
    """The eigenvalues of the Hermitian part of x, ascending."""
    return eigvalsh.bind(square_matrix("eigvalsh", x))


# General eigenvalues ----------------------------------------------------------------------------


def _eig_types(types: Types, p: Params) -> list[TensorType]:
    t = types[0].with_dtype(complex_of(types[0].dtype))
    return [t.with_shape(t.shape[:-1]), t]


def _eig_jvp(n: Node, ts: Tangents) -> tuple[Value, Value] | None:
    """dw = diag(V^-1 dA V); eigenvectors keep length 1 and turn by no phase."""
    (t,), (w, v) = ts, n.results
    if t is None:
        return None
    inner = solve(v, matmul(cast_to(t, v.dtype), v))
    moved = matmul(v, mul(inner, reciprocal_or_zero(differences(w))))
    longer = real(sum(mul(conj(v), moved), -2, keepdims=True))
    return diagonal(inner), sub(moved, mul(v, longer))


# Real eigenvalues, so that eigenvectors have no phase that LAPACK could choose anew.
_EIG = (
    Sample(positive_definite(3, 3) * np.array([1.0, 2.0, 3.0])), Sample(positive_definite(2, 2, 2)),
    Sample(np.full((1, 1), 2.0)),
    Sample(np.zeros((0, 0))), Sample(np.zeros((0, 2, 2))),
)  # fmt: skip


@define(
    infer=_eig_types, call="eig", kinds=FLOATS, multiple=True, jvp=_eig_jvp, samples=_EIG,
    batch=leading,
    numpy=hosted("eig", DIVERGED, np.linalg.eig),
)  # fmt: skip
def eig(x: ArrayLike) -> tuple[Value, ...]:
    """(w, V): complex eigenvalues, in no order, and eigenvectors of length 1 as columns of V."""
    return eig.bind_many(square_matrix("eig", x))


def _eigvals_jvp(n: Node, ts: Tangents) -> Value | None:
    (t,) = ts
    if t is None:
        return None
    _, v = eig(n.operands[0])
    return diagonal(solve(v, matmul(cast_to(t, v.dtype), v)))


@define(
    signature="... n! n! -> ... n!", call="eigvals", kinds=FLOATS, jvp=_eigvals_jvp, samples=_EIG,
    result=lambda types, p: complex_of(types[0].dtype),
    numpy=hosted("eigvals", DIVERGED, np.linalg.eigvals),
)  # fmt: skip
def eigvals(x: ArrayLike) -> Value:
    """The complex eigenvalues, in no order."""
    return eigvals.bind(square_matrix("eigvals", x))


# Singular values --------------------------------------------------------------------------------


def _svd_types(types: Types, p: Params) -> list[TensorType]:
    t = types[0]
    *batch, m, n = t.shape
    k = smaller(m, n)
    left, right = (m, n) if p["full_matrices"] else (k, k)
    return [
        t.with_shape((*batch, m, left)),
        TensorType(t.dtype.real, (*batch, k)),
        t.with_shape((*batch, right, n)),
    ]


def _svd(x: Any, full_matrices: bool, generic: bool) -> Any:
    u, s, vh = np.linalg.svd(x, full_matrices)
    return generic_singular_vectors(u, s, vh) if generic else (u, s, vh)


def svd_tangents(s: Value, ids: Value, inner: Value) -> tuple[Value, Value, Value]:
    """ds, X = U^H dU and Y = V^H dV from P = U^H dA V.

    X + Y = (P + P^H) / (s_j - s_i) and X - Y = (P - P^H) / (s_i + s_j), so that U @ Vh moves smoothly
    where singular values are equal.
    """
    null = eq(ids, NULL)
    both = logical_and(expand_dims(null, -1), expand_dims(null, -2))
    total = add(expand_dims(s, -2), expand_dims(s, -1))
    even = mul(add(inner, adjoint(inner)), reciprocal_apart(differences(s), pairs_equal(ids)))
    odd = mul(sub(inner, adjoint(inner)), reciprocal_apart(total, both))
    return real(diagonal(inner)), mul(add(even, odd), 0.5), mul(sub(even, odd), 0.5)


# Its derivative is in transform/spectral.py, since it may choose other vectors.
@define(
    infer=_svd_types, call="svd", kinds=FLOATS, multiple=True, batch=leading,
    numpy=hosted("svd", DIVERGED, _svd),
    samples=(
        *(Sample(*s.operands, full_matrices=False) for s in _TALL),
        Sample(well_conditioned(2, 4), full_matrices=False), Sample(well_conditioned(3, 3)),
    ),
)  # fmt: skip
def svd(x: ArrayLike, full_matrices: bool = True) -> tuple[Value, ...]:
    """(U, S, Vh) with U @ diag(S) @ Vh = x, S descending; U and Vh are square when full."""
    return svd.bind_many(as_matrix("svd", x), full_matrices=bool(full_matrices), generic=False)


def _svdvals_types(types: Types, p: Params) -> list[TensorType]:
    *batch, m, n = types[0].shape
    return [TensorType(types[0].dtype.real, (*batch, smaller(m, n)))]


def _svdvals_jvp(n: Node, ts: Tangents) -> Value | None:
    (t,) = ts
    if t is None:
        return None
    u, s, vh = svd(n.operands[0], full_matrices=False)
    null = eq(clusters(s, rtol(s), True), NULL)  # |x| at 0: the shortest slope
    return where(null, 0, real(sum(mul(conj(u), matmul(t, adjoint(vh))), -2)))


def rtol(w: Value) -> float:
    """Up to which distance, relative to the largest and for each of them, values count as equal."""
    finfo: Any = ml_dtypes.finfo
    return 4 * float(finfo(w.dtype.real.np).eps)


@define(
    infer=_svdvals_types, call="svdvals", kinds=FLOATS, jvp=_svdvals_jvp, samples=_TALL,
    batch=leading,
    numpy=hosted("svdvals", DIVERGED, lambda x: np.linalg.svd(x, compute_uv=False)),
)  # fmt: skip
def svdvals(x: ArrayLike) -> Value:
    """The singular values, descending."""
    return svdvals.bind(as_matrix("svdvals", x))
