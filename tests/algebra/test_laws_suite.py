"""The expressions of arXiv 2202.09888: Tessera does the algebra on each, counted from the graph."""

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera.algebra.laws.simplify import search

PATH = Path(__file__).parents[2] / "benchmarks" / "algebra_awareness.py"
SPEC = importlib.util.spec_from_file_location("algebra_awareness", PATH)
suite = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = suite
SPEC.loader.exec_module(suite)

SIZE = 128
# A triangle and a Gram matrix are cut into a few strips, not down to elements; three diagonals need sums
# and additions of zeros beside the products.
ROOM = {
    "triangle times matrix": 1.35,
    "A.T A, which is symmetric": 1.35,
    "tridiagonal times matrix": 3.1,
}


@pytest.mark.parametrize("case", suite.CASES, ids=lambda c: c.name)
def test_flops_are_those_of_someone_who_knows_the_algebra(case):
    xs = suite.arrays(case, SIZE)
    aware = suite.count(suite.program(case, True), xs)
    room = ROOM.get(case.name, 1.13)
    assert aware <= room * case.least(SIZE) + 4 * SIZE


@pytest.mark.parametrize("case", suite.CASES, ids=lambda c: c.name)
def test_the_result_is_that_of_the_formula_and_the_derivation_replays(case):
    xs = suite.arrays(case, 24)
    for a in case.operators(*xs):
        found = search(a, case.columns)
        found.derivation.replay()
        assert found.derivation.check() == len(found.derivation.steps)
        want = np.asarray(suite._written(a))
        got = np.asarray(found.operator().todense())
        assert np.allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_most_cases_are_cheaper_than_they_are_written():
    counts = []
    for case in suite.CASES:
        xs = suite.arrays(case, SIZE)
        counts.append([suite.count(suite.program(case, flag), xs) for flag in (False, True)])
    assert sum(aware < 0.7 * written for written, aware in counts) >= 11
    assert all(aware <= 1.15 * written + 4 * SIZE for written, aware in counts)


def test_the_search_is_bounded():
    """Counted in terms, so that the machine's load does not matter; the time is only a guard."""
    for case in suite.CASES:
        for a in case.operators(*suite.arrays(case, 64)):
            begin = time.thread_time()
            found = search(a, case.columns)
            assert found.terms <= 300
            assert time.thread_time() - begin < 2


def test_single_elements_and_diagonals_of_products_make_no_product():
    a, b = (ts.tensor(np.random.default_rng(i).standard_normal((SIZE, SIZE))) for i in range(2))
    want = np.asarray(a) @ np.asarray(b)
    for f, least, expected in (
        (lambda x, y: (suite.dense(x) @ suite.dense(y))[2, 3], SIZE, want[2, 3]),
        (lambda x, y: (suite.dense(x) @ suite.dense(y)).diagonal(), 2 * SIZE**2, np.diag(want)),
        (lambda x, y: (suite.dense(x) @ suite.dense(y)).trace(), 2 * SIZE**2, np.trace(want)),
    ):
        assert suite.count(f, (a, b)) <= 1.1 * least
        assert np.allclose(f(a, b), expected)


def test_operators_are_simplified_inside_of_traced_functions():
    r = np.random.default_rng(0)
    a, b = (ts.tensor(r.standard_normal((16, 16)).astype(np.float32)) for _ in range(2))
    op = suite.dense

    def loss(m):
        return ts.op.sum(
            (ts.simplify(op(m).T @ op(b) + op(m).T @ op(b), columns=None)).todense() ** 2
        )

    def plain(m):
        return ts.op.sum((2 * (m.mT @ b)) ** 2)

    assert np.allclose(ts.grad(loss)(a), ts.grad(plain)(a), rtol=1e-4)
