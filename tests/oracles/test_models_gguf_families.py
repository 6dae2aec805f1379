"""GGUF files of every family, written by the gguf package, have the logits of the transformers model that
they were made from.
"""

import numpy as np
import pytest

import tessera as ts
from tests.support.cases.model_files import byte_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
from tests.oracles.test_models_transformers import CASES, SMALL, made  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

MXFP4 = gguf.GGMLQuantizationType.MXFP4
BYTES = byte_tokenizer(60)["tokenizer.ggml.tokens"]
WORDS = [*BYTES, BYTES[40] + BYTES[41]]
YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16, "rope_theta": 150000.0,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
}  # fmt: skip
FAMILIES = {
    "llama": CASES["llama"],
    "qwen2": CASES["qwen2"],
    "qwen3": CASES["qwen3"],
    "smollm3": ("SmolLM3", dict(SMALL, num_hidden_layers=4, num_key_value_heads=2,
    no_rope_layers=[1, 1, 1, 0], pad_token_id=0)),
    "phi3": ("Phi3", dict(SMALL, num_key_value_heads=2, sliding_window=9, pad_token_id=0)),
    "gemma": CASES["gemma"],
    "gemma2": ("Gemma2", dict(CASES["gemma2"][1], query_pre_attn_scalar=16)),
    "gemma3": ("Gemma3Text", dict(SMALL, num_hidden_layers=7, num_key_value_heads=2, head_dim=16,
    sliding_window=5,
                                  query_pre_attn_scalar=16)),
    "gpt2": CASES["gpt2"],
    "gpt-oss": ("GptOss", dict(CASES["gpt_oss"][1], rope_parameters=YARN, intermediate_size=32)),
}  # fmt: skip


def halves_in_turn(w, heads):
    """The rows of queries or keys as the conversion of Llama orders them."""
    return (
        w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
    )


def converted(kind, name, w, c):
    """What the converter of llama.cpp stores for a tensor of Hugging Face: {name: array}."""
    heads = c.num_attention_heads if kind != "gpt2" else c.n_head
    if kind in ("llama", "smollm3") and name.endswith(("q_proj.weight", "k_proj.weight")):
        return {name: halves_in_turn(w, heads if "q_proj" in name else c.num_key_value_heads)}
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return {name: w + 1}
    if kind == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return {name: w.T}
    if kind == "gpt-oss" and "experts." in name:
        stem, _, last = name.rpartition(".")
        end = "bias" if last.endswith("_bias") else "weight"
        w = w if end == "bias" else w.swapaxes(1, 2)
        if "gate_up" in last:
            return {f"{stem}.gate_proj.{end}": w[:, ::2], f"{stem}.up_proj.{end}": w[:, 1::2]}
        return {f"{stem}.down_proj.{end}": w}
    return {f"{name}.weight" if name.endswith("sinks") else name: w}


def describe(w, kind, c):
    """The metadata of a model."""
    w.add_block_count(c.num_hidden_layers)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_head_count(c.num_attention_heads)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(WORDS)
    w.add_token_merges([f"{BYTES[40]} {BYTES[41]}"])
    w.add_eos_token_id(0)
    if kind == "gpt2":
        w.add_feed_forward_length(4 * c.hidden_size)
        w.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        ropes = c.rope_parameters
        theta = ropes.get("full_attention", ropes)["rope_theta"]
        w.add_feed_forward_length(c.intermediate_size)
        w.add_head_count_kv(c.num_key_value_heads)
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
        w.add_rope_freq_base(theta)
        dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        w.add_key_length(dim)
        w.add_value_length(dim)
        if getattr(c, "sliding_window", None):
            w.add_sliding_window(c.sliding_window)
    if kind == "gemma2":
        w.add_attn_logit_softcapping(c.attn_logit_softcapping)
        w.add_final_logit_softcapping(c.final_logit_softcapping)
    if kind == "gpt-oss":
        w.add_expert_count(c.num_local_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
        w.add_expert_feed_forward_length(c.intermediate_size)
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(c.rope_parameters["factor"])
        w.add_rope_scaling_orig_ctx_len(c.rope_parameters["original_max_position_embeddings"])


def write(path, kind, model, narrow=False):
    """The file of a model, with names and keys from the gguf package; narrow experts are in MXFP4."""
    c = model.config
    names = gguf.get_tensor_name_map(
        {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[kind], c.num_hidden_layers
    )
    w = gguf.GGUFWriter(path, kind)
    describe(w, kind, c)
    tied = bool(getattr(c, "tie_word_embeddings", False))
    for name, t in model.state_dict().items():
        if (tied and name == "lm_head.weight") or name.endswith(
            (".attn.bias", ".masked_bias", "inv_freq")
        ):
            continue
        for n, array in converted(kind, name, t.float().numpy(), c).items():
            own = names.get_name(n, try_suffixes=(".weight", ".bias"))
            assert own is not None, n
            if narrow and own.endswith("exps.weight"):
                raw = gguf.quants.quantize(np.ascontiguousarray(array), MXFP4)
                w.add_tensor(own, raw, raw_dtype=MXFP4)
            else:
                w.add_tensor(own, np.ascontiguousarray(array))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_equal_transformers(kind, tmp_path):
    theirs = made(kind, tmp_path / "hub", FAMILIES)
    write(tmp_path / "m.gguf", kind, theirs)
    ids = np.random.default_rng(0).integers(0, 61, 29)
    with torch.no_grad():
        want = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    got = ts.models.load(tmp_path / "m.gguf").logits(ids).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())


def test_experts_in_mxfp4_are_contracted_as_they_are_stored(tmp_path):
    theirs = made("gpt-oss", tmp_path / "hub", FAMILIES)
    for p in (p for n, p in theirs.named_parameters() if n.endswith(("gate_up_proj", "down_proj"))):
        rows = np.ascontiguousarray(p.detach().numpy().swapaxes(1, 2))
        dense = gguf.quants.dequantize(gguf.quants.quantize(rows, MXFP4), MXFP4)
        p.data = torch.tensor(dense.reshape(rows.shape).swapaxes(1, 2).copy())
    write(tmp_path / "m.gguf", "gpt-oss", theirs, narrow=True)
    ids = np.random.default_rng(0).integers(0, 61, 29)
    with torch.no_grad():
        want = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    ours = ts.models.load(tmp_path / "m.gguf")
    assert ours.params["layers"][0]["gate_up"].codes.dtype is ts.i8
    np.testing.assert_allclose(
        ours.logits(ids).numpy(), want, rtol=2e-5, atol=2e-5 * np.abs(want).max()
    )


def test_a_folder_of_phi3_equals_transformers(tmp_path):
    theirs = made("phi3", tmp_path, FAMILIES)
    ids = np.random.default_rng(1).integers(0, 61, 29)
    with torch.no_grad():
        want = theirs(torch.tensor(ids)[None]).logits[0].numpy()
    got = ts.models.load(tmp_path).logits(ids).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())
