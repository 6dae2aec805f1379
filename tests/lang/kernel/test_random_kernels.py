"""Random kernels: machine code, the Tile interpreter, step by step, and the model in NumPy agree.

`python tools/fuzz_kernels.py` runs as many as wanted, and Triton's interpreter beside them.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tests.support.cases.random_data_kernels import random_case
from tests.support.cases.random_kernels import Case
from tests.support.runners import kernel_model
from tests.support.runners.kernel_runs import arrays_of, compare, failed, load, shrunk, verdict

ROOT = Path(__file__).parents[3]
COUNT = 84  # of all families together


@pytest.mark.parametrize("part", range(4))
def test_every_way_of_running_a_kernel_agrees(part, tmp_path):
    seeds = range(part, COUNT, 4)
    cases = [random_case(s) for s in seeds]
    said = {
        s: compare(c, *made) for s, c, made in zip(seeds, cases, load(cases, tmp_path), strict=True)
    }
    wrong = {s: x for s, x in said.items() if failed(x)}
    assert not wrong, [(x, random_case(s).test()) for s, x in wrong.items()]
    assert sum(x is None for x in said.values()) > 0.7 * len(cases)


def test_hostile_indices_have_a_defined_result(tmp_path):
    cases = [random_case(s, hostile=True) for s in range(12)]
    for c, made in zip(cases, load(cases, tmp_path), strict=True):
        assert not failed(compare(c, *made)), c.test()


def test_a_kernel_that_checks_nothing_wrong_is_checked_without_an_exception(tmp_path):
    cases = [random_case(s) for s in range(900, 906)]
    for c, (f, _) in zip(cases, load(cases, tmp_path), strict=True):
        try:
            report = ts.check(f, *c.arguments(), tools=("races", "bounds", "results"))
        except ts.TesseraError:
            continue
        assert [x for x in report.findings if x.level == "error"] == []


def faulty() -> Case:
    """A kernel whose model means something else: it stands for a fault of ours."""
    return Case(
        "lines", ('x: KTile["N", f32]',), ("v0 = tile.load(x)", "v1 = v0 + 1", "v2 = tile.scan(v0)"),
        "v1, v2", (4, 8, 8), ((7,),), ("f32",), 3,
    )  # fmt: skip


def test_a_failure_is_found_made_smaller_and_printed_as_a_test(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_model.Model, "scan", lambda self, x, how="add", axis=-1: x)
    assert verdict(faulty(), tmp_path) == "machine code and the model differ"
    small = shrunk(faulty(), tmp_path)
    assert small.body() == ["v0 = tile.load(x)", "v2 = tile.scan(v0)", "return v2"]
    assert "def test_failing():" in small.test()
    compile(small.test(), "test", "exec")


def test_the_model_is_no_other_name_for_the_compiler(tmp_path):
    """It imports nothing of tessera."""
    text = (ROOT / "tests" / "support" / "runners" / "kernel_model.py").read_text()
    assert "import tessera" not in text
    assert "from tessera" not in text
    ((f, plain),) = load([faulty()], tmp_path)
    x = np.arange(7, dtype=np.float32)
    for a, b in zip(arrays_of(f(x)), kernel_model.run(plain, {"m": 4}, [x]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_command_runs_kernels_in_processes_of_their_own(tmp_path):
    record = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "fuzz_kernels.py"), "--seed", "3", "--count", "2",
         "--record", str(record)],
        capture_output=True, text=True, check=False, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads(record.read_text())
    assert (made["count"], made["faults"]) == (2, [])
    assert sum(made["totals"].values()) == 2


def test_the_record_of_kernels_in_which_data_decide_has_no_fault():
    made = json.loads((ROOT / "benchmarks" / "records" / "fuzz-kernels-data.json").read_text())
    assert made["count"] >= 480
    assert made["faults"] == []
    assert made["totals"]["ok"] > 0.9 * made["count"]


def test_the_record_has_no_fault():
    made = json.loads((ROOT / "benchmarks" / "records" / "fuzz-kernels.json").read_text())
    assert made["count"] >= 1200
    assert made["faults"] == []
    assert made["totals"]["ok"] > 0.8 * made["count"]


def test_the_record_of_tritons_interpreter_has_no_fault():
    made = json.loads((ROOT / "benchmarks" / "records" / "fuzz-kernels-triton.json").read_text())
    assert made["triton"]
    assert made["count"] >= 1000
    assert made["faults"] == []
    assert made["totals"]["ok"] > 0.7 * made["count"]
