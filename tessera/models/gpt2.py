"""GPT-2: learned positions, layer norms, one matrix for queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.core.errors import ModelError
from tessera.lang import op
from tessera.models.config import Config
from tessera.models.decoder import ACTIVATIONS, Tree, heads_of, joined, layernorm
from tessera.models.held import grown, seen
from tessera.models.source import WeightSource
from tessera.models.weights import linear, rows_of, scores

KINDS = ("gpt2",)


@dataclass(frozen=True)
class Gpt2Shape:
    """Sizes of a GPT-2."""

    width: int
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    context: int
    eps: float
    activation: str


def shape(c: Config) -> Gpt2Shape:
    """The model that a config describes."""
    width, heads = c.size("n_embd"), c.size("n_head")
    if width % heads:
        raise ModelError(f"{c.path}: {heads} heads do not divide a width of {width}")
    return Gpt2Shape(
        width, c.size("n_layer"), heads, width // heads, c.size("n_inner", 4 * width), c.size("vocab_size"),
        c.size("n_positions", 1024), c.positive("layer_norm_epsilon", 1e-5),
        c.choice("activation_function", ACTIVATIONS, "gelu_new"),
    )  # fmt: skip


def params(s: Gpt2Shape, w: WeightSource) -> Tree:
    """The weights; linear layers are stored as (in, out)."""

    def block(prefix: str) -> Tree:
        sizes = {
            "attn.c_attn": (s.width, 3 * s.width), "attn.c_proj": (s.width, s.width),
            "mlp.c_fc": (s.width, s.hidden), "mlp.c_proj": (s.hidden, s.width),
        }  # fmt: skip
        out: Tree = {n: _pair(w, prefix + n, (s.width,), (s.width,)) for n in ("ln_1", "ln_2")}
        return out | {n: _pair(w, prefix + n, size, size[1:]) for n, size in sizes.items()}

    out: Tree = {
        "embedding": w.table("wte.weight", s.vocabulary, s.width),
        "positions": w.vector("wpe.weight", s.context, s.width),
        "norm": _pair(w, "ln_f", (s.width,), (s.width,)),
        "layers": [block(f"h.{i}.") for i in range(s.layers)],
    }
    if w.has("lm_head.weight"):  # files that write the tied matrix twice
        out["head"] = w.matrix("lm_head.weight", s.width, s.vocabulary)
    return out


def _pair(
    w: WeightSource, name: str, weight: tuple[int, ...], bias: tuple[int, ...]
) -> tuple[Any, Any]:
    return w.vector(f"{name}.weight", *weight), w.vector(f"{name}.bias", *bias)


def forward(
    s: Gpt2Shape, p: Tree, tokens: Any, cache: list[Any], start: Any
) -> tuple[Any, list[Any]]:
    """Hidden states of tokens that follow `start` earlier ones, and the longer cache."""
    places = op.reshape(start, (-1, 1)) + op.arange(tokens.shape[1], dtype="i32")
    x = rows_of(p["embedding"], tokens) + op.take(p["positions"], places, axis=0)
    longer = []
    for layer, held in zip(p["layers"], cache, strict=True):
        y, held = _attention(s, layer, layernorm(x, layer["ln_1"], s.eps), held, places)
        x = x + y
        y = ACTIVATIONS[s.activation](
            linear(layernorm(x, layer["ln_2"], s.eps), *layer["mlp.c_fc"])
        )
        x = x + linear(y, *layer["mlp.c_proj"])
        longer.append(held)
    return layernorm(x, p["norm"], s.eps), longer


def _attention(s: Gpt2Shape, p: Tree, x: Any, held: Any, places: Any) -> tuple[Any, Any]:
    qkv = linear(x, *p["attn.c_attn"])
    parts = (qkv[..., i * s.width : (i + 1) * s.width] for i in range(3))
    q, k, v = (heads_of(part, s.kv_heads, s.head_dim) for part in parts)
    keys, values, held = grown(held, k, v, places)
    y = op.attention(q, keys, values, mask=seen(places, keys.shape[2], None))
    return linear(joined(y), *p["attn.c_proj"]), held


def logits(s: Gpt2Shape, p: Tree, x: Any) -> Any:
    """Scores of every next token, by the tied embedding unless there is a matrix of its own."""
    return linear(x, p["head"]) if "head" in p else scores(x, p["embedding"])
