"""The cliff detector's cases: many, each with a bound, and on the device from end to end."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tessera.core.flags import flags

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Found by the sweep, open: they run on the host.
HOSTED = ("logcumsumexp",)


@pytest.fixture(scope="module")
def sweep() -> Iterator[Any]:
    """The script as a module, with its folder of cases beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("gpu_sweep")
    for name in [n for n in sys.modules if n == "gpu_sweep" or n.split(".")[0] == "sweep"]:
        del sys.modules[name]


def test_there_are_400_cases_of_every_family_each_with_a_bound(sweep: Any) -> None:
    cases = sweep.all_cases()
    assert len(cases) >= 400
    assert len({c.family for c in cases}) >= 20
    assert all(c.bound >= 1.5e-6 for c in cases)
    (copy,) = [c for c in cases if str(c) == "unary: relu 16777216 f32"]
    assert copy.bytes == 2 * 4 * (1 << 24)
    (gemm,) = [c for c in cases if str(c) == "gemm: 4096x4096x4096 bf16"]
    assert (gemm.flops, gemm.bytes) == (2 * 4096.0**3, 3 * 2 * 4096.0**2)
    assert gemm.bound == gemm.flops / 7.9e14


def test_a_sample_of_the_cases_has_no_step_on_the_host(sweep: Any) -> None:
    for c in sweep.all_cases()[::40]:
        if not c.known_host and not any(n in str(c) for n in HOSTED):
            assert sweep.hosted(c) == {}, c


@pytest.mark.deep
def test_no_case_has_a_step_on_the_host_but_those_that_docs_list(sweep: Any) -> None:
    cases = [c for c in sweep.all_cases() if not c.known_host and not c.eager]
    found = [str(c) for c in cases if sweep.hosted(c)]
    assert [c for c in found if not any(n in c for n in HOSTED)] == []


def test_what_candidates_change_is_there(sweep: Any) -> None:
    tried = sweep.with_candidates()[len(sweep.all_cases()) :]
    assert len(tried) > 20
    for module, name, value in {place for c in tried for place in c.patch}:
        assert isinstance(value, type(getattr(importlib.import_module(module), name)))
    usual = flags().cache_dir
    with sweep.patched(tried[0]):
        (module, name, value), *_ = tried[0].patch
        assert getattr(importlib.import_module(module), name) == value
        assert flags().cache_dir != usual  # what other constants gave is not taken
    assert flags().cache_dir == usual


def test_parts_share_the_cases_and_a_case_is_claimed_once(sweep: Any, tmp_path: Path) -> None:
    cases = sweep.all_cases()
    parts = [sweep.part_of(cases, f"{i}/3") for i in (1, 2, 3)]
    assert sorted(str(c) for p in parts for c in p) == sorted(map(str, cases))
    assert [sweep.claim(tmp_path, n) for n in (3, 4, 3)] == [True, True, False]


def test_a_case_that_kills_its_process_is_told_and_the_worst_ratio_comes_first(
    sweep: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(c) for c in sweep.all_cases()[:3]]
    done = [
        {"case": n, "us": {"tessera": 10.0, "torch": t}, "ratio": t / 10, "bound_us": 5.0, "of_bound": 0.5,
        "host": False}
        for n, t in zip(names, (12.0, 4.0, 0.0), strict=True)
    ]  # fmt: skip
    lines = [{"number": 0, "begun": True}, {"number": 0, **done[0]}, {"number": 1, **done[1]},
        {"number": 2, "begun": True}]  # fmt: skip
    out = tmp_path / "out"
    out.write_text("".join(json.dumps(x) + "\n" for x in lines))
    rows = sweep._rows([out, tmp_path / "none"])
    assert rows[2] == {"case": names[2], "wrong": "ended its process, or had no time"}
    record = tmp_path / "record.json"
    sweep.write(record, rows)
    kept = json.loads(record.read_text())
    assert [r["case"] for r in kept["rows"]] == [names[2], names[1], names[0]]
    assert kept["summary"]["under 0.5"] == 1
    assert (kept["summary"]["cases"], kept["summary"]["failed"]) == (2, 1)
    sweep.ranked(rows)
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith(names[1])
    assert "0.40" in shown[1]
