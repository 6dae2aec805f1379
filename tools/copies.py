"""Copies of the project in which pytest runs, many at a time, each with a cache of its own."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import watched

ROOT = Path(__file__).parent.parent
MEMORY = 32 << 30  # bytes that a run of tests may ask for
OUT_OF_LIMIT, OUT_OF_TIME = -1001, -1002  # of a job, of all


class Job(NamedTuple):
    """A run of pytest."""

    tests: Sequence[str]
    env: Mapping[str, str]
    limit: float


class Done(NamedTuple):
    """How it ended: the exit status (less than zero for a signal), OUT_OF_LIMIT or OUT_OF_TIME."""

    status: int
    text: str
    seconds: float


Steps = Generator[Job, Done, None]


class Copy:
    """A copy of the project, with a cache of its own that shares machine code by the text of its LLVM IR."""

    def __init__(self, folder: Path, code: Path):
        self.folder, self.log = folder, folder.with_suffix(".log")
        listed = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
            check=False,
        ).stdout.split("\n")  # fmt: skip
        kept = [x for x in listed if x and (ROOT / x).is_file()] or _listed()
        for name in kept:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        self.cache = folder.with_suffix(".cache")
        self.code, self.moment = code, time.time()
        self.empty()

    def empty(self) -> None:
        """Forget programs, which a mutant may have made."""
        shutil.rmtree(self.cache, ignore_errors=True)
        self.cache.mkdir(mode=0o700)
        (self.cache / "code").symlink_to(self.code)

    def write(self, path: str, text: str) -> None:
        """Change a file of the package so that Python sees it, however soon after the last change."""
        file = self.folder / "tessera" / path
        file.write_text(text)
        self.moment += 10
        os.utime(file, (self.moment, self.moment))

    def start(self, job: Job) -> int:
        """Fork a process that runs the tests of a job."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 99
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            out = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.chdir(self.folder)
            tools = str(self.folder / "tools")
            os.environ |= {
                "TESSERA_CACHE_DIR": str(self.cache), "PYTHONPATH": f"{self.folder}{os.pathsep}{tools}",
                **job.env,
            }  # fmt: skip
            sys.path[:] = [str(self.folder), tools] + [
                x for x in sys.path if Path(x).name != "tools"
            ]
            sys.argv = ["pytest"]
            import pytest

            status = int(pytest.main([
                "-x", "-q", "-p", "no:cacheprovider", "-p", "watched", "--tb=line",
                "--hypothesis-profile=mutations",
                "-W", "ignore::pytest.PytestAssertRewriteWarning", "-m",
                "not oracle and not gpu and not deep",
                *(["--maxfail=1000000"] if watched.WATCHED in job.env else []), *job.tests,
            ]))  # fmt: skip
            sys.stdout.flush()
        finally:
            os._exit(status)


def _listed() -> list[str]:
    """The files of a project that is no checkout."""
    skipped = {
        ".git",
        ".venv",
        "build",
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
        ".hypothesis",
    }
    found = (f.relative_to(ROOT) for f in ROOT.rglob("*") if f.is_file())
    return [f.as_posix() for f in found if not skipped & set(f.parts)]


def run_all(copies: Sequence[Copy], work: deque[Callable[[Copy], Steps]], until: float) -> None:
    """Do all work, whose steps are jobs and may add work; stop all at the end of the time."""
    idle = list(copies)
    running: dict[int, tuple[Copy, Steps, float, float]] = {}

    def go(copy: Copy, steps: Steps, done: Done | None) -> None:
        try:
            job = next(steps) if done is None else steps.send(done)
        except StopIteration:
            idle.append(copy)
            return
        now = time.monotonic()
        running[copy.start(job)] = copy, steps, now, now + job.limit

    while (work and time.monotonic() < until) or running:
        while work and idle and time.monotonic() < until:
            copy = idle.pop()
            go(copy, work.popleft()(copy), None)
        ended = {pid: os.waitpid(pid, os.WNOHANG) for pid in running}
        for pid, (found, raw) in ended.items():
            copy, steps, begin, limit = running[pid]
            now = time.monotonic()
            if not found and now < min(limit, until):
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what it started, too
            if not found:
                os.waitpid(pid, 0)
            del running[pid]
            status = OUT_OF_LIMIT if now < until else OUT_OF_TIME
            if found:
                status = os.waitstatus_to_exitcode(raw)
            text = copy.log.read_text(errors="replace") if copy.log.exists() else ""
            go(copy, steps, Done(status, text, now - begin))
        time.sleep(0.02)
