"""Error budgets: what simplify returns is within eps of the operator, and cheaper."""

from random import Random

import numpy as np
import pytest

import tessera as ts
from tessera.algebra.apply import cost_of
from tessera.algebra.laws.cost import seconds
from tessera.algebra.laws.simplify import search, within
from tessera.algebra.laws.truncate import choices, norm_bound
from tessera.algebra.operator import FUNCTIONS, Operator
from tessera.core.errors import OperandError
from tests.support.cases.random_operators import random_operator

dense, diag, kronecker = (FUNCTIONS[name] for name in ("dense", "diag", "kronecker"))


def decaying(r, m, n, dtype):
    """A matrix whose singular values fall fast."""
    k = min(m, n)
    u, v = (
        np.linalg.qr(r.standard_normal((s, k)) + 1j * r.standard_normal((s, k)))[0] for s in (m, n)
    )
    if dtype.kind != "c":
        u, v = (np.linalg.qr(r.standard_normal((s, k)))[0] for s in (m, n))
    s = r.uniform(0.5, 2) * 10.0 ** -(np.arange(k) * r.uniform(0.2, 1))
    return dense(ts.tensor((u * s) @ v.conj().T, dtype=dtype))


def expression(seed) -> Operator:
    r = np.random.default_rng(seed)
    dtype = (ts.f32, ts.f64, ts.c128)[seed % 3]
    m, n, k = r.integers(4, 20, 3)
    a, b, c = decaying(r, m, k, dtype), decaying(r, k, n, dtype), decaying(r, m, n, dtype)
    forms = [
        lambda: a, lambda: a @ b, lambda: a @ b + c, lambda: 0.5 * c - a @ b, lambda: c.H @ a,
        lambda: kronecker(a, decaying(r, 3, 2, dtype)) @ kronecker(b, decaying(r, 2, 3, dtype)),
        lambda: FUNCTIONS["direct_sum"](a, b), lambda: diag(ts.tensor(r.standard_normal(m), dtype=dtype)) @ c,
    ]  # fmt: skip
    return forms[seed % len(forms)]()


@pytest.mark.parametrize("group", range(8))
def test_residuals_are_within_the_budget(group):
    """200 cases in all, most of which can be truncated; all choices are, not only the cheapest one."""
    cut = 0
    for seed in range(25 * group, 25 * group + 25):
        a = expression(seed)
        eps = 10.0 ** -(seed % 5)
        exact = search(a, 1).operator()
        columns = np.eye(a.shape[1]).astype(a.dtype.np)  # applied, not only asked for its numbers
        x = np.asarray(a.todense()).astype(np.complex128)
        size = np.linalg.norm(x, 2)
        found = choices(exact, eps, 1)
        for got in found:
            real = np.linalg.norm(x - np.asarray(got.operator @ columns), 2)
            rounding = 1e-5 if a.dtype is ts.f32 else 1e-13  # of the products themselves
            assert real <= eps + rounding * size, seed
            assert got.residual <= eps
            assert real <= got.residual + rounding * size, seed
        cheapest = within("test", exact, eps, 1).operator
        assert seconds(cost_of(cheapest, 1)) <= seconds(cost_of(exact, 1))
        cut += any(got.ranks for got in found)
    assert cut >= 20


def test_norms_are_bounded():
    for seed in range(40):
        a = random_operator(Random(seed), 4, ts.f64)
        x = np.asarray(a.todense())
        assert np.linalg.norm(x, 2) <= norm_bound(a) * (1 + 1e-9) + 1e-300


def test_a_budget_of_zero_changes_nothing_and_traced_numbers_are_left_alone():
    a = expression(4)
    assert np.array_equal(ts.simplify(a, eps=0).todense(), ts.simplify(a).todense())
    matrix = np.outer(np.ones(30), np.ones(30)).astype(np.float32)
    f = ts.jit(lambda m, x: ts.simplify(dense(m), eps=1.0) @ x)
    assert np.allclose(f(ts.tensor(matrix), ts.tensor(np.ones(30, np.float32))), 30)


def test_a_matrix_of_low_rank_is_found():
    r = np.random.default_rng(0)
    m = r.standard_normal((300, 3)) @ r.standard_normal((3, 400))
    a = ts.simplify(dense(ts.tensor(m)), eps=1e-9)
    assert a.kind == "low_rank"
    assert a.rank == 3


def test_budgets_and_columns_that_make_no_sense_are_refused():
    a = expression(0)
    with pytest.raises(
        OperandError, match="simplify: got eps=-1, expected a number that is not neg"
    ):
        ts.simplify(a, eps=-1)
    with pytest.raises(OperandError, match="simplify: got columns=0, expected a number from 1 on"):
        ts.simplify(a, columns=0)


def test_explain_prints_the_derivation(capsys):
    a = dense(ts.tensor(np.ones((300, 300))))
    d = ts.explain(a @ FUNCTIONS["eye"](300, ts.f64), eps=1e-6)
    out = capsys.readouterr().out
    assert "by identity on the right: A @ eye(n) -> A" in out
    assert "truncated to rank 1: the residual is at most" in out
    assert d.replay() is not None
