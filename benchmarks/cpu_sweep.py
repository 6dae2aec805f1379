"""The cliff detector of the CPU: ops of the catalogue and programs with loops beside JAX, on one thread.

    python benchmarks/cpu_sweep.py [--only TEXT,TEXT] [--programs | --ops] [--record [FILE]]

Both are jitted and called in turn; a time is the least of some rounds, in seconds of the processor, so that a
machine which does other things as well gives the same ratios.  A ratio is JAX's time over ours: below 1
ours is slower.  Results are compared too.  Run it with an interpreter that has JAX (make test-oracles sets
one up).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before NumPy and JAX are imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import numpy as np
from beside_jax.case import Case

import tessera as ts
from tessera.core import tree

HERE = Path(__file__).parent
ROUNDS, TURN = 5, 0.02  # turns of each, and seconds that one takes at least


def turn(f: Callable[[], Any], count: int) -> float:
    """Seconds of the processor that a call takes."""
    begin = time.process_time()
    for _ in range(count):
        f()
    return (time.process_time() - begin) / count


def enough(f: Callable[[], Any]) -> int:
    """Calls that take a turn."""
    count = 1
    while turn(f, count) * count < TURN:
        count *= 2
    return count


def times(functions: Sequence[Callable[[], Any]]) -> list[float]:
    """The least time of each, taken in turn."""
    counts = [enough(f) for f in functions]
    best = [math.inf] * len(functions)
    for _ in range(ROUNDS):
        for i, (f, n) in enumerate(zip(functions, counts, strict=True)):
            best[i] = min(best[i], turn(f, n))
    return best


def agree(ours: Any, theirs: Any) -> bool:
    """Whether results are those of the other library, to the rounding of long sums in f32."""
    pairs = zip(tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(
        np.allclose(np.asarray(a), np.asarray(b), rtol=5e-3, atol=5e-3, equal_nan=True)
        for a, b in pairs
    )


def measured(c: Case) -> dict[str, Any]:
    """The times of a case, and whether both libraries find the same."""
    f, g = ts.jit(c.ours), jax.jit(c.theirs)
    xs, ys = [ts.tensor(x) for x in c.operands], [jax.numpy.asarray(x) for x in c.operands]
    same = agree(f(*xs), g(*ys))
    ours, theirs = times([lambda: f(*xs), lambda: jax.block_until_ready(g(*ys))])
    return {"case": c.name, "ours": ours, "jax": theirs, "ratio": theirs / ours, "agrees": same}


def show(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Print what was measured, the worst first, and return the summary."""
    for r in sorted(rows, key=lambda r: r["ratio"]):
        odd = "" if r["agrees"] else "  OTHER RESULT"
        ours, theirs = r["ours"] * 1e6, r["jax"] * 1e6
        print(f"{r['ratio']:7.2f}  {r['case']:32} {ours:10.1f} us  jax {theirs:10.1f} us{odd}")
    ratios = [r["ratio"] for r in rows]
    summary = {
        "cases": len(rows),
        "geometric mean": math.exp(sum(map(math.log, ratios)) / len(rows)),
        "below 0.5": sum(r < 0.5 for r in ratios),
        "below 0.8": sum(r < 0.8 for r in ratios),
        "other results": sum(not r["agrees"] for r in rows),
    }
    print(", ".join(f"{k} {v:.3g}" for k, v in summary.items()))
    return summary


def main() -> int:
    """Measure the cases that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="parts of names, with commas")
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--ops", action="store_true")
    default = HERE / "records" / f"cpu-sweep-{platform.machine()}.json"
    parser.add_argument("--record", nargs="?", type=Path, const=default)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    warnings.simplefilter("ignore")
    found: list[Case] = []
    if not args.ops:
        from beside_jax import programs

        found += programs.cases()
    if not args.programs:
        from beside_jax import ops

        found += ops.cases()
    if args.only:
        found = [c for c in found if any(part in c.name for part in args.only.split(","))]
    rows = []
    with ts.threads(1):
        for c in found:
            rows.append(measured(c))
            print(f"{rows[-1]['ratio']:7.2f}  {c.name}", file=sys.stderr, flush=True)
    summary = show(rows)
    if args.record:
        kept = [
            {
                **r,
                "ours": float(f"{r['ours']:.4g}"),
                "jax": float(f"{r['jax']:.4g}"),
                "ratio": round(r["ratio"], 3),
            }
            for r in rows
        ]
        told = {
            "machine": platform.processor() or platform.machine(),
            "jax": jax.__version__,
            **summary,
        }
        args.record.write_text(json.dumps({**told, "rows": kept}, indent=1) + "\n")
    return int(bool(summary["other results"]))


if __name__ == "__main__":
    raise SystemExit(main())
