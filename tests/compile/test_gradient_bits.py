"""The bits of a gradient on the cpu target: a function of program and inputs alone.

They do not depend on threads, on what is computed again, or on how a loop is blocked for its derivative.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

RNG = np.random.default_rng(0)
POLICIES: list[Any] = ["nothing", "dots", "everything", ts.budget(1 << 14)]


def draw(*shape: int) -> ts.Tensor:
    return ts.tensor((RNG.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32))


def block(x: Any, w: Any) -> Any:
    """Attention and a feed-forward layer, both with a norm and a residual."""
    h = op.layernorm(x)
    q, k, v = (op.swapaxes((h @ w[n]).reshape((2, 24, 2, 16)), 1, 2) for n in "qkv")
    a = op.attention(q, k, v, causal=True)
    x = x + op.swapaxes(a, 1, 2).reshape((2, 24, 32)) @ w["o"]
    return x + op.gelu(op.layernorm(x) @ w["up"]) @ w["down"]


PARAMS = [
    {**{n: draw(32, 32) for n in "qkvo"}, "up": draw(32, 128), "down": draw(128, 32)}
    for _ in range(2)
]
X = draw(2, 24, 32)


def transformer(layer: Callable[..., Any]) -> Callable[..., Any]:
    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = layer(x, w)
        return op.mean(op.square(op.softmax(x) - 0.1))

    return loss


def perceptron(layer: Callable[..., Any]) -> Callable[..., Any]:
    def loss(params: Any, x: Any) -> Any:
        for w in params:
            x = layer(x, w)
        return op.mean(op.logsumexp(x, axis=-1))

    return loss


def dense(x: Any, w: Any) -> Any:
    return op.tanh(x @ w)


CASES: dict[str, tuple[Any, Any, Any, Any]] = {
    "transformer": (transformer, block, PARAMS, X),
    "perceptron": (perceptron, dense, [draw(65, 65) for _ in range(3)], draw(700, 65)),
}
every_case = pytest.mark.parametrize("name", CASES)


def digest(outs: Any) -> str:
    h = hashlib.sha256()
    for v in ts.tree.leaves(outs):
        h.update(np.ascontiguousarray(np.asarray(v)).tobytes())
    return h.hexdigest()


def gradient(name: str, policy: Any = None) -> Callable[[], str]:
    wrap, layer, params, x = CASES[name]
    f = wrap(layer if policy is None else ts.checkpoint(layer, policy=policy))
    g = ts.jit(ts.value_and_grad(f, argnums=(0, 1)), target="cpu")
    return lambda: digest(g(params, x))


@every_case
def test_threads_do_not_change_the_gradient(name: str) -> None:
    g = gradient(name)
    found = set()
    for n in (1, 2, 3):
        with ts.threads(n):
            found.add(g())
    assert len(found) == 1


@every_case
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_computing_again_does_not_change_the_gradient(name: str, policy: Any) -> None:
    plain, again = gradient(name), gradient(name, policy)
    with ts.threads(1):
        want = plain()
    for n in (1, 3):
        with ts.threads(n):
            assert again() == want


def test_another_input_gives_other_bits() -> None:
    """The digest sees the numbers."""
    wrap, layer, params, x = CASES["perceptron"]
    g = ts.jit(ts.value_and_grad(wrap(layer)), target="cpu")
    assert digest(g(params, x)) != digest(g(params, x * 2.0))


def test_a_bounded_loop_has_the_bits_of_a_scan() -> None:
    w = draw(16, 16)

    def looped(x: Any) -> Any:
        return op.sum(ts.while_loop(lambda c: op.sum(c) < 1e9, lambda c: dense(c, w), x, bound=7))

    def scanned(x: Any) -> Any:
        return op.sum(ts.fori_loop(0, 7, lambda i, c: dense(c, w), x))

    x = draw(5, 16)
    a, b = (ts.jit(ts.value_and_grad(f), target="cpu")(x) for f in (looped, scanned))
    assert digest(a) == digest(b)
