"""Products beside the multiply-adds that the same threads do in registers alone.

    python benchmarks/peak.py [--threads 2] [--seconds 20] [--sizes 512x512x512,...] [--calmest] [--record
    FILE]

Three things run in turn through one pool of threads, in windows about as long as each other: multiply-adds in
registers; the same fed from memory as a block of a product is (a column of scalars and a row of vectors for
each step), but always from the first cache; and the product.

A core whose other hardware thread works for somebody else still does nearly all its multiply-adds in
registers, but not those that are fed: what feeds them is shared.  So the second tells whether the cores
were ours.  A window of the product counts as calm when the windows of both kinds around it come to 0.95 of
the best window of registers of all sizes. What is shown is the median of the product, with quartiles, as a
part of the median of registers, for all windows and for calm ones.  A window is never chosen by its own
time: such a choice is one of luck.  Behind it are GFLOP/s at the first tenth, the median, the last tenth
and at best.

Which lines of a factor meet in the second cache depends on where the system put its pages, which changes a
product by 3% from one process to the next.  So there are eight pairs of the same factors, each used for
half a second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.core.dims import symbol
from tessera.core.dtype import f32
from tessera.core.flags import override
from tessera.core.types import TensorType
from tessera.ir.schedule.nests.blocks import block
from tessera.ir.target.cpu.machine import architecture
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.ir import Builder, Kernel, Memory, Tile
from tessera.runtime.kernel import CompiledKernel

SIZES = "512x512x512,1024x1024x1024,2048x512x2048,2048x2048x2048"
CALM = 0.95  # of the best of registers
_WINDOW = 0.001  # seconds, unless a product takes longer
_DEPTH = 64  # steps whose factors the first cache holds: 16 KiB, if a step takes four vectors of 64 bytes
_STEPS = 8  # of a turn of a loop, as products have them
_TURNS = 50  # of an instance
_PAIRS, _STAY = 8, 0.5  # pairs of factors, and seconds for which one is used


class MultiplyAdds:
    """A kernel of nothing but multiply-adds of f32: a block of sums, with factors in registers or from
    the first cache.
    """

    def __init__(self, fed: bool):
        self._high, self._wide = block(f32)
        self._kernel = CompiledKernel(program(self._fed() if fed else self._alone()))
        rng = np.random.default_rng(0)
        shapes = (self._high, _DEPTH), (_DEPTH, self._wide)
        self._factors = [rng.normal(size=s).astype(np.float32) for s in shapes]
        self._sums = np.empty((1, self._wide), np.float32)

    def _begin(self) -> tuple[Builder, Memory, Memory, Memory]:
        b, count = Builder("multiply_adds"), symbol("count")
        left = b.parameter("left", TensorType(f32, (self._high, _DEPTH)))
        right = b.parameter("right", TensorType(f32, (_DEPTH, self._wide)))
        sums = b.parameter("sums", TensorType(f32, (count, self._wide)), writable=True)
        return b, left, right, sums

    def _end(self, b: Builder, sums: Memory, result: Tile) -> Kernel:
        """Store the sum of all rows: all of them are needed, and little is written."""
        at = (b.program(sums.type.shape[0]), 0)
        b.store(sums, b.fold("add", result, 0), at, (1, self._wide))
        return b.finish()

    def _alone(self) -> Kernel:
        b, left, right, sums = self._begin()
        x, y = b.load(left, (0, 0), (1, 1)), b.load(right, (0, 0), (1, self._wide))
        first = b.full(f32, (self._high, self._wide), 0)
        with b.loop(0, _TURNS * _DEPTH, 1, [first]) as turn:
            turn.carry(b.apply("fma", x, y, turn.carried[0]))
        return self._end(b, sums, turn.results[0])

    def _fed(self) -> Kernel:
        b, left, right, sums = self._begin()
        panel = b.alloc(f32, (_DEPTH, self._wide))
        with b.loop(0, _DEPTH) as row:
            at, extent = (row.variable, 0), (1, self._wide)
            b.store(panel, b.load(right, at, extent), at, extent)
        first = b.full(f32, (self._high, self._wide), 0)
        with b.loop(0, _TURNS, 1, [first]) as turn:
            with b.loop(0, _DEPTH, _STEPS, [turn.carried[0]]) as k:
                total = k.carried[0]
                for i in range(_STEPS):
                    x = b.load(left, (0, k.variable + i), (self._high, 1))
                    y = b.load(panel, (k.variable + i, 0), (1, self._wide))
                    total = b.apply("fma", x, y, total)
                k.carry(total)
            turn.carry(k.results[0])
        return self._end(b, sums, turn.results[0])

    def last(self, window: float) -> None:
        """Take about so many seconds from now on."""
        each = min(self._seconds() for _ in range(30))
        self._sums = np.empty((max(1, round(window / each)), self._wide), np.float32)

    def rate(self) -> float:
        """GFLOP/s, once."""
        return 2 * _TURNS * _DEPTH * self._high * self._sums.size / self._seconds() / 1e9

    def _seconds(self) -> float:
        return seconds(lambda: self._kernel.run((*self._factors, self._sums)))


def seconds(run: Callable[[], Any], often: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(often):
        run()
    return time.perf_counter() - start


def measure(size: str, threads: int, most: float) -> dict[str, Any]:
    """GFLOP/s in windows of a product and of what runs around them."""
    m, k, n = map(int, size.split("x"))
    rng = np.random.default_rng(0)
    drawn = [rng.normal(size=s).astype(np.float32) for s in ((m, k), (k, n))]
    pairs = itertools.cycle([[ts.tensor(x) for x in drawn] for _ in range(_PAIRS)])
    factors = next(pairs)
    f = ts.jit(op.matmul, target="cpu")
    once = min(seconds(lambda: f(*factors)) for _ in range(9))
    often = max(1, round(_WINDOW / once))
    alone, fed = MultiplyAdds(fed=False), MultiplyAdds(fed=True)
    for x in (alone, fed):
        x.last(threads * often * once)
    rates: dict[str, list[float]] = {"registers": [], "fed": [], "product": []}
    now = moved = time.perf_counter()
    end = now + most
    while (now := time.perf_counter()) < end:
        if now > moved + _STAY:
            factors, moved = next(pairs), now
            f(*factors)
        rates["registers"].append(alone.rate())
        rates["fed"].append(fed.rate())
        t = seconds(lambda: f(*factors), often)  # noqa: B023
        rates["product"].append(often * 2 * m * k * n / t / 1e9)
        rates["fed"].append(fed.rate())
    found = {name: np.array(r) for name, r in rates.items()}
    return {"size": size, "window_ms": often * once * 1e3, **found}


def summary(measured: dict[str, Any], best: float) -> dict[str, Any]:
    """Shares of the peak, and which windows were calm if registers come to `best` GFLOP/s on cores that
    are ours.
    """
    found = {name: measured[name] for name in ("registers", "fed", "product")}
    around = np.minimum(found["fed"].reshape(-1, 2).min(1), found["registers"])
    calm = around >= CALM * best
    return {
        "size": measured["size"], "windows": len(calm), "window_ms": measured["window_ms"],
        "gflops": {name: [float(q) for q in np.quantile(r, (0.1, 0.5, 0.9, 1.0))] for name,
        r in found.items()},
        "all": _share(found["product"], found["registers"]),
        "calm_windows": int(calm.sum()),
        "calm": _share(found["product"][calm], found["registers"][calm]) if calm.any() else None,
    }  # fmt: skip


def _share(product: Any, alone: Any) -> list[float]:
    """The median of a product, and its quartiles, as a part of the median of registers."""
    middle = np.median(alone)
    return [float(q / middle) for q in np.quantile(product, (0.5, 0.25, 0.75))]


def _text(share: list[float]) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*share)


def _groups(threads: int) -> list[list[int]]:
    """The cores that this process may use, as many at a time."""
    mine = sorted(os.sched_getaffinity(0))
    return [mine[i : i + threads] for i in range(0, len(mine) - threads + 1, threads)] or [mine]


def fed_on(cores: list[int]) -> float:
    """What a new process finds on some cores: threads that have begun stay where they are."""
    command = [sys.executable, __file__, "--probe", "--threads", str(len(cores))]
    out = subprocess.run(
        command,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        stdout=subprocess.PIPE,
        check=True,
    )
    return float(out.stdout)


def probe(threads: int) -> float:
    """GFLOP/s of multiply-adds, in registers or fed, whichever are fewer: the median of half a second."""
    kinds = MultiplyAdds(fed=False), MultiplyAdds(fed=True)
    for x in kinds:
        x.last(threads * _WINDOW)
    return float(np.median([min(x.rate() for x in kinds) for _ in range(250)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each size")
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--calmest", action="store_true", help="on the cores that do most when fed")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        with override(threads=given.threads):
            print(probe(given.threads))
        return
    if hasattr(os, "sched_setaffinity"):
        groups = _groups(given.threads)
        os.sched_setaffinity(0, max(groups, key=fed_on) if given.calmest else groups[0])
    with override(threads=given.threads):
        measured = [measure(x, given.threads, given.seconds) for x in given.sizes.split(",")]
    best = max(x["registers"].max() for x in measured)
    found = [summary(x, best) for x in measured]
    for r in found:
        parts = [f"all {_text(r['all'])}"]
        parts += [f"{r['calm_windows']} calm {_text(r['calm'])}"] if r["calm"] else ["none calm"]
        parts += [f"{name} {' '.join(f'{q:.0f}' for q in qs)}" for name, qs in r["gflops"].items()]
        windows = f"{r['windows']} windows of {r['window_ms']:.1f} ms"
        print(f"{r['size']:15} {windows}: {'; '.join(parts)}")
    if given.record:
        whole = {
            "machine": architecture().split(" +")[0], "cores": os.cpu_count(),
            "threads": given.threads, "python": platform.python_version(),
            "numpy": np.__version__, "load": os.getloadavg()[0], "results": found,
        }  # fmt: skip
        given.record.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
