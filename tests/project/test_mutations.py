"""The list of seeded faults is alive: each can still be made, and the record says that tests catch them.

`python tools/mutations.py` makes them one at a time and writes the record; that takes half an hour.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    """A module of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAULTS = tool("faults").FAULTS
MUTANTS = tool("mutants")
NEAREST = tool("nearest")
MUTATIONS = tool("mutations")
WATCHED = tool("watched")
RANDOM = tool("random_mutants")
RECORD = json.loads((ROOT / "benchmarks" / "records" / "mutations.json").read_text())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.path}: {f.breaks}")
def test_a_fault_can_still_be_made(fault: object) -> None:
    path, old, new, _, _ = fault  # type: ignore[misc]
    right = (ROOT / "tessera" / path).read_text()
    assert right.count(old) == 1, (
        f"{old!r} is there {right.count(old)} times; change tools/faults.py"
    )
    wrong = MUTATIONS.broken(right, fault)
    assert wrong != right
    assert new in wrong
    ast.parse(wrong)


def test_a_fault_that_cannot_be_made_is_an_error() -> None:
    gone = FAULTS[0]._replace(old="no such text")
    with pytest.raises(SystemExit, match="'no such text' is there 0 times, expected once"):
        MUTATIONS.broken("text", gone)


def test_faults_are_many_and_everywhere() -> None:
    assert len({(f.path, f.old) for f in FAULTS}) == len(FAULTS) >= 50
    folders = {Path(f.path).parent.as_posix() for f in FAULTS}
    assert folders >= {"ir/schedule", "ir/tile", "ir/target/cpu", "runtime", "transform"}
    for f in FAULTS:
        for t in [t for stage in MUTATIONS.stages(f) for t in stage]:
            assert (ROOT / t.split("::")[0]).exists(), t


def test_the_record_is_of_these_faults_and_nearly_all_are_caught() -> None:
    """`tools/mutations.py --left` tries those that it does not show as caught."""
    recorded = [(o["file"], o["breaks"]) for o in RECORD["outcomes"]]
    assert len(set(recorded)) == len(recorded) == RECORD["faults"] >= 50
    assert set(recorded) <= {(f.path, f.breaks) for f in FAULTS}
    caught = sum(o["caught"] for o in RECORD["outcomes"])
    assert caught == RECORD["caught"]
    assert caught >= 0.95 * len(recorded)


def test_random_mutants_are_the_same_for_a_seed_and_change_one_place() -> None:
    drawn = MUTANTS.draw(ROOT / "tessera", seed=3, count=30)
    assert drawn == MUTANTS.draw(ROOT / "tessera", seed=3, count=30)
    assert len({(m.path, m.line) for m in drawn}) == 30
    assert len({m.path.split("/")[0] for m in drawn}) > 3
    for m in drawn:
        text = (ROOT / "tessera" / m.path).read_text()
        wrong = m.apply(text)
        assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(text)), m


SAMPLE = '''"""Text 1 + 2."""
def f(x: int = 3, y: "a + b" = 0) -> "c < d":
    """Doc: 4 + 5."""
    assert x < 6
    if not x and y <= 7:
        raise ValueError(f"{x + 8}")
    g(x, y)
    return max(x, -y)
'''


def test_mutants_change_what_code_does_and_not_what_it_says() -> None:
    found = {(m.line, m.old, m.new) for m in MUTANTS.mutants_of("f.py", SAMPLE)}
    assert found == {
        (2, "3", "4"), (2, "0", "1"), (5, "not ", ""), (5, "and", "or"), (5, "<=", "<"), (5, "7", "8"),
        (5, "not x and y <= 7", "False"), (7, "g(x, y)", "pass"), (7, "x, y", "y, x"),
        (8, "max", "min"), (8, "-", ""),
    }  # fmt: skip
    assert {m.scope for m in MUTANTS.mutants_of("f.py", SAMPLE)} == {"f"}


def test_the_lines_of_a_mutant_are_those_that_run_it() -> None:
    text = (
        SAMPLE
        + "\nMOST = 9\n\ndef h():\n    return MOST\n\nTABLE = {\n    1: lambda x: x + 2,\n}\n"
    )
    lines = {(m.line, m.old): RANDOM.lines_of(text, m) for m in MUTANTS.mutants_of("f.py", text)}
    assert lines[2, "3"] == {2, 3, 4, 5, 6, 7, 8}  # a default: whoever calls the function
    assert lines[5, "7"] == {5}
    assert lines[8, "max"] == {8}
    assert lines[10, "9"] == {10, 13}  # a constant: where it is read
    assert lines[16, "+"] == {15, 16, 17}


def test_a_run_that_is_watched_says_which_mutants_it_ran() -> None:
    text = "def f(x):\n    if x:\n        return 1\n    return 2\n"
    code = compile(text, "/nowhere/f.py", "exec")
    watch = WATCHED.Watch({"/nowhere/f.py": {3: (7,), 4: (8, 9)}})
    assert watch.lines(code) is None  # a module runs when it is imported
    space: dict[str, Any] = {}
    exec(code, space)
    assert watch.lines(space["f"].__code__) == {3: (7,), 4: (8, 9)}
    frame = type("Frame", (), {"f_code": space["f"].__code__, "f_lineno": 4})()
    watch._call(frame, "call", None)(frame, "line", None)
    assert watch.taken() == [8, 9]
    assert watch.taken() == []


def test_lines_that_no_test_runs_are_known(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "f.py").write_text(SAMPLE)
    assert RANDOM.never_run(tmp_path, {}) == {"ops/f.py": [4, 5, 6, 7, 8]}
    assert RANDOM.never_run(tmp_path, {"ops/f.py": {5, 7, 8, 4}}) == {"ops/f.py": [6]}
    assert RANDOM.never_run(tmp_path, {"ops/f.py": {4, 5, 6, 7, 8}}) == {}


def test_a_mutant_is_shown_to_the_tests_that_run_it_and_then_to_its_namesakes(
    tmp_path: Path,
) -> None:
    (tmp_path / "tessera").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tessera" / "pools.py").write_text("def best_pool(x):\n    return x < 1\n")
    (tmp_path / "tests" / "test_pools.py").write_text("def test_a(): assert best_pool\n")
    (tmp_path / "tests" / "test_other.py").write_text("def test_b(): assert 1\n")
    names = NEAREST.Names(tmp_path / "tessera", tmp_path / "tests")
    m = MUTANTS.mutants_of("pools.py", (tmp_path / "tessera" / "pools.py").read_text())[0]
    found = RANDOM.Map()
    out = tmp_path / "out"
    rows = [("", 0.0, [], False), ("tests/test_other.py::test_b", 1.0, [0], False)]
    rows += [
        ("tests/test_other.py::test_slow", 99.0, [0], False),
        ("tests/test_other.py::test_red", 1.0, [0], True),
    ]
    rows += [("tests/test_pools.py::test_a", 1.0, [], False)]
    keys = ("test", "seconds", "hit", "failed")
    out.write_text("\n".join(json.dumps(dict(zip(keys, r, strict=True))) for r in rows))
    found.read("tests/test_other.py", out, ended=True)
    assert found.failed == ["tests/test_other.py::test_red"]
    groups, whole = RANDOM.asked(m, 0, found, names, budget=45)
    assert groups == [["tests/test_other.py::test_b"], ["tests/test_pools.py::test_a"]]
    assert not whole  # the slow one is left out
    assert RANDOM.asked(m, 0, found, names, budget=200)[1]


def test_tests_that_share_rare_names_with_a_function_are_near(tmp_path: Path) -> None:
    files = {
        "tessera/ops/pools.py": "def _window(x):\n    return x\n\ndef best_pool(x):\n    return _window(x)\n",
        "tessera/core/other.py": "def unrelated(x):\n    return x\n",
        "tests/ops/test_pools.py": "def test_a():\n    assert best_pool(x)\n",
        "tests/ops/test_more.py": "def test_b():\n    assert unrelated(x) and tensor\n",
        "tests/core/test_other.py": "def test_c():\n    assert unrelated(x)\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    names = NEAREST.Names(tmp_path / "tessera", tmp_path / "tests")
    words = names.words("ops/pools.py", "_window")
    assert max(words, key=words.__getitem__) == "best_pool"  # it calls the function
    assert names.files("ops/pools.py", words)[0] == "tests/ops/test_pools.py"
    words = names.words("core/other.py", "unrelated")
    assert names.files("core/other.py", words)[0] == "tests/core/test_other.py"


def test_the_record_of_random_mutants_adds_up() -> None:
    for run in json.loads((ROOT / "benchmarks" / "records" / "mutants.json").read_text())["runs"]:
        rows = run["outcomes"]
        assert len({r["mutant"] for r in rows}) == len(rows) == run["tried"]
        argued = [r["equivalent"] for r in rows if "equivalent" in r]
        assert all(argued)
        assert len(argued) == run["equivalent"] == run["tried"] - run["changing"]
        caught = [r["by"] for r in rows if r.get("caught")]
        later = [r["now_caught_by"] for r in rows if r.get("now_caught_by")]
        assert (len(caught), len(later)) == (run["caught"], run["caught_by_new_tests"])
        for test in [*caught, *later]:
            path = test.split("::")[0]
            assert not path.startswith("tests/") or (ROOT / path).exists(), path
