"""`pad` takes NumPy's widths and modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, TesseraError, f64, op

M = np.arange(12.0).reshape(3, 4)
WIDTHS: tuple[Any, ...] = (
    0,
    1,
    5,
    (1, 2),
    [2],
    ((1, 2),),
    ((0, 3), (2, 1)),
    np.array([[1, 2], [3, 0]]),
)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("width", WIDTHS, ids=str)
def test_widths_and_modes_are_those_of_numpy(mode: str, width: Any) -> None:
    for x in (M, M[:1], M[:, :1]):
        want = np.pad(x, width, mode)  # type: ignore[call-overload]
        np.testing.assert_array_equal(op.pad(x, width, mode=mode), want)
        np.testing.assert_array_equal(
            ts.jit(lambda v: op.pad(v, width, mode=mode))(ts.tensor(x)), want
        )


def test_sizes_may_be_symbolic() -> None:
    @ts.jit
    def f(x: Tensor["N", "M", f64]):
        return op.pad(x, (1, 2), mode="reflect"), op.pad(x, ((0, 1), (2, 0)), mode="symmetric")

    for n in (1, 2, 5):
        x = np.arange(3.0 * n).reshape(n, 3)
        a, b = f(ts.tensor(x))
        np.testing.assert_array_equal(a, np.pad(x, (1, 2), "reflect"))
        np.testing.assert_array_equal(b, np.pad(x, ((0, 1), (2, 0)), "symmetric"))


def test_the_gradient_adds_what_was_copied() -> None:
    g = ts.grad(lambda x: op.sum(op.pad(x, 2, mode="reflect") * op.arange(8.0)))(ts.tensor(M[0]))
    assert g.tolist() == [2, 11, 10, 5]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: op.pad(M, 1, "reflect"),
        "pad: the value is 'reflect', expected a number; write mode='reflect'"),
        (lambda: op.pad(M, 1, mode="mean"), "pad: mode is 'mean', expected one of constant, edge, reflect"),
        (lambda: op.pad(M, 1.5), r"pad: width 1.5 needs a \(before, after\) for each axis of f64\[3,4\], or one"),  # noqa: E501
        (lambda: op.pad(M, -1, mode="edge"), r"pad: width \(-1, -1\) of axis 0 is negative with mode='edge'"),
        (lambda: op.pad(M[:0], 1, mode="wrap"), r"pad: axis 0 of f64\[0,4\] is empty and has no element"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(call: Any, text: str) -> None:
    with pytest.raises(TesseraError, match=text):
        call()
