"""Optimisers with every option away from its default, against models in f64, in all real dtypes and under
jit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.rounding import round_to

Array = np.ndarray[Any, np.dtype[Any]]
START = np.array([1.0, -0.5, 2.0, 0.25])
GRADS = [
    np.array([0.5, -1.0, 0.0, 2.0]),
    np.array([-0.25, 0.75, 0.0, -1.5]),
    np.array([1.0, 0.5, 0.0, -3.0]),
]
RATE = [0.3, 0.15, 0.075]  # of the schedule at steps 0, 1 and 2


def schedule(step: Any) -> Any:
    """A rate that halves at each step."""
    return 0.3 * op.pow(0.5, step)


def sgd(momentum: float, nesterov: bool, decay: float) -> Callable[..., Any]:
    def step(p: Array, g: Array, s: dict[str, Any], rate: float) -> Array:
        d = g + decay * p
        if momentum:
            s["velocity"] = momentum * s.get("velocity", 0.0) + d
            d = momentum * s["velocity"] + d if nesterov else s["velocity"]
        return p - rate * d

    return step


def adam(b1: float, b2: float, eps: float, decay: float) -> Callable[..., Any]:
    def step(p: Array, g: Array, s: dict[str, Any], rate: float) -> Array:
        s["t"] = s.get("t", 0) + 1
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
        right = s["m"] / (1 - b1 ** s["t"])
        return p * (1 - decay * rate) - rate * right / (np.sqrt(s["v"] / (1 - b2 ** s["t"])) + eps)

    return step


def lion(b1: float, b2: float, decay: float) -> Callable[..., Any]:
    def step(p: Array, g: Array, s: dict[str, Any], rate: float) -> Array:
        m = s.get("m", 0.0)
        s["m"] = b2 * m + (1 - b2) * g
        return p - rate * (np.sign(b1 * m + (1 - b1) * g) + decay * p)

    return step


def rmsprop(decay: float, eps: float) -> Callable[..., Any]:
    def step(p: Array, g: Array, s: dict[str, Any], rate: float) -> Array:
        s["v"] = decay * s.get("v", 0.0) + (1 - decay) * g * g
        return p - rate * g / (np.sqrt(s["v"]) + eps)

    return step


CASES: dict[str, tuple[Callable[[Any], Any], Callable[..., Any]]] = {
    "sgd": (ts.optim.sgd, sgd(0.0, False, 0.0)),
    "sgd-decay": (lambda r: ts.optim.sgd(r, decay=0.3), sgd(0.0, False, 0.3)),
    "sgd-momentum": (lambda r: ts.optim.sgd(r, 0.7), sgd(0.7, False, 0.0)),
    "sgd-all": (lambda r: ts.optim.sgd(r, 0.7, True, 0.3), sgd(0.7, True, 0.3)),
    "adam": (ts.optim.adam, adam(0.9, 0.999, 1e-8, 0.0)),
    "adam-all": (lambda r: ts.optim.adam(r, 0.6, 0.7, 0.2, 0.3), adam(0.6, 0.7, 0.2, 0.3)),
    "adamw": (ts.optim.adamw, adam(0.9, 0.999, 1e-8, 0.01)),
    "adamw-all": (lambda r: ts.optim.adamw(r, 0.6, 0.7, 0.2, 0.3), adam(0.6, 0.7, 0.2, 0.3)),
    "lion": (ts.optim.lion, lion(0.9, 0.99, 0.0)),
    "lion-all": (lambda r: ts.optim.lion(r, 0.3, 0.6, 0.4), lion(0.3, 0.6, 0.4)),
    "rmsprop": (ts.optim.rmsprop, rmsprop(0.9, 1e-8)),
    "rmsprop-all": (lambda r: ts.optim.rmsprop(r, 0.6, 0.2), rmsprop(0.6, 0.2)),
}
EPSILON = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-3, "bf16": 8e-3}  # f64: by rates, that are f32


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("name", CASES)
def test_three_steps_are_those_of_the_model(name: str, dtype: str, compiled: bool) -> None:
    """A step starts from where the optimiser is, so that one rounding of the parameters is all that is
    left.
    """
    make, model = CASES[name]
    if compiled and dtype in ("f64", "bf16"):
        return  # compiled and eager agree in every bit, whatever the dtype: two are enough
    for rate in (schedule,) if compiled else (0.3, schedule):
        opt = make(rate)
        step = ts.jit(opt.update) if compiled else opt.update
        p: Any = [{"w": ts.tensor(START, dtype)}, ts.tensor(2 * START, dtype)]
        state, kept = opt.init(p), ({}, {})  # type: ignore[var-annotated]
        for i, g in enumerate(GRADS):
            now, r = [p[0]["w"].numpy().astype(float), p[1].numpy().astype(float)], RATE[i]
            want = [
                model(x, w, k, r if callable(rate) else rate)
                for x, w, k in zip(now, (g, -0.5 * g), kept, strict=True)
            ]
            p, state = step([{"w": ts.tensor(g, dtype)}, ts.tensor(-0.5 * g, dtype)], state, p)
            assert int(state["step"]) == i + 1
            for got, x in zip((p[0]["w"], p[1]), want, strict=True):
                assert got.dtype.name == dtype
                scale = 1e-6 if dtype == "f64" and callable(rate) else EPSILON[dtype]
                np.testing.assert_allclose(got.numpy().astype(float), x, rtol=scale, atol=scale)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e5m2"])
@pytest.mark.parametrize("name", CASES)
def test_small_gradients_of_narrow_parameters_take_steps_that_are_finite(
    name: str, dtype: str
) -> None:
    """In f16 the square of 1e-4 and the usual eps are 0; a zero gradient moves nothing."""
    opt = CASES[name][0](0.125)
    p = {"w": ts.tensor(np.ones(3), dtype)}
    state = opt.init(p)
    for _ in range(2):
        p, state = opt.update({"w": ts.tensor(np.array([0.0, 1e-4, -1e-4]), dtype)}, state, p)
    got = p["w"].numpy().astype(float)
    assert p["w"].dtype.name == dtype
    assert np.isfinite(got).all()
    assert got[1] <= got[0] <= got[2]
    if name in ("sgd", "adam", "lion", "rmsprop"):
        assert got[0] == 1.0


def test_states_of_narrow_parameters_are_wide_and_others_keep_their_dtype() -> None:
    for dtype, want in (("f16", "f32"), ("bf16", "f32"), ("f32", "f32"), ("f64", "f64")):
        p = {"w": ts.tensor(START, dtype)}
        for opt in (ts.optim.adam(1.0), ts.optim.sgd(1.0, 0.5), ts.optim.lion(1.0)):
            state = opt.init(p)
            kept = [v["w"].dtype.name for k, v in state.items() if k != "step"]
            assert set(kept) == {want}


def test_a_step_of_a_narrow_parameter_is_rounded_once() -> None:
    """p - rate * g in f32, then to the dtype: rounding rate * g first would give another number."""
    rng = np.random.default_rng(0)
    x, g = round_to(rng.normal(size=200), ts.bf16), round_to(rng.normal(size=200), ts.bf16)
    opt = ts.optim.sgd(0.3)
    got, _ = opt.update(ts.tensor(g, "bf16"), opt.init(ts.tensor(x, "bf16")), ts.tensor(x, "bf16"))
    wide = x.astype(np.float32) - np.float32(0.3) * g.astype(np.float32)
    np.testing.assert_array_equal(got.numpy(), round_to(wide, ts.bf16))


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16", "c64"])
def test_clipping_bounds_the_norm_of_all_and_leaves_small_gradients_alone(dtype: str) -> None:
    a, b = np.array([3.0, -2.0]), np.array([[6.0]])  # the norm is 7
    g = {"a": ts.tensor(a, dtype), "b": ts.tensor(b, dtype)}
    for limit, factor in ((3.5, 0.5), (7.5, 1.0), (700.0, 1.0)):
        got = ts.optim.clip_by_global_norm(g, limit)
        assert got["a"].dtype.name == dtype
        for k, x in (("a", a), ("b", b)):
            np.testing.assert_allclose(
                got[k].numpy().astype(complex), factor * x, rtol=1e-2 if "16" in dtype else 1e-5
            )
    if dtype != "c64":
        got = ts.optim.clip_by_value(g, 2.5)
        np.testing.assert_allclose(got["a"].numpy().astype(float), [2.5, -2.0])
        np.testing.assert_allclose(got["b"].numpy().astype(float), [[2.5]])


def test_the_norm_of_narrow_gradients_does_not_overflow() -> None:
    got = ts.optim.clip_by_global_norm(ts.tensor(np.full(4, 300.0), "f16"), 6.0)
    np.testing.assert_allclose(got.numpy().astype(float), 3.0, rtol=1e-3)


def test_schedules_at_their_ends_and_beyond() -> None:
    at = ts.tensor(np.array([0.0, 1.0, 2.0, 3.0, 6.0, 10.0, 50.0], np.float32))
    half = lambda s: 0.2 + 0.8 * 0.5 * (1 + np.cos(np.pi * s))  # noqa: E731
    want = {
        ts.optim.warmup_cosine(1.0, 2, 10, 0.2): [0.5, 1.0, 1.0, half(1 / 8), half(0.5), 0.2, 0.2],
        ts.optim.warmup_cosine(1.0, 0, 0): [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ts.optim.linear(2.0, 1.0, 4): [2.0, 1.75, 1.5, 1.25, 1.0, 1.0, 1.0],
        ts.optim.linear(2.0, 1.0, 0): [2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        ts.optim.staircase(8.0, 0.5, 3): [8.0, 8.0, 8.0, 4.0, 2.0, 1.0, 8.0 * 0.5**16],
        ts.optim.exponential(8.0, 0.5): [8.0 * 0.5**i for i in (0, 1, 2, 3, 6, 10, 50)],
    }
    for rate, numbers in want.items():
        np.testing.assert_allclose(rate(at), numbers, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ts.jit(rate)(at), numbers, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_scaled_loss_grows_shrinks_and_skips_as_it_says(compiled: bool) -> None:
    """scale 4; grows by 3 after 2 good steps, shrinks to a quarter after a bad one, which moves nothing."""
    opt = ts.optim.loss_scaled(ts.optim.sgd(0.5), start=4.0, grow=3.0, shrink=0.25, every=2)
    p: Any = {"w": ts.tensor(np.ones(2), "f16")}
    state: Any = opt.init(p)
    update = ts.jit(opt.update) if compiled else opt.update
    w, seen = np.ones(2), []
    for bad in (False, False, True, False, True, True, False, False):
        scale = float(state["scale"])
        loss, g = opt.value_and_grad(lambda p: op.sum(p["w"].astype("f32") * 0.125))(state, p)
        assert float(loss) == pytest.approx(0.125 * w.sum())
        np.testing.assert_allclose(g["w"].numpy().astype(float), 0.125 * scale)
        if bad:
            g = {"w": g["w"] * float("inf")}
        else:
            w = w - 0.0625
        p, state = update(g, state, p)
        np.testing.assert_array_equal(p["w"].numpy().astype(float), w)
        seen.append((float(state["scale"]), int(state["steps"]), int(state["skipped"])))
    assert seen == [
        (4.0, 1, 0), (12.0, 0, 0), (3.0, 0, 1), (3.0, 1, 1), (0.75, 0, 2), (0.1875, 0, 3),
        (0.1875, 1, 3), (0.5625, 0, 3),
    ]  # fmt: skip
    assert int(state["inner"]["step"]) == 5


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_arrays_are_parameters_too(name: str) -> None:
    """Parameters that are no tensors yet: a Python number and a NumPy array."""
    opt = CASES[name][0](0.125)
    p = {"a": 1.5, "b": np.ones(2, np.float32)}
    want = {"a": ts.tensor(1.5), "b": ts.ones((2,))}
    g = {"a": ts.tensor(0.5), "b": ts.tensor([1.0, -1.0])}
    got, _ = opt.update(g, opt.init(p), p)
    right, _ = opt.update(g, opt.init(want), want)
    for k in p:
        np.testing.assert_array_equal(got[k], right[k])
