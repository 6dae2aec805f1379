"""Counts of 60 programs (kernels, launches, arithmetic, bytes, memory, code) do not grow unnoticed."""

from __future__ import annotations

import pytest

from tests.golden import counts
from tests.golden.programs import PROGRAMS

RUNS_ON = "numpy"
TOGETHER = 10


@pytest.mark.parametrize("first", range(0, len(counts.NAMES), TOGETHER))
def test_no_count_grows(first: int) -> None:
    kept = counts.recorded()
    grown = {
        n: found
        for n in counts.NAMES[first : first + TOGETHER]
        if (found := counts.grown(kept[n], counts.counts_of(PROGRAMS[n])))
    }
    assert not grown, f"{grown}; if this should be so: python tools/counts.py --update"


def test_the_record_has_sixty_programs() -> None:
    kept = counts.recorded()
    assert list(kept) == counts.NAMES
    assert len(kept) == 60
    assert sum(r["flops"] > 0 for r in kept.values()) > 40


def test_growth_is_noticed() -> None:
    name = counts.NAMES[0]
    before = counts.recorded()[name]
    assert counts.grown(before, before) == {}
    for part in ("kernels", "launches", "host", "flops", "bytes", "peak", "code"):
        worse = {**before, part: before[part] * 1.1 + 1}
        assert list(counts.grown(before, worse)) == [part]
        assert counts.grown(worse, before) == {}
