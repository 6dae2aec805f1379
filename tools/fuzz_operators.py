"""Draws random expressions of operators and checks every law on them against NumPy and SciPy.

    python tools/fuzz_operators.py --seed 1 --count 1000            1,000 expressions from seed 1 on
    python tools/fuzz_operators.py --seed 1 --count 1000 --jobs 8   in so many processes
    python tools/fuzz_operators.py --seed 7 --count 1 --show        the expression of a seed, and what it breaks
    python tools/fuzz_operators.py --only kronecker,expm            expressions of these functions
    python tools/fuzz_operators.py --record failures.py             failures, made small, as tests

Of fifty expressions one runs as machine code, the others on the references of the ops.  Expressions run in worker
processes: one that crashes or hangs is a failure like another.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
LIMIT = 240  # seconds for one expression, shrinking included
LIFE = 500  # expressions of a worker


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
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    p.add_argument("--seed", type=int, default=0, help="the first seed")
    p.add_argument("--count", type=int, default=200, help="how many expressions")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    p.add_argument("--record", type=Path, help="a file for the failures as tests")
    p.add_argument("--only", default="", help="rows of tests/random_expressions.py, with commas")
    p.add_argument(
        "--time", type=float, default=float("inf"), help="seconds after which none starts"
    )
    p.add_argument("--show", action="store_true", help="print the expressions and check them here")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


def examined(seed: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """What the expression of a seed breaks."""
    from tests.expression_laws import examine

    only = [name for name in options.only.split(",") if name]
    return examine(seed, "cpu" if seed % 50 == 0 else "numpy", only)


def work(options: argparse.Namespace) -> int:
    """Check expressions of the seeds on standard input until there are no more."""
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an expression prints does not go among the answers
    for line in sys.stdin:
        print(json.dumps(examined(int(line), options)), file=out, flush=True)
    return 0


def show(options: argparse.Namespace) -> int:
    """Print expressions and what they break."""
    from tests.random_expressions import expression

    warnings.simplefilter("ignore")
    for seed in range(options.seed, options.seed + options.count):
        e = expression(seed, only=[n for n in options.only.split(",") if n])
        print(e.text(), e.text(matrix=True), sep="\n")
        found = examined(seed, options)
        print("every law holds" if found is None else found["test"])
    return 0


class Run:
    """Hands seeds to workers and gathers what they answer."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.seeds = iter(range(options.seed, options.seed + options.count))
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.done = 0
        self.failures: list[dict[str, Any]] = []

    def all(self) -> None:
        """Run the workers until the seeds are used up."""
        threads = [threading.Thread(target=self.serve) for _ in range(self.options.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def next(self) -> int | None:
        """The next seed, None when there is none or the time is over."""
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
                self.note(seed, answer)
                seed = self.next()
                if answer == "gone" or seed is None:
                    break
            worker.kill()
            worker.wait()

    def start(self) -> subprocess.Popen[str]:
        """A worker."""
        command = [sys.executable, __file__, "--worker", f"--only={self.options.only}"]
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    def ask(self, worker: subprocess.Popen[str], seed: int) -> Any:
        """What a worker says of a seed; "gone" when it says nothing."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        timer = threading.Timer(LIMIT, worker.kill)
        timer.start()
        try:
            worker.stdin.write(f"{seed}\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        return json.loads(line) if line else "gone"

    def note(self, seed: int, answer: Any) -> None:
        """Enter an answer."""
        with self.lock:
            self.done += 1
            if answer == "gone":
                answer = {"seed": seed, "law": "life", "how": "the process ended or hung", "test": f"# seed {seed} ends the process\n"}  # fmt: skip
            if answer is not None:
                self.failures.append(answer)
                print(
                    f"seed {seed}: {answer['law']}: {answer['how'].splitlines()[0][:160]}",
                    flush=True,
                )

    def report(self) -> int:
        """Print what was found, write it if that is wanted."""
        laws = collections.Counter(f["law"] for f in self.failures)
        told = ", ".join(f"{n} of {law}" for law, n in laws.most_common()) or "none"
        taken = time.monotonic() - self.began
        print(
            f"{self.done} expressions from seed {self.options.seed} on in {taken:.0f} s, failures: {told}"
        )
        for f in sorted(self.failures, key=lambda f: len(f["test"]))[:5]:
            print(f["test"])
        if self.options.record is not None:
            head = '"""Expressions of operators that broke a law."""\n\nimport numpy as np\n\nfrom tests.expression_laws import check\nfrom tests.random_expressions import MATRICES, OPERATORS\n\nglobals().update(OPERATORS | MATRICES)\n'
            body = "\n\n".join(
                f["test"] for f in sorted(self.failures, key=lambda f: int(f["seed"]))
            )
            self.options.record.write_text(f"{head}\n\n{body}" if self.failures else "")
        return 1 if self.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
