"""Systems and determinants of Toeplitz matrices, by recursions and by displacement, are those of the
dense matrix.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tessera as ts
from tessera import op
from tessera.algebra.combinators import linear, shift_invariant
from tessera.algebra.constructors import circulant
from tessera.ops.toeplitz import toeplitz_slogdet, toeplitz_solve

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
            phase, size = toeplitz_slogdet(ts.tensor(x))
            want = np.linalg.slogdet(matrix(x))
            assert abs(complex(phase) - want[0]) < 1e-9
            assert float(size) == pytest.approx(want[1], abs=1e-8)


def test_a_singular_matrix_has_no_logarithm() -> None:
    assert float(toeplitz_slogdet(ts.tensor(np.zeros(7)))[1]) == -np.inf
    assert float(toeplitz_slogdet(ts.tensor(np.ones(7)))[1]) < -30


@pytest.mark.parametrize("n", [1, 6])
def test_the_gradient_sums_the_inverse_along_diagonals(n: int) -> None:
    t = drawn(n, "f64")
    got = ts.grad(lambda t: toeplitz_slogdet(t)[1])(ts.tensor(t))
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


def symmetric(n: int) -> Any:
    c = np.exp(-np.arange(n) / 5.0)
    c[0] += 0.1
    return c


@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_positive_definite_matrices_go_by_prediction(n: int) -> None:
    c = symmetric(n)
    for sign in (1, -1):  # a negative one goes by elimination
        t = sign * np.concatenate([c[:0:-1], c])
        phase, size = toeplitz_slogdet(ts.tensor(t))
        want = np.linalg.slogdet(matrix(t))
        assert float(phase) == want[0]
        assert float(size) == pytest.approx(want[1], abs=1e-10)


@pytest.mark.parametrize("dtype", ["f64", "c128"])
@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_solutions_are_those_of_the_matrix(n: int, dtype: str) -> None:
    t = drawn(n, dtype)
    for x in (t, np.where(np.arange(len(t)) == n - 1, 0, t)):  # a leading minor that vanishes
        if n > 1 or x[0]:
            b = np.arange(2.0 * n).reshape(n, 2).astype(x.dtype)
            got = np.asarray(toeplitz_solve(ts.tensor(x), ts.tensor(b)))
            np.testing.assert_allclose(got, np.linalg.solve(matrix(x), b), rtol=1e-8, atol=1e-8)


def test_singular_systems_are_refused() -> None:
    with pytest.raises(
        ts.TesseraError, match=r"toeplitz_solve: f64\[5\] holds the diagonals of a singular"
    ):
        toeplitz_solve(ts.tensor(np.zeros(5)), ts.tensor(np.ones((3, 1))))


def test_derivatives_are_those_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circulant, "FACTORISED", 4)
    n = 9
    b = ts.tensor(np.cos(np.arange(n)))

    def mine(c: Any, r: Any) -> Any:
        a = op.toeplitz(c, r)
        return op.sum(op.sin(a.solve(b))) + op.logdet(a)

    def dense(c: Any, r: Any) -> Any:
        m = op.toeplitz(c, r).todense()
        return op.sum(op.sin(op.solve(m, b))) + op.slogdet(m)[1]

    c, r = ts.tensor(symmetric(n)), ts.tensor(symmetric(n) * 0.9)
    for run in (lambda f: f, ts.jit):
        got, want = (run(ts.grad(f, argnums=(0, 1)))(c, r) for f in (mine, dense))
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-9, atol=1e-9)
    got, want = (ts.hvp(f, (c, r), (r, c)) for f in (mine, dense))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-7, atol=1e-7)
    several = ts.tensor(np.stack([symmetric(n), 2 * symmetric(n)]))
    got, want = (
        ts.grad(lambda s, f=f: op.sum(ts.vmap(lambda c: f(c, r))(s)))(several)
        for f in (mine, dense)
    )
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-9, atol=1e-9)


def test_four_thousand_points_take_seconds() -> None:
    """Solution, determinant and the gradient of both; the matrix takes a minute."""
    c = np.exp(-np.arange(4000) / 50.0)
    c[0] += 0.1
    b = np.cos(np.arange(4000.0))

    def loss(c: Any) -> Any:
        a = op.toeplitz(c)
        return op.sum(b * a.solve(b)) + op.logdet(a)

    start = time.process_time()
    value, g = ts.value_and_grad(loss)(ts.tensor(c))
    taken = time.process_time() - start
    x = scipy.linalg.solve_toeplitz(c, b)
    assert float(value) == pytest.approx(b @ x - 6797.51857188, rel=1e-9)
    step = np.exp(-np.arange(4000) / 70.0)
    high, low = (float(loss(ts.tensor(c + k * 1e-5 * step))) for k in (1, -1))
    assert float(np.asarray(g) @ step) == pytest.approx((high - low) / 2e-5, rel=1e-5)
    assert taken < 15, f"{taken:.1f} s"


def _random_sum(rng: np.random.Generator, n: int) -> tuple[Any, str]:
    """Multiples of circulants, Toeplitz matrices and the identity, added up; what the sum is."""
    kinds = ["circulant", "toeplitz", "symmetric", "eye"]
    chosen = [str(k) for k in rng.choice(kinds, int(rng.integers(2, 5)))]
    if set(chosen) == {"eye"}:
        chosen[0] = str(rng.choice(kinds[:3]))
    terms = []
    for kind in chosen:
        c, r = (ts.tensor(rng.normal(size=n)) for _ in range(2))
        made = {
            "circulant": lambda c=c: op.circulant(c), "toeplitz": lambda c=c, r=r: op.toeplitz(c, r),
            "symmetric": lambda c=c: op.toeplitz(c), "eye": lambda: op.eye(n, dtype=ts.f64),
        }[kind]()  # fmt: skip
        factor = float(rng.normal()) + 2.0
        terms.append([made, factor * made, -made, ts.tensor(factor) * made][int(rng.integers(4))])
    wanted = "toeplitz" if {"toeplitz", "symmetric"} & set(chosen) else "circulant"
    return op.plus(*terms), wanted


@pytest.mark.parametrize("seed", range(25))
def test_sums_with_multiples_of_the_identity_stay_structured(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    a, wanted = _random_sum(rng, n)
    dense = np.asarray(a.todense())
    one = shift_invariant.joined(a)
    assert one is not None
    assert (one.kind, one.dtype, one.shape) == (wanted, a.dtype, a.shape)
    np.testing.assert_allclose(np.asarray(one.todense()), dense, atol=1e-13)
    assert ("symmetric" in one.flags) <= np.array_equal(dense, dense.T)
    monkeypatch.setattr(circulant, "FACTORISED", 0)  # small ones by the recursions too
    monkeypatch.setattr(linear, "dense_of", _refused)
    b = rng.normal(size=n)
    want = np.linalg.slogdet(dense)
    np.testing.assert_allclose(np.asarray(op.solve(a, b)), np.linalg.solve(dense, b), rtol=1e-7)
    sign, size = op.slogdet(a)
    np.testing.assert_allclose([float(sign), float(size)], want, rtol=1e-8)


def _refused(a: Any) -> Any:
    raise AssertionError(f"the matrix of {a} was made")


def test_gradients_of_a_shifted_toeplitz_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marginal likelihood of a stationary process with noise: K + s I."""
    monkeypatch.setattr(circulant, "FACTORISED", 0)
    n, y = 7, np.random.default_rng(0).normal(size=7)

    def likelihood(length: Any, noise: Any, structured: bool) -> Any:
        c = op.exp(-((ts.tensor(np.arange(n) * 1.0) / length) ** 2))
        k = op.toeplitz(c) + noise * op.eye(n, dtype=ts.f64)
        if not structured:
            k = op.dense(k.todense())
        return (op.solve(k, y) * y).sum() + op.logdet(k)

    at = ts.tensor(1.3, dtype=ts.f64), ts.tensor(0.4, dtype=ts.f64)
    got, want = (
        ts.grad(lambda a, b, s=s: likelihood(a, b, s), argnums=(0, 1))(*at) for s in (True, False)
    )
    np.testing.assert_allclose([float(g) for g in got], [float(g) for g in want], rtol=1e-9)


def test_sums_with_other_terms_are_not_joined() -> None:
    c = op.circulant(np.arange(1.0, 5.0))
    for other in (op.diag(np.arange(4.0)), op.dense(np.eye(4)), c @ c):
        assert shift_invariant.joined(c + other) is None
    assert shift_invariant.joined(op.eye(4) + 2 * op.eye(4)) is None
    wide = op.toeplitz(np.ones(2), np.ones(3))
    assert shift_invariant.joined(wide + wide) is None
