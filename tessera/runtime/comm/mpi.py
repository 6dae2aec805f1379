"""The MPI engine: ranks that mpiexec or a scheduler started, by mpi4py."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core.errors import RankError
from tessera.core.flags import flags
from tessera.core.ranks import RankEngine

Array = np.ndarray[Any, Any]
_WORDS = 64  # bytes of the text that says what a message is for
_PAUSE = 0.001  # seconds, at most, between looks at a message that is late


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

    def _wait(self, requests: list[Any], what: str, ranks: Sequence[int]) -> None:
        """Wait for messages; look often at first, then less, so that a late one costs no core."""
        begin, pause = time.monotonic(), 0.0
        while not self._mpi.Request.Testall(requests):
            late = time.monotonic() - begin
            if late > flags().watchdog:
                missing = [r for r, q in zip(ranks, requests, strict=False) if not q.Test()]
                raise RankError(
                    f"{what}: rank {', '.join(map(str, missing))} did not come within {flags().watchdog} s "
                    "(TESSERA_WATCHDOG); it is stopped, too slow, or at no collective"
                )
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
            "every rank "
            "must run the same collectives in the same order"
        )
    shape = header[_WORDS // 8 :]
    return np.empty(tuple(int(n) for n in shape[shape >= 0]), dtype)
