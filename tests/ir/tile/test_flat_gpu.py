"""Pointwise kernels of odd rows run along one axis on a GPU; others keep their axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"


def axes_of(f: Any, *xs: Any) -> set[int]:
    """How many axes the memories of the kernels have."""
    text = str(ts.jit(f, target="cuda:sm_90").lower(*xs).tile)
    header = next(line for line in text.splitlines() if "^bb0" in line)
    return {part.count("x") for part in header.split("tensor<")[1:]}


def odd(*shape: int) -> Any:
    return ts.tensor(np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32))


def test_one_axis_for_what_lies_in_order() -> None:
    assert axes_of(lambda x, y: op.tanh(x) * y + 1.0, odd(7, 33), odd(7, 33)) == {1}


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: x + y[0],
        lambda x, y: x + y[:, :1],
        lambda x, y: x + op.iota((7, 33), 1),
        lambda x, y: op.flip(x, 1) + y,
    ],
    ids=["a row", "a column", "places", "turned round"],
)
def test_axes_stay_where_places_matter(f: Any) -> None:
    assert 2 in axes_of(f, odd(7, 33), odd(7, 33))


@pytest.mark.parametrize("shape", [(7, 33), (3, 5, 17), (1, 4097), (129, 1)], ids=str)
def test_values(shape: tuple[int, ...]) -> None:
    x, y = odd(*shape), odd(*shape) * 2.0

    def f(x: Any, y: Any) -> Any:
        t = op.exp(x) + y
        return t, op.where(t > 1.0, x, y) * op.full((), 3.0)

    want = f(x, y)
    with fake_gpu():
        got = ts.jit(f)(x.to("cuda"), y.to("cuda"))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-6, atol=1e-6)
