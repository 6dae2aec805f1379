"""Random expressions over every constructor and combinator agree with NumPy and SciPy;
tools/fuzz_operators.py draws more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.cases import random_expressions
from tests.support.cases.random_expressions import ROWS, as_test, expression
from tests.support.runners.expression_laws import LAWS, broken_law, examine

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code
LIGHT = ("matrix", "application", "flags", "queries", "solutions")
HEAVY = tuple(name for name in LAWS if name not in LIGHT)


@pytest.mark.parametrize("start", range(0, 200, 25))
def test_expressions_are_their_matrices(start: int) -> None:
    for seed in range(start, start + 25):
        e = expression(seed)
        found = broken_law(e, LIGHT + (HEAVY if seed % 5 == 0 else ()))
        assert found is None, as_test(e, seed, ": ".join(found))


@pytest.mark.usefixtures("compiled")
def test_machine_code_is_the_matrix() -> None:
    for seed in (1000, 1001):
        e = expression(seed)
        found = broken_law(e, ("jit",))
        assert found is None, as_test(e, seed, ": ".join(found))


def test_every_row_is_drawn() -> None:
    drawn = {e.name for seed in range(700) for e in expression(seed).walk()}
    assert drawn == set(ROWS)


def test_a_wrong_row_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(ROWS["plus"], operator="({A} - {B})")
    monkeypatch.setitem(random_expressions.ROWS, "plus", wrong)
    seed = next(s for s in range(500) if any(e.name == "plus" for e in expression(s).walk()))
    found = examine(seed)
    assert found is not None
    assert found["law"] == "matrix"
    assert found["text"].count("op.") == 2
    names: dict[str, object] = {"np": np, "check": lambda make, want, x: x.append(make)}
    exec(found["test"], names)


def test_seeds_are_reproducible() -> None:
    one, other = (expression(77) for _ in range(2))
    assert one.text() == other.text()
    assert all(np.array_equal(x, y) for x,
        y in zip(one.every_array(), other.every_array(), strict=True))  # fmt: skip
