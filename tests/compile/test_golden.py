"""The generated code of a fixed corpus is what the record says: kernels, launches, memory plans, schedules.

A change that means to alter code writes the record anew (tools/golden.py --update), and its diff says what
it altered.
"""

from __future__ import annotations

import pytest

from tests.golden import record

RUNS_ON = "numpy"


@pytest.fixture(scope="module")
def kept() -> dict[str, dict[str, record.Record]]:
    return {where: record.recorded(where) for where, _ in record.cases()}


CASES = list(record.cases())
TOGETHER = 15  # programs in a test


@pytest.mark.parametrize("first", range(0, len(CASES), TOGETHER))
def test_generated_code_is_as_recorded(
    first: int, kept: dict[str, dict[str, record.Record]]
) -> None:
    changed = {
        f"{where}: {name}": parts
        for where, name in CASES[first : first + TOGETHER]
        if (parts := record.differences(kept[where].get(name), record.made(where, name)))
    }
    assert not changed, f"{changed}; if this should be so: python tools/golden.py --update"


def test_the_record_has_the_corpus_and_nothing_else(
    kept: dict[str, dict[str, record.Record]],
) -> None:
    assert {(w, n) for w, rows in kept.items() for n in rows} == set(record.cases())
    for where in ("avx512", "sm_90", "gfx942"):  # the kinds of target: cpu, cuda, hip
        assert len(kept[where]) >= 200, where
