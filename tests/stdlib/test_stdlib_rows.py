"""stdlib on rows: softmax and norms against float64, their derivatives, and one hash for all schedules."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, block, op, stdlib


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layernorm(x, gain, bias):
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * gain + bias


def rmsnorm(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gain


CASES = {
    "softmax": (stdlib.stable_softmax, softmax, 0),
    "layernorm": (stdlib.efficient_layernorm, layernorm, 2),
    "rmsnorm": (stdlib.rmsnorm, rmsnorm, 1),
}
SHAPES = {"one": (1, 1), "prime": (5, 37), "batched": (2, 3, 40), "wide": (3, 1030)}


def arguments(name, shape, dtype=np.float32):
    vectors = CASES[name][2]
    return [data(*shape).astype(dtype), *(data(shape[-1], seed=i + 1) for i in range(vectors))]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_rows_agree_with_float64(name, shape):
    f, reference, _ = CASES[name]
    args = arguments(name, shape)
    with ts.interpret():
        got = f(*args).numpy()
    want = reference(*(a.astype(np.float64) for a in args))
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_machine_code_has_the_bits_of_the_interpreter(name):
    f, args = CASES[name][0], arguments(name, (7, 37))
    with ts.interpret():
        want = f(*args).numpy()
    assert f(*args).numpy().tobytes() == want.tobytes()


def gradients(f, args, weights):
    def loss(*xs):
        return op.sum(f(*xs) * weights)

    return ts.grad(loss, argnums=tuple(range(len(args))))(*(ts.tensor(a) for a in args))


def differences(f, args, weights, h=1e-6):
    """Central differences in float64 of sum(f * weights), for each argument."""
    args = [a.astype(np.float64) for a in args]
    for i, a in enumerate(args):
        d = np.empty_like(a)
        for at in np.ndindex(a.shape):
            moved = []
            for sign in (1, -1):
                there = a.copy()
                there[at] += sign * h
                moved.append((f(*args[:i], there, *args[i + 1 :]) * weights).sum())
            d[at] = (moved[0] - moved[1]) / (2 * h)
        yield d


@pytest.mark.parametrize("name", CASES)
def test_derivatives_agree_with_differences(name):
    f, reference, _ = CASES[name]
    args, w = arguments(name, (5, 7)), data(5, 7, seed=9)
    with ts.interpret():
        got = gradients(f, args, w)
    for g, want in zip(got, differences(reference, args, w), strict=True):
        np.testing.assert_allclose(g.numpy(), want, rtol=1e-4, atol=1e-5)


def test_sums_over_rows_have_two_passes():
    """More rows than one stretch, in blocks that do not divide it."""
    args, w = arguments("layernorm", (600, 5)), data(600, 5, seed=9)
    hat = layernorm(args[0].astype(np.float64), 1.0, 0.0)
    with ts.interpret():
        made = [
            gradients(stdlib.efficient_layernorm.with_schedule(block(m)), args, w) for m in (64, 96)
        ]
    for m in made:
        np.testing.assert_allclose(m[1].numpy(), (w * hat).sum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(m[2].numpy(), w.sum(0, dtype=np.float64), rtol=1e-4, atol=1e-5)
    assert len({b"".join(g.numpy().tobytes() for g in m) for m in made}) == 1


@pytest.mark.parametrize("name", CASES)
def test_narrow_rows_are_computed_wide(name):
    f, reference, _ = CASES[name]
    x, *rest = arguments(name, (5, 37))
    narrow = ts.tensor(x, bf16)
    with ts.interpret():
        got = f(narrow, *rest)
    assert got.dtype is bf16
    want = reference(narrow.numpy().astype(np.float64), *rest)
    np.testing.assert_allclose(got.numpy().astype(np.float64), want, rtol=2**-8, atol=1e-3)


def test_softmax_along_another_axis():
    x = data(4, 5, 3)
    with ts.interpret():
        got = stdlib.stable_softmax(x, axis=1).numpy()
    np.testing.assert_allclose(got, softmax(x.swapaxes(1, 2)).swapaxes(1, 2), rtol=1e-5)


def test_in_a_jitted_function():
    x, g, b = (ts.tensor(a) for a in arguments("layernorm", (7, 37)))

    @ts.jit
    def f(x, g, b):
        return stdlib.stable_softmax(stdlib.efficient_layernorm(x, g, b)) * 2

    want = softmax(layernorm(*(a.numpy().astype(np.float64) for a in (x, g, b)))) * 2
    np.testing.assert_allclose(f(x, g, b).numpy(), want, rtol=1e-4, atol=1e-6)


def test_every_schedule_of_layernorm_gives_one_hash():
    args = arguments("layernorm", (50, 37))
    with ts.interpret():
        made = {
            stdlib.efficient_layernorm.with_schedule(block(m)).__call__(*args).numpy().tobytes()
            for m in range(1, 105)
        }
    assert len(made) == 1
