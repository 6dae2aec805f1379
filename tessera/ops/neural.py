"""Parts of networks: attention, rotary positions, embedding, residual sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require, unify
from tessera.core.dims import Dim
from tessera.core.dtype import f64, i64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.promotion import promote_all
from tessera.core.signature import broadcast_shapes
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.attention_grad import attention_tangent
from tessera.ops.batching import Mask, all_in_front, batch_size, in_front, spread_behind
from tessera.ops.contraction import matmul
from tessera.ops.creation import iota
from tessera.ops.cutting import heads
from tessera.ops.define import (
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    public,
    size_value,
    wide,
)
from tessera.ops.elementwise import (
    add,
    cos,
    div,
    eq,
    exp,
    ge,
    mul,
    neg,
    sin,
    sqrt,
    stop_gradient,
    sub,
    where,
)
from tessera.ops.gather import gather
from tessera.ops.places import in_bounds
from tessera.ops.random import dropout as drop
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import spread
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import concat, expand_dims, reshape, split, swapaxes
from tessera.ops.softmax import empty_row

Tangents = Sequence[Value | None]

# Attention


def _attention_types(types: Types, p: Params) -> list[TensorType]:
    q, k, v, *mask = types
    for i, t in enumerate(types[:3]):
        if t.rank < 3 or t.rank != q.rank:
            raise ShapeError(
                f"attention: operand {i} is {t}, expected (..., heads, seq, dim) of one rank"
            )
    _agree("dim", q, k, -1)
    _agree("seq", k, v, -2)
    for axis in range(-q.rank, -3):
        _agree("batch", q, k, axis)
    for axis in (*range(-q.rank, -3), -3):
        _agree("heads" if axis == -3 else "batch", k, v, axis)
    if not require("divisible", q.shape[-3], k.shape[-3], "attention: heads of q over those of k"):
        raise ShapeError(
            f"attention: {q.shape[-3]} heads in q {q} are no multiple of {k.shape[-3]} in k {k}"
        )
    if mask:
        broadcast_shapes("attention", [mask[0], q.with_shape((*q.shape[:-1], k.shape[-2]))])
    return [q.with_shape((*q.shape[:-1], v.shape[-1]))]


def _agree(name: str, a: TensorType, b: TensorType, axis: int) -> None:
    if not unify(a.shape[axis], b.shape[axis], f"attention: axis '{name}'"):
        raise ShapeError(
            f"attention: axis '{name}' is {a.shape[axis]} in {a} but {b.shape[axis]} in {b}"
        )


def _attention_reference(
    q: Any, k: Any, v: Any, *mask: Any, causal: bool, scale: float | None
) -> Any:
    *lead, heads, seq, size = q.shape
    groups, keys = k.shape[-3:-1]
    share = heads // groups if groups else 1
    factor = q.dtype.type(1 / math.sqrt(max(size, 1)) if scale is None else scale)
    grouped = (q * factor).reshape(*lead, groups, share * seq, size)
    scores = np.matmul(grouped, np.swapaxes(k, -1, -2)).reshape(*lead, heads, seq, keys)
    if causal:
        visible = np.tri(seq, keys, keys - seq, dtype=bool)
        scores = np.where(visible, scores, -np.inf)
    if mask:
        m = mask[0]
        scores = np.where(m, scores, -np.inf) if m.dtype == bool else scores + m
    weights = _attend(scores)
    out = np.matmul(weights.reshape(*lead, groups, share * seq, keys), v)
    return out.reshape(*lead, heads, seq, v.shape[-1]).astype(q.dtype)


def _attend(scores: Any) -> Any:
    """softmax over the keys; a query that sees none has weights 0."""
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = np.sum(e, axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def _attention(
    q: Value, k: Value, v: Value, *mask: Value, causal: bool, scale: float | None
) -> Value:
    *lead, heads, seq, size = q.shape
    groups, keys = k.shape[-3:-1]
    a, b, c = wide(q, k, v)
    share = heads // groups
    grouped = reshape(mul(a, _scale(scale, size, a)), (*lead, groups, share * seq, size))
    scores = reshape(matmul(grouped, swapaxes(b, -1, -2)), (*lead, heads, seq, keys))
    if causal:
        scores = where(causal_mask(seq, keys), scores, _hidden(scores))
    if mask:
        m = broadcast(mask[0], scores.shape)
        bools = m.dtype.kind == "b"
        scores = where(m, scores, _hidden(scores)) if bools else add(scores, wide(m)[0])
    weights, total = _weights(scores)
    mixed = matmul(reshape(weights, (*lead, groups, share * seq, keys)), c)
    out = div(reshape(mixed, (*q.shape[:-1], v.shape[-1])), total)
    return cast_to(out, q.dtype)


def _weights(scores: Value) -> tuple[Value, Value]:
    """exp(scores), at most 1, and the divisor of a row: after the product there is less to divide."""
    axes = (scores.ndim - 1,)
    rows = scores.shape[:-1]
    if empty_row(scores, axes):
        return scores, full_of((*rows, 1), 1.0, scores.dtype)
    top = stop_gradient(max_of(scores, axes))
    e = exp(sub(scores, spread(where(eq(top, -math.inf), 0.0, top), scores, axes)))
    total = sum_of(e, axes)
    return e, reshape(where(eq(total, 0.0), 1.0, total), (*rows, 1))


def _hidden(scores: Value) -> Value:
    return full_of(scores.shape, float("-inf"), scores.dtype)


def _scale(scale: float | None, size: Any, like: Value) -> Any:
    if scale is not None:
        return scale
    if isinstance(size, Dim):  # in f64, so that the bits are those of a size that is known
        return cast_to(div(1.0, sqrt(cast_to(size_value(size), f64))), like.dtype)
    return 1 / math.sqrt(max(size, 1))


@public
def causal_mask(queries: Any, keys: Any) -> Value:
    """Bools (queries, keys): whether a query may see a key, the last query seeing all keys."""
    shape = (queries, keys)
    row = add(iota(shape, 0), keys - queries)
    return ge(row, iota(shape, 1))


def _attention_jvp(n: Node, ts: Tangents) -> Any:
    """On a GPU, an op that its kernels know; elsewhere what the decomposition says."""
    q, k, v, *mask = n.operands
    if n.results[0].device.kind in ("cpu", "mesh") or mask or any(t is not None for t in ts[3:]):
        return NotImplemented
    given = n.params["scale"]
    if given is None and isinstance(q.shape[-1], Dim):
        return NotImplemented
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if given is None else given
    tangents = [
        full_of(x.shape, 0, x.dtype) if t is None else t
        for x, t in zip((q, k, v), ts, strict=False)
    ]
    return attention_tangent.bind(
        q, k, v, n.results[0], *tangents, causal=n.params["causal"], scale=scale
    )


def _attention_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """Heads are stacks of problems; a mask broadcasts from the right."""
    size = batch_size(operands, batched)
    q, k, v = (in_front(x, b, size) for x, b in zip(operands[:3], batched[:3], strict=True))
    mask = [
        spread_behind(m, q.ndim) if b else m for m, b in zip(operands[3:], batched[3:], strict=True)
    ]
    return attention.bind(q, k, v, *mask, **n.params)


@define(
    infer=_attention_types, decompose=_attention, numpy=_attention_reference, onnx="Attention",
    kernel="attention",
    batch=_attention_batch, jvp=_attention_jvp, factors=heads,
    kinds=("f", "f", "f", "bf"),
    samples=(
        Sample((2, 3, 4), (2, 3, 4), (2, 3, 4)), Sample((4, 3, 2), (2, 5, 2), (2, 5, 3)),
        Sample((2, 3, 4), (2, 5, 4), (2, 5, 4), causal=True),
        Sample((1, 4, 2), (1, 2, 2), (1, 2, 2), causal=True, scale=0.5),
        Sample((2, 2, 3, 4), (2, 1, 3, 4), (2, 1, 3, 4), mask=np.tri(3, dtype=bool)),
        Sample((2, 0, 4), (2, 3, 4), (2, 3, 4)), Sample((2, 3, 4), (2, 0, 4), (2, 0, 4)),
    ),
)  # fmt: skip
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    causal: bool = False,
    scale: float | None = None,
    mask: ArrayLike = None,
) -> Value:
    """softmax(q k^T * scale) v on (..., heads, seq, dim).

    k and v may have fewer heads, each shared by neighbouring heads of q.  scale is 1/sqrt(dim)
    unless given.  With causal, the last query sees all keys and each one before it one key less.
    mask broadcasts to (..., heads, queries, keys): bools say which keys are seen, numbers are added
    to the scores.  A query that sees no key gives zeros.
    """
    values = [floating(as_value(x, "attention")) for x in (q, k, v)]
    dtype = promote_all([x.dtype for x in values])
    values = [cast_to(x, dtype) for x in values]
    if mask is not None:
        m = as_value(mask, "attention")
        if m.dtype.kind not in "bf":
            raise DTypeError(
                f"attention: the mask is {m.type}, expected bools (seen or not) or floats (added)"
            )
        values.append(m if m.dtype.kind == "b" else cast_to(m, dtype))
    factor = None if scale is None else float(scale)
    return attention.bind(*values, causal=bool(causal), scale=factor)


# Rotary positions


def _rope_types(types: Types, p: Params) -> list[TensorType]:
    x, positions = types
    if x.rank < 1 or not require("divisible", x.shape[-1], 2, "rope: the last axis"):
        raise ShapeError(f"rope: the last axis of {x} must have an even size")
    lead = x.with_shape(x.shape[:-1])
    if broadcast_shapes("rope", [lead, positions]) != lead.shape:
        raise ShapeError(f"rope: positions {positions} do not broadcast to the axes of {lead}")
    return [x]


def _rope_reference(x: Any, positions: Any, base: float) -> Any:
    half = x.shape[-1] // 2
    slope = x.dtype.type(-math.log(base) / max(half, 1))
    angle = positions.astype(x.dtype)[..., None] * np.exp(np.arange(half).astype(x.dtype) * slope)
    a, b = x[..., :half], x[..., half:]
    c, s = np.cos(angle), np.sin(angle)
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def _rates(x: Value, base: float) -> Value:
    """base ** (-i / half) for i below half: radians per position of each pair."""
    half = x.shape[-1] // 2
    if isinstance(half, Dim):  # in f64, as below
        slope = cast_to(div(-math.log(base), cast_to(size_value(half), f64)), x.dtype)
    else:
        slope = full_of((), -math.log(base) / max(half, 1), x.dtype)
    return exp(mul(iota((half,), 0, x.dtype), slope))


def _rope(x: Value, positions: Value, base: float) -> Value:
    (w,) = wide(x)
    angle = mul(expand_dims(cast_to(positions, w.dtype), -1), _rates(w, base))
    a, b = split(w, 2, -1)
    c, s = cos(angle), sin(angle)
    turned = concat([sub(mul(a, c), mul(b, s)), add(mul(b, c), mul(a, s))], -1)
    return cast_to(turned, x.dtype)


def _rope_jvp(n: Node, ts: Tangents) -> Value | None:
    (x, positions), (t, moved), total = n.operands, ts, None
    if t is not None:
        total = rope.bind(t, positions, **n.params)
    if moved is not None:
        # d/d angle turns the result by a quarter.
        (y,) = wide(n.results[0])
        a, b = split(y, 2, -1)
        speed = mul(expand_dims(cast_to(moved, y.dtype), -1), _rates(y, n.params["base"]))
        term = cast_to(concat([neg(mul(b, speed)), mul(a, speed)], -1), x.dtype)
        total = term if total is None else add(total, term)
    return total


def _rope_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    x, at = operands
    if not batched[1]:
        return rope.bind(x, at, **n.params)
    x, at = all_in_front(operands, batched)
    return rope.bind(x, spread_behind(at, x.ndim - 1), **n.params)


@define(
    infer=_rope_types, decompose=_rope, numpy=_rope_reference, linear=(0,), jvp=_rope_jvp,
    batch=_rope_batch,
    transpose=lambda n, ct, k: rope.bind(ct, neg(n.operands[1]), **n.params),
    kinds=("f", "iuf"),
    samples=(
        Sample((3, 4)), Sample((2, 3, 4), base=100.0), Sample((2, 3, 2), positions=np.array([4, 0, 9])),
        Sample((2, 3, 4), (3,)), Sample((0, 4)), Sample((3, 0)),
    ),
)  # fmt: skip
def rope(x: ArrayLike, positions: ArrayLike = None, base: float = 10000.0) -> Value:
    """Rotary positions on (..., seq, dim): pairs of elements turned by an angle per position.

    The pair is (x[i], x[i + dim/2]): the halves of the last axis, not neighbours.  It turns by
    positions * base**(-2i/dim) radians.  positions count 0, 1, ... along seq unless given.
    """
    v = floating(as_value(x, "rope"))
    if v.ndim < 2 and positions is None:
        raise ShapeError(f"rope: {v.type} has no axis of positions; expected (..., seq, dim)")
    if not base > 0:
        raise OperandError(f"rope: base is {base}, expected a positive number")
    at = iota((v.shape[-2],)) if positions is None else as_value(positions, "rope")
    if at.dtype.kind not in "iuf":
        raise DTypeError(f"rope: positions are {at.type}, expected integers or floats")
    at = cast_to(at, i64) if at.dtype.kind == "u" else at
    return rope.bind(v, at, base=float(base))


# Embedding, residual sums, dtypes


@public
def embedding(table: ArrayLike, ids: ArrayLike) -> Value:
    """Rows of a table (rows, ...) by their numbers; the derivative adds up at repeated rows."""
    t, at = as_value(table, "embedding"), as_value(ids, "embedding")
    if at.dtype.kind not in "iu":
        swapped = t.dtype.kind in "iu" and at.dtype.kind == "f" and at.ndim == 2
        ways = "the order is embedding(table, ids)" if swapped else "cast with astype"
        raise DTypeError(f"embedding: ids are {at.type}, expected integers; {ways}")
    if t.ndim == 0:
        raise ShapeError(f"embedding: the table is {t.type}, expected (rows, ...)")
    return gather.bind(t, in_bounds("embedding", at, t, 0), axes=(0,))


@public
def residual(x: ArrayLike, y: ArrayLike, dropout: float = 0.0, key: ArrayLike = None) -> Value:
    """x + y, with elements of y dropped at this rate; a rate above 0 needs a key."""
    if dropout == 0:
        return add(x, y)
    if key is None:
        raise OperandError(f"residual: dropout {dropout} needs key=, such as ts.key(0)")
    return add(x, drop(key, y, dropout))


@public
def cast_like(x: ArrayLike, y: ArrayLike) -> Value:
    """x in the dtype of y."""
    return cast_to(as_value(x, "cast_like"), as_value(y, "cast_like").dtype)
