"""Random programs aimed at views, at what follows products, and at shared memory, against NumPy.

    python tools/fuzz_views.py --count 50000              chains of views
    python tools/fuzz_views.py --kind epilogues           what follows products and folds
    python tools/fuzz_views.py --kind sharing             intermediates that die in place
    python tools/fuzz_views.py --seed 7 --jobs 2 --record append the outcome to the record

Many chains are compiled as one program; where one fails, each of its chains runs by itself.  One program in
so many (--every) runs as machine code, the others by their verified Schedule IR, which says where everything
is read.  Machine code is not kept: a run leaves nothing on the disk but its record.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "records" / "fuzz-aimed.json"
TOGETHER = {"views": 40, "epilogues": 8, "sharing": 12}  # chains of a program
LIFE = 25  # programs of a process, which keeps what it compiled
EVERY = {"views": 25, "epilogues": 1, "sharing": 1}


def run(kind: str, by: str, seeds: range) -> list[str]:
    """What fails of the chains of these seeds, by machine code or by the schedule."""
    sys.path.insert(0, str(ROOT))
    from tests.support.cases.random_chains import chain, failures

    def tried(part: range) -> list[str]:
        try:
            return failures([chain(kind, s) for s in part], by)
        except Exception as e:  # a fault of the compiler, whatever it is
            if len(part) == 1:
                return [f"{chain(kind, part[0]).text}: {type(e).__name__}: {str(e)[:300]}"]
            return [x for s in part for x in tried(range(s, s + 1))]

    return [f"{kind} {seeds}: {x}" for x in tried(seeds)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=TOGETHER, default="views")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many chains")
    parser.add_argument("--every", type=int, help="programs of which one runs as machine code")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--record", action="store_true", help=f"append to {RECORD.name}")
    a = parser.parse_args()
    step, start = TOGETHER[a.kind], time.perf_counter()
    end = a.seed + a.count
    parts = [range(s, min(s + step, end)) for s in range(a.seed, end, step)]
    every = a.every or EVERY[a.kind]
    by = ["schedule" if i % every else "code" for i in range(len(parts))]
    found: list[str] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TESSERA_CACHE_DIR"] = cache
        for first in range(0, len(parts), LIFE * a.jobs):
            some = slice(first, first + LIFE * a.jobs)
            with ProcessPoolExecutor(a.jobs, multiprocessing.get_context("spawn")) as pool:
                for new in pool.map(run, [a.kind] * len(parts[some]), by[some], parts[some]):
                    for line in new:
                        print(line, flush=True)
                    found += new
            print(f"{min(some.stop * step, a.count)} of {a.count}", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - start
    row = {"kind": a.kind, "seed": a.seed, "count": a.count, "failures": found,
        "seconds": round(seconds)}  # fmt: skip
    print(f"{a.kind}: {a.count} chains from seed {a.seed}, {len(found)} failures, {seconds:.0f} s")
    if a.record:
        old = json.loads(RECORD.read_text()) if RECORD.exists() else []
        RECORD.write_text(json.dumps([*old, row], indent=1) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
