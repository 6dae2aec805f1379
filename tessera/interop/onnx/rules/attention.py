"""Attention, rotary embeddings and linear attention."""

from __future__ import annotations

import math
from typing import Any

from tessera.core.dtype import as_dtype, bool_, f32, i64
from tessera.interop.onnx.model import DTYPES, OnnxError
from tessera.interop.onnx.rule import NodeCall, rule
from tessera.interop.onnx.rules.elementwise import sigmoid
from tessera.lang import op
from tessera.ops.define import as_value

_NONE = float("-inf")


def _heads(x: Any, count: int | None) -> Any:
    """(batch, heads, length, size) of (batch, length, heads * size)."""
    if len(x.shape) == 4:
        return x
    if not count:
        raise OnnxError("inputs of three axes need q_num_heads and kv_num_heads")
    b, t, width = x.shape
    return op.transpose(op.reshape(x, (b, t, count, width // count)), (0, 2, 1, 3))


def _repeated(x: Any, heads: Any) -> Any:
    """Each head of keys or values for all the queries of its group."""
    return x if x.shape[1] == heads else op.repeat(x, int(heads) // int(x.shape[1]), 1)


def _masked(allowed: Any, dtype: Any) -> Any:
    """0 where attention is allowed and minus infinity elsewhere."""
    return op.where(allowed, op.zeros((), dtype), op.full((), _NONE, dtype))


def _mask(mask: Any, keys: int, dtype: Any) -> Any:
    """A mask as a bias over all keys."""
    mask = as_value(mask)
    bias = _masked(mask, dtype) if mask.dtype is bool_ else op.cast(mask, dtype)
    missing = keys - int(mask.shape[-1])
    if missing <= 0:
        return bias
    return op.pad(bias, [*[(0, 0)] * (mask.ndim - 1), (0, missing)], _NONE)


def _offset(n: NodeCall, past: Any, lengths: Any, queries: int) -> Any:
    """How many keys come before the first query: a number, or one for each element of the batch."""
    if past is None and lengths is not None:
        return op.reshape(op.sub(op.cast(lengths, i64), queries), (-1, 1, 1, 1))
    return 0 if past is None else int(past.shape[2])


def _bias(n: NodeCall, q: Any, k: Any, mask: Any, past: Any, lengths: Any) -> Any:
    """The sum of all masks, or None where everything is allowed."""
    queries, keys = int(q.shape[2]), int(k.shape[2])
    bias = None if mask is None else _mask(mask, keys, q.dtype)
    gap = op.sub(
        op.add(op.expand_dims(op.arange(queries), 1), _offset(n, past, lengths, queries)),
        op.expand_dims(op.arange(keys), 0),
    )
    left, right = n.get("left_window_size", -1), n.get("right_window_size", -1)
    rules = []
    if n.get("is_causal", 0):
        rules.append(op.ge(gap, 0))
    if left >= 0:
        rules.append(op.le(gap, left))
    if right >= 0:
        rules.append(op.ge(gap, -right))
    if lengths is not None:
        limit = op.reshape(op.cast(lengths, i64), (-1, 1, 1, 1))
        rules.append(op.lt(op.arange(keys), limit))
    for allowed in rules:
        more = _masked(allowed, q.dtype)
        bias = more if bias is None else op.add(bias, more)
    return bias


@rule("Attention")
def _attention(
    n: NodeCall, q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None,
    lengths: Any = None,
) -> Any:  # fmt: skip
    flat = len(q.shape) == 3
    q = _heads(as_value(q), n.get("q_num_heads"))
    k, v = (_heads(as_value(x), n.get("kv_num_heads")) for x in (k, v))
    if past_k is not None:
        k, v = op.concat([past_k, k], 2), op.concat([past_v, v], 2)
    scale = n.get("scale") or 1 / math.sqrt(int(q.shape[3]))
    keys, values = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    shown: Any = None
    if _is_plain(n, q, k, mask, past_k, lengths):
        y = op.attention(q, keys, values, causal=bool(n.get("is_causal", 0)), scale=scale)
    else:
        bias = _bias(n, q, k, mask, past_k, lengths)
        y, shown = _explicit(n, q, keys, values, bias, scale)
    if flat:
        y = op.transpose(y, (0, 2, 1, 3))
        y = op.reshape(y, (y.shape[0], y.shape[1], y.shape[2] * y.shape[3]))
    return y, k, v, shown


def _is_plain(n: NodeCall, q: Any, k: Any, mask: Any, past: Any, lengths: Any) -> bool:
    given = ("softcap", "softmax_precision", "qk_matmul_output_mode")
    windows = n.get("left_window_size", -1) >= 0 or n.get("right_window_size", -1) >= 0
    return (
        mask is None and past is None and lengths is None and not windows and not n.wants(3)
        and (not n.get("is_causal", 0) or q.shape[2] == k.shape[2])
        and not any(n.get(a) for a in given)
    )  # fmt: skip


def _explicit(n: NodeCall, q: Any, k: Any, v: Any, bias: Any, scale: float) -> tuple[Any, Any]:
    """Scores, weights and their products, with what is shown of the scores."""
    root = math.sqrt(scale)
    scores = op.matmul(op.mul(q, root), op.mul(op.swapaxes(k, -1, -2), root))
    mode, cap = n.get("qk_matmul_output_mode", 0), n.get("softcap", 0.0)
    shown = [scores]
    if cap:
        scores = op.mul(op.tanh(op.div(scores, cap)), cap)
    shown.append(scores)
    if bias is not None:
        scores = op.add(scores, bias)
    shown.append(scores)
    if n.get("softmax_precision"):
        scores = op.cast(scores, as_dtype(DTYPES[n.get("softmax_precision")]))
    weights = op.softmax(scores, -1)
    if bias is not None:  # a query that may attend to nothing gives zeros
        none = op.eq(op.max(bias, -1, True), _NONE)
        weights = op.where(none, op.zeros((), weights.dtype), weights)
    weights = op.cast(weights, q.dtype)
    shown.append(weights)
    return op.matmul(weights, v), op.cast(shown[mode], q.dtype)


@rule("FlexAttention", domain="ai.onnx.preview", fold=False)
def _flex_attention(n: NodeCall, q: Any, k: Any, v: Any) -> Any:
    q, k, v = map(as_value, (q, k, v))
    root = math.sqrt(n.get("scale") or 1 / math.sqrt(int(q.shape[3])))
    k, values = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])
    scores = op.matmul(op.mul(q, root), op.mul(op.swapaxes(k, -1, -2), root))
    given = n.get("softmax_precision")
    wide = as_dtype(DTYPES[given]) if given else (f32 if q.dtype.bits < 32 else q.dtype)
    scores = op.cast(scores, wide)
    if n.get("score_mod") is not None:
        (scores,) = n.run(n.get("score_mod"), [scores])
    weights = op.softmax(op.cast(scores, wide), -1)
    if n.get("prob_mod") is not None:
        (weights,) = n.run(n.get("prob_mod"), [weights])
    return op.cast(op.matmul(op.cast(weights, wide), op.cast(values, wide)), v.dtype)


@rule("RotaryEmbedding")
def _rotary(n: NodeCall, x: Any, cos: Any, sin: Any, positions: Any = None) -> Any:
    """Rotate pairs of elements of each head by angles that grow with the position."""
    x = as_value(x)
    flat = x.ndim == 3
    heads = _heads(x, n.get("num_heads"))
    size = int(heads.shape[3])
    width = n.get("rotary_embedding_dim", 0) or size
    if positions is not None:
        cos, sin = op.take(cos, positions, 0), op.take(sin, positions, 0)
    cos, sin = op.expand_dims(cos, 1), op.expand_dims(sin, 1)
    turned, rest = op.split(heads, [width, size - width], -1)
    if n.get("interleaved", 0):
        pairs = op.reshape(turned, (*turned.shape[:3], width // 2, 2))
        a, b = op.index(pairs, (..., 0)), op.index(pairs, (..., 1))
    else:
        a, b = op.split(turned, 2, -1)
    real = op.sub(op.mul(cos, a), op.mul(sin, b))
    imaginary = op.add(op.mul(sin, a), op.mul(cos, b))
    if n.get("interleaved", 0):
        made = op.reshape(op.stack([real, imaginary], -1), turned.shape)
    else:
        made = op.concat([real, imaginary], -1)
    y = op.concat([made, rest], -1) if width < size else made
    return op.reshape(op.transpose(y, (0, 2, 1, 3)), x.shape) if flat else y


@rule("LinearAttention")
def _linear_attention(
    n: NodeCall, q: Any, k: Any, v: Any, past: Any = None, decay: Any = None, beta: Any = None
) -> Any:
    """A state of outer products of keys and values, which each query reads, step by step."""
    queries, groups = n.need("q_num_heads"), n.need("kv_num_heads")
    kind = as_value(q).dtype
    q4, k4, v4 = (
        op.cast(_heads(as_value(x), h), f32) for x, h in ((q, queries), (k, groups), (v, groups))
    )
    size, width = int(q4.shape[3]), int(v4.shape[3])
    scale = n.get("scale") or 1 / math.sqrt(size)
    rows: list[Any] = [op.moveaxis(x, 2, 0) for x in (q4, k4, v4)]
    gated, correcting = decay is not None, beta is not None
    if gated:
        rows.append(op.moveaxis(_by_head(decay, groups), 2, 0))
    if correcting:
        rows.append(op.moveaxis(_by_head(beta, int(beta.shape[-1])), 2, 0))
    b = q4.shape[0]
    start = op.zeros((b, groups, size, width), f32) if past is None else op.cast(past, f32)

    def step(state: Any, row: list[Any]) -> tuple[Any, Any]:
        qt, kt, vt, *more = row
        if gated:
            state = op.mul(state, op.expand_dims(op.exp(more[0]), -1))
        if correcting:
            vt = op.mul(more[-1], op.sub(vt, op.einsum("bhdm,bhd->bhm", state, kt)))
        state = op.add(state, op.mul(op.expand_dims(kt, -1), op.expand_dims(vt, -2)))
        read = _repeated(state, queries)
        return state, op.mul(op.einsum("bhd,bhdm->bhm", qt, read), scale)

    last, ys = op.scan(step, start, rows)
    y = op.reshape(op.transpose(ys, (1, 0, 2, 3)), (b, q4.shape[2], queries * width))
    return op.cast(y, kind), op.cast(last, kind if past is None else as_value(past).dtype)


def _by_head(x: Any, heads: int) -> Any:
    x = op.cast(x, f32)
    b, t, width = x.shape
    return op.transpose(op.reshape(x, (b, t, heads, width // heads)), (0, 2, 1, 3))


@rule("SwiGLU")
def _swiglu(n: NodeCall, a: Any, b: Any) -> Any:
    return op.mul(op.mul(a, sigmoid(op.mul(a, n.get("alpha", 1.0)))), b)
