"""Tokenizers: those of GGUF files equal the tokenizers package, text comes back, chats are rendered in a
sandbox.
"""

import json
import random

import numpy as np
import pytest

from tessera.core.errors import ModelError, OperandError
from tessera.models import splitting, tokenizer
from tessera.models.hub_tokenizer import HubTokenizer
from tessera.models.template import render

tokenizers = pytest.importorskip("tokenizers")

TEXT = """The quick brown fox doesn't jump over 13 lazy dogs; it's 2024, they'll say, in about 3.14159 hours.
def f(x):\n    return x ** 2  # squares\n\n\t tabs   and  spaces \r\n Größe, déjà vu, 東京, Привет мир, naïve café 12345678"""  # noqa: E501
LETTERS = "aAbBzZ'stredlv 019 \n\r\t_-/.,!?éÉßǅΩя日本\u0301\u00a0\u2028²Ⅷ٣\U0001f600\x07\x85\u200b"

HUB = {  # how the tokenizers package splits
    "gpt-2": [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}],
    "smollm": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}  # fmt: skip


def hub_splitter(name):
    how = HUB[name]
    if isinstance(how, str):
        how = [
            {"type": "Split", "pattern": {"Regex": how}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ]  # fmt: skip
    return {"type": "Sequence", "pretokenizers": how}


def trained(name):
    """A small byte-level tokenizer of the package, and the same as metadata of a GGUF file."""
    hub = tokenizers.Tokenizer(tokenizers.models.BPE())
    spec = json.loads(hub.to_str()) | {
        "pre_tokenizer": hub_splitter(name),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }  # fmt: skip
    hub = tokenizers.Tokenizer.from_str(json.dumps(spec))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<|end|>"], show_progress=False,
        initial_alphabet=sorted(tokenizer.byte_characters().values()),
    )  # fmt: skip
    hub.train_from_iterator([TEXT] * 3, trainer)
    model = json.loads(hub.to_str())["model"]
    names = [n for n, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    metadata = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name, "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.token_type": np.array([3, *[1] * (len(names) - 1)], np.int32),
    }  # fmt: skip
    return hub, metadata


def texts(count, seed=0):
    rng = random.Random(seed)
    yield from (TEXT, "", " ", "a", "1", "\n\n", "it's", "IT'S  x", "<|end|>hi<|end|>")
    for _ in range(count):
        yield "".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, 40)))


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", HUB)
def test_byte_pairs_equal_the_tokenizers_package(name, count):
    hub, metadata = trained(name)
    own = tokenizer.from_gguf(metadata, "m.gguf")
    for text in texts(count):
        ids = own.encode(text)
        assert ids == hub.encode(text).ids, repr(text)
        assert own.decode(ids, special=True) == text
    assert own.decode([0, *own.encode("ab")]) == "ab"
    assert own.name(0) == "<|end|>"


@pytest.mark.parametrize("name", splitting.PATTERNS)
def test_words_joined_are_the_text(name):
    patterns = splitting.splitter(name)
    for text in texts(100, 1):
        assert "".join(splitting.split(text, patterns)) == text


def pieces():
    """A SentencePiece model with bytes and scores that fall with the order of merges, and the same for
    the package.
    """
    words = [
        "\u2581t",
        "he",
        "\u2581the",
        "in",
        "an",
        "\u2581a",
        "er",
        "\u2581f",
        "ox",
        "\u2581fox",
        "th",
    ]
    letters = sorted(set("".join(words)) | set("bcdgijklmnpqsuvwyz.,") | {"\u2581"})
    names = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *words, *letters]
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))] + [-1e9] * len(letters)
    types = [2, 3, 3] + [6] * 256 + [1] * (len(words) + len(letters))
    metadata = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": names, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.scores": np.array(scores, np.float32), "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.token_type": np.array(types, np.int32), "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    splits = [("\u2581", "t"), ("h", "e"), ("\u2581t", "he"), ("i", "n"), ("a", "n"), ("\u2581", "a"),
        ("e", "r"),
              ("\u2581", "f"), ("o", "x"), ("\u2581f", "ox"), ("t", "h")]  # fmt: skip
    bpe = tokenizers.models.BPE(
        {n: i for i, n in enumerate(names)}, splits, unk_token="<unk>", byte_fallback=True
    )
    hub = tokenizers.Tokenizer(bpe)
    hub.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
    )
    return hub, metadata


def test_sentence_pieces_equal_the_tokenizers_package():
    hub, metadata = pieces()
    own = tokenizer.from_gguf(metadata, "m.gguf")
    rng = random.Random(0)
    for _ in range(400):
        text = "".join(rng.choice("the fox in an ether é日.") for _ in range(rng.randrange(1, 30)))
        ids = own.encode(text)
        assert ids == [1, *hub.encode(text).ids], repr(text)
        assert own.decode(ids) == text
    assert own.decode([259, 261]) == "t the"


BROKEN = {
    "tokenizer.ggml.model": ("bert", "m.gguf: the tokenizer is 'bert', expected one of gpt2, llama"),
    "tokenizer.ggml.tokens": (7, "m.gguf: tokenizer.ggml.tokens is no list of str"),
    "tokenizer.ggml.pre": ("mine", "tokenizer: the splitting 'mine' is not known; known are default, gpt-2"),
    "tokenizer.ggml.merges": (["abc"], "m.gguf: tokenizer.ggml.merges has an entry that is no pair of names"),
    "tokenizer.ggml.eos_token_id": (10**6,
    "m.gguf: tokenizer.ggml.eos_token_id is 1000000, expected 0 to 399"),
    "tokenizer.ggml.add_bos_token": (3, "m.gguf: tokenizer.ggml.add_bos_token is 3, expected a bool"),
    "tokenizer.ggml.token_type": (np.zeros(3, np.int32), "tokenizer.ggml.token_type are not 400 integers"),
}  # fmt: skip


@pytest.mark.parametrize("key", BROKEN)
def test_a_damaged_tokenizer_is_refused(key):
    _, metadata = trained("gpt-2")
    value, text = BROKEN[key]
    with pytest.raises(ModelError) as e:
        tokenizer.from_gguf(metadata | {key: value}, "m.gguf")
    assert text in e.value.message


def test_a_token_out_of_range_is_refused():
    _, metadata = trained("gpt-2")
    with pytest.raises(
        OperandError, match="decode: token 400 is out of range; the tokenizer has 400"
    ):
        tokenizer.from_gguf(metadata, "m.gguf").decode([400])


def test_a_folder_has_its_tokenizer_template_and_ends(tmp_path):
    hub, _ = trained("qwen2")
    hub.save(str(tmp_path / "tokenizer.json"))
    settings = {
        "eos_token": {"content": "<|end|>"},
        "chat_template": "{{ messages[0]['content'] }}!",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    t = HubTokenizer(tmp_path)
    assert t.eos == {0, 5, 6}
    assert t.decode(t.encode(TEXT)) == TEXT
    assert render(t.template, [{"role": "user", "content": "hi"}]) == "hi!"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not read by the tokenizers package"):
        HubTokenizer(tmp_path)


CHAT = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_chat_is_rendered():
    got = render(CHAT, [{"role": "user", "content": " hi "}], add_generation_prompt=True)
    assert got == "<user>hi\n<assistant>"


PLAIN = {
    "{{ 'a' ~ 1 ~ none ~ [1] }}": "a1None[1]",
    "{% for m in [1, 2, 3] if m > 1 %}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}": "1False2 2True2 ",  # noqa: E501
    "{{ 'a,b'.split(',') | join('-') }} {{ 'abc' | replace('b', 'x') }} {{ [1, 2] | sum }}": "a-b axc 3",
    "{{ 'a\nb\n\nc' | indent(2) }}": "a\n  b\n\n  c",
    "{{ {'b': [1], 'a': 'é'} | tojson(ensure_ascii=False, sort_keys=True, separators=(',', ':')) }}": '{"a":"é","b":[1]}',  # noqa: E501
    "{{ [{'a': 1}] | tojson(indent=4) }}": '[\n    {\n        "a": 1\n    }\n]',
    "{{ [{'a': 'x'}, {'a': 'y'}] | map(attribute='a') | list | join(', ') }}": "x, y",
    "{% generation %}reply{{ 1 }}{% endgeneration %}": "reply1",
    "{% macro f(x) %}<{{ x }}>{% endmacro %}{% set y %}{{ f(1) }}{% endset %}{{ y ~ f(2) }}": "<1><2>",
    "{{ {'a': 1}.items() | list }} {{ ' x '.strip() }} {{ 'a' in 'ab' }} {{ 'x' is in ['x'] }}": "[('a', 1)] x True True",  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("template", PLAIN)
def test_what_templates_use_is_there(template):
    assert render(template, []) == PLAIN[template]


HOSTILE = {
    "attributes": ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
    "globals": ("{{ raise_exception.__globals__.json }}", "is unsafe"),
    "modules": ("{% set x = cycler.__init__.__globals__ %}{{ x.os.getcwd() }}", "is unsafe"),
    "repetition": ("{{ 'a' * 10000000000 }}", "the operator * makes a value that is too large"),
    "power": ("{{ 10 ** 10 ** 10 }}", "the operator ** makes a value that is too large"),
    "doubling": ("{% set n = namespace(x='a') %}{% for i in range(64) %}{% set n.x = n.x + n.x %}{% endfor %}",  # noqa: E501
                 "the operator + makes a value that is too large"),
    "concatenation": ("{% set n = namespace(x='a') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% "
                      "endfor %}",
                      "the operator + makes a value that is too large"),
    "capture": ("{% set n = namespace(x='ab') %}{% for i in range(64) %}{% set y %}{{ n.x }}{{ n.x }}{% "
                "endset %}"
                "{% set n.x = y %}{% endfor %}", "a block makes a value that is too large"),
    "macro": ("{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}{% set n = namespace(x='ab') %}{% for i in "
              "range(64) %}"
              "{% set n.x = f(n.x) %}{% endfor %}", "a block makes a value that is too large"),
    "lists": ("{% set n = namespace(x=['a']) %}{% for i in range(64) %}{% set n.x = [n.x, n.x] %}{% endfor "
              "%}{{ n.x }}",
              "a list or text makes a value that is too large"),
    "lists as JSON": ("{% set n = namespace(x=['a']) %}{% for i in range(64) %}{% set n.x = [n.x, n.x] %}{% "
                      "endfor %}"
                      "{{ n.x | tojson | length }}", "a list or text makes a value that is too large"),
    "compared lists": ("{% set n = namespace(x=['a'], y=['a']) %}{% for i in range(64) %}{% set n.x = [n.x, "
                       "n.x] %}"
                       "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
                       "a list or text makes a value"),
    "replace": ("{% set n = namespace(x='a'*999) %}{% for i in range(64) %}{% set n.x = n.x.replace('a', "
                "n.x) %}{% endfor %}",
                "replace makes a value that is too large"),
    "replace filter": ("{{ ('a'*9999) | replace('a', 'b'*9999) | length }}",
    "replace makes a value that is too large"),
    "join": ("{{ ('a'*9999).join(('a'*9999) | list) | length }}", "join makes a value that is too large"),
    "join filter": ("{{ ('a'*9999) | join('b'*9999) | length }}", "join makes a value that is too large"),
    "escape": ("{{ ('&'*999999) | e | length }}", "escape makes a value that is too large"),
    "width": ("{{ 'a'.ljust(99999999999) | length }}",
    "access to attribute 'ljust' of 'str' object is unsafe"),
    "fields": ("{{ '{:>99999999999}'.format(1) | length }}",
    "access to attribute 'format' of 'str' object is unsafe"),
    "bytes": ("{{ (1).to_bytes(99999999999, 'big') | length }}",
    "access to attribute 'to_bytes' of 'int' object"),
    "indent": ("{{ 'a\nb' | indent(99999999999) | length }}", "indent makes a value that is too large"),
    "JSON": ("{{ [[1]] | tojson(indent=99999999999) | length }}", "tojson makes a value that is too large"),
    "center": ("{{ 'a' | center(99999999999) | length }}", "No filter named 'center'"),
    "lipsum": ("{{ lipsum(n=10000000) | length }}", "'lipsum' is undefined"),
    "loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "takes more than 8388608 steps"),
    "calls": ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
              "takes more than 8388608 steps"),
    "nesting": ("{% if 1 %}" * 200 + "{% endif %}" * 200, "too many levels"),
    "format": ("{{ '%99999999999d' % 1 }}", "formatting by % is not allowed"),
    "output": ("{% for i in range(99999) %}{{ 'abcdefghijklmnopqrstuvw' }}{% endfor %}",
    "is longer than 1048576"),
    "range": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    "syntax": ("{% if %}", "chat template: Expected an expression"),
    "missing": ("{{ messages[9].content.x }}", "chat template: list object has no element 9"),
    "refused": ("{{ raise_exception('roles must alternate') }}", "chat template: roles must alternate"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_stopped(name):
    template, text = HOSTILE[name]
    with pytest.raises(ModelError) as e:
        render(template, [])
    assert text in e.value.message
