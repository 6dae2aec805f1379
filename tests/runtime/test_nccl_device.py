"""The engine nccl on a GPU, with one rank: every collective by NCCL itself, and the GPT example's hash."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.compile.gpu.collectives import collective
from tessera.core import ranks as engines
from tessera.core.dtype import as_dtype
from tessera.core.ranks import RankEngine
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, bind, building
from tessera.ir.schedule.ir import HostCall
from tessera.ops import ranks
from tessera.ops.rank_stages import STAGES
from tessera.runtime.comm.nccl import NcclEngine, library, version_text
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.memory import empty, to_device

pytestmark = pytest.mark.gpu
RUNS_ON = "numpy"
ROOT = Path(__file__).parents[2]
DTYPES = [
    np.dtype(d)
    for d in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8,
              np.uint32, np.int64, np.complex64, np.bool_)
]  # fmt: skip


def no_loss(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def nccl() -> Iterator[NcclEngine]:
    made, before = NcclEngine(RankEngine(), no_loss), engines.engine()
    engines.start_on(made)
    yield made
    engines.start_on(before)
    made.close()


def test_the_library_is_found() -> None:
    print("NCCL", version_text(library().version))
    assert library().version >= 21_000


@pytest.mark.parametrize("size", [0, 1, 7, 100_003])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_rank_sends_itself_what_it_says(nccl: NcclEngine, dtype: Any, size: int) -> None:
    x = (np.arange(size + 3) % 1000).astype(dtype)
    got = empty((size,), dtype, gpu())
    nccl.move(f"test {dtype}", (0,), to_device(x), [(2, size)], got, [size])
    assert got.numpy().tobytes() == x[2 : size + 2].tobytes()


@pytest.mark.parametrize(
    "dtype", ["f4", "f8", "f2", "i1", "u1", "i4", "u4", "i8", "u8", ml_dtypes.bfloat16]
)
def test_the_sum_of_one_rank_by_nccl_is_what_it_holds(nccl: NcclEngine, dtype: Any) -> None:
    x = np.arange(100).astype(dtype)
    out = empty((100,), x.dtype, gpu())
    assert nccl.sum_on_device("sum", (0,), to_device(x), out)
    assert out.numpy().tobytes() == x.tobytes()


def shape_of(kind: str, rest: Sequence[int]) -> tuple[int, ...]:
    return {
        "ranks_sum": (1, *rest), "ranks_max": (1, *rest), "ranks_scatter": (1, 4, *rest),
        "ranks_all_to_all": (4, 4, *rest),
    }.get(kind, (4, *rest))  # fmt: skip


@pytest.mark.parametrize("rest", [(), (3, 5), (300, 7)], ids=str)
@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "f8e4m3", "i32"])
@pytest.mark.parametrize("op", list(STAGES), ids=lambda op: op.name)
def test_each_collective_has_the_bits_of_the_host(
    nccl: NcclEngine, op: Any, name: str, rest: Any
) -> None:
    """A rank that owns all four coordinates of an axis."""
    params: dict[str, Any] = {"group": (0,), "ranges": ((0, 4),), "mine": 0}
    if op is ranks.PERMUTE:
        params["perm"] = ((0, 2), (1, 0), (3, 1))
    dtype = as_dtype(name)
    x = np.random.default_rng(0).integers(-5, 6, shape_of(op.name, rest)).astype(dtype.np)
    with building(Builder()) as b:
        v = b.input(TensorType(dtype, x.shape))
        out = bind(op, v, **params)
        node = out.node
        assert node is not None
    types = {"x": v.type, "y": out.type}
    run, _ = collective(HostCall(node, ("x",), ("y",)), types, {}, gpu())
    (made,) = run([to_device(x)])
    want = op.numpy(x, **params)
    assert made.numpy().tobytes() == np.asarray(want).tobytes()


def hash_of(*args: str) -> str:
    command = [sys.executable, "-m", "tessera.cli", "run", *args, "--device", "cuda"]
    command += [
        str(ROOT / "examples" / "distributed" / "gpt.py"),
        "--strategy",
        "zero2",
        "--steps",
        "2",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TESSERA_STRICT": "1"}
    done = subprocess.run(command, check=False, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition("sha256 ")[2].strip()


def test_the_gpt_has_the_hash_of_no_engine() -> None:
    assert hash_of("--engine", "nccl") == hash_of()


def test_two_ranks_share_a_gpu_and_have_the_hash_of_one() -> None:
    assert hash_of("-n", "2") == hash_of()
