"""The standard library of kernels beside PyTorch, on one thread, in one process and in turn.

    TESSERA_THREADS=1 OMP_NUM_THREADS=1 python benchmarks/stdlib.py [--only NAME] [--rounds 15] [--record FILE]

A row shows the least time of the rounds of both, torch's over ours, and bytes moved per second against those
of a copy of the same size (or operations per second).  Run it with an interpreter that has torch.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tessera as ts
from tessera import stdlib

RNG = np.random.default_rng(0)
Function = Callable[[], Any]
Case = tuple[Function, Function, float, float]  # ours, torch's, operations, bytes


def draw(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def both(*shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """The same data as our tensors and as torch's."""
    data = [draw(*s) for s in shapes]
    return [ts.tensor(x) for x in data], [torch.from_numpy(x.copy()) for x in data]


def layernorm(rows: int, width: int) -> Case:
    (x, g, b), (tx, tg, tb) = both((rows, width), (width,), (width,))
    return (
        lambda: stdlib.efficient_layernorm(x, g, b),
        lambda: torch.nn.functional.layer_norm(tx, (width,), tg, tb),
        0, 8 * rows * width,
    )  # fmt: skip


def rmsnorm(rows: int, width: int) -> Case:
    (x, g), (tx, tg) = both((rows, width), (width,))
    return (
        lambda: stdlib.rmsnorm(x, g),
        lambda: torch.nn.functional.rms_norm(tx, (width,), tg, 1e-6),
        0, 8 * rows * width,
    )  # fmt: skip


def softmax(rows: int, width: int) -> Case:
    (x,), (tx,) = both((rows, width))
    return (
        lambda: stdlib.stable_softmax(x),
        lambda: torch.softmax(tx, -1),
        0, 8 * rows * width,
    )  # fmt: skip


CASES: dict[str, tuple[Callable[..., Case], tuple[int, ...]]] = {
    "layernorm 8192x1024": (layernorm, (8192, 1024)),
    "layernorm 512x1024 (in cache)": (layernorm, (512, 1024)),
    "rmsnorm 8192x1024": (rmsnorm, (8192, 1024)),
    "softmax 8192x1024": (softmax, (8192, 1024)),
    "softmax 512x1024 (in cache)": (softmax, (512, 1024)),
}


def least(fs: list[Function], rounds: int) -> list[float]:
    """The least seconds of each function, run in turn on this thread."""
    for f in fs:
        f()
    best = [math.inf] * len(fs)
    for _ in range(rounds):
        for i, f in enumerate(fs):
            start = time.thread_time()
            f()
            best[i] = min(best[i], time.thread_time() - start)
    return best


def row(name: str, case: Case, rounds: int) -> dict[str, Any]:
    ours, theirs, operations, moved = case
    fs = [ours, theirs]
    if moved:
        source = np.ones(int(moved) // 8, np.float32)
        target = source.copy()
        fs.append(lambda: np.copyto(target, source))
    mine, torchs, *copy = least(fs, rounds)
    found = {"case": name, "ms": mine * 1e3, "torch_ms": torchs * 1e3, "ratio": torchs / mine}
    if operations:
        found["gflops"] = operations / mine / 1e9
    if copy:
        found["gbs"], found["of_copy"] = moved / mine / 1e9, copy[0] / mine
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'ms':>9}{'torch':>9}{'ratio':>7}{'GF/s':>8}{'GB/s':>7}{'copy':>6}")
    with ts.threads(1):
        for name, (make, sizes) in CASES.items():
            if given.only not in name:
                continue
            r = row(name, make(*sizes), given.rounds)
            rows.append(r)
            print(f"{r['ms']:9.3f}{r['torch_ms']:9.3f}{r['ratio']:7.2f}{r.get('gflops', 0):8.1f}"
                  f"{r.get('gbs', 0):7.1f}{r.get('of_copy', 0):6.0%}  {name}", flush=True)  # fmt: skip
    if given.record:
        given.record.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
