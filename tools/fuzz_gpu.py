"""Random whole programs on a CUDA device, against the references of their ops.

    python tools/fuzz_gpu.py --seed 2000 --count 2000 --jobs 12   2,000 programs from seed 2,000 on
    python tools/fuzz_gpu.py --seed 7 --count 1 --show            the program of a seed, and how it fails
    python tools/fuzz_gpu.py --log                                the counts are added to
    benchmarks/records/fuzz-gpu.json

The programs are those of tests/support/cases/random_programs.py.  They run in worker processes: one that
ends its process, or spoils the device for it, is a failure like another.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tools.fuzz_driver import Drive, answer_seeds, log_run  # noqa: E402

LIFE = 100  # programs of a worker, which keeps what it compiled


def main() -> int:
    """Run what the command line asks for."""
    p = argparse.ArgumentParser(description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    p.add_argument("--seed", type=int, default=2000, help="the first seed")
    p.add_argument("--count", type=int, default=200, help="how many programs")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    p.add_argument("--time", type=float, default=float("inf"),
        help="seconds after which none starts")  # fmt: skip
    p.add_argument("--log", action="store_true", help="add the counts to benchmarks/records")
    p.add_argument("--show", action="store_true", help="print the programs and check them here")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = p.parse_args()
    warnings.simplefilter("ignore")
    if options.worker:
        return answer_seeds(examined)
    seeds = range(options.seed, options.seed + options.count)
    if options.show:
        return show(seeds)
    drive = Drive([__file__], seeds, options.time, LIFE, lambda seed, how: how, tell)
    answers = drive.all(options.jobs)
    wrong = sum(a is not None for a in answers)
    print(
        f"{len(answers)} programs from seed {options.seed} on in {drive.taken:.0f} s, {wrong} wrong"
    )
    if options.log:
        row = {"seed": options.seed, "count": len(answers), "unexplained": wrong}
        log_run("fuzz-gpu.json", {**row, "seconds": round(drive.taken)})
    return 1 if wrong else 0


def examined(seed: int) -> str | None:
    """How the program of a seed fails on the device."""
    from tests.compile.test_gpu_random import check

    try:
        check(seed)
    except Exception:
        return traceback.format_exc()
    return None


def show(seeds: range) -> int:
    """Print programs and how they fail."""
    from tests.support.cases.random_programs import program

    for seed in seeds:
        print(program(seed), examined(seed) or "as its references", sep="\n")
    return 0


def tell(seed: int, answer: str | None, done: int) -> None:
    """Print how one program failed."""
    if answer is not None:
        print(f"seed {seed}: {answer.strip().splitlines()[-1][:300]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
