"""The memory of a rank is known before it runs: four ranks train what one is refused."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.errors import OutOfMemoryError
from tessera.core.flags import override
from tessera.core.ranks import INLINE
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, building
from tessera.ops import ranks as ranks_ops
from tessera.ops.batching import Spread
from tessera.plan.machine import ranks
from tests.runtime.test_ranks import script

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("cpu")

TRAIN = """
from tests.lang.dist.test_mesh_memory import digest, step_of
from tessera import dist
step, given = step_of()
for _ in range(2):
    _, *tree = step(*given)
    given = (*tree, given[2])
found = digest(given[:2])
if dist.rank() == 0:
    print(found)
"""


@pytest.fixture
def cpu():
    with override(target="cpu"):
        yield


def loss(p, x):
    return op.mean(op.square(op.relu(x @ p["up"]) @ p["down"] - x))


def step_of():
    """A step of ZeRO-3 on four shards, and its arguments."""
    rng = np.random.default_rng(0)
    params = {"up": rng.normal(size=(64, 256)), "down": rng.normal(size=(256, 64))}
    params = {k: ts.tensor(0.1 * v.astype(np.float32)) for k, v in params.items()}
    optimizer, s = ts.optim.adam(1e-3), dist.strategy.zero3(dist.Mesh(["dp"], shape=(4,)))
    x = rng.normal(size=(256, 64)).astype(np.float32)
    return s.step(loss, optimizer), (s.params(params), s.state(optimizer.init(params)), s.batch(x))


def digest(tree):
    found = hashlib.sha256()
    for x in ts.tree.leaves(tree):
        found.update(x.numpy().tobytes())
    return found.hexdigest()


def of_ranks(n):
    """The memory of one of n ranks."""
    step, given = step_of()
    executable, tensors = step.program(*given)
    return executable.memory(executable.key([v.storage for v in tensors]), n)


def trained(folder, n, **env):
    command = [sys.executable, "-m", "tessera.cli", "run", "-n", str(n), str(script(folder, TRAIN))]
    given = {**os.environ, "TESSERA_TARGET": "cpu", "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        command, check=False, env=given, cwd=ROOT, capture_output=True, text=True, timeout=300
    )


def test_four_ranks_train_what_the_limit_of_one_refuses(tmp_path):
    one, four = of_ranks(1).run, of_ranks(4).run
    assert four < 0.8 * one
    step, given = step_of()
    refused = pytest.raises(
        OutOfMemoryError, match=r"step: a run needs .* of memory but .* are free; "
    )
    with override(memory=(one + four) // 2), refused:
        step(*given)
    limited = trained(tmp_path, 4, TESSERA_MEMORY=str((one + four) // 2))
    assert limited.returncode == 0, limited.stderr
    for _ in range(2):
        _, *tree = step(*given)
        given = (*tree, given[2])
    assert limited.stdout.strip() == digest(given[:2])


def test_a_limit_below_the_least_that_is_asked_for():
    """Runs of any size keep within TESSERA_MEMORY, those called without Python too."""
    f = ts.jit(lambda x: op.exp(x) + 1, target="cpu")
    x = ts.tensor(np.zeros(1000, np.float32))
    f(x)
    f(x)
    with override(memory=3999), pytest.raises(OutOfMemoryError, match=r"a run needs 3\.9 KiB"):
        ts.jit(lambda x: op.exp(x) + 1, target="cpu")(x)
    with override(memory=4000):
        assert ts.jit(lambda x: op.exp(x) + 1, target="cpu")(x).shape == (1000,)


def test_a_plan_states_the_memory_of_the_compiled_step():
    params = {"up": ts.Tensor[64, 256, ts.f32], "down": ts.Tensor[256, 64, ts.f32]}
    x, optimizer = ts.Tensor[256, 64, ts.f32], ts.optim.adam(1e-3)
    p = dist.plan(loss, ranks(4), params, x, optimizer=optimizer, zero=3, tp=1)
    found = of_ranks(4)
    assert p.memory.total == found.inputs + found.run + found.exchange
    assert p.memory.buffers == found.exchange


@pytest.mark.parametrize(("op_", "count", "expected"), [
    (ranks_ops.SUM, 4 * INLINE, 0), (ranks_ops.SUM, 8 * INLINE, 2 * 3 * 2 * INLINE),
    (ranks_ops.GATHER, 8 * INLINE, 2 * 3 * 8 * INLINE),
])  # fmt: skip
def test_what_ranks_share_to_send(op_, count, expected):
    """Two messages to each of three others: up to 16 KiB go by sockets, more by shared memory."""
    builder = Builder()
    with building(builder):
        x = builder.input(TensorType(ts.f32, (1, count // 4)))
        y = ranks_ops.between(op_, x, Spread((0, 1, 2, 3), ((0, 1), (1, 2), (2, 3), (3, 4)), 0))
    g, _ = builder.finish([y], "f")
    assert ranks_ops.shared(g) == expected


@pytest.mark.deep
@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark of Linux")
@pytest.mark.parametrize("config", ["zero1", "zero2", "zero3", "fsdp"])
def test_ranks_take_the_memory_of_the_plan(config):
    """Within 5%, by the resident set; the script ends with 1 otherwise."""
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "mesh_memory.py"),
        "--configs",
        config,
        "--record",
        "",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
