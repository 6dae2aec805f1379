"""Control flow and its derivatives against jax.lax, and the slope of gamma against JAX's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.runners.tolerance import assert_close

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


RNG = np.random.default_rng(0)
W, X = RNG.normal(size=(4, 4)) / 2, RNG.normal(size=(7, 4))


def model(xp: Any, flow: Any, cond: Any) -> Any:
    """One program for both libraries: a recurrence with a decision and an inner loop."""

    def loss(w: Any, x: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            h, n = c
            h = xp.tanh(xp.matmul(w, h) + row)
            h = cond(xp.sum(h) > 0, lambda h: h * row, lambda h: xp.sin(h), h)
            h = flow.fori_loop(0, 2, lambda i, h: xp.sin(h) + 0.5 * h, h)
            return (h, n + 1), {"h": h, "s": xp.sum(h * h)}

        (h, _), ys = flow.scan(step, (x[0], 0), x, reverse=True)
        return xp.sum(h) + xp.sum(ys["h"] * ys["h"]) + xp.sum(xp.exp(ys["s"] * 0.1))

    return loss


OURS = model(op, ts, op.cond)
THEIRS = model(jnp, lax, lax.cond)


def test_value_and_gradients() -> None:
    w, x = ts.tensor(W), ts.tensor(X)
    assert_close(OURS(w, x), THEIRS(W, X), times=10)
    got = ts.jit(ts.grad(OURS, argnums=(0, 1)))(w, x)
    want = jax.grad(THEIRS, argnums=(0, 1))(W, X)
    for g, t in zip(got, want, strict=True):
        assert_close(g, t, times=100)


def test_second_derivatives() -> None:
    v = RNG.normal(size=W.shape)
    got = ts.jvp(lambda w: ts.grad(OURS)(w, ts.tensor(X)), (ts.tensor(W),), (ts.tensor(v),))[1]
    want = jax.jvp(lambda w: jax.grad(THEIRS)(w, X), (W,), (v,))[1]
    assert_close(got, want, times=1000)


def test_forward_derivative_of_while_loop() -> None:
    def newton(flow: Any, xp: Any) -> Any:
        def more(c: Any) -> Any:
            return xp.max(xp.abs(c[0] * c[0] - c[1])) > 1e-12

        return lambda x: flow.while_loop(more, lambda c: ((c[0] + c[1] / c[0]) / 2, c[1]), (x, x))[
            0
        ]

    x, v = np.array([2.0, 3.0]), np.array([1.0, -1.0])
    got = ts.jvp(newton(ts, op), (ts.tensor(x),), (ts.tensor(v),))
    for g, t in zip(got, jax.jvp(newton(lax, jnp), (x,), (v,)), strict=True):
        assert_close(g, t)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 20.0, 1000.0])
def test_slope_of_gamma(alpha: float) -> None:
    a = ts.tensor(np.full(100, alpha))
    z, slope = ts.jvp(lambda a: op.random.gamma(ts.key(5), a), (a,), (op.ones_like(a),))
    want = jax.lax.random_gamma_grad(a.numpy(), z.numpy())
    np.testing.assert_allclose(slope.numpy(), want, rtol=2e-6)
