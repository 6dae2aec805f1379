"""Replies by a JSON schema always parse and always follow it, however random the model and short the
limit.
"""

import itertools
import json
import re

import numpy as np
import pytest

import tessera as ts
from tessera.core.errors import OperandError
from tessera.models import grammar
from tessera.models.guide import Masks, Vocabulary, guide
from tessera.models.integers import integers
from tessera.models.schema import CHARACTER, Grammar
from tests.support.cases.model_files import SMALL, llama_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(llama_gguf(config=SMALL))
    return ts.models.load(path)


NAMES = ("a", "b", 'quo"te', "é", "日本", "long name")


def random_schema(rng, depth=0):
    """A schema of the kinds that are taken."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    kinds += ["object", "array", "anyOf", "any", "types"] if depth < 3 else []
    kind = kinds[rng.integers(len(kinds))]
    inner = lambda: random_schema(rng, depth + 1)  # noqa: E731
    if kind == "object":
        names = rng.permutation(NAMES)[: rng.integers(0, 5)].tolist()
        need = [n for n in names if rng.random() < 0.5]
        out = {"type": kind, "properties": {n: inner() for n in names}, "required": need}
        return out | ({"additionalProperties": False} if rng.random() < 0.5 else {})
    if kind == "array":
        low = int(rng.integers(0, 3))
        out = {"type": kind, "items": inner(), "minItems": low}
        out |= {"maxItems": low + int(rng.integers(0, 3))} if rng.random() < 0.5 else {}
        return out | ({"prefixItems": [inner(), inner()]} if rng.random() < 0.2 else {})
    if kind == "string":
        low = int(rng.integers(0, 4))
        return {"type": kind, "minLength": low,
            "maxLength": low + int(rng.integers(0, 9))} if rng.random() < 0.5 else {"type": kind}  # fmt: skip
    if kind in ("integer", "number"):
        low = int(rng.integers(-2000, 2000))
        bounds = {"minimum": low, "maximum": low + int(rng.integers(0, 500)),
            "exclusiveMaximum": 10_000.5}  # fmt: skip
        return {"type": kind} | {k: v for k, v in bounds.items() if rng.random() < 0.5}
    return {
        "enum": {"enum": ["x", 1, None, [1, {"k": "v"}]]}, "const": {"const": {"é": [True]}}, "any": {},
        "types": {"type": ["string", "null", "array"]}, "boolean": {"type": "boolean"},
        "null": {"type": "null"},
    }.get(kind) or {"anyOf": [inner(), inner()]}  # fmt: skip


IS = {
    "object": lambda v: isinstance(v, dict), "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "integer": lambda v: type(v) is int, "number": lambda v: type(v) in (int, float),
    "boolean": lambda v: isinstance(v, bool), "null": lambda v: v is None,
}  # fmt: skip


def follows(v, s):
    """Whether a value follows a schema, as the specification says it."""
    if "anyOf" in s:
        return any(follows(v, o) for o in s["anyOf"])
    if "enum" in s or "const" in s:
        return any(v == e and type(v) is type(e) for e in s.get("enum", [s.get("const")]))
    kinds = s.get("type", list(IS))
    if not any(IS[k](v) for k in (kinds if isinstance(kinds, list) else [kinds])):
        return False
    if isinstance(v, str):
        return s.get("minLength", 0) <= len(v) <= s.get("maxLength", 1 << 30)
    if isinstance(v, list):
        first = s.get("prefixItems", [])
        each = [*first, *[s.get("items", {})] * len(v)][: len(v)]
        sized = s.get("minItems", 0) <= len(v) <= s.get("maxItems", 1 << 30)
        return sized and all(map(follows, v, each))
    if isinstance(v, dict):
        known = s.get("properties", {})
        closed = s.get("additionalProperties") is not False or v.keys() <= known.keys()
        return closed and set(s.get("required", ())) <= v.keys() and all(follows(x, known.get(k, {})) for k,
            x in v.items())  # fmt: skip
    if type(v) in (int, float):
        return s.get("minimum", v) <= v <= s.get("maximum", v) and v < s.get("exclusiveMaximum",
            1e99)  # fmt: skip
    return True


def check_schemas(model, seeds):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        schema = random_schema(rng)
        try:
            least = guide(model, schema, 10**6).least()
        except OperandError as e:
            assert "no integer" in e.message, schema  # noqa: PT017
            continue
        limit = least + int(rng.integers(0, 40))
        if limit > 190:
            continue
        text = model.generate(
            "ab", limit, float(rng.choice([0.0, 1.0, 3.0])), seed=seed, schema=schema
        )
        assert follows(json.loads(text), schema), (seed, schema, text)


def test_replies_follow_random_schemas(model):
    check_schemas(model, range(40))


@pytest.mark.deep
@pytest.mark.parametrize("part", range(10))
def test_replies_follow_a_thousand_random_schemas(model, part):
    check_schemas(model, range(100 * part, 100 * part + 100))


def test_masks_inside_strings_are_those_of_every_token():
    """Plain tokens are counted, not read; reading them byte by byte gives the same."""
    pieces = ["a", "bc", "é", "日本x", '"', '",', "\\", "\\n", "\n", "z" * 5, '":"', "\u00ff\u0100"]

    class Pieces:
        size, eos = 256 + len(pieces), frozenset()

        def piece(self, t):
            return bytes([t]) if t < 256 else pieces[t - 256].encode()

    vocabulary = Vocabulary(Pieces(), Pieces.size)
    for kind in ({"maxLength": 4}, {"minLength": 3}, {}, {"minLength": 2, "maxLength": 9}):
        either = [{"type": "string"} | kind, {"type": "string", "maxLength": 6}]
        masks = Masks(vocabulary, Grammar({"type": "array", "items": {"anyOf": either}}))
        state = masks.start
        for b in b'["x':
            state = grammar.after(state, b)
        for t, n in enumerate(masks.needed(state)):
            assert n == grammar.needed(masks.after(state, t)), (kind, t)


def test_a_recursion_ends(model):
    tree = {"$ref": "#/$defs/tree", "$defs": {"tree": {
        "type": "object", "properties": {"v": {"type": "integer"},
        "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "required": ["v", "kids"], "additionalProperties": False,
    }}}  # fmt: skip
    for seed in range(4):
        made = json.loads(model.generate("a", 150, 3.0, seed=seed, schema=tree))
        assert made.keys() == {"v", "kids"}


def test_a_draft_changes_no_reply_by_a_schema(model):
    schema = {"type": "object", "properties": {"n": {"type": "string"}}, "required": ["n"]}
    alone = model.generate("ab", 30, 1.0, seed=5, schema=schema)
    assert model.generate("ab", 30, 1.0, seed=5, schema=schema, draft=model) == alone


def test_characters_of_strings_are_those_of_utf8():
    """The bytes that may follow each other are those of Python's encoder, over all characters."""
    follows_in_python = {}
    for code in range(0x80, 0x110000, 0x20):  # tails are 0x80 to 0xBF: two of each 64 are enough
        if not 0xD800 <= code < 0xE000:
            for c in (code, code + 0x1F):
                e = chr(c).encode()
                for i in range(1, len(e)):
                    follows_in_python.setdefault(e[:i], set()).add(e[i])
    start = grammar.start(CHARACTER)
    firsts = {b: s for b in range(256) if (s := grammar.after(start, b))}
    single = {b for b, s in firsts.items() if None in s}
    assert single == {b for b in range(0x20, 0x7F) if chr(b) not in '"\\'}
    assert firsts.keys() - single - {ord("\\")} == {e[0] for e in follows_in_python}
    looked_at = [
        e for e in follows_in_python if len(e) == 1 or set(e[1:]) <= {0x80, 0x90, 0x9F, 0xBF}
    ]
    assert len(looked_at) > 100
    for e in looked_at:
        state = start
        for b in e:
            state = grammar.after(state, b)
        assert None not in state
        tails = {b: s for b in range(256) if (s := grammar.after(state, b))}
        whole = len(e) + 1 == (2 if e[0] < 0xE0 else 3 if e[0] < 0xF0 else 4)
        assert {None in s for s in tails.values()} == {whole}, e
        found = follows_in_python[e]
        assert (min(tails), max(tails), len(tails)) == (
            min(found),
            max(found),
            max(found) - min(found) + 1,
        ), e


def test_escapes_of_strings_are_those_of_json():
    """All escapes of one letter, and of four hexadecimal digits but those of halves of characters."""

    def ends(text):
        state = grammar.start(CHARACTER)
        for b in text.encode("latin-1"):
            state = grammar.after(state, b)
        return None in state

    for b in range(256):
        try:
            json.loads(f'"\\{chr(b)}"')
            is_escape = True
        except ValueError:
            is_escape = False
        assert ends("\\" + chr(b)) == is_escape, b
        is_digit = chr(b) in "0123456789abcdefABCDEF"
        assert ends(f"\\u{chr(b)}000") == (is_digit and chr(b) not in "dD")
        for at in (1, 2, 3):
            digits = [*"0000"]
            digits[at] = chr(b)
            assert ends("\\u" + "".join(digits)) == is_digit, (at, b)
    assert not ends("\\u000")
    assert not ends("\\u00000")


@pytest.mark.parametrize("bounds",
    [(0, 0), (-5, 17), (7, 1234), (-1000, -99), (95, 105), (-3, None)])  # fmt: skip
def test_integers_are_those_between_bounds(bounds):
    start = grammar.start(integers(*bounds, digits=4))
    low, high = bounds[0], 9999 if bounds[1] is None else bounds[1]
    for n in range(-1100, 1400):
        state = start
        for b in str(n).encode():
            state = grammar.after(state, b)
        assert (None in state) == (low <= n <= high), n


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [("number", r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?([eE][+-]?\d{1,2})?"), ("integer", r"-?(0|[1-9]\d{0,14})"),
     ("boolean", "true|false"), ("null", "null")],
)  # fmt: skip
def test_numbers_and_words_are_those_of_json(kind, pattern):
    """All short texts of these letters, and longer ones at the limits."""
    start = Grammar({"type": kind}).start
    texts = {"".join(t) for n in range(5) for t in itertools.product("-01.e+", repeat=n)}
    texts |= {
        "1" * 15,
        "1" * 16,
        "0." + "7" * 15,
        "0." + "7" * 16,
        "1e10",
        "1E-10",
        "1e100",
        "true",
        "null",
        "nul",
    }
    for text in sorted(texts):
        state = start
        for b in text.encode():
            state = grammar.after(state, b)
        assert (None in state) == bool(re.fullmatch(pattern, text)), text


def test_formats():
    for form, good, bad in (("date", "2024-02-28", "2024-13-01"),
        ("uuid", "0" * 8 + "-0000" * 3 + "-" + "f" * 12, "x"),
                            ("ipv4", "255.0.1.20", "256.0.0.1")):  # fmt: skip
        start = Grammar({"type": "string", "format": form}).start
        for text, whole in ((good, True), (bad, False)):
            state = start
            for b in json.dumps(text).encode():
                state = grammar.after(state, b)
            assert (None in state) == whole


WRONG = {
    "key": ({"type": "string", "pattern": "a"},
    "schema: 'pattern' is not taken here; expected format, maxLength, minLength, type"),
    "type": ({"type": "cat"}, "schema: type is 'cat', expected among object, array, string"),
    "kind": (3, "schema: got 3, expected an object"),
    "ref": ({"$ref": "#/$defs/x"}, "schema: $ref '#/$defs/x' is not in the schema"),
    "endless": ({"$ref": "#"}, "schema: nothing can satisfy it; a recursion has no end"),
    "bounds": ({"type": "integer", "minimum": 2, "maximum": 1},
    "schema: no integer is at least 2 and at most 1"),
    "short": ({"const": "a" * 50}, "schema: it needs up to 52 tokens, but max_new_tokens is 9"),
    "required": ({"type": "object", "required": ["a"], "additionalProperties": False},
    "schema: 'a' is required and not among properties"),
    "foreign": ({"const": {1, 2}}, "schema: it is not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_schema_is_refused(model, name):
    schema, text = WRONG[name]
    with pytest.raises(OperandError) as e:
        model.generate("a", 9, schema=schema)
    assert text in e.value.message
