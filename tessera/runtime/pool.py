"""A pool of threads that wait in compiled code.

Each worker is a Python thread that calls once into pool_ir.py's `work` and stays there, without
the interpreter's lock, until the process ends.  A launch hands out chunks of [0, count) by an atomic
counter; which thread takes which chunk never shows in the results, because kernels are order-free.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.errors import OutOfMemoryError
from tessera.core.processor import cores
from tessera.runtime.capi import words
from tessera.runtime.code import LlvmSource, load
from tessera.runtime.pool_ir import BLOCK_BYTES, SCRATCH, SPINS, pool_ir
from tessera.runtime.threads import MOST, thread_count

_SPIN_SECONDS = 50e-6  # a little more than what Python needs between two launches
_CHUNKS_PER_THREAD = 8  # enough to even out threads of unequal speed
_LINE = 64  # bytes of a cache line
_POINTER, _TEXT = ctypes.c_void_p, ctypes.c_char_p


class Job:
    """Work for the pool: a kernel, the sizes that it reads, and how [0, count) is cut.

    `grain` is the smallest number of instances that is worth a thread of its own.
    """

    __slots__ = (
        "_inner", "_memory", "_sizes", "address", "count", "prepared", "scratch", "seats", "worth",
    )  # fmt: skip

    def __init__(
        self, kernel: int, sizes: Sequence[int], count: int, threads: int,
        scratch: int = 0, grain: int = 1,
    ):  # fmt: skip
        used = max(1, min(threads, -(-count // grain)))
        chunk = max(1, grain, -(-count // (used * _CHUNKS_PER_THREAD)))
        self.count, self.scratch, self.seats = count, scratch, used - 1
        self.worth = count / grain  # threads that it would keep busy, if there were so many
        self.prepared: Pool | None = None  # the pool that has threads and scratch for it
        self._inner: Job | None = None  # what this one goes through another kernel for
        self._sizes = (ctypes.c_int64 * len(sizes))(*sizes)
        at = ctypes.addressof(self._sizes)
        self._memory = _Job(kernel, at, count, chunk, self.seats)
        self.address = ctypes.addressof(self._memory)

    def through(self, kernel: int, record: int) -> Job:
        """This job by another kernel, which is told of the job's own in the place of sizes."""
        own = self._memory
        made = Job(kernel, (own.kernel, own.sizes, record), self.count, 1, self.scratch)
        made.seats, made.worth, made._inner = self.seats, self.worth, self
        made._memory.chunk, made._memory.seats = own.chunk, own.seats
        return made


class _Job(ctypes.Structure):
    """What pool_ir.py calls %job."""

    _fields_ = (
        ("kernel", _POINTER), ("sizes", _POINTER), ("count", ctypes.c_int64),
        ("chunk", ctypes.c_int64), ("seats", ctypes.c_int32),
    )  # fmt: skip


Task = tuple[Job, Sequence[tuple[int, int]]]  # the cell and the byte offset of each parameter


class Series:
    """Phases that run one after another in one call; the jobs of a phase need nothing of each other.

    Cells in `checked` must hold arrays whose elements lie in order, or nothing runs.
    """

    __slots__ = (
        "_calls", "_checked", "_jobs", "_memory", "_tables", "address", "needs", "phases",
        "prepared", "scratch", "seats", "worth",
    )  # fmt: skip

    def __init__(
        self, phases: Sequence[Sequence[Task]], threads: int = 1, checked: Sequence[int] = ()
    ):
        calls = [c for phase in phases for c in phase]
        self.phases = [len(p) for p in phases]
        self._jobs = [job for job, _ in calls]
        self.scratch = max((job.scratch for job in self._jobs), default=0)
        self.prepared: Pool | None = None  # the pool that has threads and scratch for it
        self._tables = [words([n for p in ps for n in p]) for _, ps in calls]
        seats = [_seats(phase, threads) for phase in phases]
        heads = [
            head
            for phase, n in zip(phases, seats, strict=True)
            for head in ((len(phase), n), *[(0, 0)] * (len(phase) - 1))
        ]
        self.seats = max(seats, default=0)
        self.worth = sum(job.worth for job, _ in calls)  # threads that it would keep busy in all
        self.needs = [
            (n, max(job.scratch for job, _ in phase))
            for phase, n in zip(phases, seats, strict=True)
        ]
        self._calls = words(
            [
                n
                for (job, ps), t, head in zip(calls, self._tables, heads, strict=True)
                for n in (job.address, ctypes.addressof(t), len(ps), *head)
            ]
        )
        self._checked = words(checked)
        most = max((len(ps) for _, ps in calls), default=0)
        self._memory = words(
            [
                ctypes.addressof(self._calls), len(calls), most,
                ctypes.addressof(self._checked), len(checked), id(np.ndarray),
                max(self.phases, default=0),
            ]
        )  # fmt: skip
        self.address = ctypes.addressof(self._memory)


def _seats(phase: Sequence[Task], threads: int) -> int:
    """How many workers a phase is worth: jobs that are too small alone may be enough together."""
    worth = int(sum(job.worth for job, _ in phase))
    return max(min(threads, worth) - 1, *(job.seats for job, _ in phase))


def pool_source(futex: bool = True) -> LlvmSource:
    """The code of a pool."""
    names = ("alone", "launch", "series", "steps", "work", "stop", "pauses")
    return LlvmSource("thread pool", pool_ir(futex), names)


class Pool:
    """The threads of a process.  Use `pool()`: more than one would fight over the cores."""

    def __init__(self, futex: bool = True):
        self._code = load(pool_source(futex))
        at = self._code.addresses
        self._alone = ctypes.CFUNCTYPE(None, _POINTER, _TEXT, _POINTER)(at["alone"])
        self._launch = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, _TEXT)(at["launch"])
        self._series = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER, _TEXT, _POINTER)(
            at["series"]
        )
        self._steps = ctypes.CFUNCTYPE(
            ctypes.c_int64, _POINTER, _POINTER, ctypes.c_int64, ctypes.c_int64, _POINTER
        )(at["steps"])
        self._work = ctypes.CFUNCTYPE(None, _POINTER)(at["work"])
        self._stop = ctypes.CFUNCTYPE(None, _POINTER)(at["stop"])
        self._spins = _spins(ctypes.CFUNCTYPE(None, ctypes.c_int64)(at["pauses"]))
        self._lock = threading.RLock()  # a finalizer or a signal handler may launch too
        self.enter, self.leave = self._lock.acquire, self._lock.release
        self._stopped = False
        self._workers: list[threading.Thread] = []
        self._scratch = [_Scratch() for _ in range(MOST + 1)]
        self._table = (_POINTER * (MOST + 1))()
        self._memory = _Scratch()
        self._memory.reserve(BLOCK_BYTES, "the thread pool")
        self.block = self._memory.address  # what threads share
        ctypes.memset(self.block, 0, BLOCK_BYTES)
        ctypes.c_size_t.from_address(self.block + SCRATCH).value = ctypes.addressof(self._table)

    @property
    def series_code(self) -> int:
        """The address of the code that runs a series."""
        return self._code.addresses["series"]

    def run(self, job: Job, parameters: bytes) -> None:
        """Do a job; `parameters` are the packed addresses of the kernel's tensors."""
        if job.seats == 0:
            own = _OWN.scratch
            if job.scratch > own.bytes:
                own.reserve(job.scratch, "a kernel")
            self._alone(job.address, parameters, own.address)
            return
        with self._lock:
            if job.prepared is not self:
                self._reserve(job.seats, job.scratch)
                job.prepared = self
            self._launch(self.block, job.address, parameters)

    def run_series(self, series: Series, cells: bytes) -> int:
        """Do phases one after another; `cells` are the packed addresses of array objects.

        The result is 1, and nothing ran, when a cell that is checked holds no array in order.
        """
        if not series.seats:
            own = _OWN.scratch
            if series.scratch > own.bytes:
                own.reserve(series.scratch, "a kernel")
            return self._series(self.block, series.address, cells, own.address)  # type: ignore[no-any-return]
        with self._lock:
            if series.prepared is not self:
                self.prepare(series)
            at = self._scratch[0].address
            return self._series(self.block, series.address, cells, at)  # type: ignore[no-any-return]

    def run_steps(self, loop: int, series: Sequence[Series], first: int, count: int) -> int:
        """Do so many steps of the loop at an address, which runs these series; how many it did."""
        scratch = max((s.scratch for s in series), default=0)
        if not any(s.seats for s in series):
            if scratch > _OWN.scratch.bytes:
                _OWN.scratch.reserve(scratch, "a kernel")
            return self._held_steps(_OWN.scratch, loop, first, count)
        with self._lock:
            self._reserve(0, scratch)
            for s in series:
                if s.prepared is not self:
                    self.prepare(s)
            return self._held_steps(self._scratch[0], loop, first, count)

    def _held_steps(self, scratch: _Scratch, loop: int, first: int, count: int) -> int:
        """Do steps with scratch that stays: what a signal handler runs between them may want more of it."""
        held = scratch.memory
        done: int = self._steps(self.block, loop, first, count, scratch.address)
        del held
        return done

    def prepare(self, series: Series) -> None:
        """See that there are threads and scratch for a series."""
        with self._lock:
            for seats, scratch in series.needs if series.seats else ():
                self._reserve(seats, scratch)
            series.prepared = self

    def _reserve(self, seats: int, scratch: int) -> None:
        """See that there are threads and scratch for a launch; neither ever shrinks."""
        for i in range(seats + 1):
            if scratch > self._scratch[i].bytes:
                self._scratch[i].reserve(scratch, f"each of {seats + 1} threads of a kernel")
                self._table[i] = self._scratch[i].address
        self._start(seats)

    def _start(self, n: int) -> None:
        while len(self._workers) < n and not self._stopped:
            name = f"tessera-{len(self._workers) + 1}"
            thread = threading.Thread(target=self._work, args=(self.block,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads: those that run do the work
                return
            self._workers.append(thread)
            # A thread that spins would take the core from one that works.
            enough = len(self._workers) < cores()
            ctypes.c_int64.from_address(self.block + SPINS).value = self._spins if enough else 0

    def stop(self) -> None:
        """Let the workers end; later launches run on their callers."""
        with self._lock:
            self._stopped = True
            self._stop(self.block)
            for thread in self._workers:
                thread.join()


class _Scratch:
    """Memory that starts at a cache line and grows on demand."""

    __slots__ = ("_data", "address", "bytes")

    def __init__(self) -> None:
        self.address, self.bytes = 0, 0
        self._data: Any = None

    @property
    def memory(self) -> Any:
        """What holds it; another time, after it has grown."""
        return self._data

    def reserve(self, size: int, user: str) -> None:
        try:
            data = np.empty(size + _LINE, np.uint8)
        except (MemoryError, ValueError, OverflowError) as e:
            raise OutOfMemoryError(
                f"run: {user} needs {size} bytes of scratch memory, which this machine does not "
                "have; use smaller tensors or fewer threads (ts.threads)"
            ) from e
        self._data, self.bytes = data, size
        self.address = -(-data.ctypes.data // _LINE) * _LINE


class _Own(threading.local):
    """Scratch of a Python thread, for what it runs alone."""

    def __init__(self) -> None:
        self.scratch = _Scratch()


_OWN = _Own()


def _spins(pauses: Any) -> int:
    """How many pauses the spinning time is."""
    n, best = 1000, 1.0
    for _ in range(3):
        start = time.perf_counter()
        pauses(n)
        best = min(best, time.perf_counter() - start)
    return max(100, min(int(n * _SPIN_SECONDS / best), 100_000))


_POOL: Pool | None = None
_MAKING = threading.Lock()


def pool() -> Pool:
    """The pool of this process."""
    global _POOL
    if _POOL is None:
        with _MAKING:
            if _POOL is None:
                _POOL = Pool()
    return _POOL


def launch(
    kernel: int, parameters: Sequence[int], sizes: Sequence[int], count: int,
    scratch: int = 0, grain: int = 1,
) -> None:  # fmt: skip
    """Run the instances 0 to count of the kernel at an address, on as many threads as are set."""
    if count > 0:
        job = Job(kernel, sizes, count, thread_count(), scratch, grain)
        pool().run(job, struct.pack(f"{len(parameters)}P", *parameters))


def _at_exit() -> None:
    if _POOL is not None:
        _POOL.stop()


def _after_fork() -> None:
    """A child has none of its parent's threads, and may hold locks that they held."""
    global _POOL, _MAKING
    _POOL, _MAKING = None, threading.Lock()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
