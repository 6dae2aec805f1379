"""The peaks of a machine: caches in order, roofs by what holds the data, and none below what was reached."""

from __future__ import annotations

import pytest

from tessera.inspect.work import StepWork
from tessera.runtime import tuned
from tessera.tune.caches import delivered
from tessera.tune.roofline import MemoryLevel, Peaks, _sane

CACHES = (MemoryLevel("L1", 64e3, 400e9), MemoryLevel("L2", 2e6, 100e9))
PEAKS = Peaks(1e11, 2e10, 2, 1 << 20, CACHES, 5e10)


def test_a_step_has_the_roof_of_what_holds_its_data() -> None:
    assert [PEAKS.level(n).name for n in (10, 64e3, 65e3, 3e6)] == ["L1", "L1", "L2", "memory"]
    assert PEAKS.roof(StepWork(1, 1, 1e6)) == (1e11, 100e9)
    assert PEAKS.roof(StepWork(1, 1, 1e7, wide=True)) == (5e10, 2e10)


def test_no_step_is_above_a_roof_that_was_raised_to_it() -> None:
    steps = [
        (StepWork(1e9, 1e9, 1e3), 1e-3),
        (StepWork(1, 1, 1e6), 1e-6),
        (StepWork(1, 1, 1e9), 1e-3),
        (StepWork(1e8, 1e8, 10, wide=True), 1e-3),
    ]
    raised = PEAKS.raised(steps)
    for w, seconds in steps:
        assert w.least(*raised.roof(w)) <= seconds * (1 + 1e-12)
    assert raised.flops == 1e12
    assert raised.wide == 1e11
    assert [x.bandwidth for x in raised.levels] == [400e9, 1e12]
    assert PEAKS.raised([]) == PEAKS


def test_a_cache_is_not_slower_than_what_is_behind_it() -> None:
    found = _sane(PEAKS, {"L1": (64, 1e9), "L2": (128, 5e10), "memory": (0, 3e10),
        "f64": (0, 9e11)})  # fmt: skip
    assert found.bandwidth == 3e10
    assert [(x.name, x.bandwidth) for x in found.levels] == [("L1", 5e10), ("L2", 5e10)]
    assert found.wide == found.flops


def test_what_was_measured_is_kept() -> None:
    tuned.keep_roofs(3, {"L1": (64, 2.0), "f64": (0, 1.0)})
    assert tuned.roofs(3) == {"L1": (64, 2.0), "f64": (0, 1.0)}
    assert tuned.roofs(4) == {}


@pytest.mark.parametrize("threads", [1, 2])
def test_every_level_delivers_something(threads: int) -> None:
    found = delivered(threads)
    assert {"L1", "L2", "memory"} <= set(found)
    assert all(rate > 1e6 for _, rate in found.values())
    assert found["L2"][0] > found["L1"][0] > 0
