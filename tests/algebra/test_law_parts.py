"""Parts of the laws: patterns, letters, fields that are saved, bounds of ranks, costs of derivations."""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.algebra.apply import rank_bound
from tessera.algebra.laws.derivation import known
from tessera.algebra.laws.egraph import EGraph
from tessera.algebra.laws.pattern import OperatorTerm, parse
from tessera.algebra.laws.saved import _read, _written
from tessera.algebra.laws.show import Letters
from tessera.algebra.laws.simplify import search
from tessera.core.dims import Dim, symbol
from tessera.core.errors import OperandError
from tests.support.cases.random_operators import random_operator

RUNS_ON = "numpy"


def test_a_sum_of_many_is_one_sum() -> None:
    for text in ("A + B", "A + B + C", "A + B + C + D"):
        found = parse(text)
        assert isinstance(found, OperatorTerm)
        assert (found.form, len(found.parts)) == ("plus", text.count("+") + 1)
    product = parse("A @ B + C @ D")
    assert isinstance(product, OperatorTerm)
    assert [p.form for p in product.parts if isinstance(p, OperatorTerm)] == ["compose", "compose"]


def test_things_have_letters_of_their_own() -> None:
    letters = Letters()
    given = [("a", "A"), ("b", "A"), ("c", "x"), ("d", "A"), ("e", "x")]
    named = {key: letters.of(key, first, f"text {key}") for key, first in given}
    assert named == {"a": "A", "b": "A1", "c": "x", "d": "A2", "e": "x1"}
    assert all(letters.of(key, first, "other") == named[key] for key, first in given)
    assert list(letters.lines()) == [f"{named[key]} is text {key}" for key, _ in given]


@pytest.mark.parametrize(
    "x",
    [None, True, 3, "text", 0.1, float("inf"), 1 - 2j, Fraction(-2, 3), (1, (2.5, "a"), ()), ts.f32,
    ts.c128, symbol("n") * 2 + 1],
    ids=str,
)  # fmt: skip
def test_a_field_that_is_written_is_read_again(x: Any) -> None:
    again = _read(_written(x))
    assert type(again) is type(x) or isinstance(again, Dim)
    assert again == x or str(again) == str(x)


def test_a_field_that_nobody_writes_is_refused() -> None:
    with pytest.raises(OperandError, match="a field 'nothing' that is not known"):
        _read({"nothing": 3})
    with pytest.raises(OperandError, match="which has no text"):
        _written(object())


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_of_a_rank_holds_and_is_at_most_the_smaller_side(seed: int) -> None:
    rng = Random(seed)
    shape = (3, 5) if seed % 2 else (5, 3)
    for a in (
        random_operator(rng, 4, ts.f64),
        op.dense(ts.tensor(np.random.default_rng(seed).standard_normal(shape))),
    ):
        bound = rank_bound(a)
        assert bound <= min(a.shape)
        assert np.linalg.matrix_rank(np.asarray(op.todense(a)), tol=1e-9) <= bound


def test_a_term_keeps_its_parts_and_gains_what_is_known_of_them() -> None:
    a, b = (op.dense(ts.tensor(np.eye(3) * k)) for k in (1, 2))
    whole = known(a @ b, {id(a): frozenset({"symmetric"})})
    assert whole.kind == "compose"
    assert [p.assumed for p in whole.parts] == [{"symmetric"}, frozenset()]
    np.testing.assert_array_equal(np.asarray(op.todense(whole)), np.eye(3) * 2)


def test_a_dense_matrix_that_is_wanted_costs_its_data_alone() -> None:
    x = op.dense(ts.tensor(np.ones((4, 4))))
    wanted, applied = search(x, None).derivation, search(x, 4.0).derivation
    assert str(wanted.cost(x)) != str(applied.cost(x))


def test_what_is_learned_of_parts_is_known_of_what_is_made_of_them() -> None:
    """Flags that a law finds later reach the terms above, as if they had been stated at first."""
    a, b = (op.dense(ts.tensor(np.full((3, 3), x))) for x in (0.5, 2.0))
    forms = {
        "kronecker": op.kronecker,
        "direct_sum": op.direct_sum,
        "product": lambda x, y: x @ y,
        "sum": lambda x, y: x + y,
        "adjoint": lambda x, y: x.H @ y.H,
        "inverse": lambda x, y: op.kronecker(op.inverse(x), y.T),
        "scaled": lambda x, y: op.direct_sum(3.0 * x, y),
    }
    for name, form in forms.items():
        for flag in ("unitary", "symmetric", "positive", "invertible", "real"):
            g = EGraph()
            n = g.add(form(a, b))
            for x in (a, b):
                g.know(g.add(x), x.assume(flag).flags)
            want = form(a.assume(flag), b.assume(flag)).flags
            assert g.flags(n) >= want, (name, flag)
