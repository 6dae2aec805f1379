"""What kernel.autotune finds is kept: the next process, and the next machine of its kind, measure nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tessera import KTile, block, kernel, tile
from tessera.core.flags import override
from tessera.runtime import tuned
from tessera.tune.measure import Candidate

SPACE = block(m=[1, 2, 3, 4, 5, 6, 8, 10, 12, 16], n=[8, 12, 16, 24, 32])


def gated(x: KTile["M", "N"], gate: KTile["M", "N"]):
    T = tile.context()
    g = tile.load(gate, rows=T.m, cols=T.n)
    return tile.load(x, rows=T.m, cols=T.n) * g


ARGS = tuple(np.random.default_rng(i).normal(size=(40, 70)).astype(np.float32) for i in range(2))


@pytest.fixture
def counted(monkeypatch):
    """How many samples are taken, in a list of one number."""
    count, sample = [0], Candidate.sample

    def counting(c):
        count[0] += 1
        sample(c)

    monkeypatch.setattr(Candidate, "sample", counting)
    return count


def searched(folder):
    """A kernel that was called with a store in a folder, and what its search found."""
    with override(cache_dir=folder):
        f = kernel.autotune(space=SPACE, budget_ms=600_000)(gated)
        assert f(*ARGS).numpy().tobytes() == (ARGS[0] * ARGS[1]).tobytes()
        (found,) = f.found.values()
    return found


def test_a_tenth_of_the_schedules_is_measured(tmp_path, counted):
    found = searched(tmp_path)
    assert found.tried == len(SPACE) // 10 == 5
    assert counted[0] >= found.tried
    before = counted[0]
    again = searched(tmp_path)
    assert (again.schedule, again.tried, counted[0]) == (found.schedule, 0, before)


def test_another_process_measures_nothing(tmp_path):
    """The first process measures; the second one would fail if it took a sample."""
    script = (
        f"import pathlib, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_kernel_store import Candidate, searched\n"
        "if sys.argv[2] == 'never': Candidate.sample = None\n"
        "print(searched(pathlib.Path(sys.argv[1])))\n"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), how], capture_output=True, text=True, check=True
        ).stdout
        for how in ("measure", "never")
    ]  # fmt: skip
    assert "tried=5" in shown[0]
    assert "tried=0" in shown[1]
    schedules = {text.split("seconds=")[0] for text in shown}
    assert len(schedules) == 1


def test_what_one_machine_exports_another_one_imports(tmp_path, counted):
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "tuned.json"
    found = searched(here)
    with override(cache_dir=here):
        assert tuned.export(file) == 1
    with override(cache_dir=there):
        assert tuned.load(file) == 1
    before = counted[0]
    assert searched(there).schedule == found.schedule
    assert counted[0] == before


@pytest.mark.parametrize("field", ["place", "versions"])
def test_what_is_of_other_hardware_or_versions_is_ignored(tmp_path, counted, field):
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "tuned.json"
    searched(here)
    with override(cache_dir=here):
        tuned.export(file)
    whole = json.loads(file.read_text())
    whole["tuned"][0][field] = "of another kind"
    file.write_text(json.dumps(whole))
    with override(cache_dir=there):
        assert tuned.load(file) == 1
    before = counted[0]
    assert searched(there).tried == 5
    assert counted[0] > before


def test_a_schedule_that_this_version_does_not_read_is_ignored(tmp_path, counted):
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "tuned.json"
    found = searched(here)
    with override(cache_dir=here):
        tuned.export(file)
    whole = json.loads(file.read_text())
    whole["tuned"][0]["nest"] = json.dumps({"blocks": 3})
    file.write_text(json.dumps(whole))
    with override(cache_dir=there):  # what was measured here goes before what is loaded
        tuned.load(file)
    before = counted[0]
    assert searched(there).tried == found.tried
    assert counted[0] > before
