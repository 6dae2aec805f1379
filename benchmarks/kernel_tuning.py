# ruff: noqa: F821, N806, UP037  (sizes in annotations are strings)
"""How good a schedule `kernel.autotune` finds: beside the best of all, which are measured one by one.

python benchmarks/kernel_tuning.py [--threads 2] [--rounds 15] [--only NAME] [--record FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tessera import KTile, block, f32, kernel, tile
from tessera.core.flags import override
from tessera.ir.target.cpu.machine import architecture


def matmul(a: KTile["M", "K"], b: KTile["K", "N"]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n), acc)
    return acc


def attention(q: KTile["H", "S", "D"], k: KTile["H", "L", "D"], v: KTile["H", "L", "D"]):
    T = tile.context()
    rows = tile.load(q, rows=T.m, cols=T.d)
    acc = tile.zeros((T.m, T.d), f32)
    m, l = tile.full((T.m,), -math.inf), tile.zeros((T.m,), f32)
    for nb in tile.range_n(k.shape, T.n):
        s = tile.dot(rows, tile.load(k, nb).T) * tile.rsqrt(float(T.d))
        p, m_c, l_c = tile.softmax_online(s)
        acc, m, l = tile.softmax_accumulate(acc, m, l, p, tile.load(v, nb), m_c, l_c)
    return acc / l[:, None]


def gated(x: KTile["M", "N"], gate: KTile["M", "N"], bias: KTile["N"]):
    T = tile.context()
    g = tile.load(gate, rows=T.m, cols=T.n) + tile.load(bias, cols=T.n)
    return tile.load(x, rows=T.m, cols=T.n) * g * tile.sigmoid(g)


SIZES = [8, 16, 32, 64, 96, 128]
KERNELS: dict[str, tuple[Any, tuple[tuple[int, ...], ...], Any]] = {
    "matmul": (matmul, ((512, 512),) * 2, block(m=SIZES, n=SIZES, k=[16, 64, 128, 512])),
    "attention": (
        attention, ((4, 512, 64),) * 3,
        block(m=[4, 8, 16, 24, 32, 48, 64, 96, 128, 256], n=[8, 16, 24, 32, 48, 64, 96, 128, 192, 256]),
    ),
    "gated": (
        gated, ((2048, 1024), (2048, 1024), (1024,)),
        block(m=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512], n=[8, 16, 32, 64, 96, 128, 256, 512, 768, 1024]),
    ),
}  # fmt: skip


def times(calls: list[Any], rounds: int) -> list[float]:
    """The median time of each call, all of them in turn."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for f, kept in zip(calls, found, strict=True):
            start = time.perf_counter()
            f()
            kept.append(time.perf_counter() - start)
    return [median(kept) for kept in found]


def compare(name: str, rounds: int) -> dict[str, Any]:
    f, shapes, space = KERNELS[name]
    rng = np.random.default_rng(0)
    args = [rng.normal(size=s).astype(np.float32) for s in shapes]
    tuned = kernel.autotune(space=space, budget_ms=60_000)(f)
    start = time.perf_counter()
    tuned(*args)
    spent = time.perf_counter() - start
    (found,) = tuned.found.values()
    schedules = list(space)
    made = [kernel(f).with_schedule(s) for s in schedules]
    calls = [lambda g=g: g(*args) for g in made]
    for call in calls:
        call()
    taken = times(calls, rounds)
    order = sorted(range(len(taken)), key=taken.__getitem__)
    # What was found, and the ten that seem best, again and in turn: the least of many is lucky.
    again = times([lambda: tuned(*args), *(calls[i] for i in order[:10])], 5 * rounds)
    return {
        "kernel": name, "schedules": len(schedules), "measured": found.tried, "search_s": spent,
        "found": str(found.schedule), "found_ms": again[0] * 1e3, "best_ms": min(again[1:]) * 1e3,
        "best": str(schedules[order[int(np.argmin(again[1:]))]]), "worst_ms": max(taken) * 1e3,
        "ratio": again[0] / min(again[1:]),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        override(threads=given.threads, cache_dir=Path(folder)),
    ):
        for name in KERNELS:
            if given.only in name:
                r = compare(name, given.rounds)
                found.append(r)
                print(f"{name:10} {r['measured']:3} of {r['schedules']} measured in {r['search_s']:5.1f} s: "
                      f"{r['found']} {r['found_ms']:.3f} ms, best {r['best']} {r['best_ms']:.3f} ms, "
                      f"ratio {r['ratio']:.3f} (worst {r['worst_ms']:.2f} ms)", flush=True)  # fmt: skip
    if given.record:
        whole = {
            "machine": architecture().split(" +")[0], "cores": os.cpu_count(),
            "threads": given.threads, "python": platform.python_version(),
            "load": os.getloadavg()[0], "results": found,
        }  # fmt: skip
        given.record.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
