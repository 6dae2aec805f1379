"""Host functions in programs, ts.print, and keys that are drawn from twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.errors import OperandError, RuleError

X = ts.tensor([1.0, 3.0, 2.0])


def double(x: Any) -> Any:
    return x * 2


sine = ts.callback(np.sin, lambda x: x.type, vjp=lambda ct, x: (ct * np.cos(x),))


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_a_callback_is_a_function_of_tensors(target):
    g = ts.callback(lambda x, n: (np.sort(x), x[: n.shape[0]].sum()), (Tensor[3, f32], Tensor[f32]))
    n = op.zeros((2,))
    for f in (g, ts.jit(g, target=target)):
        y, total = f(X, n)
        assert (y.tolist(), float(total)) == ([1, 2, 3], 4)


def test_a_callback_runs_each_time_and_in_order():
    seen = []

    def tell(x: Any) -> Any:
        seen.append(float(x))
        return x + 1

    g = ts.callback(tell, lambda x: x.type)

    @ts.jit
    def f(x: Any) -> Any:
        g(x)  # whose result nothing uses
        g(x)
        return ts.fori_loop(0, 3, lambda i, v: g(v), x * 10)

    assert float(f(ts.tensor(1.0))) == 13
    assert seen == [1, 1, 10, 11, 12]
    assert ts.trace(g, Tensor[f32]).text.count('effects = ["io"]') == 1


def test_sizes_that_a_program_does_not_know():
    g = ts.callback(double, lambda x: x.type)

    @ts.jit
    def f(x: Tensor["N", f32]):
        return g(x) + 1

    for n in (2, 5):
        assert f(op.ones((n,))).tolist() == [3] * n
    assert f.compiled == 1


def test_derivatives_of_callbacks():
    grad = ts.jit(ts.grad(lambda x: op.sum(sine(x) ** 2)))(X).numpy()
    np.testing.assert_allclose(grad, np.sin(2 * X.numpy()), rtol=1e-6)
    push = ts.callback(np.sin, lambda x: x.type, jvp=lambda p, t: np.cos(p[0]) * t[0])
    y, dy = ts.jvp(lambda x: push(x) * 2, (X,), (op.ones((3,)),))
    np.testing.assert_allclose(y.numpy(), 2 * np.sin(X.numpy()), rtol=1e-6)
    np.testing.assert_allclose(dy.numpy(), 2 * np.cos(X.numpy()), rtol=1e-6)
    mixed = ts.callback(
        lambda x, i: x[i],
        lambda x, i: op.zeros(i.shape),
        vjp=lambda ct, x, i: (np.bincount(i, ct, 3).astype(np.float32), i),
    )
    got = ts.grad(lambda x: op.sum(mixed(x, ts.tensor([0, 2, 2])) * ts.tensor([1.0, 2.0, 3.0])))(X)
    assert got.tolist() == [1, 0, 5]


def test_a_batch_is_one_call_for_each():
    rows = op.stack([X, -X, X * 2])
    np.testing.assert_array_equal(ts.vmap(sine)(rows).numpy(), np.sin(rows.numpy()))
    both = ts.callback(lambda a, b: a * b, lambda a, b: a.type)
    got = ts.jit(ts.vmap(both, in_axes=(1, None)), target="numpy")(rows, ts.tensor([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(got.numpy(), rows.numpy().T * [1, 2, 3])
    two = ts.callback(lambda a, b: a + b, lambda a, b: a.type)
    made = ts.vmap(two, in_axes=(None, 0))(X[:2], ts.tensor([[1.0, 2.0]] * 5))  # not the first one
    np.testing.assert_array_equal(made.numpy(), np.tile(X.numpy()[:2] + np.array([1, 2]), (5, 1)))


WRONG = {
    "callback: double returned float64[3], expected f32[3]; convert it with x.astype, or state that type":
        lambda: ts.callback(double, Tensor[3, f32])(ts.tensor(np.ones(3))),
    "callback: double returned float32[3], expected f32[2]; convert it with x.astype, or state that type":
        lambda: ts.callback(double, Tensor[2, f32])(X),
    "callback: <lambda> returned 2 arrays, expected 1": lambda: ts.callback(lambda x: (x, x),
    Tensor[3, f32])(X),
    "callback: got int 3, expected a function": lambda: ts.callback(3, Tensor[3, f32]),
    "callback: Tensor['N', f32] has sizes without numbers; give a function of the arguments, as in lambda "
    "x: x.type":
        lambda: ts.callback(double, Tensor["N", f32])(X),
    "callback: a result type is str 'f32', expected Tensor[3, f32] with a dtype, the type of a tensor, or a "
    "function of the arguments":
        lambda: ts.callback(double, "f32")(X),
    "callback: give vjp for reverse mode or jvp for forward mode, not both":
        lambda: ts.callback(double, Tensor[3, f32], double, double),
    "callback: vjp returned 2 arrays, expected one for each of 1 arguments":
        lambda: ts.grad(lambda x: op.sum(ts.callback(np.sin, Tensor[3, f32], vjp=lambda ct,
        x: (ct, ct))(x)))(X),
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_wrong_callbacks(text):
    with pytest.raises(OperandError) as e:
        WRONG[text]()
    assert e.value.message == text


def test_a_callback_without_a_derivative_says_so():
    g = ts.callback(double, lambda x: x.type)
    with pytest.raises(
        RuleError,
        match=r"callback: double is a function of the host, and has no derivative; give one with ts\.callback",  # noqa: E501
    ):
        ts.grad(lambda x: op.sum(g(x)))(X)
    held = ts.grad(lambda x: op.sum(x * g(ts.stop_gradient(x))))(X)
    assert held.tolist() == [2, 6, 4]


def test_printing(capsys):
    @ts.jit
    def f(x: Any) -> Any:
        ts.print("sum", op.sum(x), "of", x, sep="|", end=".\n")
        ts.print("done")
        return x

    f(X)
    f(X * 2)
    ts.print("eager", X)
    assert capsys.readouterr().out == (
        "sum|6.0|of|[1. 3. 2.].\ndone\nsum|12.0|of|[2. 6. 4.].\ndone\neager [1. 3. 2.]\n"
    )


# Keys -------------------------------------------------------------------------------------------

draw = op.random

TWICE = {
    "eager": lambda k: (draw.normal(k, (2,)), draw.normal(k, (3,))),
    "other": lambda k: (draw.uniform(k, (2,)), op.dropout(k, X)),
    "split": lambda k: (ts.split(k), ts.split(k, 3)),
    "picked": lambda k: [draw.normal(ts.split(k)[0], (2,)), draw.normal(ts.split(k)[0], (2,))],
    "gamma": lambda k: (draw.gamma(k, 2.0, (2,)), draw.poisson(k, 2.0, (2,))),
}
ONCE = {
    "parts": lambda k: [draw.normal(p, (2,)) for p in ts.split(k, 3)],
    "folded": lambda k: [draw.normal(ts.fold_in(k, i), (2,)) for i in range(3)],
    "split and drawn": lambda k: (ts.split(k), draw.normal(k, (2,))),
    "wide": lambda k: draw.normal(k, (2,), dtype="f64"),
    "choice": lambda k: draw.choice(k, 5, (2,), replace=False),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_a_key_that_is_used_twice_is_found(name, traced):
    f = TWICE[name]
    run = (lambda k: ts.trace(f, k)) if traced else f
    with (
        ts.checked(),
        pytest.raises(
            OperandError,
            match=r": the key was already used by \w+ at .*test_callbacks\.py:\d+, so that both draw the same numbers; give each a key of its own with ts\.split\(key\)",  # noqa: E501
        ),
    ):
        run(ts.key(3))
    run(ts.key(3))  # it is allowed where nothing is checked


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ONCE)
def test_keys_that_are_used_once(name, traced):
    f = ONCE[name]
    for _ in range(2):  # a block knows its own uses
        with ts.checked():
            ts.trace(f, ts.key(3)) if traced else f(ts.key(3))
