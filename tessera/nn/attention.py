"""Multi-head attention: grouped heads, rotary positions, a cache of keys and values."""

from __future__ import annotations

from typing import Any, ClassVar

from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.lang.state import KVCache
from tessera.nn.linear import Linear, keys_of, sized
from tessera.nn.module import Module
from tessera.nn.norm import RMSNorm
from tessera.nn.rope import Rope


class MultiHeadAttention(Module):
    """Attention of x (batch, seq, dim) to itself, to a memory, or to what a cache holds.

    kv_heads below heads share keys and values (grouped queries; 1 is multi-query).  Weights of queries,
    keys and values are one matrix `qkv`, or with fused=False three: `q`, `k`, `v`.
    """

    _advice: ClassVar[str] = (  # for those who call it as in PyTorch
        "layer(q, k, v) of PyTorch is layer(x) for self-attention and layer(x, memory) otherwise, and "
        "causal=True is given when the layer is made"
    )

    qkv: Linear | None
    q: Linear | None
    k: Linear | None
    v: Linear | None
    out: Linear
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    rope: Rope | None
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    window: int | None
    scale: float | None
    dropout: float

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        bias: bool = True,
        out_bias: bool | None = None,
        causal: bool = False,
        rope: Rope | None = None,
        qk_norm: bool = False,
        window: int | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        fused: bool = True,
        memory_dim: int | None = None,
        key: Any = None,
        dtype: Any = "f32",
    ) -> None:
        shared = heads if kv_heads is None else kv_heads
        sized("MultiHeadAttention", dim=dim, heads=heads, kv_heads=shared)
        width = head_dim or dim // heads
        if heads % shared or (head_dim is None and dim % heads):
            raise located(
                OperandError(
                    f"nn.MultiHeadAttention: got dim {dim}, {heads} heads and {shared} kv_heads; expected "
                    "heads that "
                    "divide dim, or a head_dim, and kv_heads that divide heads"
                )
            )
        a, b, c, d = keys_of("MultiHeadAttention", key, 4)
        wide, narrow, source = heads * width, shared * width, memory_dim or dim
        split_up = not fused or source != dim
        self.qkv = None if split_up else Linear(dim, wide + 2 * narrow, bias, key=a, dtype=dtype)
        self.q = Linear(dim, wide, bias, key=a, dtype=dtype) if split_up else None
        self.k = Linear(source, narrow, bias, key=b, dtype=dtype) if split_up else None
        self.v = Linear(source, narrow, bias, key=c, dtype=dtype) if split_up else None
        self.out = Linear(wide, dim, bias if out_bias is None else out_bias, key=d, dtype=dtype)
        self.q_norm = RMSNorm(width, dtype=dtype) if qk_norm else None
        self.k_norm = RMSNorm(width, dtype=dtype) if qk_norm else None
        self.rope, self.heads, self.kv_heads, self.head_dim = rope, heads, shared, width
        self.causal, self.window, self.scale, self.dropout = causal, window, scale, dropout

    def __call__(
        self,
        x: Any,
        memory: Any = None,
        *,
        mask: Any = None,
        cache: Any = None,
        positions: Any = None,
        key: Any = None,
    ) -> Any:
        """The result (batch, seq, dim); with a cache, the result and the cache with these positions.

        mask broadcasts to (batch, heads, queries, keys): bool, or numbers that are added.  positions (seq,)
        or (batch, seq) count from the length of the cache, or from 0, unless given.  key: drop weights.
        """
        q, k, v = self.project(x, memory)
        if positions is None:
            positions = self._positions(x.shape[-2], cache)
        if self.rope is not None:
            angles = tuple(_per_head(t) for t in self.rope.angles(_precise(positions, x)))
            q, k = self.rope.turn(q, *angles), self.rope.turn(k, *angles)
        if cache is None:
            y = self._attend(q, k, v, self._mask(positions, mask, x.shape[-2], k), key, self._plain)
            return self._joined(y)
        cache = cache.append(k, v)
        keys, values = cache.read()
        seen = self._seen(positions, cache.positions())
        if (
            type(cache) is not KVCache
        ):  # of a ring, slots that hold nothing and positions before its window
            seen = op.logical_and(seen, cache.seen(x.shape[-2]))
        return self._joined(self._attend(q, keys, values, _also(seen, mask), key, False)), cache

    def project(self, x: Any, memory: Any = None) -> tuple[Any, Any, Any]:
        """Queries (..., heads, seq, head_dim), keys and values (..., kv_heads, seq, head_dim) before
        rotation.
        """
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if self.qkv is None:
            assert self.q is not None
            assert self.k is not None
            assert self.v is not None
            source = x if memory is None else memory
            parts = (self.q(x), self.k(source), self.v(source))
        elif memory is None:
            y = self.qkv(x)
            parts = (y[..., :wide], y[..., wide : wide + narrow], y[..., wide + narrow :])
        else:
            y = _rows(self.qkv, wide, wide + 2 * narrow, memory)
            parts = (_rows(self.qkv, 0, wide, x), y[..., :narrow], y[..., narrow:])
        q, k, v = (self._split(t) for t in parts)
        q = q if self.q_norm is None else self.q_norm(q)
        return q, k if self.k_norm is None else self.k_norm(k), v

    def _split(self, x: Any) -> Any:
        """(..., seq, heads * head_dim) as (..., heads, seq, head_dim)."""
        each = op.reshape(x, (*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim))
        return op.swapaxes(each, -2, -3)

    def _joined(self, y: Any) -> Any:
        y = op.swapaxes(y, -2, -3)
        return self.out(op.reshape(y, (*y.shape[:-2], self.heads * self.head_dim)))

    @property
    def _plain(self) -> bool:
        """Whether causality is all that limits what a query sees."""
        return self.causal and self.window is None

    def _positions(self, count: Any, cache: Any) -> Any:
        here = op.arange(count)
        if cache is None:
            return here
        length = cache.length
        return here + (op.expand_dims(length, -1) if getattr(length, "ndim", 0) else length)

    def _mask(self, positions: Any, mask: Any, count: Any, k: Any) -> Any:
        if self.window is None:
            return mask
        return _also(self._seen(op.arange(count), op.arange(k.shape[-2])), mask)

    def _seen(self, queries: Any, keys: Any) -> Any:
        """Which keys, by their positions, each query sees: (..., 1, queries, keys)."""
        at, keys = op.expand_dims(queries, -1), op.expand_dims(keys, -2)
        seen = keys <= at
        if self.window is not None:
            seen = op.logical_and(seen, keys > at - self.window)
        return seen if seen.ndim == 2 else op.expand_dims(seen, -3)

    def _attend(self, q: Any, k: Any, v: Any, mask: Any, key: Any, causal: bool) -> Any:
        if key is None or self.dropout == 0:
            return op.attention(q, k, v, causal=causal, scale=self.scale, mask=mask)
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        k, v = (op.repeat(t, self.heads // self.kv_heads, axis=-3) for t in (k, v))
        if causal:
            mask = _also(self._seen(op.arange(q.shape[-2]), op.arange(k.shape[-2])), mask)
        scores = (q * scale) @ k.mT
        if mask is not None and mask.dtype.kind == "b":
            scores = op.where(mask, scores, -float("inf"))
        elif mask is not None:
            scores = scores + mask
        return op.random.dropout(key, op.softmax(scores, axis=-1), self.dropout) @ v


def _precise(positions: Any, x: Any) -> Any:
    return op.cast(positions, "f64") if x.dtype.bits > 32 else positions


def _per_head(angles: Any) -> Any:
    """Angles (batch, seq, pairs) beside an axis of heads."""
    return angles if angles.ndim == 2 else op.expand_dims(angles, -3)


def _rows(layer: Linear, start: int, stop: int, x: Any) -> Any:
    """Some of the outputs of a linear layer."""
    y = x @ layer.weight[start:stop].T
    return y if layer.bias is None else y + layer.bias[start:stop]


def _also(seen: Any, mask: Any) -> Any:
    """What is seen by both: a mask of bools, or of numbers that are added."""
    if mask is None:
        return seen
    if mask.dtype.kind == "b":
        return op.logical_and(seen, mask)
    return op.where(seen, mask, -float("inf"))
