"""Draws random programs over the whole catalogue of ops and checks every law on them.

    python tools/fuzz.py --seed 1 --count 1000          1,000 programs from seed 1 on
    python tools/fuzz.py --seed 1 --count 1000 --jobs 8  in so many processes
    python tools/fuzz.py --seed 7 --count 1 --show       the program of a seed, and what it breaks
    python tools/fuzz.py --only take,matmul --time 60    programs of these functions, for a minute
    python tools/fuzz.py --jax --count 300               also against jax.numpy, in f64
    python tools/fuzz.py --record failures.py            failures, made small, as tests

Programs run in worker processes: one that crashes or hangs is a failure like another.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
LIMIT = 240  # seconds for one program, shrinking included
LIFE = 400  # programs of a worker, which keeps what it compiled


def main() -> int:
    """Run what the command line asks for."""
    options = arguments()
    if options.worker:
        return work(options)
    if options.show:
        return show(options)
    run = Run(options)
    run.all()
    return run.report()


def arguments() -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--seed", type=int, default=0, help="the first seed")
    p.add_argument("--count", type=int, default=200, help="how many programs")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    p.add_argument("--jax", action="store_true", help="compare with jax.numpy in f64 as well")
    p.add_argument("--record", type=Path, help="a file for the failures as tests")
    p.add_argument("--only", default="", help="functions of the catalogue, with commas")
    p.add_argument(
        "--time", type=float, default=float("inf"), help="seconds after which no program starts"
    )
    p.add_argument("--show", action="store_true", help="print the programs and check them here")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


# A worker: seeds come in, one line of JSON for each goes out


def work(options: argparse.Namespace) -> int:
    """Check programs of the seeds on standard input until there are no more."""
    from tests.fuzz import session

    warnings.simplefilter("error")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a program prints does not go among the answers
    examine = session.examiner(options.only, options.jax)
    for line in sys.stdin:
        print(json.dumps(examine(int(line))), file=out, flush=True)
    return 0


def show(options: argparse.Namespace) -> int:
    """Print programs and what they break."""
    from tests.fuzz import session

    warnings.simplefilter("error")
    examine = session.examiner(options.only, options.jax)
    for seed in range(options.seed, options.seed + options.count):
        print(session.drawn(seed, options.only, options.jax))
        answer = examine(seed)
        for f in answer["failures"]:
            print(f["test"])
    return 0


class Run:
    """Hands seeds to workers and gathers what they answer."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.seeds = iter(range(options.seed, options.seed + options.count))
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.answers: list[dict[str, Any]] = []
        self.cache = tempfile.mkdtemp(prefix="tessera-fuzz-")

    def all(self) -> None:
        """Run the workers until the seeds are used up."""
        threads = [threading.Thread(target=self.serve) for _ in range(self.options.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def next(self) -> int | None:
        with self.lock:
            if time.monotonic() - self.began > self.options.time:
                return None
            return next(self.seeds, None)

    def serve(self) -> None:
        """One worker after another: a new one when the last has died or done its share."""
        seed = self.next()
        while seed is not None:
            worker = self.start()
            for _ in range(LIFE):
                answer = self.ask(worker, seed)
                with self.lock:
                    self.answers.append(answer)
                    self.tell(answer)
                seed = self.next()
                if seed is None or worker.poll() is not None:
                    break
            if worker.poll() is None:
                assert worker.stdin is not None
                worker.stdin.close()
                worker.wait()

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--worker", f"--only={self.options.only}"]
        usual = os.environ.get("TESSERA_CACHE_DIR", self.cache)
        env = {
            **os.environ,
            "TESSERA_CACHE_DIR": usual,
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            command + ["--jax"] * self.options.jax, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=env, cwd=ROOT,
        )  # fmt: skip

    def ask(self, worker: subprocess.Popen[str], seed: int) -> dict[str, Any]:
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
            return json.loads(line)  # type: ignore[no-any-return]
        code = worker.wait()
        how = f"took over {LIMIT} s" if hung else f"the process ended with {code}"
        test = f"# python tools/fuzz.py --show --seed {seed} --count 1: {how}\n"
        failure = {
            "check": "process",
            "kind": "Crash",
            "message": how,
            "ops": [],
            "test": test,
            "known": None,
        }
        return {"seed": seed, "ops": [], "checks": [], "failures": [failure]}

    def tell(self, answer: dict[str, Any]) -> None:
        for f in answer["failures"]:
            if f["known"] is None:
                print(
                    f"seed {answer['seed']}: {f['check']}: {f['kind']}: {f['message']}\n{f['test']}",
                    flush=True,
                )
        if len(self.answers) % 100 == 0:
            print(
                f"{len(self.answers)} programs, {time.monotonic() - self.began:.0f} s",
                file=sys.stderr,
            )

    def report(self) -> int:
        """Say what was found; 1 when something is unexplained."""
        seconds = time.monotonic() - self.began
        ops = {n for a in self.answers for n in a["ops"]}
        checks = collections.Counter(c for a in self.answers for c in a["checks"])
        failures = [f for a in self.answers for f in a["failures"]]
        new = [f for f in failures if f["known"] is None]
        known = collections.Counter(f["known"] for f in failures if f["known"] is not None)
        nodes = sum(len(a["ops"]) for a in self.answers)
        print(
            f"{len(self.answers)} programs of {nodes} nodes over {len(ops)} functions in {seconds:.0f} s"
        )
        print("checks: " + ", ".join(f"{n} {c}" for n, c in checks.most_common()))
        for why, count in known.most_common():
            print(f"known: {count} x {why}")
        print(f"unexplained: {len(new)}")
        if self.options.record and new:
            from tests.fuzz import session

            self.options.record.write_text(session.file_of([f["test"] for f in new]))
        return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
