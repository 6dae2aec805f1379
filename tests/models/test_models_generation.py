"""Generation: decode has the bits of prefill, seeds repeat, streams join, drafts change nothing."""

import io

import numpy as np
import pytest

import tessera as ts
from tessera import cli
from tessera.core.errors import ModelError, OperandError, ShapeError
from tessera.lang.jit import Jitted
from tessera.models.blocks import FORMATS, Groups
from tessera.models.gguf import GGUF
from tessera.models.sampling import Sampling, choose, kept, penalised, uniform
from tessera.models.together import together
from tessera.models.weights import packed, rows_of, scores
from tests.support.cases.model_files import llama_folder, llama_gguf, random_blocks

IDS = np.random.default_rng(1).integers(1, 256, 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ts.models.load(llama_folder(tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(llama_gguf())
    return ts.models.load(path)


def test_decode_has_the_bits_of_prefill(model):
    """However tokens are cut into steps, and however much room the cache has."""
    whole = model.logits(IDS).numpy()
    state = model.start()
    for cut in ([3], [1], [9], [5], [12]):
        part, rest = np.split(IDS[state.length :], cut)
        rows, state = model.advance(state, part, every=True)
        assert (rows == whole[state.length - len(part) : state.length]).all()
        assert state.length + len(rest) == 30
    last, _ = model.advance(model.start(300), IDS)
    assert (last == whole[-1]).all()


def test_a_file_and_a_folder_of_the_same_weights_agree_in_every_bit(model, folder):
    assert (model.logits(IDS[:8]).numpy() == folder.logits(IDS[:8]).numpy()).all()


# Those whose blocks of 32 divide the rows of the tiny model.
FORMATS_OF_MATRICES = (3, *(pytest.param(k, marks=pytest.mark.deep) for k in (2, 6, 7, 8, 39)))


@pytest.mark.parametrize("kind", FORMATS_OF_MATRICES, ids=lambda k: FORMATS[k].name)
def test_weights_of_few_bits_contract_as_they_are_stored(tmp_path, kind):
    """Logits are those of the dequantised weights to rounding, and a step of one token has the bits of
    one of many.
    """
    f = FORMATS[kind]

    def quantise(name, t):
        raw = random_blocks(f, t.size // f.elements, len(name))
        fields = raw.view(f.fields)[:, 0]
        if kind == 39:
            fields["exponent"] = 124
        else:
            fields["scale"] = np.float16(0.03)
        if "offset" in (f.fields.names or ()):
            fields["offset"] = np.float16(-0.2)
        return kind, t.shape, raw.tobytes()

    (tmp_path / "few.gguf").write_bytes(llama_gguf(quantise=quantise))
    few = ts.models.load(tmp_path / "few.gguf")
    four = {2: "i4", 3: "u4", 39: "e2m1"}.get(kind)
    assert few.params["layers"][0]["gate_up"].four == four
    assert few.params["layers"][0]["gate_up"].codes.dtype is (ts.i8 if four is None else ts.u8)
    file = GGUF(tmp_path / "few.gguf")
    dense = {name: file.tensor(name) for name in file.tensors}
    (tmp_path / "dense.gguf").write_bytes(llama_gguf(quantise=lambda name, t: dense[name]))
    got, want = (m.logits(IDS[:8]).numpy() for m in (few, ts.models.load(tmp_path / "dense.gguf")))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * np.abs(want).max())
    state, rows = few.start(), []
    for token in IDS[:8]:
        row, state = few.advance(state, [token])
        rows.append(row)
    assert (np.stack(rows) == got).all()


def test_greedy_takes_the_likeliest(model):
    new = model.generate(list(IDS[:8]), max_new_tokens=12)
    rows = model.logits([*IDS[:8], *new]).numpy()
    assert new == rows[7:-1].argmax(-1).tolist()


def test_seeds_repeat_and_differ(model):
    a, b, c = (model.generate([5, 6, 7], 16, 1.0, seed=s, top_p=0.9, min_p=0.01) for s in (1, 1, 2))
    assert a == b != c


def test_pieces_of_a_stream_join_to_the_text(model):
    text = model.generate("Hello", 24, temperature=1.5, seed=3)
    pieces = list(model.stream("Hello", 24, temperature=1.5, seed=3))
    assert len(pieces) > 1
    assert "".join(pieces) == text
    stop = text[5:8]
    assert model.generate("Hello", 24, temperature=1.5, seed=3, stop=stop) == text.split(stop)[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_changes_no_token(model, folder, temperature, tmp_path):
    other = ts.models.load(llama_folder(tmp_path / "other", seed=1))
    for draft in (folder, other):
        got = model.generate(list(IDS[:9]), 21, temperature, seed=4, draft=draft)
        assert got == model.generate(list(IDS[:9]), 21, temperature, seed=4)


def test_beams(model):
    prompt = list(IDS[:5])
    assert model.generate(prompt, 4, beams=1) == model.generate(prompt, 4)
    found = model.generate(prompt, 4, beams=3)

    def likelihood(new):
        rows = model.logits([*prompt, *new]).numpy().astype(np.float64)[4:-1]
        rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
        return rows[np.arange(len(new)), new].mean()

    assert likelihood(found) >= likelihood(model.generate(prompt, 4))


def test_perplexity_is_that_of_the_logits(model):
    rows = model.logits(IDS).numpy().astype(np.float64)[:-1]
    rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
    want = np.exp(-rows[np.arange(29), IDS[1:]].mean())
    assert model.perplexity(IDS.tolist()) == pytest.approx(want, rel=1e-12)


def test_a_chat_uses_the_template(model):
    reply = "".join(model.chat([{"role": "user", "content": "Hi"}], max_new_tokens=6))
    assert reply == model.generate("user: Hi\nassistant:", 6)


def test_choices_follow_the_distribution():
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    counts = np.bincount(
        [choose(logits, [0] * i, [], Sampling(1.0)) for i in range(4000)], minlength=4
    )
    assert np.abs(counts / 4000 - np.exp(logits)).max() < 0.02
    only = {choose(logits, [0] * i, [], Sampling(1.0, top_k=2)) for i in range(200)}
    assert only == {0, 1}
    assert np.isfinite(kept(logits, Sampling(1.0, top_p=0.6))).tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert np.isfinite(kept(logits, Sampling(1.0, min_p=0.3))).tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert np.isfinite(kept(logits, Sampling(0.01, top_p=0.0))).sum() == 1
    assert 0 <= uniform(2**64 - 1, 7) < 1


def test_penalties():
    logits = np.array([2.0, -2.0, 1.0, 0.0])
    got = penalised(
        logits,
        [0, 1, 0],
        [0, 0],
        Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25),
    )
    assert got.tolist() == [1.0 - 0.5 - 0.5, -4.0, 1.0, 0.0]


WRONG = {
    "temperature": ({"temperature": -1}, "generate: temperature is -1, expected a number from 0 to 100"),
    "top_k": ({"top_k": 2.5}, "generate: top_k is 2.5, expected an integer from 0 to 2147483648"),
    "option": ({"topk": 3}, "generate: got 'topk', expected options among frequency_penalty, min_p"),
    "limit": ({"max_new_tokens": -1}, "generate: max_new_tokens is -1, expected an integer from 0"),
    "stop": ({"stop": [""]}, "generate: stop is [''], expected texts that are not empty"),
    "beams": ({"beams": 2, "temperature": 1}, "generate: beams goes with max_new_tokens only"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_refused(model, name):
    options, text = WRONG[name]
    with pytest.raises(OperandError) as e:
        model.generate("a", **options)
    assert text in e.value.message


def test_wrong_tokens_are_refused(model, folder):
    with pytest.raises(OperandError, match="tiny: token 256 is out of range; the model has 256"):
        model.logits([1, 256])
    with pytest.raises(
        ShapeError, match=r"tiny: got tokens float64\[1\], expected a list of integers"
    ):
        model.logits([0.5])
    with pytest.raises(ShapeError, match="tiny: 301 positions are more than the context of 300"):
        model.logits([1] * 301)
    with pytest.raises(ShapeError, match="generate: the prompt has no tokens"):
        model.generate([])
    with pytest.raises(
        OperandError, match="the model has no tokenizer; give tokens instead of text"
    ):
        folder.generate("a")


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(
        ModelError,
        match=r"models\.load: .*none is neither a file, a folder nor an installed package",
    ):
        ts.models.load(tmp_path / "none")
    with pytest.raises(ModelError, match=r"the folder has no config\.json .*, and no GGUF file"):
        ts.models.load(tmp_path)
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=r"no config\.json .*; give the file .*a\.gguf"):
        ts.models.load(tmp_path)


def test_an_installed_package_is_a_model(tmp_path, monkeypatch):
    (tmp_path / "tiny_model" / "data").mkdir(parents=True)
    (tmp_path / "tiny_model" / "__init__.py").write_text(
        "raise AssertionError('loading runs no code')"
    )
    (tmp_path / "tiny_model" / "data" / "tiny.gguf").write_bytes(llama_gguf())
    monkeypatch.syspath_prepend(tmp_path)
    assert ts.models.load("tiny-model").name == "tiny"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(llama_gguf())
    return str(path)


def test_generate_prints_the_continuation(model, file, capsys):
    assert cli.main(["generate", file, "Hello", "--max-new-tokens", "5"]) == 0
    assert capsys.readouterr().out == model.generate("Hello", 5) + "\n"
    assert cli.main(["generate", file, "Hello", "--top-p", "2"]) == 1
    assert "generate: top_p is 2.0, expected a number from 0 to 1" in capsys.readouterr().err
    assert cli.main(["generate", file + "x", "Hello"]) == 1
    assert "is neither a file, a folder nor" in capsys.readouterr().err


def test_chat_replies_to_each_line(model, file, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n\nAnd?\n"))
    assert cli.main(["chat", file, "--max-new-tokens", "4", "--system", "Be brief."]) == 0
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    first = "".join(model.chat(said, max_new_tokens=4))
    said += [{"role": "assistant", "content": first}, {"role": "user", "content": "And?"}]
    second = "".join(model.chat(said, max_new_tokens=4))
    assert capsys.readouterr().out == f"{first}\n{second}\n"


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_is_what_the_definitions_keep(seed):
    """top_k: the largest k; top_p: the shortest row of likeliest tokens that has it; min_p: a part of the
    likeliest.
    """
    rng = np.random.default_rng(seed)
    logits = rng.permutation(12).astype(np.float64) * rng.uniform(0.1, 1.0)  # no two alike
    s = [
        Sampling(0.7, top_k=int(rng.integers(0, 14))), Sampling(1.3, top_p=float(rng.uniform(0, 1))),
        Sampling(1.0, min_p=float(rng.uniform(0, 1))), Sampling(1.0, top_p=0.0), Sampling(2.0),
    ][seed % 5]  # fmt: skip
    p = np.exp(logits / s.temperature)
    p /= p.sum()
    order = np.argsort(-p)
    wanted = set(range(12))
    if s.top_k:
        wanted = set(order[: s.top_k].tolist())
    if s.top_p < 1:
        short = next(i for i in range(1, 13) if i == 12 or p[order[:i]].sum() >= s.top_p)
        wanted = set(order[:short].tolist())
    if s.min_p:
        wanted = set(np.flatnonzero(p >= s.min_p * p.max()).tolist())
    assert set(np.flatnonzero(np.isfinite(kept(logits, s))).tolist()) == wanted


def test_steps_after_the_first_are_found_by_their_types_alone(model, monkeypatch):
    state = model.start()
    for token in (3, 4):
        _, state = model.advance(state, [token])
    monkeypatch.setattr(Jitted, "_take_apart", None)  # what other calls are looked up by
    got, _ = model.advance(state, [5])
    monkeypatch.undo()
    want = model.logits([3, 4, 5]).numpy()[-1]
    assert (got == want).all()


def test_weights_share_a_few_pieces_of_memory():
    rng = np.random.default_rng(0)
    arrays = [
        rng.normal(size=n).astype(d) for n, d in ((5, "f4"), (0, "f4"), (70, "f2"), (9, "f8"))
    ]
    moved = together({"a": list(map(ts.tensor, arrays)), "b": [7, None]})
    assert moved["b"] == [7, None]
    for x, want in zip(moved["a"], arrays, strict=True):
        np.testing.assert_array_equal(x.numpy(), want)
        assert x.numpy().ctypes.data % 64 == 0 or not want.size
    spread = [x.storage.ctypes.data for x in moved["a"] if x.storage.size]
    assert max(spread) - min(spread) < 4096


def test_logits_of_tied_weights_are_products_with_the_transpose():
    rng = np.random.default_rng(0)
    table, x = (
        rng.normal(size=(24, 16)).astype(np.float32),
        rng.normal(size=(3, 16)).astype(np.float32),
    )
    np.testing.assert_allclose(
        scores(ts.tensor(x), ts.tensor(table)).numpy(), x @ table.T, rtol=1e-5, atol=1e-5
    )
    codes = rng.integers(-8, 8, (24, 2, 8)).astype(np.int8)
    scale = rng.uniform(0.5, 1.0, (24, 2)).astype(np.float32)
    held = packed(Groups(codes, scale, None), 24)
    wide = (codes * scale[..., None]).reshape(24, 16)
    np.testing.assert_allclose(scores(ts.tensor(x), held).numpy(), x @ wide.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(
        rows_of(held, ts.tensor([[5, 0]])).numpy(), wide[[[5, 0]]], rtol=1e-5, atol=1e-5
    )
