"""Kronecker products and sums with multiples of the identity are solved in the eigenvectors of their
factors.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.algebra.combinators.eigenbasis import spectrum
from tests.support.cases.operator_cases import close

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code
RNG = np.random.default_rng(2)


def positive(n: int, complex_: bool = False) -> Any:
    m = RNG.normal(size=(n, n)) + (1j * RNG.normal(size=(n, n)) if complex_ else 0)
    return m @ m.conj().T / n + 0.1 * np.eye(n)


def held(m: Any) -> Any:
    return op.dense(m, flags=("self_adjoint",))


A, B, C = positive(3), positive(4), positive(2)
H = positive(3, True)
I12, I24 = op.eye(12, ts.f64), op.eye(24, ts.f64)
Q = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
TWICE = (Q * [1.0, 1.0, 2.0, 2.0]) @ Q.T  # eigenvalues that repeat
U = RNG.normal(size=(12, 2))
SUMS: dict[str, Any] = {
    "product": lambda: op.kronecker(held(A), held(B)) + 0.3 * I12,
    "multiples": lambda: 0.3 * I12 + 2 * (1.5 * op.kronecker(held(A), held(B))) + I12,
    "chain": lambda: op.kronecker(held(C), held(A), held(B)) - 0.01 * I24,
    "numbers": lambda: op.kronecker(op.dense(A), op.dense(B)) + 0.3 * I12,
    "sum": lambda: op.kronsum(held(A), held(B)) + 0.3 * I12,
    "tensors": lambda: ts.tensor(2.0) * op.kronecker(held(A), held(B)) + ts.tensor(0.3) * I12,
    "complex": lambda: op.kronecker(held(H), held(B)) + 0.3 * op.eye(12, ts.c128),
    "structured": lambda: op.kronecker(op.toeplitz(np.array([2.0, 0.5, 0.1])), op.diag(B[0] ** 2)) + 0.3
    * I12,
    "and low rank": lambda: op.kronecker(held(A), held(B)) + op.low_rank(U) + 0.3 * I12,
    "repeated": lambda: op.kronecker(held(A), held(TWICE)) + 0.3 * I12,
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_solutions_and_determinants_are_those_of_the_matrix(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = SUMS[name]()
    m, b = np.asarray(a.todense()), RNG.normal(size=(a.shape[0], 2))
    sign, size = np.linalg.slogdet(m)
    monkeypatch.setattr("tessera.algebra.solve.dense_of", lambda a: pytest.fail("a matrix is made"))
    close(a.solve(b), np.linalg.solve(m, b), 1e-10)
    close(a.H.solve(b), np.linalg.solve(m.conj().T, b), 1e-10)
    close(a.inverse() @ b, np.linalg.solve(m, b), 1e-10)
    close(op.logdet(a), size, 1e-12)
    close(op.slogdet(a)[0], sign, 1e-12)
    close(op.trace(a), np.trace(m), 1e-12)
    if name == "numbers":  # while tracing nobody knows that they are self-adjoint
        return
    jitted = ts.jit(lambda a, b: (a.solve(b), op.logdet(a)))(a, ts.tensor(b))
    close(jitted[0], np.linalg.solve(m, b), 1e-10)
    close(jitted[1], size, 1e-12)


@pytest.mark.parametrize("core", [op.kronecker, op.kronsum])
def test_gradients_are_those_of_the_matrix_where_eigenvalues_repeat_too(core: Any) -> None:
    b = ts.tensor(RNG.normal(size=12))

    def made(p: Any, q: Any, s: Any, t: Any) -> Any:
        return s * core(held((p + p.T) / 2), held((q + q.T) / 2)) + t * I12

    def mine(*given: Any) -> Any:
        a = made(*given)
        return op.sum(op.sin(a.solve(b))) + op.logdet(a)

    def dense(*given: Any) -> Any:
        m = made(*given).todense()
        return op.sum(op.sin(op.solve(m, b))) + op.slogdet(m)[1]

    for q in (B, TWICE):
        given = [ts.tensor(np.asarray(x)) for x in (A, q, 1.5, 0.2)]
        got, want = (ts.grad(f, argnums=(0, 1, 2, 3))(*given) for f in (mine, dense))
        for x, y in zip(got, want, strict=True):
            close(x, y, 1e-9)
        ds = [ts.tensor(np.asarray(RNG.normal(size=np.shape(x)))) for x in given]
        close(ts.jvp(mine, given, ds)[1], ts.jvp(dense, given, ds)[1], 1e-9)
        if q is B:
            got, want = (
                ts.hvp(lambda p, q, f=f, rest=given[2:]: f(p, q, *rest), given[:2], ds[:2])
                for f in (mine, dense)
            )
            for x, y in zip(got, want, strict=True):
                close(x, y, 1e-7)


def test_a_singular_sum_is_refused() -> None:
    a = op.kronecker(held(np.diag([1.0, 2.0])), held(np.diag([1.0, 3.0]))) - 3 * op.eye(4, ts.f64)
    with pytest.raises(ts.TesseraError, match="is singular: an eigenvalue is 0; use pseudoinverse"):
        a.solve(np.ones(4))


def test_spectra_of_large_products() -> None:
    a, b = positive(60), positive(50)
    large = 2 * op.kronecker(held(a), held(b)) + 0.3 * op.eye(3000, ts.f64)
    w = np.sort(2 * np.kron(np.linalg.eigvalsh(a), np.linalg.eigvalsh(b)) + 0.3)[::-1]
    found = op.spectral(large, 5)
    close(found.S, w[:5], 1e-12)
    close(large @ found.U, np.asarray(found.U) * w[:5], 1e-11)
    x = RNG.normal(size=3000)
    root = op.sqrtm(large)
    close(root @ (root @ x), large @ x, 1e-10)
    close(op.expm(-1 * large) @ (op.expm(large) @ (0 * x)), 0 * x)


def test_a_gaussian_process_on_a_grid_of_a_hundred_thousand_points() -> None:
    """Logarithm of the marginal likelihood, its gradient and the mean, as of the matrix on a small grid."""

    def process(n: int, m: int, y: Any) -> Any:
        squares = [
            ts.tensor((np.linspace(0, 1, k)[:, None] - np.linspace(0, 1, k)) ** 2) for k in (n, m)
        ]

        def kernel(p: Any) -> Any:
            wide, high, size, noise = (op.exp(p[i]) for i in range(4))
            parts = [
                op.dense(op.exp(-d / (2 * w * w)), flags=("positive",))
                for d, w in zip(squares, (wide, high), strict=True)
            ]
            return size * op.kronecker(*parts) + noise * op.eye(n * m, ts.f64)

        def loss(p: Any) -> Any:
            a = kernel(p)
            return 0.5 * (op.sum(y * a.solve(y)) + op.logdet(a))

        return kernel, loss

    p = ts.tensor(np.log([0.2, 0.3, 1.0, 0.1]))
    y = ts.tensor(RNG.normal(size=80))
    kernel, loss = process(10, 8, y)

    def dense(p: Any) -> Any:
        m = kernel(p).todense()
        return 0.5 * (op.sum(y * op.solve(m, y)) + op.slogdet(m)[1])

    (value, g), (want, wanted) = ts.value_and_grad(loss)(p), ts.value_and_grad(dense)(p)
    close(value, want, 1e-10)
    close(g, wanted, 1e-8)
    kernel, loss = process(320, 320, ts.tensor(RNG.normal(size=102400)))
    start = time.process_time()
    value, g = ts.value_and_grad(loss)(p)
    taken = time.process_time() - start
    assert np.all(np.isfinite(np.asarray(g)))
    assert np.isfinite(float(value))
    assert taken < 10, f"{taken:.1f} s"


def test_only_large_operators_of_known_numbers_have_all_their_eigenvalues_at_once() -> None:
    rng = np.random.default_rng(0)

    def made(m: int, n: int) -> Any:
        a, b = (rng.standard_normal((k, k)) for k in (m, n))
        return op.kronecker(held(a + a.T), held(b + b.T))

    assert spectrum(made(3, 4) + 2 * op.eye(12, ts.f64)) is None, "a small one is factorised whole"
    large = made(40, 60)
    found = spectrum(large + 2 * op.eye(2400, ts.f64))
    parts = [np.linalg.eigvalsh(np.asarray(p.todense())) for p in large.parts]
    want = np.sort(np.multiply.outer(*parts).reshape(-1)) + 2
    np.testing.assert_allclose(np.sort(found.values), want, rtol=1e-9, atol=1e-9)
    seen: list[Any] = []

    @ts.jit
    def f(a: ts.Tensor["N", "N", ts.f64]) -> Any:
        seen.append(spectrum(op.kronecker(held(a), held(a))))
        return a

    f(np.eye(50))
    assert seen == [None], "nor is one that is traced, of an open size"
