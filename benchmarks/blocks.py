"""Which block sizes make a contraction fast: every candidate, interleaved, beside NumPy.

python benchmarks/blocks.py [--threads 2] [--shapes 1024x1024x1024,...]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import numpy as np

import tessera as ts
from tessera.core.flags import override
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.lower import lower as to_schedule
from tessera.ir.tile.gemm import Blocks
from tessera.ir.tile.lower import lower as to_tile
from tessera.runtime.kernel import compile_kernels


def candidates() -> list[Blocks]:
    """Register blocks that fit 32 vectors of 16, with several sizes of instances."""
    registers = ((14, 32), (12, 32), (8, 48), (6, 64), (28, 16))
    instances = ((112, 1024), (112, 256), (224, 512), (448, 4096))
    return [
        Blocks(m=m, n=n, rows=rows // m * m, columns=columns)
        for (m, n), (rows, columns) in itertools.product(registers, instances)
    ]


def measure(m: int, k: int, n: int, threads: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=s).astype(np.float32) for s in ((m, k), (k, n)))
    program = to_schedule(ts.trace(lambda a, b: a @ b, ts.tensor(a), ts.tensor(b)))
    (step,) = program.steps
    assert isinstance(step, Kernel)
    types = {name: buffer.type for name, buffer in program.buffers.items()}
    choices = candidates()
    kernels = compile_kernels([to_tile(step, types, c) for c in choices])
    out = np.empty((m, n), np.float32)
    times: dict[str, list[float]] = {}
    for _ in range(7):
        for c, kernel in zip(choices, kernels, strict=True):
            start = time.perf_counter()
            kernel.run([a, b, out])
            times.setdefault(str(c), []).append(time.perf_counter() - start)
        np.testing.assert_allclose(out, a @ b, rtol=1e-3, atol=1e-3)
    for _ in range(7):
        start = time.perf_counter()
        a @ b
        times.setdefault("numpy", []).append(time.perf_counter() - start)
    flops = 2 * m * k * n
    print(f"{m}x{k}x{n}, {threads} threads, GFLOP/s (best of 7, median)")
    ranked = sorted(times.items(), key=lambda t: min(t[1]))
    for name, t in ranked[:8] + [r for r in ranked[8:] if r[0] == "numpy"]:
        print(f"  {flops / min(t) / 1e9:8.1f} {flops / statistics.median(t) / 1e9:8.1f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", default="1024x1024x1024,2048x512x2048,32x4096x1024")
    given = parser.parse_args()
    for shape in given.shapes.split(","):
        m, k, n = map(int, shape.split("x"))
        with override(threads=given.threads):
            measure(m, k, n, given.threads)


if __name__ == "__main__":
    main()
