"""Programs on a mesh whose shards lie on GPUs: the bits of one rank, by the host and from GPU to GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from examples.distributed import gpt
from tessera import dist, op
from tessera.compile import compile_graph
from tessera.compile.mesh.executable import MeshExecutable
from tessera.compile.mesh.home import home
from tessera.core import ranks
from tessera.core.device import Device
from tessera.core.errors import DeviceError, FlagError
from tessera.core.flags import override
from tessera.core.mesh import Mesh, placed
from tessera.ops.rank_stages import STAGES
from tessera.runtime.cuda.memory import DeviceArray
from tests.support.fakes.cuda_fake import FakeCuda
from tests.support.fakes.gpu_fake import launching_gpus

RUNS_ON = "numpy"
ROOT = Path(__file__).parents[2]
MESH = Mesh(["x"], shape=(4,))
ROWS = dist.ShardSpec((0,), ("x",))


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with launching_gpus(devices=2) as library, override(mesh_device="cuda"):
        yield library


def normal(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def block_of(x: Any) -> Any:
    return x.storage.block


def test_shards_lie_on_the_gpu_and_stay_there(cuda: FakeCuda) -> None:
    x = dist.tensor(normal(8, 3), ROWS, MESH)
    assert isinstance(block_of(x), DeviceArray)
    before = cuda.calls.count("cuMemcpyDtoHAsync")
    y = ts.jit(lambda x: op.tanh(x) * 2 + x)(x)
    assert isinstance(block_of(y), DeviceArray)
    assert cuda.calls.count("cuMemcpyDtoHAsync") == before
    np.testing.assert_allclose(y.numpy(), np.tanh(normal(8, 3)) * 2 + normal(8, 3), rtol=1e-6)
    np.testing.assert_array_equal(x.local(1).numpy(), normal(8, 3)[2:4])


def test_zeros_take_no_memory_until_they_are_used(cuda: FakeCuda) -> None:
    x = dist.tensor((8, 3), ROWS, MESH)
    assert isinstance(block_of(x), np.ndarray)
    np.testing.assert_array_equal((x + 1).numpy(), np.ones((8, 3)))


def test_a_step_of_training_on_the_gpu_is_that_of_the_cpu_to_rounding(cuda: FakeCuda) -> None:
    def loss(p: Any, x: Any) -> Any:
        return op.mean(op.square(op.tanh(x @ p["up"]) @ p["down"] - x))

    def run() -> Any:
        s, optimizer = dist.strategy.zero3(MESH, "x"), ts.optim.adam(1e-2)
        params = {n: ts.tensor(normal(4, 4)) for n in ("up", "down")}
        step = s.step(loss, optimizer)
        value, new, state = step(
            s.params(params), s.state(optimizer.init(params)), s.batch(normal(8, 4))
        )
        assert all(
            isinstance(block_of(v), DeviceArray) == (home().kind == "cuda") for v in new.values()
        )
        return [v.numpy() for v in ts.tree.leaves((value, new, state))]

    there = run()
    with override(mesh_device="cpu", target="cpu"):
        here = run()
    for a, b in zip(there, here, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def test_a_mesh_moves_between_the_host_and_gpus(cuda: FakeCuda) -> None:
    x = dist.tensor(normal(8, 3), ROWS, MESH)
    with override(mesh_device="cpu"):
        there = x + 1
        assert isinstance(block_of(there), np.ndarray)
    with override(mesh_device="cuda:1"):
        other = there + x
        assert block_of(other).gpu.index == 1
    np.testing.assert_array_equal(other.numpy(), normal(8, 3) + 1 + normal(8, 3))


def test_ranks_of_a_machine_take_its_gpus_in_turn(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, index in ((0, 0), (1, 1), (2, 0)):
        monkeypatch.setattr(ranks._engine, "place", (rank, 3), raising=False)
        assert home() == Device("cuda", index)


def test_pmap_runs_on_the_gpu(cuda: FakeCuda) -> None:
    y = ts.pmap(lambda v: v / dist.all_reduce(v, "i"), "i")(normal(4, 3) + 9)
    assert isinstance(block_of(y), DeviceArray)
    x = normal(4, 3) + 9
    np.testing.assert_allclose(y.numpy(), x / x.sum(0), rtol=1e-6)


def test_names_of_devices_are_checked() -> None:
    with pytest.raises(
        FlagError, match=r"mesh_device is 'gpu', expected cpu, cuda, hip or one GPU of these"
    ):
        override(mesh_device="gpu").__enter__()
    absent = pytest.raises(DeviceError, match="there is no device cuda:7")
    with override(mesh_device="cuda:7"), launching_gpus(), absent:
        dist.tensor(normal(4), ROWS, MESH)


# Several ranks


PROGRAM = """
import sys, warnings
sys.path.insert(0, {root!r})
warnings.simplefilter("error")
from examples.distributed import gpt
from tessera import dist
from tessera.core.flags import override
from tessera.core.ranks import engine, start_on
from tessera.runtime.comm.nccl import Nccl, NcclEngine
from tests.support.fakes.gpu_fake import launching_gpus
from tests.support.fakes.nccl_fake import FakeNccl
gpt.WIDTH, gpt.HEADS, gpt.VOCABULARY, gpt.LENGTH, gpt.LAYERS = 4, 2, 8, 4, 1
with launching_gpus(devices=4) as cuda, override(mesh_device="cuda"):
    if {nccl}:
        start_on(NcclEngine(engine(), print, Nccl(FakeNccl(cuda, engine()))))
    _, found = gpt.train({strategy!r}, 2)
    if dist.rank() == 0:
        print(engine().name, engine().size, "sha256", found)
"""


def hash_of(
    folder: Path, count: int, strategy: str, nccl: bool = False, engine: str = "local"
) -> str:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(root=str(ROOT), nccl=nccl, strategy=strategy))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TESSERA_WATCHDOG": "60"}
    by = ["-n", str(count), "--engine", engine]
    command = [sys.executable, "-m", "tessera.cli", "run", *by, str(path)]
    done = subprocess.run(
        command, check=False, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    said, _, found = done.stdout.partition(" sha256 ")
    assert said == f"{'nccl' if nccl else 'none' if count == 1 else engine} {count}"
    return found.strip()


@pytest.mark.parametrize("strategy", ["zero2", pytest.param("zero3+tp", marks=pytest.mark.deep)])
def test_one_hash_on_any_number_of_ranks_with_gpus(tmp_path: Path, strategy: str) -> None:
    alone = hash_of(tmp_path, 1, strategy)
    assert hash_of(tmp_path, 2, strategy) == alone
    assert hash_of(tmp_path, 2, strategy, nccl=True) == alone


@pytest.mark.deep
def test_ranks_of_mpi_that_share_a_gpu_have_the_hash_of_one(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    assert hash_of(tmp_path, 2, "data", engine="mpi") == hash_of(tmp_path, 1, "data")


# Without a GPU


def of_rank(strategy: str) -> tuple[Any, list[tuple[int, ...]]]:
    """The program of the first of two ranks for a step of the GPT, for an architecture, and its shapes."""
    s, optimizer, params = gpt.strategy_of(strategy), ts.optim.adam(1e-3), gpt.init(layers=1)
    tokens = s.batch(np.zeros((16, gpt.LENGTH + 1), np.int64))
    step = s.step(gpt.loss, optimizer)
    whole, tensors = step.program(s.params(params), s.state(optimizer.init(params)), tokens)
    assert isinstance(whole, MeshExecutable)
    key = whole.key([v.storage for v in tensors])
    g = whole._of_rank(whole.partitioned(key), key, placed(whole.mesh, 0, 2))
    return compile_graph(g, "cuda:sm_90"), [tuple(map(int, v.shape)) for v in g.inputs]


@pytest.mark.parametrize("strategy", ["zero2", pytest.param("zero3+tp", marks=pytest.mark.deep)])
def test_a_partitioned_program_compiles_for_hopper(strategy: str) -> None:
    """Every step of a rank is a kernel, or an exchange between ranks."""
    made, shapes = of_rank(strategy)
    hosted = made.hosted_at(shapes)
    assert {n.rpartition("_")[0] for n in hosted} <= {op.name for op in STAGES}
    assert set(hosted.values()) == {
        "ranks exchange what it has; kernels of its own pack and add that"
    }
    assert len(made.target_at(shapes)) > 20


@pytest.mark.oracle
def test_the_kernels_of_a_partitioned_program_build_for_hopper() -> None:
    pytest.importorskip("triton")
    made, shapes = of_rank("zero2")
    code = made.code_at(shapes)
    assert len(code) > 20
    assert all(image[:4] == b"\x7fELF" for image in code.values())
