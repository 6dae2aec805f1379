"""Models as types: GPT-OSS-120B at full size, and small models whose types are those of their weights."""

from __future__ import annotations

from typing import Any

import pytest

import tessera as ts
from tessera import dist
from tessera.core import tree
from tessera.core.errors import ModelError
from tessera.core.types import TensorType
from tessera.models import encoder, gemma, gpt_oss, llama
from tessera.models.config import Config
from tessera.plan.model import GPT_OSS_120B

YARN = {
    "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
    "beta_slow": 1.0,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    **GPT_OSS_120B, "rope_scaling": YARN, "rope_theta": 150000, "rms_norm_eps": 1e-5,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip


@pytest.fixture(scope="module")
def large() -> Any:
    return ts.models.types(CONFIG)


def test_gpt_oss_has_the_size_that_was_published(large: Any) -> None:
    assert round(large.parameters / 1e9, 1) == 116.8  # as its model card says
    codes = 36 * 128 * 2880 * (5760 + 2880)
    assert (
        codes < large.nbytes < 1.2 * codes
    )  # a byte for each weight of an expert, and little beside
    assert str(large).splitlines()[1] == "  weights  116.8 billion, 124.3 GiB"


PLAIN = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 4, "vocab_size": 100,
         "intermediate_size": 96}  # fmt: skip
# What the classes of configs in transformers give where a config says nothing.
MISSING: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (llama.shape, {"head_dim": 128, "kv_heads": 4, "context": 2048, "eps": 1e-6, "tied": False}),
    "qwen2": (llama.shape, {"head_dim": 128, "eps": 1e-6, "windows": (None,) * 12}),
    "phi3": (llama.shape, {"head_dim": 128, "eps": 1e-5, "windows": (None,) * 12}),
    "gemma": (gemma.shape, {"head_dim": 256, "eps": 1e-6, "tied": True, "windows": (None,) * 12,
                            "activation": "gelu_pytorch_tanh"}),
    "gemma2": (gemma.shape, {"head_dim": 256, "windows": (4096, None) * 6, "scale": 256**-0.5}),
    "gemma3_text": (gemma.shape, {"windows": ((4096,) * 5 + (None,)) * 2, "scale": 256**-0.5}),
    "gpt_oss": (gpt_oss.shape, {"head_dim": 64, "windows": (128, None) * 6, "experts": 128, "chosen": 4,
                                "limit": 7.0, "alpha": 1.702, "eps": 1e-5, "tied": False}),
    "bert": (encoder.bert_shape, {"context": 512, "types": 2, "eps": 1e-12, "activation": "gelu"}),
    "vit": (encoder.vit_shape, {"image": 224, "patch": 16, "channels": 3, "eps": 1e-12}),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISSING)
def test_what_a_config_leaves_out_is_what_its_class_has(kind: str) -> None:
    shape, want = MISSING[kind]
    s = shape(Config(PLAIN | {"model_type": kind}))
    assert {n: getattr(s, n) for n in want} == want
    if kind.startswith("gemma3"):
        assert {n: r["rope_theta"] for n, r in s.rope_parameters.items()} == {
            "": 1e6,
            gemma.LOCAL: 1e4,
        }


def test_a_step_has_types_through_every_op(large: Any) -> None:
    logits, cache = large.step(batch=2, rows=3, room=256)
    assert logits == TensorType(ts.f32, (2, 3, 201088))
    assert tree.leaves(cache) == [TensorType(ts.f32, (2, 8, 256, 64))] * 72


def test_layouts_cut_what_a_strategy_says(large: Any) -> None:
    mesh = dist.Mesh(axes=["ep", "tp"], shape=(8, 8))
    s = dist.strategy.tensor(
        mesh, "tp", {"q": 1, "k": 1, "v": 1, "o": 0, "head": 1, "embedding": 0}
    )
    s = s + dist.strategy.expert(mesh, "ep", "gate_up") + dist.strategy.expert(mesh, "ep", "down")
    rows = {r.path: r for r in large.rows(s)}
    assert rows["layers.3.gate_up.codes"].layout == "i8[128@ep, 90, 32, 5760]"
    assert rows["layers.3.q"].layout == "bf16[2880, 4096@tp]"
    assert rows["layers.3.q"].bytes == 2880 * 4096 * 2 // 8
    assert large.bytes_per_device(s) == sum(r.bytes for r in rows.values()) < large.nbytes / 7


def test_other_families_and_dense_experts() -> None:
    small = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 100, "intermediate_size": 96, "max_position_embeddings": 32,
    }  # fmt: skip
    m = ts.models.types(small, dtype="f16")
    assert m.step()[0] == TensorType(ts.f32, (1, 1, 100))
    per_layer = 4 * 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert m.parameters == 2 * per_layer + 2 * 100 * 64 + 64
    dense = ts.models.types({**CONFIG, "quantization_config": None, "num_hidden_layers": 1})
    assert dense.step(room=64)[0].shape == (1, 1, 201088)
    with pytest.raises(ModelError, match="model_type"):
        ts.models.types({"model_type": "nothing"})
