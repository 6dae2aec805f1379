"""ts.watch: statistics of values in eager and compiled programs, kept by name; where a NaN was made."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import cli, op
from tessera.core.errors import OperandError
from tessera.lang.watching import _OPEN, BINS, KEPT, Statistics
from tests.inspect.test_inspect import browse

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "a",
    [
        RNG.normal(size=(7, 5)), RNG.integers(-3, 9, (40,)), np.array([True, False, True]),
        RNG.normal(size=9) + 1j * RNG.normal(size=9), np.array(2.5), np.full(4, 3.0),
        np.array([1e308, -1e308, 0.0]), np.array([[np.nan, 1.0], [np.inf, -2.0]]),
    ],
    ids=["floats", "integers", "bools", "complex", "scalar", "equal", "widest", "bad"],
)  # fmt: skip
def test_statistics_are_those_of_numpy(a: np.ndarray[Any, Any]) -> None:
    s = Statistics.of(a, "f64")
    wide = np.abs(a) if a.dtype.kind == "c" else a.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    assert (s.low, s.high) == (finite.min(), finite.max())
    scale = float(np.abs(finite).max()) or 1.0  # so that no sum is infinite
    unit = finite / scale
    assert s.mean is not None
    assert s.std is not None
    assert s.mean / scale == pytest.approx(float(unit.mean()), abs=1e-12)
    assert s.std / scale == pytest.approx(float(unit.std()), abs=1e-12)
    assert len(s.histogram) == BINS
    assert sum(s.histogram) == finite.size
    if finite.max() > finite.min():
        expected = np.histogram(unit, BINS, (unit.min(), unit.max()))[0]
        assert (
            np.abs(np.cumsum(expected) - np.cumsum(s.histogram)).max() <= 1
        )  # one rounds at an edge
    assert (s.nans, s.infinities) == (int(np.isnan(wide).sum()), int(np.isinf(wide).sum()))
    assert s.zeros == int((wide == 0).sum())
    assert s.is_finite == bool(np.isfinite(wide).all())


def test_values_without_a_finite_element() -> None:
    assert str(Statistics.of(np.zeros((0, 3)), "f32")) == "f32[0,3] no element"
    s = Statistics.of(np.array([[1.0, -np.inf], [np.nan, 0]]), "f32")
    assert s.first_bad == (1, 0)  # a NaN before an infinity
    assert (
        str(Statistics.of(np.full(2, np.nan), "f32"))
        == "f32[2] no finite element, 2 NaN, first at [0]"
    )


def program(x: Any) -> Any:
    h = ts.watch(op.relu(x), "hidden")
    return op.sum(ts.watch({"scaled": h * 2, "sum": op.sum(h)}, "out")["scaled"])


@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])
def test_eager_and_jitted_programs_see_the_same(wrap: Any) -> None:
    f = wrap(program)
    with ts.watching() as seen:
        for i in range(3):
            f(ts.tensor(np.float32([-1, i, 2])))
    assert list(seen.values) == ["hidden", "out['scaled']", "out['sum']"]
    w = seen["hidden"]
    assert w.seen == 3
    assert [s.mean for s in w.statistics] == pytest.approx([2 / 3, 1, 4 / 3])
    assert (w.last.dtype, w.last.shape, w.last.high, w.last.zeros) == ("f32", (3,), 2.0, 1)
    assert w.location is not None
    assert Path(w.location.file) == Path(__file__)
    assert seen["out['sum']"].last.mean == 4.0
    assert _OPEN == []


def test_a_watched_value_is_the_value() -> None:
    x = ts.tensor(np.float32([1, 2]))
    with ts.watching():
        assert ts.watch(x) is x
        assert ts.jit(lambda v: ts.watch(v) * 2)(x).numpy().tolist() == [2, 4]
        assert ts.grad(lambda v: op.sum(ts.watch(v) ** 2))(x).numpy().tolist() == [2, 4]
        assert ts.vmap(lambda v: ts.watch(v) + 1)(x).numpy().tolist() == [2, 3]
    with ts.watching() as seen:
        ts.jit(lambda v: ts.fori_loop(0, 5, lambda i, c: ts.watch(c + 1, "in a loop"), v))(x)
    assert [s.low for s in seen["in a loop"].statistics] == [2, 3, 4, 5, 6]


def test_a_long_run_keeps_the_newest() -> None:
    with ts.watching() as seen:
        for i in range(KEPT + 10):
            ts.watch(ts.tensor(float(i) if i else math.nan), "x")
    w = seen["x"]
    assert (w.seen, len(w.statistics), w.broken) == (KEPT + 10, KEPT, 1)
    assert w.statistics[0].mean == 10.0


@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])
def test_the_origin_of_a_nan_is_named_and_the_run_goes_on(wrap: Any) -> None:
    def f(x: Any) -> Any:
        y = op.log(x - 1)  # here
        return ts.watch(op.exp(y) + 1, "end")

    with ts.watching(origins=True) as seen:
        wrap(f)(ts.tensor(np.float32([0, 3])))
        op.sqrt(ts.tensor(np.float32([-1])))  # later: the first one counts
    assert seen["end"].last.nans == 1
    assert seen.origin is not None
    assert seen.origin.message == (
        "watching: log made nan at [0] of f32[2] from operands f32[2] that have none"
    )
    assert "# here" in str(seen.origin)
    assert str(seen).splitlines()[-2].startswith("origin: watching: log made nan")
    with ts.watching(origins=True) as seen:
        wrap(f)(ts.tensor(np.float32([1, 3])))
    assert seen.origin is None  # an infinity, which is not asked for
    with ts.watching(origins=True, infinities=True) as seen:
        wrap(f)(ts.tensor(np.float32([1, 3])))
    assert "log made -inf" in str(seen.origin)


def test_outside_of_a_block_each_value_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    ts.watch(ts.tensor(np.float32([1, 3])), "x")
    assert capsys.readouterr().err == "x: f32[2] min 1 max 3 mean 2 std 1\n"
    with ts.watching(show=True) as seen:
        ts.watch(ts.tensor(1), "n")
    assert capsys.readouterr().err == "n: i64[] min 1 max 1 mean 1 std 0\n"
    with ts.watching() as seen:
        pass
    assert (str(seen), capsys.readouterr().err) == ("nothing was watched", "")


def test_a_record_can_be_saved(tmp_path: Path) -> None:
    with ts.watching() as seen:
        ts.watch(ts.tensor(np.float32([1, math.nan, math.inf])), "x")
    seen.save(tmp_path / "values.json")
    data = json.loads((tmp_path / "values.json").read_text())
    assert data["origin"] is None
    assert data["values"][0]["name"] == "x"
    assert data["values"][0]["broken"] == 1
    assert data["values"][0]["statistics"][0]["nans"] == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ts.watch(3.0), "watch: got float 3.0, expected a tensor, or a tree of tensors; "
                                "ts.tensor(x) makes one"),
        (lambda: ts.watch([]), "watch: the tree has no tensor in it"),
        (lambda: ts.watch(ts.ones(()), 3), "watch: name is int 3, expected a string"),
        (lambda: ts.watching(origins=1).__enter__(), "watching: origins is int 1, expected True or False"),
        (lambda: ts.watching(infinities=True).__enter__(), "watching: infinities=True is for origins=True"),
        (lambda: ts.watching().__enter__()["x"], "watching: 'x' was not watched; known: nothing was"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_to_write(call: Any, message: str) -> None:
    with pytest.raises(OperandError) as e:
        call()
    assert e.value.message == message
    _OPEN.clear()


PROGRAM = """
import numpy as np
import tessera as ts
from tessera import op

@ts.jit
def layer(x):
    return ts.watch(op.log(ts.watch(op.relu(x), "hidden") - 0.5), "logarithm")

for i in range(1, 5):
    layer(ts.tensor(np.linspace(-1, i, 40, dtype=np.float32)))
"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_inspector_shows_the_values_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    out = tmp_path / "page.html"
    assert cli.main(["inspect", str(tmp_path / "program.py"), "--out", str(out)]) == 0
    script = """
const out = {failures}; show("values"); out.names = $$("#values h2").map(e => e.textContent); out.pictures = $$("#values svg").length;
out.bars = $$("#values svg:first-of-type rect").length; out.faults = $$("#values .fault").map(e => e.textContent); out.text = $("#values .cards div").textContent;
$("#values [data-place]").click(); out.followed = [tab, sel.label]; return out;"""  # noqa: E501
    found = browse(out.read_text(), tmp_path, script)
    assert found["failures"] == []
    assert found["names"] == ["hidden", "logarithm"]
    assert found["pictures"] == 4  # a histogram and the course of each
    assert found["bars"] > 4
    assert re.fullmatch(r"\d+ NaN, first at \[0\]; not finite since time 1", found["faults"][0])
    assert "f32[40]" in found["text"]
    assert "4 times" in found["text"]
    assert found["followed"] == ["levels", "line program.py:8"]


def test_the_record_tells_the_op_that_made_a_nan(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    with ts.watching() as found:
        ts.watch(ts.ones((2,)) * 2, "fine")
    assert found.data()["origin"] is None
    with ts.watching(origins=True) as found:
        ts.watch(op.log(ts.tensor([-1.0, 2.0])), "bad")
    found.save(path)
    origin = json.loads(path.read_text())["origin"]
    assert origin == str(found.origin)
    assert "log made nan" in origin
