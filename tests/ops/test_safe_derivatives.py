"""Derivatives at the edge: rows of -inf, equal elements, vectors of length 0, roundings by chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f32, op, stochastic_round

RNG = np.random.default_rng(0)
INF = float("inf")
W = ts.tensor(np.array([1.0, -2.0, 3.0]))


def grad(f: Callable[..., Any], *xs: Any) -> list[Any]:
    """Gradients in all arguments, eager and compiled, which must be finite."""
    values = [ts.tensor(np.asarray(x, np.float64)) for x in xs]
    g = ts.grad(f, argnums=tuple(range(len(xs))))
    eager, compiled = g(*values), ts.jit(g)(*values)
    for a, b in zip(eager, compiled, strict=True):
        assert np.isfinite(a.numpy()).all()
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    return [a.numpy() for a in eager]


# Masked rows ------------------------------------------------------------------------------------


def test_attention_with_rows_that_see_nothing() -> None:
    """They give 0, and what they would have seen gets nothing from them."""
    q, k, v = (RNG.normal(size=(2, 3, 4)) for _ in range(3))
    mask = np.array([[True, False, True], [False, False, False], [False, True, True]])
    weight = ts.tensor(RNG.normal(size=(2, 3, 4)))

    def loss(q: Any, k: Any, v: Any) -> Any:
        return op.sum(op.attention(q, k, v, mask=ts.tensor(mask)) * weight)

    dq, dk, dv = grad(loss, q, k, v)
    np.testing.assert_array_equal(dq[:, 1], np.zeros((2, 4)))

    def seen(q: Any, k: Any, v: Any) -> Any:
        rows = np.array([0, 2])
        part = op.attention(q[:, rows], k, v, mask=ts.tensor(mask[rows]))
        return op.sum(part * weight[:, rows])

    for got, want in zip((dq, dk, dv), grad(seen, q, k, v), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)


def test_softmax_and_logsumexp_with_rows_of_minus_inf() -> None:
    rows = [[-INF, -INF, -INF], [0.0, -INF, 1.0]]
    (got,) = grad(lambda x: op.sum(op.softmax_safe(x) * W), rows)
    y = np.exp([0.0, -INF, 1.0]) / (1 + np.e)
    np.testing.assert_allclose(got, [[0, 0, 0], y * (W.numpy() - y @ W.numpy())], atol=1e-14)
    for f in (op.logsumexp_safe, op.logsumexp):
        (slopes,) = grad(lambda x, f=f: op.sum(f(x, axis=1)), rows)
        np.testing.assert_allclose(slopes, [[0, 0, 0], y], atol=1e-14)
    (some,) = grad(lambda x: op.sum(op.softmax(x) * W), [rows[1]])
    np.testing.assert_allclose(some[0], y * (W.numpy() - y @ W.numpy()), atol=1e-14)


# Equal elements -----------------------------------------------------------------------------------

SMOOTH = {
    "layernorm": lambda x: op.sum(op.layernorm(x, eps=1e-2) * W),
    "rmsnorm": lambda x: op.sum(op.rmsnorm(x, eps=1e-2) * W),
    "var": lambda x: op.sum(op.var(x, axis=1)),
    "layernorm squared": lambda x: op.sum(op.square(op.layernorm(x, eps=1e-2)) * W),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("row", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [1e-8, 0.0, 0.0]], ids=str)
def test_normalisation_at_zero_variance_is_the_difference(name: str, row: list[float]) -> None:
    f = SMOOTH[name]
    (got,) = grad(f, [row])
    for i in range(3):
        high, low = (np.array([row]) for _ in range(2))
        high[0, i] += 1e-6
        low[0, i] -= 1e-6
        slope = (float(f(ts.tensor(high))) - float(f(ts.tensor(low)))) / 2e-6
        np.testing.assert_allclose(got[0, i], slope, rtol=1e-5, atol=1e-7)


def test_standard_deviation_of_equal_elements_is_flat() -> None:
    (got,) = grad(lambda x: op.sum(op.std(x, axis=1)), [[2.0, 2.0, 2.0], [1.0, 2.0, 3.0]])
    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(got, [[0, 0, 0], (x - 2) / 3 / np.std(x)], atol=1e-14)
    assert float(op.std(ts.tensor([2.0, 2.0]))) == 0


# Vectors of length 0 ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, 1.5, 2, 3, INF])
def test_norms_are_flat_at_zero(order: float) -> None:
    x = [[0.0, 0.0, 0.0], [3.0, 0.0, -4.0]]
    (got,) = grad(lambda x: op.sum(op.vector_norm(x, order, axis=1)), x)
    np.testing.assert_array_equal(got[0], np.zeros(3))
    size = np.abs(np.array(x[1]))
    length = np.linalg.norm(size, order)
    want = (size == size.max()) if order == INF else (size / length) ** (order - 1)
    np.testing.assert_allclose(got[1], want * np.sign(x[1]), atol=1e-14)
    assert op.vector_norm(ts.tensor(x), order, axis=1).tolist()[0] == 0


def test_hypot_and_distances_at_zero() -> None:
    da, db = grad(lambda a, b: op.sum(op.hypot(a, b)), [0.0, 3.0], [0.0, 4.0])
    np.testing.assert_allclose([da, db], [[0, 0.6], [0, 0.8]])
    dx, dy = grad(lambda x, y: op.norm(x - y), [1.0, 2.0], [1.0, 2.0])
    np.testing.assert_array_equal([dx, dy], np.zeros((2, 2)))
    second = ts.hessian(lambda x: op.square(op.norm(x)))(ts.tensor([3.0, 4.0], dtype=ts.f64))
    np.testing.assert_allclose(second, 2 * np.eye(2), atol=1e-12)


# Rounding by chance -------------------------------------------------------------------------------


def test_stochastic_rounding_hands_cotangents_on() -> None:
    """A rounding moves like the identity, and what it rounds in a backward pass is unbiased too."""
    careful = bf16 @ stochastic_round
    x = ts.tensor(RNG.normal(size=4096).astype(np.float32))
    weight = ts.tensor(np.full(4096, 1 + 2**-9, np.float32))  # a quarter of a step above 1

    def loss(x: Any) -> Any:
        return op.sum(op.cast(x, careful).astype(f32) * weight)

    g = ts.grad(loss)
    got = g(x)
    assert set(got.tolist()) == {1.0, 1 + 2**-7}
    np.testing.assert_allclose(np.mean(got.numpy()), 1 + 2**-9, atol=3e-4)
    np.testing.assert_array_equal(got, g(x))
    np.testing.assert_array_equal(got, ts.jit(g)(x))
    again = ts.grad(ts.checkpoint(loss))
    np.testing.assert_array_equal(got, again(x))


def test_training_in_bf16_moves_only_with_stochastic_rounding() -> None:
    """Steps of a tenth of the spacing of bf16 are lost to nearest rounding, not to chance.

    The slopes differ from step to step, since equal values at one place are rounded alike.
    """
    slopes = np.random.default_rng(1).uniform(0.5, 1.5, size=(40, 256)).astype(np.float32)

    def after(dtype: Any) -> float:
        w = op.cast(op.full((256,), 1.0), dtype)
        for c in slopes:
            g = ts.grad(lambda w, c=c: op.sum(w.astype(f32) * c))(w)
            w = op.cast(w.astype(f32) - 2**-8 * 0.2 * g.astype(f32), dtype)
        return float(w.astype(f32).mean())

    assert after(bf16) == 1.0
    want = 1 - 40 * 2**-8 * 0.2
    assert abs(after(bf16 @ stochastic_round) - want) < 0.2 * (1 - want)


# Narrow floats and complex signs ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logsumexp", "logcumsumexp", "logaddexp", "log_softmax"])
@pytest.mark.parametrize("at", [0.0, 100.0, -3000.0])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_shares_of_sums_are_not_taken_from_a_rounded_logarithm(
    name: str, at: float, dtype: str
) -> None:
    """A logarithm of 100 is rounded by 1/4 in bf16: exp(x - y) of it was off by a tenth."""
    weights = ts.tensor(np.array([0.5, -1.0, 2.0], np.float32))

    def f(x: Any) -> Any:
        y = op.logaddexp(x, x[::-1]) if name == "logaddexp" else getattr(op, name)(x)
        return op.sum(op.cast(y, f32) * (weights if y.ndim else 1.0))

    x = op.cast(ts.tensor(np.array([at, at, at + 1], np.float32)), dtype)
    want = ts.grad(f)(op.cast(x, ts.f64)).numpy()
    for g in (ts.grad(f), ts.jit(ts.grad(f))):
        np.testing.assert_allclose(op.cast(g(x), ts.f64).numpy(), want, rtol=0, atol=2.0**-6)


def test_a_sum_of_two_infinite_logarithms_has_equal_shares() -> None:
    x = np.array([-INF, INF, -INF, 3.0])
    y = np.array([-INF, INF, 2.0, -INF])
    a, b = grad(lambda x, y: op.sum(op.logaddexp(x, y) * ts.tensor(np.ones(4))), x, y)
    np.testing.assert_array_equal(a, [0.5, 0.5, 0, 1])
    np.testing.assert_array_equal(b, [0.5, 0.5, 1, 0])


@pytest.mark.parametrize("f", [lambda x: op.logaddexp(x, 1.5), lambda x: op.softplus(x - 1.5)])
def test_the_curvature_of_a_sum_of_logarithms_at_a_tie(f: Callable[..., Any]) -> None:
    """A slope that is chosen where two numbers are equal would be flat there."""
    for g in (ts.grad(ts.grad(f)), ts.jit(ts.grad(ts.grad(f)))):
        assert float(g(ts.tensor(np.float64(1.5)))) == 0.25
    third = ts.grad(ts.grad(ts.grad(f)))(ts.tensor(np.float64(1.5)))
    np.testing.assert_allclose(float(third), 0, atol=1e-15)


def test_a_complex_sign_turns() -> None:
    """It has the slope of x / |x|, 0 at 0, in both modes; a real sign has none."""
    z = np.array([1 + 0j, 0.3 - 2j, -2 + 1j, 0j])
    t = np.array([1j, 1 + 1j, 0.5 - 1j, 1 + 0j])
    with np.errstate(all="ignore"):
        want = np.where(z == 0, 0, (t - z * (z.conj() * t).real / np.abs(z) ** 2) / np.abs(z))
    moved = ts.jvp(op.sign, (ts.tensor(z),), (ts.tensor(t),))[1].numpy()
    np.testing.assert_allclose(moved, want, rtol=1e-14)
    (back,) = ts.vjp(op.sign, ts.tensor(z))[1](ts.tensor(t))
    np.testing.assert_allclose((back.numpy() * t).sum().real, (t * want).sum().real, rtol=1e-12)
    x = np.array([-2.0, 3.0])
    np.testing.assert_array_equal(ts.jvp(op.sign, (ts.tensor(x),), (ts.tensor(x),))[1].numpy(), 0)
