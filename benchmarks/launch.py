"""What it costs to run and to build kernels: launches, bound calls, builds here and in children.

    python benchmarks/launch.py [--threads N] [--record FILE]

Every line gives the fastest, the median and the slowest tenth of many calls in one process; on a
busy machine the fastest is what the code itself needs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.core.dims import symbol
from tessera.core.dtype import f32
from tessera.core.flags import override
from tessera.core.types import TensorType
from tessera.ir.target.cpu.machine import architecture, build
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.ir import Builder, Kernel
from tessera.runtime.builder import build_all, build_safely, start
from tessera.runtime.code import LlvmSource, Store, key_of, load
from tessera.runtime.kernel import CompiledKernel
from tessera.runtime.pool import Job, pool
from tessera.runtime.threads import cores, threads

EMPTY = """
define void @empty(ptr %p, ptr %s, i64 %begin, i64 %end, ptr %scratch) {
  ret void
}
"""


Figures = tuple[float, float, float]


def timed(f: Callable[[], Any], calls: int, rest: float = 0.0) -> Figures:
    """Fastest, median and 90th percentile of the seconds that one call takes."""
    return together([f], calls, rest)[0]


def together(fs: Sequence[Callable[[], Any]], calls: int, rest: float = 0.0) -> list[Figures]:
    """The same of several functions, called in turn."""
    samples: list[list[float]] = [[] for _ in fs]
    for f in fs:
        f()
    for _ in range(calls):
        for f, mine in zip(fs, samples, strict=True):
            if rest:
                time.sleep(rest)
            begin = time.perf_counter()
            f()
            mine.append(time.perf_counter() - begin)
    ranked = [sorted(mine) for mine in samples]
    return [(x[0], x[calls // 2], x[calls * 9 // 10]) for x in ranked]


def add_kernel() -> Kernel:
    """z = x + y, 16 elements in an instance."""
    b, n = Builder("add"), symbol("N")
    x, y = (b.parameter(name, TensorType(f32, (n,))) for name in "xy")
    z = b.parameter("z", TensorType(f32, (n,)), writable=True)
    at = (b.program((n + 15) // 16) * 16,)
    left, right = (b.load(m, at, (16,), masked=(0,)) for m in (x, y))
    b.store(z, b.apply("add", left, right), at, (16,), masked=(0,))
    return b.finish()


def rows_kernel(name: str = "rows") -> Kernel:
    """y = x * x / max(x) by rows: three loops, about as large as a fused kernel of a model."""
    b, m, n = Builder(name), symbol("M"), symbol("N")
    x = b.parameter("x", TensorType(f32, (m, n)))
    y = b.parameter("y", TensorType(f32, (m, n)), writable=True)
    i = b.program(m)
    with b.loop(0, n, 16, [b.full(f32, (16,), float("-inf"))]) as l:
        v = b.load(x, (i, l.variable), (1, 16), (1,), masked=(1,), fill=float("-inf"))
        l.carry(b.apply("max", l.carried[0], v))
    top = b.fold("max", l.results[0], 0)
    with b.loop(0, n, 16) as l:
        v = b.load(x, (i, l.variable), (1, 16), (1,), masked=(1,))
        out = b.apply("div", b.apply("mul", v, v), top)
        b.store(y, out, (i, l.variable), (1, 16), (1,), masked=(1,))
    return b.finish()


def launches(n: int) -> dict[str, Figures]:
    """Figures of the pool with n threads."""
    empty = load(LlvmSource("empty", EMPTY, ("empty",))).address
    one, many = Job(empty, (), 64, 1), Job(empty, (), 64, n)
    p, nothing = pool(), bytes(8)
    kernel, rows = CompiledKernel(program(add_kernel())), {}
    small = [np.ones(8, np.float32) for _ in range(3)]
    large = [np.ones(256, np.float32) for _ in range(3)]
    rows["empty launch, 1 thread"] = timed(lambda: p.run(one, nothing), 20_000)
    rows[f"empty launch, {n} threads awake"] = timed(lambda: p.run(many, nothing), 20_000)
    rows[f"empty launch, {n} threads asleep"] = timed(lambda: p.run(many, nothing), 500, 2e-3)
    rows["compiled add of 8 elements"] = timed(lambda: kernel.run(small), 20_000)
    with threads(n):
        rows[f"compiled add of 256, {n} threads"] = timed(lambda: kernel.run(large), 20_000)
    rows["numpy add of 8 elements"] = timed(lambda: np.add(*small[:2], out=small[2]), 20_000)
    return rows


def builds() -> dict[str, Figures]:
    """Figures of building one kernel and several."""
    texts = [program(rows_kernel(f"rows{i}")).text for i in range(8)]
    pairs, rows = [(t, "rows") for t in texts], {}
    begin = time.perf_counter()
    build_safely(EMPTY, "empty")
    rows["first build in a child, with its start"] = (time.perf_counter() - begin,) * 3
    start(min(len(pairs), cores()))
    for what, here, child, calls in (
        ("an empty kernel", lambda: build(EMPTY), lambda: build_safely(EMPTY, "empty"), 60),
        ("a kernel", lambda: build(texts[0]), lambda: build_safely(*pairs[0]), 60),
        (
            "8 kernels",
            lambda: [build(t) for t in texts],
            lambda: build_all(pairs),
            12,
        ),
    ):
        figures = together([here, child], calls)
        rows[f"build of {what} here"], rows[f"build of {what} in children"] = figures
    with tempfile.TemporaryDirectory() as folder:
        store, key = Store(Path(folder)), key_of(texts[0])
        store.put(key, build(texts[0]))
        rows["read a kernel from the disk cache"] = timed(lambda: store.get(key), 100)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=max(cores(), 2))
    parser.add_argument("--record", type=Path, help="also write the figures to this JSON file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, override(cache_dir=Path(folder)):
        rows = builds() | launches(given.threads)
    for name, figures in rows.items():
        low, middle, high = (x * 1e6 for x in figures)
        print(f"{name:42} {low:12.2f} {middle:12.2f} {high:12.2f} us")
    if given.record:
        about = {
            "machine": architecture().split()[1], "cores": cores(), "system": platform.platform(),
            "python": sys.version.split()[0], "numpy": np.__version__,
            "microseconds: fastest, median, slowest tenth": {
                k: [round(x * 1e6, 2) for x in v] for k, v in rows.items()
            },
        }  # fmt: skip
        given.record.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
