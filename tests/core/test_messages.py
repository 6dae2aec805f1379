"""What people see of objects: reprs, dir(), help(), and a notice while something takes long."""

from __future__ import annotations

import inspect
import pydoc
import time
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core import notice
from tessera.ops.define import FUNCTIONS

X = ts.ones((3, 4))


def f(x: Any) -> Any:
    return op.softmax(x @ x.mT)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: ts.jit(f, target="numpy"), "<jit f(x): not compiled yet, for numpy, deterministic>"),
        (lambda: ts.trace(f, X), "<graph f(f32[3,4]) -> f32[3,3]: 3 nodes>"),
        (lambda: ts.optim.adam(1e-3),
        "<optimiser adam: state = init(params); params, state = update(grads, state, params)>"),
        (lambda: ts.tree.structure({"a": X, "b": (X, X)}), "Structure({'a': *, 'b': (*, *)})"),
        (lambda: ts.jit(f, target="numpy").lower(X), "<lowered f: 3 nodes, each run by its reference>"),
    ],
    ids=["jit", "graph", "optimiser", "structure", "lowered"],
)  # fmt: skip
def test_a_repr_says_what_it_is(made: Any, text: str) -> None:
    x = made()
    assert repr(x) == text
    assert "<" in x._repr_html_()


def test_reprs_of_what_ran() -> None:
    g = ts.jit(f)
    with ts.profile() as p:
        assert repr(p) == "<profile: still on>"
        g(X)
    assert repr(g) == "<jit f(x): 1 variant compiled, for cpu, deterministic>"
    assert "f32[3,4]" in g._repr_html_()
    assert repr(p).startswith("<profile: ")
    assert "kernels" in repr(p)
    assert repr(g.lower(X)).startswith("<lowered f: 3 nodes, ")
    assert "kernels; .graph .schedule .tile .target .memory>" in repr(g.lower(X))


@pytest.mark.parametrize("shown", [X, ts.jit(f), ts, op, ts.nn, ts.optim],
    ids=["tensor", "jit", "ts", "op", "nn", "optim"])  # fmt: skip
def test_dir_shows_public_names_only(shown: Any) -> None:
    names = [n for n in dir(shown) if not n.startswith("__")]
    assert names
    assert not [n for n in names if n.startswith("_")]
    assert not {
        "Any",
        "annotations",
        "importlib",
        "TYPE_CHECKING",
        "located",
        "builder",
        "node",
    } & set(names)
    if shown is not X and shown is not ts:  # a name of ts may need a package that is not there
        assert [n for n in names if not hasattr(shown, n)] == []


def test_what_is_loaded_late_is_in_dir() -> None:
    assert {"nn", "testing", "kernel", "save", "record", "profile"} <= set(dir(ts))
    assert {"softmax", "einsum", "random", "kronecker", "pipeline"} <= set(dir(op))


def test_help_shows_the_call_parameters_axes_dtypes_and_an_example() -> None:
    text = pydoc.plain(pydoc.render_doc(op.softmax))
    for part in ("op.softmax(x, axis=-1)", "Parameters:", "x: ArrayLike", "Shapes:", "Dtypes:", "Example:",
        "op.softmax(ts.ones("):  # fmt: skip
        assert part in text, text
    assert "Also called:" in op.layernorm.__doc__
    assert "layer_norm" in op.layernorm.__doc__


def test_every_op_has_help() -> None:
    for name, function in FUNCTIONS.items():
        text = function.__doc__
        assert f"op.{name.rstrip('_')}(" in text, name
        assert text.splitlines()[0].endswith("."), name


class Terminal:
    """A terminal that remembers."""

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_what_takes_long_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Terminal()
    monkeypatch.setattr("sys.stderr", t)
    with notice.notice("compiling f"):
        pass
    assert t.text == ""
    monkeypatch.setattr(notice, "AFTER", 0.01)
    with notice.notice("compiling f"):
        time.sleep(0.2)
    assert t.text.startswith("tessera: compiling f ... 0.")
    assert t.text.endswith(" s\n")


def test_nothing_is_announced_to_a_file(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "AFTER", 0.0)
    with notice.notice("compiling f"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
    assert np.asarray(X).shape == (3, 4)


def test_a_function_whose_calls_skip_python_keeps_its_help() -> None:
    x = ts.tensor(np.ones(8, np.float32))
    before = inspect.getdoc(op.log1p)
    for _ in range(2000):
        op.log1p(x)
        if op.log1p._caller is not None:
            break
    assert op.log1p._caller is not None
    assert inspect.getdoc(op.log1p) == before
    assert "op.log1p(x" in pydoc.render_doc(op.log1p, renderer=pydoc.plaintext)
