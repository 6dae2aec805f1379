"""Linear systems: solve, triangular_solve, inv."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.constraints import unify
from tessera.core.errors import ShapeError
from tessera.core.host import scipy
from tessera.core.promotion import promote_all
from tessera.core.signature import broadcast_shapes
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Sample
from tessera.ops import small_matrices
from tessera.ops.arrange import tril, triu
from tessera.ops.contraction import matmul
from tessera.ops.define import FLOATS, ArrayLike, as_value, broadcast, cast_to, define, floating
from tessera.ops.elementwise import neg, sub
from tessera.ops.matrix import Tangents, hosted, square_matrix
from tessera.ops.shape import expand_dims, matrix_transpose, squeeze

_ZERO = "has a zero on its diagonal, so it is singular"
_NO_INVERSE = "is singular; use op.pinv for the pseudoinverse"
SINGULAR = "is singular; use op.lstsq or op.pinv for the solution of least squares"


def well_conditioned(*shape: int) -> Any:
    """A stack of matrices for samples: scattered elements and a heavy, uneven diagonal."""
    scattered = np.sin(7.0 * np.arange(math.prod(shape))).reshape(shape)
    return scattered + np.eye(shape[-2], shape[-1]) * np.arange(3.0, 3.0 + shape[-1])


def _system(op: str, a: ArrayLike, b: ArrayLike) -> tuple[Value, Value, bool]:
    """Matrix and right-hand sides of one dtype and batch, and whether b was a single vector."""
    x, y = square_matrix(op, a), floating(as_value(b, op))
    if y.ndim == 0:
        raise ShapeError(f"{op}: the right-hand side {y.type} is a scalar; pass a vector or matrix")
    is_vector = y.ndim == 1
    y = expand_dims(y, -1) if is_vector else y
    if not unify(x.shape[-1], y.shape[-2], f"{op}: the rows of operands 0 and 1"):
        raise ShapeError(
            f"{op}: the matrix {x.type} has {x.shape[-1]} rows but the right-hand side {y.type} "
            f"has {y.shape[-2]}"
        )
    dtype = promote_all([x.dtype, y.dtype])
    x, y = cast_to(x, dtype), cast_to(y, dtype)
    batch = broadcast_shapes(op, [TensorType(v.dtype, v.shape[:-2]) for v in (x, y)])
    x, y = (broadcast(v, (*batch, *v.shape[-2:])) for v in (x, y))
    return x, y, is_vector


def _solve_jvp(n: Node, ts: Tangents) -> Value | None:
    """A x = b gives A dx = db - dA x."""
    (da, db), x = ts, n.results[0]
    if da is None:
        return None if db is None else solve.bind(n.operands[0], db)
    moved = matmul(da, x)
    return solve.bind(n.operands[0], neg(moved) if db is None else sub(db, moved))


@define(
    signature="... n! n!, ... n! k -> ... n! k", call="solve", kinds=FLOATS, linear=(1,),
    numpy=hosted("solve", SINGULAR, np.linalg.solve), small=small_matrices.solve(SINGULAR), jvp=_solve_jvp,
    transpose=lambda n, ct, k: solve.bind(matrix_transpose(n.operands[0]), ct),
    samples=(
        Sample(well_conditioned(3, 3), (3,)), Sample(well_conditioned(2, 3, 3), (3, 2)),
        Sample(well_conditioned(1, 1), (1, 1)), Sample(np.zeros((0, 0)), (0, 2)),
    ),
)  # fmt: skip
def solve(a: ArrayLike, b: ArrayLike) -> Value:
    """The x with a @ x = b; b is one vector when it has one axis, else a stack of matrices."""
    x, y, is_vector = _system("solve", a, b)
    out = solve.bind(x, y)
    return squeeze(out, -1) if is_vector else out


def _substitute(a: Any, b: Any, lower: bool, transpose: bool, unit_diagonal: bool) -> Any:
    """Forward or backward substitution by LAPACK, one matrix of the batch at a time."""
    out = np.empty(b.shape, b.dtype)
    if b.size == 0:
        return out
    trtrs = scipy("linalg").get_lapack_funcs("trtrs", (a, b))
    for i in np.ndindex(a.shape[:-2]):
        out[i], info = trtrs(a[i], b[i], lower=lower, trans=transpose, unitdiag=unit_diagonal)
        if info:
            raise np.linalg.LinAlgError(f"zero at {info}")
    return out


def _triangular_jvp(n: Node, ts: Tangents) -> Value | None:
    (da, db), x, p = ts, n.results[0], n.params
    if da is None:
        return None if db is None else triangular_solve.bind(n.operands[0], db, **p)
    strict = 1 if p["unit_diagonal"] else 0
    part = tril(da, -strict) if p["lower"] else triu(da, strict)
    moved = matmul(matrix_transpose(part) if p["transpose"] else part, x)
    rest = neg(moved) if db is None else sub(db, moved)
    return triangular_solve.bind(n.operands[0], rest, **p)


@define(
    signature="... n! n!, ... n! k -> ... n! k", call="triangular_solve", kinds=FLOATS, linear=(1,),
    numpy=hosted("triangular_solve", _ZERO, _substitute), small=small_matrices.triangular_solve(_ZERO),
    jvp=_triangular_jvp,
    transpose=lambda n, ct, k: triangular_solve.bind(
        n.operands[0], ct, **{**n.params, "transpose": not n.params["transpose"]}
    ),
    samples=(
        Sample(well_conditioned(3, 3), (3,)), Sample(well_conditioned(3, 3), (2, 3, 2), lower=False),
        Sample(well_conditioned(2, 3, 3), (2, 3, 1), transpose=True, unit_diagonal=True),
        Sample(np.zeros((0, 0)), (0, 2)), Sample(np.zeros((0, 2, 2)), (0, 2, 1)),
    ),
)  # fmt: skip
def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = True,
    transpose: bool = False,
    unit_diagonal: bool = False,
) -> Value:
    """The x with a @ x = b, or a.mT @ x = b, for the lower or upper triangle of a."""
    x, y, is_vector = _system("triangular_solve", a, b)
    out = triangular_solve.bind(
        x, y, lower=bool(lower), transpose=bool(transpose), unit_diagonal=bool(unit_diagonal)
    )
    return squeeze(out, -1) if is_vector else out


def _inv_jvp(n: Node, ts: Tangents) -> Value | None:
    (t,), y = ts, n.results[0]
    return None if t is None else neg(matmul(matmul(y, t), y))


@define(
    signature="... n! n! -> ... n! n!", call="inv", kinds=FLOATS, jvp=_inv_jvp,
    numpy=hosted("inv", _NO_INVERSE, np.linalg.inv), small=small_matrices.inv(_NO_INVERSE),
    samples=(
        Sample(well_conditioned(3, 3)), Sample(well_conditioned(2, 2, 2)),
        Sample(well_conditioned(1, 1)), Sample(np.zeros((0, 0))), Sample(np.zeros((0, 2, 2))),
    ),
)  # fmt: skip
def inv(x: ArrayLike) -> Value:
    """The inverse of square matrices."""
    return inv.bind(square_matrix("inv", x))
