"""Whether simplify under an error budget chooses the representation that runs fastest.

    python benchmarks/representations.py [--cases N] [--first N] [--record FILE]

A case is a random expression of matrices whose singular values fall, a budget, and a number of columns.
All representations within the budget are measured, interleaved: as written, simplified, with factors of
low rank, as one factor of low rank, as one matrix.  A row shows the time of the chosen one beside the
fastest.  The last line is the share of cases within 1.2 of the best, and the worst ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera.algebra.laws.simplify import search, within
from tessera.algebra.laws.truncate import choices
from tessera.algebra.operator import FUNCTIONS, Operator

dense, diag, kronecker = (FUNCTIONS[name] for name in ("dense", "diag", "kronecker"))
SIZES = (64, 128, 256, 512)
ROUNDS = 7


def decaying(r: np.random.Generator, m: int, n: int) -> Operator:
    """A matrix whose singular values fall, fast or slowly."""
    k = min(m, n)
    u, v = (np.linalg.qr(r.standard_normal((s, k)))[0] for s in (m, n))
    s = 10.0 ** -(np.arange(k) * r.choice([0.01, 0.05, 0.3]))
    return dense(ts.tensor(((u * s) @ v.T).astype(np.float32)))


def expression(r: np.random.Generator) -> Operator:
    """A random expression."""
    m, n, k = (int(s) for s in r.choice(SIZES, 3))
    a, b, c = decaying(r, m, k), decaying(r, k, n), decaying(r, m, n)
    forms: tuple[Callable[[], Operator], ...] = (
        lambda: a, lambda: a @ b, lambda: a @ b + c, lambda: 0.5 * c - a @ b, lambda: c.H @ a,
        lambda: kronecker(a, decaying(r, 8, 8)) @ kronecker(b, decaying(r, 8, 8)),
        lambda: FUNCTIONS["direct_sum"](a, b), lambda: diag(ts.tensor(np.ones(m, np.float32))) @ c,
    )  # fmt: skip
    return forms[r.integers(len(forms))]()


def structure(a: Operator) -> str:
    """Equal for operators that run alike."""
    return f"{a} {[x.shape for x in ts.tree.leaves(a)]}"


def case(seed: int) -> dict[str, Any]:
    """Times of all representations of one random case."""
    r = np.random.default_rng(seed)
    a = expression(r)
    eps, columns = 10.0 ** -int(r.integers(1, 5)), int(r.choice([1, 1, 16]))
    exact = search(a, columns).operator()
    chosen = within("benchmark", exact, eps, columns).operator
    found = {
        structure(o): o
        for o in (a, exact, *(t.operator for t in choices(exact, eps, columns)), chosen)
    }
    x = ts.tensor(r.standard_normal((a.shape[1], columns)).astype(np.float32))
    times = measured(found, x)
    best = min(times, key=lambda k: times[k])
    mine = times[structure(chosen)]
    return {"seed": seed, "eps": eps, "columns": columns, "chosen": structure(chosen), "best": best,
            "ratio": mine / times[best], "microseconds": {k: 1e6 * t for k, t in times.items()}}  # fmt: skip


def measured(found: dict[str, Operator], x: Any) -> dict[str, float]:
    """The fastest run of each in seconds, in turn."""
    runs = {k: ts.jit(lambda a, v: a @ v) for k in found}
    for k, a in found.items():
        runs[k](a, x)
    times = dict.fromkeys(found, float("inf"))
    for _ in range(ROUNDS):
        for k, a in found.items():
            for _ in range(20):
                begin = time.perf_counter()
                runs[k](a, x)
                times[k] = min(times[k], time.perf_counter() - begin)
    return times


def main() -> None:
    """The table, printed and recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    rows = []
    for seed in range(options.first, options.first + options.cases):
        rows.append(case(seed))
        r = rows[-1]
        print(
            f"{seed:3} {r['ratio']:5.2f}  {r['chosen'][:70]:70}  best {r['best'][:70]}", flush=True
        )
    ratios = [r["ratio"] for r in rows]
    share = sum(x <= 1.2 for x in ratios) / len(ratios)
    print(f"within 1.2 of the best: {share:.0%}; worst {max(ratios):.2f}")
    if options.record:
        where = {"machine": platform.machine(), "threads": os.environ.get("TESSERA_THREADS", "all"),
                 "python": platform.python_version(), "numpy": np.__version__}  # fmt: skip
        told = {"where": where, "share": share, "worst": max(ratios), "rows": rows}
        options.record.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
