"""What spectral decompositions leave open: bases of equal eigenvalues, and the phases of vectors.

Eigenvalues that rounding cannot tell apart form a cluster.  Any orthonormal basis of its vectors is as
good as any other, so only functions that do not depend on the basis have derivatives.  Under
differentiation the basis is one in general position.  There a smooth function whose eigenvalues and
vectors are pulled back apart is recognised: its cotangents of the values of a cluster are equal and the
cotangent of a turn inside of the cluster vanishes.  `same_in_every_gauge` checks both.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.dtype import i64
from tessera.core.errors import NumericalError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Types
from tessera.ops.batching import leading
from tessera.ops.contraction import matmul
from tessera.ops.cutting import vectors
from tessera.ops.define import define
from tessera.ops.matrix import Tangents, adjoint

NULL = -1  # the cluster of the singular values that are zero

# Clusters ---------------------------------------------------------------------------------------


def _clusters(w: Any, rtol: float, null: bool) -> Any:
    out = np.zeros(w.shape, np.int64)
    if w.size == 0:
        return out
    most = rtol * w.shape[-1] * np.abs(w).max(-1, keepdims=True)
    if null:  # singular values, which descend to the zero after the last of them
        w = np.concatenate([w, np.zeros_like(w[..., :1])], -1)
    apart = ~(np.abs(np.diff(w, axis=-1)) <= most)
    out[..., 1:] = np.cumsum(apart[..., : out.shape[-1] - 1], -1)
    if null:
        chained = ~np.flip(np.maximum.accumulate(np.flip(apart, -1), -1), -1)
        out[chained] = NULL
    return out


@define(
    infer=lambda types, p: [types[0].with_dtype(i64)], kinds="f", call="clusters", numpy=_clusters,
    batch=leading, factors=vectors,
)  # fmt: skip
def clusters(w: Value, rtol: float, null: bool) -> Value:
    """Numbers that tell which of the sorted values w are equal but for rounding, NULL for zeros."""
    return clusters.bind(w, rtol=rtol, null=null)


@cache
def _basis(size: int, complex_: bool) -> Any:
    """A fixed orthonormal basis in general position."""
    rng = np.random.default_rng([size, complex_])
    x = rng.normal(size=(size, size))
    return np.linalg.qr(x + 1j * rng.normal(size=(size, size)) if complex_ else x)[0]


def _spans(ids: Any) -> list[tuple[int, slice]]:
    """Clusters of one matrix: their numbers and where they lie."""
    edges = [0, *(np.flatnonzero(np.diff(ids)) + 1), len(ids)]
    return [(int(ids[a]), slice(a, b)) for a, b in pairwise(edges) if b > a]


def generic_eigenvectors(w: Any, v: Any) -> Any:
    """Eigenvectors with those of each cluster in general position."""
    v = v.copy()
    ids = _clusters(w, 4 * np.finfo(w.dtype).eps, False)
    for at in np.ndindex(w.shape[:-1]):
        for _, span in _spans(ids[at]):
            size = span.stop - span.start
            if size > 1:
                v[at][:, span] = v[at][:, span] @ _basis(size, v.dtype.kind == "c")
    return v


def generic_singular_vectors(u: Any, s: Any, vh: Any) -> Any:
    """Singular vectors with those of each cluster in general position, apart for zeros."""
    u, vh = u.copy(), vh.copy()
    ids = _clusters(s, 4 * np.finfo(s.dtype).eps, True)
    for at in np.ndindex(s.shape[:-1]):
        for k, span in _spans(ids[at]):
            size = span.stop - span.start
            if k == NULL:
                u[at][:, span.start :] = _null_basis(u[at], span.start, u.shape[-1])
                vh[at][span.start :] = (
                    _null_basis(vh[at].conj().T, span.start, vh.shape[-2]).conj().T
                )
            elif size > 1:
                turn = _basis(size, u.dtype.kind == "c")
                u[at][:, span] = u[at][:, span] @ turn
                vh[at][span] = turn.conj().T @ vh[at][span]
    return u, s, vh


def _null_basis(x: Any, rank: int, stop: int) -> Any:
    """Columns rank to stop, in general position orthogonal to the columns before."""
    rest = np.linalg.qr(x[:, :rank], "complete")[0][:, rank:]
    # Of another size on each side, so that left and right are not turned alike.
    turned = rest @ _basis(rest.shape[1], x.dtype.kind == "c")
    return turned[:, : stop - rank] if x.shape[0] != stop else turned


# Bases that follow a tangent --------------------------------------------------------------------


def _turn(m: Any, ids: Any) -> Any:
    out = np.zeros_like(m)
    for at in np.ndindex(ids.shape[:-1]):
        for _, span in _spans(ids[at]):
            out[at][span, span] = np.linalg.eigh(m[at][span, span])[1]
    return out


@define(
    infer=lambda types, p: types[:1], kinds=("fc", "i"), call="cluster_turn", numpy=_turn,
    jvp=lambda n, ts: None, batch=leading,
)  # fmt: skip
def cluster_turn(m: Value, ids: Value) -> Value:
    """The unitary matrix that diagonalises the block of the Hermitian m for each cluster."""
    return cluster_turn.bind(m, ids)


def _follow(u: Any, vh: Any, t: Any, ids: Any) -> Any:
    u, v = u.copy(), np.swapaxes(vh.conj(), -1, -2).copy()
    for at in np.ndindex(ids.shape[:-1]):
        for k, span in _spans(ids[at]):
            x, y = u[at], v[at]
            if k != NULL:
                inner = x[:, span].conj().T @ t[at] @ y[:, span]
                turn = np.linalg.eigh((inner + inner.conj().T) / 2)[1]
                x[:, span], y[:, span] = x[:, span] @ turn, y[:, span] @ turn
            elif x.shape[0] >= y.shape[0]:
                _follow_null(x, y, t[at], span)
            else:
                _follow_null(y, x, t[at].conj().T, span)
    return u, np.swapaxes(v.conj(), -1, -2)


def _follow_null(u: Any, v: Any, t: Any, span: slice) -> None:
    """Singular vectors of t from the null space of v to what the others of u leave."""
    moved, used = t @ v[:, span], u[:, : span.start]
    moved = moved - used @ (used.conj().T @ moved)
    v[:, span] = v[:, span] @ np.linalg.svd(moved)[2].conj().T
    moved = t @ v[:, span]
    q, r = np.linalg.qr(np.concatenate([used, moved - used @ (used.conj().T @ moved)], -1))
    d = np.diagonal(r)[span]
    u[:, span] = q[:, span] * np.where(d == 0, 1, d / np.where(d == 0, 1, np.abs(d)))


def _follow_jvp(n: Node, ts: Tangents) -> tuple[Value | None, Value | None]:
    """The choice of bases is held."""
    (u, vh, *_), (du, dvh, *_), (nu, nvh) = n.operands, ts, n.results
    return (
        None if du is None else matmul(du, matmul(adjoint(u), nu)),
        None if dvh is None else matmul(matmul(nvh, adjoint(vh)), dvh),
    )


@define(
    infer=lambda types, p: list(types[:2]), kinds=("fc", "fc", "fc", "i"), call="singular_follow",
    numpy=_follow, multiple=True, jvp=_follow_jvp, batch=leading,
)  # fmt: skip
def singular_follow(u: Value, vh: Value, t: Value, ids: Value) -> tuple[Value, ...]:
    """Singular vectors with the bases of clusters that a matrix has as it moves along t."""
    return singular_follow.bind_many(u, vh, t, ids)


# Checks -----------------------------------------------------------------------------------------


def _types(types: Types, p: Params) -> list[TensorType]:
    return list(types[1:])


@define(
    infer=_types, call="gauged", kinds=("i", "f", "fc"), numpy=lambda ids, *ts, of, whole: ts, multiple=True,
    moves=True,
    jvp=lambda n, ts: ts[1:], batch=leading,
)  # fmt: skip
def gauged(ids: Value, *ts: Value, of: str, whole: bool) -> tuple[Value, ...]:
    """Tangents of the values of clusters and of turns of their vectors; its transpose checks."""
    return gauged.bind_many(ids, *ts, of=of, whole=whole)


def _check(ids: Any, *cts: Any, of: str, whole: bool) -> Any:
    for at in np.ndindex(ids.shape[:-1]):
        trouble = _trouble(ids[at], [c[at] for c in cts], whole)
        if trouble is not None:
            raise NumericalError(f"{of}: {trouble}; {_ADVICE[of]}")
    return cts


_ADVICE = {
    "eigh": "use op.eigvalsh for the values, projectors v @ v.H, or op.funm for functions of the matrix",
    "svd": "use op.svdvals for the values, or op.singular_map for functions of them",
}


def _trouble(ids: Any, cts: Any, whole: bool) -> str | None:
    """What depends on the basis: the turns of clusters first, then the values."""
    values, *turns = cts
    finfo: Any = ml_dtypes.finfo
    tolerance = float(finfo(values.dtype).eps) ** 0.5
    size = max((np.abs(t).max(initial=0) for t in turns), default=0.0)
    spans = _spans(ids)
    for k, span in spans:
        blocks = [t[span, span] for t in turns[:2]]
        for b in blocks if k == NULL else [sum(blocks)]:
            if np.abs(b - b.conj().T).max(initial=0) > tolerance * size:
                return _depends(span)
        if k == NULL and any(
            np.abs(t[:, span]).max(initial=0) > tolerance * size for t in turns[2:]
        ):
            return _depends(span)
    most = tolerance * np.abs(values).max(initial=0)
    for k, span in spans:
        mine = values[span]
        alone = span.stop - span.start == 1 and (
            k != NULL or (whole and turns[0].dtype.kind == "f")
        )
        if not alone and np.abs(mine - (0 if k == NULL else mine.mean())).max() > most:
            return (
                f"{_named(span)} are {'zero' if k == NULL else 'equal'}, and values and vectors do not "
                "tell the derivative of this function of both"
            )
    return None


def _depends(span: slice) -> str:
    if span.stop - span.start == 1:
        return f"the phase of vector {span.start} is arbitrary, and the result depends on it"
    return f"{_named(span)} are equal, and the result depends on the basis of their vectors"


def _named(span: slice) -> str:
    return f"values {span.start} to {span.stop - 1}"


@define(
    infer=_types, call="same_in_every_gauge", kinds=("i", "f", "fc"), numpy=_check, multiple=True, moves=True,
    jvp=lambda n, ts: ts[1:], batch=leading,
)  # fmt: skip
def same_in_every_gauge(ids: Value, *cts: Value, of: str, whole: bool) -> tuple[Value, ...]:
    """Cotangents as they are, or an error when they depend on the basis of a cluster."""
    return same_in_every_gauge.bind_many(ids, *cts, of=of, whole=whole)
