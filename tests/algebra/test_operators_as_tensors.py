"""An op that takes a tensor takes an operator for its matrix: eager, jitted and differentiated alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import TreeError

RUNS_ON = "numpy"
X = np.array([[4.0, 1.0], [1.0, 3.0]])


def shifted(x: Any) -> Any:
    """An operator that holds a tensor."""
    return x + op.eye(2, dtype=ts.f64)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "cholesky": (op.cholesky, np.linalg.cholesky),
    "inv": (op.inv, np.linalg.inv),
    "det": (op.det, np.linalg.det),
    "eigvalsh": (op.eigvalsh, np.linalg.eigvalsh),
    "exp": (op.exp, np.exp),
    "sum": (op.sum, np.sum),
    "reshape": (lambda a: op.reshape(a, (4,)), np.ravel),
    "stack": (lambda a: op.stack([a, op.eye(2, dtype=ts.f64)]), lambda a: np.stack([a, np.eye(2)])),
    "where": (lambda a: op.where(True, a, 2.0), lambda a: a),
    "matmul": (lambda a: op.matmul(a, a), lambda a: a @ a),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_eager_jitted_and_differentiated(name: str) -> None:
    f, reference = FUNCTIONS[name]
    x, want = ts.tensor(X), reference(X + np.eye(2))
    for run in (lambda x: f(shifted(x)), ts.jit(lambda x: f(shifted(x)))):
        np.testing.assert_allclose(np.asarray(run(x)), want, rtol=1e-12, atol=1e-12)

    def loss(x: Any) -> Any:
        return op.sum(op.square(f(shifted(x))))

    slope = ts.grad(loss)(x).numpy()
    for i in range(2):
        for j in range(i + 1):
            step = np.zeros((2, 2))
            step[i, j] = step[j, i] = 1e-6  # symmetric, as eigvalsh wants it
            up, down = (np.sum(reference(X + np.eye(2) + s * step) ** 2) for s in (1, -1))
            np.testing.assert_allclose(np.sum(slope * step) / 1e-6, (up - down) / 2e-6, rtol=1e-5,
                atol=1e-5)  # fmt: skip


def test_a_carry_that_changes_its_operator_says_how_to_carry_the_matrix() -> None:
    def f(a: Any, x: Any) -> Any:
        return shifted(x) @ a, x

    with pytest.raises(TreeError, match=r"op.todense\(A\) makes a tensor of an operator"):
        op.scan(f, op.eye(2, dtype=ts.f64), ts.tensor(np.stack([X, X])))
