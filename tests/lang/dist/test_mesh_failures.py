"""What goes wrong with several ranks ends with one message in time, hangs nothing and leaves no broken file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tests.runtime.test_ranks import KILLED, failure, run, script

ROOT = Path(__file__).parents[3]

SAVES = """
import sys
import numpy as np, tessera as ts
from tessera import dist
mesh = dist.Mesh(["dp"], shape=(2,))
saved = ts.train.Checkpoints(sys.argv[1], every=1)
saved.save(int(sys.argv[2]), {"w": dist.tensor(np.full((4, 2), 1.0), dist.ShardSpec((0,), ("dp",)), mesh)})
if len(sys.argv) > 3:
    print("saved", flush=True)
    sys.stdin.read()
"""


def test_two_runs_in_one_folder(tmp_path):
    """The second is refused before it writes; once the first is killed, the folder is free."""
    program, folder = script(tmp_path, SAVES), tmp_path / "steps"
    env = {**os.environ, "TESSERA_TARGET": "numpy"}
    first = subprocess.Popen(
        [sys.executable, str(program), str(folder), "1", "wait"], env=env, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "saved\n"
        before = sorted(p.name for p in folder.iterdir())
        done = run("-n", 2, program, folder, 2)
        assert done.returncode == 1
        assert f"save: another run (process {first.pid} on " in done.stderr
        assert (
            f"saves in {folder}; give each run a folder of its own, or end that one" in done.stderr
        )
        assert sorted(p.name for p in folder.iterdir()) == before
    finally:
        first.kill()
        first.communicate()
    done = run("-n", 2, program, folder, 2)
    assert done.returncode == 0, done.stderr
    assert ts.train.Checkpoints(folder).steps() == [1, 2]


FULL = """
import resource, sys
import numpy as np, tessera as ts
from tessera import dist
mesh = dist.Mesh(["dp"], shape=(2,))
rank, room, count, size = map(int, sys.argv[2:])
def tree(x):
    spec = dist.ShardSpec((0,), ("dp",))
    return {f"w{k}": dist.tensor(np.full((4, size), x), spec, mesh) for k in range(count)}
ts.save(sys.argv[1], tree(1.0))
if dist.rank() == rank:  # as a disk that is full in the middle of a file
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
try:
    ts.save(sys.argv[1], tree(2.0))
except ts.TesseraError as e:
    sys.stdout.write(f"{dist.rank()} {e.message}\\n")  # at once: both ranks write here
"""


@pytest.mark.parametrize(
    ("rank", "room", "count", "size"),
    [(1, 5000, 1, 1000), (0, 5000, 1, 1000), (0, 50_000, 200, 2)],
    ids=["other", "first", "index"],
)
def test_a_full_disk_on_one_rank_leaves_the_older_checkpoint(tmp_path, rank, room, count, size):
    """In the shards of either rank, and in the index, when all shards are there."""
    path = tmp_path / "model.safetensors"
    done = run("-n", 2, script(tmp_path, FULL), path, rank, room, count, size)
    first, second = sorted(done.stdout.splitlines())
    assert first[2:] == second[2:], done.stderr
    assert first.startswith("0 save: cannot write ")
    assert first.endswith(f": File too large (rank {rank}); the older checkpoint stays in force")
    assert all(np.all(w.numpy() == 1) for w in ts.load(path).values())
    assert len(list(tmp_path.glob("*.safetensors*"))) == 3  # nothing of the failed one is left
    assert not list(tmp_path.glob(".*"))


SLOW = """
import time
from tessera import dist
dist.barrier()
time.sleep(60 * dist.rank())
dist.barrier()
"""
LATE = "rank 1 did not come within 1 s (TESSERA_WATCHDOG); it is stopped, too slow, or at no collective"


@pytest.mark.parametrize("text", [SLOW, KILLED.format(signal="SIGSTOP")], ids=["slow", "stopped"])
def test_a_rank_that_does_not_come_ends_the_run_in_time(tmp_path, text):
    begin = time.monotonic()
    done = run("-n", 2, script(tmp_path, text), watchdog=1)
    assert failure(done).endswith("rank 0 failed; the other ranks were ended")
    assert f"barrier float64[0]: {LATE}" in done.stderr
    assert time.monotonic() - begin < 60


@pytest.mark.deep
@pytest.mark.parametrize("what", ["slow", "SIGSTOP", "SIGKILL"])
def test_mpi_ends_a_run_in_time(tmp_path, what):
    pytest.importorskip("mpi4py")
    text = SLOW if what == "slow" else KILLED.format(signal=what)
    begin = time.monotonic()
    done = run("-n", 2, "--engine", "mpi", script(tmp_path, text), watchdog=2)
    assert failure(done).endswith(
        "a rank was killed by signal 9 (SIGKILL); the other ranks were ended"
        if what == "SIGKILL"
        else "mpiexec failed; the other ranks were ended"
    )
    assert what == "SIGKILL" or LATE.replace("1 s", "2 s") in done.stderr
    assert time.monotonic() - begin < 60


@pytest.mark.deep
@pytest.mark.parametrize("what", ["slow", "SIGSTOP", "SIGKILL"])
def test_the_all_reduce_of_mpi_ends_in_time(tmp_path, what):
    """It waits inside of the library, where a thread looks after it."""
    pytest.importorskip("mpi4py")
    text = SLOW if what == "slow" else KILLED.format(signal=what)
    reduced = text.replace("dist.barrier()", "dist.all_reduce(1.0)")
    begin = time.monotonic()
    done = run("-n", 2, "--engine", "mpi", script(tmp_path, reduced), watchdog=2)
    assert done.returncode == 1
    if what != "SIGKILL":
        assert f"all_reduce sum float32[]: {LATE.replace('1 s', '2 s')}" in done.stderr
    assert "; the other ranks were ended" in done.stderr
    assert time.monotonic() - begin < 60


@pytest.mark.deep
def test_a_status_of_the_program_is_no_signal(tmp_path):
    pytest.importorskip("mpi4py")
    done = run(
        "-n", 2, "--engine", "mpi", "--restart", 1, script(tmp_path, "raise SystemExit(9)\n")
    )
    assert done.returncode == 9
    assert "restarting" not in done.stderr


def test_more_ranks_than_shards(tmp_path):
    text = "from tessera import dist\ndist.tensor((4,), None, dist.Mesh(['x'], shape=(2,)))\n"
    done = run("-n", 3, script(tmp_path, text))
    assert done.returncode == 1
    assert "3 ranks cannot share 2 shards" in done.stderr
