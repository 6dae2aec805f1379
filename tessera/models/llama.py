"""Llama, Mistral, Qwen 2, Qwen 3, SmolLM and Phi 3: their configs and the names of their weights."""

from __future__ import annotations

from tessera.core.errors import ModelError
from tessera.models.config import Config
from tessera.models.decoder import ACTIVATIONS, DecoderShape, Tree, merged
from tessera.models.rope import tables
from tessera.models.source import WeightSource

LONGEST = 1 << 17  # positions of the tables of angles, 64 MiB for heads of 64; GPT-OSS has as many
KINDS = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3")


def shape(c: Config) -> DecoderShape:
    """The decoder that a config describes."""
    heads, layers, width = (
        c.size("num_attention_heads"),
        c.size("num_hidden_layers"),
        c.size("hidden_size"),
    )
    kv = c.size("num_key_value_heads", heads)
    if heads % kv or (width % heads and c.maybe_size("head_dim") is None):
        raise ModelError(
            f"{c.path}: {heads} heads do not fit {kv} heads of keys and a width of {width}"
        )
    dim = c.size("head_dim", width // heads)
    if dim % 2:
        raise ModelError(f"{c.path}: head_dim is {dim}, expected an even number")
    eps = 1e-5 if c.values.get("model_type") == "phi3" else 1e-6
    return DecoderShape(
        width=width, layers=layers, heads=heads, kv_heads=kv, head_dim=dim,
        hidden=c.size("intermediate_size"), vocabulary=c.size("vocab_size"),
        context=min(c.size("max_position_embeddings", 2048), LONGEST), eps=c.positive("rms_norm_eps", eps),
        activation=c.choice("hidden_act", ACTIVATIONS, "silu"), tied=c.flag("tie_word_embeddings"),
        windows=_windows(c, layers), ropes=_ropes(c, layers), rope_parameters={"": c.rope()},
    )  # fmt: skip


def _windows(c: Config, layers: int) -> tuple[int | None, ...]:
    window = c.maybe_size("sliding_window")
    if not c.flag("use_sliding_window", c.values.get("model_type") in ("mistral", "phi3")):
        window = None
    kinds = c.layer_types(layers)
    if kinds is None:
        return (window,) * layers
    return tuple(window if k == "sliding_attention" else None for k in kinds)


def _ropes(c: Config, layers: int) -> tuple[str, ...]:
    """SmolLM 3 has layers without positions, by a list of 0 and 1."""
    listed = c.values.get("no_rope_layers") if c.values.get("model_type") == "smollm3" else None
    if listed is None:
        return ("",) * layers
    if (
        not isinstance(listed, list)
        or len(listed) != layers
        or not all(x in (0, 1) for x in listed)
    ):
        raise ModelError(f"{c.path}: no_rope_layers is not a list of {layers} numbers 0 or 1")
    return tuple("" if x else "none" for x in listed)


def params(s: DecoderShape, w: WeightSource) -> Tree:
    """The weights of a decoder."""
    out: Tree = {
        "embedding": w.table("model.embed_tokens.weight", s.vocabulary, s.width),
        "norm": w.vector("model.norm.weight", s.width),
        "layers": [layer(s, w, f"model.layers.{i}.") for i in range(s.layers)],
        "rope": ropes(s),
    }
    if not s.tied:
        out["head"] = w.matrix("lm_head.weight", s.width, s.vocabulary)
    return out


def ropes(s: DecoderShape) -> Tree:
    """The tables of cosines and sines by name; "none" turns by no angle."""
    made = {name: tables(p, s.head_dim, s.context) for name, p in s.rope_parameters.items()}
    if "none" in s.ropes:
        cos, sin = made[""]
        made["none"] = (cos * 0 + 1, sin * 0)
    return made


LINEAR = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
NORMS = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"}


def layer(s: DecoderShape, w: WeightSource, prefix: str, norms: dict[str, str] = NORMS) -> Tree:
    """The weights of one layer."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    sizes = {
        "q": (s.width, q), "k": (s.width, kv), "v": (s.width, kv), "o": (q, s.width),
        "gate": (s.width, s.hidden),
        "up": (s.width, s.hidden), "down": (s.hidden, s.width),
    }  # fmt: skip
    out: Tree = {n: w.vector(f"{prefix}{name}.weight", s.width) for n, name in norms.items()}
    fused = w.has(f"{prefix}self_attn.qkv_proj.weight")  # Phi 3
    if fused:
        out["qkv"] = w.matrix(f"{prefix}self_attn.qkv_proj.weight", s.width, q + 2 * kv)
        out["gate_up"] = w.matrix(f"{prefix}mlp.gate_up_proj.weight", s.width, 2 * s.hidden)
    for n, name in LINEAR.items():
        if fused and n not in ("o", "down"):
            continue
        out[n] = w.matrix(f"{prefix}{name}.weight", *sizes[n])
        if w.has(f"{prefix}{name}.bias"):
            out[f"{n}_bias"] = w.vector(f"{prefix}{name}.bias", sizes[n][1])
    for n in ("q_norm", "k_norm"):
        if w.has(f"{prefix}self_attn.{n}.weight"):
            out[n] = w.vector(f"{prefix}self_attn.{n}.weight", s.head_dim)
    return out if fused else merged(out)
