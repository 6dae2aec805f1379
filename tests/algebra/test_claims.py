"""What is vouched for of an operator is looked at under ts.checked(): a false claim is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

RNG = np.random.default_rng(4)
M = RNG.normal(size=(4, 4))
Q = np.linalg.qr(M)[0]


# Of each flag a matrix that has it and one that has it not.
CLAIMS: dict[str, tuple[Any, Any]] = {
    "real": (M + 0j, M + 1j),
    "unitary": (Q, M),
    "orthogonal_columns": (Q[:, :2], M[:, :2]),
    "self_adjoint": (M + M.T, M),
    "skew_adjoint": (M - M.T, M),
    "symmetric": (M + M.T, M),
    "normal": (M - M.T, M),
    "positive": (M @ M.T, M + M.T),
    "invertible": (M, np.ones((4, 4))),
    "projector": (Q[:, :2] @ Q[:, :2].T, M @ M.T),
    "diagonal": (np.diag(M[0]), M),
    "triangular_lower": (np.tril(M), M),
    "triangular_upper": (np.triu(M), M),
    "circulant": (np.stack([np.roll(M[0], k) for k in range(4)], 1), M),
    "toeplitz": (np.stack([np.roll(M[0], k) for k in range(4)], 1)[:3], M),
    "permutation": (np.eye(4)[[2, 0, 3, 1]], Q),
}


@pytest.mark.parametrize("flag", CLAIMS)
def test_false_claims_are_errors_and_true_ones_are_not(flag: str) -> None:
    true, false = CLAIMS[flag]
    with ts.checked():
        assert flag in op.dense(true).assume(flag).flags
        assert flag in op.dense(true, flags=(flag,)).flags
        with pytest.raises(ts.TesseraError, match=rf"assume: dense .* is not {flag}: .*; leave"):
            op.dense(false).assume(flag)
        with pytest.raises(ts.TesseraError, match=f"is not {flag}"):
            op.dense(false, flags=(flag,))
    believed = op.dense(false).assume(flag)  # by default a claim is believed
    with ts.checked(), pytest.raises(ts.TesseraError, match=f"is not {flag}"):
        believed @ np.ones(false.shape[1])
    with ts.checked(), pytest.raises(ts.TesseraError, match=f"is not {flag}"):
        op.block([[believed, op.eye(len(false), believed.dtype)]])


def test_compiled_programs_look_at_claims_when_they_run() -> None:
    with ts.checked():

        @ts.jit
        def solved(m: Any, b: Any) -> Any:
            return op.dense(m).assume("unitary").solve(b)

        b = ts.tensor(np.ones(4))
        np.testing.assert_allclose(solved(ts.tensor(Q), b), Q.T @ np.ones(4), rtol=1e-12)
        with pytest.raises(
            ts.TesseraError, match=r"assume: dense f64\[4,4\] is not unitary: it is off by"
        ):
            solved(ts.tensor(M), b)
        g = ts.grad(lambda m: op.sum(op.dense(m + m.T).assume("self_adjoint") @ b))(ts.tensor(M))
        np.testing.assert_allclose(g, 2 * np.ones((4, 4)))


def test_large_operators_are_looked_at_by_products() -> None:
    v = RNG.normal(size=3000)
    d, c = op.diag(v), op.circulant(np.abs(np.fft.fft(v)).real)
    turned = op.permutation(RNG.permutation(3000), ts.f64)
    with ts.checked():
        (d + d).assume("self_adjoint")
        (turned @ turned).assume("unitary")
        (d @ d).assume("positive")
        for made, flag in (
            (turned, "self_adjoint"), (d, "unitary"), (d @ turned, "normal"), (d, "positive"),
            (c, "projector"),
            (d + turned, "symmetric"), (d, "skew_adjoint"),
        ):  # fmt: skip
            with pytest.raises(ts.TesseraError, match=f"is not {flag}"):
                made.assume(flag)


def test_a_claim_that_the_shape_denies() -> None:
    with ts.checked(), pytest.raises(ts.TesseraError) as caught:
        op.dense(M[:3]).assume("unitary")
    assert caught.value.message == (
        "assume: dense f64[3,4] is not unitary: it is not square; leave the flag out"
    )


def test_derivatives_as_maps_can_be_vouched_for() -> None:
    _, a = ts.linearize(lambda x: (M + M.T) @ x, ts.tensor(M[0]))
    sure = a.assume("self_adjoint")
    np.testing.assert_allclose(sure(ts.tensor(M[0])), (M + M.T) @ M[0])
    np.testing.assert_allclose(sure @ M[0], (M + M.T) @ M[0])


def test_laws_and_functions_of_true_claims_pass() -> None:
    with ts.checked():
        u, p = op.dense(Q, flags=("unitary",)), op.dense(M @ M.T, flags=("positive",))
        x = np.ones(4)
        for a in (
            u.H @ u,
            u @ p @ u.H,
            op.projector(M[:, :2]) @ op.projector(M[:, :2]),
            op.kronecker(u, p),
        ):
            found = ts.simplify(a)
            np.testing.assert_allclose(found.todense(), a.todense(), atol=1e-10)
        turn = op.expm(30 * op.skew(op.dense(M)))
        assert "unitary" in turn.flags
        back = ts.jit(lambda a, x: a.solve(a @ x))(turn, ts.tensor(x))
        np.testing.assert_allclose(back, x, atol=1e-9)
        np.testing.assert_allclose(ts.jit(lambda a, x: a @ x)(p, ts.tensor(x)), M @ M.T @ x)
        g = ts.grad(lambda a: op.sum((a @ x) * M[0]))(p)
        np.testing.assert_allclose(g.todense(), np.outer(M[0], x))
