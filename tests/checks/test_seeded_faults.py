"""ts.check on kernels with one seeded fault each, and on kernels that are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, f32, kernel, tile
from tests.support.cases import seeded_faults_of_users  # noqa: F401  fills the table
from tests.support.cases.kernel_examples import CASES
from tests.support.cases.seeded_faults import FAULTS

TOOLS = ("races", "barriers", "bounds", "initial", "results", "run")
# Of a sorted block whose place was dropped nothing says that its first element may be one from past the edge.
MISSED = {"mask_sorted_with_its_edge", "mask_sorted_edge"}
# What the finding of a kind is of.  Errors of the compiler are of any.
NAMES = {
    "race": {"races", "results"},
    "barrier": {"barriers"},
    "bounds": {"bounds", "races", "results"},
    "unwritten": {"results", "races"},
    "twice": {"results"},
    "place": {"results", "races"},
    "mask": {"edges"},
    "scratch": {"initial", "results", "run"},
    "overflow": {"overflow"},
}


def caught(name: str) -> set[str]:
    """The kinds of what is found in a faulty kernel."""
    f = FAULTS[name]
    try:
        report = ts.check(f.kernel, *f.args, tools=TOOLS, **f.kwargs)
    except ts.TesseraError:
        return NAMES[f.kind]
    return {x.tool for x in report.findings}


@pytest.mark.parametrize("name", [n for n in FAULTS if n not in MISSED])
def test_a_seeded_fault_is_found(name: str) -> None:
    assert caught(name) & NAMES[FAULTS[name].kind], name


def test_nearly_all_faults_are_found() -> None:
    assert len(FAULTS) >= 110
    assert len(MISSED) <= 0.05 * len(FAULTS)
    assert not any(caught(n) for n in MISSED)


def alarms(name: str, size: int) -> list[str]:
    case = CASES[name]
    args, kwargs = case.arguments(
        np.random.default_rng(size), size, np.dtype(case.dtypes[size % len(case.dtypes)])
    )
    return [str(f) for f in ts.check(case.kernel, *args, tools=TOOLS, **kwargs).findings]


@pytest.mark.parametrize("name", CASES)
def test_there_is_no_alarm_for_a_kernel_that_is_right(name: str) -> None:
    assert alarms(name, max(CASES[name].least, 5)) == []


@pytest.mark.deep
@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 17])
@pytest.mark.parametrize("name", CASES)
def test_there_is_no_alarm_at_other_sizes(name: str, size: int) -> None:
    if size >= CASES[name].least:
        assert alarms(name, size) == []


def compacted(partial: bool) -> Any:
    @kernel
    def keep(x: KTile["N", f32]):
        i = tile.program(x.shape[0])
        out = tile.empty(x.shape, f32, partial=partial)
        tile.store(out, x[i], at=(i,), mask=x[i] > 0)
        return out

    return keep


def test_holes_that_are_meant_are_said_to_be() -> None:
    x = np.array([1, -1, 2], np.float32)
    report = ts.check(compacted(False), x, tools=TOOLS)
    assert [f.tool for f in report.findings] == ["results"]
    assert "1 of 3 elements of made1 are written by no instance" in report.findings[0].message
    assert "partial=True" in report.findings[0].suggestion
    assert ts.check(compacted(True), x, tools=TOOLS).ok
    np.testing.assert_array_equal(compacted(True)(x).numpy(), [1, 0, 2])


@kernel
def sent(x: KTile["N", f32], ids: KTile["N", ts.i32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    tile.store(out, x[i], at=(ids[i],), distinct=True)
    return out


def test_a_promise_is_held_against_the_arguments() -> None:
    x = np.ones(4, np.float32)
    assert ts.check(sent, x, np.array([2, 0, 3, 1], np.int32), tools=TOOLS).ok
    (found,) = ts.check(sent, x, np.array([2, 0, 2, 1], np.int32), tools=("run",)).of("run")
    assert {f.tool for f in found.findings} == {"races", "results"}


def test_a_run_says_how_far_it_went() -> None:
    (verdict,) = ts.check(
        sent, np.ones(4, np.float32), np.arange(4, dtype=np.int32), tools=("run",)
    )
    assert str(verdict).endswith("nothing found in 4 of 4 instances, on these arguments")
    (verdict,) = ts.check(
        sent.lower(np.ones(4, np.float32), np.arange(4, dtype=np.int32)), tools=("run",)
    )
    assert verdict.note == "no arguments to run on"


def test_nothing_to_prove_is_not_proved() -> None:
    report = ts.check(
        sent, np.ones(4, np.float32), np.arange(4, dtype=np.int32), tools=("initial",)
    )
    assert str(report) == "initial: sent: nothing to prove"
