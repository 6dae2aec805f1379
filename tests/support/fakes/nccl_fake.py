"""NCCL in Python: what ranks send goes by an engine of the host, at once, in the memory of the fake driver.

It stands in for libnccl function by function, by the same types.  Sends and receives that do not match,
memory that is not of the device, and a stream of another device are errors, as they are there or worse.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

from tessera.core import ranks as engines
from tessera.core.errors import RankError
from tessera.core.flags import carried
from tessera.core.ranks import RankEngine
from tessera.runtime.comm.nccl import _TYPES, UniqueId
from tests.support.fakes.cuda_fake import FakeCuda, put

INVALID, INTERNAL, REMOTE = 4, 3, 6
SAID = {INVALID: b"invalid argument", INTERNAL: b"internal error", REMOTE: b"remote process exited"}
KINDS = {
    0: np.int8, 1: np.uint8, 2: np.int32, 3: np.uint32, 4: np.int64, 5: np.uint64, 6: np.float16,
    7: np.float32, 8: np.float64, 9: ml_dtypes.bfloat16,
}  # fmt: skip


class FakeNccl:
    """What libnccl exports, for one rank; a function returns the next of its `faults`, or does its work."""

    def __init__(self, cuda: FakeCuda, host: RankEngine, version: int = 22_809):
        self.cuda, self.host, self.version = cuda, host, version
        self.calls: list[str] = []
        self.faults: dict[str, list[int]] = {}
        self.comms: dict[int, tuple[int, int]] = {}  # communicator -> (ranks, this one)
        self.handles = itertools.count(4096, 16)
        self.group: list[tuple[int, bytes | None, int, int]] | None = None  # peer, sent, to, size
        self.background = 0  # the error that communicators report
        self.aborted: list[int] = []
        self.missing: set[str] = set()
        self.made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("ncclGetErrorString", "ncclGetLastError"):
            kind = ctypes.c_int if name == "ncclGetErrorString" else ctypes.c_void_p
            said = self.said if name == "ncclGetErrorString" else (lambda comm: b"what failed last")
            return self.made.setdefault(name, _Function(said, kind))
        if name not in _TYPES or name in self.missing:
            raise AttributeError(name)
        if name not in self.made:
            work = getattr(self, f"do_{name}")

            def call(*args: Any) -> int:
                self.calls.append(name)
                faults = self.faults.get(name)
                return (faults.pop(0) if faults else 0) or work(*args) or 0

            self.made[name] = ctypes.CFUNCTYPE(ctypes.c_int, *_TYPES[name])(call)
        return self.made[name]

    def said(self, code: int) -> bytes:
        return SAID.get(code, b"unknown")

    def do_ncclGetVersion(self, out: int) -> int:
        return put(out, self.version, ctypes.c_int)

    def do_ncclGetUniqueId(self, out: int) -> None:
        ctypes.memmove(out, bytes(range(128)), 128)

    def do_ncclCommInitRank(self, out: int, count: int, unique: UniqueId, rank: int) -> int:
        if bytes(unique) != bytes(range(128)) or not 0 <= rank < count:
            return INVALID
        self.comms[next_ := next(self.handles)] = count, rank
        return put(out, next_)

    def do_ncclCommGetAsyncError(self, comm: int, out: int) -> int:
        assert comm in self.comms, comm
        return put(out, self.background, ctypes.c_int)

    def do_ncclCommAbort(self, comm: int) -> None:
        self.aborted.append(comm)

    def do_ncclCommDestroy(self, comm: int) -> None:
        del self.comms[comm]

    def do_ncclGroupStart(self) -> None:
        self.group = []

    def is_wrong(self, at: int, size: int, stream: int) -> bool:
        return not self.cuda.is_ours(at, size, stream)

    def do_ncclSend(self, at: int, n: int, kind: int, peer: int, comm: int, stream: int) -> int:
        if comm not in self.comms or self.is_wrong(at, n, stream):
            return INVALID
        assert self.group is not None, "alone, both ranks would wait for each other"
        self.group.append((peer, ctypes.string_at(at, n), 0, 0))
        return 0

    def do_ncclRecv(self, at: int, n: int, kind: int, peer: int, comm: int, stream: int) -> int:
        if comm not in self.comms or self.is_wrong(at, n, stream):
            return INVALID
        assert self.group is not None, "alone, both ranks would wait for each other"
        self.group.append((peer, None, at, n))
        return 0

    def do_ncclGroupEnd(self) -> int:
        work, self.group = self.group or [], None
        if not work:
            return 0
        sent: dict[int, bytes] = defaultdict(bytes)
        for peer, data, _, _ in work:
            sent[peer] += data or b""
        peers = sorted({self.host.rank, *sent})
        arrays = [np.frombuffer(sent[p], np.uint8) for p in peers]
        got = self.host.exchange("nccl", peers, arrays)
        left = {p: bytes(x) for p, x in zip(peers, got, strict=True)}
        for peer, data, at, n in work:
            if data is None:
                if len(left[peer]) < n:
                    return INTERNAL
                ctypes.memmove(at, left[peer][:n], n)
                left[peer] = left[peer][n:]
        return INTERNAL if any(left.values()) else 0

    def do_ncclAllReduce(
        self, at: int, to: int, n: int, kind: int, op: int, comm: int, stream: int
    ) -> int:
        dtype = np.dtype(KINDS[kind])
        size = n * dtype.itemsize
        if (
            op
            or comm not in self.comms
            or self.is_wrong(at, size, stream)
            or self.is_wrong(to, size, stream)
        ):
            return INVALID
        mine = np.frombuffer(ctypes.string_at(at, size), dtype)
        group = range(self.comms[comm][0])
        total, *others = self.host.exchange("nccl sum", group, [mine] * len(group))
        for x in others:
            total = total + x
        ctypes.memmove(to, total.tobytes(), size)
        return 0


class _Function:
    """A function that returns text, as ctypes gives it."""

    def __init__(self, work: Callable[[Any], bytes], kind: Any):
        self.work, self.argtypes, self.restype = work, (kind,), ctypes.c_char_p

    def __call__(self, *args: Any) -> bytes:
        return self.work(*args)


class ThreadRank(RankEngine):
    """A rank that is a thread of this process."""

    name = "threads"

    def __init__(self, rank: int, boxes: Sequence[Sequence[queue.Queue[Any]]]):
        self.rank, self.size, self.boxes = rank, len(boxes), boxes
        self.place = rank, self.size

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Any]) -> list[Any]:
        for r, x in zip(group, sent, strict=True):
            self.boxes[self.rank][r].put((what, np.array(x)))
        got = [self.boxes[r][self.rank].get(timeout=20) for r in group]
        for r, (theirs, _) in zip(group, got, strict=True):
            if theirs != what:
                raise RankError(f"out of step: this rank is at {what}, rank {r} at {theirs}")
        return [x for _, x in got]


class OfThread:
    """The engine of the thread that asks."""

    def __init__(self) -> None:
        self.local = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.local.engine, name)


def on_threads(
    count: int, f: Callable[[int], Any], make: Callable[[RankEngine], Any] = lambda host: host
) -> list[Any]:
    """What f(rank) gives on each of so many ranks, which are threads; `make` gives the engine of each."""
    boxes: Any = [[queue.Queue() for _ in range(count)] for _ in range(count)]
    mine: Any = OfThread()
    before = engines.engine()

    def run(rank: int) -> Any:
        mine.local.engine = make(ThreadRank(rank, boxes))
        return f(rank)

    engines.start_on(mine)
    try:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(carried(run), range(count)))
    finally:
        engines.start_on(before)
