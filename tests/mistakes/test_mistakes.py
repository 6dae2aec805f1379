"""Mistakes: every wrong call of calls.txt ends in an error of ours, which shows the line that was written."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tessera import TesseraError
from tessera.core.counterparts import METHODS, MODULES, NAMES
from tessera.core.errors import OperandError
from tests.support.runners.each import each

sys.path.insert(0, str(Path(__file__).parent))
from setup import lines, names, pinned, run

RUNS_ON = "numpy"


def test_there_are_enough() -> None:
    assert len(lines()) >= 800
    assert len(set(lines())) == len(lines())


def subject(case: tuple[object, str]) -> str:
    """The first name of a call, and of the module op the second."""
    found = re.findall(r"(?<!\w)(?:op\.)?\w+", case[1])
    return found[0] if found else case[1]


@pytest.mark.filterwarnings("ignore")
@each(enumerate(lines()), by=subject, told=lambda case: case[1])
def test_a_wrong_call_is_told_at_its_line(number: int, line: str) -> None:
    with pytest.raises(TesseraError) as e:
        run(number, line)
    text = str(e.value).splitlines()
    assert text[0].strip()
    assert len(e.value.message.splitlines()) == 1
    shown = f"  at mistake_{number}.py:1: {line}"
    inside = e.value.location is not None and e.value.location.file.endswith("setup.py")
    assert shown in text or inside


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("op.sum(X, dim=0)", "sum: got an unexpected keyword argument 'dim'; use 'axis'; it takes (x, "
                             "axis=None, keepdims=False)"),
        ("X.sum(0, keepdim=True)",
        "sum: got an unexpected keyword argument 'keepdim'; use 'keepdims'; it takes (axis=None, "
        "keepdims=False)"),
        ("op.exp(x=X)", "exp: 'x' parameter is positional only, but was passed as a keyword; give 'x' "
                        "without its name; it takes (x, /)"),
        ("op.add(X)", "add: missing a required argument: 'y'; it takes (x, y, /)"),
        ("op.add(X, X, out=X)", "add: got an unexpected keyword argument 'out'; tensors are values: use the "
                                "result; it takes (x, y, /)"),
        ("op.layernorm(X, eps='a')", "layernorm: eps is str 'a', expected a number"),
        ("ts.tensor([1.0], dype='f32')",
        "tensor: got an unexpected keyword argument 'dype'; use 'dtype'; it takes (data, dtype=None, "
        "device=None)"),
        ("X.permute(1, 0)", "a tensor has no attribute 'permute'; write x.transpose(axes)"),
        ("X.relu()", "a tensor has no attribute 'relu'; write op.relu(x)"),
        ("X.add_(1)", "a tensor has no attribute 'add_'; tensors are values: write x = x + y, or x = "
                      "x.at[index].set(value)"),
        ("X + 'a'", "add: cannot take str 'a' beside f32[3,4], expected a tensor or a number"),
        ("X + [1, 2]", "add: cannot take list [1, 2] beside f32[3,4], expected a tensor or a number; make "
                       "it one with ts.tensor"),
        ("op.diag(X[0], 1)", "diag: too many positional arguments; a matrix with v on its k-th diagonal is "
                             "op.diagflat(v, k); it takes (v)"),
        ("op.fft.fftfreq(8)", "op.fft has no 'fftfreq'; write op.fftfreq"),
        ("op.asarray([1.0])", "op has no 'asarray'; write ts.asarray"),
        ("ts.grad(3)", "grad: got int 3, expected a function"),
        ("ts.grad(lambda x, y: op.sum(x))(X)",
        "<lambda>: the function is called with 1 argument: missing a required argument: 'y'; it takes (x, y)"),  # noqa: E501
        ("ts.scan(lambda c: c, 0.0, X)",
        "scan: f: the function is called with 2 arguments: too many positional arguments; it takes (c)"),
        ("ts.jit(lambda x: x, donate=3)", "jit: donate is 3, expected names of parameters"),
        ("ts.optim.adam(1e-3).step()",
        "an optimiser has no attribute 'step'; write opt.update(grads, state, params)"),
        ("ts.optim.adam('a')", "adam: lr is str 'a', expected a number"),
        ("np.sin(X, out=X)", "numpy.sin: cannot write to a tensor, and has no op of its own; use op.sin, or "
                             "x.numpy()"),
    ],
)  # fmt: skip
def test_the_text_says_what_to_write(line: str, text: str) -> None:
    with pytest.raises(TesseraError) as e:
        run(0, line)
    assert e.value.message == text


def test_errors_of_the_users_own_functions_pass_through() -> None:
    def broken(*_: object) -> None:
        raise ValueError("mine")

    given = names()
    for call in (
        given["ts"].grad(broken),
        given["ts"].vmap(broken),
        given["ts"].jit(lambda x: broken(x)),
    ):
        with pytest.raises(ValueError, match=r"^mine$"):
            call(given["X"])
    with pytest.raises(ValueError, match=r"^mine$"):
        given["ts"].scan(broken, 0.0, given["X"])


def test_asking_for_an_attribute_is_no_error() -> None:
    x = names()["X"]
    assert not hasattr(x, "permute")
    assert not hasattr(names()["ts"].jit(lambda v: v), "parameters")
    assert not hasattr(x, "foo")
    assert "permute" not in dir(x)
    assert "sum" in dir(x)
    assert getattr(x, "view", 3) == 3
    assert x != "a"
    assert (x == None) is False  # noqa: E711


class Other:
    """An object that knows what to do with a tensor."""

    def __radd__(self, other: object) -> str:
        return "other"


def test_objects_that_know_tensors_are_asked() -> None:
    assert names()["X"] + Other() == "other"
    with pytest.raises(OperandError):
        names()["X"] - object()


# Typical mistakes of people who know PyTorch, NumPy, JAX or optax, with the whole message


def test_there_are_enough_typical_mistakes() -> None:
    assert len(dict(pinned())) == len(pinned()) >= 400


@each(pinned(), by=lambda case: subject(case[::-1]), told=lambda case: case[0])
def test_a_typical_mistake_is_told_what_to_write(call: str, text: str) -> None:
    with pytest.raises(TesseraError) as e:
        run(0, call)
    assert e.value.message == text
    assert f"  at mistake_0.py:1: {call}" in str(e.value).splitlines()


@pytest.mark.parametrize("table", [NAMES, METHODS, MODULES], ids=["names", "methods", "modules"])
def test_every_counterpart_exists(table: dict[str, str]) -> None:
    given = names()
    places = {"op": given["op"], "ts": given["ts"], "dist": given["ts"].dist, "nn": given["ts"].nn,
        "optim": given["ts"].optim, "x": given["X"], "tree": given["ts"].tree}  # fmt: skip
    for name, ours in table.items():
        for place, attribute in re.findall(r"\b(op|ts|nn|optim|x|tree|dist)\.(\w+)", ours):
            assert hasattr(places[place], attribute), (name, ours)


def test_names_that_exist_have_no_entry() -> None:
    given = names()
    for place, module in (("op", given["op"]), ("ts", given["ts"]), ("optim", given["ts"].optim)):
        assert [
            n for n in NAMES if n.startswith(f"{place}.") and n.partition(".")[2] in dir(module)
        ] == []
    assert not hasattr(given["op"], "cat")
    assert getattr(given["ts"], "Adam", 3) == 3
