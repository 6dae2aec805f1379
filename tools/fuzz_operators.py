"""Draws random expressions of operators and checks every law on them against NumPy and SciPy.

    python tools/fuzz_operators.py --seed 1 --count 1000            1,000 expressions from seed 1 on
    python tools/fuzz_operators.py --seed 1 --count 1000 --jobs 8   in so many processes
    python tools/fuzz_operators.py --seed 7 --count 1 --show        the expression of a seed, and what it
    breaks
    python tools/fuzz_operators.py --only kronecker,expm            expressions of these functions
    python tools/fuzz_operators.py --record failures.py             failures, made small, as tests
    python tools/fuzz_operators.py --log                            the counts are added to benchmarks/records

Of fifty expressions one runs as machine code, the others on the references of the ops.  Expressions run in
worker processes: one that crashes or hangs is a failure like another.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tools.fuzz_driver import Drive, answer_seeds, log_run  # noqa: E402

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
    p = argparse.ArgumentParser(description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    p.add_argument("--seed", type=int, default=0, help="the first seed")
    p.add_argument("--count", type=int, default=200, help="how many expressions")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    p.add_argument("--record", type=Path, help="a file for the failures as tests")
    p.add_argument("--log", action="store_true", help="add the counts to benchmarks/records")
    p.add_argument(
        "--only", default="", help="rows of tests/support/cases/random_expressions.py, with commas"
    )
    p.add_argument(
        "--time", type=float, default=float("inf"), help="seconds after which none starts"
    )
    p.add_argument("--show", action="store_true", help="print the expressions and check them here")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


def examined(seed: int, options: argparse.Namespace) -> dict[str, Any] | None:
    """What the expression of a seed breaks."""
    from tests.support.runners.expression_laws import examine

    only = [name for name in options.only.split(",") if name]
    return examine(seed, "cpu" if seed % 50 == 0 else "numpy", only)


def work(options: argparse.Namespace) -> int:
    """Check expressions of the seeds on standard input until there are no more."""
    warnings.simplefilter("ignore")
    return answer_seeds(lambda seed: examined(seed, options))


def show(options: argparse.Namespace) -> int:
    """Print expressions and what they break."""
    from tests.support.cases.random_expressions import expression

    warnings.simplefilter("ignore")
    for seed in range(options.seed, options.seed + options.count):
        e = expression(seed, only=[n for n in options.only.split(",") if n])
        print(e.text(), e.text(matrix=True), sep="\n")
        found = examined(seed, options)
        print("every law holds" if found is None else found["test"])
    return 0


def gone(seed: int, how: str) -> dict[str, Any]:
    """The answer for a worker that gave none."""
    return {"seed": seed, "law": "life", "how": how, "test": f"# seed {seed}: the process {how}\n"}


def tell(seed: int, answer: dict[str, Any] | None, done: int) -> None:
    """Print what one expression broke."""
    if answer is not None:
        print(f"seed {seed}: {answer['law']}: {answer['how'].splitlines()[0][:160]}", flush=True)


class Run:
    """The answers of a run."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        seeds = range(options.seed, options.seed + options.count)
        self.drive = Drive(
            [__file__, f"--only={options.only}"], seeds, options.time, LIFE, gone, tell
        )

    def all(self) -> None:
        """Run the workers until the seeds are used up."""
        answers = self.drive.all(self.options.jobs)
        self.done, self.failures = len(answers), [a for a in answers if a is not None]

    def report(self) -> int:
        """Print what was found, write it if that is wanted."""
        laws = collections.Counter(f["law"] for f in self.failures)
        told = ", ".join(f"{n} of {law}" for law, n in laws.most_common()) or "none"
        taken = self.drive.taken
        print(
            f"{self.done} expressions from seed {self.options.seed} on in {taken:.0f} s, failures: {told}"
        )
        for f in sorted(self.failures, key=lambda f: len(f["test"]))[:5]:
            print(f["test"])
        if self.options.record is not None:
            head = '"""Expressions of operators that broke a law."""\n\nimport numpy as np\n\nfrom tests.support.runners.expression_laws import check\nfrom tests.support.cases.random_expressions import MATRICES, OPERATORS\n\nglobals().update(OPERATORS | MATRICES)\n'  # noqa: E501
            body = "\n\n".join(
                f["test"] for f in sorted(self.failures, key=lambda f: int(f["seed"]))
            )
            self.options.record.write_text(f"{head}\n\n{body}" if self.failures else "")
        if self.options.log:
            row = {"seed": self.options.seed, "count": self.done, "laws": dict(laws)}
            log_run(
                "fuzz-operators.json",
                {**row, "unexplained": len(self.failures), "seconds": round(taken)},
            )
        return 1 if self.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
