"""L-BFGS against SciPy's L-BFGS-B: every iterate, the number of evaluations and the reason to stop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize

import tessera as ts
from tessera import op
from tessera.core.errors import DTypeError, OperandError, ShapeError

RUNS_ON = "numpy"
RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(12, 12))
MATRIX, SIDE = ROOT @ ROOT.T + np.eye(12), RNG.normal(size=12)
ROWS, LABELS = RNG.normal(size=(50, 5)), np.sign(RNG.normal(size=50))

PROBLEMS: dict[str, tuple[Any, Any]] = {
    "quadratic": (lambda x: 0.5 * op.sum(x * (MATRIX @ x)) - op.sum(SIDE * x), np.zeros(12)),
    "rosenbrock": (
        lambda x: op.sum(100 * op.square(x[1:] - op.square(x[:-1])) + op.square(1 - x[:-1])),
        np.array([-1.2, 1, -1.2, 1]),
    ),
    "logistic": (
        lambda w: op.sum(op.softplus(-LABELS * (ROWS @ w))) + 0.5 * op.sum(w * w),
        np.zeros(5),
    ),
    "beale": (
        lambda x: op.sum(op.square(np.array([1.5, 2.25, 2.625]) - x[0]
        * (1 - x[1] ** np.array([1.0, 2, 3])))),
        np.ones(2),
    ),
    "himmelblau": (
        lambda x: op.square(x[0] ** 2 + x[1] - 11) + op.square(x[0] + x[1] ** 2 - 7),
        np.zeros(2),
    ),
    "styblinski": (lambda x: op.sum(x**4 - 16 * x**2 + 5 * x) / 2, np.array([-1.0, -1.5, 0.5])),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_iterates_are_those_of_scipy(name):
    f, x0 = PROBLEMS[name]
    mine: list[Any] = []
    theirs: list[Any] = []
    got = ts.optim.lbfgs(f, ts.tensor(x0), callback=lambda p, v: mine.append(p.numpy()))
    both = ts.jit(ts.value_and_grad(f))

    def values(x: Any) -> Any:
        value, gradient = both(x)
        return value.item(), gradient.numpy()

    want = scipy.optimize.minimize(
        values, x0, jac=True, method="L-BFGS-B", callback=lambda x: theirs.append(x.copy())
    )
    assert len(mine) == len(theirs) == got.steps > 5
    np.testing.assert_allclose(np.array(mine), np.array(theirs), rtol=0, atol=1e-9)
    assert got.evaluations == want.nfev
    assert got.converged
    assert got.reason == ("gtol" if "GRADIENT" in want.message else "ftol")


def test_trees_and_data_are_arguments():
    def loss(p: Any, x: Any, y: Any) -> Any:
        return op.mse(x @ p["w"] + p["b"], y)

    x = RNG.normal(size=(30, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 3
    start = {"w": ts.zeros((3,), "f64"), "b": ts.zeros((), "f64")}
    got = ts.optim.lbfgs(loss, start, ts.tensor(x), ts.tensor(y), history=5)
    np.testing.assert_allclose(got.params["w"], [1.0, -2.0, 0.5], atol=1e-4)
    assert got.params["b"].item() == pytest.approx(3, abs=1e-4)
    assert got.gradient <= 1e-5


def test_few_steps_and_a_start_at_the_goal():
    f, x0 = PROBLEMS["rosenbrock"]
    got = ts.optim.lbfgs(f, ts.tensor(x0), steps=3)
    assert (got.steps, got.converged, got.reason) == (3, False, "steps")
    again = ts.optim.lbfgs(f, ts.ones((4,), "f64"))
    assert (again.steps, again.evaluations, again.reason) == (0, 1, "gtol")


def test_a_function_without_a_floor_ends():
    got = ts.optim.lbfgs(lambda x: op.sum(-op.exp(x)), ts.zeros((2,), "f64"), steps=50)
    assert not got.converged
    assert got.value < -1


def test_what_it_refuses():
    with pytest.raises(DTypeError, match=r"lbfgs: parameters are f16, expected all f32 or all f64"):
        ts.optim.lbfgs(op.sum, ts.zeros((2,), "f16"))
    with pytest.raises(ShapeError, match=r"grad: .*f64\[2\]"):
        ts.optim.lbfgs(lambda x: x, ts.zeros((2,), "f64"))
    with pytest.raises(
        OperandError, match="lbfgs: history 0, steps 1000; expected at least 1 and 0"
    ):
        ts.optim.lbfgs(op.sum, ts.zeros((2,)), history=0)
