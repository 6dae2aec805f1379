"""What notebooks show, and plots: whole HTML, numbers that are those of the value, clear refusals."""

import base64
import contextlib
import io
import re
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

import tessera as ts
from tessera import Schedule, op
from tessera.core.errors import OperandError
from tessera.inspect.pictures import image
from tessera.inspect.plots import axes

RUNS_ON = "numpy"
R = np.random.default_rng(0)


class Closed(HTMLParser):
    """Checks that tags are closed in order, and that nothing is loaded."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert found.get("src", "data:").startswith("data:")
        if tag not in ("img", "rect", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in ("rect", "path"):
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def lowered():
    f = ts.jit(lambda x, w: op.softmax(op.relu(x @ w) @ w), target="cpu")
    return f.lower(op.ones((16, 16)), op.ones((16, 16)))


def derivation():
    a, b, c = (op.dense(ts.tensor(R.normal(size=(4, 4)))) for _ in range(3))
    with contextlib.redirect_stdout(io.StringIO()):
        return ts.explain(a @ b + a @ c)


def pixels(html):
    """The pixels of the PNG in a page, by the format's own rules."""
    data = base64.b64decode(re.search(r"base64,([^\"]+)", html)[1])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, found = 8, {}
    while at < len(data):
        (n,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + n]
        assert struct.unpack(">I", data[at + 8 + n : at + 12 + n])[0] == zlib.crc32(kind + body)
        found[kind] = body
        at += 12 + n
    width, height, *rest = struct.unpack(">IIBBBBB", found[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    lines = np.frombuffer(zlib.decompress(found[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def values(lowered):
    yield from (ts.tensor(R.normal(size=s))
        for s in ((), (3,), (100,), (2, 2), (40, 500), (2, 3, 4), (0, 2)))  # fmt: skip
    yield from (ts.tensor([1.0, 2.0]).astype(d)
        for d in (ts.bf16, ts.i8, ts.c64, ts.bool_, ts.f8e4m3))  # fmt: skip
    yield from (op.kronecker(op.eye(3), op.fft(4)), op.laplacian((5, 5)), op.eye(5000),
        op.zero(2, 3))  # fmt: skip
    yield from (lowered.graph, lowered.traced, lowered.schedule, lowered.memory)
    yield from (Schedule(block=(64, 64), warps=4), Schedule(), derivation())


def test_everything_is_whole_html_that_loads_nothing(lowered):
    for x in values(lowered):
        page = Closed()
        page.feed(x._repr_html_())
        assert page.open == [], x


def test_numbers_of_a_tensor():
    x = ts.tensor(np.array([[1.0, float("nan")], [float("inf"), -2.5]]))
    text = x._repr_html_()
    assert "min -2.5, mean -0.75, max 1, <b>1 NaN</b>, <b>1 infinite</b>" in text
    assert re.findall(r">([^<>]+)</td>", text) == ["1", "nan", "inf", "-2.5"]
    long = re.findall(r">([^<>]+)</td>", ts.arange(100)._repr_html_())
    assert long == ["0", "1", "2", "3", "4", "⋮", "95", "96", "97", "98", "99"]
    assert ">True</td>" in ts.tensor([True])._repr_html_()
    seen = []
    ts.jit(lambda x: seen.append(x._repr_html_()) or x)(x)
    assert seen == ["<pre>Tensor(traced f64[2,2])</pre>"]


def test_an_image_has_the_signs_and_sizes_of_a_matrix():
    a = np.zeros((30, 20))
    a[3, 4], a[29, 19], a[0, 0] = 1.0, -1.0, 0.25
    seen = pixels(image(a)).astype(int)
    assert seen.shape == (30, 20, 3)
    assert (seen[3, 4].tolist(), seen[29, 19].tolist()) == ([213, 94, 0], [0, 114, 178])
    assert seen[0, 0, 2] == 127  # half way from white: sizes are shown by their roots
    assert (seen[a == 0] == 255).all()
    large = np.zeros((1000, 700))
    large[999, 0], large[0, 699] = -5.0, 2.0
    small = pixels(image(large))
    assert small.shape == (160, 160, 3)
    assert (small[-1, 0].tolist(), (small != 255).any(-1).sum()) == ([0, 114, 178], 2)


def test_an_operator_shows_its_structure():
    a = op.kronecker(op.eye(3), op.circulant(ts.tensor([2.0, -1.0, 0.0, -1.0])))
    text = a._repr_html_()
    assert re.findall(r"<b>(\w+)</b>", text) == ["kronecker", "eye", "circulant"]
    np.testing.assert_array_equal((pixels(text) != 255).any(-1), np.asarray(a.todense()) != 0)
    assert "<img" not in op.eye(5000)._repr_html_()


def test_programs(lowered):
    graph = lowered.graph._repr_html_()
    assert re.findall(r">([^<>]+)</text>", graph) == ["x", "w",
        *(n.op.name for n in lowered.graph.nodes)]  # fmt: skip
    assert graph.count("<path") == sum(len(n.operands) for n in lowered.graph.nodes)
    for s in lowered.schedule.steps:
        assert f">{s.name}</td>".replace("<lambda>", "&lt;lambda&gt;") in (
            lowered.schedule._repr_html_()
        )
    held = [s for s in lowered.memory.storages if s.kind != "input"]
    assert lowered.memory._repr_html_().count("<rect") == sum(len(s.lives) for s in held)
    assert "common left factor" in derivation()._repr_html_()


@pytest.mark.parametrize("x", [op.ones((2, 3, 4)), op.ones(()), op.zeros((0,)), op.eye(5000)],
    ids=["rank 3", "rank 0", "empty", "large"])  # fmt: skip
def test_what_cannot_be_plotted_is_said_before_matplotlib_is_asked(x):
    with pytest.raises(OperandError, match=r"plot: .*(index it|plot a part)"):
        x.plot()


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(OperandError, match="plot: matplotlib is not installed; get it with pip"):
        axes()


def test_plots_show_the_numbers(lowered):
    matplotlib = pytest.importorskip("matplotlib", reason="needs matplotlib")
    matplotlib.use("agg")
    a = R.normal(size=(4, 5))
    np.testing.assert_array_equal(ts.tensor(a).plot().images[0].get_array(), a)
    np.testing.assert_array_equal(ts.tensor(a[0]).plot().lines[0].get_ydata(), a[0])
    assert [x.get_label() for x in ts.tensor([1 + 2j]).plot().lines] == ["real", "imaginary"]
    o = op.circulant(ts.tensor([2.0, -1.0, 0.0]))
    np.testing.assert_array_equal(o.plot().images[0].get_array(), np.asarray(o.todense()))
    held = [s for s in lowered.memory.storages if s.kind != "input"]
    assert len(lowered.memory.plot().collections) == sum(len(s.lives) for s in held)
    f = ts.jit(lambda x: op.softmax(x @ x), target="cpu")
    with ts.profile() as p:
        f(op.ones((32, 32)))
    ax = p.plot()
    assert len(ax.collections[0].get_offsets()) == len([r for r in p.kernels if r.work.flops])
    mine = ax.figure.subplots()
    assert ts.tensor(a).plot(mine) is mine
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("f", [
    lambda x: x, lambda x: op.sum(x), lambda x: op.logsumexp(x @ x.T, axis=0) + op.cumsum(x, 0)[0, 0],
    lambda x: [op.take_along_axis(x, op.argsort(x, 1), 1), x, op.softmax(x) @ x.T],
], ids=range(4))  # fmt: skip
def test_a_drawn_graph_lies_inside_of_its_picture(f):
    text = ts.trace(f, ts.Tensor[4, 4])._repr_html_()
    left, top, wide, tall = (float(n) for n in re.search(r'viewBox="([^"]*)"', text)[1].split())
    boxes = re.findall(
        r'<rect[^>]*? x="([-.0-9]+)" y="([-.0-9]+)" width="([-.0-9]+)" height="([-.0-9]+)"', text
    )
    assert boxes
    for x, y, w, h in (map(float, b) for b in boxes):
        assert left <= x <= x + w <= left + wide + 1
        assert top <= y <= y + h <= top + tall + 1
    assert max(float(x) + float(w) for x, _, w, _ in boxes) >= left + wide - 10, "and fill it"
