"""Compiled sizes have the values of substitution."""

from __future__ import annotations

import random

import pytest

from tessera.core.dims import Dim, Size, larger, smaller, substitute, symbol
from tessera.core.evaluator import evaluator


def drawn(draw: random.Random, depth: int) -> Size:
    if depth == 0:
        return draw.choice([symbol("B"), symbol("S"), symbol("_i"), draw.randint(-5, 9)])
    a, b = drawn(draw, depth - 1), drawn(draw, depth - 1)
    kind = draw.randrange(7)
    if kind == 3:
        return a // draw.randint(1, 7)
    if kind == 4:
        return a % draw.randint(1, 7)
    return [a + b, a - b, a * b, a, a, larger(a, b), smaller(a, b)][kind]


@pytest.mark.parametrize("seed", range(100))
def test_values(seed: int) -> None:
    draw = random.Random(seed)
    x = drawn(draw, 3)
    for _ in range(5):
        values = {"B": draw.randint(1, 50), "S": draw.randint(1, 50), "_i": draw.randint(0, 50)}
        expected = substitute(x, values)
        assert (evaluator(x)(values) if isinstance(x, Dim) else x) == expected


def test_names_are_no_code() -> None:
    assert evaluator(2 * symbol("max') + (1") + 1)({"max') + (1": 4}) == 9
