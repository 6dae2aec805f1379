"""Loss scaling: by the dtype (f16 @ loss_scale(k)) and by a state that adapts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f16, f32, op
from tessera.core.errors import OperandError

RNG = np.random.default_rng(0)
SCALED = f16 @ ts.loss_scale(1024)


def quiet(x: Any, dtype: Any) -> Any:
    """A function whose slopes, 1e-8 on the way and 1e-9 at the end, vanish in f16."""
    h = op.cast(x, dtype) * op.cast(op.full((3,), 1e-1), dtype)
    return op.sum(op.cast(h, f32) * 1e-8)


X = ts.tensor(np.array([0.5, -1.0, 2.0], np.float32))


def test_slopes_that_vanish_are_kept_by_the_scale() -> None:
    assert op.all(ts.grad(lambda x: quiet(x, f16))(X) == 0)
    got = ts.grad(lambda x: quiet(x, SCALED))(X)
    assert got.dtype is f32
    np.testing.assert_allclose(got, np.full(3, 1e-9), rtol=0.05)
    larger = ts.grad(lambda x: quiet(x, f16 @ ts.loss_scale(2.0**20)))(X)
    np.testing.assert_allclose(larger, np.full(3, 1e-9), rtol=1e-3)


def through_scan(x: Any) -> Any:
    return ts.scan(lambda c, row: (c + op.cast(quiet(row, SCALED), f32), None), 0.0, x[None])[0]


def through_cond(x: Any) -> Any:
    return ts.cond(op.sum(x) > 0, lambda v: quiet(v, SCALED), lambda v: quiet(v, SCALED), x)


def through_custom(x: Any) -> Any:
    @ts.custom_vjp
    def narrow(v: Any) -> Any:
        return op.cast(v, SCALED) * op.cast(0.1, SCALED)

    def forward(v: Any) -> Any:
        return narrow(v), ()

    def backward(kept: Any, ct: Any) -> Any:
        return (op.cast(ct, f32) * 0.1,)

    narrow.defvjp(forward, backward)
    return op.sum(op.cast(narrow(x), f32) * 1e-6)


def in_narrow_loss(x: Any) -> Any:
    return op.sum(op.cast(x, SCALED) * op.cast(1e-6, SCALED))


PROGRAMS = {
    "scan": (through_scan, 1e-9), "cond": (through_cond, 1e-9),
    "checkpoint": (ts.checkpoint(lambda x: quiet(x, SCALED)), 1e-9),
    "custom_vjp": (through_custom, 1e-7), "loss in f16": (in_narrow_loss, 1e-6),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_scales_go_through_every_construct(name: str) -> None:
    f, slope = PROGRAMS[name]
    for g in (ts.grad(f), ts.jit(ts.grad(f))):
        np.testing.assert_allclose(g(X), np.full(3, slope), rtol=0.05)
    rows = ts.vmap(ts.grad(f))(op.stack([X, 2 * X]))
    np.testing.assert_allclose(rows, np.full((2, 3), slope), rtol=0.05)
    if name != "custom_vjp":
        np.testing.assert_allclose(ts.jvp(f, (X,), (op.ones_like(X),))[1], 3 * slope, rtol=0.05)


def test_vjp_and_parameters_of_the_dtype_itself() -> None:
    """What comes out is the gradient: what is carried is not seen."""
    w = op.cast(X, SCALED)
    y, back = ts.vjp(lambda w: w * w, w)
    (got,) = back(op.ones_like(y))
    assert got.dtype is SCALED
    np.testing.assert_allclose(np.asarray(got, np.float32), 2 * X.numpy())
    second = ts.grad(lambda w: op.sum(ts.grad(lambda w: op.sum(w * w * w))(w)))(w)
    np.testing.assert_allclose(np.asarray(second, np.float32), 6 * X.numpy(), rtol=1e-2)


def test_complex_casts_keep_the_imaginary_part() -> None:
    z = ts.tensor(np.array([1 + 2j], np.complex64))
    (ct,) = ts.vjp(lambda z: op.cast(z, "c128"), z)[1](ts.tensor(np.array([3 + 4j])))
    assert ct.tolist() == [3 + 4j]


# The scale that adapts ---------------------------------------------------------------------------

A = RNG.normal(size=(16, 4)).astype(np.float32)
TARGET = (A @ np.array([1.0, -2.0, 0.5, 3.0])).astype(np.float32)


def fit(w: Any, dtype: Any = f16) -> Any:
    """Least squares through a narrow dtype; w is f32."""
    y = op.cast(A, dtype) @ op.cast(w, dtype)
    return op.mean(op.square(op.cast(y, f32) - TARGET))


def train(opt: Any, steps: int, dtype: Any = f16) -> tuple[Any, Any, list[float]]:
    w = op.zeros((4,))
    state, losses = opt.init(w), []

    @ts.jit
    def step(w: Any, state: Any) -> Any:
        loss, grads = opt.value_and_grad(lambda w: fit(w, dtype))(state, w)
        return loss, *opt.update(grads, state, w)

    for _ in range(steps):
        loss, w, state = step(w, state)
        losses.append(float(loss))
    return w, state, losses


def test_overflow_skips_steps_and_shrinks_the_scale() -> None:
    opt = ts.optim.loss_scaled(ts.optim.adam(0.1), start=2.0**22, every=1000)
    w, state = op.zeros((4,)), opt.init(op.zeros((4,)))
    loss, grads = opt.value_and_grad(fit)(state, w)
    assert np.isfinite(float(loss))
    assert not np.isfinite(grads.numpy()).all()
    new, after = opt.update(grads, state, w)
    np.testing.assert_array_equal(new, w)
    assert float(after["scale"]) == 2.0**21
    assert int(after["skipped"]) == 1
    assert int(after["inner"]["step"]) == 0
    np.testing.assert_array_equal(after["inner"]["m"], np.zeros(4))

    w, state, losses = train(opt, 200)
    assert 1 <= int(state["skipped"]) < 20
    assert int(state["inner"]["step"]) == 200 - int(state["skipped"])
    assert losses[-1] < 1e-2 * losses[0]
    np.testing.assert_allclose(w, [1.0, -2.0, 0.5, 3.0], atol=0.05)


def test_small_gradients_are_scaled_from_the_first_step_on() -> None:
    opt, p = ts.optim.loss_scaled(ts.optim.adam(0.1)), op.ones((4,))
    state = opt.init(p)
    assert float(state["scale"]) == 2.0**16
    small = op.full((4,), 0.01, f16)
    tiny = lambda p: op.sum(op.cast(op.cast(p, f16) * small, f32)) * 1e-7  # noqa: E731
    assert not np.asarray(ts.grad(tiny)(p)).any()  # f16 cannot hold 1e-9
    _, grads = opt.value_and_grad(tiny)(state, p)
    np.testing.assert_allclose(grads, 2.0**16 * 1e-9, rtol=1e-2)
    assert (np.asarray(opt.update(grads, state, p)[0]) < 1).all()


def test_a_start_that_overflows_costs_a_few_steps() -> None:
    _, state, losses = train(ts.optim.loss_scaled(ts.optim.adam(0.1)), 200)
    assert int(state["skipped"]) < 16
    assert losses[-1] < 1e-2 * losses[0]


def test_the_scale_grows_after_steps_in_a_row() -> None:
    opt = ts.optim.loss_scaled(ts.optim.sgd(0.05), start=2.0, every=5)
    _, state, _ = train(opt, 24)
    assert float(state["scale"]) == 2.0**5
    assert int(state["steps"]) == 4
    assert int(state["skipped"]) == 0


@pytest.mark.parametrize("dtype", [f32, f16, bf16, f16 @ ts.loss_scale(256)], ids=str)
def test_scaled_steps_are_the_steps_without(dtype: Any) -> None:
    """A power of two changes nothing but what would have vanished or overflowed."""
    plain, state = ts.optim.sgd(0.05), {"step": op.full((), 0, "i32")}
    w = op.zeros((4,))
    for _ in range(10):
        w, state = plain.update(ts.grad(lambda w: fit(w, dtype))(w), state, w)
    got, _, _ = train(ts.optim.loss_scaled(plain, start=8.0), 10, dtype)
    np.testing.assert_allclose(got, w, rtol=2e-3, atol=2e-4)


def test_has_aux_and_trees() -> None:
    opt = ts.optim.loss_scaled(ts.optim.sgd(0.1), start=4.0)
    p = {"a": X, "b": [X * 2]}
    f = lambda p: (op.sum(p["a"] * p["b"][0]), {"n": op.sum(p["a"])})  # noqa: E731
    (loss, aux), grads = opt.value_and_grad(f, has_aux=True)(opt.init(p), p)
    assert loss.ndim == aux["n"].ndim == 0
    np.testing.assert_allclose(grads["a"], 4 * 2 * X.numpy())
    new, _ = opt.update(grads, opt.init(p), p)
    np.testing.assert_allclose(new["a"], X.numpy() - 0.1 * 2 * X.numpy(), rtol=1e-6)


def test_a_state_of_another_optimiser_is_refused() -> None:
    opt, other = ts.optim.loss_scaled(ts.optim.sgd(0.1)), ts.optim.sgd(0.1)
    for a, b in ((opt, other), (other, opt)):
        with pytest.raises(OperandError, match=r"update: the state is dict .*, expected what"):
            a.update(X, b.init(X), X)


def test_wrong_numbers() -> None:
    with pytest.raises(OperandError) as e:
        ts.optim.loss_scaled(ts.optim.sgd(0.1), shrink=2.0)
    assert e.value.message == (
        "loss_scaled: start 65536.0, grow 2.0, shrink 2.0, every 2000; expected start > 0, grow >= 1, "
        "0 < shrink <= 1 and every >= 1"
    )
