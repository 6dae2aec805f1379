"""Drives a generator: hands seeds to worker processes, gathers their answers, and keeps a record of counts.

A generator is a script that answers seeds on its standard input with a line of JSON each when it is called
with
`--worker`.  A worker that dies or hangs is an answer too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "records"
LIMIT = 240  # seconds for one seed, shrinking included

Answer = Any


class Drive:
    """Seeds of a run, its workers, and its answers in the order in which they came."""

    def __init__(
        self,
        command: list[str],
        seeds: range,
        seconds: float,
        life: int,
        gone: Callable[[int, str], Answer],
        tell: Callable[[int, Answer, int], None],
    ):
        self.command, self.life = (
            command,
            life,
        )  # a worker keeps what it compiled: it serves so many seeds
        self.seeds, self.seconds = iter(seeds), seconds
        self.gone, self.tell = gone, tell
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.answers: list[Answer] = []

    @property
    def taken(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def all(self, jobs: int) -> list[Answer]:
        """Run so many workers at a time until the seeds or the seconds are used up."""
        threads = [threading.Thread(target=self._serve) for _ in range(jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return self.answers

    def _next(self) -> int | None:
        with self.lock:
            return None if self.taken > self.seconds else next(self.seeds, None)

    def _serve(self) -> None:
        """One worker after another: a new one when the last has died or done its share."""
        seed = self._next()
        while seed is not None:
            worker = self._start()
            for _ in range(self.life):
                answer = self._ask(worker, seed)
                with self.lock:
                    self.answers.append(answer)
                    self.tell(seed, answer, len(self.answers))
                seed = self._next()
                if seed is None or worker.poll() is not None:
                    break
            if worker.poll() is None:
                assert worker.stdin is not None
                worker.stdin.close()
                worker.wait()

    def _start(self) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "JAX_PLATFORMS": "cpu",  # an oracle: workers of one machine would share its GPU's memory
        }
        return subprocess.Popen(
            [sys.executable, *self.command, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=env, cwd=ROOT,
        )  # fmt: skip

    def _ask(self, worker: subprocess.Popen[str], seed: int) -> Answer:
        """What a worker says of a seed, or how it ended."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        timer = threading.Timer(LIMIT, worker.kill)
        timer.start()
        try:
            print(seed, file=worker.stdin, flush=True)
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            hung = not timer.is_alive()
            timer.cancel()
        if line:
            return json.loads(line)
        code = worker.wait()
        return self.gone(seed, f"took over {LIMIT} s" if hung else f"ended with {code}")


def answer_seeds(answer: Callable[[int], Answer]) -> int:
    """A worker: answer the seeds on standard input until there are no more."""
    with _own_output() as out:
        for line in sys.stdin:
            print(json.dumps(answer(int(line))), file=out, flush=True)
    return 0


@contextmanager
def _own_output() -> Iterator[TextIO]:
    """Standard output for the answers alone: what a program prints goes to the errors."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        yield out


def log_run(name: str, row: dict[str, Any]) -> None:
    """Append the counts of a run to its record, which holds the total of all runs."""
    path = RECORDS / name
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    runs.append(row)
    total = {k: sum(r[k] for r in runs) for k in ("count", "unexplained")}
    path.write_text(json.dumps({**total, "runs": runs}, indent=1) + "\n")
