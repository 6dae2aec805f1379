"""The determinant of Toeplitz matrices by their displacement is that of the dense matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tessera as ts
from tessera import op
from tessera.algebra.constructors import circulant
from tessera.algebra.constructors.displacement import slogdet_toeplitz

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code


def drawn(n: int, dtype: str) -> Any:
    r = np.random.default_rng(n)
    t = r.normal(size=2 * n - 1)
    return (t + 1j * r.normal(size=2 * n - 1) if dtype == "c128" else t).astype(
        {"f32": np.float32, "f64": np.float64, "c128": np.complex128}[dtype]
    )


def matrix(t: Any) -> Any:
    n = (len(t) + 1) // 2
    return scipy.linalg.toeplitz(t[n - 1 :], t[:n][::-1])


@pytest.mark.parametrize("dtype", ["f64", "c128"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 33, 100])
def test_sign_and_logarithm_are_those_of_the_matrix(n: int, dtype: str) -> None:
    t = drawn(n, dtype)
    for x in (t, np.where(np.arange(len(t)) == n - 1, 0, t)):  # a zero diagonal needs exchanges
        if n > 1 or x[0]:
            phase, size = slogdet_toeplitz(ts.tensor(x), n)
            want = np.linalg.slogdet(matrix(x))
            assert abs(complex(phase) - want[0]) < 1e-9
            assert float(size) == pytest.approx(want[1], abs=1e-8)


def test_a_singular_matrix_has_no_logarithm() -> None:
    assert float(slogdet_toeplitz(ts.tensor(np.zeros(7)), 4)[1]) == -np.inf
    assert float(slogdet_toeplitz(ts.tensor(np.ones(7)), 4)[1]) < -30


@pytest.mark.parametrize("n", [1, 6])
def test_the_gradient_sums_the_inverse_along_diagonals(n: int) -> None:
    t = drawn(n, "f64")
    got = ts.grad(lambda t: slogdet_toeplitz(t, n)[1])(ts.tensor(t))
    inverse = np.linalg.inv(matrix(t)).T
    want = [np.trace(inverse, offset=n - 1 - q) for q in range(2 * n - 1)]
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-10)


@pytest.mark.usefixtures("compiled")
def test_large_operators_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circulant, "FACTORISED", 16)
    for dtype in ("f32", "f64"):
        t = drawn(60, dtype)
        a = op.toeplitz(t[59:], t[:60][::-1])
        want = np.linalg.slogdet(matrix(t.astype(np.float64)))
        phase, size = ts.jit(lambda a: op.slogdet(a))(a)
        assert float(phase) == want[0]
        assert float(size) == pytest.approx(want[1], rel=1e-5 if dtype == "f32" else 1e-11)
