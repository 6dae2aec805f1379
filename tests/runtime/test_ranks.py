"""Runs on several ranks: one hash on any number of them, and one message when one of them fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.distributed import gpt
from tessera.core.flags import override
from tessera.runtime.comm.mpi import mpiexec

ROOT = Path(__file__).parents[2]
GPT = ROOT / "examples" / "distributed" / "gpt.py"


def run(*args: object, watchdog: int = 60) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TESSERA_WATCHDOG": str(watchdog), "TESSERA_TARGET": "numpy"}
    command = [sys.executable, "-m", "tessera.cli", "run", *map(str, args)]
    return subprocess.run(
        command, check=False, env=env, cwd=ROOT, capture_output=True, text=True, timeout=240
    )


def script(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


def hash_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.split("sha256 ")[1].strip()


def test_the_gpt_has_one_hash_on_one_and_two_ranks():
    with override(target="numpy"):
        _, alone = gpt.train("zero2", 1)
    assert hash_of(run("-n", 2, GPT, "--strategy", "zero2", "--steps", 1)) == alone


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["data", "zero1", "zero3", "tp", "zero3+tp"])
def test_one_hash_on_any_number_of_ranks(strategy):
    args = (GPT, "--strategy", strategy, "--steps", 3)
    found = {hash_of(run("-n", n, *args)) for n in (1, 2, 3, 4) if n != 3 or "tp" not in strategy}
    assert len(found) == 1


@pytest.mark.deep
def test_the_gpt_has_the_same_hash_by_mpi():
    pytest.importorskip("mpi4py")
    args = (GPT, "--strategy", "zero3+tp", "--steps", 2)
    assert hash_of(run(*args)) == hash_of(run("-n", 2, "--engine", "mpi", *args))


COLLECTIVES = """
import numpy as np
import tessera as ts
from tessera import dist, op
from tessera.core.mesh import placed
mesh, n = dist.Mesh(["i"], shape=(5,)), 5
x = np.random.default_rng(0).normal(size=(n, 10, 3)).astype(np.float32)
def f(v):
    return (dist.all_reduce(v, "i"), dist.all_reduce(v, "i", op="max"), dist.all_gather(v, "i", dim=0),
            dist.reduce_scatter(v, "i", dim=0), dist.all_to_all(v, "i", split=0, join=1),
            dist.permute(v, "i", [(k, (k + 2) % n) for k in range(n)]), dist.axis_index("i"))
for y, want in zip(ts.pmap(f, "i", mesh=mesh)(x), ts.vmap(f, axis_name="i")(x)):
    assert np.array_equal(y.numpy(), want.numpy())
big = dist.tensor(np.arange(700_000.0), dist.ShardSpec((0,), ("i",)), mesh)
assert np.array_equal((big * 2).numpy(), np.arange(700_000.0) * 2)
assert dist.all_reduce(float(dist.rank()), op="max") == dist.size() - 1
dist.barrier()
if dist.rank() == 0:
    print("agreed", dist.size())
"""


def test_collectives_between_ranks_are_those_of_vmap(tmp_path):
    """Two ranks own 2 and 3 of 5 shards."""
    done = run("-n", 2, script(tmp_path, COLLECTIVES))
    assert (done.returncode, done.stdout) == (0, "agreed 2\n"), done.stderr


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["local", "mpi"])
@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_collectives_between_any_ranks(tmp_path, count, engine):
    if engine == "mpi":
        pytest.importorskip("mpi4py")
    done = run("-n", count, "--engine", engine, script(tmp_path, COLLECTIVES))
    assert (done.returncode, done.stdout) == (0, f"agreed {count}\n"), done.stderr


def failure(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


KILLED = """
import os, signal
from tessera import dist
dist.barrier()
if dist.rank() == 1:
    os.kill(os.getpid(), signal.{signal})
dist.barrier()
"""


def test_a_killed_rank_ends_the_run(tmp_path):
    done = run("-n", 2, script(tmp_path, KILLED.format(signal="SIGKILL")))
    assert failure(done).endswith(
        "rank 1 was killed by signal 9 (SIGKILL); the other ranks were ended"
    )


OUT_OF_STEP = """
import numpy as np
from tessera import dist
if dist.rank() == 0:
    dist.barrier()
dist.all_reduce(np.zeros(3, np.float32))
"""


@pytest.mark.deep
def test_ranks_out_of_step_are_told(tmp_path):
    done = run("-n", 2, script(tmp_path, OUT_OF_STEP))
    assert failure(done).endswith("failed; the other ranks were ended")
    assert "ranks are out of step: this rank is at" in done.stderr
    assert "must run the same collectives in the same order" in done.stderr
    assert done.stderr.count("out of step") == 1


@pytest.mark.deep
def test_an_error_of_the_program_is_told_once(tmp_path):
    done = run(
        "-n", 2, script(tmp_path, "from tessera import op\nop.zeros((2, 3)) @ op.zeros((4, 5))\n")
    )
    assert done.returncode == 1
    assert done.stderr.count("matmul: ") == 1


@pytest.mark.deep
def test_wrong_numbers_of_ranks(tmp_path):
    assert run("-n", 0, GPT).returncode == 2
    done = run(
        "-n",
        3,
        script(
            tmp_path,
            "from tessera import dist, op\nm = dist.Mesh(['x', 'y'], shape=(2, 2))\ndist.tensor((4,), None, "
            "m)\n",
        ),
    )
    assert "3 ranks cannot share 4 shards as a grid" in done.stderr


SIZE = "from tessera import dist\nprint(dist.rank(), dist.size())\n"


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE"])
def test_a_program_that_a_launcher_started_without_an_engine_is_refused(tmp_path, name):
    """Each process trained the whole model alone, and all of them wrote the same files."""
    env = {**os.environ, name: "4"}
    done = subprocess.run(
        [sys.executable, script(tmp_path, SIZE)], check=False, env=env, cwd=ROOT, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "started 4 processes, each of which would run the whole program alone" in done.stderr
    assert "tessera run -n 4 FILE" in done.stderr


def test_a_rank_that_says_it_is_alone_is_alone(tmp_path):
    env = {**os.environ, "PMI_SIZE": "4"}
    command = [
        sys.executable,
        "-m",
        "tessera.cli",
        "run",
        "--engine",
        "local",
        script(tmp_path, SIZE),
    ]
    done = subprocess.run(
        command, check=True, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "0 1\n"


@pytest.mark.deep
def test_mpiexec_starts_ranks(tmp_path):
    """As on a cluster: the scheduler starts the processes, and each is a rank."""
    pytest.importorskip("mpi4py")
    command = [*mpiexec(2), sys.executable, "-m", "tessera.cli", "run", script(tmp_path, SIZE)]
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == ["0 2", "1 2"]


SUMS = """
import numpy as np
from tessera import dist
from tessera.core.ranks import engine
for n in (0, 1, 5, 1 << 12, 1 << 13, (1 << 20) + 3, (1 << 21) + 1):
    for dtype in ("f4", "f8", "f2", "i4", "i8", "u4", "i1") if n < 1 << 21 else ("f4", "f2"):
        for op in ("sum", "max", "prod"):
            rngs = [np.random.default_rng([r, n]) for r in range(dist.size())]
            mine = [rng.integers(1, 3, n).astype(dtype) for rng in rngs]
            if dtype in ("f4", "f8"):
                mine = [x + rng.normal(size=n).astype(dtype) for x, rng in zip(mine, rngs)]
            want = {"sum": np.add, "max": np.maximum, "prod": np.multiply}[op]
            total = mine[0]
            for k in range(1, dist.size()):
                total = want(total, mine[k])
            y = dist.all_reduce(mine[dist.rank()], op=op).numpy()
            assert y.dtype == total.dtype and y.tobytes() == total.tobytes(), (n, dtype, op)
if dist.rank() == 0:
    print("same bits", engine().name)
"""


@pytest.mark.parametrize("engine", ["local", pytest.param("mpi", marks=pytest.mark.deep)])
def test_sums_over_two_ranks_have_the_bits_of_numpy(tmp_path, engine):
    """Short and long ones, by the library's own all-reduce where it adds up the dtype."""
    if engine == "mpi":
        pytest.importorskip("mpi4py")
    done = run("-n", 2, "--engine", engine, script(tmp_path, SUMS))
    assert done.stdout == f"same bits {engine}\n", done.stderr


OUT_OF_STEP_SUMS = """
import numpy as np
from tessera import dist
dist.all_reduce(np.zeros({first} if dist.rank() else {second}, {dtype}))
"""


@pytest.mark.deep
@pytest.mark.parametrize("engine", ["local", "mpi"])
@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [(3, (3, 1), "np.float32"), (5000, (50, 100), "np.float64"), (6, 6, "['f4', 'i4'][dist.rank()]")],
    ids=["short", "long", "dtype"],
)  # fmt: skip
def test_sums_that_do_not_match_are_told(tmp_path, engine, first, second, dtype):
    if engine == "mpi":
        pytest.importorskip("mpi4py")
    text = OUT_OF_STEP_SUMS.format(first=first, second=second, dtype=dtype)
    done = run("-n", 2, "--engine", engine, script(tmp_path, text), watchdog=5)
    assert done.returncode == 1
    assert "must run the same collectives in the same order" in done.stderr
