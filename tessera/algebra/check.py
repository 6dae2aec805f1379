"""check_flags: whether the numbers of an operator keep what its flags promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.algebra.apply import as_operator, dense_of
from tessera.algebra.operator import Operator, function
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import host_data

Matrix = np.ndarray[Any, Any]
Near = Callable[[Matrix, Matrix], bool]


def _gram(m: Matrix) -> Matrix:
    return m.conj().T @ m


def _is_square(m: Matrix) -> bool:
    return bool(m.shape[0] == m.shape[1])


def _eigenvalues_positive(m: Matrix, near: Near) -> bool:
    if not near(m, m.conj().T):
        return False
    w = np.linalg.eigvalsh((m + m.conj().T) / 2)
    return near(w, np.maximum(w, 0))


def _turned(m: Matrix) -> Matrix:
    """The matrix with every row and column turned by one."""
    return np.roll(m, (1, 1), (0, 1))


def _shifted(m: Matrix) -> Matrix:
    """The matrix with every element but those of the first row and column taken from the upper left."""
    out = m.copy()
    out[1:, 1:] = m[:-1, :-1]
    return out


def _is_permutation(m: Matrix) -> bool:
    ones = m == 1
    return bool(np.all(ones | (m == 0)) and np.all(ones.sum(0) == 1) and np.all(ones.sum(1) == 1))


def _is_invertible(m: Matrix) -> bool:
    s = np.linalg.svd(m, compute_uv=False)
    return bool(np.all(s > np.finfo(s.dtype).eps * np.max(s, initial=0.0)))


# Each flag as a question on the dense matrix; near(x, y) compares within the rounding of the dtype.
CHECKS: dict[str, Callable[[Matrix, Near], bool]] = {
    "real": lambda m, near: near(m, m.real),
    "unitary": lambda m, near: _is_square(m) and near(_gram(m), np.eye(len(m))),
    "orthogonal_columns": lambda m, near: near(_gram(m), np.eye(m.shape[1])),
    "self_adjoint": lambda m, near: _is_square(m) and near(m, m.conj().T),
    "skew_adjoint": lambda m, near: _is_square(m) and near(m, -m.conj().T),
    "symmetric": lambda m, near: _is_square(m) and near(m, m.T),
    "normal": lambda m, near: _is_square(m) and near(_gram(m), m @ m.conj().T),
    "positive": lambda m, near: _is_square(m) and _eigenvalues_positive(m, near),
    "invertible": lambda m, near: _is_square(m) and _is_invertible(m),
    "projector": lambda m, near: _is_square(m) and near(m @ m, m) and near(m, m.conj().T),
    "diagonal": lambda m, near: near(m, np.triu(np.tril(m))),
    "triangular_lower": lambda m, near: near(m, np.tril(m)),
    "triangular_upper": lambda m, near: near(m, np.triu(m)),
    "circulant": lambda m, near: _is_square(m) and near(m, _turned(m)),
    "toeplitz": lambda m, near: near(m, _shifted(m)),
    "permutation": lambda m, near: _is_square(m) and _is_permutation(m),
}


@function
def check_flags(a: Any, tolerance: float | None = None) -> tuple[str, ...]:
    """The flags that the numbers of an operator break, from its dense matrix; () when all hold."""
    found = as_operator("check_flags", a)
    v = dense_of(found)
    if v.storage is None:
        raise OperandError(f"check_flags: {found} is traced and has no numbers to look at")
    m = host_data(v)
    limit = 100 * np.finfo(m.dtype).eps * max(m.shape) if tolerance is None else tolerance
    least = max(_size_of_terms(found), float(np.finfo(m.dtype).tiny))

    def near(x: Matrix, y: Matrix) -> bool:
        size = max(float(np.max(np.abs(x), initial=0.0)), float(np.max(np.abs(y), initial=0.0)))
        return bool(np.all(np.abs(x - y) <= limit * max(size, least)))

    broken = [f for f in sorted(found.flags) if f in CHECKS and not CHECKS[f](m, near)]
    return (*broken, *_rank_broken(found, m))


def _size_of_terms(a: Operator) -> float:
    """The largest element of what a sum adds: what is left where terms cancel is their rounding."""
    if a.kind == "scale":
        by = a.static[0] if a.static else host_data(a.data[0])
        return float(np.max(np.abs(by), initial=0.0)) * _size_of_terms(a.parts[0])
    if a.kind == "plus":
        whole = (np.max(np.abs(host_data(dense_of(p))), initial=0.0) for p in a.parts)
        return max(*map(float, whole), *map(_size_of_terms, a.parts))
    return 0.0


def _rank_broken(a: Operator, m: Matrix) -> tuple[str, ...]:
    within = "low_rank" not in a.flags or np.linalg.matrix_rank(m) <= a.rank
    return () if within else ("low_rank",)
