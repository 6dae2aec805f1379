"""Systems of equations with three diagonals.

The op takes all diagonals with n elements: the one below starts, the one above ends, with an element
that is not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.host import scipy
from tessera.core.promotion import promote_all
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Sample
from tessera.ops.define import FLOATS, ArrayLike, as_value, cast_to, define, floating, full_of
from tessera.ops.elementwise import add, mul, sub
from tessera.ops.matrix import Tangents, hosted
from tessera.ops.shape import concat, expand_dims, slice_


def _solve(low: Any, main: Any, up: Any, b: Any) -> Any:
    """By LAPACK's elimination with row exchanges, one system of the batch at a time."""
    out = np.empty_like(b)
    n = main.shape[-1]
    for i in np.ndindex(main.shape[:-1]):
        if n == 1 and not np.all(main[i]):
            raise np.linalg.LinAlgError("zero")
        if n == 1:
            out[i] = b[i] / main[i][:, None]
        elif b[i].size:
            gtsv = scipy("linalg").get_lapack_funcs("gtsv", (main, b))
            *_, x, info = gtsv(low[i][1:], main[i], up[i][:-1], b[i])
            if info:
                raise np.linalg.LinAlgError(f"zero at {info}")
            out[i] = x
    return out


def _shifted(x: Value, by: int) -> Value:
    """x moved one place along its last axis, filled with zero."""
    *batch, n = x.shape
    zero, last = full_of((*batch, 1), 0, x.dtype), (*(0 for _ in batch),)
    if by > 0:
        return concat([zero, slice_(x, (*last, 0), (*batch, n - 1))], -1)
    return concat([slice_(x, (*last, 1), (*batch, n)), zero], -1)


def product(low: Value, main: Value, up: Value, x: Value) -> Value:
    """The matrix with these diagonals of n elements times columns."""
    *batch, n, k = x.shape
    zero, start = full_of((*batch, 1, k), 0, x.dtype), (*(0 for _ in batch),)
    above = concat([slice_(x, (*start, 1, 0), (*batch, n, k)), zero], -2)
    below = concat([zero, slice_(x, (*start, 0, 0), (*batch, n - 1, k))], -2)
    terms = [mul(expand_dims(d, -1), v) for d, v in ((main, x), (low, below), (up, above))]
    return add(add(terms[0], terms[1]), terms[2])


def _jvp(n: Node, ts: Tangents) -> Value | None:
    """A dx = db - dA x."""
    *diagonals, db = ts
    if all(t is None for t in ts):
        return None
    rest = db
    if any(t is not None for t in diagonals):
        filled = [full_of(v.shape, 0, v.dtype) if t is None else t
                  for v, t in zip(n.operands, diagonals, strict=False)]  # fmt: skip
        moved = product(filled[0], filled[1], filled[2], n.results[0])
        zero = full_of(moved.shape, 0, moved.dtype)
        rest = sub(zero if db is None else db, moved)
    assert rest is not None
    return tridiagonal_solve.bind(*n.operands[:3], rest)


def _transpose(n: Node, ct: Value, k: int) -> Value:
    low, main, up, _ = n.operands
    return tridiagonal_solve.bind(_shifted(up, 1), main, _shifted(low, -1), ct)


@define(
    signature="... n!, ... n!, ... n!, ... n! k -> ... n! k", call="tridiagonal_solve", kinds=FLOATS,
    linear=(3,), jvp=_jvp, transpose=_transpose,
    numpy=hosted("tridiagonal_solve", "is below the diagonal of a singular matrix", _solve),
    samples=(
        Sample(np.array([0.0, 1.0, -1.0]), np.array([4.0, 5.0, 3.0]), np.array([0.5, 2.0, 0.0]), (3, 2)),
        Sample(np.array([0.0]), np.array([2.0]), np.array([0.0]), (1, 1)),
    ),
)  # fmt: skip
def tridiagonal_solve(low: ArrayLike, main: ArrayLike, up: ArrayLike, b: ArrayLike) -> Value:
    """The x of a system with three diagonals, each of n elements, for the columns of b."""
    values = [floating(as_value(v, "tridiagonal_solve")) for v in (low, main, up, b)]
    dtype = promote_all([v.dtype for v in values])
    return tridiagonal_solve.bind(*(cast_to(v, dtype) for v in values))


def solve_diagonals(low: Value, main: Value, up: Value, b: Value) -> Value:
    """The x of a system whose matrix has n - 1 elements below, n on and n - 1 above the diagonal."""
    return tridiagonal_solve(_padded(low, 1), main, _padded(up, -1), b)


def _padded(x: Value, side: int) -> Value:
    zero = full_of((1,), 0, x.dtype)
    return concat([zero, x] if side > 0 else [x, zero], 0)
