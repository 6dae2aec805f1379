"""GPT-OSS: attention with sinks and alternating windows, experts with a clamped SwiGLU, MXFP4 weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tessera.core import tree
from tessera.core.errors import ModelError
from tessera.lang import op
from tessera.models import decoder, llama
from tessera.models.config import Config
from tessera.models.decoder import Tree, heads_of, joined, norm
from tessera.models.held import grown, seen
from tessera.models.rope import rotate
from tessera.models.source import FolderSource
from tessera.models.weights import linear, rows_of

KINDS = ("gpt_oss",)
GROUP = 32  # elements that share an exponent in MXFP4


@tree.node
@dataclass(frozen=True)
class Experts:
    """The matrices of experts in MXFP4: i8 codes (experts, groups, size, out) and scales (experts, groups,
    out).
    """

    codes: Any
    scale: Any


@dataclass(frozen=True)
class GptOssShape(decoder.DecoderShape):
    """Sizes of a GPT-OSS; `hidden` is the width of one expert."""

    experts: int = 1
    chosen: int = 1  # experts of a token
    limit: float = 7.0
    alpha: float = 1.702


def shape(c: Config) -> GptOssShape:
    """The model that a config describes."""
    s = llama.shape(Config({"head_dim": 64, "rms_norm_eps": 1e-5, **c.values}, c.path))
    kinds = c.layer_types(s.layers) or [
        "full_attention" if i % 2 else "sliding_attention" for i in range(s.layers)
    ]
    window = c.size("sliding_window", 128)
    s = replace(s, windows=tuple(window if k == "sliding_attention" else None for k in kinds))
    experts = c.size("num_local_experts", 128)
    chosen = c.size("num_experts_per_tok", c.size("experts_per_token", 4))
    if chosen > experts:
        raise ModelError(f"{c.path}: a token has {chosen} of {experts} experts")
    own = {k: getattr(s, k) for k in decoder.DecoderShape.__dataclass_fields__}
    return GptOssShape(**own, experts=experts, chosen=chosen, limit=c.positive("swiglu_limit", 7.0),
                 alpha=c.positive("swiglu_alpha", 1.702))  # fmt: skip


def params(s: GptOssShape, w: FolderSource) -> Tree:
    """The weights of a model."""
    return {
        "embedding": w.table("model.embed_tokens.weight", s.vocabulary, s.width),
        "norm": w.vector("model.norm.weight", s.width),
        "layers": [_layer(s, w, f"model.layers.{i}.") for i in range(s.layers)],
        "rope": llama.ropes(s),
        "head": w.matrix("lm_head.weight", s.width, s.vocabulary),
    }


def _layer(s: GptOssShape, w: FolderSource, prefix: str) -> Tree:
    q, kv, e = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.experts
    out: Tree = {n: w.vector(f"{prefix}{name}.weight", s.width) for n, name in llama.NORMS.items()}
    sizes = {"q": (s.width, q), "k": (s.width, kv), "v": (s.width, kv), "o": (q, s.width)}
    for n, size in sizes.items():
        out[n] = w.matrix(f"{prefix}{llama.LINEAR[n]}.weight", *size)
        out[f"{n}_bias"] = w.vector(f"{prefix}{llama.LINEAR[n]}.bias", size[1])
    out["sinks"] = w.vector(f"{prefix}self_attn.sinks", s.heads)
    out["router"] = w.matrix(f"{prefix}mlp.router.weight", s.width, e)
    out["router_bias"] = w.vector(f"{prefix}mlp.router.bias", e)
    for n, rows, columns in (("gate_up", s.width, 2 * s.hidden), ("down", s.hidden, s.width)):
        name = f"{prefix}mlp.experts.{n}_proj"
        out[n] = _experts(w, name, e, rows, columns)
        out[f"{n}_bias"] = w.vector(f"{name}_bias", e, columns)
    return out


def _experts(w: FolderSource, name: str, experts: int, rows: int, columns: int) -> Any:
    """Matrices (experts, in, out), dense, or in MXFP4 as codes with a scale for each group of `in`."""
    if not w.has(f"{name}_blocks"):
        return w.vector(name, experts, rows, columns)
    if rows % GROUP:
        raise ModelError(f"{name}: {rows} rows are no multiple of the {GROUP} elements of a block")
    return Experts(*w.groups(name, experts, rows, columns, GROUP))


def forward(
    s: GptOssShape, p: Tree, tokens: Any, cache: list[Any], start: Any
) -> tuple[Any, list[Any]]:
    """Hidden states of tokens that follow `start` earlier ones, and the longer cache."""
    x = rows_of(p["embedding"], tokens)
    places = op.reshape(start, (-1, 1)) + op.arange(tokens.shape[1], dtype="i32")
    cos, sin = (op.expand_dims(op.take(t, places, axis=0), 1) for t in p["rope"][""])
    longer = []
    for i, (layer, held) in enumerate(zip(p["layers"], cache, strict=True)):
        y, held = _attention(
            s, layer, norm(s, x, layer["norm1"]), held, places, (cos, sin), s.windows[i]
        )
        x = x + y
        batch, rows, width = x.shape
        flat = op.reshape(norm(s, x, layer["norm2"]), (batch * rows, width))
        x = x + op.reshape(_mixture(s, layer, flat), (batch, rows, width))
        longer.append(held)
    return norm(s, x, p["norm"]), longer


def _attention(
    s: GptOssShape, p: Tree, x: Any, held: Any, places: Any, turn: Any, window: int | None
) -> tuple[Any, Any]:
    q = rotate(heads_of(linear(x, p["q"], p["q_bias"]), s.heads, s.head_dim), *turn)
    k = rotate(heads_of(linear(x, p["k"], p["k_bias"]), s.kv_heads, s.head_dim), *turn)
    v = heads_of(linear(x, p["v"], p["v_bias"]), s.kv_heads, s.head_dim)
    keys, values, held = grown(held, k, v, places)
    y = sink_attention(
        q, keys, values, p["sinks"], seen(places, keys.shape[2], window), s.head_dim**-0.5
    )
    return linear(joined(y), p["o"], p["o_bias"]), held


def sink_attention(q: Any, k: Any, v: Any, sinks: Any, mask: Any, scale: float) -> Any:
    """Attention with one more score for each head, whose key has no value."""
    batch, heads, rows, dim = q.shape
    groups, room = k.shape[1], k.shape[2]
    q = op.reshape(q, (batch, groups, (heads // groups) * rows, dim))
    score = op.reshape(q @ k.mT * scale, (batch, heads, rows, room))
    score = op.where(mask, score, float("-inf"))
    sink = op.reshape(sinks, (1, heads, 1, 1))
    top = op.maximum(op.max(score, axis=-1, keepdims=True), sink)
    e = op.exp(score - top)
    total = op.sum(e, axis=-1, keepdims=True) + op.exp(sink - top)
    y = op.reshape(e, (batch, groups, (heads // groups) * rows, room)) @ v
    return op.reshape(y, (batch, heads, rows, dim)) / total


def _mixture(s: GptOssShape, p: Tree, x: Any) -> Any:
    """Each row through its chosen experts, whose results are added by the weights of the router."""
    index: Any
    weight: Any
    top, index = op.topk(linear(x, p["router"], p["router_bias"]), s.chosen)
    weight = op.softmax(top, axis=-1)
    order = op.argsort(index, axis=-1)  # experts are added in the order of their numbers
    index, weight = (op.take_along_axis(t, order, axis=-1) for t in (index, weight))
    y = op.zeros(x.shape)
    for j in range(s.chosen):
        y = y + op.expand_dims(weight[:, j], 1) * _expert(s, p, x, index[:, j])
    return y


def _expert(s: GptOssShape, p: Tree, x: Any, chosen: Any) -> Any:
    """Each row (n, width) through one expert."""
    both = _each(x, p["gate_up"], p["gate_up_bias"], chosen)
    pairs: Any = op.reshape(both, (both.shape[0], s.hidden, 2))
    gate, up = op.minimum(pairs[..., 0], s.limit), op.clip(pairs[..., 1], -s.limit, s.limit)
    return _each((up + 1) * (gate * op.sigmoid(gate * s.alpha)), p["down"], p["down_bias"], chosen)


def _each(x: Any, w: Any, bias: Any, chosen: Any) -> Any:
    """Rows times the matrix of an expert of their own."""
    if isinstance(w, Experts):
        codes, scale = op.take(w.codes, chosen, axis=0), op.take(w.scale, chosen, axis=0)
        n, groups, size, _ = codes.shape
        parts = op.reshape(x, (n, groups, 1, size))
        sums: Any = op.matmul(parts, op.cast(codes, "f32"))
        y: Any = op.sum(sums[:, :, 0] * scale, axis=1)
    else:
        y = op.matmul(op.expand_dims(x, 1), op.take(w, chosen, axis=0))
        y = y[:, 0]
    return y + op.take(bias, chosen, axis=0)


def logits(s: GptOssShape, p: Tree, x: Any) -> Any:
    """Scores of every next token."""
    return linear(x, p["head"])
