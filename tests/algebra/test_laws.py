"""Laws of operators: each is proved exactly, false ones are refused, derivations replay."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

import tessera as ts
from tessera.algebra.laws import numbers as exact
from tessera.algebra.laws.check import LawError, prove
from tessera.algebra.laws.derivation import Derivation
from tessera.algebra.laws.law import Law
from tessera.algebra.laws.saturate import SaturationLimits
from tessera.algebra.laws.simplify import search
from tessera.algebra.laws.table import LAWS
from tessera.algebra.operator import FUNCTIONS, Operator
from tests.support.cases.random_operators import random_operator

FALSE = (
    Law("adjoint keeps the order", "(A @ B).H -> A.H @ B.H", "A n n, B n n"),
    Law("products commute", "A @ B -> B @ A", "A n n, B n n"),
    Law("kron commutes", "kron(A, B) -> kron(B, A)", "A m m, B n n"),
    Law("kron crosses", "kron(A, B) @ kron(C, D) -> kron(A @ D, B @ C)", "A n n, B n n, C n n, D n n"),
    Law("inverse keeps the order", "inv(A @ B) -> inv(A) @ inv(B)", "A n n, B n n"),
    Law("inverse of a sum", "inv(A + B) -> inv(A) + inv(B)", "A n n, B n n"),
    Law("diagonals add", "diag(d) @ diag(e) -> diag(d + e)", "d n, e n"),
    Law("no conjugate", "(s * A).H -> s * A.H", "A m n, s"),
    Law("transpose is adjoint", "A.T -> A.H", "A m n"),
    Law("everything is a projector", "A @ A -> A", "A n n"),
    Law("orthogonal columns have orthogonal rows", "A @ A.H -> eye(m)", "A m n orthogonal_columns"),
    Law("exponentials multiply", "expm(A + B) -> expm(A) @ expm(B)", "A n n small, B n n small", "series"),
    Law("power of a product", "power(A @ B, 2) -> power(A, 2) @ power(B, 2)", "A n n, B n n"),
    Law("Kronecker sum turned", "kronsum(A, B) -> kron(eye(m), A) + kron(B, eye(n))", "A m m, B n n"),
    Law("Woodbury with a plus",
        "inv(A + U @ V) -> inv(A) + inv(A) @ U @ inv(eye(k) + V @ inv(A) @ U) @ V @ inv(A)",
        "A n n, U n k, V k n"),
    Law("permutations the other way", "permutation(p) @ permutation(q) -> permutation(follow(q, p))",
        "p 3 table, q 3 table"),
)  # fmt: skip


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_every_law_holds_exactly(law):
    assert prove(law, trials=3) >= 2


@pytest.mark.parametrize("law", FALSE, ids=lambda law: law.name)
def test_a_false_law_is_refused(law):
    with pytest.raises(LawError, match="does not hold"):
        prove(law, trials=6)


def test_names_are_unique_and_letters_are_given():
    assert len({law.name for law in LAWS}) == len(LAWS)
    for law in LAWS:
        letters = {g.name for g in law.given}
        for side in law.sides:
            used = {w for w in "ABCDUV" if w in _letters(side)}
            assert used <= letters, law.name


def _letters(side):
    return {side.name} if not hasattr(side, "parts") else set().union(*map(_letters, side.parts))


# Derivations ------------------------------------------------------------------------------------


def dense_of(a: Operator):
    return np.asarray(a.todense())


@pytest.mark.parametrize("seed", range(30))
def test_random_expressions_have_derivations_that_replay(seed):
    rng = Random(seed)
    a = random_operator(rng, depth=rng.randint(2, 6), dtype=rng.choice((ts.f64, ts.c128)))
    for columns in (1, 5, None):
        found = search(a, columns)
        d = found.derivation
        d.replay()
        assert d.check(seed) == len(d.steps)
        assert found.terms <= 2 * SaturationLimits().terms
        want, got = dense_of(a), dense_of(found.operator())
        assert got.dtype == want.dtype
        assert np.allclose(got, want, rtol=1e-9, atol=1e-9 * max(1, np.abs(want).max(initial=0)))
        if columns:
            assert d.cost(d.end) <= d.cost(d.start) or _time(d, d.end) <= _time(d, d.start)


def _time(d: Derivation, a):
    c = d.cost(a)
    return c.flops / 3e10 + c.bytes / 2e10 + c.launches * 2e-6


def test_the_same_operator_has_the_same_derivation():
    for seed in range(5):
        texts = {
            str(search(random_operator(Random(seed), 5, ts.f64), 5).derivation) for _ in range(2)
        }
        assert len(texts) == 1


def _chain() -> Operator:
    r = np.random.default_rng(0)
    a, b, c = (FUNCTIONS["dense"](r.standard_normal((n, m))) for n, m in ((8, 3), (3, 8), (8, 2)))
    return a @ b @ c


def test_a_derivation_that_was_changed_is_refused():
    d = search(_chain() + _chain(), None).derivation
    assert len(d.steps) > 2
    for i, s in enumerate(d.steps):
        if isinstance(s.law, Law):
            other = next(law for law in LAWS if law.name == "adjoint of a product")
            bad = (*d.steps[:i], replace(s, law=other), *d.steps[i + 1 :])
            with pytest.raises(LawError):
                replace(d, steps=bad).replay()
    wrong = replace(d.steps[0], after=d.steps[0].before.parts[0])
    with pytest.raises(LawError):
        replace(d, steps=(wrong, *d.steps[1:])).check()


def test_limits_are_kept_and_the_result_is_right():
    a = random_operator(Random(3), 6, ts.f64)
    for terms in (20, 60, 200):
        found = search(a, 5, SaturationLimits(terms=terms))
        assert np.allclose(dense_of(found.operator()), dense_of(a))


# Numbers ----------------------------------------------------------------------------------------


def test_roots_of_unity_have_their_inverse_as_conjugate():
    for n in (2, 3, 4, 5, 6, 7, 8, 12, 16):
        f = exact.with_roots(n)
        w = exact.dft(n, f)
        assert np.all(exact.conjugate(w.T) @ w == f.eye(n) * n)
        assert f.sqrt(n) * f.sqrt(n) == n


def test_logarithm_and_exponential_of_series_are_inverse():
    f = exact.series(exact.modulo())
    rng = Random(0)
    a = np.array([[f.random(rng) for _ in range(3)] for _ in range(3)], object)
    small = exact.times_t(a)
    assert np.all(exact.logarithm(exact.exponential(small, f), f) == small)


def test_floats_are_taken_exactly():
    for f in (exact.RATIONALS, exact.modulo()):
        assert f.of(0.1) + f.of(0.2) != f.of(0.3)
        assert f.of(0.5) + f.of(0.25) == f.of(0.75)
        assert f.of(1 + 2j) * f.of(1 - 2j) == 5
