"""Checkpoints of sharded trees: saved by all ranks, loaded on any mesh, and runs that go on after a rank was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import dist
from tessera.core.errors import FileError
from tessera.files.index import shards_of
from tessera.files.load import Weights
from tests.runtime.test_ranks import hash_of, run, script

ROOT = Path(__file__).parents[3]
SPEC = dist.ShardSpec

SAVED = """
import sys
import numpy as np, tessera as ts
from tessera import dist
S = dist.ShardSpec
mesh = dist.Mesh(["dp", "tp"], shape=(2, 3))
rng = np.random.default_rng(0)
w, b = rng.normal(size=(7, 6)).astype(np.float32), rng.integers(0, 9, 12)
tree = {
    "w": dist.tensor(w, S((0, 1), ("dp", "tp")), mesh), "b": dist.tensor(b, S((0,), (("dp", "tp"),)), mesh),
    "half": dist.tensor(w.astype("float16"), S((1,), ("tp",)), mesh), "whole": dist.tensor(w[0], S(), mesh),
    "plain": ts.tensor(w[1]), "step": 3, "none": None,
}
ts.save(sys.argv[1], tree)
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tree that two ranks saved."""
    folder = tmp_path_factory.mktemp("saved")
    path = folder / "model.safetensors"
    done = run("-n", 2, script(folder, SAVED), path)
    assert done.returncode == 0, done.stderr
    return path


def expected():
    rng = np.random.default_rng(0)
    w, b = rng.normal(size=(7, 6)).astype(np.float32), rng.integers(0, 9, 12)
    return {"w": w, "b": b, "half": w.astype("float16"), "whole": w[0], "plain": w[1]}


def test_two_ranks_save_shards_and_an_index(saved):
    files = sorted(p.name for p in saved.parent.glob("*.safetensors*"))
    assert len(files) == 3
    assert files[-1] == "model.safetensors.index.json"
    names = set(json.loads((saved.parent / files[-1]).read_text())["weight_map"])
    assert {"w@0:4,0:2", "w@4:7,4:6", "b@2:4", "half@0:7,2:4", "whole", "plain"} <= names
    tree = ts.load(saved)
    for k, x in expected().items():
        assert tree[k].numpy().tobytes() == x.tobytes(), k
    assert (tree["step"], tree["none"]) == (3, None)


@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (4, 1)])
def test_a_checkpoint_is_loaded_on_any_mesh(saved, shape):
    mesh = dist.Mesh(["a", "b"], shape=shape)
    wanted = expected()
    like = {
        "w": dist.tensor((7, 6), SPEC((1, 0), ("a", "b")), mesh), "b": dist.tensor(wanted["b"] * 0, SPEC((0,), ("a",)), mesh),
        "half": dist.tensor((7, 6), SPEC(), mesh, "f16"), "whole": dist.tensor((6,), SPEC((0,), ("b",)), mesh),
        "plain": ts.tensor(wanted["plain"]), "step": 0, "none": None,
    }  # fmt: skip
    tree = ts.load(saved, like=like)
    for k, x in wanted.items():
        assert tree[k].numpy().tobytes() == x.tobytes(), k
    assert tree["w"].layout == SPEC((1, 0), ("a", "b"))


def test_a_rank_reads_its_own_part(saved):
    weights = Weights(saved)
    assert str(weights.types["w"]) == "f32[7,6]"
    assert np.array_equal(weights.part("w", (slice(3, 6), slice(1, 3))), expected()["w"][3:6, 1:3])


def test_damage_is_found(saved, tmp_path):
    for p in saved.parent.glob("*.safetensors*"):
        (tmp_path / p.name).write_bytes(p.read_bytes())
    shard = sorted(tmp_path.glob("*00001-of*"))[0]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(
        FileError, match="does not have the digest that was saved with it; the file is damaged"
    ):
        ts.load(tmp_path / "model.safetensors")
    shard.unlink()
    with pytest.raises(FileError, match="cannot read"):
        ts.load(tmp_path / "model.safetensors")


ONE_DAMAGED = """
import glob, sys
import numpy as np, tessera as ts
from tessera import dist
mesh = dist.Mesh(["dp"], shape=(2,))
def tree(x):
    return {"at": int(x), "w": dist.tensor(np.full((4, 100), x), dist.ShardSpec((0,), ("dp",)), mesh)}
saved = ts.train.Checkpoints(sys.argv[1])
for at in (1, 2):
    saved.save(at, tree(float(at)))
if dist.rank() == 0:
    (path,) = glob.glob(sys.argv[1] + "/step-00000002.*-00002-of-00002.safetensors")
    data = bytearray(open(path, "rb").read())
    data[-1] ^= 1
    open(path, "wb").write(data)
dist.barrier()
found = saved.restore(tree(0.0))
sys.stdout.write(f"{dist.rank()} {found['at']} {found['w'].local(dist.rank()).numpy()[0, 0]}\\n")
"""


def test_a_shard_that_one_rank_finds_damaged_is_passed_over_by_all(tmp_path):
    """Each rank reads its own shards: one went on from step 2 and the other from step 1."""
    done = run("-n", 2, script(tmp_path, ONE_DAMAGED), tmp_path / "steps")
    assert sorted(done.stdout.splitlines()) == ["0 1 1.0", "1 1 1.0"], done.stderr
    assert "an older checkpoint is used" in done.stderr


KILLED_IN_SAVES = """
import os, signal, sys, threading, time
import numpy as np, tessera as ts
from tessera import dist
mesh = dist.Mesh(["dp"], shape=(4,))
def tree(x):
    return {"at": int(x), "w": dist.tensor(np.full((8, 5000), x), dist.ShardSpec((0,), ("dp",)), mesh)}
saved = ts.train.Checkpoints(sys.argv[1], keep=2)
found = saved.restore(tree(0.0))
at = 0 if found is None else found["at"]
if found is not None:
    assert np.all(found["w"].numpy() == at), "a mixture of steps"
if os.environ["TESSERA_RESTARTS"] == "0" and dist.rank() == int(sys.argv[2]):
    def end():
        time.sleep(float(sys.argv[3]))
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=end, daemon=True).start()
first = os.environ["TESSERA_RESTARTS"] == "0"
begin = at
while at < begin + 3 or first:
    at += 1
    saved.save(at, tree(float(at)))
if dist.rank() == 0:
    print("from", begin, "to", at)
"""


def test_ranks_killed_while_they_save_leave_whole_checkpoints(tmp_path):
    """Whenever a rank dies: the next run begins with a whole step, and clears what no index names."""
    kills_in_saves(tmp_path, [(1, 0.05)])


@pytest.mark.deep
def test_ranks_killed_at_many_moments_leave_whole_checkpoints(tmp_path):
    kills_in_saves(tmp_path, [(k % 2, 0.01 + 0.0137 * k) for k in range(30)])


def kills_in_saves(folder, kills):
    program = script(folder, KILLED_IN_SAVES)
    for k, (rank, after) in enumerate(kills):
        steps = folder / f"steps{k}"
        done = run("-n", 2, "--restart", 1, "--restart-on", 1 + k % 4, program, steps, rank, after)
        assert done.returncode == 0, done.stderr
        assert f"rank {rank} was killed by signal 9" in done.stderr
        assert "from " in done.stdout
        named = {n for p in steps.glob("*.index.json") for n in shards_of(p)}
        assert {p.name for p in steps.glob("*-of-*.safetensors")} == named
        assert len(ts.train.Checkpoints(steps).steps()) == 2


TRAINED = """
import os, signal, sys
import numpy as np, tessera as ts
from tessera import dist, op
from examples.distributed.gpt import digest
folder, kill = sys.argv[1], int(sys.argv[2])
mesh = dist.Mesh(["dp"], shape=(4,))
s, optimizer = dist.strategy.zero3(mesh, "dp"), ts.optim.adam(1e-2)
rng = np.random.default_rng(0)
params = {n: ts.tensor(rng.normal(size=(8, 8)).astype(np.float32)) for n in ("up", "down")}
def loss(p, x):
    return op.mean(op.square(op.tanh(x @ p["up"]) @ p["down"] - x))
step = s.step(loss, optimizer)
at, tree = 0, (s.params(params), s.state(optimizer.init(params)))
saved = ts.train.Checkpoints(folder, every=2, keep=2)
found = saved.restore({"at": 0, "tree": tree})
if found is not None:
    at, tree = found["at"], found["tree"]
while at < 6:
    x = np.random.default_rng(at).normal(size=(8, 8)).astype(np.float32)
    _, *tree = step(*tree, s.batch(x))
    tree, at = tuple(tree), at + 1
    if os.environ.get("TESSERA_RESTARTS") == "0" and at == kill and dist.rank() == dist.size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if saved.is_due(at):
        saved.save(at, {"at": at, "tree": tree})
text = digest(tree)
if dist.rank() == 0:
    print(f"on {dist.size()} ranks: sha256 {text}")
"""


def test_a_killed_rank_is_restarted_on_another_number_of_ranks(tmp_path):
    program = script(tmp_path, TRAINED)
    alone = hash_of(run("-n", 1, program, tmp_path / "alone", 0))
    done = run("-n", 2, "--restart", 1, "--restart-on", 1, program, tmp_path / "killed", 3)
    assert hash_of(done) == alone
    assert (
        "rank 1 was killed by signal 9 (SIGKILL); the other ranks were ended; restarting on 1 ranks"
        in done.stderr
    )


@pytest.mark.deep
@pytest.mark.parametrize(
    ("first", "then", "engine"), [(2, 4, "local"), (4, 2, "local"), (4, 3, "local"), (2, 1, "mpi")]
)
@pytest.mark.parametrize("kill", [1, 2, 5])
def test_any_restart_has_one_hash(tmp_path, first, then, engine, kill):
    if engine == "mpi":
        pytest.importorskip("mpi4py")
    program = script(tmp_path, TRAINED)
    alone = hash_of(run("-n", 1, program, tmp_path / "alone", 0))
    more = ("--restart", 1, "--restart-on", then, "--engine", engine)
    assert hash_of(run("-n", first, *more, program, tmp_path / "killed", kill)) == alone


@pytest.mark.deep
def test_restarts_are_counted(tmp_path):
    text = "import os, signal\nfrom tessera import dist\nos.kill(os.getpid(), signal.SIGKILL)\n"
    done = run("-n", 2, "--restart", 1, script(tmp_path, text))
    assert done.returncode == 1
    assert done.stderr.count("restarting on 2 ranks") == 1
    env = {**os.environ}
    wrong = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "run", "--restart", "-1", "x.py"],
        check=False, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "--restart is -1, expected how often, 0 or more" in wrong.stderr
