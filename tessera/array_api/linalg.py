"""Linear algebra: the linalg extension of the standard."""

from __future__ import annotations

from typing import NamedTuple

from tessera.core.dtype import DType
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.lang.op import (
    cholesky,
    cross,
    det,
    diagonal,
    eigvalsh,
    inv,
    matmul,
    matrix_norm,
    matrix_power,
    matrix_rank,
    matrix_transpose,
    outer,
    pinv,
    solve,
    svdvals,
    tensordot,
    vecdot,
    vector_norm,
)
from tessera.ops.define import cast_to, public

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class Eigh(NamedTuple):
    """x @ eigenvectors = eigenvectors * eigenvalues."""

    eigenvalues: Value
    eigenvectors: Value


class QR(NamedTuple):
    """x = Q @ R."""

    Q: Value
    R: Value


class Slogdet(NamedTuple):
    """det(x) = sign * exp(logabsdet)."""

    sign: Value
    logabsdet: Value


class SVD(NamedTuple):
    """x = U @ diag(S) @ Vh."""

    U: Value
    S: Value
    Vh: Value


@public
def eigh(x: Value, /) -> Eigh:
    """Eigenvalues, in ascending order, and eigenvectors of hermitian matrices."""
    return Eigh(*op.eigh(x))


@public
def qr(x: Value, /, *, mode: str = "reduced") -> QR:
    """A matrix of orthonormal columns times an upper triangular one."""
    return QR(*op.qr(x, mode))


@public
def slogdet(x: Value, /) -> Slogdet:
    """Sign and logarithm of the absolute value of the determinant."""
    return Slogdet(*op.slogdet(x))


@public
def svd(x: Value, /, *, full_matrices: bool = True) -> SVD:
    """Singular values, in descending order, between two matrices of orthonormal vectors."""
    return SVD(*op.svd(x, full_matrices))


@public
def trace(x: Value, /, *, offset: int = 0, dtype: DType | None = None) -> Value:
    """Sum along a diagonal, in 64 bits for integers unless a dtype is given."""
    if dtype is None:
        return op.trace(x, offset)
    return cast_to(op.trace(cast_to(x, dtype), offset), dtype)


def __dir__() -> list[str]:
    return sorted(__all__)
