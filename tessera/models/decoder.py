"""The decoder that Llama, Mistral, Qwen, SmolLM and Gemma share; a `DecoderShape` says where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tessera.lang import op
from tessera.models.held import grown, seen
from tessera.models.rope import rotate
from tessera.models.weights import linear, linears, rows_of, scores, side_by_side

Tree = dict[str, Any]


@dataclass(frozen=True)
class DecoderShape:
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


def forward(
    s: DecoderShape, p: Tree, tokens: Any, cache: list[Any], start: Any
) -> tuple[Any, list[Any]]:
    """Hidden states of tokens (batch, rows) that follow `start` (batch,) earlier ones, and the longer
    cache.
    """
    x = rows_of(p["embedding"], tokens)
    if s.embedding_scale != 1.0:
        x = x * s.embedding_scale
    places = op.reshape(start, (-1, 1)) + op.arange(tokens.shape[1], dtype="i32")
    turns = {name: _turn(t, places) for name, t in p["rope"].items()}
    longer = []
    for i, (layer, held) in enumerate(zip(p["layers"], cache, strict=True)):
        y, held = _attention(
            s, layer, norm(s, x, layer["norm1"]), held, places, turns[s.ropes[i]], s.windows[i]
        )
        x = x + (norm(s, y, layer["post1"]) if "post1" in layer else y)
        y = _gated(s, layer, norm(s, x, layer["norm2"]))
        x = x + (norm(s, y, layer["post2"]) if "post2" in layer else y)
        longer.append(held)
    return norm(s, x, p["norm"]), longer


def logits(s: DecoderShape, p: Tree, x: Any) -> Any:
    """Scores of every next token for hidden states."""
    out = scores(x, p["embedding"]) if s.tied else linear(x, p["head"])
    return out if s.final_softcap is None else op.tanh(out / s.final_softcap) * s.final_softcap


def norm(s: DecoderShape, x: Any, gain: Any) -> Any:
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
    s: DecoderShape, p: Tree, x: Any, held: Any, places: Any, turn: Any, window: int | None
) -> tuple[Any, Any]:
    sizes = {n: s.head_dim * (s.heads if n == "q" else s.kv_heads) for n in "qkv"}
    q, k, v = (
        heads_of(y, y.shape[-1] // s.head_dim, s.head_dim) for y in several(x, p, "qkv", sizes)
    )
    if "q_norm" in p:
        q, k = norm(s, q, p["q_norm"]), norm(s, k, p["k_norm"])
    q, k = rotate(q, *turn), rotate(k, *turn)
    keys, values, held = grown(held, k, v, places)
    mask = seen(places, keys.shape[2], window)
    scale = s.scale if s.scale is not None else s.head_dim**-0.5
    if s.softcap is None:
        y = op.attention(q, keys, values, scale=scale, mask=mask)
    else:
        y = capped_attention(q, keys, values, mask, scale, s.softcap)
    return linear(joined(y), p["o"], p.get("o_bias")), held


def several(x: Any, p: Tree, together: str, sizes: dict[str, int]) -> list[Any]:
    """x times several matrices of a layer, which lie side by side under one name where
    their formats agree.
    """
    whole = p.get(together)
    biases = [p.get(f"{n}_bias") for n in sizes]
    ws = sizes.values() if whole is not None else [p[n] for n in sizes]
    return linears(x, whole, list(zip(ws, biases, strict=True)))


def merged(p: Tree) -> Tree:
    """A layer with its matrices of the same input side by side, so that a step has fewer and larger
    products.
    """
    out = dict(p)
    for together, names in (("qkv", ("q", "k", "v")), ("gate_up", ("gate", "up"))):
        whole = side_by_side([p[n] for n in names])
        if whole is not None:
            out = {n: w for n, w in out.items() if n not in names} | {together: whole}
    return out


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


def _gated(s: DecoderShape, p: Tree, x: Any) -> Any:
    gate, up = several(x, p, "gate_up", {"gate": s.hidden, "up": s.hidden})
    return linear(ACTIVATIONS[s.activation](gate) * up, p["down"], p.get("down_bias"))
