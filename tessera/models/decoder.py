"""The decoder that Llama, Mistral, Qwen, SmolLM and Gemma share; a `Shape` says where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.lang import op
from tessera.models.rope import rotate
from tessera.models.weights import linear, rows_of, scores

Tree = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Sizes and choices of a decoder."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    context: int
    eps: float
    activation: str = "silu"
    gain_offset: float = 0.0  # Gemma's gains are 1 + weight
    embedding_scale: float = 1.0
    scale: float | None = None  # of scores; 1 / sqrt(head_dim) unless given
    tied: bool = False
    windows: tuple[int | None, ...] = ()  # how many positions each layer sees
    ropes: tuple[str, ...] = ()  # which tables each layer turns by
    rope_parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    softcap: float | None = None  # of scores
    final_softcap: float | None = None  # of logits


ACTIVATIONS: dict[str, Any] = {
    "silu": op.silu,
    "gelu": op.gelu,
    "gelu_pytorch_tanh": lambda x: op.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: op.gelu(x, approximate="tanh"),
    "relu": op.relu,
}


def forward(s: Shape, p: Tree, tokens: Any, cache: list[Any], start: Any) -> tuple[Any, list[Any]]:
    """Hidden states of tokens (batch, rows) that follow `start` (batch,) earlier ones, and the longer cache."""
    x = rows_of(p["embedding"], tokens)
    if s.embedding_scale != 1.0:
        x = x * s.embedding_scale
    places = op.reshape(start, (-1, 1)) + op.arange(tokens.shape[1], dtype="i32")
    turns = {name: _turn(t, places) for name, t in p["rope"].items()}
    grown = []
    for i, (layer, held) in enumerate(zip(p["layers"], cache, strict=True)):
        y, held = _attention(
            s, layer, norm(s, x, layer["norm1"]), held, places, turns[s.ropes[i]], s.windows[i]
        )
        x = x + (norm(s, y, layer["post1"]) if "post1" in layer else y)
        y = _gated(s, layer, norm(s, x, layer["norm2"]))
        x = x + (norm(s, y, layer["post2"]) if "post2" in layer else y)
        grown.append(held)
    return norm(s, x, p["norm"]), grown


def logits(s: Shape, p: Tree, x: Any) -> Any:
    """Scores of every next token for hidden states."""
    out = scores(x, p["embedding"]) if s.tied else linear(x, p["head"])
    return out if s.final_softcap is None else op.tanh(out / s.final_softcap) * s.final_softcap


def norm(s: Shape, x: Any, gain: Any) -> Any:
    """RMS norm with Gemma's offset of the gain, if there is one."""
    return op.rmsnorm(x, gain + s.gain_offset if s.gain_offset else gain, eps=s.eps)


def _turn(table: Any, places: Any) -> tuple[Any, Any]:
    cos, sin = (op.expand_dims(op.take(t, places, axis=0), 1) for t in table)
    return cos, sin


def layernorm(x: Any, affine: tuple[Any, Any], eps: float) -> Any:
    """Layer norm with a gain and a bias."""
    gain, bias = affine
    return op.layernorm(x, gain, bias, eps=eps)


def heads_of(x: Any, heads: int, dim: int) -> Any:
    """(batch, rows, heads * dim) as (batch, heads, rows, dim)."""
    batch, rows, _ = x.shape
    return op.transpose(op.reshape(x, (batch, rows, heads, dim)), (0, 2, 1, 3))


def joined(y: Any) -> Any:
    """(batch, heads, rows, dim) as (batch, rows, heads * dim)."""
    batch, heads, rows, dim = y.shape
    return op.reshape(op.transpose(y, (0, 2, 1, 3)), (batch, rows, heads * dim))


def _attention(
    s: Shape, p: Tree, x: Any, held: Any, places: Any, turn: Any, window: int | None
) -> tuple[Any, Any]:
    q = heads_of(linear(x, p["q"], p.get("q_bias")), s.heads, s.head_dim)
    k = heads_of(linear(x, p["k"], p.get("k_bias")), s.kv_heads, s.head_dim)
    v = heads_of(linear(x, p["v"], p.get("v_bias")), s.kv_heads, s.head_dim)
    if "q_norm" in p:
        q, k = norm(s, q, p["q_norm"]), norm(s, k, p["k_norm"])
    q, k = rotate(q, *turn), rotate(k, *turn)
    keys, values = (appended(c, new, places) for c, new in zip(held, (k, v), strict=True))
    mask = seen(places, keys.shape[2], window)
    scale = s.scale if s.scale is not None else s.head_dim**-0.5
    if s.softcap is None:
        y = op.attention(q, keys, values, scale=scale, mask=mask)
    else:
        y = capped_attention(q, keys, values, mask, scale, s.softcap)
    return linear(joined(y), p["o"], p.get("o_bias")), (keys, values)


def appended(held: Any, new: Any, places: Any) -> Any:
    """A cache (batch, heads, room, dim) with rows (batch, heads, rows, dim) at the places of each sequence."""
    room, rows = held.shape[2], new.shape[2]
    at = op.arange(room, dtype="i32") - places[:, :1]
    written = op.logical_and(at >= 0, at < rows)
    if rows > 1:
        index = op.clip(at, 0, rows - 1)
        index = op.broadcast_to(op.reshape(index, (-1, 1, room, 1)), held.shape)
        new = op.take_along_axis(new, index, axis=2)
    return op.where(op.reshape(written, (-1, 1, room, 1)), op.cast(new, held.dtype), held)


def seen(places: Any, room: int, window: int | None) -> Any:
    """Bools (batch, 1, rows, room): which positions of a cache a row sees."""
    row, key = op.reshape(places, (places.shape[0], 1, -1, 1)), op.arange(room, dtype="i32")
    below = key <= row
    return below if window is None else op.logical_and(below, key > row - window)


def capped_attention(q: Any, k: Any, v: Any, mask: Any, scale: float, cap: float) -> Any:
    """Attention whose scores pass through cap * tanh(score / cap)."""
    batch, heads, rows, dim = q.shape
    groups = k.shape[1]
    q = op.reshape(q * scale, (batch, groups, (heads // groups) * rows, dim))
    score = op.reshape(q @ k.mT, (batch, groups, heads // groups, rows, k.shape[2]))
    score = op.tanh(score / cap) * cap
    score = op.where(op.expand_dims(mask, 1), score, float("-inf"))
    weight = op.reshape(op.softmax(score, axis=-1), (batch, groups, -1, k.shape[2]))
    return op.reshape(weight @ v, (batch, heads, rows, dim))


def _gated(s: Shape, p: Tree, x: Any) -> Any:
    gate = ACTIVATIONS[s.activation](linear(x, p["gate"], p.get("gate_bias")))
    return linear(gate * linear(x, p["up"], p.get("up_bias")), p["down"], p.get("down_bias"))
