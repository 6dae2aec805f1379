"""Shampoo beside its definition in NumPy and SciPy."""

import numpy as np
import pytest
import scipy.linalg

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError


def walk(shape, steps=4, lr=0.1, momentum=0.9, eps=1e-3):
    """Parameters after some steps, by the paper's formulas."""
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=shape), np.zeros(shape)
    rows = shape[0]
    sides = [n for n in (rows, int(np.prod(shape[1:]))) if n > 1]
    left, right = eps * np.eye(rows), eps * np.eye(int(np.prod(shape[1:])))
    grads = []
    for _ in range(steps):
        g = rng.normal(size=shape)
        grads.append(g)
        m = g.reshape(rows, -1)
        left, right = left + m @ m.T, right + m.T @ m
        power = -1 / (2 * len(sides))
        d = scipy.linalg.fractional_matrix_power(left, power) @ m
        if m.shape[1] > 1:
            d = d @ scipy.linalg.fractional_matrix_power(right, power)
        v = momentum * v + d.reshape(shape)
        x = x - lr * v
    return rng, x, grads


@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (6,), (3, 2, 2)], ids=str)
@pytest.mark.parametrize("jitted", [False, True])
def test_steps_are_those_of_the_paper(shape, jitted):
    _, want, grads = walk(shape)
    opt = ts.optim.shampoo(0.1, momentum=0.9, eps=1e-3)
    params = {"w": ts.tensor(np.random.default_rng(0).normal(size=shape))}
    state = opt.init(params)
    update = ts.jit(opt.update) if jitted else opt.update
    for g in grads:
        params, state = update({"w": ts.tensor(g)}, state, params)
    np.testing.assert_allclose(params["w"].numpy(), want, rtol=1e-6, atol=1e-8)


def test_a_quadratic_with_bad_condition():
    """Along scales of 1 and 1000 it goes down in both, where gradient descent at this rate goes up."""
    scale = ts.tensor(np.array([[1.0, 30.0], [30.0, 1000.0]]))

    def loss(p):
        return op.sum(scale * op.square(p["w"]))

    start = {"w": ts.tensor(np.ones((2, 2)))}
    ends = {}
    for name, opt in (("shampoo", ts.optim.shampoo(0.3)), ("sgd", ts.optim.sgd(0.3))):
        params, state = start, opt.init(start)
        for _ in range(60):
            params, state = opt.update(ts.grad(loss)(params), state, params)
        ends[name] = float(loss(params))
    assert ends["shampoo"] < 1e-2 * float(loss(start)) < ends["sgd"]


def test_long_sides_are_left_alone():
    opt = ts.optim.shampoo(0.1, largest=4)
    state = opt.init({"w": op.zeros((8, 3))})
    assert (state["left"]["w"].shape, state["right"]["w"].shape) == ((0, 0), (3, 3))


def test_wrong_arguments():
    with pytest.raises(OperandError, match=r"shampoo: eps is 0, expected a positive number"):
        ts.optim.shampoo(0.1, eps=0)
    with pytest.raises(
        OperandError, match=r"shampoo: a parameter is c64\[2\], expected real numbers"
    ):
        ts.optim.shampoo(0.1).init({"w": op.zeros((2,), "c64")})
