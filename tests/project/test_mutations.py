"""The list of seeded faults is alive: each can still be made, and the record says that tests catch them.

`python tools/mutations.py` makes them one at a time and writes the record; that takes half an hour.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Sequence
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
COPIES = tool("copies")
LINES = tool("line_map")
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
    assert folders >= {"ir/schedule", "ir/tile/cpu", "ir/target/cpu", "runtime", "transform"}
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


def test_a_run_that_is_watched_says_which_lines_it_ran() -> None:
    text = "X = 1\ndef f(x):\n    if x:\n        return 1\n    return 2\n"
    space: dict[str, Any] = {}
    code = compile(text, "/nowhere/sub/f.py", "exec")
    exec(code, space)
    watch = WATCHED.Watch("/nowhere/")
    assert watch.lines(code) == 0  # a module runs when it is imported
    assert watch.lines(test_a_run_that_is_watched_says_which_lines_it_ran.__code__) == 0
    assert watch.lines(space["f"].__code__) == 0b111100
    watch._call(type("Frame", (), {"f_code": space["f"].__code__})(), "call", None)
    watch.add(space["f"].__code__, 1 << 7)
    assert watch.taken() == {"sub/f.py": f"{0b10111100:x}"}
    assert watch.taken() == {}


def test_lines_that_no_test_runs_are_known(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "f.py").write_text(SAMPLE)
    assert RANDOM.never_run(tmp_path, {}) == {"ops/f.py": [4, 5, 6, 7, 8]}
    assert RANDOM.never_run(tmp_path, {"ops/f.py": {5, 7, 8, 4}}) == {"ops/f.py": [6]}
    assert RANDOM.never_run(tmp_path, {"ops/f.py": {4, 5, 6, 7, 8}}) == {}


def rows(*tests: tuple[str, float, dict[str, int], bool], also: Sequence[str] = ()) -> list[str]:
    """What a run of a file of tests writes: id, seconds, masks, whether it failed."""
    first = {"tests": [t for t, *_ in tests] + list(also), "ran": {}}
    others = [
        {"test": t, "seconds": s, "ran": {k: f"{v:x}" for k, v in ran.items()}, "failed": bad}
        for t, s, ran, bad in tests
    ]
    return [json.dumps(r) for r in (first, *others)]


def test_a_mutant_is_shown_to_the_tests_that_run_it_then_to_its_namesakes_then_to_its_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "tessera" / "a").mkdir(parents=True)
    (tmp_path / "tests" / "a").mkdir(parents=True)
    (tmp_path / "tessera" / "a" / "pools.py").write_text("def best_pool(x):\n    return x < 1\n")
    others = [f"tests/test_{i}.py" for i in range(9)]
    for f in ["tests/a/test_pools.py", "tests/test_other.py", "tests/a/test_last.py", *others]:
        text = "def test_a(): assert best_pool\n" if "pools" in f else "def test_b(): assert 1\n"
        (tmp_path / f).write_text(text + "# words\n" * 99 * ("last" in f))
    names = NEAREST.Names(tmp_path / "tessera", tmp_path / "tests")
    m = MUTANTS.mutants_of("a/pools.py", (tmp_path / "tessera/a/pools.py").read_text())[0]
    found = LINES.LineMap({})
    hit, miss = {"a/pools.py": 0b100}, {"a/pools.py": 0b10}
    o, last = "tests/test_other.py::", "tests/a/test_last.py::test_c"
    cases = [
        ("b", 1.0, hit, False),
        ("slow", 99.0, hit, False),
        ("red", 1.0, hit, True),
        ("near", 1.0, miss, False),
    ]
    assert found.read("tests/test_other.py", rows(*((o + t, *x) for t, *x in cases))) == []
    assert (
        found.read(
            "tests/a/test_pools.py", rows(("tests/a/test_pools.py::test_a", 1.0, miss, False))
        )
        == []
    )
    assert found.read("tests/a/test_last.py", rows((last, 1.0, miss, False))) == []
    assert found.failed == {o + "red": "fails"}
    hits = found.hits({"a/pools.py": RANDOM.lines_of("def best_pool(x):\n    return x < 1\n", m)})
    assert hits == [o + "b", o + "slow"]
    ask = RANDOM.asked(m, hits, found, names, RANDOM.Budget(45, 50))
    assert ask.groups[0] == [o + "b"]
    assert "tests/a/test_pools.py::test_a" in ask.groups[1]
    assert sorted(t for g in ask.groups for t in g) == sorted(
        [o + "b", o + "near", "tests/a/test_pools.py::test_a", last]
    )
    assert ask.left_out == 1  # the slow one
    assert set(ask.unmapped) == {*names.tests}  # nobody said that these files are whole
    for f in names.tests:
        found.files[f] = {"left": []}
    ask = RANDOM.asked(m, hits, found, names, RANDOM.Budget(200, 50))
    assert (ask.left_out, ask.unmapped, ask.groups[1]) == (0, [], [o + "slow"])


def test_a_map_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    class Here(COPIES.Copy):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.folder = tmp_path / "copy"

        def empty(self) -> None:
            pass

    files = ["tests/project/test_mutations.py"]
    ids = [f"{files[0]}::{x}" for x in "abcdef"]
    found = LINES.LineMap({"f.py": "0"})
    run = LINES._Mapping(found, [Here()] * 4)

    def does(part: Any, out: Sequence[str], status: int) -> list[str] | None:
        """Take a step, whose run writes this; the tests that it asked for."""
        steps = part(run.copies[0])
        job = next(steps)
        asked = job.env.get(WATCHED.ASKED)
        Path(job.env[WATCHED.WATCHED]).write_text("".join(f"{r}\n" for r in out) + '{"cut')
        with pytest.raises(StopIteration):
            steps.send(COPIES.Done(status, "text", 9.0))
        return json.loads(Path(asked).read_text()) if asked else None

    one = {"f.py": 2}
    assert does(run.part(files[0], None, 60), [], COPIES.OUT_OF_LIMIT) is None  # while it collects
    assert found.missing(files) == {files[0]: None}
    cut = rows((ids[0], 1.0, one, False), also=ids[1:])
    assert does(run.work.popleft(), cut, COPIES.OUT_OF_LIMIT) is None
    assert found.missing(files) == {files[0]: ids[1:]}
    assert len(run.work) == 4
    asked = does(run.work.popleft(), rows(also=[ids[4]]), 11)  # a signal
    assert asked == [ids[4]]
    assert found.failed == {ids[4]: "exit status 11"}
    found.save(tmp_path / "map")
    again = LINES.LineMap.load(tmp_path / "map")
    assert again.missing(files) == {files[0]: [ids[1], ids[2], ids[3], ids[5]]}
    assert "THE MAP IS INCOMPLETE" in LINES.said(again, files)
    run.found, run.work = again, LINES.deque()
    rest = rows(*((t, 1.0, one, False) for t in again.missing(files)[files[0]]))
    does(run.part(files[0], again.missing(files)[files[0]], 60), rest, 0)
    assert not again.missing(files)
    assert not run.work
    assert again.hits({"f.py": {1}}) == [ids[0], ids[1], ids[2], ids[3], ids[5]]
    assert again.lines() == {"f.py": {1}}
    assert "INCOMPLETE" not in LINES.said(again, files)


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
