"""com.microsoft: attention, embeddings and products of blocks, as onnxruntime's optimiser fuses them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dtype import bool_, f32, i32
from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.rule import NodeCall, host, rule
from tessera.interop.onnx.rules.contrib import _real, _rounded
from tessera.interop.onnx.rules.elementwise import sigmoid
from tessera.interop.onnx.rules.norm import _layer_norm, _rms_norm
from tessera.interop.onnx.rules.pool import _average_pool, _max_pool
from tessera.lang import op
from tessera.ops.define import as_value

_MS = "com.microsoft"


def _split(x: Any, heads: int) -> Any:
    """(batch, heads, length, size) of (batch, length, heads * size)."""
    b, t, width = x.shape
    return op.transpose(op.reshape(x, (b, t, heads, width // heads)), (0, 2, 1, 3))


def _joined(x: Any) -> Any:
    b, heads, t, size = x.shape
    return op.reshape(op.transpose(x, (0, 2, 1, 3)), (b, t, heads * size))


def _attended(n: NodeCall, q: Any, k: Any, v: Any, bias: Any, causal: bool) -> Any:
    scale = n.get("scale", 0.0) or 1 / math.sqrt(int(q.shape[-1]))
    scores = op.mul(op.matmul(q, op.swapaxes(k, -1, -2)), scale)
    scores = scores if bias is None else op.add(scores, bias)
    if causal:
        rows, columns = int(q.shape[2]), int(k.shape[2])
        seen = np.tril(np.ones((rows, columns), bool), columns - rows)
        scores = op.where(seen, scores, n.get("mask_filter_value", -10000.0))
    return op.matmul(op.softmax(scores, -1), v)


def _mask_bias(n: NodeCall, mask: Any, batch: int, keys: int) -> Any:
    """A mask of keys (batch, keys), of pairs (batch, queries, keys) or of lengths (batch,) as a bias."""
    if mask is None:
        return None
    mask = as_value(mask)
    if mask.ndim == 1 and int(mask.shape[0]) == batch:
        seen = op.lt(op.reshape(op.iota((keys,), 0, i32), (1, keys)), op.reshape(mask, (-1, 1)))
    elif mask.ndim in (2, 3, 4):
        seen = op.ne(mask, 0)
    else:
        raise OnnxError(f"a mask of shape {list(mask.shape)} has no meaning here")
    shape = {2: (seen.shape[0], 1, 1, seen.shape[-1]), 3: (seen.shape[0], 1, *seen.shape[1:])}
    seen = seen if seen.ndim == 4 else op.reshape(seen, shape[seen.ndim])
    return op.where(seen, 0.0, n.get("mask_filter_value", -10000.0))


def _present(past: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Keys and values after those of earlier steps, and both of them in one tensor."""
    if past is not None:
        k = op.concat([op.index(past, (0,)), k], 2)
        v = op.concat([op.index(past, (1,)), v], 2)
    return k, v, op.stack([k, v])


@rule("Attention", domain=_MS)
def _attention(
    n: NodeCall, x: Any, w: Any, b: Any = None, mask: Any = None, past: Any = None, more: Any = None,
    length: Any = None,
) -> Any:  # fmt: skip
    """Self-attention with the weights of queries, keys and values in one matrix."""
    y = op.matmul(x, w)
    y = y if b is None else op.add(y, b)
    return _self_attention(n, y, mask, past, more)


def _self_attention(n: NodeCall, y: Any, mask: Any, past: Any, more: Any) -> Any:
    if n.get("do_rotary", 0):
        raise OnnxError("do_rotary is not read; fuse the model without rotary embeddings")
    heads = n.need("num_heads")
    sizes = n.get("qkv_hidden_sizes") or [int(y.shape[-1]) // 3] * 3
    q, k, v = (_split(part, heads) for part in op.split(y, tuple(sizes), -1))
    k, v, both = _present(past, k, v)
    bias = _mask_bias(n, mask, int(q.shape[0]), int(k.shape[2]))
    if more is not None:
        bias = more if bias is None else op.add(bias, more)
    out = _joined(_attended(n, q, k, v, bias, bool(n.get("unidirectional", 0))))
    return (out, both) if n.wants(1) else out


@rule("QAttention", domain=_MS)
def _qattention(
    n: NodeCall, x: Any, w: Any, b: Any, x_scale: Any, w_scale: Any, mask: Any = None, x_zero: Any = None,
    w_zero: Any = None, past: Any = None,
) -> Any:  # fmt: skip
    """The same with a quantised input and weights."""
    y = op.add(op.matmul(_real(x, x_scale, x_zero), _real(w, w_scale, w_zero)), b)
    return _self_attention(n, y, mask, past, None)


@rule("MultiHeadAttention", domain=_MS)
def _multi_head(
    n: NodeCall, q: Any, k: Any = None, v: Any = None, b: Any = None, mask: Any = None, more: Any = None,
    past_k: Any = None, past_v: Any = None,
) -> Any:  # fmt: skip
    """Attention of queries, keys and values (batch, length, width), or of all three packed."""
    heads = n.need("num_heads")
    if k is None:
        q, k, v = _unpacked(q)
    elif v is None:
        b_, t, h, _, size = k.shape
        k, v = (
            op.reshape(op.index(k, (slice(None),) * 3 + (i,)), (b_, t, h * size)) for i in (0, 1)
        )
    if b is not None:
        widths = tuple(_width(x) for x in (q, k, v))
        parts = op.split(b, widths, 0)
        q, k, v = (
            op.add(x, p) if x.ndim == 3 else x for x, p in zip((q, k, v), parts, strict=True)
        )
    q, k, v = (_split(x, heads) if x.ndim == 3 else x for x in (q, k, v))
    if past_k is not None:
        k, v = op.concat([past_k, k], 2), op.concat([past_v, v], 2)
    bias = _mask_bias(n, mask, int(q.shape[0]), int(k.shape[2]))
    if more is not None:
        bias = more if bias is None else op.add(bias, more)
    out = _joined(_attended(n, q, k, v, bias, bool(n.get("unidirectional", 0))))
    return (out, k, v) if n.wants(1) else out


def _width(x: Any) -> int:
    return int(x.shape[2]) if x.ndim == 3 else int(x.shape[1]) * int(x.shape[3])


def _unpacked(q: Any) -> tuple[Any, Any, Any]:
    """Of (batch, length, heads, 3, size)."""
    b, t, heads, _, size = q.shape
    parts = [op.index(q, (slice(None),) * 3 + (i,)) for i in range(3)]
    q, k, v = (op.reshape(x, (b, t, heads * size)) for x in parts)
    return q, k, v


@rule("GroupQueryAttention", domain=_MS)
def _group_query(
    n: NodeCall, q: Any, k: Any = None, v: Any = None, past_k: Any = None, past_v: Any = None,
    lengths: Any = None, total: Any = None, cos: Any = None, sin: Any = None,
) -> Any:  # fmt: skip
    """Causal attention whose keys and values serve groups of queries; all sequences are of one length."""
    if n.get("local_window_size", -1) != -1 or n.get("softcap", 0.0):
        raise OnnxError("local_window_size and softcap are not read")
    heads, kv = n.need("num_heads"), n.need("kv_num_heads")
    if k is None:
        size = int(q.shape[-1]) // (heads + 2 * kv)
        q, k, v = op.split(q, (heads * size, kv * size, kv * size), -1)
    q, k, v = _split(q, heads), _split(k, kv), _split(v, kv)
    before = 0 if past_k is None else int(past_k.shape[2])
    held = host(lengths, "seqlens_k").reshape(-1)
    if len(set(held.tolist())) > 1 or (held.size and int(held[0]) + 1 != before + int(q.shape[2])):
        raise OnnxError("sequences of several lengths, and shared buffers, are not read")
    if n.get("do_rotary", 0):
        at = before + np.arange(int(q.shape[2]))
        turned = bool(n.get("rotary_interleaved", 0))
        q, k = (_rotated(x, op.take(cos, at, 0), op.take(sin, at, 0), turned) for x in (q, k))
    if past_k is not None and before:
        k, v = op.concat([past_k, k], 2), op.concat([past_v, v], 2)
    keys, values = (op.repeat(x, heads // kv, 1) if heads != kv else x for x in (k, v))
    out = _joined(_attended(n, q, keys, values, None, True))
    return out, k, v


def _rotated(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """(batch, heads, length, size) turned by angles (length, size / 2), of part of the size where less."""
    half = int(cos.shape[-1])
    rest = op.index(x, (..., slice(2 * half, None)))
    if interleaved:
        a, b = op.index(x, (..., slice(0, 2 * half, 2))), op.index(x, (..., slice(1, 2 * half, 2)))
    else:
        a, b = op.index(x, (..., slice(0, half))), op.index(x, (..., slice(half, 2 * half)))
    first, second = op.sub(op.mul(a, cos), op.mul(b, sin)), op.add(op.mul(b, cos), op.mul(a, sin))
    if interleaved:
        made = op.reshape(op.stack([first, second], -1), (*x.shape[:-1], 2 * half))
    else:
        made = op.concat([first, second], -1)
    return made if not int(rest.shape[-1]) else op.concat([made, rest], -1)


@rule("RotaryEmbedding", domain=_MS)
def _rotary(n: NodeCall, x: Any, position: Any, cos: Any, sin: Any) -> Any:
    """Rotary embeddings at positions: (1,) where the first one stands, or (batch, length)."""
    x, position = as_value(x), as_value(position)
    flat = x.ndim == 3
    if flat:
        heads = n.get("num_heads", 0) or int(x.shape[-1]) // (2 * int(cos.shape[-1]))
        x = _split(x, heads)
    steps = op.iota((int(x.shape[2]),), 0, position.dtype)
    at = op.add(steps, position) if position.ndim == 1 else position
    c, s = op.take(cos, at, 0), op.take(sin, at, 0)
    if at.ndim == 2:
        c, s = op.expand_dims(c, 1), op.expand_dims(s, 1)
    y = _rotated(x, c, s, bool(n.get("interleaved", 0)))
    return _joined(y) if flat else y


@rule("EmbedLayerNormalization", domain=_MS)
def _embed(
    n: NodeCall, ids: Any, segments: Any, words: Any, places: Any, kinds: Any, gain: Any, beta: Any,
    mask: Any = None, position: Any = None,
) -> Any:  # fmt: skip
    """The embeddings of BERT: words, places and segments, normalised; and how many words are there."""
    length = int(ids.shape[1])
    at = op.iota((length,), 0, i32) if position is None else position
    total = op.add(op.take(words, ids, 0), op.take(places, at, 0))
    if segments is not None and kinds is not None:
        total = op.add(total, op.take(kinds, segments, 0))
    y = _layer_norm(n, total, gain, beta)
    y = y[0] if isinstance(y, tuple) else y
    count = op.zeros((ids.shape[0],), i32) if mask is None else op.cast(op.sum(mask, 1), i32)
    return y, count, total


@rule("SimplifiedLayerNormalization", domain=_MS)
def _simplified(n: NodeCall, x: Any, gain: Any) -> Any:
    return _rms_norm(n, x, gain)


@rule("TransposeMatMul", domain=_MS)
def _transposed_matmul(n: NodeCall, a: Any, b: Any) -> Any:
    a = op.swapaxes(a, -1, -2) if n.get("transA", 0) else a
    b = op.swapaxes(b, -1, -2) if n.get("transB", 0) else b
    return op.mul(op.matmul(a, b), n.get("alpha", 1.0))


@rule("FusedGemm", domain=_MS)
def _fused_gemm(n: NodeCall, a: Any, b: Any, c: Any = None) -> Any:
    a = op.transpose(a) if n.get("transA", 0) else a
    b = op.transpose(b) if n.get("transB", 0) else b
    y = op.mul(op.matmul(a, b), n.get("alpha", 1.0))
    y = y if c is None else op.add(y, op.mul(c, n.get("beta", 1.0)))
    made: dict[str, Any] = {
        "Relu": op.relu, "Tanh": op.tanh, "Sigmoid": sigmoid, "Elu": op.elu,
        "LeakyRelu": lambda v: op.leaky_relu(v, n.get("activation_alpha", 0.01)),
    }  # fmt: skip
    name = n.get("activation", "")
    if name and name not in made:
        raise OnnxError(f"the activation '{name}' is not known; known are {sorted(made)}")
    return made[name](y) if name else y


@rule("MatMulNBits", domain=_MS)
def _blocked_matmul(
    n: NodeCall,
    a: Any,
    b: Any,
    scales: Any,
    zeros: Any = None,
    groups: Any = None,
    bias: Any = None,
) -> Any:
    """A product with weights (n, k) of few bits, packed in blocks along k with a scale for each."""
    k, width, bits, block = (n.need(w) for w in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8) or block < 16 or groups is not None:
        raise OnnxError(f"weights of {bits} bits in blocks of {block} are not read")
    blocks = -(-k // block)
    codes = op.reshape(_unpack(b, bits), (width, blocks, block))
    scale = op.reshape(scales, (width, blocks, 1))
    if zeros is None:
        zero: Any = float(1 << (bits - 1))
    elif as_value(zeros).dtype.kind == "f":
        zero = op.reshape(zeros, (width, blocks, 1))
    else:
        rows = op.reshape(_unpack(op.reshape(zeros, (width, -1)), bits), (width, -1))
        zero = op.expand_dims(op.index(rows, (slice(None), slice(0, blocks))), -1)
    w = op.reshape(op.mul(op.sub(codes, zero), scale), (width, blocks * block))
    w = op.index(w, (slice(None), slice(0, k)))
    y = op.matmul(a, op.cast(op.transpose(w), as_value(a).dtype))
    return y if bias is None else op.add(y, bias)


def _unpack(b: Any, bits: int) -> Any:
    """Numbers of few bits out of bytes, the lowest bits first, as floats along the last axis."""
    b = as_value(b)
    if bits == 8:
        return op.cast(b, f32)
    wide = op.cast(b, i32)
    parts = [
        op.bitwise_and(op.bitwise_right_shift(wide, s), (1 << bits) - 1) for s in range(0, 8, bits)
    ]
    made = op.stack(parts, -1)
    return op.cast(op.reshape(made, (*b.shape[:-1], -1)), f32)


@rule("QLinearAveragePool", domain=_MS)
def _qlinear_average(
    n: NodeCall, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None
) -> Any:
    y = _real(x, x_scale, x_zero)
    last = bool(n.get("channels_last", 0))
    y = op.moveaxis(y, -1, 1) if last else y
    y = _average_pool(n, y)
    return _rounded(op.moveaxis(y, 1, -1) if last else y, scale, zero, x)


@rule("NhwcMaxPool", domain=_MS)
def _last_max(n: NodeCall, x: Any) -> Any:
    y = _max_pool(n, op.moveaxis(x, -1, 1))
    return op.moveaxis(y[0] if isinstance(y, tuple) else y, 1, -1)


@rule("QLinearSoftmax", domain=_MS)
def _qlinear_softmax(
    n: NodeCall, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None
) -> Any:
    y = _real(x, x_scale, x_zero)
    axis = n.get("axis", -1)
    if n.get("opset", 13) < 13:
        rank = y.ndim
        axis = axis % rank
        flat = op.reshape(y, (int(np.prod(y.shape[:axis], dtype=np.int64)), -1))
        return _rounded(op.reshape(op.softmax(flat, -1), y.shape), scale, zero, x)
    return _rounded(op.softmax(y, axis), scale, zero, x)


@rule("QLinearWhere", domain=_MS)
def _qlinear_where(
    n: NodeCall, c: Any, x: Any, x_scale: Any, x_zero: Any, y: Any, y_scale: Any, y_zero: Any, scale: Any,
    zero: Any = None,
) -> Any:  # fmt: skip
    picked = op.where(op.cast(c, bool_), _real(x, x_scale, x_zero), _real(y, y_scale, y_zero))
    return _rounded(picked, scale, zero, x)


@rule("QLinearReduceMean", domain=_MS)
def _qlinear_mean(
    n: NodeCall, x: Any, x_scale: Any, x_zero: Any, scale: Any, zero: Any = None
) -> Any:
    y = _real(x, x_scale, x_zero)
    axes = tuple(n.get("axes") or range(y.ndim))
    return _rounded(op.mean(y, axes, bool(n.get("keepdims", 1))), scale, zero, x)


@rule("Inverse", domain=_MS)
def _inverse(n: NodeCall, x: Any) -> Any:
    return op.inv(x)
