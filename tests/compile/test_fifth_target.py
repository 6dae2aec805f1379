"""A fifth target, one folder and one registration, runs the catalogue of ops (tests/counter)."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.cli import main
from tessera.compile.pipeline import PIPELINES
from tessera.compile.target import REGISTRY
from tessera.core.errors import OperandError
from tests import counter
from tests.support.cases.op_cases import Case, all_cases
from tests.support.runners.tolerance import assert_close

RUNS_ON = "numpy"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (REGISTRY, PIPELINES):
        monkeypatch.setitem(table, "counter", None)
    counter.add()


FIRST = list({c.name: c for c in reversed(all_cases())}.values())[::-1]
REST = [c for c in all_cases() if c not in FIRST]
TOGETHER = 40  # cases in a test


def agrees(case: Case) -> None:
    """The target gives what eager code gives."""
    xs = [ts.tensor(x) for x in case.draw()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = case.run(xs)
        got = ts.jit(lambda xs: case.run(xs), target="counter")(xs)
    assert [y.type for y in got] == [y.type for y in wanted], case
    for a, b in zip(got, wanted, strict=True):
        assert_close(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("first", range(0, len(FIRST), TOGETHER))
def test_every_op_runs_on_the_fifth_target(first: int) -> None:
    for case in FIRST[first : first + TOGETHER]:
        agrees(case)


@pytest.mark.deep
@pytest.mark.parametrize("first", range(0, len(REST), TOGETHER))
def test_every_case_of_the_catalogue_runs_on_the_fifth_target(first: int) -> None:
    for case in REST[first : first + TOGETHER]:
        agrees(case)


def test_it_counts_operations() -> None:
    f = ts.jit(lambda x, w: op.exp(x @ w), target="counter")
    x, w = ts.tensor(np.ones((4, 5), np.float32)), ts.tensor(np.ones((5, 3), np.float32))
    f(x, w)
    executable = f.lower(x, w)._executable
    executable.run([x.numpy(), w.numpy()])
    assert executable.operations == 4 * 3 * 5 * 2 + 4 * 3  # products and sums, then functions


def test_it_is_listed_recorded_and_refuses_what_it_does_not_know(capsys, tmp_path) -> None:
    assert main(["passes", "--target", "counter"]) == 0
    assert "drop_idle" in capsys.readouterr().out
    f = ts.jit(lambda x: x * 2, target="counter")
    assert f.lower(ts.tensor([1.0, 2.0])).record[-1].name == "drop_idle"
    file = tmp_path / "twice.py"
    file.write_text(
        "import tessera as ts\nfrom tessera import Tensor, f32\n@ts.jit\ndef twice(x: Tensor[8, f32]):\n    "
        "return x * 2\n"
    )
    assert main(["compile", str(file), "--target", "counter", "--stop-at", "drop_idle"]) == 0
    assert "schedule.kernel" in capsys.readouterr().out
    with pytest.raises(OperandError, match="expected one of numpy, cpu, cuda, hip, counter"):
        ts.jit(lambda x: x, target="counter:3")
