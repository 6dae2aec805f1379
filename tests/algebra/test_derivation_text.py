"""Derivations are saved and loaded as text, and what is loaded replays and is checked."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.algebra.laws.simplify import search
from tests.algebra.test_laws_structure import CASES
from tests.support.cases.random_operators import random_operator

RUNS_ON = "numpy"


def round_trip(a: Any, columns: float | None = 1) -> ts.Derivation:
    d = search(a, columns).derivation
    text = d.to_text()
    again = ts.Derivation.from_text(text)
    assert str(again) == str(d)
    assert again.to_text() == text
    again.replay()
    assert again.check() == d.check()
    return again


@pytest.mark.parametrize("name", CASES)
def test_structured(name: str) -> None:
    round_trip(CASES[name][0]())


@pytest.mark.parametrize("seed", range(12))
def test_random(seed: int) -> None:
    rng = Random(seed)
    a = random_operator(rng, 4, rng.choice((ts.f64, ts.c128)))
    for columns in (1, 20, None):
        round_trip(a, columns)


def test_files(tmp_path: Path) -> None:
    a = op.dense(ts.tensor(np.eye(3)))
    d = search(a + a).derivation
    d.save(tmp_path / "twice.txt")
    again = ts.Derivation.load(tmp_path / "twice.txt")
    assert [s.name for s in again.steps] == ["twice"]


def test_a_loaded_derivation_that_was_changed_does_not_replay() -> None:
    a = op.dense(ts.tensor(np.ones((2, 2))))
    text = search(a + a).derivation.to_text()
    wrong = ts.Derivation.from_text(text.replace('"fraction": "2"', '"fraction": "3"'))
    with pytest.raises(ts.TesseraError, match="twice does not lead"):
        wrong.replay()
    with pytest.raises(ts.TesseraError, match="twice: "):
        wrong.check()


def test_errors() -> None:
    text = search(op.eye(2) + op.eye(2)).derivation.to_text()
    for broken, message in (
        ("{", "derivation: the text is no JSON"),
        ("[]", "derivation: the text has the format None, expected 'tessera derivation 1'"),
        (text.replace('"eye"', '"aye"'), "derivation: the text has an operator of kind 'aye'"),
        (text.replace('["twice"', '["thrice"'), "derivation: there is no law 'thrice'"),
        (text.replace('"start": ', '"start": 9'), "derivation: the text is damaged: IndexError"),
        (text.replace('"data"', '"date"'), "derivation: the text is damaged: KeyError"),
    ):
        with pytest.raises(ts.TesseraError) as caught:
            ts.Derivation.from_text(broken)
        assert caught.value.message.startswith(message)
    f = op.from_matvec(lambda x: 2 * x, (2, 2), dtype=ts.f64)
    with pytest.raises(ts.TesseraError, match="holds function, which has no text"):
        search(f + f).derivation.to_text()
