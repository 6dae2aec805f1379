"""What the law of bits costs: programs under numerics `deterministic` beside the same under `fast`.

    python benchmarks/deterministic.py [--threads 2] [--rounds 30] [--only NAME] [--record FILE]

`fast` folds rows by many lanes without leaves, sums products in one chain, cuts long sums for the cores
that there are, fuses products with sums and divides by reciprocals.  The two run in turn in one process, as
often in the first place as in the second; a row shows the medians, their ratio (1: the law costs nothing),
the spread of the ratios of pairs, and how far apart the results are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.ir.target.cpu.machine import architecture

MODES = ("deterministic", "fast")
_LEAST = 0.01  # seconds of a sample
EXAMPLES = Path(__file__).parent.parent / "examples"


def gpt() -> Any:
    """examples/gpt.py."""
    sys.path.insert(0, str(EXAMPLES))
    return __import__("gpt")


def gpt_forward(p: Any, tokens: Any) -> Any:
    return gpt().model(p, tokens, heads=4)


def convolve(x: Any, k: Any) -> Any:
    return op.irfftn(op.rfftn(x) * op.rfftn(k))


# A function and the shapes that it takes.
WORKLOADS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gemm 512": (op.matmul, ((512, 512), (512, 512))),
    "gemm 1024": (op.matmul, ((1024, 1024), (1024, 1024))),
    "gemm 512x4096x512": (op.matmul, ((512, 4096), (4096, 512))),
    "gemm 1x4096x4096": (op.matmul, ((1, 4096), (4096, 4096))),
    "softmax 4096x4096": (op.softmax, ((4096, 4096),)),
    "softmax 256x1024": (op.softmax, ((256, 1024),)),
    "layernorm 4096x4096": (op.layernorm, ((4096, 4096), (4096,), (4096,))),
    "layernorm 512x256": (op.layernorm, ((512, 256), (256,), (256,))),
    "attention 1x8x1024x64": (op.attention, ((1, 8, 1024, 64),) * 3),
    "causal attention 1x8x1024x64": (
        lambda q, k, v: op.attention(q, k, v, causal=True),
        ((1, 8, 1024, 64),) * 3,
    ),
    "conv2d 8x64x56x56 3x3": (
        lambda x, w: op.conv2d(x, w, padding=1),
        ((8, 64, 56, 56), (64, 64, 3, 3)),
    ),
    "FFT convolution 1024x1024": (convolve, ((1024, 1024), (1024, 1024))),
    "real FFT 1024x1024": (op.rfftn, ((1024, 1024),)),
    "sum of 64M": (op.sum, ((1 << 26,),)),
    "row sums 8192x8192": (lambda x: op.sum(x, 1), ((8192, 8192),)),
    "column sums 8192x8192": (lambda x: op.sum(x, 0), ((8192, 8192),)),
    "GPT forward 4x256, 8x256 tokens": (gpt_forward, ()),
}


def operands(name: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    if name.startswith("GPT"):
        params = gpt().init(ts.key(0), 96, 256, 256, 4)
        return params, ts.tensor(rng.integers(0, 96, (8, 256)))
    return tuple(ts.tensor(rng.normal(size=s).astype(np.float32)) for s in WORKLOADS[name][1])


def compare(name: str, rounds: int) -> dict[str, Any]:
    f, xs = WORKLOADS[name][0], operands(name)
    runs = {m: ts.jit(f, target="cpu", numerics=m) for m in MODES}
    found = {m: np.asarray(run(*xs)) for m, run in runs.items()}
    often = max(1, int(_LEAST / _seconds(runs["fast"], xs, 1)))
    times: dict[str, list[float]] = {m: [] for m in MODES}
    for i in range(rounds):
        for m in MODES if i % 2 else MODES[::-1]:
            times[m].append(_seconds(runs[m], xs, often))
    law, loose = (times[m] for m in MODES)
    pairs = statistics.quantiles([b / a for a, b in zip(law, loose, strict=True)], n=4)
    apart = np.linalg.norm(found["fast"] - found["deterministic"])
    return {
        "workload": name,
        "deterministic_ms": statistics.median(law) * 1e3,
        "fast_ms": statistics.median(loose) * 1e3,
        "ratio": statistics.median(loose) / statistics.median(law),
        "ratio_of_best": min(loose) / min(law),
        "quartiles_of_pairs": [pairs[0], pairs[2]],
        "relative_distance": float(apart / np.linalg.norm(found["deterministic"])),
    }


def _seconds(run: Callable[..., Any], xs: tuple[Any, ...], often: int) -> float:
    start = time.perf_counter()
    for _ in range(often):
        run(*xs)
    return (time.perf_counter() - start) / often


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    found = []
    with override(threads=given.threads):
        for name in WORKLOADS:
            if given.only in name:
                found.append(compare(name, given.rounds))
                r = found[-1]
                low, high = r["quartiles_of_pairs"]
                print(f"{name:32} {r['deterministic_ms']:9.3f} ms  fast {r['fast_ms']:9.3f} ms  "
                      f"ratio {r['ratio']:.2f} (best {r['ratio_of_best']:.2f}, pairs {low:.2f} to "
                      f"{high:.2f})  "
                      f"apart {r['relative_distance']:.1e}", flush=True)  # fmt: skip
    if given.record:
        whole = {
            "machine": architecture().split(" +")[0], "cores": os.cpu_count(),
            "threads": given.threads, "rounds": given.rounds, "python": platform.python_version(),
            "numpy": np.__version__, "load": os.getloadavg()[0], "results": found,
        }  # fmt: skip
        given.record.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
