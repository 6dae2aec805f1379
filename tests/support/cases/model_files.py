"""Small model files for tests: a writer of GGUF, with nothing checked, so that tests can write what is
wrong.
"""

import json
import struct

import numpy as np

from tessera.models.tokenizer import byte_characters

KINDS = {int: 4, float: 6, bool: 7, str: 8}


def text(s):
    raw = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind, v):
    formats = {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "B",
        10: "Q",
        11: "q",
        12: "d",
    }
    return text(v) if kind == 8 else struct.pack("<" + formats[kind], v)


def value(v):
    """A metadata value with its type; a pair (kind, value) states the type."""
    if isinstance(v, tuple):
        return struct.pack("<I", v[0]) + scalar(*v)
    if isinstance(v, list):
        kind = KINDS[type(v[0])] if v else 8
        items = b"".join(scalar(kind, x) for x in v)
        return struct.pack("<IIQ", 9, kind, len(v)) + items
    return struct.pack("<I", KINDS[type(v)]) + scalar(KINDS[type(v)], v)


def gguf(metadata, tensors, version=3, alignment=32):
    """The bytes of a file; tensors are {name: (number of the format, shape, bytes)} or f32 arrays."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(k) + value(v) for k, v in metadata.items())
    data = b""
    for name, t in tensors.items():
        kind, shape, raw = t if isinstance(t, tuple) else (0, t.shape, t.astype("<f4").tobytes())
        head += text(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", n) for n in shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % alignment)
    return head + bytes(-len(head) % alignment) + data


def random_blocks(f, count, seed=0):
    """Blocks of random bytes in a format."""
    return np.random.default_rng(seed).integers(0, 256, (count, f.bytes), np.uint8)


def safetensors(tensors, metadata=None):
    """The bytes of a safetensors file of f32 arrays."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, t in tensors.items():
        raw = t.astype("<f4").tobytes()
        ends = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": ends}
        data += raw
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


CONFIG = {
    "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 256, "max_position_embeddings": 300, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
SMALL = CONFIG | {"num_hidden_layers": 1, "max_position_embeddings": 200}  # compiles faster


def llama_weights(seed=0, config=CONFIG):
    """Random weights by the names of Hugging Face."""
    rng = np.random.default_rng(seed)
    width, hidden, vocabulary = (
        config["hidden_size"],
        config["intermediate_size"],
        config["vocab_size"],
    )
    kv = width * config["num_key_value_heads"] // config["num_attention_heads"]
    sizes = {"model.embed_tokens": (vocabulary, width), "lm_head": (vocabulary, width)}
    out = {"model.norm.weight": rng.normal(1, 0.1, width)}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        sizes |= {
            f"{p}self_attn.{n}_proj": (m, width)
            for n, m in zip("qkvo", (width, kv, kv, width), strict=True)
        }
        sizes |= {f"{p}mlp.gate_proj": (hidden, width), f"{p}mlp.up_proj": (hidden, width)}
        sizes |= {f"{p}mlp.down_proj": (width, hidden)}
        for n in ("input_layernorm", "post_attention_layernorm"):
            out[f"{p}{n}.weight"] = rng.normal(1, 0.1, width)
    out |= {f"{n}.weight": rng.normal(0, 0.25, size) for n, size in sizes.items()}
    return {n: t.astype(np.float32) for n, t in out.items()}


def llama_folder(path, seed=0, config=CONFIG):
    """A folder with a random Llama and no tokenizer."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(safetensors(llama_weights(seed, config)))
    return path


def byte_tokenizer(size=256):
    """The metadata of a tokenizer whose tokens are bytes; the byte 0 ends a text."""
    names = list(byte_characters().values())
    names = [byte_characters()[b] for b in range(256)]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": names[:size],
        "tokenizer.ggml.merges": [], "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor "
                                   "%}assistant:",
    }  # fmt: skip


SHORT = {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def llama_gguf(seed=0, config=CONFIG, quantise=None, weights=None, metadata=()):
    """The bytes of a GGUF file with the same weights; `quantise(name, array)` may give another format."""
    kind = config["model_type"]
    found = {
        "general.architecture": kind, f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.rope.freq_base": config["rope_theta"],
        f"{kind}.attention.head_count": config["num_attention_heads"],
        f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
        f"{kind}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{kind}.attention.key_length": config.get("head_dim",
        config["hidden_size"] // config["num_attention_heads"]),
    } | byte_tokenizer() | dict(metadata)  # fmt: skip
    tensors = {}
    for name, t in (weights or llama_weights(seed, config)).items():
        own = name.replace("model.layers.", "blk.")
        for hub, short in SHORT.items():
            own = own.replace(hub, short)
        own = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
               "lm_head.weight": "output.weight"}.get(own, own)  # fmt: skip
        if kind == "llama" and own.endswith(
            ("attn_q.weight", "attn_k.weight")
        ):  # halves of heads as pairs
            heads = config["num_attention_heads" if "attn_q" in own else "num_key_value_heads"]
            t = t.reshape(heads, 2, -1, t.shape[1]).swapaxes(1, 2).reshape(t.shape)
        if kind == "gemma" and "norm" in own:
            t = t + 1
        tensors[own] = quantise(own, t) if quantise and t.ndim == 2 else t
    return gguf(found, tensors)
