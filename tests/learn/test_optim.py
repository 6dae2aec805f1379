"""Optimisers: against the published update rules written out in NumPy, and that they learn."""

import numpy as np
import pytest

import tessera as ts
from tessera import op

RNG = np.random.default_rng(0)


def steps(opt, grads):
    p = {"w": ts.tensor(np.ones(3)), "b": ts.tensor(np.zeros(2))}
    state = opt.init(p)
    for g in grads:
        p, state = opt.update({k: ts.tensor(v) for k, v in g.items()}, state, p)
    return {k: v.numpy() for k, v in p.items()}, state


@pytest.fixture
def grads():
    return [{"w": RNG.normal(size=3), "b": RNG.normal(size=2)} for _ in range(5)]


def adam(grads, lr, b1=0.9, b2=0.999, eps=1e-8, decay=0.0):
    p = {"w": np.ones(3), "b": np.zeros(2)}
    m = {k: 0 * v for k, v in p.items()}
    v = {k: 0 * x for k, x in p.items()}
    for t, g in enumerate(grads, 1):
        for k in ("w", "b"):
            m[k] = b1 * m[k] + (1 - b1) * g[k]
            v[k] = b2 * v[k] + (1 - b2) * g[k] ** 2
            p[k] = p[k] * (1 - lr * decay) - lr * (m[k] / (1 - b1**t)) / (np.sqrt(v[k] / (1 - b2**t))
                + eps)  # fmt: skip
    return p


def test_adam_and_adamw(grads):
    for opt, want in (
        (ts.optim.adam(0.1), adam(grads, 0.1)),
        (ts.optim.adam(0.01, b1=0.8, b2=0.9), adam(grads, 0.01, 0.8, 0.9)),
        (ts.optim.adamw(0.1, decay=0.05), adam(grads, 0.1, decay=0.05)),
    ):
        got, state = steps(opt, grads)
        assert int(state["step"]) == 5
        for k in want:
            np.testing.assert_allclose(got[k], want[k], rtol=1e-5)


def test_sgd_with_momentum(grads):
    for nesterov in (False, True):
        got, _ = steps(ts.optim.sgd(0.1, momentum=0.9, nesterov=nesterov, decay=0.01), grads)
        p, v = np.ones(3), np.zeros(3)
        for g in grads:
            d = g["w"] + 0.01 * p
            v = 0.9 * v + d
            p = p - 0.1 * (d + 0.9 * v if nesterov else v)
        np.testing.assert_allclose(got["w"], p, rtol=1e-12)


def test_lion(grads):
    for decay in (0.0, 0.1):
        got, state = steps(ts.optim.lion(0.01, b1=0.9, b2=0.99, decay=decay), grads)
        p, m = np.ones(3), np.zeros(3)
        for g in grads:
            p = p - 0.01 * (np.sign(0.9 * m + 0.1 * g["w"]) + decay * p)
            m = 0.99 * m + 0.01 * g["w"]
        np.testing.assert_allclose(got["w"], p, rtol=1e-6)
        np.testing.assert_allclose(state["m"]["w"], m, rtol=1e-12)
        assert int(state["step"]) == 5


def test_rmsprop(grads):
    got, _ = steps(ts.optim.rmsprop(0.01, decay=0.8), grads)
    p, v = np.ones(3), np.zeros(3)
    for g in grads:
        v = 0.8 * v + 0.2 * g["w"] ** 2
        p = p - 0.01 * g["w"] / (np.sqrt(v) + 1e-8)
    np.testing.assert_allclose(got["w"], p, rtol=1e-6)


@pytest.mark.parametrize("make", ["sgd", "adam", "adamw", "lion", "rmsprop"])
def test_every_optimiser_descends_under_jit_with_a_schedule(make):
    opt = getattr(ts.optim, make)(ts.optim.linear(0.1, 0.001, 80))
    p = {"w": ts.tensor(np.array([1.0, -2.0], np.float32))}
    state, step = opt.init(p), ts.jit(lambda p, s: opt.update(ts.grad(bowl)(p), s, p))
    for _ in range(80):
        p, state = step(p, state)
    assert float(bowl(p)) < 0.05
    assert p["w"].dtype is ts.f32
    assert step.compiled == 1


def bowl(p):
    return op.sum(op.square(p["w"]))


def test_clipping_by_value():
    g = {"a": ts.tensor([3.0, -0.5]), "b": [ts.tensor(-4.0)]}
    clipped = ts.optim.clip_by_value(g, 1.0)
    np.testing.assert_array_equal(clipped["a"], [1.0, -0.5])
    np.testing.assert_array_equal(clipped["b"][0], -1.0)


@pytest.mark.parametrize(
    ("rate", "want"),
    [
        (ts.optim.constant(0.3), [0.3, 0.3, 0.3, 0.3]),
        (ts.optim.linear(1.0, 0.2, 8), [1.0, 0.6, 0.2, 0.2]),
        (ts.optim.exponential(2.0, 0.5, 4), [2.0, 1.0, 0.5, 2.0 * 0.5**2.5]),
        (ts.optim.staircase(2.0, 0.5, 4), [2.0, 1.0, 0.5, 0.5]),
    ],
    ids=["constant", "linear", "exponential", "staircase"],
)
def test_schedules_are_their_formulas(rate, want):
    got = [float(rate(ts.tensor(float(i)))) for i in (0, 4, 8, 10)]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_clipping_keeps_the_direction():
    g = {"a": ts.tensor([3.0, 0.0]), "b": ts.tensor([4.0])}
    clipped = ts.optim.clip_by_global_norm(g, 1.0)
    np.testing.assert_allclose(clipped["a"], [0.6, 0.0], rtol=1e-5)
    np.testing.assert_allclose(clipped["b"], [0.8], rtol=1e-5)
    np.testing.assert_array_equal(ts.optim.clip_by_global_norm(g, 10.0)["a"], [3.0, 0.0])


def test_schedule():
    rate = ts.optim.warmup_cosine(1.0, warmup=4, total=12, floor=0.1)
    got = [float(rate(ts.tensor(float(i)))) for i in (0, 3, 4, 8, 12, 20)]
    np.testing.assert_allclose(got, [0.25, 1.0, 1.0, 0.55, 0.1, 0.1], atol=1e-6)


def test_training_in_one_jitted_step():
    x = ts.tensor(RNG.normal(size=(64, 4)).astype(np.float32))
    y = op.sin(x @ ts.tensor(RNG.normal(size=(4, 1)).astype(np.float32)))
    p = {"w1": ts.tensor(RNG.normal(size=(4, 16)).astype(np.float32)), "w2": op.zeros((16, 1))}
    opt = ts.optim.adam(ts.optim.warmup_cosine(0.02, 5, 150))

    @ts.jit
    def step(p, state):
        loss, g = ts.value_and_grad(
            lambda p: op.mean(op.square(op.tanh(x @ p["w1"]) @ p["w2"] - y))
        )(p)
        return *opt.update(g, state, p), loss

    state, losses = opt.init(p), []
    for _ in range(150):
        p, state, loss = step(p, state)
        losses.append(float(loss))
    assert losses[-1] < 0.1 * losses[0]
    assert step.compiled == 1


@pytest.mark.parametrize("dtype", ["f64", "c128"])
def test_a_schedule_steps_doubles_in_double_precision(dtype):
    rate, opt = (lambda n: 0.3 * 0.7 ** (n / 3)), ts.optim.sgd(ts.optim.exponential(0.3, 0.7, 3))
    x = ts.tensor(np.array([1.0, -2.0])).astype(dtype)
    state, want = opt.init(x), x.numpy()
    for n in range(6):
        x, state = opt.update(x, state, x)
        want = want - rate(n) * want
    np.testing.assert_allclose(x.numpy(), want, rtol=1e-14)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lion", "rmsprop", "adafactor"])
def test_whole_numbers_are_not_trained(name: str) -> None:
    """Steps on them were cut to whole numbers: 1, 2, 3 became 0, 1, 2, or stayed as they were."""
    made = getattr(ts.optim, name)(0.1)
    params = {"w": ts.tensor([1, 2, 3]), "v": ts.tensor([1.0, 2.0])}
    with pytest.raises(
        ts.TesseraError, match=r"^[a-z]+: the parameter \['w'\] is i64\[3\]; only floating"
    ):
        made.init(params)
    frozen = ts.optim.masked(made, {"w": False, "v": True})
    after, _ = frozen.update(
        {"w": ts.tensor([0, 0, 0]), "v": ts.ones((2,))}, frozen.init(params), params
    )
    assert after["w"].tolist() == [1, 2, 3]
