"""Functions of matrices: determinants, pseudoinverse, exponential, powers, ranks and norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tessera.core.constraints import same, unify
from tessera.core.dims import Size, larger
from tessera.core.dtype import DType
from tessera.core.errors import OperandError, ShapeError
from tessera.core.host import scipy
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops import small_matrices
from tessera.ops.arrange import eye
from tessera.ops.batching import leading
from tessera.ops.contraction import matmul
from tessera.ops.define import (
    FLOATS,
    ArrayLike,
    AxisLike,
    as_value,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    meet,
    public,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import add, conj, gt, mul, neg, real, reciprocal, sub, where
from tessera.ops.factor import DIVERGED, svd, svdvals
from tessera.ops.matrix import Tangents, adjoint, as_matrix, hosted, square_matrix, trace
from tessera.ops.reduction import count_nonzero, max, min, norm, sum
from tessera.ops.shape import concat, expand_dims, matrix_transpose, slice_, squeeze
from tessera.ops.solve import inv, solve, well_conditioned

# Determinants -----------------------------------------------------------------------------------


def _others_product(s: Any) -> Any:
    """For each element of the last axis the product of the others."""
    one = np.ones_like(s[..., :1])
    before = np.cumprod(np.concatenate([one, s[..., :-1]], -1), -1)
    after = np.cumprod(np.concatenate([one, s[..., :0:-1]], -1), -1)
    return before * after[..., ::-1]


def _one_by_one(f: Callable[..., Any]) -> Callable[..., Any]:
    """f on each matrix alone: how NumPy rounds a complex product depends on its place in the array."""

    def run(*xs: Any) -> Any:
        if xs[0].ndim == 2:
            return f(*xs)
        out = np.empty_like(xs[0])
        for i in np.ndindex(xs[0].shape[:-2]):
            out[i] = f(*(x[i].copy() for x in xs))
        return out

    return run


def _adjugate(x: Any) -> Any:
    """By the singular values, since a singular matrix has an adjugate but no inverse."""
    u, s, v, phase = _turned(x)
    return phase * ((v * _others_product(s)[..., None, :]) @ u)


def _turned(x: Any) -> Any:
    """adj x = phase V adj(S) U' for x = U S V': V and U', the singular values and the phase."""
    u, s, vh = np.linalg.svd(x)
    phase = np.linalg.det(u) * np.linalg.det(vh)
    left, right = (np.swapaxes(m.conj(), -1, -2) for m in (vh, u))
    return right, s, left, phase[..., None, None]


def _adjugate_slope(x: Any, t: Any) -> Any:
    """With M = U' t V the change of adj S is q_ij (delta_ij tr M - M_ij), q_ij all values but two."""
    u, s, v, phase = _turned(x)
    m, eye = u @ t @ v, np.eye(x.shape[-1], dtype=bool)
    others = np.where(eye, 0, _others_product(np.where(eye, 1, s[..., None, :])))
    along = others @ np.diagonal(m, axis1=-2, axis2=-1)[..., None]
    return phase * (v @ (np.where(eye, along, 0) - others * m) @ u)


def _adjugate_slope_jvp(n: Node, ts: Tangents) -> Value | None:
    """d adj[t] = tr(X t) adj - X t adj for the inverse X, of which this is the change along dx."""
    (dx, dt), (x, t) = ts, n.operands
    straight = None if dt is None else adjugate_slope.bind(x, dt)
    if dx is None:
        return straight
    moved, turned, slope = solve(x, t), solve(x, dx), adjugate_slope.bind(x, dx)
    both, whole = matmul(turned, moved), adjugate(x)
    bent = sub(mul(_as_matrices(trace(moved)), slope), matmul(moved, slope))
    bent = add(bent, sub(matmul(both, whole), mul(_as_matrices(trace(both)), whole)))
    return bent if straight is None else add(bent, straight)


@define(
    signature="... n! n!, ... n! n! -> ... n! n!", call="adjugate_slope", kinds=FLOATS, linear=(1,),
    numpy=hosted("adjugate_slope", DIVERGED, _one_by_one(_adjugate_slope)), jvp=_adjugate_slope_jvp,
    # The second derivative of the determinant, tr(d adj[s] t), is symmetric in s and t.
    transpose=lambda n, ct, k: matrix_transpose(
        adjugate_slope.bind(n.operands[0], matrix_transpose(ct))
    ),
)  # fmt: skip
def adjugate_slope(x: Value, t: Value) -> Value:
    """How the adjugate of x changes along t, singular x too."""
    return adjugate_slope.bind(x, t)


def _adjugate_jvp(n: Node, ts: Tangents) -> Value | None:
    (t,) = ts
    return None if t is None else adjugate_slope.bind(n.operands[0], t)


def _as_matrices(x: Value) -> Value:
    return expand_dims(x, (-2, -1))


@define(
    signature="... n! n! -> ... n! n!", call="adjugate", kinds=FLOATS, jvp=_adjugate_jvp,
    numpy=hosted("adjugate", DIVERGED, _one_by_one(_adjugate)),
    samples=(
        Sample(well_conditioned(3, 3)), Sample(well_conditioned(2, 2, 2)), Sample(np.ones((1, 1))),
        Sample(np.zeros((0, 0))),
    ),
)  # fmt: skip
def adjugate(x: ArrayLike) -> Value:
    """The transposed cofactors: x @ adjugate(x) = det(x) times the identity, singular x too."""
    return adjugate.bind(square_matrix("adjugate", x))


def _det_jvp(n: Node, ts: Tangents) -> Value | None:
    (t,) = ts
    if t is None:
        return None
    return sum(mul(matrix_transpose(adjugate(n.operands[0])), t), (-2, -1))


@define(
    signature="... n! n! -> ...", call="det", kinds=FLOATS, numpy=np.linalg.det, jvp=_det_jvp,
    small=small_matrices.det,
    samples=(
        Sample((3, 3)), Sample((2, 2, 2)), Sample((1, 1)), Sample((0, 0)), Sample((0, 2, 2)),
        Sample(np.ones((3, 3))),
    ),
)  # fmt: skip
def det(x: ArrayLike) -> Value:
    """The determinant of square matrices."""
    return det.bind(square_matrix("det", x))


def _slogdet_types(types: Types, p: Params) -> list[TensorType]:
    t = types[0].with_shape(types[0].shape[:-2])
    return [t, t.with_dtype(t.dtype.real)]


def _slogdet_jvp(n: Node, ts: Tangents) -> tuple[Value | None, Value] | None:
    """d log det = tr(A^-1 dA): its real part moves the logarithm, the imaginary one the phase."""
    (t,), (sign, _) = ts, n.results
    if t is None:
        return None
    change = trace(solve(n.operands[0], t))
    size = real(change)
    turn = mul(sign, sub(change, size)) if sign.dtype.kind == "c" else None
    return turn, size


@define(
    infer=_slogdet_types, call="slogdet", kinds=FLOATS, multiple=True, numpy=np.linalg.slogdet,
    jvp=_slogdet_jvp, batch=leading, small=small_matrices.slogdet,
    samples=(
        Sample(well_conditioned(3, 3)), Sample(-well_conditioned(2, 3, 3)), Sample(-np.ones((1, 1))),
        Sample(np.zeros((0, 0))),
    ),
)  # fmt: skip
def slogdet(x: ArrayLike) -> tuple[Value, ...]:
    """(sign, logabsdet) with det(x) = sign * exp(logabsdet), without overflow."""
    return slogdet.bind_many(square_matrix("slogdet", x))


# Pseudoinverse, least squares, rank -------------------------------------------------------------


def epsilon(dtype: DType) -> float:
    """The distance from 1 to the next number of a dtype."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype.real.np).eps)


def _rtol(op: str, x: Value, rtol: ArrayLike) -> Value:
    """A relative threshold for the singular values of each matrix: max(rows, columns) * eps."""
    if isinstance(rtol, int | float):
        return full_of(x.shape[:-2], float(rtol), x.dtype.real)
    if rtol is not None:
        given = cast_to(floating(as_value(rtol, op)), x.dtype.real)
        return broadcast(given, x.shape[:-2])
    size: Size = larger(*x.shape[-2:])
    return mul(full_of(x.shape[:-2], epsilon(x.dtype), x.dtype.real), size)


def _above(s: Value, rtol: Value) -> Value:
    """Which singular values count: those above rtol times the largest."""
    if same(s.shape[-1], 0) is True:
        return gt(s, 0)
    largest = slice_(s, (0,) * s.ndim, (*s.shape[:-1], 1))
    return gt(s, mul(largest, expand_dims(rtol, -1)))


def _pinv(x: Value, rtol: Value) -> Value:
    u, s, vh = svd(x, full_matrices=False)
    keep = _above(s, rtol)
    inverse = where(keep, reciprocal(where(keep, s, 1)), 0)
    return matmul(mul(adjoint(vh), expand_dims(inverse, -2)), adjoint(u))


def _pinv_jvp(n: Node, ts: Tangents) -> Value | None:
    """Golub and Pereyra (1973): -P dA P + P P^H dA^H (I - A P) + (I - P A) dA^H P^H P."""
    a, p, t = n.operands[0], n.results[0], ts[0]
    if t is None:
        return None
    ph, th = adjoint(p), adjoint(t)
    right, left = matmul(matmul(p, ph), th), matmul(th, matmul(ph, p))
    outside = sub(right, matmul(matmul(right, a), p))
    inside = sub(left, matmul(p, matmul(a, left)))
    return add(neg(matmul(matmul(p, t), p)), add(outside, inside))


@define(
    infer=lambda types, p: [
        types[0].with_shape((*types[0].shape[:-2], *types[0].shape[:-3:-1]))
    ],
    kinds=(FLOATS, "f"), decompose=_pinv, jvp=_pinv_jvp, batch=leading,
    numpy=hosted("pinv", DIVERGED, lambda x, rtol: np.linalg.pinv(x, rtol=rtol)),
    samples=(
        Sample(well_conditioned(4, 3)), Sample(well_conditioned(2, 2, 3)), Sample(np.ones((1, 1))),
        Sample(np.ones((3, 2)), rtol=0.1), Sample(np.zeros((0, 3))), Sample(np.zeros((2, 3, 0))),
    ),
)  # fmt: skip
def pinv(x: ArrayLike, rtol: ArrayLike = None) -> Value:
    """The pseudoinverse; singular values up to rtol times the largest count as zero."""
    v = as_matrix("pinv", x)
    return pinv.bind(v, _rtol("pinv", v, rtol))


class LeastSquares(NamedTuple):
    """What lstsq finds."""

    solution: Value
    residuals: Value
    rank: Value
    singular_values: Value


@public
def lstsq(a: ArrayLike, b: ArrayLike, rtol: ArrayLike = None) -> LeastSquares:
    """The shortest x among those that make a @ x - b shortest; b is a vector or matrices.

    With it come the sums of the squares of a @ x - b, the rank and the singular values of a.
    """
    x, y = as_matrix("lstsq", a), floating(as_value(b, "lstsq"))
    if y.ndim == 0:
        raise ShapeError(
            f"lstsq: the right-hand side {y.type} is a scalar; pass a vector or matrix"
        )
    is_vector = y.ndim == 1
    y = expand_dims(y, -1) if is_vector else y
    if not unify(x.shape[-2], y.shape[-2], "lstsq: the rows of operands 0 and 1"):
        raise ShapeError(
            f"lstsq: the matrix {x.type} has {x.shape[-2]} rows but the right-hand side {y.type} "
            f"has {y.shape[-2]}"
        )
    out = matmul(pinv(x, rtol), y)
    left = sub(matmul(x, out), y)
    squares = sum(real(mul(left, conj(left))), -2)
    values = svdvals(x)
    return LeastSquares(
        squeeze(out, -1) if is_vector else out,
        squeeze(squares, -1) if is_vector else squares,
        count_nonzero(_above(values, _rtol("lstsq", x, rtol)), -1),
        values,
    )


@public
def matrix_rank(x: ArrayLike, *, rtol: ArrayLike = None, tol: ArrayLike = None) -> Value:
    """How many singular values are above rtol times the largest, or above tol."""
    v = as_matrix("matrix_rank", x)
    if tol is not None:
        if rtol is not None:
            raise OperandError("matrix_rank: got tol and rtol, expected one of them")
        return count_nonzero(gt(svdvals(v), expand_dims(as_value(tol, "matrix_rank"), -1)), -1)
    return count_nonzero(_above(svdvals(v), _rtol("matrix_rank", v, rtol)), -1)


# Exponential and powers -------------------------------------------------------------------------


def _expm(x: Any) -> Any:
    return scipy("linalg").expm(x)


def _frechet(x: Any, e: Any) -> Any:
    """The upper right block of expm([[x, e], [0, x]])."""
    n = x.shape[-1]
    below = np.concatenate([np.zeros_like(x), x], -1)
    block = np.concatenate([np.concatenate([x, e], -1), below], -2)
    return _expm(block)[..., :n, n:]


def _frechet_jvp(n: Node, ts: Tangents) -> Value | None:
    """In x: the upper right block of the derivative at [[x, e], [0, x]] along [[dx, 0], [0, dx]]."""
    (x, e), (dx, de) = n.operands, ts
    along = None if de is None else expm_frechet(x, de)
    if dx is None:
        return along
    zero = full_of(x.shape, 0, x.dtype)
    size, last = x.shape[-1], x.ndim - 2
    whole = expm_frechet(_block(x, e, zero, x), _block(dx, zero, zero, dx))
    stop = (*x.shape[:-2], size, 2 * size)
    turned = slice_(whole, (*(0,) * last, 0, size), stop)
    return turned if along is None else add(along, turned)


def _block(a: Value, b: Value, c: Value, d: Value) -> Value:
    return concat([concat([a, b], -1), concat([c, d], -1)], -2)


@define(
    signature="... n! n!, ... n! n! -> ... n! n!", call="expm_frechet", kinds=FLOATS, linear=(1,),
    numpy=_frechet, jvp=_frechet_jvp,
    transpose=lambda n, ct, k: expm_frechet.bind(matrix_transpose(n.operands[0]), ct),
    samples=(Sample((3, 3), (3, 3)), Sample((2, 2, 2), (2, 2)), Sample((0, 0), (0, 0))),
)  # fmt: skip
def expm_frechet(x: ArrayLike, e: ArrayLike) -> Value:
    """The derivative of expm at x in the direction e."""
    a, b = square_matrix("expm_frechet", x), square_matrix("expm_frechet", e)
    return expm_frechet.bind(*meet("expm_frechet", (a, b)))


def _expm_jvp(n: Node, ts: Tangents) -> Value | None:
    (t,) = ts
    return None if t is None else expm_frechet.bind(n.operands[0], t)


@define(
    signature="... n! n! -> ... n! n!", call="expm", kinds=FLOATS, jvp=_expm_jvp,
    numpy=hosted("expm", DIVERGED, _expm),
    samples=(Sample((3, 3)), Sample((2, 2, 2)), Sample((1, 1)), Sample((0, 0)), Sample((0, 2, 2))),
)  # fmt: skip
def expm(x: ArrayLike) -> Value:
    """The exponential of square matrices: the sum of x**k / k! over k."""
    return expm.bind(square_matrix("expm", x))


@public
def matrix_power(x: ArrayLike, n: int) -> Value:
    """The product of n copies of a square matrix, or of its inverse when n is negative."""
    v = square_matrix("matrix_power", x)
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise OperandError(f"matrix_power: the power {n!r} is not an integer")
    power, k = (v, int(n)) if n >= 0 else (inv(v), -int(n))
    out: Value | None = None
    while k:
        if k % 2:
            out = power if out is None else matmul(out, power)
        k //= 2
        power = matmul(power, power) if k else power
    return broadcast(eye(v.shape[-1], dtype=v.dtype), v.shape) if out is None else out


# Norms ------------------------------------------------------------------------------------------

_BY_SINGULAR_VALUES = {"nuc": sum, 2: max, -2: min}
_BY_SUMS = {1: (max, -2), -1: (min, -2), float("inf"): (max, -1), float("-inf"): (min, -1)}


@public
def matrix_norm(x: ArrayLike, ord: Any = "fro", *, keepdims: bool = False) -> Value:
    """Matrix norm: fro, nuc, 2 and -2 by singular values, 1, -1, inf and -inf by absolute sums."""
    v = as_matrix("matrix_norm", x)
    if ord == "fro":
        out = norm(v, 2, (-2, -1))
    elif ord in _BY_SINGULAR_VALUES:
        out = _BY_SINGULAR_VALUES[ord](svdvals(v), -1)
    elif ord in _BY_SUMS:
        choose, axis = _BY_SUMS[ord]
        out = choose(sum(absolute(v), axis), -1)
    else:
        raise OperandError(
            f"matrix_norm: ord is {ord!r}, expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf"
        )
    return _as_matrices(out) if keepdims else out


@public
def vector_norm(
    x: ArrayLike, ord: float = 2, axis: AxisLike = None, keepdims: bool = False
) -> Value:
    """Norm of the elements over axes as one vector: (sum |x|**ord)**(1/ord)."""
    return norm(floating(as_value(x, "vector_norm")), ord, axis, keepdims)
