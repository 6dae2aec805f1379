"""What configs, schemas, rotary positions and converted names are read as: every key at every kind of
value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

import tessera as ts
from tessera.core.errors import TesseraError
from tessera.models import encoder, gemma, gguf_families, gpt2, gpt_oss, grammar, llama
from tessera.models.config import LARGEST, Config
from tessera.models.rope import frequencies
from tessera.models.sampling import Sampling
from tessera.models.schema import FORMATS, Grammar
from tests.support.pinned import pinned, short

SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100,
         "intermediate_size": 96, "max_position_embeddings": 32}  # fmt: skip
HALVES = ["full_attention", "sliding_attention"] * 2
VALUES: dict[str, list[Any]] = {
    "num_key_value_heads": [1, 2, 3, 4, 8, 0, True, "2"], "head_dim": [16, 15, 1], "hidden_size": [66, 0,
    1.0],
    "sliding_window": [8, 0, None], "use_sliding_window": [True, False, 1], "layer_types": [HALVES,
    HALVES[:3], "x"],
    "rms_norm_eps": [1e-4, 0, -1, "x", 1e39, True], "hidden_act": ["silu", "gelu", "nothing", 3],
    "hidden_activation": ["gelu", "nothing"], "tie_word_embeddings": [True, False, 0],
    "no_rope_layers": [[1, 0, 1, 1], [1, 0], [1, 0, 2, 1], "x"], "max_position_embeddings": [1, LARGEST,
    LARGEST + 1, None],
    "vocab_size": [None, 1, LARGEST, LARGEST + 1, -3], "query_pre_attn_scalar": [64, 0],
    "attn_logit_softcapping": [50.0, 0],
    "final_logit_softcapping": [30, -1], "sliding_window_pattern": [2, 3],
    "rope_local_base_freq": [500.0, 0],
    "num_local_experts": [8, 2, 0], "num_experts_per_tok": [2, 129], "experts_per_token": [3],
    "swiglu_limit": [5, 0],
    "swiglu_alpha": [2.0], "rope_theta": [500, 0, "x"], "partial_rotary_factor": [1, 0.5],
    "rope_scaling": [{"rope_type": "linear", "factor": 2}, {"type": "yarn", "factor": 0},
    {"truncate": 1}, "x",
                     {"rope_theta": 7.0, "low_freq_factor": None}, {"factor": True},
                     {"partial_rotary_factor": 2}],
    "rope_parameters": [{"rope_type": "linear", "factor": 4}, {"full_attention": {"rope_theta": 9.0}},
                        {"full_attention": {"rope_theta": 9.0}, "sliding_attention": {"rope_theta": 3.0}},
                        {"rope_theta": -1}, {"beta_fast": "x"}, {"rope_type": 3}],
    "type_vocab_size": [3, 0], "layer_norm_eps": [1e-3, 0], "position_embedding_type": ["absolute",
    "relative"],
    "image_size": [32, 33], "patch_size": [8], "num_channels": [1], "n_embd": [66, 32], "n_inner": [7,
    None],
    "n_positions": [5], "layer_norm_epsilon": [1e-3], "activation_function": ["gelu", "x"],
    "num_attention_heads": [8, 7],
}  # fmt: skip
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 100}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    **dict.fromkeys(llama.KINDS, (llama.shape, SIZES)), **dict.fromkeys(gemma.KINDS, (gemma.shape, SIZES)),
    "gpt_oss": (gpt_oss.shape, SIZES), "bert": (encoder.bert_shape, SIZES), "vit": (encoder.vit_shape,
    SIZES),
    "gpt2": (gpt2.shape, GPT2),
}  # fmt: skip


def said(f: Any, *args: Any) -> Any:
    """The fields of a result, or what an error says."""
    try:
        return f(*args)
    except TesseraError as e:
        return str(e).splitlines()[0]


def fields(shape: Any, config: dict[str, Any]) -> Any:
    return asdict(shape(Config(config, "c.json")))


def read(kind: str) -> Iterator[str]:
    shape, base = KINDS[kind]
    plain = {"model_type": kind, **base}
    first = fields(shape, plain)
    yield f"{kind}: {short(first)}"
    for key, values in VALUES.items():
        for v in values:
            got = said(fields, shape, {**plain, key: v})
            changed = (
                got if isinstance(got, str) else {k: x for k, x in got.items() if x != first[k]}
            )
            if changed:
                yield f"  {key}={v}: {short(changed)}"
    for key in base:
        yield f"  no {key}: {short(said(fields, shape, {k: v for k, v in plain.items() if k != key}))}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_of_a_config(kind: str) -> None:
    pinned(f"config_{kind}", read(kind))


class Names:
    """A source that writes down what is asked of it."""

    def __init__(self, *there: str) -> None:
        self.there, self.asked = there, list[str]()

    def has(self, name: str) -> bool:
        return any(x in name for x in self.there)

    def _note(self, kind: str) -> Any:
        def note(name: str, *shape: int) -> Any:
            self.asked.append(f"{kind} {name} {short(shape)}")
            return ts.zeros(shape) if kind != "groups" else (ts.zeros(1), ts.zeros(1))

        return note

    def __getattr__(self, kind: str) -> Any:
        if kind not in ("vector", "matrix", "table", "raw", "groups"):
            raise AttributeError(kind)
        return self._note(kind)


MODULES: list[tuple[str, Any, Any, tuple[str, ...]]] = [
    ("llama", llama.shape, llama.params, ()), ("qwen2", llama.shape, llama.params, ("_proj.bias",)),
    ("qwen3", llama.shape, llama.params, ("q_norm", "k_norm")), ("phi3", llama.shape, llama.params,
    ("qkv_proj",)),
    ("gemma2", gemma.shape, gemma.params, ("pre_feedforward",)), ("gemma", gemma.shape, gemma.params, ()),
    ("gpt_oss", gpt_oss.shape, gpt_oss.params, ("_blocks",)), ("gpt_oss", gpt_oss.shape, gpt_oss.params,
    ()),
    ("gpt2", gpt2.shape, gpt2.params, ("lm_head",)), ("gpt2", gpt2.shape, gpt2.params, ()),
    ("bert", encoder.bert_shape, encoder.bert_params, ()),
    ("vit", encoder.vit_shape, lambda s, w: encoder.vit_params(s, w, 7), ("classifier",)),
]  # fmt: skip


def weights() -> Iterator[str]:
    more = {
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "image_size": 32,
        "num_local_experts": 6,
        "n_layer": 1,
    }
    for kind, shape, params, there in MODULES:
        for tied in (False, True):
            config = {"model_type": kind, **KINDS[kind][1], **more, "tie_word_embeddings": tied}
            source = Names(*there)
            made = params(shape(Config(config)), source)
            yield f"{kind} {there} tied={tied}: {' '.join(sorted(made))}"
            if tied is False:
                yield from (f"  {x}" for x in source.asked)
            parts = made["layers"][-1] if isinstance(made["layers"], list) else {}
            yield "  " + " ".join(
                f"{k}:{short(getattr(v, 'shape', '-'))}" for k, v in sorted(parts.items())
            )


def test_weights_that_a_model_asks_for() -> None:
    pinned("model_weights", weights())


ROPES: list[dict[str, Any]] = [
    {}, {"rope_theta": 500.0}, {"rope_type": "default"}, {"type": "dynamic", "factor": 3.0},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "linear"}, {"rope_type": "linear", "factor": True}, {"rope_type": "linear",
    "factor": 0}, {"rope_type": "x"},
    *({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": low, "high_freq_factor": 4.0,
       "original_max_position_embeddings": old} for low in (1.0, 2) for old in (32, 256, 8192)),
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    *({"rope_type": "yarn", "factor": f, "original_max_position_embeddings": old, **more}
      for f in (0.5, 1.0, 4.0, 32.0) for old in (64, 4096)
      for more in ({}, {"truncate": False}, {"beta_fast": 8, "beta_slow": 2}, {"attention_factor": 1.5},
                   {"mscale": 2.0, "mscale_all_dim": 0.5}, {"mscale": 2.0})),
    {"rope_type": "yarn", "factor": 4.0, "max_position_embeddings": 128}, {"rope_type": "yarn",
    "factor": 4.0},
    {"divisors": [1, 2, 4, 8]}, {"divisors": [1, 2, 4]}, {"divisors": [1, 2, 4, 0]}, {"divisors": [1, 2,
    4, float("inf")]},
]  # fmt: skip


def angles() -> Iterator[str]:
    for p in ROPES:
        for dim in (8,) if "divisors" in p else (8, 64):
            got = said(frequencies, p, dim)
            if isinstance(got, tuple):
                got = [f"{x:.5g}" for x in (got[1], *got[0][:: dim // 8], *got[0][-2:])]
            yield f"{p} {dim}: {short(got)}"


def test_angles_of_rotary_positions() -> None:
    pinned("rope_angles", angles())


# Schemas ------------------------------------------------------------------------------------------

KINDS_OF_JSON = ("null", "boolean", "integer", "number", "string", "array", "object")
TEXTS = [
    "2.0", "-0.25", "-1.5", "--1.5", "-3.5", "-2.0",
    "true", "false", "null", "0", "1", "-1", "5", "9", "10", "-10", "99", "123456789012345",
    "1234567890123456",
    "01", "-0", "1.5", "0.25", "-2.75", "1e5", "1E+05", "1e123", "1.", ".5", "-", '""', '"a"', '"ab"',
    '"abc"',
    '"é"', '"\\n"', '"\\u00e9"', '"\\ud800"', '"\\x"', '"\t"', "[]", "[ ]", "[1]", "[1,2]", "[1, 2]",
    "[1,  2]",
    "[1,2,3]", '["a"]', '["a",1]', '["a",1,2]', "[true]", "[[1]]", "[1,]", "[,1]", "{}", "{ }", '{"a":1}',
    '{"a": 1}', '{"a" :1}', '{"a":"x"}', '{"b":1}', '{"a":1,"b":2}', '{"b":2,"a":1}', '{"a":1, "b":true}',
    '{"c":[1]}', '{"a":1,"b":2,"c":3}', '{"a":1,"c":3}', '{"a":{"a":{}}}', '"2024-01-02"', '"2024-00-02"',
    '"2024-12-28"', '"2024-12-29"', '"23:59:59Z"', '"24:00:00Z"', '"12:00:00"', '"2024-01-02T03:04:05Z"',
    '"01234567-89ab-cdef-0123-456789abcdef"', '"01234567-89ab-cdef-0123-456789abcde"', '"1.2.3.255"',
    '"1.2.3.256"', '"1.2.3"', '"1.2.3.4."',
]  # fmt: skip
AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}
SCHEMAS: list[Any] = [
    True, {}, {"title": "x"}, *({"type": k} for k in ("null", "boolean", "integer", "number", "string",
    "array", "object")),
    {"type": ["null", "integer"]}, {"const": 1}, {"const": "é"}, {"const": {"a": 1}}, {"enum": [1, "a",
    None, [1, 2]]},
    {"type": "string", "const": "a"}, {"anyOf": [{"type": "null"}, {"const": "ab"}]},
    {"allOf": [{"type": "boolean"}]},
    *({"type": "integer", **b} for b in (
        {"minimum": 1}, {"maximum": 9}, {"exclusiveMinimum": 1}, {"exclusiveMaximum": 9},
        {"minimum": -10, "maximum": 10},
        {"minimum": 0.5, "maximum": 9.5}, {"exclusiveMinimum": -1.5, "exclusiveMaximum": 5.5},
        {"minimum": -9, "maximum": -1},
        {"minimum": 5, "exclusiveMinimum": 0})),
    *({"type": "number", **b} for b in (
        {"minimum": 0}, {"maximum": 0}, {"minimum": -3, "maximum": 2}, {"exclusiveMinimum": 0},
        {"minimum": 1, "maximum": 1},
        {"minimum": -3, "maximum": -2}, {"exclusiveMaximum": 1.5})),
    {"minimum": 1}, {"minLength": 1}, {"maxLength": 1}, {"type": "string", "minLength": 2, "maxLength": 2},
    {"type": "string", "maxLength": 0}, *({"format": f} for f in FORMATS), {"minItems": 1},
    {"type": "array", "maxItems": 0},
    {"type": "array", "maxItems": 1}, {"items": {"type": "integer"}}, {"items": False},
    {"items": {"const": 1}, "minItems": 2},
    {"items": {"type": "integer"}, "minItems": 1, "maxItems": 2}, {"prefixItems": [{"type": "string"}]},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "minItems": 2},
    {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    {"prefixItems": [{"const": 1}, {"const": 2}], "maxItems": 1}, {"prefixItems": [{"const": 1}],
    "minItems": 1, "maxItems": 2},
    {"properties": AB}, {"properties": AB, "required": ["a"]}, {"properties": AB, "required": ["b"]},
    {"properties": AB, "required": ["a", "b"]}, {"properties": AB, "additionalProperties": False},
    {"type": "object", "additionalProperties": False}, {"additionalProperties": {"type": "integer"}},
    {"required": ["a"]}, {"properties": AB, "required": ["c"]}, {"properties": {"a": {"$ref": "#"}}},
    {"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"type": "integer"}}}, {"anyOf": [{"$ref": "#/$defs/a~0b"},
    {"const": "ab"}], "$defs": {"a~b": {"const": 5}}},
]  # fmt: skip
DEEP: Any = {"type": "integer"}
for _ in range(65):
    DEEP = {"items": DEEP}
VALUES_OF_ALL = [True, False, None, 0, 1.5, 2.0, "a", [1], {"a": 1}]
SCHEMAS += [{"type": k, "enum": VALUES_OF_ALL} for k in KINDS_OF_JSON]
SCHEMAS += [{"type": ["null", "array"], "enum": VALUES_OF_ALL}, {"type": "number", "const": 5}]
BAD: list[Any] = [
    {"type": "string", "const": 1},
    {"type": ["null", "string"], "enum": [1, True]},
    {"type": "x", "enum": [1]},
    {"type": "string", "enum": 3},
    False, 3, "x", [], {"type": "x"}, {"type": []}, {"type": ["null", 3]}, {"type": "null",
    "minimum": 1}, {"enum": []}, {"enum": 3},
    {"const": 1, "minimum": 2}, {"anyOf": []}, {"anyOf": {}}, {"anyOf": [{}], "type": "null"},
    {"allOf": []}, {"allOf": [{}, {}]},
    {"$ref": 3}, {"$ref": "x"}, {"$ref": "#/x"}, {"properties": 3}, {"required": "a"}, {"required": [3]},
    {"required": ["z"], "additionalProperties": False}, {"prefixItems": {}}, {"minItems": -1},
    {"minItems": True}, {"minItems": 1.0},
    {"maxItems": 1 << 20}, {"maxItems": (1 << 20) + 1}, {"minItems": 2, "maxItems": 1}, {"items": False,
    "minItems": 1},
    {"minLength": 2, "maxLength": 1}, {"format": "x"}, {"format": 3}, {"format": "date", "minLength": 1},
    {"format": "date", "maxLength": 0}, {"type": "integer", "minimum": 2, "maximum": 1},
    {"minimum": True}, {"minimum": 1e15},
    {"minimum": 0.2, "maximum": 0.8}, {"minimum": "1"}, {"pattern": "x"}, {"type": "string",
    "oneOf": []}, DEEP,
    DEEP["items"], {"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"not": {}},
]  # fmt: skip


def accepted(g: Grammar, texts: list[str]) -> list[str]:
    """The texts that a grammar admits; what begins alike is read once."""
    states: dict[bytes, Any] = {b"": g.start}
    found = []
    for t in texts:
        raw = t.encode()
        for k in range(1, len(raw) + 1):
            if raw[:k] not in states:
                before = states[raw[: k - 1]]
                states[raw[:k]] = grammar.after(before, raw[k - 1]) if before else before
        if None in states[raw]:
            found.append(t)
    return found


def admitted() -> Iterator[str]:
    for s in SCHEMAS:
        g = Grammar(s)
        found = accepted(g, TEXTS)
        for t in found:
            json.loads(t)
        yield f"{json.dumps(s)} least {grammar.needed(g.start)}: {' '.join(found)}"
    g = Grammar({"const": "é"}, ascii_only=True)
    yield short(accepted(g, TEXTS))
    for s in BAD:
        yield f"{json.dumps(s):.80}: {short(said(lambda s=s: grammar.needed(Grammar(s).start)))}"


def test_texts_that_a_schema_admits() -> None:
    pinned("schema_texts", admitted())


# Files and options --------------------------------------------------------------------------------

METADATA = {
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "rope.freq_base_swa": 77.0,
    "expert_count": 8,
    "expert_used_count": 2, "expert_feed_forward_length": 48, "attention.layer_norm_epsilon": 1e-4,
}  # fmt: skip


def converted() -> Iterator[str]:
    for kind, a in gguf_families.ARCHITECTURES.items():
        yield f"{kind}: {a.model_type} {a.interleaved} {a.added_one} {a.turned}"
        yield from (f"  {k} -> {v}" for k, v in a.names.items())
        base = {**SIZES, "head_dim": 20, "sliding_window": None, "rope_scaling": None}
        for more in ({}, {"num_hidden_layers": 46}, {"num_hidden_layers": 62, "rope_theta": 5.0},
        {"sliding_window": 9},
                     {"num_hidden_layers": None}, {"num_hidden_layers": 46, "num_attention_heads": 0},
                     {"num_hidden_layers": 62, "hidden_size": "x"}, {"rope_scaling": {"factor": 2}},
                     {"num_hidden_layers": 1 << 12}):  # fmt: skip
            got = a.more(METADATA.get, {**base, **more})
            yield f"  {more}: {short(got) if len(short(got)) < 500 else len(short(got))}"
        for pattern in (3, True, [True, False, True, True], [True]):
            given = {"attention.sliding_window_pattern": pattern}
            yield f"  pattern {pattern}: {short(a.more(given.get, base))}"
    yield str(said(gguf_families.architecture, "x", "f.gguf"))
    yield str(said(gguf_families.architecture, 3, "f.gguf"))


def test_architectures_of_files() -> None:
    pinned("gguf_families", converted())


def options() -> Iterator[str]:
    edges = {
        "temperature": (0, 100, 100.5, -1), "top_k": (0, 2**31, 2**31 + 1, -1, 1.0), "top_p": (0, 1, 1.1,
        -0.1),
        "min_p": (0, 1, 1.1, -0.1), "repetition_penalty": (1e-3, 1e3, 1001, 0),
        "presence_penalty": (-100, 100, 101, -101),
        "frequency_penalty": (-100, 100, 101, -101), "seed": (0, 2**64 - 1, 2**64, -1, 0.0),
    }  # fmt: skip
    yield short(asdict(Sampling()))
    for name, values in edges.items():
        for v in (*values, True, "x", None, float("nan")):
            yield f"{name}={v!r}: {said(lambda n=name, v=v: Sampling(**{n: v}) and 'taken')}"


def test_options_of_sampling() -> None:
    pinned("sampling_options", options())
