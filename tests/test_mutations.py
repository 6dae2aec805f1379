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

import pytest

ROOT = Path(__file__).parent.parent


def tool(name: str) -> ModuleType:
    """A module of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FAULTS = tool("faults").FAULTS
MUTATIONS = tool("mutations")
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
