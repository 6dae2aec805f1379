"""Attention on caches, as model code writes it: split_qkv and flash_attention."""

from __future__ import annotations

import itertools
import math
from typing import Any

from tessera.core.constraints import require
from tessera.core.errors import OperandError, ShapeError
from tessera.ops.arrange import repeat
from tessera.ops.contraction import matmul
from tessera.ops.define import as_value, public
from tessera.ops.elementwise import where
from tessera.ops.neural import attention
from tessera.ops.random import dropout as drop
from tessera.ops.shape import reshape, transpose
from tessera.ops.softmax import softmax


@public
def split_qkv(qkv: Any, *, heads: int, kv_heads: int | None = None) -> tuple[Any, Any, Any]:
    """Queries, keys and values (batch, heads, seq, dim) of one product (batch, seq, (heads + 2 kv_heads)
    dim).
    """
    x = as_value(qkv, "split_qkv")
    shared = heads if kv_heads is None else kv_heads
    if x.ndim != 3:
        raise ShapeError(f"split_qkv: qkv is {x.type}, expected (batch, seq, width)")
    if heads < 1 or shared < 1 or heads % shared:
        raise OperandError(
            f"split_qkv: heads is {heads} and kv_heads {shared}, expected positive numbers of which the "
            "second divides "
            "the first"
        )
    parts = heads + 2 * shared
    if not require("divisible", x.shape[2], parts, "split_qkv: the width"):
        raise ShapeError(
            f"split_qkv: the width of {x.type} is no multiple of {parts}, for {heads} heads of queries and "
            f"{shared} of "
            "keys and values"
        )
    b, s, width = x.shape
    split: Any = transpose(reshape(x, (b, s, parts, width // parts)), (0, 2, 1, 3))
    ends = (0, heads, heads + shared, parts)
    q, k, v = (split[:, i:j] for i, j in itertools.pairwise(ends))
    return q, k, v


@public
def qkv_projection(
    x: Any, weight: Any, bias: Any = None, *, heads: int, kv_heads: int | None = None
) -> tuple[Any, Any, Any]:
    """Queries, keys and values (batch, heads, seq, dim) of x (batch, seq, width) by one product with weight
    (width, (heads + 2 kv_heads) dim).
    """
    v, w = as_value(x, "qkv_projection"), as_value(weight, "qkv_projection")
    if v.ndim != 3 or w.ndim != 2:
        raise ShapeError(
            f"qkv_projection: x is {v.type} and the weight {w.type}, expected (batch, seq, width) and a "
            "matrix"
        )
    made: Any = matmul(v, w)
    return split_qkv(made if bias is None else made + bias, heads=heads, kv_heads=kv_heads)


@public
def flash_attention(
    q: Any, cache: Any, *, dropout: float = 0.0, causal: bool = True, scale: float | None = None,
    counts: Any = None, key: Any = None,
) -> Any:  # fmt: skip
    """Attention of queries (batch, heads, seq, dim) on a cache that holds their positions last: (batch,
    seq, heads * dim).

    With counts, i32 (batch,), only so many queries of each sequence are ones; a dropout above 0 needs a key.
    """
    x = as_value(q, "flash_attention")
    if not (hasattr(cache, "read") and hasattr(cache, "seen")):
        raise OperandError(
            f"flash_attention: got {type(cache).__name__} for the cache, expected a KVCache; for keys and "
            "values alone "
            "use op.attention(q, k, v)"
        )
    if dropout and key is None:
        raise OperandError(f"flash_attention: dropout {dropout} needs key=, such as ts.key(0)")
    k, v = cache.read()
    _check(x, k)
    mask = cache.seen(x.shape[2], causal, counts)
    if dropout:
        y = _with_dropout(x, k, v, mask, scale, dropout, key)
    else:
        y = attention(x, k, v, mask=mask, scale=scale)
    b, h, s, d = y.shape
    return reshape(transpose(y, (0, 2, 1, 3)), (b, s, h * d))


def _with_dropout(
    q: Any, k: Any, v: Any, mask: Any, scale: float | None, p: float, key: Any
) -> Any:
    """Attention some of whose weights are dropped, which exist for that."""
    k, v = (repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores = where(mask, (q @ k.mT) * factor, -math.inf)
    return drop(key, softmax(scores, axis=-1), p) @ v


def _check(q: Any, k: Any) -> None:
    if q.ndim != 4 or not require("divisible", q.shape[1], k.shape[1], "flash_attention: heads"):
        raise ShapeError(
            f"flash_attention: q is {q.type} and the keys {k.type}, expected (batch, heads, seq, dim) with "
            "heads that "
            "those of the keys divide"
        )
    if q.dtype is not k.dtype:
        raise OperandError(
            f"flash_attention: q is {q.type} and the keys {k.type}, expected one dtype; cast q with astype"
        )
