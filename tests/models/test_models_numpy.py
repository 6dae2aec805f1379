"""Small models of other families beside the same formulas in NumPy, in f64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

import tessera as ts
from tessera.core.errors import ModelError, OperandError, ShapeError
from tests.support.cases.model_files import SMALL, llama_folder, llama_weights, safetensors

RUNS_ON = "numpy"
pytestmark = pytest.mark.filterwarnings("ignore:_every. donate acts on the targets")
RNG = np.random.default_rng(31)
WIDTH, HEADS, HIDDEN, LAYERS = 12, 3, 20, 2


def normal(*shape: int) -> Any:
    return RNG.normal(0, 0.3, shape).astype(np.float32)


def gain(*shape: int) -> Any:
    return RNG.normal(1, 0.1, shape).astype(np.float32)


def folder(path: Path, config: dict[str, Any], weights: dict[str, Any]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(safetensors(weights))
    return str(path)


def gelu(x: Any) -> Any:
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def gelu_new(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def norm(x: Any, w: dict[str, Any], name: str, eps: float) -> Any:
    middle = x - x.mean(-1, keepdims=True)
    scaled = middle / np.sqrt((middle**2).mean(-1, keepdims=True) + eps)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x: Any, w: dict[str, Any], name: str) -> Any:
    return x @ w[f"{name}.weight"].T.astype(np.float64) + w[f"{name}.bias"]


def attended(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """Heads of (rows, width) matrices."""
    out = []
    for part in range(HEADS):
        cut = slice(part * WIDTH // HEADS, (part + 1) * WIDTH // HEADS)
        score = q[:, cut] @ k[:, cut].T / np.sqrt(WIDTH // HEADS)
        if causal:
            score = np.where(np.tri(len(q), dtype=bool), score, -np.inf)
        e = np.exp(score - score.max(-1, keepdims=True))
        out.append(e / e.sum(-1, keepdims=True) @ v[:, cut])
    return np.concatenate(out, -1)


def layer_weights(i: int, names: dict[str, str]) -> dict[str, Any]:
    sizes = dict.fromkeys("qkvo", (WIDTH, WIDTH)) | {"up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
    out: dict[str, Any] = {}
    for short, name in names.items():
        whole = f"encoder.layer.{i}.{name}"
        out[f"{whole}.weight"] = normal(*sizes[short]) if short in sizes else gain(WIDTH)
        out[f"{whole}.bias"] = normal(sizes[short][0] if short in sizes else WIDTH)
    return out


BERT = {
    "q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value",
    "o": "attention.output.dense",
    "norm1": "attention.output.LayerNorm", "up": "intermediate.dense", "down": "output.dense",
    "norm2": "output.LayerNorm",
}  # fmt: skip
VIT = {
    "norm1": "layernorm_before", "q": "attention.attention.query", "k": "attention.attention.key",
    "v": "attention.attention.value", "o": "attention.output.dense", "norm2": "layernorm_after",
    "up": "intermediate.dense", "down": "output.dense",
}  # fmt: skip
ENCODER = {
    "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
    "intermediate_size": HIDDEN,
    "layer_norm_eps": 1e-3,
}  # fmt: skip


def bert(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    w = {
        "embeddings.word_embeddings.weight": normal(11, WIDTH),
        "embeddings.position_embeddings.weight": normal(20, WIDTH),
        "embeddings.token_type_embeddings.weight": normal(2, WIDTH),
        "embeddings.LayerNorm.weight": gain(WIDTH),
        "embeddings.LayerNorm.bias": normal(WIDTH),
    }  # fmt: skip
    for i in range(LAYERS):
        w |= layer_weights(i, BERT)
    config = {**ENCODER, "model_type": "bert", "vocab_size": 11, "max_position_embeddings": 20}
    return folder(tmp_path / "bert", config, w), w


def bert_states(w: dict[str, Any], tokens: list[int]) -> Any:
    x = w["embeddings.word_embeddings.weight"][tokens].astype(np.float64)
    x = (
        x
        + w["embeddings.position_embeddings.weight"][: len(tokens)]
        + w["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm(x, w, "embeddings.LayerNorm", 1e-3)
    for i in range(LAYERS):
        n = {short: f"encoder.layer.{i}.{name}" for short, name in BERT.items()}
        y = attended(*(linear(x, w, n[k]) for k in "qkv"))
        x = norm(x + linear(y, w, n["o"]), w, n["norm1"], 1e-3)
        x = norm(x + linear(gelu(linear(x, w, n["up"])), w, n["down"]), w, n["norm2"], 1e-3)
    return x


def test_bert_is_its_formula_whatever_the_rows_that_texts_are_padded_to(tmp_path: Path) -> None:
    where, w = bert(tmp_path)
    m = ts.models.load(where)
    for n in (1, 3, 16, 17, 20):
        tokens = RNG.integers(0, 11, n).tolist()
        want = bert_states(w, tokens)
        np.testing.assert_allclose(m.hidden(tokens), want, rtol=2e-4, atol=2e-5)
        mean = want.mean(0)
        np.testing.assert_allclose(
            m.embed_tokens(tokens), mean / np.linalg.norm(mean), rtol=1e-3, atol=1e-4
        )
    (tmp_path / "bert" / "1_Pooling").mkdir()
    (tmp_path / "bert" / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    first = want[0] / np.linalg.norm(want[0])
    np.testing.assert_allclose(
        ts.models.load(where).embed_tokens(tokens), first, rtol=1e-3, atol=1e-4
    )


def test_what_bert_cannot_read_is_refused(tmp_path: Path) -> None:
    m = ts.models.load(bert(tmp_path)[0])
    for bad in ([], [0] * 21, [[1, 2]], [0.5]):
        with pytest.raises(ShapeError, match="expected 1 to 20 integers"):
            m.hidden(np.array(bad))
    for token in (-1, 11):
        with pytest.raises(OperandError, match="a token is out of range; the model has 11"):
            m.hidden(np.array([token]))
    with pytest.raises(OperandError, match="has no tokenizer"):
        m.embed("text")


def vit(tmp_path: Path, **more: Any) -> tuple[str, dict[str, Any]]:
    w = {
        "embeddings.cls_token": normal(1, 1, WIDTH), "embeddings.position_embeddings": normal(1, 5, WIDTH),
        "embeddings.patch_embeddings.projection.weight": normal(WIDTH, 3, 4, 4),
        "embeddings.patch_embeddings.projection.bias": normal(WIDTH), "layernorm.weight": gain(WIDTH),
        "layernorm.bias": normal(WIDTH), "classifier.weight": normal(5, WIDTH), "classifier.bias": normal(5),
    }  # fmt: skip
    for i in range(LAYERS):
        w |= layer_weights(i, VIT)
    config = {
        **ENCODER,
        "model_type": "vit",
        "image_size": 8,
        "patch_size": 4,
        "num_channels": 3,
        "num_labels": 5,
    }
    return folder(tmp_path / "vit", config | more, w), w


def test_vit_is_its_formula(tmp_path: Path) -> None:
    where, w = vit(tmp_path)
    m = ts.models.load(where)
    images = normal(2, 3, 8, 8)
    kernel, stem = (
        w["embeddings.patch_embeddings.projection.weight"],
        "embeddings.patch_embeddings.projection",
    )
    states = []
    for image in images:
        patches = [image[:, r : r + 4, c : c + 4] for r in (0, 4) for c in (0, 4)]
        rows = [
            np.einsum("ochw,chw->o", kernel.astype(np.float64), p) + w[f"{stem}.bias"]
            for p in patches
        ]
        x = (
            np.stack([w["embeddings.cls_token"][0, 0], *rows])
            + w["embeddings.position_embeddings"][0]
        )
        for i in range(LAYERS):
            n = {short: f"encoder.layer.{i}.{name}" for short, name in VIT.items()}
            y = norm(x, w, n["norm1"], 1e-3)
            x = x + linear(attended(*(linear(y, w, n[k]) for k in "qkv")), w, n["o"])
            y = norm(x, w, n["norm2"], 1e-3)
            x = x + linear(gelu(linear(y, w, n["up"])), w, n["down"])
        states.append(norm(x, w, "layernorm", 1e-3))
    want = np.stack(states)
    np.testing.assert_allclose(m.hidden(images), want, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        m.logits(images), linear(want[:, 0], w, "classifier"), rtol=1e-3, atol=1e-4
    )
    for bad in (images[0], images[:, :2], images[:, :, :4], images[..., :4]):
        with pytest.raises(ShapeError, match=r"expected \[n, 3, 8, 8\]"):
            m.hidden(bad)


def test_encoders_whose_sizes_do_not_divide_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="patches of 3 do not divide an image of 8"):
        ts.models.load(vit(tmp_path, patch_size=3)[0])
    with pytest.raises(ModelError, match="5 heads do not divide a width of 12"):
        ts.models.load(vit(tmp_path, num_attention_heads=5)[0])


@pytest.mark.parametrize("own_head", [False, True])
def test_gpt2_is_its_formula(tmp_path: Path, own_head: bool) -> None:
    w = {
        "wte.weight": normal(11, WIDTH),
        "wpe.weight": normal(16, WIDTH),
        "ln_f.weight": gain(WIDTH),
        "ln_f.bias": normal(WIDTH),
    }
    sizes = {
        "attn.c_attn": (WIDTH, 3 * WIDTH),
        "attn.c_proj": (WIDTH, WIDTH),
        "mlp.c_fc": (WIDTH, HIDDEN),
        "mlp.c_proj": (HIDDEN, WIDTH),
    }
    for i in range(LAYERS):
        for name, size in sizes.items():
            w |= {f"h.{i}.{name}.weight": normal(*size), f"h.{i}.{name}.bias": normal(size[1])}
        for name in ("ln_1", "ln_2"):
            w |= {f"h.{i}.{name}.weight": gain(WIDTH), f"h.{i}.{name}.bias": normal(WIDTH)}
    if own_head:
        w["lm_head.weight"] = normal(11, WIDTH)
    config = {
        "model_type": "gpt2", "n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS, "n_inner": HIDDEN,
        "vocab_size": 11,
        "n_positions": 16, "layer_norm_epsilon": 1e-3,
    }  # fmt: skip
    m = ts.models.load(folder(tmp_path / "gpt2", config, w))
    tokens = RNG.integers(0, 11, 7)
    x = w["wte.weight"][tokens].astype(np.float64) + w["wpe.weight"][:7]

    def applied(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].astype(np.float64) + w[f"{name}.bias"]

    for i in range(LAYERS):
        y = applied(norm(x, w, f"h.{i}.ln_1", 1e-3), f"h.{i}.attn.c_attn")
        x = x + applied(attended(*np.split(y, 3, -1), causal=True), f"h.{i}.attn.c_proj")
        x = x + applied(
            gelu_new(applied(norm(x, w, f"h.{i}.ln_2", 1e-3), f"h.{i}.mlp.c_fc")),
            f"h.{i}.mlp.c_proj",
        )
    want = norm(x, w, "ln_f", 1e-3) @ w["lm_head.weight" if own_head else "wte.weight"].T
    np.testing.assert_allclose(
        np.asarray(m.logits(tokens)).reshape(7, 11), want, rtol=1e-3, atol=1e-4
    )
    config["n_head"] = 5
    with pytest.raises(ModelError, match="5 heads do not divide a width of 12"):
        ts.models.load(folder(tmp_path / "gpt2", config, w))


def test_phi3_is_llama_with_matrices_side_by_side(tmp_path: Path) -> None:
    w = llama_weights(3, SMALL)
    llama = ts.models.load(str(llama_folder(tmp_path / "llama", 3, SMALL)))
    p = "model.layers.0."
    parts = {
        "self_attn.qkv_proj": [f"self_attn.{n}_proj" for n in "qkv"],
        "mlp.gate_up_proj": ["mlp.gate_proj", "mlp.up_proj"],
    }
    for whole, pieces in parts.items():
        w[f"{p}{whole}.weight"] = np.concatenate([w.pop(f"{p}{n}.weight") for n in pieces])
    phi = ts.models.load(folder(tmp_path / "phi", SMALL | {"model_type": "phi3"}, w))
    tokens = RNG.integers(0, 256, 9)
    np.testing.assert_allclose(phi.logits(tokens), llama.logits(tokens), rtol=1e-4, atol=1e-4)
