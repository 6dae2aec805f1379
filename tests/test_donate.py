"""Donated arguments: results take their memory, and nobody can use them afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.errors import OperandError

RNG = np.random.default_rng(0)


def draw(*shape: int) -> Tensor:
    return ts.jit(lambda x: x * 1.0, target="cpu")(RNG.normal(size=shape).astype(np.float32))


def update(p: Any, g: Any) -> Any:
    return ts.tree.map(lambda a, b: a - b * 0.1, p, g)


def place(x: Tensor) -> int:
    return int(x.data.ctypes.data)  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(8,), (300, 200)])
def test_a_result_takes_the_memory_of_a_donated_argument(shape: tuple[int, ...]) -> None:
    f = ts.jit(update, donate=("p",), target="cpu")
    p, g = {"a": draw(*shape), "b": draw(*shape)}, {"a": draw(*shape), "b": draw(*shape)}
    want = {k: p[k].numpy() - g[k].numpy() * np.float32(0.1) for k in p}
    places = {k: place(p[k]) for k in p}
    out = f(p, g)
    for k in p:
        np.testing.assert_allclose(out[k], want[k], rtol=1e-6)
        assert place(out[k]) == places[k]
        assert g[k].numpy().shape == shape
    again = f(out, g)
    np.testing.assert_allclose(again["a"], want["a"] - g["a"].numpy() * 0.1, rtol=1e-5, atol=1e-6)


def test_a_donated_tensor_cannot_be_used() -> None:
    x = draw(4)
    ts.jit(lambda x: x + 1.0, donate=("x",), target="cpu")(x)
    for use in (lambda: x.numpy(), lambda: x + 1.0, lambda: ts.jit(op.exp)(x)):
        with pytest.raises(OperandError) as e:
            use()
        assert e.value.message.endswith(
            ": f32[4] was donated to a jitted function, which may have written over it; use what that "
            "function returned, or do not donate the argument"
        )


def test_memory_that_others_see_is_not_written_over() -> None:
    f = ts.jit(lambda x: x + 1.0, donate=("x",), target="cpu")
    mine = np.arange(5, dtype=np.float32)
    f(ts.tensor(mine))
    np.testing.assert_array_equal(mine, np.arange(5))
    x = draw(300, 200)
    window, part = x.numpy(), x[1:]
    copies = window.copy(), part.numpy().copy()
    y = f(x)
    np.testing.assert_array_equal(window, copies[0])
    np.testing.assert_array_equal(part.numpy(), copies[1])
    np.testing.assert_array_equal(y.numpy(), copies[0] + 1)


def test_what_is_read_after_it_would_be_written_is_kept() -> None:
    f = ts.jit(lambda x: (x + 1.0, x.T @ x), donate=("x",), target="cpu")
    x = draw(60, 60)
    want = x.numpy() + 1, x.numpy().T @ x.numpy()
    for a, b in zip(f(x), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_tensor_that_is_passed_twice() -> None:
    f = ts.jit(lambda x, y: x - y * 2.0, donate=("x",), target="cpu")
    x = draw(50)
    want = -x.numpy()
    np.testing.assert_allclose(f(x, x), want, rtol=1e-6)
