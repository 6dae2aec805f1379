"""The standard library of kernels beside PyTorch, on some threads, in one process and in turn.

Threads of a library go on spinning for a while after a call and would take a core from the next one, so
that each takes its turn after a pause, with a call before those that are timed.

    python benchmarks/stdlib.py [--only NAME] [--threads 1] [--rounds 15] [--record FILE]

A row shows the least time of the rounds of both, torch's over ours, and bytes moved per second against those
of a copy of the same size by as many threads (or operations per second); a record has the medians too.  One
thread is timed by its own clock, several by the wall's; rows of other cases or threads stay in a record.
Run it with an interpreter that has torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tessera as ts
from tessera import stdlib
from tessera.runtime import memory

RNG = np.random.default_rng(0)
PAUSE, CALLS = 0.06, 3  # seconds before a turn, calls of it that are timed
Function = Callable[[], Any]
Case = tuple[Function, Function, float, float]  # ours, torch's, operations, bytes


def draw(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def both(*shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """The same data as our tensors and as torch's."""
    data = [draw(*s) for s in shapes]
    return [ts.tensor(x) for x in data], [torch.tensor(x) for x in data]


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


def rope(heads: int, rows: int, width: int) -> Case:
    (x,), (tx,) = both((heads, rows, width))
    cos, sin = (torch.from_numpy(t) for t in stdlib.rotary_tables(rows, width))

    def theirs() -> Any:
        a, b = tx.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    return lambda: stdlib.rotary_embedding(x), theirs, 0, 8 * heads * rows * width


def adam(count: int) -> Case:
    (p, g, m, v), theirs = both(*[(count,)] * 4)
    v, theirs[3] = v * v, theirs[3].square()
    lists = [[t] for t in theirs] + [[], [torch.tensor(5.0)]]
    settings = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}

    def torchs() -> None:
        torch._fused_adam_(*lists, amsgrad=False, maximize=False, **settings)

    return lambda: stdlib.fused_adam(p, g, m, v, 5), torchs, 0, 28 * count


def cross_entropy(rows: int, classes: int) -> Case:
    (x,), (tx,) = both((rows, classes))
    labels = RNG.integers(0, classes, rows)
    y, ty = ts.tensor(labels), torch.from_numpy(labels)
    return (
        lambda: stdlib.fused_cross_entropy(x, y),
        lambda: torch.nn.functional.cross_entropy(tx, ty),
        0, 4 * rows * classes,
    )  # fmt: skip


def attention(heads: int, rows: int, width: int, causal: int) -> Case:
    (q, k, v), theirs = both(*[(1, heads, rows, width)] * 3)
    f = torch.nn.functional.scaled_dot_product_attention
    return (
        lambda: stdlib.flash_attention_2(q, k, v, causal=bool(causal)),
        lambda: f(*theirs, is_causal=bool(causal)),
        4 * heads * rows * rows * width / (1 + causal), 0,
    )  # fmt: skip


def attention_trained(heads: int, rows: int, width: int, causal: int) -> Case:
    (q, k, v, ct), (*theirs, tct) = both(*[(1, heads, rows, width)] * 4)
    f = torch.nn.functional.scaled_dot_product_attention

    @ts.jit
    def ours(q: Any, k: Any, v: Any, ct: Any) -> Any:
        y, back = ts.vjp(lambda *xs: stdlib.flash_attention_2(*xs, causal=bool(causal)), q, k, v)
        return y, *back(ct)

    def torchs() -> None:
        for t in theirs:
            t.requires_grad_()
            t.grad = None
        f(*theirs, is_causal=bool(causal)).backward(tct)

    return lambda: ours(q, k, v, ct), torchs, 14 * heads * rows * rows * width / (1 + causal), 0


def gelu_product(m: int, k: int, n: int) -> Case:
    (a, b, c), (ta, tb, tc) = both((m, k), (k, n), (n,))
    return (
        lambda: stdlib.matmul_gelu(a, b, c),
        lambda: torch.nn.functional.gelu(torch.addmm(tc, ta, tb)),
        2 * m * k * n, 0,
    )  # fmt: skip


def bytes_product(m: int, k: int, n: int) -> Case:
    """The product of bytes beside torch's product of f32: what quantising gains."""
    (x, w), (tx, tw) = both((m, k), (k, n))
    (a, s), (b, t) = stdlib.quantise(x, axis=1), stdlib.quantise(w)
    return lambda: stdlib.quantised_matmul(a, b, t, s), lambda: tx @ tw, 2 * m * k * n, 0


def nibbles_product(m: int, k: int, n: int) -> Case:
    """f32 by weights of i4 in groups of 128, beside torch's product of f32."""
    (x, w), (tx, tw) = both((m, k), (k, n))
    q, s = stdlib.quantise(w, ts.i4, group=128)
    return lambda: stdlib.quantised_matmul(x, q, s), lambda: tx @ tw, 2 * m * k * n, 0


def grouped(rows: int, groups: int, k: int, n: int) -> Case:
    (x, w), (tx, tw) = both((rows, k), (groups, k, n))
    sizes = np.full(groups, rows // groups)

    def theirs() -> Any:
        parts = zip(tx.split(sizes.tolist()), tw, strict=True)
        return torch.cat([a @ b for a, b in parts])

    f = ts.jit(stdlib.grouped_matmul)
    given = ts.tensor(sizes)
    return lambda: f(x, w, given), theirs, 2 * rows * k * n, 0


CASES: dict[str, tuple[Callable[..., Case], tuple[int, ...]]] = {
    "attention 8x1024x64": (attention, (8, 1024, 64, 0)),
    "causal attention 8x1024x64": (attention, (8, 1024, 64, 1)),
    "attention and derivatives 8x1024x64": (attention_trained, (8, 1024, 64, 0)),
    "causal attention and derivatives 8x1024x64": (attention_trained, (8, 1024, 64, 1)),
    "layernorm 8192x1024": (layernorm, (8192, 1024)),
    "layernorm 512x1024 (in cache)": (layernorm, (512, 1024)),
    "rmsnorm 8192x1024": (rmsnorm, (8192, 1024)),
    "softmax 8192x1024": (softmax, (8192, 1024)),
    "softmax 512x1024 (in cache)": (softmax, (512, 1024)),
    "rope 16x4096x128": (rope, (16, 4096, 128)),
    "adam 8M": (adam, (1 << 23,)),
    "cross entropy 1024x32000": (cross_entropy, (1024, 32000)),
    "matmul+bias+gelu 1024x1024x1024": (gelu_product, (1024, 1024, 1024)),
    "grouped 1024 rows, 8 groups, 512x512": (grouped, (1024, 8, 512, 512)),
    "int8 matmul 1024 beside f32": (bytes_product, (1024, 1024, 1024)),
    "int4 matmul 16x4096x4096 beside f32": (nibbles_product, (16, 4096, 4096)),
}


def times(fs: list[Function], rounds: int, clock: Callable[[], float]) -> list[list[float]]:
    """The seconds of each function in every round, run in turn."""
    for f in fs:
        f()
    found: list[list[float]] = [[] for _ in fs]
    for _ in range(rounds):
        for f, seconds in zip(fs, found, strict=True):
            time.sleep(PAUSE)
            f()
            for _ in range(CALLS):
                start = clock()
                f()
                seconds.append(clock() - start)
    return found


def copier(size: int, threads: int, pool: ThreadPoolExecutor) -> Function:
    """A copy of so many bytes of f32, a part by each thread."""
    source, target = (memory.empty((size // 4,), np.float32) for _ in range(2))  # aligned to lines
    source[:] = target[:] = 1
    pairs = zip(np.array_split(target, threads), np.array_split(source, threads), strict=True)
    parts = list(pairs)
    if threads == 1:
        return lambda: np.copyto(target, source)
    return lambda: list(pool.map(lambda part: np.copyto(*part), parts))


def row(
    name: str, case: Case, rounds: int, threads: int, pool: ThreadPoolExecutor
) -> dict[str, Any]:
    ours, theirs, operations, moved = case
    fs = [ours, theirs, *([copier(int(moved) // 2, threads, pool)] if moved else [])]
    found = times(fs, rounds, time.thread_time if threads == 1 else time.perf_counter)
    mine, torchs, *copy = map(min, found)
    middle, torchs_middle, *copy_middle = map(statistics.median, found)
    made = {
        "case": name, "threads": threads, "ms": mine * 1e3, "torch_ms": torchs * 1e3,
        "ratio": torchs / mine, "median_ms": middle * 1e3, "ratio_of_medians": torchs_middle / middle,
    }  # fmt: skip
    if operations:
        made["gflops"] = operations / mine / 1e9
    if copy:
        made["gbs"], made["of_copy"] = moved / mine / 1e9, copy[0] / mine
        made["of_copy_by_medians"] = copy_middle[0] / middle
    return made


def record(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows to a file; those that it has of other cases or threads stay."""
    old = json.loads(path.read_text()) if path.exists() else []
    fresh = {(r["case"], r["threads"]) for r in rows}
    kept = [r for r in old if (r["case"], r["threads"]) not in fresh]
    path.write_text(json.dumps([*kept, *rows], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    print(f"{'ms':>9}{'torch':>9}{'ratio':>7}{'GF/s':>8}{'GB/s':>7}{'copy':>6}")
    with ts.threads(given.threads), ThreadPoolExecutor(given.threads) as pool:
        for name, (make, sizes) in CASES.items():
            if not any(x in name for x in given.only.split(",")):
                continue
            r = row(name, make(*sizes), given.rounds, given.threads, pool)
            rows.append(r)
            print(f"{r['ms']:9.3f}{r['torch_ms']:9.3f}{r['ratio']:7.2f}{r.get('gflops', 0):8.1f}"
                  f"{r.get('gbs', 0):7.1f}{r.get('of_copy', 0):6.0%}  {name}", flush=True)  # fmt: skip
    if given.record:
        record(given.record, rows)


if __name__ == "__main__":
    main()
