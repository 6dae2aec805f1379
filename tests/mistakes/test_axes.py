"""An axis that a tensor does not have is an error of every function that takes one, never another axis."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import TesseraError, op

RUNS_ON = "numpy"
X = ts.tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4))
I = ts.tensor([[0, 1, 0, 1]] * 3)
GIVEN: tuple[tuple[Any, ...], ...] = (
    (X,), (X, X), (X, X, X), (X, I), (X, 2), ([X, X],), (X, 0.5), (I,), (ts.key(0), X), (X, 2, X),
)  # fmt: skip


def with_axes() -> list[str]:
    """The functions with a parameter that is called `axis`."""
    found = []
    for name in dir(op):
        f = getattr(op, name)
        if name.startswith("_") or not callable(f) or isinstance(f, type):
            continue
        if "axis" in inspect.signature(f).parameters:
            found.append(name)
    return found


def test_there_are_many() -> None:
    assert len(with_axes()) > 80


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", with_axes())
def test_an_axis_that_is_none_is_refused(name: str) -> None:
    f = getattr(op, name)
    for axis in (7, -5):
        for args in GIVEN:
            given = {"f": op.sum, "x": X} if name == "apply_along_axis" else {}
            with pytest.raises(TesseraError):
                f(*(() if given else args), axis=axis, **given)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: op.median(X, axis=7), "median: axis 7 is out of range for rank 2; use -2 to 1"),
        (lambda: op.quantile(X, 0.5, axis=2), "quantile: axis 2 is out of range for rank 2; use -2 to 1"),
        (lambda: op.insert(X, 0, 1.0, axis=2), "insert: axis 2 is out of range for rank 2; use -2 to 1"),
        (lambda: op.rollaxis(X, 5), "rollaxis: axis 5 is out of range for rank 2; use -2 to 1"),
        (lambda: op.rollaxis(X, 0, 5), "rollaxis: start 5 is out of range for rank 2; use -2 to 2"),
        (lambda: op.tensordot(X, X, -1), "tensordot: axes is -1, expected 0 or more, or pairs of axes"),
        (lambda: ts.nn.Flatten(7)(X), "nn.Flatten: axis 7 is out of range for rank 2; use -2 to 1"),
    ],
)  # fmt: skip
def test_the_text_names_the_axis(call: Any, text: str) -> None:
    with pytest.raises(TesseraError) as e:
        call()
    assert e.value.message == text
