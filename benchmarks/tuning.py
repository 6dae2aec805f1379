"""What tuning gains: workloads before and after `ts.tune`, in turn, on a store of their own.

python benchmarks/tuning.py [--threads 2] [--budget 8000] [--only NAME] [--record FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.ir.target.cpu.machine import architecture

WORKLOADS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gemm 256": (lambda a, b: a @ b, ((256, 256), (256, 256))),
    "gemm 1024": (lambda a, b: a @ b, ((1024, 1024), (1024, 1024))),
    "gemm 32x4096x1024": (lambda a, b: a @ b, ((32, 4096), (4096, 1024))),
    "gemm 1x4096x4096": (lambda a, b: a @ b, ((1, 4096), (4096, 4096))),
    "gemm nt 512": (lambda a, b: a @ b.T, ((512, 512), (512, 512))),
    "64 gemms of 64": (lambda a, b: a @ b, ((64, 64, 64), (64, 64, 64))),
    "gemm, bias and gelu": (
        lambda a, b, c: op.gelu(a @ b + c), ((512, 512), (512, 512), (512,)),
    ),
    "softmax 4096x64": (op.softmax, ((4096, 64),)),
    "softmax 2048x2048": (op.softmax, ((2048, 2048),)),
    "layernorm 4096x256": (op.layernorm, ((4096, 256),)),
    "column sums 4096x4096": (lambda x: op.sum(x, 0), ((4096, 4096),)),
    "sum 2^22": (op.sum, ((1 << 22,),)),
}  # fmt: skip


def compare(name: str, budget: float, rounds: int = 31) -> dict[str, Any]:
    f, shapes = WORKLOADS[name]
    rng = np.random.default_rng(0)
    given = [ts.tensor(rng.normal(size=s).astype(np.float32)) for s in shapes]
    plain = ts.jit(f, target="cpu")
    want = plain(*given).numpy()
    start = time.perf_counter()
    outcomes = ts.tune(f, *given, budget_ms=budget)
    spent = time.perf_counter() - start
    tuned = ts.jit(f, target="cpu")
    assert tuned(*given).numpy().tobytes() == want.tobytes()
    times: dict[Any, list[float]] = {plain: [], tuned: []}
    for _ in range(rounds):
        for g, kept in times.items():
            start = time.perf_counter()
            g(*given)
            kept.append(time.perf_counter() - start)
    before, after = (statistics.median(kept) for kept in times.values())
    return {
        "workload": name, "before_ms": before * 1e3, "after_ms": after * 1e3,
        "gain": before / after, "spent_s": spent, "tried": sum(o.tried for o in outcomes),
        "nests": [str(o.best) for o in outcomes],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=float, default=8000)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    found = []
    folder = tempfile.TemporaryDirectory()
    with folder as name, override(threads=given.threads, cache_dir=Path(name)):
        for workload in WORKLOADS:
            if given.only in workload:
                found.append(compare(workload, given.budget))
                r = found[-1]
                print(f"{workload:22} {r['before_ms']:8.3f} ms -> {r['after_ms']:8.3f} ms  "
                      f"{r['gain']:.2f}x  {r['tried']} tried in {r['spent_s']:.1f} s  "
                      f"{'; '.join(r['nests'])}", flush=True)  # fmt: skip
    if given.record:
        whole = {
            "machine": architecture().split(" +")[0], "cores": os.cpu_count(),
            "threads": given.threads, "budget_ms": given.budget,
            "python": platform.python_version(), "load": os.getloadavg()[0], "results": found,
        }  # fmt: skip
        given.record.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
