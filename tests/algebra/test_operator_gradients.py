"""Gradients through every function of operators are those of dense algebra, where eigenvalues repeat too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.cases.operator_cases import close

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code
RNG = np.random.default_rng(11)
N = 4
Q = np.linalg.qr(RNG.normal(size=(N, N)))[0]
A, B = RNG.normal(size=(2, N, N)) / 4 + 2 * np.eye(N)
X, W = RNG.normal(size=(2, N)), RNG.normal(size=(N, N))
V = ts.tensor(X[0])

# Operators of one array each; their eigenvalues lie right of zero, and in most of them some are equal.
Made = tuple[Callable[[Any], Any], np.ndarray[Any, Any]]
OPERATORS: dict[str, Made] = {
    "dense": (op.dense, A),
    "self-adjoint": (lambda t: op.dense((t + t.T) / 2, flags=("self_adjoint",)), A),
    "two pairs": (lambda t: op.dense((t + t.T) / 2, flags=("self_adjoint",)), (Q * [2.0, 2, 3, 3]) @ Q.T),
    "one value": (lambda t: op.dense((t + t.T) / 2, flags=("self_adjoint",)), 2 * np.eye(N)),
    "diagonal": (op.diag, np.array([2.0, 2.0, 3.0, 2.0])),
    "lower": (op.triangular, A),
    "circulant": (op.circulant, np.array([3.0, 0.5, 0.2, 0.5])),
    "toeplitz": (lambda t: op.toeplitz(t), np.array([3.0, 0.5, 0.2, 0.1])),
    "tridiagonal": (lambda t: op.tridiagonal(t[1:], t + 2, t[:3]), np.array([1.0, 0.4, 0.4, 0.4])),
    "kronecker": (lambda t: op.kronecker(t, t.T), A[:2, :2]),
    "kronsum": (lambda t: op.kronsum(t, t), A[:2, :2]),
    "direct_sum": (lambda t: op.direct_sum(t, t), A[:2, :2]),
    "multiple": (lambda t: t * op.eye(N, ts.f64), np.array(2.5)),
    "low rank on a diagonal": (lambda t: op.diag(t[0] * t[0] + 2) + op.low_rank(t[:1].T),
    RNG.normal(size=(2, N))),
    "product": (lambda t: op.dense(t) @ op.dense(t.T), A),
}  # fmt: skip


def held(m: Any) -> Any:
    return (m + m.T) / 2


# What is asked of an operator, and of its matrix by ops of tensors.
Asked = tuple[Callable[[Any], Any], Callable[[Any], Any]]
EYE = ts.tensor(np.eye(N))
FUNCTIONS: dict[str, Asked] = {
    "apply": (lambda a: a @ V, lambda m: m @ V),
    "adjoint": (lambda a: a.H @ V, lambda m: m.T @ V),
    "solve": (lambda a: a.solve(V), lambda m: op.solve(m, V)),
    "inverse": (lambda a: op.inverse(a).todense(), op.inv),
    "pseudoinverse": (lambda a: op.pseudoinverse(a).todense(), op.inv),
    "resolvent": (lambda a: op.resolvent(a, -1.5).todense(), lambda m: op.inv(-1.5 * EYE - m)),
    "power": (lambda a: (a**3).todense(), lambda m: m @ m @ m),
    "negative power": (lambda a: (a**-2).todense(), lambda m: op.inv(m @ m)),
    "expm": (lambda a: op.expm(a / 4).todense(), lambda m: op.expm(m / 4)),
    "logm": (lambda a: op.logm(a).todense(), op.logm),
    "sqrtm": (lambda a: op.sqrtm(a).todense(), op.sqrtm),
    "sign": (lambda a: op.sign(a - 2.3 * op.eye(N, ts.f64)).todense(), lambda m: op.signm(m - 2.3 * EYE)),
    "function": (lambda a: op.function(op.sym(a), op.sin).todense(), lambda m: op.funm(held(m), op.sin)),
    "commutator": (lambda a: op.commutator(a, op.dense(W)).todense(), lambda m: m @ W - W @ m),
    "anticommutator": (lambda a: op.anticommutator(a, a.H).todense(), lambda m: m @ m.T + m.T @ m),
    "tensor": (lambda a: op.tensor(a, a)[2:6, 1:5].todense(), lambda m: op.kron(m, m)[2:6, 1:5]),
    "skew": (lambda a: op.skew(a).todense(), lambda m: (m - m.T) / 2),
    "logdet": (op.logdet, lambda m: op.slogdet(m)[1]),
    "trace": (lambda a: op.trace(a @ a), lambda m: op.trace(m @ m)),
    "diagonal": (lambda a: (a @ a).diagonal(), lambda m: op.diagonal(m @ m)),
    "slice": (lambda a: a[1:3, ::2].todense(), lambda m: m[1:3, ::2]),
    "norm": (lambda a: op.norm(a, "fro"), op.matrix_norm),
    "spectral filter": (
        lambda a: op.spectral(op.sym(a)).filter(op.tanh).reconstruct().todense(),
        lambda m: op.funm(held(m), op.tanh),
    ),
    "cg": (lambda a: op.cg(op.sym(a), V, tol=1e-13)[0], lambda m: op.solve(held(m), V)),
    "gmres": (lambda a: op.gmres(a, V, tol=1e-13)[0], lambda m: op.solve(m, V)),
}  # fmt: skip


def weighed(y: Any) -> Any:
    """One number of what a function gives."""
    weight = (
        W[tuple(slice(n) for n in y.shape)]
        if y.ndim == 2
        else X[1][: y.shape[0]]
        if y.ndim
        else 1.0
    )
    return op.sum(op.sin(y) * weight)


@pytest.mark.parametrize("what", FUNCTIONS)
def test_gradients_are_those_of_the_dense_matrix(what: str) -> None:
    by_structure, by_matrix = FUNCTIONS[what]
    moving = 0
    for name, (make, t) in OPERATORS.items():

        def mine(t: Any, make: Any = make) -> Any:
            return weighed(by_structure(make(t)))

        def dense(t: Any, make: Any = make) -> Any:
            return weighed(by_matrix(make(t).todense()))

        x = ts.tensor(t)
        got, want = ts.grad(mine)(x), ts.grad(dense)(x)
        assert got.shape == t.shape, name
        moving += np.max(np.abs(np.asarray(want))) > 1e-6
        close(got, want, 1e-7)
        step = RNG.normal(size=t.shape)
        high, low = (float(mine(ts.tensor(t + h * step))) for h in (1e-5, -1e-5))
        along = float(np.sum(np.asarray(got) * step))
        assert along == pytest.approx((high - low) / 2e-5, rel=1e-5, abs=1e-7), name
    assert moving >= 4  # what does not depend on the numbers shows nothing
