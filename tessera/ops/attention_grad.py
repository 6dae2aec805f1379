"""The derivative of attention as ops of its own, for devices that have kernels for them.

`attention_tangent` pushes tangents forward, and its transpose is `attention_grad`.  Both know the result o
of the attention, which saves a product: sum over keys of weights times slopes is o times the cotangent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require, unify
from tessera.core.errors import ShapeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.batching import Mask, batch_size, in_front
from tessera.ops.contraction import matmul
from tessera.ops.creation import iota
from tessera.ops.cutting import heads
from tessera.ops.define import ArrayLike, as_value, cast_to, define, full_of, wide
from tessera.ops.elementwise import add, div, eq, exp, ge, mul, sub, where
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import spread
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import reshape, swapaxes
from tessera.ops.softmax import empty_row

_CAUSAL = {"causal": True, "scale": 0.5}


def _like(name: str, types: Types, pairs: Sequence[tuple[int, int]]) -> None:
    """Raise unless operands have the shapes of an attention, and some the shape of others."""
    q, k, v, o = types[:4]
    axes = [
        (q, k, -1, -1),
        (k, v, -2, -2),
        (k, v, -3, -3),
        (o, q, -2, -2),
        (o, q, -3, -3),
        (o, v, -1, -1),
    ]
    for i, j in pairs:
        axes += [(types[i], types[j], x, x) for x in range(-types[j].rank, 0)]
    for t in (k, v, o):
        axes += [(t, q, x, x) for x in range(-q.rank, -3)]
    if len({t.rank for t in types}) > 1 or q.rank < 3:
        raise ShapeError(
            f"{name}: operands {', '.join(map(str, types))} are not all (..., heads, seq, dim)"
        )
    for a, b, x, y in axes:
        if not unify(a.shape[x], b.shape[y], f"{name}: axis {x}"):
            raise ShapeError(f"{name}: axis {x} of {a} and axis {y} of {b} differ")
    if not require("divisible", q.shape[-3], k.shape[-3], f"{name}: heads of q over those of k"):
        raise ShapeError(
            f"{name}: {q.shape[-3]} heads in q {q} are no multiple of {k.shape[-3]} in k {k}"
        )


def _grouped(x: Value, groups: Any) -> Value:
    """Heads that share keys, under each other."""
    *lead, heads, seq, size = x.shape
    return reshape(x, (*lead, groups, heads // groups * seq, size))


def _softmax(q: Value, k: Value, heads: Any, causal: bool, scale: float) -> Value:
    """The weights (..., groups, share * queries, keys) of grouped queries."""
    *lead, groups, rows, _ = q.shape
    keys = k.shape[-2]
    scores = mul(matmul(q, swapaxes(k, -1, -2)), scale)
    if causal:
        share = heads // groups
        queries = rows // share
        shape = (*lead, groups, share, queries, keys)
        apart = reshape(scores, shape)
        rank = len(shape)
        row = add(iota(shape, rank - 2), keys - queries)
        hidden = full_of(shape, float("-inf"), scores.dtype)
        scores = reshape(where(ge(row, iota(shape, rank - 1)), apart, hidden), scores.shape)
    axes = (scores.ndim - 1,)
    if empty_row(scores, axes):
        return scores
    top = max_of(scores, axes)
    e = exp(sub(scores, spread(where(eq(top, -math.inf), 0.0, top), scores, axes)))
    total = sum_of(e, axes)
    return div(e, spread(where(eq(total, 0.0), 1.0, total), scores, axes))


# The tangent


def _tangent_types(types: Types, p: Params) -> list[TensorType]:
    _like("attention_tangent", types, ((4, 0), (5, 1), (6, 2)))
    return [types[3]]


def _tangent(
    q: Value, k: Value, v: Value, o: Value, tq: Value, tk: Value, tv: Value, causal: bool, scale: float
) -> Value:  # fmt: skip
    groups, heads = k.shape[-3], q.shape[-3]
    q, k, v, o, tq, tk, tv = wide(q, k, v, o, tq, tk, tv)
    a, b, ta = (_grouped(x, groups) for x in (q, o, tq))
    w = _softmax(a, k, heads, causal, scale)
    turned, turned_t = swapaxes(k, -1, -2), swapaxes(tk, -1, -2)
    slopes = mul(w, mul(add(matmul(ta, turned), matmul(a, turned_t)), scale))
    axes = (slopes.ndim - 1,)
    down = mul(spread(sum_of(slopes, axes), b, axes), b)
    out = sub(add(matmul(slopes, v), matmul(w, tv)), down)
    return reshape(out, o.shape)


def _weights_of(q: Any, k: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    """The weights of every head by NumPy, and k for every head."""
    share = q.shape[-3] // max(k.shape[-3], 1)
    keys = np.repeat(k, share, -3)
    s = np.matmul(q, np.swapaxes(keys, -1, -2)) * q.dtype.type(scale)
    if causal:
        m, n = s.shape[-2:]
        s = np.where(np.tri(m, n, n - m, dtype=bool), s, -np.inf)
    top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total), keys


def _tangent_reference(
    q: Any, k: Any, v: Any, o: Any, tq: Any, tk: Any, tv: Any, causal: bool, scale: float
) -> Any:  # fmt: skip
    w, keys = _weights_of(q, k, causal, scale)
    share = q.shape[-3] // max(k.shape[-3], 1)
    vs, tks, tvs = (np.repeat(x, share, -3) for x in (v, tk, tv))
    turned = np.matmul(tq, np.swapaxes(keys, -1, -2)) + np.matmul(q, np.swapaxes(tks, -1, -2))
    slopes = w * turned * q.dtype.type(scale)
    down = slopes.sum(-1, keepdims=True) * o
    return (np.matmul(slopes, vs) + np.matmul(w, tvs) - down).astype(o.dtype)


def _tangent_transpose(n: Node, ct: Value, k: int) -> Value:
    q, keys, v, o = n.operands[:4]
    found: Any = attention_grad.bind(q, keys, v, o, ct, **n.params)
    slope: Value = found[k - 4]
    return slope


def _by_decomposition(n: Node, ts: Sequence[Value | None]) -> Any:
    return NotImplemented


def _batch(n: Node, operands: Sequence[Value], batched: Mask) -> Any:
    """Heads are stacks of problems."""
    size = batch_size(operands, batched)
    xs = [in_front(x, b, size) for x, b in zip(operands, batched, strict=True)]
    from_op = attention_tangent if n.op.name == "attention_tangent" else attention_grad
    return from_op.bind(*xs, **n.params)


@define(
    infer=_tangent_types, decompose=_tangent, numpy=_tangent_reference, jvp=_by_decomposition,
    transpose=_tangent_transpose, batch=_batch, kinds="f", factors=heads,
    samples=(
        Sample((2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4), scale=0.5),
        Sample((2, 3, 4), (1, 5, 4), (1, 5, 2), (2, 3, 2), (2, 3, 4), (1, 5, 4), (1, 5, 2), **_CAUSAL),
    ),
)  # fmt: skip
def attention_tangent(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    tq: ArrayLike,
    tk: ArrayLike,
    tv: ArrayLike,
    causal: bool = False,
    scale: float = 1.0,
) -> Value:
    """The tangent of o = attention(q, k, v) for tangents of q, k and v."""
    values = [as_value(x, "attention_tangent") for x in (q, k, v, o, tq, tk, tv)]
    dtype = values[0].dtype
    return attention_tangent.bind(
        *(cast_to(x, dtype) for x in values), causal=bool(causal), scale=float(scale)
    )


# The cotangents


def _grad_types(types: Types, p: Params) -> list[TensorType]:
    _like("attention_grad", types, ((4, 3),))
    return list(types[:3])


def _grad(
    q: Value, k: Value, v: Value, o: Value, ct: Value, causal: bool, scale: float
) -> tuple[Value, Value, Value]:
    groups, heads = k.shape[-3], q.shape[-3]
    shape = q.shape
    q, k, v, o, ct = wide(q, k, v, o, ct)
    a, b, c = (_grouped(x, groups) for x in (q, o, ct))
    w = _softmax(a, k, heads, causal, scale)
    slopes = matmul(c, swapaxes(v, -1, -2))
    axes = (slopes.ndim - 1,)
    delta = sum_of(mul(b, c), axes)
    ds = mul(mul(w, sub(slopes, spread(delta, slopes, axes))), scale)
    dq = reshape(matmul(ds, k), shape)
    return dq, matmul(swapaxes(ds, -1, -2), a), matmul(swapaxes(w, -1, -2), c)


def _grad_reference(
    q: Any, k: Any, v: Any, o: Any, ct: Any, causal: bool, scale: float
) -> tuple[Any, Any, Any]:
    w, keys = _weights_of(q, k, causal, scale)
    groups = k.shape[-3]
    share = q.shape[-3] // max(groups, 1)
    slopes = np.matmul(ct, np.swapaxes(np.repeat(v, share, -3), -1, -2))
    delta = (o * ct).sum(-1, keepdims=True)
    ds = w * (slopes - delta) * q.dtype.type(scale)

    def joined(x: Any) -> Any:
        return x.reshape(*x.shape[:-3], groups, share, *x.shape[-2:]).sum(-3).astype(q.dtype)

    dq = np.matmul(ds, keys).astype(q.dtype)
    dk = joined(np.matmul(np.swapaxes(ds, -1, -2), q))
    return dq, dk, joined(np.matmul(np.swapaxes(w, -1, -2), ct))


@define(
    infer=_grad_types, decompose=_grad, numpy=_grad_reference, jvp=_by_decomposition, batch=_batch,
    factors=heads, kernel="attention_grad",
    multiple=True, kinds="f",
    samples=(
        Sample((2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4), scale=0.5),
        Sample((2, 3, 4), (1, 5, 4), (1, 5, 2), (2, 3, 2), (2, 3, 2), **_CAUSAL),
    ),
)  # fmt: skip
def attention_grad(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    o: ArrayLike,
    ct: ArrayLike,
    causal: bool = False,
    scale: float = 1.0,
) -> Any:
    """The cotangents of q, k and v, for the cotangent of o = attention(q, k, v)."""
    values = [as_value(x, "attention_grad") for x in (q, k, v, o, ct)]
    dtype = values[0].dtype
    return attention_grad.bind(
        *(cast_to(x, dtype) for x in values), causal=bool(causal), scale=float(scale)
    )
