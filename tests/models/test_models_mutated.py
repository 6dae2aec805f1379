"""Mutated configs, weights and tokenizers: a model or a clear error, never anything else."""

import json
import random
import shutil

import numpy as np
import pytest

import tessera as ts
from tessera.core.errors import ModelError
from tessera.models.config import Config
from tessera.models.hub_tokenizer import HubTokenizer
from tessera.models.llama import shape
from tessera.models.rope import frequencies
from tessera.models.safetensors import Folder, Safetensors
from tessera.models.tokenizer import from_gguf
from tests.models.test_models_gguf import mutated
from tests.support.cases.model_files import (
    CONFIG,
    byte_tokenizer,
    llama_folder,
    llama_gguf,
    llama_weights,
    safetensors,
)
from tools import mutate_models

WRONG_VALUES = [
    None, True, -1, 0, 1, 3, 2**40, 10**400, 1.5, float("nan"), float("inf"), "", "silu", "x" * 50, [], [1],
    {}, {"a": 1},
    {"rope_type": "yarn"}, {"rope_type": 3}, {"rope_type": "llama3", "factor": "x"},
    {"rope_type": "linear", "factor": 0},
]  # fmt: skip
FIELDS = [
    *CONFIG,
    "head_dim",
    "hidden_act",
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "layer_types",
]
DEEP = pytest.param(20_000, marks=pytest.mark.deep)


@pytest.mark.parametrize("count", [500, DEEP])
def test_mutated_configs(tmp_path, count):
    rng = random.Random(0)
    folder = llama_folder(tmp_path / "m")
    refused = 0
    for i in range(count):
        values = dict(CONFIG)
        for _ in range(rng.choice([1, 1, 2, 3])):
            values[rng.choice(FIELDS)] = rng.choice(WRONG_VALUES)
        (folder / "config.json").write_text(json.dumps(values))
        try:
            if i % 10:
                s = shape(Config(values))
                frequencies(s.rope_parameters[""], s.head_dim)
            else:
                ts.models.load(folder)
        except ModelError:
            refused += 1
    assert count // 3 < refused


@pytest.mark.parametrize("count", [500, DEEP])
def test_mutated_weights(tmp_path, count):
    rng = random.Random(0)
    good = safetensors({"a": np.ones((3, 4)), "b.weight": np.zeros((5,))}, {"format": "pt"})
    refused = 0
    for _ in range(count):
        (tmp_path / "m.safetensors").write_bytes(mutated(rng, good))
        try:
            file = Safetensors(tmp_path / "m.safetensors")
        except ModelError:
            refused += 1
            continue
        assert sum(file.tensor(name).size for name in file.tensors) < 1000
    assert count // 3 < refused < count


@pytest.mark.parametrize("count", [200, DEEP])
def test_mutated_tokenizers(count):
    rng = random.Random(0)
    refused = 0
    for _ in range(count):
        metadata = byte_tokenizer()
        key = rng.choice(
            [
                *metadata,
                "tokenizer.ggml.token_type",
                "tokenizer.ggml.add_bos_token",
                "tokenizer.ggml.bos_token_id",
            ]
        )
        values = [
            *WRONG_VALUES,
            ["a b"],
            ["ab"],
            ["a b c"],
            np.zeros(256, np.int32),
            np.zeros(3),
            ["a"] * 256,
        ]
        metadata[key] = rng.choice(values)
        try:
            t = from_gguf(metadata, "m.gguf")
            t.decode(t.encode("Hello\n\U0001f600"))
        except ModelError:
            refused += 1
    assert count // 3 < refused < count


def refuse(path, text):
    with pytest.raises(ModelError) as e:
        ts.models.load(path)
    assert text in e.value.message


@pytest.mark.parametrize("number", [2**24, 2**31])
def test_a_token_of_a_huge_number_is_refused(tmp_path, number):
    """The tokenizers package made a list of 2^31 entries of such a file, and ended the process."""
    for i, made in enumerate(mutate_models.hub_tokenizers()[:2]):
        folder = tmp_path / str(i)
        folder.mkdir()
        made["model"]["vocab"][next(iter(made["model"]["vocab"]))] = number
        (folder / "tokenizer.json").write_text(json.dumps(made))
        with pytest.raises(ModelError, match=f"a token has the number {number}, beyond 16777216"):
            HubTokenizer(folder)


def test_errors_of_folders_say_what_is_wrong(tmp_path):
    folder = llama_folder(tmp_path / "m")
    config = folder / "config.json"
    config.write_text("[1]")
    refuse(folder, "config.json: is not a JSON object")
    config.write_text(json.dumps(CONFIG | {"model_type": "mamba"}))
    refuse(folder, "config.json: model_type is 'mamba', expected one of llama, mistral, qwen2")
    config.write_text(json.dumps(CONFIG | {"hidden_size": "32"}))
    refuse(folder, "config.json: hidden_size is '32', expected an integer from 1 to 16777216")
    config.write_text(json.dumps(CONFIG | {"num_key_value_heads": 3}))
    refuse(folder, "config.json: 4 heads do not fit 3 heads of keys and a width of 32")
    config.write_text(json.dumps(CONFIG | {"vocab_size": 100}))
    refuse(
        folder,
        "tensor model.embed_tokens.weight has the shape (256, 32), expected (100, 32) by the config",
    )
    config.write_text(json.dumps(CONFIG | {"num_hidden_layers": 3}))
    refuse(folder, "there is no tensor model.layers.2.input_layernorm.weight")


def test_numbers_that_divide_are_above_zero(tmp_path):
    for name in ("query_pre_attn_scalar", "attn_logit_softcapping", "rms_norm_eps"):
        for v in (0, -1):
            folder = llama_folder(
                tmp_path / "m", config=CONFIG | {"model_type": "gemma2", "head_dim": 8, name: v}
            )
            refuse(folder, f"{name} is {v}, expected a number above 0")


def test_shards_are_found_by_their_index_and_only_in_the_folder(tmp_path):
    folder = llama_folder(tmp_path / "m")
    want = ts.models.load(folder).params["norm"].numpy()
    weights = llama_weights()
    (folder / "model.safetensors").unlink()
    names = list(weights)
    halves = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in halves.items():
        (folder / file).write_bytes(safetensors({n: weights[n] for n in part}))
    index = folder / "model.safetensors.index.json"
    listed = {n: file for file, part in halves.items() for n in part}
    index.write_text(json.dumps({"weight_map": listed}))
    assert (ts.models.load(folder).params["norm"].numpy() == want).all()
    shutil.copy(folder / "a.safetensors", tmp_path / "a.safetensors")
    index.write_text(json.dumps({"weight_map": dict.fromkeys(names, "../a.safetensors")}))
    refuse(folder, "weight_map does not name files of this folder")
    index.write_text(json.dumps({"weight_map": {names[-1]: "a.safetensors"}}))
    with pytest.raises(ModelError, match=r"is not in a\.safetensors"):
        Folder(folder)


def test_an_unknown_architecture_is_refused(tmp_path):
    data = llama_gguf().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1)
    (tmp_path / "m.gguf").write_bytes(data)
    refuse(tmp_path / "m.gguf", "the architecture is 'mamba', expected one of llama, qwen2, qwen3")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma"])
def test_a_gguf_file_has_the_weights_and_sizes_of_the_folder(tmp_path, kind):
    config = CONFIG | {"model_type": kind, "tie_word_embeddings": kind == "gemma"}
    config |= {"head_dim": 8, "hidden_activation": "gelu_pytorch_tanh"} if kind == "gemma" else {}
    weights = llama_weights(0, config)
    extra = {"qwen2": "self_attn.{}_proj.bias", "qwen3": "self_attn.{}_norm.weight"}.get(kind)
    for name, sizes in {"q": (32, 8), "k": (16, 8), "v": (16, 0)}.items() if extra else ():
        size = sizes[kind == "qwen3"]
        for i in range(2 if size else 0):
            weights[f"model.layers.{i}.{extra.format(name)}"] = np.linspace(
                0, 1, size, dtype=np.float32
            )
    if kind == "gemma":
        del weights["lm_head.weight"]
    folder = llama_folder(tmp_path / "m", config=config)
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    (tmp_path / "m.gguf").write_bytes(llama_gguf(config=config, weights=weights))
    want, got = ts.models.load(folder), ts.models.load(tmp_path / "m.gguf")
    a, b = (ts.tree.leaves(m.params) for m in (want, got))
    # A head; biases; norms of heads.
    more = {"llama": 1, "qwen2": 1 + 6, "qwen3": 1 + 4, "gemma": 0}[kind]
    assert len(a) == len(b) == 16 + more
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-6, atol=1e-6)
    differ = {k for k, v in vars(want.shape).items() if v != vars(got.shape)[k]}
    assert differ <= {"eps", "rope_parameters"}  # an f32 in the file
    assert got.shape.eps == pytest.approx(want.shape.eps)


def llama3_divisors(p, dim):
    """What a converter writes as rope_freqs, by the formula of Llama 3.1's announcement."""
    out = []
    for i in range(0, dim, 2):
        length = 2 * np.pi * p["rope_theta"] ** (i / dim)
        low, high = (
            p["original_max_position_embeddings"] / p[f"{n}_freq_factor"] for n in ("low", "high")
        )
        smooth = (p["original_max_position_embeddings"] / length - p["low_freq_factor"]) / (
            p["high_freq_factor"] - p["low_freq_factor"]
        )
        mixed = 1 / ((1 - smooth) / p["factor"] + smooth)
        out.append(1.0 if length < high else p["factor"] if length > low else mixed)
    return np.array(out, np.float32)


def test_a_gguf_file_of_llama3_turns_by_its_divisors(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 128, "rope_theta": 10000.0}  # fmt: skip
    divisors = llama3_divisors(scaling, 8)
    assert len(set(divisors.tolist())) >= 3
    folder = llama_folder(tmp_path / "m", config=CONFIG | {"rope_parameters": scaling})
    weights = llama_weights() | {"rope_freqs.weight": divisors}
    (tmp_path / "m.gguf").write_bytes(llama_gguf(weights=weights))
    want, got = (ts.models.load(p).params["rope"][""] for p in (folder, tmp_path / "m.gguf"))
    for x, y in zip(want, got, strict=True):
        np.testing.assert_allclose(x.numpy(), y.numpy(), atol=3e-5)
    for wrong in (divisors[:-1], divisors * 0, divisors * np.nan):
        (tmp_path / "m.gguf").write_bytes(
            llama_gguf(weights=weights | {"rope_freqs.weight": wrong})
        )
        refuse(tmp_path / "m.gguf", "the divisors of the angles are not 4 numbers above 0")


def test_what_would_be_ignored_is_refused(tmp_path):
    """A tensor, a setting or a quantisation that changes what a model computes, and that we do not apply."""
    path = tmp_path / "m.gguf"
    path.write_bytes(
        llama_gguf(weights=llama_weights() | {"blk.1.attn_sinks.weight": np.ones(4, np.float32)})
    )
    refuse(path, "the tensor blk.1.attn_sinks.weight has no place in a llama as it is known here")
    path.write_bytes(llama_gguf(metadata={"llama.rope.dimension_count": 4}))
    refuse(path, "llama.rope.dimension_count is 4, expected 8, the size of a head")
    path.write_bytes(llama_gguf(metadata={"llama.attention.value_length": 16}))
    refuse(path, "llama.attention.value_length is 16, expected 8, the size of a head")
    folder = llama_folder(
        tmp_path / "m", config=CONFIG | {"quantization_config": {"quant_method": "fp8"}}
    )
    refuse(folder, "the weights are quantised by 'fp8', which is not read")
    llama_folder(folder, config=CONFIG | {"partial_rotary_factor": 0.5})
    refuse(folder, "partial_rotary_factor is 0.5, expected 1: heads turn as a whole")


def test_mutated_models_of_every_kind():
    """The first copies of tools/mutate_models.py, which makes as many as one likes."""
    found = mutate_models.run(count=240, seed=1)
    assert not [k for k in found if k.endswith("fault")]
    for kind in mutate_models.KINDS:
        assert found[f"{kind}: refused"] > 10
    assert found["gguf tokenizer: loaded"] > 5
    assert found["template: loaded"] > 2


def test_what_the_tokenizers_package_raises_is_a_model_error(tmp_path):
    """A name that is no Unicode, a model that does not know a character, an end beyond every vocabulary."""
    pieces = next(t for t in mutate_models.hub_tokenizers() if t["model"]["type"] == "Unigram")
    (tmp_path / "tokenizer.json").write_text(json.dumps(pieces))
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"bos_token": "\\ud800"}')
    with pytest.raises(ModelError, match=r"tokenizer\.json: the tokenizers package fails"):
        HubTokenizer(tmp_path)
    settings.unlink()
    assert HubTokenizer(tmp_path).encode("a\ud800") == HubTokenizer(tmp_path).encode("a?")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 99999999999999999999}')
    with pytest.raises(ModelError, match="eos_token_id is 99999999999999999999, expected tokens"):
        HubTokenizer(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    pieces["model"]["unk_id"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(pieces))
    with pytest.raises(ModelError, match="unk_id"):
        HubTokenizer(tmp_path).encode("z")
