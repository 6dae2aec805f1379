"""Random chains of views, of what follows products and of shared memory are what NumPy says
(tools/fuzz_views.py).
"""

from __future__ import annotations

import pytest

from tests.support.cases.random_chains import KINDS, chain, failures


@pytest.mark.parametrize("first", range(0, 320, 40))
def test_views_are_read_where_numpy_reads_them(first: int) -> None:
    chains = [chain("views", s) for s in range(first, first + 40)]
    assert failures(chains, "schedule") == []


@pytest.mark.parametrize(("kind", "count"), [("views", 15), ("epilogues", 12), ("sharing", 8)])
def test_machine_code_agrees_too(kind: str, count: int) -> None:
    assert failures([chain(kind, s) for s in range(1000, 1000 + count)]) == []


def test_a_seed_is_a_program() -> None:
    for kind in KINDS:
        assert chain(kind, 3).text == chain(kind, 3).text != chain(kind, 4).text
