"""Random programs over the whole catalogue keep every law; tools/fuzz.py runs many more of them.

What a program breaks is found, made small and written as a test; what is known (tests/fuzz/known.py) is let
be.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile.cpu import bound_program
from tessera.compile.cpu import executable as machine
from tessera.core.flags import override
from tests.fuzz import catalogue, run
from tests.fuzz.draw import Drawer
from tests.fuzz.program import SCOPE, Input, Line, Program
from tests.fuzz.rules import EXCEPTIONS, RULES
from tests.fuzz.rules_science import OTHERS
from tests.fuzz.session import file_of
from tests.support.cases.op_cases import public_functions

ROOT = Path(__file__).parents[2]
BATCH = 20
ON_REFERENCES, ON_MACHINE = 120, 20
AT_ONCE = 2  # programs on the machine, which take seconds to compile
LOTS = range(10_000, 10_000 + ON_MACHINE, AT_ONCE)


@pytest.fixture(autouse=True)
def small_work_is_shared() -> Iterator[None]:
    """Programs are too small to wake a thread; here they do."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(bound_program, "_QUANTUM", 1)
        yield


def unexplained(p: Program, checks: list[str]) -> list[str]:
    found = [run.failure_of(p, c) for c in checks if run.fits(c, p)]
    return [run.as_test(run.smaller(f)) for f in found if f is not None and f.reason is None]


@pytest.mark.parametrize("first", range(0, ON_REFERENCES, BATCH))
def test_programs_keep_the_laws_on_the_references(first: int) -> None:
    with override(target="numpy"):
        for seed in range(first, first + BATCH):
            assert unexplained(catalogue.draw(seed), list(run.CHECKS)) == []


@pytest.mark.parametrize("first", LOTS)
def test_programs_keep_the_laws_on_the_machine(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        p = catalogue.draw(seed)
        assert unexplained(p, run.plan(p)) == []


# The generator


def test_every_function_of_the_catalogue_is_in_programs_or_has_a_reason() -> None:
    names = set(public_functions())
    assert sorted(names - set(catalogue.MADE) - set(EXCEPTIONS)) == []
    assert sorted(set(EXCEPTIONS) - names) == []
    assert sorted(set(EXCEPTIONS) & set(RULES)) == []
    assert sorted(set(RULES) - names - set(OTHERS)) == []


def test_every_rule_finds_operands_for_its_function() -> None:
    seen = {n for n in catalogue.MADE if any(catalogue.step(Drawer(s), n) for s in range(200))}
    assert sorted(set(catalogue.MADE) - seen) == []


def test_programs_are_many_and_repeat_for_a_seed() -> None:
    cases = [catalogue.draw(seed) for seed in range(150)]
    assert len({p.source for p in cases}) > 140
    assert catalogue.draw(7).source == cases[7].source
    again = [x.data.tobytes() for x in catalogue.draw(8).inputs]
    assert again == [x.data.tobytes() for x in cases[8].inputs]
    dtypes = {x.dtype for p in cases for x in p.inputs}
    assert dtypes >= {
        "f64",
        "f32",
        "bf16",
        "f16",
        "bool_",
        "i64",
        "i32",
        "c128",
        "tf32",
        "f16 @ saturate",
    }
    sizes = {n for p in cases for x in p.inputs for n in x.data.shape}
    assert sizes >= {0, 1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17}
    assert any(p.special for p in cases)
    assert max(len(p.lines) for p in cases) >= 10
    assert any(len(p.outputs) > 2 for p in cases)


def test_every_kind_of_check_is_made() -> None:
    plans = [run.plan(catalogue.draw(seed)) for seed in range(60)]
    assert {c for plan in plans for c in plan} == set(run.CHECKS)
    assert all({"references", "jitted"} <= set(plan) for plan in plans)


# Failures


def _program(source: tuple[str, ...], **inputs: Any) -> Program:
    lines = tuple(
        Line((text.split(" = ")[0],), text.split(" = ")[1], text.split("op.")[1].split("(")[0])
        for text in source
    )
    given = tuple(Input(n, np.asarray(x, np.float64), "f64") for n, x in inputs.items())
    return Program(given, lines, lines[-1].targets, seed=1)


BODY = (
    "v0 = op.sin(x0)",
    "v1 = op.flip(v0, 0)",
    "v2 = op.cumsum(v1, 0)",
    "v3 = op.mul(v2, x1)",
    "v4 = op.exp(v3)",
)


def test_a_fault_is_found_made_small_and_written_as_a_test(tmp_path: Path) -> None:
    """Programs with a cumsum are wrong in the last place: one statement on two numbers is left."""
    p = _program(BODY, x0=np.linspace(-1, 1, 7), x1=np.linspace(0.5, 1, 7))
    assert run.failure_of(p, "jitted") is None
    with pytest.MonkeyPatch.context() as m:
        original = machine.MachineExecutable.run
        m.setattr(machine.MachineExecutable, "run", lambda e, xs: _spoilt(e, original(e, xs)))
        found = run.failure_of(p, "levels")
        assert found is not None
        assert found.kind == "Broken"
        assert found.message.startswith("machine code on 1 threads and schedule: result 0 differs")
        small = run.smaller(found)
        assert small.program.ops == ("cumsum",)
        assert small.program.inputs[0].data.size <= 2
        text = file_of([run.as_test(small)])
        scope: dict[str, Any] = {}
        exec(compile(text, str(tmp_path), "exec"), scope)
        (test,) = [f for n, f in scope.items() if n.startswith("test_cumsum_levels")]
        with pytest.raises(AssertionError, match="machine code on 1 threads and schedule"):
            test()
    test()


def _spoilt(e: Any, ys: list[Any]) -> list[Any]:
    scans = any(n.op.name == "cumsum" for n in e.graph.nodes)
    return [np.nextafter(y, np.inf) for y in ys] if scans else ys


def test_an_exception_that_is_none_of_ours_is_a_failure() -> None:
    p = _program(("v0 = op.sin(x0) + {}[1]",), x0=[1.0])
    found = run.failure_of(p, "jitted")
    assert found is not None
    assert found.kind == "KeyError"


def test_a_refusal_of_what_runs_eagerly_is_a_failure() -> None:
    p = _program(("v0 = op.sin(x0) * float(op.sum(x0))",), x0=[1.0])
    found = run.failure_of(p, "jitted")
    assert found is not None
    assert found.kind == "Refused"


def test_the_text_of_a_program_runs_as_it_was_drawn() -> None:
    p = catalogue.draw(3)
    with override(target="numpy"):
        d = [np.asarray(v) for v in ts.tree.leaves(p.function(SCOPE)(*p.tensors))]
    assert len(d) == len(p.outputs)


# The tool


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("fuzz_tool", ROOT / "tools" / "fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _worker(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import sys, os; sys.stdin.readline(); os.kill(os.getpid(), 11)",
            "ended with -11",
        ),
        ("import sys; sys.exit(3)", "ended with 3"),
        ("import sys, time; sys.stdin.readline(); time.sleep(60)", "took over 1 s"),
    ],
)
def test_a_worker_that_dies_or_hangs_is_a_failure(
    code: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = _tool()
    monkeypatch.setattr(sys.modules[tool.Drive.__module__], "LIMIT", 1)
    options = Namespace(seed=5, count=1, jobs=1, time=10.0, only="", jax=False, record=None)
    worker = _worker(code)
    with worker:
        answer = tool.Run(options).drive._ask(worker, 5)
        worker.kill()
    assert [f["message"] for f in answer["failures"]] == [message]
    assert "--seed 5" in answer["failures"][0]["test"]


def test_the_tool_runs_programs_in_workers(tmp_path: Path) -> None:
    env = {**os.environ, "TESSERA_TARGET": "numpy"}
    command = [
        sys.executable,
        "tools/fuzz.py",
        "--seed",
        "20",
        "--count",
        "6",
        "--jobs",
        "2",
        "--record",
        str(tmp_path / "f.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    assert "6 programs of" in done.stdout, done.stdout + done.stderr
    assert "unexplained: 0" in done.stdout
    assert done.returncode == 0
