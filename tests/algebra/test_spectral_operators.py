"""Spectra of operators: full and partial, what is made of them, their derivatives, and diagnostics."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.cases.operator_cases import close
from tests.support.runners.tolerance import assert_same_bits

RUNS_ON = "numpy"  # where no test says otherwise: the bits are the same
RNG = np.random.default_rng(3)
N = 40
BASIS = np.linalg.qr(RNG.normal(size=(N, N)))[0]
VALUES = np.r_[9.0, 9, 9, 7, -6, -6, np.linspace(-1, 2, N - 6)]
SYMMETRIC = (BASIS * VALUES) @ BASIS.T
TALL = RNG.normal(size=(36, 24)) @ np.diag(0.6 ** np.arange(24))
COMPLEX = RNG.normal(size=(8, 6)) + 1j * RNG.normal(size=(8, 6))
WEIGHT = ts.tensor(RNG.normal(size=(N, N)))


def self_adjoint(x: Any) -> Any:
    return op.dense((x + x.T) / 2, flags=("self_adjoint",))


# The decomposition --------------------------------------------------------------------------------


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("matrix", [TALL, TALL.T, COMPLEX], ids=["tall", "wide", "complex"])
def test_singular_values_make_the_operator_again(matrix: Any) -> None:
    s = op.spectral(matrix)
    assert isinstance(s, ts.SpectralOperator)
    close(s.S, np.linalg.svd(matrix)[1], 1e-12)
    close(op.reconstruct(s).todense(), matrix, 1e-12)
    x = RNG.normal(size=matrix.shape[1])
    close(s @ x, matrix @ x, 1e-12)
    k = 3
    best = op.truncate(s, k)
    error = np.linalg.norm(matrix - np.asarray(best.reconstruct().todense()), 2)
    assert error == pytest.approx(np.linalg.svd(matrix)[1][k], rel=1e-9)
    assert best.rank == k


def test_a_self_adjoint_operator_has_eigenvalues() -> None:
    s = op.spectral(self_adjoint(ts.tensor(SYMMETRIC)))
    assert s.V is s.U
    assert "self_adjoint" in s.flags
    order = np.argsort(-np.abs(VALUES), kind="stable")
    close(np.abs(np.asarray(s.S)), np.abs(VALUES[order]), 1e-12)
    close(s.reconstruct().todense(), SYMMETRIC, 1e-12)
    smooth = s.filter(lambda w: op.exp(-w))
    want = (BASIS * np.exp(-VALUES)) @ BASIS.T
    close(smooth.reconstruct().todense(), want, 1e-11)
    close(
        op.spectral_filter(self_adjoint(SYMMETRIC), op.square).reconstruct().todense(),
        SYMMETRIC @ SYMMETRIC,
        1e-9,
    )


def test_general_eigenvalues_are_complex() -> None:
    a = RNG.normal(size=(7, 7))
    s = op.spectral(a, method="eig")
    close(s.reconstruct().todense(), a, 1e-11)
    close(np.sort_complex(np.asarray(s.S)), np.sort_complex(np.linalg.eigvals(a)), 1e-11)


@pytest.mark.parametrize("rank", [None, 4], ids=["full", "thin"])
def test_the_pseudoinverse_obeys_penrose(rank: int | None) -> None:
    a = TALL if rank is None else TALL[:, :rank] @ RNG.normal(size=(rank, 24))
    p = np.asarray(op.pseudoinverse(op.spectral(a), rtol=1e-12).todense())
    close(a @ p @ a, a, 1e-9)
    close(p @ a @ p, p, 1e-8)
    close((a @ p).T, a @ p, 1e-8)
    close((p @ a).T, p @ a, 1e-8)


# Some of the values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "want"),
    [("magnitude", [9, 9, 9, 7]), ("largest", [9, 9, 9, 7]), ("smallest", [-6, -6, -1])],
)
def test_some_eigenvalues_with_their_multiplicity(which: str, want: list[float]) -> None:
    s = op.spectral(self_adjoint(SYMMETRIC), len(want), which=which, tol=1e-11)
    close(s.S, want, 1e-10)
    u = np.asarray(s.U)
    close(u.T @ u, np.eye(len(want)), 1e-10)
    close(SYMMETRIC @ u, u * np.asarray(s.S), 1e-8)
    assert s.info is not None
    assert bool(s.info.converged)


@pytest.mark.usefixtures("compiled")
def test_some_singular_values_from_products_alone() -> None:
    u, w, vh = np.linalg.svd(TALL)
    s = op.spectral(TALL, 3)
    close(s.S, w[:3], 1e-9)
    close(s.reconstruct().todense(), (u[:, :3] * w[:3]) @ vh[:3], 1e-8)
    jitted = ts.jit(lambda a: op.spectral(a, 3))(ts.tensor(TALL))
    assert_same_bits(jitted.S, s.S)


def test_a_large_operator_is_never_made_dense() -> None:
    n = 50_000
    d = ts.tensor(np.r_[50.0, 40.0, np.linspace(0, 1, n - 2)])
    s = op.spectral(op.diag(d), 2, tol=1e-8)
    close(s.S, [50, 40], 1e-8)


# Derivatives --------------------------------------------------------------------------------------


def by_spectral(k: int, which: str) -> Callable[[Any], Any]:
    def f(a: Any) -> Any:
        s = op.spectral(self_adjoint(a), k, which=which, tol=1e-12)
        return op.sum(WEIGHT * (s.U @ s.U.T)) + op.sum(op.sin(s.S))

    return f


def by_eigh(k: int, which: str) -> Callable[[Any], Any]:
    def f(a: Any) -> Any:
        w, v = op.eigh((a + a.T) / 2)
        w, v = (w[:k], v[:, :k]) if which == "smallest" else (w[N - k :], v[:, N - k :])
        return op.sum(WEIGHT * (v @ v.T)) + op.sum(op.sin(w))

    return f


@pytest.mark.parametrize(("k", "which"), [(4, "largest"), (3, "largest"), (2, "smallest")])
def test_partial_spectra_have_the_derivatives_of_eigh(k: int, which: str) -> None:
    """Values repeat: 9 three times, -6 twice."""
    a, t = ts.tensor(SYMMETRIC), ts.tensor(RNG.normal(size=(N, N)))
    mine, want = by_spectral(k, which), by_eigh(k, which)
    close(ts.grad(mine)(a), ts.grad(want)(a), 1e-8)
    close(ts.jvp(mine, (a,), (t,))[1], ts.jvp(want, (a,), (t,))[1], 1e-8)


@pytest.mark.parametrize("k", [None, 3], ids=["full", "partial"])
def test_low_rank_approximations_have_the_derivatives_of_svd(k: int | None) -> None:
    a = ts.tensor(TALL)
    weight = ts.tensor(RNG.normal(size=TALL.shape))

    def mine(a: Any) -> Any:
        return op.sum(
            op.sin(op.spectral(a, k, tol=1e-12).truncate(3).reconstruct().todense()) * weight
        )

    def want(a: Any) -> Any:
        u, s, vh = op.svd(a, full_matrices=False)
        return op.sum(op.sin((u[:, :3] * s[:3]) @ vh[:3]) * weight)

    close(ts.grad(mine)(a), ts.grad(want)(a), 1e-8)


@pytest.mark.parametrize("how", ["filter", "pseudoinverse", "function"])
def test_functions_of_full_spectra_are_safe_at_repeated_values(how: str) -> None:
    a = ts.tensor(SYMMETRIC + 3 * np.eye(N))

    def mine(a: Any) -> Any:
        s = op.spectral(self_adjoint(a))
        made = {
            "filter": lambda: s.filter(lambda w: op.exp(-w)).reconstruct(),
            "pseudoinverse": lambda: op.pseudoinverse(s),
            "function": lambda: op.function(self_adjoint(a), lambda w: op.exp(-w)),
        }[how]()
        return op.sum(op.sin(made.todense()) * WEIGHT)

    def want(a: Any) -> Any:
        held = (a + a.T) / 2
        y = op.inv(held) if how == "pseudoinverse" else op.expm(-held)
        return op.sum(op.sin(y) * WEIGHT)

    close(mine(a), want(a), 1e-9)
    close(ts.grad(mine)(a), ts.grad(want)(a), 1e-7)


def test_filters_of_singular_values_are_safe_at_repeated_ones() -> None:
    u, v = BASIS[:, :5], np.linalg.qr(RNG.normal(size=(8, 5)))[0]
    a = ts.tensor((u * [2.0, 2, 2, 1, 1]) @ v.T)
    weight = ts.tensor(RNG.normal(size=(N, 8)))

    def f(a):
        return op.sum(op.spectral(a).filter(op.square).reconstruct().todense() * weight)

    def g(a):
        return op.sum(op.singular_map(a, op.square) * weight)

    close(ts.grad(f)(a), ts.grad(g)(a), 1e-9)


def test_what_depends_on_a_basis_is_an_error() -> None:
    with pytest.raises(ts.TesseraError, match="values 1 to 3 are equal, and the result depends"):
        ts.grad(lambda a: op.sum(op.spectral(self_adjoint(a), 4).U[0]))(ts.tensor(SYMMETRIC))


def test_a_spectral_operator_is_a_tree() -> None:
    s = op.spectral(TALL)
    leaves, structure = ts.tree.flatten(s)
    assert [x.shape for x in leaves] == [(36, 24), (24,), (24, 24)]
    again = ts.tree.unflatten(structure, leaves)
    close(again @ np.ones(24), TALL @ np.ones(24), 1e-12)
    g = ts.grad(lambda s: op.sum(op.square(s @ np.ones(24))))(s)
    assert isinstance(g, ts.SpectralOperator)
    assert str(s) == "SpectralOperator(f64[36,24] of 24 values {real})"
    spec = ts.SpectralOperator["D", ts.f64]
    assert str(spec) == "SpectralOperator['D', f64]"
    spec.check("s", op.spectral(np.eye(3)))
    with pytest.raises(ts.TesseraError, match="expected SpectralOperator\\['D', f64\\]"):
        spec.check("s", s)


# Failure ------------------------------------------------------------------------------------------

FAILURES = {
    "limit": (lambda: op.spectral(op.diag(np.linspace(0, 1, 300)), 2, which="smallest", limit=6),
        "and has residuals of"),
    "zeros": (lambda: op.spectral(np.outer(np.ones(36), np.ones(24)), 3), "spectral: dense f64[36,24] has "
        "fewer than 3 singular values that are not zero; ask for a smaller k"),
    "not finite": (lambda: op.spectral(self_adjoint(np.full((N, N), np.nan)), 2), "spectral: dense "
        "f64[40,40]: met NaN or an infinity; check the operator"),
    "method": (lambda: op.spectral(TALL, method="qr"), "spectral: method is 'qr', expected 'eigh', 'svd' "
        "or 'eig'"),
    "which": (lambda: op.spectral(TALL, 2, which="best"), "spectral: which is 'best', expected 'magnitude', "
        "'largest' or 'smallest'"),
    "square": (lambda: op.spectral(TALL, method="eigh"), "spectral: dense f64[36,24] is not square and has "
        "no eigenvalues; use 'svd'"),
    "k": (lambda: op.spectral(TALL, 0), "spectral: k is 0, expected a positive integer"),
    "smallest": (lambda: op.spectral(TALL, 2, which="smallest"), "spectral: some of the smallest singular "
        "values need k=None"),
    "reconstruct": (lambda: op.reconstruct(3), "reconstruct: got int, expected a SpectralOperator"),
    "filter": (lambda: op.spectral(TALL).filter(op.sum), "filter: f gives f64[] for f64[24], expected its "
        "shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_failures_say_what_to_do(name: str) -> None:
    call, text = FAILURES[name]
    with pytest.raises(ts.TesseraError) as e:
        call()
    assert text in e.value.message


# Examples -----------------------------------------------------------------------------------------

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "operators").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_check_their_results(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


# Diagnostics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", [TALL, COMPLEX], ids=["real", "complex"])
def test_diagnostics_of_matrices(matrix: Any) -> None:
    a = op.dense(ts.tensor(matrix))
    for kind in (2, "fro", "nuc", 1, float("inf")):
        assert float(op.norm(a, kind)) == pytest.approx(np.linalg.norm(matrix, kind), rel=1e-12)
    assert float(op.cond(a)) == pytest.approx(np.linalg.cond(matrix), rel=1e-9)
    assert float(op.adjoint_test(a)) < 1e-14
    assert not bool(op.is_unitary(a))
    square = matrix[:6, :6]
    radius = float(op.spectral_radius(ts.tensor(square)))
    assert radius == pytest.approx(np.abs(np.linalg.eigvals(square)).max(), rel=1e-12)
    assert bool(op.is_unitary(np.linalg.qr(square)[0]))


def test_diagnostics_of_large_operators_are_products() -> None:
    n = 5000
    d = np.linspace(1, 4, n)
    d[0] = 11.0
    a = op.diag(ts.tensor(d))
    assert float(op.norm(a)) == pytest.approx(11, rel=1e-6)
    assert float(op.cond(a)) == pytest.approx(11 / d.min(), rel=1e-6)
    shift = op.permutation(np.roll(np.arange(n), 1))
    assert bool(op.is_unitary(shift))
    assert float(op.adjoint_test(shift)) < 1e-6
    lower = op.dense(np.diag(d[:2100]) + np.diag(np.full(2099, 0.1), -1))
    assert float(op.spectral_radius(lower, steps=60, tol=1e-3)) == pytest.approx(11, rel=1e-4)
    with pytest.raises(ts.TesseraError, match="raise steps="):
        op.spectral_radius(op.dense(np.roll(np.eye(2100), 1, 0)), steps=5)


def test_a_wrong_adjoint_is_seen() -> None:
    wrong = op.dense(TALL[:24, :24], flags=("self_adjoint",))
    assert float(op.adjoint_test(wrong)) > 1e-3
