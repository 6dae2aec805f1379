"""What Tessera adds in Python: import, tracing an op, dispatching eager and jitted calls.

    python benchmarks/overhead.py [--record FILE]

Medians over repeats in one process; the spread is the distance between the quartiles.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op


def timed(f: Callable[[], Any], inner: int, repeats: int = 15) -> tuple[float, float]:
    """Median and quartile distance of the seconds that one call takes."""
    f()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(inner):
            f()
        samples.append((time.perf_counter() - start) / inner)
    low, middle, high = statistics.quantiles(samples, n=4)
    return middle, high - low


def block(x: Any, w: Any) -> Any:
    """A transformer-like mix of ops: contraction, normalisation, elementwise, views."""
    for _ in range(20):
        h = op.rmsnorm(x) @ w
        h = op.gelu(h) * 0.5 + x
        x = op.transpose(op.reshape(op.transpose(h), (h.shape[1], h.shape[0])))
        x = op.tanh(x) - op.mean(x, axis=1, keepdims=True)
    return op.sum(x * x)


def measure() -> dict[str, tuple[float, float]]:
    """Every figure in seconds: (median, spread)."""
    rows: dict[str, tuple[float, float]] = {}
    code = "import time; t = time.perf_counter(); import tessera; print(time.perf_counter() - t)"
    runs = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(9)
    ]
    low, middle, high = statistics.quantiles(runs, n=4)
    rows["import tessera"] = (middle, high - low)

    w = ts.tensor(np.eye(16, dtype=np.float32))
    sizes = iter(range(17, 100_000))
    nodes = len(ts.jit(block).lower(op.zeros((8, 16)), w).traced.nodes)

    def fresh() -> None:
        # A new size each time, so that no inferred type is remembered.
        ts.trace(block, op.zeros((next(sizes), 16)), w)

    def again() -> None:
        ts.trace(block, op.zeros((8, 16)), w)

    for name, f in (("trace an op, new types", fresh), ("trace an op, known types", again)):
        middle, spread = timed(f, 3)
        rows[name] = (middle / nodes, spread / nodes)

    x = op.zeros((8,))
    small, a = ts.jit(lambda a, b: a + b), np.zeros(8, np.float32)
    many = ts.jit(lambda tree: tree["a"] + tree["b"][0])
    tree = {"a": x, "b": [x, x]}
    plain = timed(lambda: np.add(a, a), 20_000)
    rows["numpy add of 8 elements"] = plain
    rows["eager add of 8 elements"] = timed(lambda: op.add(x, x), 5_000)
    rows["jitted add of 8 elements"] = timed(lambda: small(x, x), 5_000)
    rows["jitted add, arguments in a tree"] = timed(lambda: many(tree), 5_000)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="also write the figures to this JSON file")
    given = parser.parse_args()
    rows = measure()
    for name, (middle, spread) in rows.items():
        print(f"{name:36} {middle * 1e6:12.2f} us   spread {spread * 1e6:.2f} us")
    if given.record:
        about = {
            "machine": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "microseconds": {
                k: [round(m * 1e6, 3), round(s * 1e6, 3)] for k, (m, s) in rows.items()
            },
        }
        given.record.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
