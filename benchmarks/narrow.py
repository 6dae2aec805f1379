"""Narrow numbers in contractions beside f32, and beside PyTorch where it is installed.

    python benchmarks/narrow.py [--rounds 12] [--out benchmarks/records/narrow-x86.json]

One thread; the candidates of a shape run in turn, and the least processor time of each counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import tessera as ts
from tessera import bf16, f32, i32
from tessera.core.flags import override

SHAPES = [(1024, 1024, 1024), (1, 4096, 4096), (32, 4096, 4096)]
RNG = np.random.default_rng(0)


def floats(dtype: Any, *shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32).astype(dtype)


def integers(dtype: Any, low: int, high: int, *shape: int) -> Any:
    return RNG.integers(low, high, shape).astype(np.int8).astype(dtype)


def candidates(m: int, k: int, n: int) -> dict[str, Callable[[], Any]]:
    """What is timed for a shape, by name."""
    scale = floats(np.float32, n)
    i8s = integers(np.int8, -128, 128, m, k), integers(np.int8, -128, 128, k, n)
    i4s = integers(ml_dtypes.int4, -8, 8, k, n)
    f8s = floats(ml_dtypes.float8_e4m3fn, k, n)
    x, w = floats(np.float32, m, k), floats(np.float32, k, n)

    def plain(a: Any, b: Any) -> Any:
        return a @ b

    def exact(a: Any, b: Any) -> Any:
        return a.astype(i32) @ b.astype(i32)

    def weights(a: Any, b: Any, s: Any) -> Any:
        return a @ (b.astype(f32) * s[None, :])

    def weights_bf16(a: Any, b: Any, s: Any) -> Any:
        return a @ (b.astype(bf16) * s[None, :].astype(bf16))

    cases = {
        "f32": (plain, x, w),
        "bf16": (plain, x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16)),
        "f16": (plain, x.astype(np.float16), w.astype(np.float16)),
        "f8e4m3": (plain, x.astype(ml_dtypes.float8_e4m3fn), f8s),
        "bf16, fast": (plain, x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16)),
        "i8 to i32": (exact, *i8s),
        "i8 to i32 by vectors": (exact, *i8s),
        "i8 turned to i32": (lambda a, b: exact(a, b.T), i8s[0], np.ascontiguousarray(i8s[1].T)),
        "f32 by weights of i8": (weights, x, i8s[1], scale),
        "f32 by weights of i4": (weights, x, i4s, scale),
        "f32 by weights of f8e4m3": (weights, x, f8s, scale),
        "bf16 by weights of i8": (weights_bf16, x.astype(ml_dtypes.bfloat16), i8s[1], scale),
    }
    made = {
        name: bound(
            f, *arrays, numerics="fast" if "fast" in name else None, units="vectors" not in name
        )
        for name, (f, *arrays) in cases.items()
    }
    return made | (of_torch(x, w, *i8s) if find_spec("torch") else {})


def bound(
    f: Callable[..., Any], *arrays: Any, numerics: str | None = None, units: bool = True
) -> Callable[[], Any]:
    compiled, tensors = ts.jit(f, target="cpu", numerics=numerics), [ts.tensor(a) for a in arrays]
    if units:
        return lambda: compiled(*tensors)

    def by_vectors() -> Any:
        with override(matrix_units=False):
            return compiled(*tensors)

    return by_vectors


def of_torch(x: Any, w: Any, a: Any, b: Any) -> dict[str, Callable[[], Any]]:
    import torch

    torch.set_num_threads(1)
    p, q, c, d = (torch.from_numpy(v) for v in (x, w, a, b))
    turned = d.T.contiguous()
    halves = {t: (p.to(t), q.to(t)) for t in (torch.bfloat16, torch.float16)}
    return {
        "torch f32": lambda: p @ q,
        "torch bf16": lambda: torch.matmul(*halves[torch.bfloat16]),
        "torch f16": lambda: torch.matmul(*halves[torch.float16]),
        "torch i8 to i32": lambda: torch._int_mm(c, d),
        "torch i8 turned to i32": lambda: torch._int_mm(c, turned.T),
    }


def measured(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Milliseconds of processor time of this thread, the least of all rounds."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            best[name] = min(best[name], (time.thread_time() - start) * 1e3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    record: dict[str, Any] = {"machine": platform.machine(), "threads": 1, "milliseconds": {}}
    with ts.threads(1):
        for m, k, n in SHAPES:
            found = measured(candidates(m, k, n), args.rounds)
            record["milliseconds"][f"{m}x{k}x{n}"] = {a: round(t, 3) for a, t in found.items()}
            print(f"{m} x {k} x {n}")
            for name, ms in found.items():
                print(f"  {name:28} {ms:9.3f} ms  {found['f32'] / ms:6.2f} times f32")
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
