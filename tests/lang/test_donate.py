"""Donated arguments: results take their memory, and nobody can use them afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, Tensor, op
from tessera.core.errors import OperandError

RNG = np.random.default_rng(0)


def draw(*shape: int) -> Tensor:
    return ts.jit(lambda x: x * 1.0, target="cpu")(RNG.normal(size=shape).astype(np.float32))


def update(p: Any, g: Any) -> Any:
    return ts.tree.map(lambda a, b: a - b * 0.1, p, g)


def place(x: Tensor) -> int:
    return int(x.storage.ctypes.data)  # type: ignore[union-attr]


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


@pytest.mark.filterwarnings("ignore:.*is not used again")  # which is what this is about
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


def test_an_argument_that_is_donated_for_nothing_is_named() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        return op.sum(x) + op.sum(z["a"]), y * 2.0

    g = ts.jit(f, donate=("x", "y", "z"), target="cpu")
    with pytest.warns(RuntimeWarning) as caught:
        g(draw(300, 200), draw(300, 200), {"a": draw(40, 50), "b": draw(7)})
    assert [str(w.message) for w in caught] == [
        "f: the memory of the donated arguments x, z is not used again: no result or intermediate of its "
        "size is "
        "made after its last use; do not donate it"
    ]
    assert caught[0].filename == __file__


def test_an_argument_that_is_returned_or_used_in_part_is_not_donated_for_nothing() -> None:
    f = ts.jit(
        lambda x, s: (x, {"a": s["a"] + 1.0, "n": op.sum(s["b"])}), donate=("x", "s"), target="cpu"
    )
    f(draw(30, 20), {"a": draw(40, 50), "b": draw(7, 7)})


def test_the_target_numpy_says_that_it_keeps_arguments() -> None:
    f = ts.jit(lambda x: x + 1.0, donate=("x",), target="numpy")
    x = draw(4)
    with pytest.warns(RuntimeWarning, match="donate acts on the targets cpu, cuda and hip"):
        f(x)
    assert x.numpy().shape == (4,)


def test_a_cache_that_is_donated_to_a_decode_step_stays_where_it_is() -> None:
    def step(cache: Any, q: Any) -> Any:
        cache = cache.append(q, q * 2.0)
        return cache, op.attention(q, cache.K, cache.V)

    kept, donating = ts.jit(step, target="cpu"), ts.jit(step, donate=("cache",), target="cpu")
    one = KVCache.empty(1, 2, 64, 8)
    two = KVCache.empty(1, 2, 64, 8)
    places = {two.K.storage.ctypes.data, two.V.storage.ctypes.data}
    assert len(places) == 2
    for i in range(4):
        q = draw(1, 2, 1, 8)
        one, a = kept(one, q)
        two, b = donating(two, q)
        assert {two.K.storage.ctypes.data, two.V.storage.ctypes.data} == places
        assert a.numpy().tobytes() == b.numpy().tobytes()
        assert int(two.length) == i + 1
    for x, y in ((one.K, two.K), (one.V, two.V)):
        np.testing.assert_array_equal(x, y)


def test_an_argument_that_is_held_elsewhere_in_part_is_not_donated_for_nothing() -> None:
    shared = draw(30, 20)
    f = ts.jit(lambda s: {"a": s["a"] + 1.0, "b": op.sum(s["b"])}, donate=("s",), target="cpu")
    f({"a": op.zeros((30, 20)), "b": draw(7)})  # zeros take no memory that could be used
    f({"a": shared, "b": draw(7)})
