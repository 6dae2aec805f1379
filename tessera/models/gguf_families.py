"""The architectures of GGUF files: their names here, their metadata and the names of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tessera.core.errors import ModelError

Values = dict[str, Any]
Get = Callable[[str], Any]  # a value of the metadata by its name after the architecture's


def _nothing(_: Get, __: Values) -> Values:
    return {}


@dataclass(frozen=True)
class Architecture:
    """How the weights and the metadata of one architecture were converted."""

    model_type: str
    names: Mapping[str, str]  # from the stems of Hugging Face to those of the file
    interleaved: bool = False  # the halves of each head's queries and keys are interleaved
    added_one: bool = False  # every gain of a norm has one added
    turned: bool = False  # matrices are (out, in), where the model of Hugging Face has (in, out)
    more: Callable[[Get, Values], Values] = _nothing  # values beyond the common fields


_LAYER = r"model\.layers\.(\d+)\."
_COMMON = {
    r"model\.embed_tokens": "token_embd", r"model\.norm": "output_norm", "lm_head": "output",
    _LAYER + "input_layernorm": r"blk.\1.attn_norm",
    _LAYER + r"self_attn\.([qkv])_proj": r"blk.\1.attn_\2",
    _LAYER + r"self_attn\.o_proj": r"blk.\1.attn_output",
    _LAYER + r"self_attn\.([qk])_norm": r"blk.\1.attn_\2_norm",
    _LAYER + r"mlp\.(gate|up|down)_proj": r"blk.\1.ffn_\2",
}  # fmt: skip
_PLAIN = {**_COMMON, _LAYER + "post_attention_layernorm": r"blk.\1.ffn_norm"}
_FOUR_NORMS = {
    **_COMMON,
    _LAYER + "post_attention_layernorm": r"blk.\1.post_attention_norm",
    _LAYER + "pre_feedforward_layernorm": r"blk.\1.ffn_norm",
    _LAYER + "post_feedforward_layernorm": r"blk.\1.post_ffw_norm",
}
_FUSED = {
    **_PLAIN,
    _LAYER + r"self_attn\.qkv_proj": r"blk.\1.attn_qkv",
    _LAYER + r"mlp\.gate_up_proj": r"blk.\1.ffn_up",
}
_GPT2 = {
    "wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output",
    r"h\.(\d+)\.ln_1": r"blk.\1.attn_norm", r"h\.(\d+)\.ln_2": r"blk.\1.ffn_norm",
    r"h\.(\d+)\.attn\.c_attn": r"blk.\1.attn_qkv", r"h\.(\d+)\.attn\.c_proj": r"blk.\1.attn_output",
    r"h\.(\d+)\.mlp\.c_fc": r"blk.\1.ffn_up", r"h\.(\d+)\.mlp\.c_proj": r"blk.\1.ffn_down",
}  # fmt: skip
_GPT_OSS = {
    **_COMMON,
    _LAYER + "post_attention_layernorm": r"blk.\1.post_attention_norm",
    _LAYER + r"mlp\.router": r"blk.\1.ffn_gate_inp",
}


def _gemma2(get: Get, v: Values) -> Values:
    """Caps, and the scale of scores, which files do not have: the largest model (46 layers) takes the width
    over the heads, others the size of a head.
    """
    return {
        "attn_logit_softcapping": get("attn_logit_softcapping"),
        "final_logit_softcapping": get("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scale(v, 46),
    }


def _query_scale(v: Values, largest: int) -> Any:
    width, heads = v.get("hidden_size"), v.get("num_attention_heads")
    if v.get("num_hidden_layers") != largest:
        return v.get("head_dim")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None


def _gemma3(get: Get, v: Values) -> Values:
    """Layers that see a window turn by angles of their own; five of six do."""
    pattern = get("attention.sliding_window_pattern")
    layers = v.get("num_hidden_layers")
    out: Values = {
        "query_pre_attn_scalar": _query_scale(v, 62),
        "rope_local_base_freq": get("rope.freq_base_swa"),
        "final_logit_softcapping": get("final_logit_softcapping"),
        "sliding_window_pattern": pattern
        if isinstance(pattern, int) and pattern is not True
        else 6,
        "rope_theta": v.get("rope_theta") or 1e6,
    }
    if isinstance(pattern, list) and len(pattern) == layers:
        out["layer_types"] = ["sliding_attention" if p else "full_attention" for p in pattern]
    return out


def _gpt2(get: Get, v: Values) -> Values:
    return {
        "n_embd": v["hidden_size"], "n_layer": v["num_hidden_layers"], "n_head": v["num_attention_heads"],
        "n_inner": v["intermediate_size"], "n_positions": v["max_position_embeddings"],
        "layer_norm_epsilon": get("attention.layer_norm_epsilon"),
    }  # fmt: skip


def _gpt_oss(get: Get, v: Values) -> Values:
    """Experts; the published model does not round the ends of YaRN's ramp."""
    scaling = v.get("rope_scaling")
    if isinstance(scaling, dict):
        scaling = {**scaling, "truncate": False}
    return {
        "num_local_experts": get("expert_count"), "num_experts_per_tok": get("expert_used_count"),
        "intermediate_size": get("expert_feed_forward_length") or v.get("intermediate_size"),
        "rope_scaling": scaling,
    }  # fmt: skip


def _smollm3(get: Get, v: Values) -> Values:
    """Each fourth layer has no positions."""
    layers = v.get("num_hidden_layers")
    count = layers if isinstance(layers, int) and 0 < layers < 1 << 12 else 0
    return {"no_rope_layers": [int((i + 1) % 4 != 0) for i in range(count)]}


def _phi3(get: Get, v: Values) -> Values:
    return {"use_sliding_window": v.get("sliding_window") is not None}


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", _PLAIN, interleaved=True),
    "qwen2": Architecture("qwen2", _PLAIN),
    "qwen3": Architecture("qwen3", _PLAIN),
    "smollm3": Architecture("smollm3", _PLAIN, interleaved=True, more=_smollm3),
    "phi3": Architecture("phi3", _FUSED, more=_phi3),
    "gemma": Architecture("gemma", _PLAIN, added_one=True),
    "gemma2": Architecture("gemma2", _FOUR_NORMS, added_one=True, more=_gemma2),
    "gemma3": Architecture("gemma3_text", _FOUR_NORMS, added_one=True, more=_gemma3),
    "gpt2": Architecture("gpt2", _GPT2, turned=True, more=_gpt2),
    "gpt-oss": Architecture("gpt_oss", _GPT_OSS, more=_gpt_oss),
}


def architecture(kind: Any, path: str) -> Architecture:
    """The architecture that a file names."""
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ModelError(
            f"{path}: the architecture is {kind!r}, expected one of {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[kind]
