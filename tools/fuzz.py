"""Draws random programs over the whole catalogue of ops and checks every law on them.

    python tools/fuzz.py --seed 1 --count 1000          1,000 programs from seed 1 on
    python tools/fuzz.py --seed 1 --count 1000 --jobs 8  in so many processes
    python tools/fuzz.py --seed 7 --count 1 --show       the program of a seed, and what it breaks
    python tools/fuzz.py --only take,matmul --time 60    programs of these functions, for a minute
    python tools/fuzz.py --jax --count 300               also against jax.numpy, in f64
    python tools/fuzz.py --record failures.py            failures, made small, as tests
    python tools/fuzz.py --log                           the counts are added to
    benchmarks/records/fuzz-programs.json

Programs run in worker processes: one that crashes or hangs is a failure like another.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tools.fuzz_driver import Drive, answer_seeds, log_run  # noqa: E402

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
    p.add_argument("--log", action="store_true", help="add the counts to benchmarks/records")
    p.add_argument("--only", default="", help="functions of the catalogue, with commas")
    p.add_argument(
        "--time", type=float, default=float("inf"), help="seconds after which no program starts"
    )
    p.add_argument("--show", action="store_true", help="print the programs and check them here")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = p.parse_args()
    if given.only:
        from tests.fuzz.catalogue import MADE

        unknown = sorted(set(given.only.split(",")) - MADE.keys())
        if unknown:
            p.error(
                f"--only: the catalogue has no {', '.join(unknown)}; it has {', '.join(sorted(MADE))}"
            )
    return given


def work(options: argparse.Namespace) -> int:
    """Check programs of the seeds on standard input until there are no more."""
    from tests.fuzz import session

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "offload")  # a move that is not made says so
    return answer_seeds(session.examiner(options.only, options.jax))


def show(options: argparse.Namespace) -> int:
    """Print programs and what they break."""
    from tests.fuzz import session

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "offload")  # a move that is not made says so
    examine = session.examiner(options.only, options.jax)
    for seed in range(options.seed, options.seed + options.count):
        print(session.drawn(seed, options.only, options.jax))
        answer = examine(seed)
        for f in answer["failures"]:
            print(f["test"])
    return 0


def gone(seed: int, how: str) -> dict[str, Any]:
    """The answer for a worker that gave none."""
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


def tell(seed: int, answer: dict[str, Any], done: int) -> None:
    """Print what one program broke."""
    for f in answer["failures"]:
        if f["known"] is None:
            print(
                f"seed {seed}: {f['check']}: {f['kind']}: {f['message']}\n{f['test']}", flush=True
            )
    if done % 100 == 0:
        print(f"{done} programs", file=sys.stderr, flush=True)


class Run:
    """The answers of a run."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        command = [__file__, f"--only={options.only}", *["--jax"] * options.jax]
        seeds = range(options.seed, options.seed + options.count)
        os.environ.setdefault("TESSERA_CACHE_DIR", tempfile.mkdtemp(prefix="tessera-fuzz-"))
        self.drive = Drive(command, seeds, options.time, LIFE, gone, tell)

    def all(self) -> None:
        """Run the workers until the seeds are used up."""
        self.answers = self.drive.all(self.options.jobs)

    def report(self) -> int:
        """Say what was found; 1 when something is unexplained."""
        seconds = self.drive.taken
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
        if self.options.log:
            name = "fuzz-jax.json" if self.options.jax else "fuzz-programs.json"
            row = {
                "seed": self.options.seed,
                "count": len(self.answers),
                "nodes": nodes,
                "functions": len(ops),
            }
            log_run(
                name,
                {
                    **row,
                    "checks": dict(checks),
                    "known": dict(known),
                    "unexplained": len(new),
                    "seconds": round(seconds),
                },
            )
        return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
