"""The standard library of kernels on a GPU beside torch, by the device's own clock, in turn.

    python benchmarks/stdlib_gpu.py [--only NAME] [--rounds 9] [--record FILE] [--search]

A row shows the median time of a call of both, torch's over ours, and bytes or operations per second.  With
--search every schedule of a case's space is built and timed instead, the fastest first: what is shipped
comes from there.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tessera as ts
from tessera import bf16, block, f32, stdlib
from tessera.core.errors import TesseraError
from tessera.runtime.cuda.device import gpu

RNG = np.random.default_rng(0)
SAMPLE = 5e-3  # seconds of a sample


@dataclass
class Case:
    """A routine on tensors, torch's function for it, operations, bytes, and schedules worth a try."""

    routine: Any
    call: Callable[..., Any]  # of the routine and tensors
    tensors: list[Any]
    theirs: Callable[[], Any]
    operations: float
    bytes: float
    space: Any


def both(dtype: Any, *shapes: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """The same data as our tensors and as torch's, on the device."""
    kind = torch.bfloat16 if dtype is bf16 else torch.float32
    theirs = [torch.from_numpy(RNG.standard_normal(s, np.float32)).cuda().to(kind) for s in shapes]
    return [ts.from_dlpack(x) for x in theirs], theirs


def softmax(rows: int, width: int) -> Case:
    (x,), (tx,) = both(bf16, (rows, width))
    return Case(stdlib.stable_softmax, lambda f, x: f(x), [x], lambda: torch.softmax(tx, -1), 0,
                4 * rows * width, ROWS)  # fmt: skip


def layernorm(rows: int, width: int) -> Case:
    ours, (x, g, b) = both(bf16, (rows, width), (width,), (width,))
    f = torch.nn.functional.layer_norm
    return Case(stdlib.efficient_layernorm, lambda f, x, g, b: f(x, g, b), ours,
                lambda: f(x, (width,), g, b), 0, 4 * rows * width, ROWS)  # fmt: skip


def rmsnorm(rows: int, width: int) -> Case:
    ours, (x, g) = both(bf16, (rows, width), (width,))
    f = torch.nn.functional.rms_norm
    return Case(stdlib.rmsnorm, lambda f, x, g: f(x, g), ours, lambda: f(x, (width,), g, 1e-6), 0,
                4 * rows * width, ROWS)  # fmt: skip


def cross_entropy(rows: int, classes: int) -> Case:
    (x,), (tx,) = both(bf16, (rows, classes))
    labels = torch.randint(0, classes, (rows,), device="cuda")
    f = torch.nn.functional.cross_entropy
    return Case(stdlib.fused_cross_entropy, lambda f, x, y: f(x, y), [x, ts.from_dlpack(labels)],
                lambda: f(tx, labels), 0, 2 * rows * classes, LONG)  # fmt: skip


def rope(heads: int, rows: int, width: int) -> Case:
    (x,), (tx,) = both(bf16, (heads, rows, width))
    cos, sin = (torch.from_numpy(t).cuda() for t in stdlib.rotary_tables(rows, width))

    def theirs() -> Any:
        a, b = tx.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).bfloat16()

    return Case(stdlib.rotary_embedding, lambda f, x: f(x), [x], theirs, 0, 4 * heads * rows * width,
                block(m=[2, 4, 8, 16, 32]).warps([1, 2, 4, 8]))  # fmt: skip


def adam(count: int) -> Case:
    ours, theirs = both(f32, *[(count,)] * 4)
    lists = [[t.abs()] for t in theirs] + [[], [torch.tensor(5.0, device="cuda")]]
    settings = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}
    return Case(stdlib.fused_adam, lambda f, p, g, m, v: f(p, g, m, v * v, 5), ours,
                lambda: torch._fused_adam_(*lists, amsgrad=False, maximize=False, **settings), 0,
                28 * count, block(m=[512, 1024, 2048, 4096]).warps([2, 4, 8]))  # fmt: skip


def product(m: int, k: int, n: int, dtype: Any) -> Case:
    ours, (a, b) = both(dtype, (m, k), (k, n))
    return Case(stdlib.matmul, lambda f, a, b: f(a, b), ours, lambda: a @ b, 2 * m * k * n, 0,
                PRODUCTS)  # fmt: skip


def gelu_product(m: int, k: int, n: int) -> Case:
    ours, (a, b, c) = both(bf16, (m, k), (k, n), (n,))
    f = torch.nn.functional.gelu
    return Case(stdlib.matmul, lambda f, a, b, c: f(a, b, c, activation="gelu"), ours,
                lambda: f(torch.addmm(c, a, b)), 2 * m * k * n, 0, PRODUCTS)  # fmt: skip


def grouped(rows: int, groups: int, k: int, n: int) -> Case:
    (x, w), (tx, tw) = both(bf16, (rows, k), (groups, k, n))
    sizes = torch.full((groups,), rows // groups)
    parts = sizes.tolist()
    return Case(stdlib.grouped_matmul, lambda f, x, w, s: f(x, w, s), [x, w, ts.from_dlpack(sizes.cuda())],
                lambda: torch.cat([a @ b for a, b in zip(tx.split(parts), tw, strict=True)]),
                2 * rows * k * n, 0, block(m=[64, 128], n=[128, 256],
                k=[64]).warps([4, 8]).stages([3]))  # fmt: skip


def quantised(m: int, k: int, n: int) -> Case:
    (x, _), (tx, tw) = both(bf16, (m, k), (k, n))
    q, s = (t.to("cuda") for t in stdlib.quantise(ts.tensor(tw.float().cpu().numpy()), group=128))
    return Case(stdlib.quantised_matmul, lambda f, x, q, s: f(x, q, s), [x, q, s], lambda: tx @ tw,
                2 * m * k * n, 0, block(m=[16],
                n=[16, 32, 64, 128]).warps([2, 4, 8]).stages([2, 4]))  # fmt: skip


def attention(heads: int, rows: int, width: int, causal: bool, dtype: Any = bf16) -> Case:
    ours, theirs = both(dtype, *[(1, heads, rows, width)] * 3)
    f = torch.nn.functional.scaled_dot_product_attention
    return Case(stdlib.flash_attention_2, lambda f, q, k, v: f(q, k, v, causal=causal), ours,
                lambda: f(*theirs, is_causal=causal), 4 * heads * rows * rows * width / (1 + causal), 0,
                block(m=[16, 32, 64], n=[128]).warps([4, 8, 16]).stages([1]))  # fmt: skip


ROWS = block(m=[1, 2]).warps([1, 2, 4])
LONG = block(1).warps([8, 16, 32])
PRODUCTS = block(m=[64, 128], n=[128, 256], k=[32, 64]).warps([4, 8]).stages([3, 4])
CASES: dict[str, Callable[[], Case]] = {
    "softmax 32768x4096": lambda: softmax(32768, 4096),
    "layernorm 32768x4096": lambda: layernorm(32768, 4096),
    "rmsnorm 32768x4096": lambda: rmsnorm(32768, 4096),
    "cross entropy 8192x50304": lambda: cross_entropy(8192, 50304),
    "rope 64x4096x128": lambda: rope(64, 4096, 128),
    "adam 64M": lambda: adam(1 << 26),
    "matmul bf16 4096": lambda: product(4096, 4096, 4096, bf16),
    "matmul f32 2048": lambda: product(2048, 2048, 2048, f32),
    "matmul+bias+gelu 8192x4096x4096": lambda: gelu_product(8192, 4096, 4096),
    "grouped 8192 rows, 8 groups, 2048x4096": lambda: grouped(8192, 8, 2048, 4096),
    "int8 weights 16x8192x8192": lambda: quantised(16, 8192, 8192),
    "attention 32x4096x64": lambda: attention(32, 4096, 64, False),
    "causal attention 32x4096x128": lambda: attention(32, 4096, 128, True),
    "attention f32 8x2048x64": lambda: attention(8, 2048, 64, False, f32),
}


def ours_of(c: Case, routine: Any) -> Callable[[int], float]:
    """What runs a routine so many times, and says the seconds of the device."""
    f: Any = ts.jit(lambda *xs: c.call(routine, *xs))
    f(*c.tensors)
    (entry,) = f._variants.values()
    timed = entry.executable.timed([x.storage for x in c.tensors])
    if any(x.spilled for x in timed.figures):
        print(f"    {routine.on_gpu.schedule}: spills {[x.spilled for x in timed.figures]}")
    seconds: Callable[[int], float] = timed.seconds
    return seconds


def theirs_of(c: Case) -> Callable[[int], float]:
    def seconds(times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            c.theirs()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return seconds


def sampled(clocks: list[Callable[[int], float]], rounds: int) -> list[float]:
    """Median seconds of a run of each, sampled in turn."""
    counts = [max(1, round(SAMPLE / max(f(2) / 2, 1e-6))) for f in clocks]
    found: list[list[float]] = [[] for _ in clocks]
    for _ in range(rounds):
        for f, n, seconds in zip(clocks, counts, found, strict=True):
            seconds.append(f(n) / n)
    return [statistics.median(x) for x in found]


def search(name: str, c: Case, rounds: int) -> None:
    """Time every schedule of a space."""

    def made(s: Any) -> Any:
        try:
            return s, ours_of(c, c.routine.with_schedule(s))
        except TesseraError as e:
            return s, str(e)[:160]

    with ThreadPoolExecutor(12) as pool:
        built = list(pool.map(made, c.space.space))
    ready = [(s, f) for s, f in built if not isinstance(f, str)]
    for s, why in built:
        if isinstance(why, str):
            print(f"    {s}: {why}")
    shipped = ours_of(c, c.routine)
    times = sampled([shipped, *(f for _, f in ready), theirs_of(c)], rounds)
    print(f"{name}: shipped {times[0] * 1e3:.4f} ms, torch {times[-1] * 1e3:.4f}")
    for took, (s, _) in sorted(zip(times[1:-1], ready, strict=True), key=lambda x: x[0])[:6]:
        print(f"    {took * 1e3:.4f} ms  {s}", flush=True)


def main() -> None:
    """Print the table, or what a search finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--record")
    parser.add_argument("--search", action="store_true")
    args = parser.parse_args()
    table: dict[str, Any] = {"device": gpu().name, "torch": torch.__version__, "rows": {}}
    for name, make in CASES.items():
        if args.only not in name:
            continue
        c = make()
        if args.search:
            search(name, c, args.rounds)
            continue
        ours, theirs = sampled([ours_of(c, c.routine), theirs_of(c)], args.rounds)
        rate = (c.bytes / ours / 1e9) if c.bytes else c.operations / ours / 1e12
        unit = "GB/s" if c.bytes else "TFLOP/s"
        table["rows"][name] = {"ms": ours * 1e3, "torch ms": theirs * 1e3, unit: rate}
        print(f"{name:42} {ours * 1e3:8.4f} ms  torch {theirs * 1e3:8.4f}  ratio {theirs / ours:5.2f}  "
              f"{rate:8.0f} {unit}", flush=True)  # fmt: skip
    if args.record and not args.search:
        with open(args.record, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
