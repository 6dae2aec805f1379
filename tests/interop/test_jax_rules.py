"""Every rule of a primitive of JAX gives what JAX gave: calls that tools/record_jax.py recorded."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

import tessera as ts
from tessera.interop.jax.rules import RULES
from tests.support.runners.recorded_calls import difference, load, map_arrays

RUNS_ON = "numpy"
CALLS: dict[str, list[Any]] = defaultdict(list)
for _row in load("jax_rules.json.gz"):
    CALLS[_row["op"]].append(_row)


def test_most_rules_are_recorded() -> None:
    assert set(CALLS) <= set(RULES)
    assert len(CALLS) >= 0.85 * len(RULES)


@pytest.mark.parametrize("name", CALLS)
def test_a_rule_gives_what_jax_gave(name: str) -> None:
    for row in CALLS[name]:
        got = RULES[name](row["params"], *map_arrays(row["args"], ts.asarray))
        if isinstance(row["want"], list) and not isinstance(got, list | tuple):
            got = [got]
        assert not difference(row["want"], got, 2e-5, 2e-6), (row["args"], row["params"])
