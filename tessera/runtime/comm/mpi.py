"""The MPI engine: ranks that mpiexec or a scheduler started, by mpi4py."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from tessera.core.errors import RankError
from tessera.core.flags import flags
from tessera.core.ranks import RankEngine
from tessera.runtime import memory

Array = np.ndarray[Any, Any]
_WORDS = 64  # bytes of the text that says what a message is for
_PAUSE = 0.001  # seconds, at most, between looks at a message that is late
# The dtypes that MPI adds up, and its names of them.
_SUMMED = {"f": "FLOAT", "d": "DOUBLE", "i": "INT", "l": "LONG", "q": "LONG_LONG"}
# Bytes of an array up to which a mark beside it saves an exchange, which takes 2% of a longer one's time.
_MARKED = 1 << 18
_CODES = 1 << 12  # of marks: sums of 2^12 of them are whole numbers in f32
_SAME = "every rank must run the same collectives in the same order"
LOST = 75  # exit status of a rank that ended since another one did


def _mpi() -> Any:
    try:
        return importlib.import_module("mpi4py.MPI")
    except ImportError as e:
        raise RankError(
            f"the engine mpi needs mpi4py and an MPI library ({e}); get them with pip install mpi4py mpich, "
            "or "
            "use --engine local"
        ) from None


def mpiexec(count: int) -> list[str]:
    """The command that starts this many ranks: that of Python's environment, or one on the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise RankError(
            "there is no mpiexec; get one with pip install mpich, or use --engine local"
        )
    return [found, "-n", str(count)]


class MpiEngine(RankEngine):
    """A rank of MPI's world."""

    name = "mpi"

    def __init__(self) -> None:
        self._mpi = _mpi()
        self._world = self._mpi.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        here = self._world.Split_type(self._mpi.COMM_TYPE_SHARED)
        self.place = here.Get_rank(), here.Get_size()  # among the ranks of this machine
        crowded = here.Get_size() > (os.cpu_count() or 1)  # the library waits on its core
        self._has_cores = not self._world.allreduce(crowded, self._mpi.LOR)
        here.Free()
        self._groups: dict[tuple[int, ...], Any] = {}
        self._sums: dict[tuple[str, Sequence[int]], _Summed] = {}
        self._watch: _Watch | None = None

    @property
    def library(self) -> Any:
        """The module of mpi4py."""
        return self._mpi

    @property
    def watch(self) -> _Watch:
        """What looks after calls that wait inside of the library."""
        if self._watch is None:
            self._watch = _Watch(self)
        return self._watch

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Array]) -> list[Array]:
        """Send an array to each rank of a group and return what each of them sent here."""
        others = [
            (r, np.ascontiguousarray(x)) for r, x in zip(group, sent, strict=True) if r != self.rank
        ]
        heads = {r: _header(what, x) for r, x in others}
        theirs = {r: np.empty_like(h) for r, h in heads.items()}
        started = [self._world.Isend(h, r, 1) for r, h in heads.items()]
        self._wait([self._world.Irecv(theirs[r], r, 1) for r in heads], what, list(heads))
        got = {r: _empty(theirs[r], what, r, x.dtype) for r, x in others}
        started += [
            self._world.Isend(x.view(np.uint8).reshape(-1) if x.size else x, r, 2)
            for r, x in others
        ]
        waiting = [self._world.Irecv(_raw(got[r]), r, 2) for r, _ in others]
        self._wait(waiting, what, [r for r, _ in others])
        self._wait(started, what, list(group))
        return [x if r == self.rank else got[r] for r, x in zip(group, sent, strict=True)]

    def sum(self, what: str, group: Sequence[int], x: Array) -> Array | None:
        """The sum over a group by MPI's all-reduce; None for dtypes that it does not add up, and where ranks
        share cores, on which it would wait.
        """
        if not self._has_cores:
            return None
        key = what, group
        found = self._sums.get(key)
        if found is None:
            kind = _Summed if x.nbytes > _MARKED else _MarkedSum
            found = self._sums[key] = kind(self, what, tuple(group), x)
        return found.of(x) if found.is_known else None

    def group(self, group: tuple[int, ...]) -> Any:
        """What the ranks of a group speak by."""
        found = self._groups.get(group)
        if found is None:
            members = self._world.group.Incl(list(group))
            found = self._groups[group] = self._world.Create_group(members)
            found.Set_errhandler(self._mpi.ERRORS_RETURN)
        return found

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory for what a collective makes, used again when nothing holds it."""
        return memory.empty(shape, dtype)

    def _wait(self, requests: list[Any], what: str, ranks: Sequence[int]) -> None:
        """Wait for messages; look often at first, then less, so that a late one costs no core."""
        begin, pause = time.monotonic(), 0.0
        while not self._mpi.Request.Testall(requests):
            late = time.monotonic() - begin
            if late > flags().watchdog:
                missing = [r for r, q in zip(ranks, requests, strict=False) if not q.Test()]
                raise RankError(_late(what, missing))
            if late > 2e-4:
                time.sleep(pause)
                pause = min(_PAUSE, pause + 2e-5)

    @staticmethod
    def abort(status: int) -> None:
        """End every rank."""
        sys.stderr.flush()
        sys.stdout.flush()
        _mpi().COMM_WORLD.Abort(status)
        os._exit(status)


class _Summed:
    """A sum over a group that the library computes: its words go before its elements."""

    def __init__(self, engine: MpiEngine, what: str, group: tuple[int, ...], x: Array):
        self.is_known = x.dtype.char in _SUMMED
        if not self.is_known:
            return
        self._engine, self._what, self._group_of = engine, what, group
        comm = engine.group(group)
        self._reduce, self._size, self._watch = comm.Allreduce, comm.size, engine.watch
        self._code = np.array([zlib.crc32(what.encode())], np.int64)

    def of(self, x: Array) -> Array:
        """The sum of what the ranks of the group hold."""
        self._watch.now = self._what, self._group_of, monotonic()
        try:
            made, is_same = self._made(x)
        except Exception as e:  # of MPI, whose classes are known when it is loaded
            raise RankError(f"{self._what}: {e}; {_SAME}") from None
        finally:
            self._watch.now = None
        if not is_same:
            nothing = [np.zeros(0)] * len(self._group_of)
            self._engine.exchange(self._what, self._group_of, nothing)  # says what each is at
        return made

    def _made(self, x: Array) -> tuple[Array, bool]:
        total = np.empty_like(self._code)
        self._reduce(self._code, total)
        if total[0] != self._size * self._code[0]:
            return x, False
        out = memory.empty(x.shape, x.dtype)
        self._reduce(np.ascontiguousarray(x), out)
        return out, True


class _MarkedSum(_Summed):
    """A short one: a number for its words stands behind its elements, in the same message."""

    def __init__(self, engine: MpiEngine, what: str, group: tuple[int, ...], x: Array):
        super().__init__(engine, what, group, x)
        if not self.is_known:
            return
        self._shape, self._count, self._dtype = x.shape, x.size + 1, x.dtype
        self._empty = memory.empty if x.nbytes > memory.SMALL else np.empty
        self._in_place = engine.library.IN_PLACE
        self._type = getattr(engine.library, _SUMMED[x.dtype.char])  # named, it is not looked up
        self._mark = float(self._code[0] % _CODES)
        self._total = self._size * self._mark

    def _made(self, x: Array) -> tuple[Array, bool]:
        made = self._empty((self._count,), self._dtype)
        body = made[:-1]
        if x.ndim != 1:
            body = body.reshape(self._shape)
        body[...] = x
        made[-1] = self._mark
        self._reduce(self._in_place, [made, self._count, self._type])
        return body, made[-1] == self._total


class _Watch:
    """A thread that ends the run when the library has waited too long for other ranks."""

    def __init__(self, engine: MpiEngine):
        self._engine = engine
        self.now: tuple[str, Sequence[int], float] | None = None  # what is waited for, since when
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(min(1.0, flags().watchdog / 4))
            now = self.now
            if now is None or monotonic() - now[2] <= flags().watchdog:
                continue
            what, group, _ = now
            sys.stderr.write(_late(what, [r for r in group if r != self._engine.rank]) + "\n")
            self._engine.abort(LOST)


def _late(what: str, ranks: Sequence[int]) -> str:
    return (
        f"{what}: rank {' or '.join(map(str, ranks))} did not come within {flags().watchdog} s "
        "(TESSERA_WATCHDOG); it is stopped, too slow, or at no collective"
    )


def _raw(x: Array) -> Array:
    return x.reshape(-1).view(np.uint8) if x.size else x


def _header(what: str, x: Array) -> Array:
    """What a message is for, and the shape of its array, in a fixed number of bytes."""
    text = what.encode()[:_WORDS].ljust(_WORDS)
    shape = np.full(16, -1, np.int64)
    shape[: x.ndim] = x.shape
    return np.concatenate([np.frombuffer(text, np.int64), shape])


def _empty(header: Array, what: str, rank: int, dtype: Any) -> Array:
    theirs = header[: _WORDS // 8].tobytes()
    if theirs != what.encode()[:_WORDS].ljust(_WORDS):
        raise RankError(
            f"ranks are out of step: this rank is at {what}, rank {rank} at {theirs.decode().strip()}; "
            f"{_SAME}"
        )
    shape = header[_WORDS // 8 :]
    return np.empty(tuple(int(n) for n in shape[shape >= 0]), dtype)
