"""Steps over pages: every sequence of a batch has the bits that it has alone; streams have the text of
all tokens.
"""

import numpy as np
import pytest

import tessera as ts
from tessera.models.paged import PAGE, PagedSteps, SequencePart, batches
from tessera.models.text import TextStream
from tests.support.cases.model_files import SMALL, llama_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(llama_gguf(config=SMALL))
    return ts.models.load(path)


@pytest.mark.parametrize("count", [*(pytest.param(n, marks=pytest.mark.deep) for n in (3, 8)), 44])
def test_a_sequence_has_the_bits_that_it_has_alone(model, count):
    """Prompts cut into chunks, scattered pages, tables and batches padded to the next size."""
    rng = np.random.default_rng(count)
    texts = [rng.integers(0, 256, n).tolist() for n in rng.integers(1, 37, count)]
    free = rng.permutation(count * 3).tolist()
    steps = PagedSteps(model, len(free))
    pages = [[free.pop() for _ in range(-(-(len(t) + 2) // PAGE))] for t in texts]
    alone = []
    for text in texts:
        first, state = model.advance(model.start(), text)
        more = [model.advance(state, [int(first.argmax())])[0]]
        alone.append([first, *more])
    for i in rng.permutation(count):
        cut = int(rng.integers(0, len(texts[i])))
        if cut:
            steps.run([SequencePart(texts[i][:cut], 0, pages[i])])
        out = steps.run([SequencePart(texts[i][cut:], cut, pages[i])])
        assert (out[0] == alone[i][0]).all()
    order = rng.permutation(count)
    rows = steps.run(
        [SequencePart([int(alone[i][0].argmax())], len(texts[i]), pages[i]) for i in order]
    )
    assert all((row == alone[i][1]).all() for row, i in zip(rows, order, strict=True))


def test_steps_have_room_for_all():
    assert [batches(n) for n in (1, 2, 3, 4, 5, 12, 15, 20)] == [
        [1], [1, 1], [4], [4], [4, 1], [16], [16], [16, 4],
    ]  # fmt: skip
    assert all(n <= sum(batches(n)) <= n * 4 / 3 for n in range(1, 200))


def test_a_stream_has_the_text_of_all_tokens(model):
    rng = np.random.default_rng(0)
    words = ["é", "日本", "a", " b", "\U0001f600", "\ufffd", "stop", "st"]
    for _ in range(60):
        raw = "".join(rng.choice(words, 12)).encode()
        ids = [b if rng.random() > 0.05 else int(rng.integers(256)) for b in raw]
        whole = model.tokenizer.decode(ids)
        for stop in ((), ("stop",), ("ab", "日本")):
            text, out = TextStream(model.tokenizer, stop), []
            for t in ids:
                out.append(text.push(t))
                if text.stopped:
                    break
            out.append(text.finish())
            ends = [at for s in stop if (at := whole.find(s)) >= 0]
            assert "".join(out) == whole[: min(ends, default=len(whole))]
