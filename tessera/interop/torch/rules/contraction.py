"""Products of matrices, convolutions and attention."""

from __future__ import annotations

import math
from typing import Any

from tessera.core.dtype import DType
from tessera.interop.torch.rule import (
    AtenCall,
    NoRuleError,
    as_dtype,
    axis_of,
    number,
    pulled,
    rule,
    wide,
)
from tessera.lang import op


def _product(x: Any, y: Any, dtype: DType) -> Any:
    return op.matmul(as_dtype(x, dtype), as_dtype(y, dtype))


@rule("mm", "bmm", "matmul", "mv", "dot")
def _mm(n: AtenCall, x: Any, y: Any) -> Any:
    return _product(x, y, n.dtype)


@rule("vdot")
def _vdot(n: AtenCall, x: Any, y: Any) -> Any:
    return _product(op.conj(x) if x.dtype.kind == "c" else x, y, n.dtype)


@rule("addmm", "baddbmm", "addmv")
def _addmm(n: AtenCall, c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _scaled_sum(n, c, _product(x, y, n.dtype), beta, alpha)


@rule("addbmm")
def _addbmm(n: AtenCall, c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return _scaled_sum(n, c, op.sum(_product(x, y, n.dtype), axis=0), beta, alpha)


@rule("addr")
def _addr(n: AtenCall, c: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    xy = op.mul(op.expand_dims(as_dtype(x, n.dtype), 1), op.expand_dims(as_dtype(y, n.dtype), 0))
    return _scaled_sum(n, c, xy, beta, alpha)


def _scaled_sum(n: AtenCall, c: Any, product: Any, beta: Any, alpha: Any) -> Any:
    if alpha != 1:
        product = op.mul(product, number(alpha, n.dtype))
    if beta == 0:
        return op.broadcast_to(product, product.shape)
    c = as_dtype(c, n.dtype)
    return op.add(product, c if beta == 1 else op.mul(c, number(beta, n.dtype)))


@rule("linear")
def _linear(n: AtenCall, x: Any, w: Any, bias: Any = None) -> Any:
    y = op.matmul(x, op.matrix_transpose(w)) if w.ndim == 2 else op.matmul(x, w)
    return y if bias is None else op.add(y, bias)


@rule("convolution", "_convolution")
def _convolution(
    n: AtenCall, x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, *_: Any,
) -> Any:  # fmt: skip
    geometry: dict[str, Any] = {
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": groups,
    }
    batched = x if x.ndim == w.ndim else op.expand_dims(x, 0)
    if transposed:
        y = op.conv_transpose(batched, w, bias, output_padding=tuple(output_padding), **geometry)
    else:
        y = op.conv(batched, w, bias, **geometry)
    return y if x.ndim == w.ndim else op.squeeze(y, 0)


@rule("convolution_backward")
def _convolution_backward(
    n: AtenCall, ct: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Any,
) -> Any:  # fmt: skip
    geometry: dict[str, Any] = {
        "stride": tuple(stride),
        "padding": tuple(padding),
        "dilation": tuple(dilation),
        "groups": groups,
    }
    db = op.sum(ct, axis=(0, *range(2, ct.ndim))) if mask[2] else None
    if transposed:

        def run(x: Any, w: Any) -> Any:
            return op.conv_transpose(x, w, None, output_padding=tuple(output_padding), **geometry)

        dx, dw = pulled(run, ct, x, w)
        return dx if mask[0] else None, dw if mask[1] else None, db
    dx = op.conv_input(ct, w, tuple(x.shape[2:]), **geometry) if mask[0] else None
    dw = op.conv_weights(x, ct, tuple(w.shape[2:]), **geometry) if mask[1] else None
    return dx, dw, db


_FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def _scale_of(q: Any, scale: float | None) -> float:
    return 1 / math.sqrt(int(q.shape[-1])) if scale is None else scale


def _attended(q: Any, k: Any, v: Any, causal: bool, mask: Any, scale: float | None) -> Any:
    if mask is not None and mask.dtype.kind == "f":
        mask = as_dtype(mask, q.dtype)
    return op.attention(q, k, v, causal=causal, scale=_scale_of(q, scale), mask=mask)


@rule(_FLASH)
def _attention(
    n: AtenCall, q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout:
        raise NoRuleError("dropout")
    causal, attn_mask = _settled_mask(q, k, causal, attn_mask)
    return _attended(q, k, v, causal, attn_mask, scale), _logsumexp(q, k, causal, attn_mask, scale)


@rule("scaled_dot_product_attention")
def _whole_attention(
    n: AtenCall, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout_p:
        raise NoRuleError("dropout")
    is_causal, attn_mask = _settled_mask(q, k, is_causal, attn_mask)
    return _attended(q, k, v, is_causal, attn_mask, scale)


def _settled_mask(q: Any, k: Any, causal: bool, mask: Any) -> tuple[bool, Any]:
    """A causal mask of queries and keys of two lengths as a mask: PyTorch aligns both at their start."""
    if not causal or q.shape[-2] == k.shape[-2]:
        return causal, mask
    shape = (q.shape[-2], k.shape[-2])
    return False, op.le(op.iota(shape, 1), op.iota(shape, 0))


def _with_heads(q: Any, k: Any) -> Any:
    """Keys with a head for each of the queries, which may share them."""
    if k.ndim < 3 or q.shape[-3] == k.shape[-3]:
        return k
    *front, heads, rows, dim = k.shape
    share = q.shape[-3] // heads
    wide_shape = (*front, heads, share, rows, dim)
    spread = op.broadcast_to(op.expand_dims(k, k.ndim - 2), wide_shape)
    return op.reshape(spread, (*front, heads * share, rows, dim))


def _logsumexp(q: Any, k: Any, causal: bool, mask: Any, scale: float | None) -> Any:
    """The logarithms of the sums that the softmax divides by; nothing reads them unless PyTorch's backward
    does.
    """
    dtype = wide(q.dtype)
    q, k = as_dtype(q, dtype), as_dtype(_with_heads(q, k), dtype)
    scores = op.mul(op.matmul(q, op.matrix_transpose(k)), number(_scale_of(q, scale), dtype))
    if mask is not None:
        low = number(-math.inf, dtype)
        scores = (
            op.add(scores, as_dtype(mask, dtype))
            if mask.dtype.kind == "f"
            else op.where(mask, scores, low)
        )
    if causal:
        shape = tuple(scores.shape[-2:])
        ahead = op.gt(op.iota(shape, 1), op.iota(shape, 0))
        scores = op.where(ahead, number(-math.inf, dtype), scores)
    return op.logsumexp(scores, axis=-1)


@rule(f"{_FLASH}_backward")
def _attention_backward(
    n: AtenCall, ct: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, dropout: float, causal: bool, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout:
        raise NoRuleError("dropout")
    causal, attn_mask = _settled_mask(q, k, causal, attn_mask)
    if attn_mask is None:
        return tuple(op.attention_grad(q, k, v, out, ct, causal=causal, scale=_scale_of(q, scale)))

    def run(q: Any, k: Any, v: Any) -> Any:
        return _attended(q, k, v, causal, attn_mask, scale)

    return pulled(run, ct, q, k, v)


@rule("_cdist_forward")
def _cdist(n: AtenCall, x: Any, y: Any, p: float, mode: Any = None) -> Any:
    apart = op.abs(op.sub(op.expand_dims(x, x.ndim - 1), op.expand_dims(y, y.ndim - 2)))
    if p == 2:
        return op.sqrt(op.sum(op.square(apart), axis=-1))
    if p == 1:
        return op.sum(apart, axis=-1)
    if p == math.inf:
        return op.max(apart, axis=-1)
    if p == 0:
        return op.sum(op.where(op.isnan(apart), apart, op.cast(op.ne(apart, 0), x.dtype)), axis=-1)
    return op.pow(op.sum(op.pow(apart, number(p, x.dtype)), axis=-1), number(1 / p, x.dtype))


@rule("cross")
def _cross(n: AtenCall, x: Any, y: Any, dim: int | None = None) -> Any:
    """Along the first axis of three elements, where none is named."""
    if dim is None:
        dim = next((i for i, s in enumerate(x.shape) if s == 3), -1)
    return _linalg_cross(n, x, y, dim)


@rule("linalg_cross")
def _linalg_cross(n: AtenCall, x: Any, y: Any, dim: int = -1) -> Any:
    x, y = op.broadcast_arrays(as_dtype(x, n.dtype), as_dtype(y, n.dtype))
    axis = axis_of(dim, x.ndim)
    ahead = [op.roll(v, -1, axis) for v in (x, y)]
    behind = [op.roll(v, 1, axis) for v in (x, y)]
    return op.sub(op.mul(ahead[0], behind[1]), op.mul(behind[0], ahead[1]))
