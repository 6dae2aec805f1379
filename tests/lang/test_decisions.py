"""Derivatives outside of jit of functions that decide on values, as in JAX."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import TraceError


def relu(x):
    return x * 2 if x > 0 else -x


def newton(a):
    """The square root of a, by as many steps as it takes."""
    x = a
    while abs(x * x - a) > 1e-6 * a:
        x = (x + a / x) / 2
    return x


def power(x, n):
    y = x
    for _ in range(int(n) - 1):
        y = y * x
    return y


def scaled(x):
    return op.sum(x) * float(op.max(x))


def picked(x):
    return op.sum(x[x > 0] ** 2)


def remembered(x):
    if ts.checkpoint(lambda v: v * v if v > 1 else v)(x) > 2:
        return x * 3
    return x


@pytest.mark.parametrize("at", [3.0, -3.0])
def test_grad_follows_the_branch_that_the_value_takes(at):
    slope = 2.0 if at > 0 else -1.0
    x = ts.tensor(at)
    assert ts.grad(relu)(x).item() == slope
    value, g = ts.value_and_grad(relu)(at)
    assert (value.item(), g.item()) == (abs(at) * (2 if at > 0 else 1), slope)
    assert [v.item() for v in ts.jvp(relu, (x,), (ts.tensor(1.0),))] == [value.item(), slope]
    y, back = ts.vjp(relu, x)
    assert (y.item(), back(ts.tensor(1.0))[0].item()) == (value.item(), slope)
    y, line = ts.linearize(relu, x)
    assert line(ts.tensor(2.0)).item() == 2 * slope
    assert ts.jacfwd(relu)(x).item() == ts.jacrev(relu)(x).item() == slope
    assert ts.grad(ts.grad(lambda v: relu(v) ** 2))(x).item() == 2 * slope**2
    assert ts.hessian(lambda v: relu(v) ** 2)(x).item() == 2 * slope**2


def test_loops_and_numbers_that_values_decide():
    assert abs(ts.grad(newton)(ts.tensor(4.0, dtype="f64")).item() - 0.25) < 1e-6
    assert ts.grad(power)(ts.tensor(2.0), ts.tensor(3)).item() == 12
    assert ts.grad(power)(ts.tensor(2.0), 3).item() == 12
    assert ts.grad(scaled)(ts.tensor([1.0, 4.0])).tolist() == [4, 4]
    assert ts.grad(picked)(ts.tensor([1.0, -2.0, 3.0])).tolist() == [2, 0, 6]
    assert ts.grad(remembered)(ts.tensor(2.0)).item() == 3
    assert ts.grad(lambda x: x.item() * x)(ts.tensor(2.0)).item() == 2


def test_custom_rules_decide_too():
    @ts.custom_jvp
    def f(x):
        return x * 2 if x > 0 else -x

    @f.defjvp
    def rule(primals, tangents):
        return primals[0] * 2, tangents[0] * 10

    assert ts.grad(f)(ts.tensor(3.0)).item() == 10


def test_rules_decide_on_primals():
    @ts.custom_jvp
    def f(x):
        return x * x

    @f.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return f(x), t * x * (2 if x > 0 else 5)

    @ts.custom_vjp
    def g(x):
        return x * x

    g.defvjp(
        lambda x: (g(x), x if x > 0 else -3 * x), lambda r, ct: (ct * r if r < 5 else ct * r * r,)
    )

    for v in (2.0, -2.0):
        x = ts.tensor(v)
        slope = 2 if v > 0 else 5
        assert ts.grad(f)(x).item() == slope * v
        assert ts.jvp(f, (x,), (ts.tensor(3.0),))[1].item() == 3 * slope * v
        assert ts.linearize(f, x)[1](ts.tensor(3.0)).item() == 3 * slope * v
        assert ts.grad(ts.grad(f))(x).item() == slope
        assert ts.grad(lambda x: f(2 * x) if x > 0 else f(-x))(x).item() == (
            8 * v if v > 0 else 2 * v
        )
        assert ts.grad(g)(x).item() == (2 if v > 0 else 36)
        with pytest.raises(TraceError, match=r"bool: bool\[\] is traced and has no data"):
            ts.jit(ts.grad(f))(x)


def test_values_that_were_decided_on_keep_their_bits():
    def f(x, w):
        h = op.tanh(x @ w)
        if op.sum(h) > 0:
            h = h @ w
        return op.sum(h * h)

    def decided(x, w):
        return op.sum((op.tanh(x @ w) @ w) ** 2)

    rng = np.random.default_rng(0)
    x, w = (ts.tensor(np.abs(rng.normal(size=(8, 8))).astype(np.float32)) for _ in range(2))
    for got, want in zip(ts.grad(f, (0, 1))(x, w), ts.grad(decided, (0, 1))(x, w), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: ts.jit(f), lambda f: ts.jit(ts.grad(f)), lambda f: ts.grad(ts.jit(f)),
        lambda f: lambda x: ts.vmap(f)(op.stack([x, x])),
        lambda f: lambda x: ts.vmap(ts.grad(f))(op.stack([x, x])),
        lambda f: ts.grad(lambda x: ts.scan(lambda c, _: (f(c), None), x, length=2)[0]),
    ],
    ids=["jit", "jit grad", "grad jit", "vmap", "vmap grad", "grad scan"],
)  # fmt: skip
def test_where_a_trace_holds_for_many_values_a_decision_is_an_error(wrap):
    with pytest.raises(TraceError, match=r"bool: bool\[\] is traced and has no data"):
        wrap(relu)(ts.tensor(1.0))


def test_data_still_cannot_leave_a_derivative():
    with pytest.raises(TraceError, match=r"numpy.asarray: f32\[2\] is traced"):
        ts.grad(lambda x: op.sum(np.asarray(x) * x))(ts.tensor([1.0, 2.0]))
