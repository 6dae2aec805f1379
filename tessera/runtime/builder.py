"""Building machine code in child processes.

llvmlite carries an LLVM with assertions: a back-end that cannot select an instruction aborts the
process.  So LLVM's back-end runs in workers (build_worker.py) that are started at the first build,
talk over pipes and are replaced after a crash; a crash becomes a CompileError.  Several workers
build several kernels at once, which one process could not: llvmlite holds a lock.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tessera.core.errors import CompileError
from tessera.core.flags import carried
from tessera.core.processor import cores
from tessera.ir.target import cpu
from tessera.runtime import build_worker
from tessera.runtime.build_worker import LENGTH
from tessera.runtime.folder import saved

_MACHINE = Path(cpu.__path__[0]) / "machine.py"
MOST = min(cores(), 8)  # workers at once; a child takes longer to start than most kernels to build


class Worker:
    """One child process, which runs a file with arguments."""

    def __init__(self, command: Sequence[str]) -> None:
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.complaints,
                bufsize=0,  # nothing is buffered that a fork could send twice
            )  # fmt: skip
        except OSError as e:
            self.complaints.close()
            raise CompileError(
                f"compile: cannot start a process of {sys.executable!r} to build kernels in: {e}"
            ) from e

    def build(self, text: str) -> tuple[bytes, bytes] | None:
        """Status and payload of a reply; None when the process ended instead."""
        data = text.encode()
        try:
            self._write(LENGTH.pack(len(data)) + data)
            head = self._read(1 + LENGTH.size)
            return head[:1], self._read(*LENGTH.unpack(head[1:]))
        except (BrokenPipeError, EOFError):
            return None

    def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        left = memoryview(data)
        while left:
            left = left[self.process.stdin.write(left) :]

    def _read(self, n: int) -> bytes:
        assert self.process.stdout is not None
        out = bytearray()
        while len(out) < n:
            part = self.process.stdout.read(n - len(out))
            if not part:
                raise EOFError
            out += part
        return bytes(out)

    def obituary(self) -> str:
        """How the process ended, and the first thing that it said."""
        code = self.process.wait()
        how = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        self.complaints.seek(0)
        lines = self.complaints.read().decode(errors="replace").splitlines()
        said = next((line.strip() for line in lines if line.strip()), "")
        return f"{how}: {said}" if said else how

    def close(self) -> None:
        """End the process; it has nothing to do when it is closed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.complaints.close()

    def forget(self) -> None:
        """Let go of a process that belongs to the parent of this one."""
        self.process.returncode = 0
        for file in (self.process.stdin, self.process.stdout, self.complaints):
            assert file is not None
            file.close()


class Workers:
    """The child processes of this process that run one command, at most so many at once."""

    def __init__(self, command: Sequence[str], most: int) -> None:
        self.command, self.most = command, most
        self._begin()
        _ALL.append(self)

    def _begin(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[Worker] = []
        self.all: list[Worker] = []
        self.seats = threading.Semaphore(self.most)

    def forget(self) -> None:
        """Begin anew: those there are belong to the parent of this process."""
        for worker in self.all:
            worker.forget()
        self._begin()

    def build(self, text: str) -> tuple[bytes, bytes] | str:
        """The reply to a request, or how the process ended that should have given one."""
        with self.seats:
            worker = self.take()
            reply = worker.build(text)
            if reply is None:
                death = worker.obituary()
                self.drop(worker)
                return death
            self.give(worker)
            return reply

    def take(self) -> Worker:
        with self.lock:
            while self.idle:
                worker = self.idle.pop()
                if worker.process.poll() is None:
                    return worker
                self._drop(worker)
            return self._add()

    def start(self, n: int) -> None:
        with self.lock:
            while len(self.all) < n:
                self.idle.append(self._add())

    def _add(self) -> Worker:
        worker = Worker(self.command)
        self.all.append(worker)
        return worker

    def give(self, worker: Worker) -> None:
        with self.lock:
            self.idle.append(worker)

    def drop(self, worker: Worker) -> None:
        with self.lock:
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        self.all.remove(worker)
        worker.close()

    def close(self) -> None:
        """End the idle ones; one that works for a daemon thread ends when its pipe breaks."""
        with self.lock:
            while self.idle:
                self._drop(self.idle.pop())


_ALL: list[Workers] = []
_WORKERS = Workers([build_worker.__file__, str(_MACHINE)], MOST)


def _close() -> None:
    for workers in _ALL:
        workers.close()


def _after_fork() -> None:
    for workers in _ALL:
        workers.forget()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def start(n: int = 1) -> None:
    """Have n workers start while this process does something else, such as lowering."""
    _WORKERS.start(min(n, MOST))


def build_safely(text: str, name: str) -> bytes:
    """The object file of LLVM IR; `name` is what the kernel is called in an error."""
    reply = _WORKERS.build(text)
    if isinstance(reply, str):
        raise CompileError(
            f"compile: LLVM could not build kernel {name!r} ({reply}); its LLVM IR is kept in "
            f"{_keep(text, name)}, please report it with that file"
        )
    status, payload = reply
    if status == b"+":
        return payload
    said = " ".join(payload.decode().split())
    raise CompileError(
        f"compile: LLVM refused kernel {name!r} ({said}); its LLVM IR is kept in "
        f"{_keep(text, name)}, please report it with that file"
    )


def build_all(modules: Sequence[tuple[str, str]]) -> list[bytes | CompileError]:
    """The object file, or the error, of each (text, name), built side by side."""
    n = min(len(modules), MOST)
    if n <= 1:
        return [_attempt(m) for m in modules]
    start(n)
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(carried(_attempt), modules))


def _attempt(module: tuple[str, str]) -> bytes | CompileError:
    try:
        return build_safely(*module)
    except CompileError as e:
        return e


def _keep(text: str, name: str) -> Path:
    """Save IR that LLVM failed on, in the cache or, if that is not writable, among temporary files."""
    return saved("failed", f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.ll", text)
