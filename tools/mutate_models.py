"""Damages model files and loads them: each is a model or a ModelError, within bounds of memory and time.

    python -m tools.mutate_models --count 50000 --seed 1 [--record FILE]

Kinds take turns: GGUF files, safetensors with their index, configs of every family, tokenizers of GGUF
files, `tokenizer.json`, the settings and chat templates beside them.  A copy is a function of its seed and
number; copies are loaded in batches that are processes of their own with a limit of memory.  What loads is
also used: its tokenizer encodes and decodes, its template is rendered.
"""

from __future__ import annotations

import json
import random
import re
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

import tessera as ts
from tessera.models.hub_tokenizer import HubTokenizer
from tessera.models.template import render
from tessera.models.tokenizer import from_gguf
from tests.support.cases import model_files
from tools import damage

SECONDS = 20.0  # that one file may take on a busy machine
TEXT = "Hello, wörld\n\U0001f600 <s>a</s> 123"
WORDS = [
    "bytes",
    "",
    "x" * 60,
    "silu",
    "yarn",
    "llama3",
    "gpt_oss",
    "ByteLevel",
    "WordPiece",
    "BPE",
    "\ud800",
    "\0",
]
NUMBERS = [
    0,
    1,
    -1,
    3,
    255,
    2**31,
    2**40,
    2**63,
    2**64,
    10**400,
    0.5,
    -0.0,
    1e38,
    1e308,
    float("inf"),
    float("nan"),
]
VALUES = [
    None,
    True,
    False,
    *WORDS,
    *NUMBERS,
    [],
    {},
    [1],
    ["a", "b"],
    [[]],
    {"a": 1},
    {"content": "a"},
    {"rope_type": "yarn"},
]
FAMILIES = {
    "llama": {}, "mistral": {"sliding_window": 9}, "qwen2": {}, "qwen3": {"head_dim": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "gemma": {"head_dim": 8}, "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {"head_dim": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "bert": {"type_vocab_size": 2}, "vit": {"image_size": 24, "patch_size": 8, "id2label": {"0": "a"}},
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ '<' ~ m.role ~ '>' + m['content'] | trim }}{% if not loop.last %}\n{% endif %}"
    "{% endfor %}{% set n = namespace(x=1) %}{% macro f(a, b=2) %}{{ a * b }}{% endmacro %}{{ f(n.x) }}{{ "
    "messages | tojson(indent=2) }}"
)
STATEMENTS = [
    "{{ messages }}", "{% set x = x ~ x %}", "{% set x = [x, x] %}", "{{ x | tojson }}",
    "{{ f(messages, 9999) }}", "{{ f('ab', 99999) }}",
    "{% set n.x = n.x ~ messages %}", "{% set n.x = f(n.x, 99) %}", "{{ n.x | join(n.x | string) }}",
    "{% if n.x == x %}a{% endif %}",
    "{% for a in n.x | string %}{% set n.x = n.x ~ a %}{% endfor %}",
    "{% for a in range(9999) %}{{ loop.cycle(a, x) }}{% endfor %}",
    "{{ messages | map(attribute='role') | list }}", "{{ messages[99] }}", "{{ x.y.z }}",
    "{{ 9 ** 9 ** 9 }}", "{{ messages | replace('a', x) }}",
    "{% set x = messages | string %}", "{% set x %}{{ x }}{{ x }}{{ x }}{% endset %}", "{{ ''.__class__ }}",
    "{% break %}", "{{ f(f) }}", "{{ -messages }}",
    "{{ messages | sort }}", "{{ messages | groupby('role') }}", "{{ {messages: 1} }}",
    "{{ strftime_now(x) }}", "{{ raise_exception(x) }}",
]  # fmt: skip
TOKENS = ["{{", "}}", "{%", "%}", "for", "if", "~", "*", "**", "|", "(", ")", "[", "]", ".", "'",
    "range(99999)", "set", "x", "namespace",
          "join", "replace", "0", "99999999", "__class__", "{% endfor %}", "{% set x = x ~ x %}", "loop",
          "else"]  # fmt: skip


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes with some changed, cut, doubled, or replaced by large numbers."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at = rng.randrange(max(len(out), 1))
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                out[at : at + 8] = struct.pack(
                    "<Q", rng.choice([0, 1, 2**31, 2**32, 2**62, 2**63, 2**64 - 1])
                )
            case 2:
                del out[at : at + rng.randrange(1, 40)]
            case 3:
                out[at:at] = out[at : at + rng.choice([1, 16, 500])]
            case 4:
                out = out[:at]
    return bytes(out)


def damaged_value(rng: random.Random, x: Any, rate: float = 0.95) -> Any:
    """JSON with something inside it changed, left out or added."""
    if isinstance(x, dict | list) and x and rng.random() < rate:
        out = x.copy()
        key = rng.choice(list(out)) if isinstance(out, dict) else rng.randrange(len(out))
        if rng.random() < 0.15:
            del out[key]
        else:
            out[key] = damaged_value(rng, out[key], rate)
        return out
    of_kind = NUMBERS if isinstance(x, int | float) else WORDS if isinstance(x, str) else VALUES
    return rng.choice(of_kind if rng.random() < 0.7 else VALUES)


def damaged_json(rng: random.Random, x: Any) -> bytes:
    """The text of damaged JSON, sometimes damaged as a text."""
    for _ in range(rng.choice([1, 1, 2, 4])):
        x = damaged_value(rng, x)
    raw = json.dumps(x).encode()
    return raw if rng.random() < 0.9 else damaged_bytes(rng, raw)


def damaged_template(rng: random.Random) -> str:
    """A chat template with pieces of templates thrown in."""
    parts = re.split(r"(?={[{%])", TEMPLATE)
    for _ in range(rng.choice([1, 1, 3])):
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(STATEMENTS))
    out = "".join(parts)
    for _ in range(rng.choice([0, 0, 1, 2])):
        at = rng.randrange(len(out) + 1)
        out = out[:at] + rng.choice(TOKENS) + out[at + rng.choice([0, 0, 1, 6]) :]
    return out


def hub_tokenizers() -> list[dict[str, Any]]:
    """Tokenizers of three kinds as the package writes them."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = tokenizers.Tokenizer(
        models.BPE(
            {c: i for i, c in enumerate([*characters, "he", "ll"])}, [("h", "e"), ("l", "l")]
        )
    )
    pairs.pre_tokenizer, pairs.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    pairs.add_special_tokens(["<s>", "</s>"])
    words = tokenizers.Tokenizer(
        models.WordPiece({"[UNK]": 0, "hello": 1, "##o": 2, "w": 3}, unk_token="[UNK]")
    )
    words.normalizer, words.pre_tokenizer = (
        tokenizers.normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    words.decoder = decoders.WordPiece()
    pieces = tokenizers.Tokenizer(
        models.Unigram(
            [("<unk>", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -1.5)], 0, byte_fallback=False
        )
    )
    return [json.loads(t.to_str()) for t in (pairs, words, pieces)]


class Files:
    """What is damaged, and where the copies lie."""

    def __init__(self, folder: Path):
        self.folder, self.file = model_files.llama_folder(folder / "m"), folder / "m.gguf"
        self.gguf = model_files.llama_gguf(config=model_files.SMALL)
        self.header = self.gguf.rindex(b".weight") + 64  # where the rows of tensors end, about
        self.weights = model_files.safetensors(model_files.llama_weights())
        self.hub = hub_tokenizers()
        self.config = (self.folder / "config.json").read_bytes()

    def reset(self) -> None:
        """The whole folder again."""
        for path in self.folder.iterdir():
            path.unlink()
        (self.folder / "config.json").write_bytes(self.config)
        (self.folder / "model.safetensors").write_bytes(self.weights)


def load_gguf(f: Files, rng: random.Random) -> None:
    """A GGUF file with damage anywhere, or in its header, which most bytes are not."""
    at = rng.choice([400, 4000, f.header])
    f.file.write_bytes(damaged_bytes(rng, f.gguf[:at]) + f.gguf[at:])
    use(ts.models.load(f.file).tokenizer)


def load_weights(f: Files, rng: random.Random) -> None:
    """Safetensors whose header is damaged, and an index."""
    size = 8 + int.from_bytes(f.weights[:8], "little")
    header = json.loads(f.weights[8:size])
    if rng.random() < 0.5:
        raw = damaged_json(rng, header)
        data = struct.pack("<Q", len(raw)) + raw + f.weights[size:]
    else:
        data = damaged_bytes(rng, f.weights[:size]) + f.weights[size:]
    (f.folder / "model.safetensors").write_bytes(data)
    if rng.random() < 0.3:
        index = {"weight_map": dict.fromkeys(header, "model.safetensors"), "metadata": {}}
        (f.folder / "model.safetensors.index.json").write_bytes(damaged_json(rng, index))
    ts.models.load(f.folder)


def load_config(f: Files, rng: random.Random) -> None:
    """A config of any family."""
    kind = rng.choice(list(FAMILIES))
    config = json.loads(f.config) | {"model_type": kind} | FAMILIES[kind]
    (f.folder / "config.json").write_bytes(damaged_json(rng, config))
    ts.models.load(f.folder)


def load_gguf_tokenizer(f: Files, rng: random.Random) -> None:
    """The tokenizer that a GGUF file describes."""
    metadata = model_files.byte_tokenizer() | {
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.bos_token_id": 1,
    }
    if rng.random() < 0.5:
        names = metadata["tokenizer.ggml.tokens"]
        metadata |= {"tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": np.zeros(len(names), np.float32),
                     "tokenizer.ggml.token_type": np.ones(len(names), np.int32)}  # fmt: skip
    key = rng.choice(list(metadata))
    arrays = [
        np.zeros(256, np.int32),
        np.full(256, 9),
        np.zeros((2, 128)),
        np.full(256, np.nan, np.float32),
        ["a b"],
        ["a", "a"] * 128,
    ]
    metadata[key] = (
        rng.choice([*VALUES, *arrays]) if rng.random() < 0.5 else damaged_value(rng, metadata[key])
    )
    use(from_gguf(metadata, "m.gguf"))


def load_hub_tokenizer(f: Files, rng: random.Random) -> None:
    """tokenizer.json and what stands beside it."""
    (f.folder / "tokenizer.json").write_bytes(damaged_json(rng, rng.choice(f.hub)))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    (f.folder / "tokenizer_config.json").write_bytes(damaged_json(rng, settings))
    (f.folder / "generation_config.json").write_bytes(damaged_json(rng, {"eos_token_id": [1, 2]}))
    use(HubTokenizer(f.folder))


def load_template(f: Files, rng: random.Random) -> None:
    """A chat template."""
    render(damaged_template(rng), [{"role": "user", "content": TEXT}] * 3, bos_token="<s>")


def use(t: Any) -> None:
    """Encode, decode, name, render."""
    ids = t.encode(TEXT)
    t.decode(ids)
    for i in ids[:20]:
        t.name(i)
        t.piece(i)
    if t.template is not None:
        render(t.template, [{"role": "user", "content": TEXT}], bos_token="", eos_token="")


KINDS: dict[str, Callable[[Files, random.Random], None]] = {
    "gguf": load_gguf, "safetensors": load_weights, "config": load_config,
    "gguf tokenizer": load_gguf_tokenizer,
    "tokenizer.json": load_hub_tokenizer, "template": load_template,
}  # fmt: skip


def attempt(f: Files, seed: int, number: int) -> str:
    """What becomes of one copy: loaded, refused, or a fault, which is told."""
    rng = random.Random(f"{seed} {number}")
    kind = list(KINDS)[number % len(KINDS)]
    f.reset()
    copy = f"{kind} {seed} {number}"
    return f"{kind}: {damage.attempted(lambda: KINDS[kind](f, rng), copy, 'loaded', SECONDS)}"


def batch(seed: int, numbers: range, results: Any) -> None:
    """Some copies, with a limit of memory."""
    damage.limit_memory()
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        results.put(Counter(attempt(files, seed, n) for n in numbers))


def run(count: int, seed: int, first: int = 0) -> Counter[str]:
    """All copies, in batches."""
    return damage.in_batches(batch, count, seed, first)


if __name__ == "__main__":
    sys.exit(damage.main(__doc__, run))
