"""Tiny random models of every family have the logits that transformers computes from the same folder."""

import numpy as np
import pytest

import tessera as ts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 500000.0,
}  # fmt: skip
CASES = {
    "llama": ("Llama", dict(SMALL, num_key_value_heads=2)),
    "llama3": ("Llama", dict(SMALL, num_key_value_heads=1, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "llama_bias": ("Llama", dict(SMALL, attention_bias=True, mlp_bias=True, head_dim=12,
    rope_parameters=YARN)),
    "mistral": ("Mistral", dict(SMALL, num_key_value_heads=2, sliding_window=7)),
    "qwen2": ("Qwen2", dict(SMALL, num_key_value_heads=2)),
    "qwen3": ("Qwen3", dict(SMALL, num_key_value_heads=2, head_dim=16)),
    "smollm3": ("SmolLM3", dict(SMALL, num_key_value_heads=2, no_rope_layers=[1, 0], pad_token_id=0)),
    "gemma": ("Gemma", dict(SMALL, num_key_value_heads=1, head_dim=16)),
    "gemma2": ("Gemma2", dict(SMALL, num_key_value_heads=2, head_dim=16, sliding_window=5,
                              attn_logit_softcapping=3.0, final_logit_softcapping=2.0)),
    "gemma3": ("Gemma3Text", dict(SMALL, num_hidden_layers=3, num_key_value_heads=2, head_dim=16,
    sliding_window=5,
                                  sliding_window_pattern=3)),
    "gpt2": ("GPT2", {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt_oss": ("GptOss", dict(SMALL, num_key_value_heads=2, head_dim=16, sliding_window=6,
    num_local_experts=6,
                               num_experts_per_tok=3)),
}  # fmt: skip


def made(name, tmp_path, cases=CASES, head="ForCausalLM"):
    """A random model of transformers, with gains and biases that are not ones and zeros, saved as a
    folder.
    """
    kind, sizes = cases[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    config._attn_implementation = "eager"
    heads = {"GPT2ForCausalLM": "GPT2LMHeadModel", "Gemma3TextForCausalLM": "Gemma3ForCausalLM"}
    model = getattr(transformers, heads.get(kind + head, kind + head))(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    model.save_pretrained(tmp_path, max_shard_size="40KB" if name == "llama" else "5GB")
    return model


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name, tmp_path):
    theirs = made(name, tmp_path)
    ids = np.random.default_rng(0).integers(0, 61, 29)
    with torch.no_grad():
        want = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    got = ts.models.load(tmp_path).logits(ids).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())


ENCODERS = {
    "bert": ("Bert", dict(SMALL, type_vocab_size=2)),
    "vit": ("ViT", {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "image_size": 24,
                        "patch_size": 8, "num_labels": 5}),
}  # fmt: skip


def test_hidden_states_of_bert_equal_transformers(tmp_path):
    theirs = made("bert", tmp_path, ENCODERS, "Model")
    ids = np.random.default_rng(0).integers(0, 61, 29)
    with torch.no_grad():
        want = theirs(torch.tensor(ids)[None]).last_hidden_state[0].numpy()
    np.testing.assert_allclose(
        ts.models.load(tmp_path).hidden(ids).numpy(), want, rtol=2e-5, atol=1e-5
    )


def test_scores_of_vit_equal_transformers(tmp_path):
    theirs = made("vit", tmp_path, ENCODERS, "ForImageClassification")
    images = np.random.default_rng(0).normal(size=(3, 3, 24, 24)).astype(np.float32)
    with torch.no_grad():
        want = theirs(torch.tensor(images)).logits.numpy()
    np.testing.assert_allclose(
        ts.models.load(tmp_path).logits(images).numpy(), want, rtol=2e-5, atol=1e-5
    )


def mxfp4(w):
    """A dense tensor (experts, in, out) as blocks and exponents, and the values that those stand for."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = np.random.default_rng(0)
    experts, rows, columns = w.shape
    blocks = torch.tensor(rng.integers(0, 256, (experts, columns, rows // 32, 16), np.uint8))
    exponents = torch.tensor(rng.integers(118, 124, (experts, columns, rows // 32), np.uint8))
    return blocks, exponents, convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32)


def test_mxfp4_experts_equal_transformers(tmp_path):
    """The file of GPT-OSS as it is published: experts in blocks, two elements a byte."""
    sizes = dict(
        SMALL,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=6,
        num_experts_per_tok=3,
        intermediate_size=64,
    )
    theirs = made("mx", tmp_path, {"mx": ("GptOss", sizes)})
    state = theirs.state_dict()
    stored = {k: v for k, v in state.items() if not k.endswith(("gate_up_proj", "down_proj"))}
    for name in state.keys() - stored.keys():
        stored[f"{name}_blocks"], stored[f"{name}_scales"], dense = mxfp4(state[name])
        state[name].copy_(dense)
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in stored.items()}, tmp_path / "model.safetensors")
    ids = np.random.default_rng(0).integers(0, 61, 29)
    with torch.no_grad():
        want = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    got = ts.models.load(tmp_path).logits(ids).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())
