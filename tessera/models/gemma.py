"""Gemma 1, 2 and 3 (text): gains of 1 + weight, scaled embeddings, norms after each half of a layer, soft
caps.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.models import llama
from tessera.models.config import Config
from tessera.models.decoder import ACTIVATIONS, DecoderShape, Tree
from tessera.models.source import WeightSource

KINDS = ("gemma", "gemma2", "gemma3_text")
NORMS = {
    "norm1": "input_layernorm", "post1": "post_attention_layernorm", "norm2": "pre_feedforward_layernorm",
    "post2": "post_feedforward_layernorm",
}  # fmt: skip
LOCAL = "local"


def shape(c: Config) -> DecoderShape:
    """The decoder that a config describes."""
    kind = c.values.get("model_type")
    first = Config({"head_dim": 256, **c.values}, c.path)
    s = llama.shape(Config({**first.values, "hidden_act": None}, c.path))
    act = c.choice("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh")
    s = replace(s, gain_offset=1.0, embedding_scale=s.width**0.5, activation=act)
    s = replace(s, tied=c.flag("tie_word_embeddings", True))
    if kind == "gemma":
        return replace(s, windows=(None,) * s.layers)
    window = c.size("sliding_window", 4096)
    every = 2 if kind == "gemma2" else c.size("sliding_window_pattern", 6)
    kinds = c.layer_types(s.layers) or [
        "sliding_attention" if (i + 1) % every else "full_attention" for i in range(s.layers)
    ]
    local = [k == "sliding_attention" for k in kinds]
    s = replace(
        s, windows=tuple(window if is_local else None for is_local in local),
        scale=c.positive("query_pre_attn_scalar", 256) ** -0.5,
        softcap=c.maybe_positive("attn_logit_softcapping"),
        final_softcap=c.maybe_positive("final_logit_softcapping"),
    )  # fmt: skip
    return replace(s, **_two_ropes(c, local)) if kind == "gemma3_text" else s


def _two_ropes(c: Config, local: list[bool]) -> Tree:
    """Gemma 3 turns by other angles where a layer sees only its neighbours."""
    both = c.values.get("rope_parameters")
    if isinstance(both, dict) and "full_attention" in both:
        far = Config({**c.values, "rope_parameters": both["full_attention"]}, c.path).rope()
        near = Config({**c.values, "rope_parameters": both.get("sliding_attention")}, c.path).rope()
    else:
        far = Config({"rope_theta": 1e6, **c.values}, c.path).rope()
        near = {"rope_theta": c.positive("rope_local_base_freq", 10000.0)}
    return {
        "rope_parameters": {"": far, LOCAL: near},
        "ropes": tuple(LOCAL if is_local else "" for is_local in local),
    }


def params(s: DecoderShape, w: WeightSource) -> Tree:
    """The weights of a decoder."""
    out: Tree = {
        "embedding": w.table("model.embed_tokens.weight", s.vocabulary, s.width),
        "norm": w.vector("model.norm.weight", s.width),
        "rope": llama.ropes(s),
    }
    prefixes = [f"model.layers.{i}." for i in range(s.layers)]
    norms = NORMS if w.has(f"{prefixes[0]}pre_feedforward_layernorm.weight") else llama.NORMS
    out["layers"] = [llama.layer(s, w, prefix, norms) for prefix in prefixes]
    if not s.tied:
        out["head"] = w.matrix("lm_head.weight", s.width, s.vocabulary)
    return out
