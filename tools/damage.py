"""What tools that damage files share: one attempt, batches that are processes of their own, and the
record of a run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tessera.core.errors import TesseraError

BATCH = 200
MEMORY = 2 << 30  # bytes that a batch may have beyond what it starts with


def attempted(use: Callable[[], None], copy: str, well: str, seconds: float) -> str:
    """What becomes of a copy: `well`, refused, or a fault, which is told; so many seconds of the
    processor are not.
    """
    begin = time.process_time()
    try:
        use()
        found = well
    except TesseraError:
        found = "refused"
    except KeyboardInterrupt:
        raise
    except BaseException:
        found = "fault"
        print(f"{copy}: {traceback.format_exc(limit=-6)}", flush=True)
    took = time.process_time() - begin
    if took > seconds:
        found = "fault"
        print(f"{copy}: took {took:.0f} s", flush=True)
    return found


def limit_memory() -> None:
    """Let this process have so much memory beyond what it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def in_batches(
    batch: Callable[[int, range, Any], None], count: int, seed: int, first: int = 0
) -> Counter[str]:
    """All copies: a batch puts its counts; one that ends by itself counts as a fault."""
    total: Counter[str] = Counter()
    context = multiprocessing.get_context("fork")
    for start in range(first, first + count, BATCH):
        results: Any = context.SimpleQueue()
        numbers = range(start, min(start + BATCH, first + count))
        p = context.Process(target=batch, args=(seed, numbers, results))
        p.start()
        p.join()
        if p.exitcode:
            print(f"copies {numbers} of seed {seed} ended with {p.exitcode}", flush=True)
            total["batch: fault"] += 1
        else:
            total += results.get()
    return total


def main(what: str | None, run: Callable[[int, int, int], Counter[str]]) -> int:
    """Run `count` copies of a seed from the first on, as the command line says, and tell or record the
    counts.
    """
    parser = argparse.ArgumentParser(
        description=what, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--record")
    given = parser.parse_args()
    total = run(given.count, given.seed, given.first)
    faults = sum(n for k, n in total.items() if k.endswith("fault"))
    found = {"count": given.count, "seed": given.seed, "faults": faults}
    told = json.dumps({**found, **dict(sorted(total.items()))}, indent=1)
    print(told)
    if given.record:
        Path(given.record).write_text(told + "\n")
    return 1 if faults else 0
