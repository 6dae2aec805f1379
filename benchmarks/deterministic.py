"""What the law of bits costs: kernels whose folds keep its order, beside ones that keep none.

    python benchmarks/deterministic.py [--threads 2] [--rounds 40] [--record FILE]

Without the law a row is folded by four vectors at once, without leaves, and a product sums all of k in one
chain, without leaves in scratch; the fastest of several nests counts.  Kernels run in turn; the ratio is
that of the best times, and the spread that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.ir.schedule.choose import default_nest
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.legality import is_legal
from tessera.ir.schedule.nest import Nest, parse_nest
from tessera.ir.target.cpu.machine import architecture
from tessera.ir.tile import contraction, rows
from tessera.tune.measure import Bench

END = "k:1, unroll m:1, vector n:16"
WORKLOADS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gemm 512": (lambda a, b: a @ b, ((512, 512), (512, 512))),
    "gemm 1024": (lambda a, b: a @ b, ((1024, 1024), (1024, 1024))),
    "gemm 512x4096x512": (lambda a, b: a @ b, ((512, 4096), (4096, 512))),
    "softmax 2048x2048": (op.softmax, ((2048, 2048),)),
    "layernorm 2048x2048": (op.layernorm, ((2048, 2048),)),
    "row sums 4096x4096": (lambda x: op.sum(x, 1), ((4096, 4096),)),
    "row sums 16384x256": (lambda x: op.sum(x, 1), ((16384, 256),)),
    "sum 2^24": (op.sum, ((1 << 24,),)),
}


def kernel_of(f: Callable[..., Any], shapes: Sequence[tuple[int, ...]]) -> tuple[Kernel, Any]:
    zeros = [ts.tensor(np.zeros(s, np.float32)) for s in shapes]
    p = ts.jit(f, target="cpu").lower(*zeros).schedule
    (k,) = (s for s in p.steps if isinstance(s, Kernel))
    return replace(k, nest=None), {n: b.type for n, b in p.buffers.items()}


def candidates(k: Kernel) -> list[Nest]:
    """The default, and some that are good on one machine or another."""
    if not k.contracts:
        return [default_nest(k)]
    heads = [f"parallel m:{tall}, parallel n:{wide}" for tall in (126, 258) for wide in (64, 256)]
    texts = [f"{h}, k:512, n:64, m:6, {END}; stage right at 4" for h in heads]
    return [default_nest(k), *map(parse_nest, texts)]


def loose(k: Kernel) -> list[Nest]:
    """The same without leaves of k."""
    if not k.contracts:
        return [default_nest(k)]
    texts = [
        str(n).replace("k:512, ", "").replace("right at 4", "right at 3") for n in candidates(k)
    ]
    return [n for n in map(parse_nest, texts) if is_legal(k, n)]


@contextmanager
def without_the_law() -> Iterator[None]:
    """Lower folds in any order."""
    leaf, order = contraction.LEAF, rows._ANY_ORDER
    contraction.LEAF, rows._ANY_ORDER = 1 << 40, ("max", "min", "add", "mul")
    try:
        yield
    finally:
        contraction.LEAF, rows._ANY_ORDER = leaf, order


def compare(name: str, rounds: int) -> dict[str, Any]:
    k, types = kernel_of(*WORKLOADS[name])
    bench = Bench(k, types, {})
    ours = bench.candidates(candidates(k))
    with without_the_law():
        free = bench.candidates(loose(k))
    for c in (*ours, *free):
        c.run()
    for _ in range(rounds):
        for c in (*ours, *free):
            start = time.perf_counter()
            c.run()
            c.times.append(time.perf_counter() - start)
    kept, dropped = (min(group, key=lambda c: min(c.times)) for group in (ours, free))
    return {
        "workload": name,
        "deterministic_ms": min(kept.times) * 1e3,
        "any_order_ms": min(dropped.times) * 1e3,
        "ratio": min(dropped.times) / min(kept.times),
        "ratio_of_medians": statistics.median(dropped.times) / statistics.median(kept.times),
        "nests": [str(kept.nest), str(dropped.nest)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    found = []
    with override(threads=given.threads):
        for name in WORKLOADS:
            if given.only in name:
                found.append(compare(name, given.rounds))
                r = found[-1]
                print(f"{name:20} {r['deterministic_ms']:9.3f} ms  any order {r['any_order_ms']:9.3f} ms  "
                      f"ratio {r['ratio']:.2f} (medians {r['ratio_of_medians']:.2f})", flush=True)  # fmt: skip
    if given.record:
        whole = {
            "machine": architecture().split(" +")[0], "cores": os.cpu_count(),
            "threads": given.threads, "rounds": given.rounds, "python": platform.python_version(),
            "numpy": np.__version__, "load": os.getloadavg()[0], "results": found,
        }  # fmt: skip
        given.record.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
