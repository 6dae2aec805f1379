"""Laws of structured operators: projectors, transforms, Toeplitz and sparse matrices, roots and
pseudoinverses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import tessera as ts
from tessera import op
from tessera.algebra.laws.simplify import search
from tests.support.cases.operator_cases import close

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code
RNG = np.random.default_rng(8)
N = 6


def draw(*shape: int) -> Any:
    return ts.tensor(RNG.normal(size=shape))


U, M, V = draw(N, 2), draw(N, N), draw(N)
A = op.dense(M)
P = op.dense(M @ M.T + 5 * np.eye(N), flags=("positive",))
F, BACK = op.fft(N, dtype=ts.c128), op.ifft(N, dtype=ts.c128)
T = [op.toeplitz(draw(N), draw(N)) for _ in range(2)]
K = [op.conv2d(draw(2, 3), (2, 3), boundary="periodic"),
    op.conv2d(draw(3, 2), (2, 3), boundary="periodic")]  # fmt: skip
R = [op.conv1d(draw(k), N, boundary="periodic") for k in (2, 8)]
S = [op.sparse(scipy.sparse.random(N, N, 0.2, rng=RNG, format="csr")) for _ in range(2)]
B = op.dense(draw(N, 4))
EYE = op.eye(N, ts.f64)

# What is simplified, and the kind that it becomes.
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "one projector twice": (lambda: op.projector(U) @ op.projector(U), "projector"),
    "one projector from equal numbers": (
        lambda: op.projector(U) @ op.projector(np.array(U)), "projector",
    ),
    "one projector three times": (lambda: (op.projector(U) @ op.projector(U)) @ op.projector(U), "projector"),
    "equal matrices": (lambda: op.dense(M) + op.dense(np.array(M)), "scale"),
    "real circulant between transforms": (lambda: F @ op.circulant(V) @ BACK, "diag"),
    "real circulant between transforms back": (lambda: BACK @ op.circulant(V) @ F, "diag"),
    "complex circulant between transforms": (lambda: F @ op.circulant(V + 1j * V) @ BACK, "diag"),
    "circulant between unitary transforms": (
        lambda: op.fft(N, "ortho", ts.c128) @ op.circulant(V) @ op.fft(N, "ortho", ts.c128).H, "diag",
    ),
    "square of a root": (lambda: op.sqrtm(P) @ op.sqrtm(P), "dense"),
    "square of a root inside": (lambda: A @ op.sqrtm(P) @ (op.sqrtm(P) @ A.inverse()), "compose"),
    "exponential and back": (lambda: op.expm(A) @ op.expm(-A), "eye"),
    "exponential of multiples and back": (lambda: op.expm(2 * A) @ op.expm(-2 * A), "eye"),
    "exponentials of multiples": (lambda: op.expm(0.5 * A) @ op.expm(2 * A), "function"),
    "pseudoinverse between": (lambda: B @ op.pseudoinverse(B) @ B, "dense"),
    "pseudoinverse between, to the right": (lambda: B @ (op.pseudoinverse(B) @ B), "dense"),
    "between pseudoinverses": (
        lambda: op.pseudoinverse(B) @ B @ op.pseudoinverse(B), "pseudoinverse",
    ),
    "sum of Toeplitz": (lambda: T[0] + T[1], "toeplitz"),
    "differences of Toeplitz": (lambda: 2 * T[0] - T[1].T, "toeplitz"),
    "Toeplitz and identity": (lambda: T[0] + T[1] + op.eye(N, dtype=ts.f64), "toeplitz"),
    "inverse of a shifted circulant": (
        lambda: (op.circulant(V) + 3 * op.eye(N, dtype=ts.f64)).inverse(), "circulant",
    ),
    "images and identity": (lambda: K[0] + K[1] - 0.5 * op.eye(6, dtype=ts.f64), "convolution"),
    "triangles and identity": (
        lambda: op.triangular(M) + op.triangular(M @ M) + 2 * op.eye(N, dtype=ts.f64), "triangular",
    ),
    "product of circulants": (lambda: op.circulant(V) @ op.circulant(M[0]), "circulant"),
    "product of periodic convolutions": (lambda: R[0] @ R[1], "convolution"),
    "product of images": (lambda: K[0] @ K[1], "convolution"),
    "sum of images": (lambda: K[0] + 2 * K[1], "convolution"),
    "sum of triangles": (lambda: op.triangular(M) + op.triangular(M @ M), "triangular"),
    "sum of sparse": (lambda: S[0] + S[1], "sparse"),
    "diagonal and sparse": (lambda: op.diag(V) @ S[0] @ op.diag(V), "sparse"),
    "transposed sparse": (lambda: (2 * S[0]).T + S[1], "sparse"),
}  # fmt: skip


MANY = {name for name in CASES if "identity" in name} | {"diagonal and sparse"}


@pytest.mark.parametrize("name", CASES)
def test_laws_simplify(name: str) -> None:
    make, kind = CASES[name]
    a = make()
    columns = 1000 if name in MANY else 1  # what is computed once has to pay
    found = ts.simplify(a, columns=columns)
    assert found.kind == kind, str(found)
    close(found.todense(), a.todense(), 1e-8)
    derivation = search(a, columns).derivation
    assert derivation.replay() is not None
    assert derivation.check() >= 0


@pytest.mark.parametrize(
    "make", [lambda a, b: op.triangular(a) @ op.triangular(b),
             lambda a, b: op.triangular(a, lower=False) @ op.triangular(b, lower=False)],
)  # fmt: skip
def test_products_of_triangles_are_triangles(make: Any) -> None:
    a = make(draw(64, 64), draw(64, 64))
    found = ts.simplify(a, columns=2000)
    assert found.kind == "triangular"
    close(found.todense(), a.todense(), 1e-12)


def test_products_of_sparse_matrices() -> None:
    x, y = (scipy.sparse.eye_array(40, k=k, format="csr") * 2.0 for k in (1, 2))
    found = ts.simplify(op.sparse(x) @ op.sparse(y), columns=1000)
    assert found.kind == "sparse"
    close(found.todense(), (x @ y).toarray(), 1e-12)
    full = op.sparse(scipy.sparse.csr_array(RNG.normal(size=(40, 40))))  # 64,000 pairs would meet
    assert ts.simplify(full @ full, columns=1000).kind != "sparse"
    nothing = op.sparse(scipy.sparse.csr_array(np.diag([1.0, 0.0]))) @ op.sparse(
        scipy.sparse.csr_array(np.diag([0.0, 1.0]))
    )
    close(ts.simplify(nothing, columns=1000).todense(), np.zeros((2, 2)))


def test_a_projector_that_is_built_twice_in_a_trace() -> None:
    kinds: list[str] = []

    def f(u: Any, x: Any) -> Any:
        found = ts.simplify(op.projector(u) @ op.projector(u))
        kinds.append(found.kind)
        return found @ x

    close(ts.jit(f)(U, V), op.projector(U) @ V, 1e-12)
    assert kinds[0] == "projector"
    other = op.projector(draw(N, 2))
    assert ts.simplify(op.projector(U) @ other).kind == "compose"


def test_zeros_of_both_signs_are_not_one() -> None:
    d, e = (op.diag(np.array([x, 1.0])) for x in (0.0, -0.0))
    assert ts.simplify(d - e).kind == "diag"


def test_gradients_pass_through_simplified_operators() -> None:
    def mine(c: Any) -> Any:
        a = ts.simplify(op.toeplitz(c) + op.toeplitz(2 * c) @ EYE)
        b = ts.simplify(
            op.conv1d(c[:3], N, boundary="periodic") @ op.conv1d(c[2:], N, boundary="periodic")
        )
        return op.sum(op.sin(a @ V + b @ V))

    def dense(c: Any) -> Any:
        a = op.toeplitz(c).todense() * 1.0 + op.toeplitz(2 * c).todense()
        b = (
            op.conv1d(c[:3], N, boundary="periodic").todense()
            @ op.conv1d(c[2:], N, boundary="periodic").todense()
        )
        return op.sum(op.sin(a @ V + b @ V))

    close(ts.grad(mine)(V), ts.grad(dense)(V), 1e-9)


def test_flags_of_products_under_a_function_are_found_without_adjoints() -> None:
    """The dtype of f(A) asks for the flags of A, whose data are symbolic while laws are tried."""
    for b in (op.conv1d(np.array([0.8]), 4, mode="valid"), op.circulant(V), op.toeplitz(V, V)):
        a = op.function(op.sym(op.expm(b) @ op.expm(-b)), op.sin)
        close(ts.simplify(a).todense(), a.todense(), 1e-9)
