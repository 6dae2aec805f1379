"""The engine nccl on a library in Python: bytes of every dtype between any ranks; faults are told in time."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.core.errors import RankError
from tessera.core.flags import override
from tessera.core.ranks import RankEngine, engine
from tessera.runtime.comm import nccl
from tessera.runtime.comm.nccl import Nccl, NcclEngine
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.memory import empty, to_device
from tests.support.fakes.cuda_fake import FakeCuda, LazyCuda
from tests.support.fakes.gpu_fake import launching_gpus
from tests.support.fakes.nccl_fake import INVALID, REMOTE, FakeNccl, ThreadRank, on_threads

RUNS_ON = "numpy"
ROOT = Path(__file__).parents[2]
DTYPES = [
    np.dtype(d)
    for d in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
              ml_dtypes.float8_e5m2, np.int8, np.uint32, np.int64, np.complex64, np.bool_)
]  # fmt: skip


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with launching_gpus(devices=4) as library:
        yield library


def no_loss(text: str) -> None:
    raise AssertionError(text)


def made_on(cuda: FakeCuda, host: Any, **options: Any) -> NcclEngine:
    return NcclEngine(host, no_loss, Nccl(FakeNccl(cuda, host, **options)))


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_parts_of_every_dtype_reach_every_rank(cuda: FakeCuda, ranks: int, size: int) -> None:
    """Rank r sends s elements fewer to rank s, from the places that it says."""

    def run(rank: int) -> None:
        group, place = tuple(range(ranks)), gpu(rank)
        counts = [[max(size - s, 0) for s in group] for _ in group]
        for dtype in DTYPES:
            sent = [np.arange(3 * size + 1).astype(dtype) + dtype.type(r) for r in group]
            got = empty((sum(counts[r][rank] for r in group),), dtype, place)
            parts = [(s, counts[rank][s]) for s in group]
            engine().move(f"test {dtype}", group, to_device(sent[rank], place), parts, got,
                          [counts[r][rank] for r in group])  # fmt: skip
            want = [sent[r][rank : rank + counts[r][rank]] for r in group]
            assert got.numpy().tobytes() == np.concatenate(want).tobytes()
        engine().close()

    on_threads(ranks, run, lambda host: made_on(cuda, host))


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "u8", ml_dtypes.bfloat16])
def test_sums_in_the_order_of_nccl(cuda: FakeCuda, dtype: Any) -> None:
    def run(rank: int) -> Any:
        x = to_device(np.arange(5).astype(dtype), gpu(rank))
        out = empty((5,), x.dtype, gpu(rank))
        assert engine().sum_on_device("sum", (0, 1, 2), x, out)
        return out.numpy()

    for y in on_threads(3, run, lambda host: made_on(cuda, host)):
        assert y.tolist() == [0, 3, 6, 9, 12]


def test_nccl_adds_up_no_fp8_and_no_complex_numbers(cuda: FakeCuda) -> None:
    made = made_on(cuda, RankEngine())
    for dtype in (ml_dtypes.float8_e4m3fn, np.complex64, np.bool_):
        x = to_device(np.zeros(3, dtype), gpu(0))
        assert not made.sum_on_device("sum", (0,), x, x)


def test_what_the_host_holds_goes_by_the_host(cuda: FakeCuda) -> None:
    def run(rank: int) -> None:
        assert (engine().name, engine().carries, engine().rank, engine().size) == (
            "nccl",
            "cuda",
            rank,
            2,
        )
        assert [x.tolist() for x in engine().exchange("x", (0, 1), [np.array([rank])] * 2)] == [
            [0],
            [1],
        ]
        assert engine().sum("x", (0, 1), np.zeros(3)) is None
        assert engine().empty((2, 3), np.float32).shape == (2, 3)

    on_threads(2, run, lambda host: made_on(cuda, host))


def test_nothing_waits_for_what_was_sent() -> None:
    """Streams do their work late: what is sent is what was there, and no call synchronizes."""
    for seed in range(5):
        lazy = LazyCuda(seed)
        with driver.use(lazy):
            made = NcclEngine(RankEngine(), no_loss, Nccl(LazyNccl(lazy, RankEngine())))
            x, got = to_device(np.arange(6.0), gpu(0)), empty((4,), np.float64, gpu(0))
            made.move("first", (0,), x, [(2, 4)], got, [4])  # ranks meet
            before = lazy.calls.count("cuStreamSynchronize"), lazy.calls.count("cuCtxSynchronize")
            x.memset(0)
            y = to_device(np.arange(6.0), gpu(0))
            made.move("second", (0,), y, [(2, 4)], got, [4])
            y.memset(1)
            after = lazy.calls.count("cuStreamSynchronize"), lazy.calls.count("cuCtxSynchronize")
            assert before == after
            assert got.numpy().tolist() == [2, 3, 4, 5]
            made.close()


class LazyNccl(FakeNccl):
    """One that does its work on the stream, when its turn comes."""

    def do_ncclSend(self, at: int, n: int, kind: int, peer: int, comm: int, stream: int) -> int:
        assert self.group is not None
        self.group.append((peer, b"", at, n))
        return 0

    def do_ncclRecv(self, at: int, n: int, kind: int, peer: int, comm: int, stream: int) -> int:
        assert self.group is not None
        self.group.append((peer, None, at, n))
        self.stream = stream
        return 0

    def do_ncclGroupEnd(self) -> int:
        work, self.group = self.group or [], None
        ((_, _, source, n),) = [w for w in work if w[1] is not None]
        ((_, _, to, m),) = [w for w in work if w[1] is None]
        assert n == m
        self.cuda.submit(self.stream, lambda: ctypes.memmove(to, source, n))
        return 0


# Faults


class Told(threading.Event):
    """What the engine said of its end."""

    text = ""

    def __call__(self, text: str) -> None:
        self.text = text
        self.set()


class Alone(ThreadRank):
    """The first of two ranks, of which the other one answers for as long as the host speaks."""

    def __init__(self) -> None:
        super().__init__(0, [[], []])

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Any]) -> list[Any]:
        if what == "nccl id":
            return [sent[0], np.where(np.arange(512) < 128, sent[0], np.uint8(65))]
        return list(sent)


def begin(made: NcclEngine, what: str = "all_reduce sum float32[3]") -> None:
    x = to_device(np.zeros(3, np.float32), gpu(0))
    made.move(what, (0, 1), x, [(0, 0), (0, 3)], empty((3,), np.float32, gpu(0)), [0, 3])


@pytest.mark.parametrize("where", ["call", "stream"])
def test_a_rank_that_does_not_come_is_told_and_nccl_aborted(where: str) -> None:
    lazy, told = LazyCuda(0), Told()
    with driver.use(lazy), override(watchdog=1):
        fake = Stuck(lazy, where)
        made = NcclEngine(Alone(), told, Nccl(fake))
        if where == "call":  # the host waits inside of NCCL until it is aborted
            with pytest.raises(RankError, match="ncclGroupEnd failed"):
                begin(made)
        else:
            begin(made)
        assert told.wait(10)
        assert told.text == (
            "all_reduce sum float32[3]: rank 1 did not come within 1 s (TESSERA_WATCHDOG); it is stopped, "
            "too slow, or at no collective or another one"
        )
        assert len(fake.aborted) == 1
        with pytest.raises(RankError, match="did not come within"):
            begin(made, "all_reduce sum float32[3]")


class Stuck(FakeNccl):
    """The other rank never comes: calls or the stream wait until NCCL is aborted."""

    def __init__(self, cuda: LazyCuda, where: str):
        super().__init__(cuda, RankEngine())
        self.where, self.ended = where, threading.Event()

    def do_ncclGroupEnd(self) -> int:
        if self.where == "call":
            assert self.ended.wait(20)
            return REMOTE
        stream = gpu(0).main.handle
        self.cuda.submit(stream, lambda: None, after=(-1, 1))  # type: ignore[call-arg]
        return 0

    def do_ncclCommAbort(self, comm: int) -> None:
        super().do_ncclCommAbort(comm)
        self.cuda.done[-1] = 1  # type: ignore[attr-defined]
        self.ended.set()


def test_an_error_in_the_background_is_told(cuda: FakeCuda) -> None:
    told = Told()
    fake = FakeNccl(cuda, RankEngine())
    with override(watchdog=2):
        made = NcclEngine(RankEngine(), told, Nccl(fake))
        x = to_device(np.zeros(3), gpu(0))
        made.move("permute float64[3]", (0,), x, [(0, 3)], empty((3,), x.dtype, gpu(0)), [3])
        fake.background = REMOTE
        assert told.wait(10)
    assert told.text == (
        "nccl: NCCL reports error 6 (remote process exited; what failed last); NCCL_DEBUG=INFO shows what "
        "it did"
    )
    assert len(fake.aborted) == 1


@pytest.mark.parametrize(
    "name",
    [
        "ncclGetUniqueId",
        "ncclCommInitRank",
        "ncclGroupStart",
        "ncclSend",
        "ncclRecv",
        "ncclGroupEnd",
    ],
)
def test_every_call_that_fails_is_named(cuda: FakeCuda, name: str) -> None:
    fake = FakeNccl(cuda, RankEngine())
    fake.faults[name] = [INVALID]
    made = NcclEngine(RankEngine(), no_loss, Nccl(fake))
    x = to_device(np.zeros(3), gpu(0))
    with pytest.raises(
        RankError, match=rf"{name} failed with error 4 \(invalid argument; what failed last\)"
    ):
        made.move("x", (0,), x, [(0, 3)], empty((3,), x.dtype, gpu(0)), [3])


def test_ranks_that_are_at_different_collectives_are_told(cuda: FakeCuda) -> None:
    def run(rank: int) -> str:
        x = to_device(np.zeros(3), gpu(rank))
        with pytest.raises(RankError) as e:
            engine().move(
                f"sum {rank}", (0, 1), x, [(0, 3)] * 2, empty((6,), x.dtype, gpu(rank)), [3, 3]
            )
        return e.value.message

    assert on_threads(2, run, lambda host: made_on(cuda, host)) == [
        "out of step: this rank is at sum 0, rank 1 at sum 1",
        "out of step: this rank is at sum 1, rank 0 at sum 0",
    ]


def test_two_ranks_on_one_gpu_are_refused(cuda: FakeCuda) -> None:
    def run(rank: int) -> str:
        x = to_device(np.zeros(3), gpu(0))
        with pytest.raises(RankError) as e:
            engine().move("x", (0, 1), x, [(0, 3)] * 2, empty((6,), x.dtype, gpu(0)), [3, 3])
        return e.value.message

    said = on_threads(2, run, lambda host: made_on(cuda, host))
    assert said[0].startswith("ranks 0 and 1 are both on cuda:0 of ")
    assert (
        "NCCL takes one rank a GPU; give each its own, or leave out --engine nccl and give --device cuda"
        in said[1]
    )


def test_more_ranks_than_gpus_are_refused_before_anything_runs() -> None:
    with launching_gpus(devices=1) as cuda, pytest.raises(RankError) as e:
        made_on(cuda, ThreadRank(1, [[], []]))
    assert e.value.message == (
        "rank 1 has no GPU of its own: its machine has 2 ranks and 1 of them, and NCCL takes one rank a GPU; "
        "start at most 1 here, or leave out --engine nccl and give --device cuda"
    )


# The library


def test_without_the_library_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str, mode: int = 0) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    nccl.library.cache_clear()
    with pytest.raises(RankError) as e:
        nccl.library()
    assert e.value.message == (
        "the engine nccl needs NVIDIA's library NCCL, which is not here (libnccl.so: cannot open shared "
        "object file); get it with pip install nvidia-nccl-cu13 (nvidia-nccl-cu12 for a driver of CUDA 12), "
        "or leave out --engine nccl and give --device cuda: ranks then exchange by the host"
    )


def test_an_old_library_is_refused(cuda: FakeCuda) -> None:
    with pytest.raises(
        RankError, match=r"this NCCL is 2\.7\.8, expected 2\.10\.0 or newer; get it with pip"
    ):
        Nccl(FakeNccl(cuda, RankEngine(), version=2_708))
    fake = FakeNccl(cuda, RankEngine())
    fake.missing.add("ncclSend")
    with pytest.raises(RankError, match="this NCCL has no ncclSend; get it with pip"):
        Nccl(fake)


def test_the_wheel_comes_before_the_system(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("nccl", "cu13"):
        where = tmp_path / "nvidia" / folder / "lib"
        where.mkdir(parents=True)
        (where / "libnccl.so.2").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "nvidia", raising=False)
    found = [str(p.relative_to(tmp_path)) for p in nccl._in_wheels() if tmp_path in p.parents]
    assert found == ["nvidia/nccl/lib/libnccl.so.2", "nvidia/cu13/lib/libnccl.so.2"]


# The command line

FAKE = """
import sys
sys.path.insert(0, {root!r})
from tessera.runtime.comm import nccl
from tessera.runtime.cuda.driver import LOADERS
from tests.runtime.test_nccl import Stuck
from tests.support.fakes.cuda_fake import LazyCuda
cuda = LazyCuda(0, devices=2)
LOADERS["cuda"].driver = LOADERS["cuda"].started(cuda)
nccl.library = lambda: nccl.Nccl(Stuck(cuda, "stream"))
"""
WAITS = """
import time
import numpy as np
from tessera.core.ranks import engine
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.memory import empty, to_device
n = engine().size
place = gpu(engine().rank)
x = to_device(np.zeros(3), place)
got = empty((3 * n,), x.dtype, place)
engine().move("permute float64[3]", tuple(range(n)), x, [(0, 3)] * n, got, [3] * n)
time.sleep(60)
"""


def run(folder: Path, *args: str, fake: bool = False) -> subprocess.CompletedProcess[str]:
    """`tessera run` of a program that waits for NCCL, on the fake libraries or without any."""
    (folder / "program.py").write_text(WAITS)
    (folder / "sitecustomize.py").write_text(FAKE.format(root=str(ROOT)) if fake else "")
    path = os.pathsep.join([str(folder), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "TESSERA_WATCHDOG": "1"}
    command = [sys.executable, "-m", "tessera.cli", "run", *args, str(folder / "program.py")]
    return subprocess.run(
        command, check=False, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_a_run_whose_ranks_wait_in_nccl_ends_with_the_collective(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "2", "--engine", "nccl", fake=True)
    assert done.returncode == 1
    assert re.search(r"permute float64\[3\]: rank [01] did not come within 1 s", done.stderr), (
        done.stderr
    )
    assert re.search(r"rank [01] failed; the other ranks were ended\n$", done.stderr), done.stderr
    assert done.stderr.count("did not come") == 1


def test_a_rank_that_is_alone_and_waits_in_nccl_ends_too(tmp_path: Path) -> None:
    done = run(tmp_path, "--engine", "nccl", fake=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("permute float64[3]: rank 0 did not come within 1 s"), done.stderr


def test_more_ranks_than_gpus_end_before_the_program_begins(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "3", "--engine", "nccl", fake=True)
    assert done.returncode == 1
    assert "rank 2 has no GPU of its own: its machine has 3 ranks and 2 of them" in done.stderr
    assert done.stderr.count("no GPU of its own") == 1


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_run_without_the_library_says_what_to_install(tmp_path: Path, count: str) -> None:
    try:
        nccl.library.cache_clear()
        nccl.library()
    except RankError:
        done = run(tmp_path, "-n", count, "--engine", "nccl")
        assert done.returncode == 1
        assert done.stderr.count("get it with pip install nvidia-nccl-cu13") == 1
        assert "Traceback" not in done.stderr
    else:
        pytest.skip("NCCL is here")


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--device", "gpu:0")
    assert (
        done.stderr
        == "error: --device is 'gpu:0', expected cpu, cuda, hip or one GPU of these, such as cuda:0\n"
    )
    done = run(tmp_path, "-n", "2", "--engine", "nccl", "--timeline", str(tmp_path / "x.html"))
    assert done.returncode == 2
    assert "without --engine mpi or nccl and without --restart" in done.stderr
    done = run(tmp_path, "-n", "2", "--engine", "tcp")
    assert done.returncode == 2
