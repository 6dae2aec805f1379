"""Which nest makes a contraction fast: every candidate, interleaved, beside a peer.

    python benchmarks/nests.py [--threads 2] [--shapes 1024x1024x1024,...] [--forms nn,nt,tn]

A form says which factors are transposed in memory.  The peer (torch if it is installed, else NumPy)
is timed afterwards in the same process.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.core.errors import ScheduleError
from tessera.core.flags import override
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.lower import lower as to_schedule
from tessera.ir.schedule.nests.choose import default_nest
from tessera.ir.schedule.nests.nest import Nest, parse_nest
from tessera.ir.target.cpu.program import program as to_target
from tessera.ir.tile.cpu.lower import lower as to_tile
from tessera.runtime.kernel import compile_kernels

BLOCK = "k:1, unroll m:1, vector n:16"


def candidates(m: int) -> list[str]:
    """Nests for so many rows."""
    if m <= 4:
        strips = itertools.product((512, 1024, 2048), (4, 8, 16), (64, 128, 256))
        found = [f"parallel n:{w}, k:512, k:{s}, n:{n}, m:{m}, {BLOCK}" for w, s, n in strips]
        return found + [f"parallel n:{n}, k:512, m:{m}, {BLOCK}" for n in (64, 128, 256)]
    found = []
    for (mr, nr), tall in itertools.product(((6, 64), (8, 48)), (128, 256, 512, 1024)):
        rows = -(-tall // mr) * mr
        head, rest = f"parallel m:{rows}, parallel n:{nr}", f"m:{mr}, {BLOCK}; stage right"
        found += [f"{head}, k:512, {rest} at 3", f"{head}, k:512, k:128, {rest} at 4"]
        found += [f"parallel n:{nr}, parallel m:{rows}, k:512, {rest} at 3"]
        for wide in (2, 3, 4):  # a few rows go through all panels of an instance
            head, through = f"parallel m:{rows}, parallel n:{wide * nr}", f"m:{mr}, n:{nr}"
            found += [f"{head}, k:512, {through}, {BLOCK}; stage right at 3"]
            found += [f"{head}, {through}, k:512, {BLOCK}; stage right at 2"]
        for wide in (4, 8, 16):
            head = f"parallel m:{rows}, parallel n:{wide * nr}, k:512"
            found += [
                f"{head}, n:{nr}, {rest} at 4",
                f"{head}, n:{nr}, {rest} at 4; stage left at 3",
            ]
    return list(dict.fromkeys(found))


def seconds(f: Callable[[], Any], rounds: int = 7) -> float:
    best = 1e9
    for _ in range(rounds):
        start = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - start)
    return best


def kernels(m: int, k: int, n: int, form: str) -> tuple[list[Nest], list[Any], list[Any]]:
    """Nests, kernels and arguments of a product."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(k, m) if form[0] == "t" else (m, k)).astype(np.float32)
    b = rng.normal(size=(n, k) if form[1] == "t" else (k, n)).astype(np.float32)

    def product(a: Any, b: Any) -> Any:
        x = op.swapaxes(a, 0, 1) if form[0] == "t" else a
        y = op.swapaxes(b, 0, 1) if form[1] == "t" else b
        return x @ y

    program = to_schedule(ts.trace(product, ts.tensor(a), ts.tensor(b)))
    step = next(s for s in program.steps if isinstance(s, Kernel))
    types = {name: buffer.type for name, buffer in program.buffers.items()}
    nests = [default_nest(step)]
    for text in candidates(m):
        try:
            nests.append(parse_nest(text))
        except ScheduleError:
            continue
    built = compile_kernels([to_target(to_tile(step, types, c)) for c in nests])
    arrays = {"x0": a, "x1": b}
    return nests, built, [*(arrays[x] for x in step.inputs()), np.empty((m, n), np.float32)]


def measure(m: int, k: int, n: int, form: str, shown: int) -> None:
    nests, built, arguments = kernels(m, k, n, form)
    times = dict.fromkeys(range(len(nests)), 1e9)
    for _ in range(7):
        for i, kernel in enumerate(built):
            start = time.perf_counter()
            kernel.run(arguments)
            times[i] = min(times[i], time.perf_counter() - start)
    flops = 2 * m * k * n
    ranked = sorted(times, key=lambda i: times[i])
    print(f"{m}x{k}x{n} {form}, GFLOP/s of the best of 7")
    for i in ranked[:shown] + [0] * (0 not in ranked[:shown]):
        mark = "*" if i == 0 else " "
        print(f"  {flops / times[i] / 1e9:8.1f} {times[i] * 1e3:8.3f} ms {mark} {nests[i]}")


def peer(m: int, k: int, n: int, form: str, threads: int) -> None:
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(threads)
    a = torch.randn((k, m)).T if form[0] == "t" else torch.randn((m, k))
    b = torch.randn((n, k)).T if form[1] == "t" else torch.randn((k, n))
    out = torch.empty((m, n))
    t = seconds(lambda: torch.mm(a, b, out=out))
    print(f"  {2 * m * k * n / t / 1e9:8.1f} {t * 1e3:8.3f} ms   torch {m}x{k}x{n} {form}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", default="1024x1024x1024,2048x512x2048,32x4096x1024,1x4096x4096")
    parser.add_argument("--forms", default="nn")
    parser.add_argument("--show", type=int, default=6)
    given = parser.parse_args()
    runs = [
        (*map(int, s.split("x")), f)
        for s in given.shapes.split(",")
        for f in given.forms.split(",")
    ]
    with override(threads=given.threads):
        for m, k, n, form in runs:
            measure(m, k, n, form, given.show)
    for m, k, n, form in runs:
        peer(m, k, n, form, given.threads)


if __name__ == "__main__":
    main()
