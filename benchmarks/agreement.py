"""Whether the inspector, the profiler and `tessera bench` agree about time, and no kernel is above its roof.

    python benchmarks/agreement.py [--rounds 15] [--budget 0.15] [--out record.json]

Ten programs.  In each round all three measure in turn: bench the median of a call, the profiler the median
of the runs of the program, the inspector the time of a run that its page shows.  What each is to the first
is taken in each round, so that what slows a round slows all three, and the medians over rounds are compared;
so is the sum of the steps of the profiler and of the page.  Best on a machine that does nothing else; where
others use it, `--threads 1 --part 4` has runs that are shorter than what a thread gets at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import KTile, block, kernel, nn, op, tile
from tessera.cli.bench import _measured
from tessera.cli.subjects import Subject
from tessera.inspect.page_compare import programs_in
from tessera.inspect.page_runs import timed_runs
from tessera.inspect.profile_rows import self_times
from tessera.ir.graph.ir import data_of
from tessera.tune.roofline import peaks_here

rng = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> ts.Tensor:
    """Numbers with a deviation that keeps sums of this length near 1."""
    return ts.tensor(rng.normal(size=shape).astype(dtype) / shape[-1] ** 0.5)


Rows, Row = KTile["M", "D"], KTile["D"]


@kernel.schedule(block(16))
def gated(x: Rows, a: Rows, gain: Row) -> Any:
    z = tile.load(x) * tile.sigmoid(tile.load(a))
    return z * tile.rsqrt(tile.mean(z * z, axis=1) + 1e-6)[:, None] * tile.load(gain)


def heat(u: Any) -> Any:
    def turn(i: Any, u: Any) -> Any:
        near = op.roll(u, 1, 0) + op.roll(u, -1, 0) + op.roll(u, 1, 1) + op.roll(u, -1, 1)
        return u + 0.2 * (near - 4 * u)

    return ts.fori_loop(0, 20, turn, u)


def step(model: Any, x: Any, y: Any) -> Any:
    return ts.value_and_grad(lambda m: op.mse(m(x), y))(model)


def programs(part: int) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """At `part` 1 each takes a millisecond or more on sixteen cores, so a call itself is small beside it;
    at 4, sizes divided by four, about as much on one thread.
    """
    k, p = ts.key, part
    net = nn.Sequential(
        nn.Linear(512 // p, 1024 // p, key=k(0)), op.gelu, nn.Linear(1024 // p, 256 // p, key=k(1))
    )
    q = [normal(1, 8, 1024 // p, 64) for _ in range(3)]
    wide = normal(1024 // p, 1024 // p, dtype=np.float64)
    return {
        "matmul": (lambda a, b: a @ b, (normal(2048 // p, 2048 // p), normal(2048 // p, 2048 // p))),
        "matmul f64": (lambda a, b: a @ b, (wide, wide.T)),
        "softmax": (op.softmax, (normal(8192 // p, 4096 // p),)),
        "layernorm + gelu": (lambda x: op.gelu(op.layernorm(x)), (normal(8192 // p, 2048 // p),)),
        "attention": (lambda *x: op.attention(*x, causal=True), tuple(q)),
        "conv 3x3": (lambda x, w: op.relu(op.conv2d(x, w, padding=1)),
        (normal(16 // p, 64, 56 // p, 56 // p), normal(64, 64, 3, 3))),
        "training step of an MLP": (step, (net, normal(1024 // p, 512 // p), normal(1024 // p, 256 // p))),
        "heat, 20 turns of a loop": (heat, (normal(1024 // p, 1024 // p),)),
        "kernel by hand": (lambda x, a, g: gated(x, a, g),
        (normal(8192 // p, 1024 // p), normal(8192 // p, 1024 // p), normal(1024 // p))),
        "circulant": (lambda c, x: op.circulant(c) @ x, (normal(2048 // p), normal(2048 // p, 512 // p))),
    }  # fmt: skip


def by_bench(f: Any, args: tuple[Any, ...], budget: float, folder: Path) -> dict[str, float]:
    """The median of a call as `tessera bench` shows it."""
    return {"bench": _measured(Subject(f, args, {}), budget).median}


def by_profiler(f: Any, args: tuple[Any, ...], budget: float, folder: Path) -> dict[str, float]:
    """The median of a run of the program, its steps, and the highest share of a roof."""
    begin, count = time.perf_counter(), 0
    f(*args)
    with ts.profile() as p:
        while count < 3 or time.perf_counter() - begin < budget:
            f(*args)
            count += 1
    whole = zip(p.spans, self_times(p.spans), strict=True)
    runs = [(s, own) for s, own in whole if s.kind == "program" and s.name == f.__name__]
    assert len(runs) == count
    return {
        "profiler": statistics.median((s.end - s.begin) / 1e9 for s, _ in runs),
        "steps, profiler": statistics.median((s.end - s.begin - own) / 1e9 for s, own in runs),
        "roof, profiler": max(r.fraction for r in p.kernels),
    }


def by_inspector(f: Any, args: tuple[Any, ...], budget: float, folder: Path) -> dict[str, float]:
    """The time of a run and of its steps, as a page has them."""
    e, given = f.program(*args)
    ran = timed_runs(e, [data_of(x, f.__name__) for x in given])
    return {"inspector": ran.seconds, "steps, inspector": sum(ran.steps[id(e)].values())}


def on_a_page(f: Any, args: tuple[Any, ...], folder: Path) -> dict[str, float]:
    """What a page shows: the time of a run, and the highest share of a roof."""
    page = f.inspect(*args, path=folder / "page.html")
    every = [data for data, _ in programs_in(page.read_text(), "page")]
    return {
        "page": every[0]["timeline"]["usual"],
        "roof, inspector": max(s.get("roof", 0.0) for d in every for s in d["steps"]),
    }


_PAGES = 3  # whose shares of roofs are looked at
TOOLS = (by_bench, by_profiler, by_inspector)


def measured(
    f: Any, args: tuple[Any, ...], budget: float, folder: Path, turn: int
) -> dict[str, float]:
    """A round: all three, another one first each time."""
    out: dict[str, float] = {}
    for i in range(len(TOOLS)):
        out |= TOOLS[(turn + i) % len(TOOLS)](f, args, budget, folder)
    return out


def apart(rounds: list[dict[str, float]], names: tuple[str, ...]) -> float:
    """How far the largest is above the smallest, by the median over rounds of what each is to the first."""
    ratios = [statistics.median(r[n] / r[names[0]] for r in rounds) for n in names]
    return max(ratios) / min(ratios) - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=float, default=0.15, help="seconds of each measurement")
    parser.add_argument("--only", default="", help="programs whose name has this")
    parser.add_argument("--part", type=int, default=1, help="what sizes are divided by")
    parser.add_argument(
        "--threads", type=int, help="1 where others use the machine: nobody is waited for"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with ts.threads(given.threads) if given.threads else contextlib.nullcontext():
        measure(given)


def measure(given: argparse.Namespace) -> None:
    """Measure all programs, and say and record how far the tools are apart."""
    peaks = peaks_here()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (g, args) in programs(given.part).items():
            if given.only not in name:
                continue
            f = ts.jit(g, target="cpu")
            f(*args)
            rounds = [measured(f, args, given.budget, Path(folder), i) for i in range(given.rounds)]
            middle = {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}
            walls = apart(rounds, ("bench", "profiler", "inspector"))
            parts = apart(rounds, ("steps, profiler", "steps, inspector"))
            pages = [on_a_page(f, args, Path(folder)) for _ in range(_PAGES)]
            middle["page"] = statistics.median(x["page"] for x in pages)
            roofs = [*(r["roof, profiler"] for r in rounds), *(x["roof, inspector"] for x in pages)]
            highest = max(roofs)
            found[name] = middle | {
                "rounds": rounds,
                "walls apart": walls,
                "steps apart": parts,
                "highest roof": highest,
            }
            shown = (f"{k} {1e3 * middle[k]:.3f} ms" for k in ("bench", "profiler", "inspector"))
            print(f"{name:36} {', '.join(shown)}: {walls:.1%} apart; steps {parts:.1%} apart; "
                f"highest roof {highest:.0%}", flush=True)  # fmt: skip
    record = {
        "machine": platform.processor() or platform.machine(), "threads": peaks.threads,
        "rounds": given.rounds, "sizes divided by": given.part, "load": os.getloadavg()[0],
        "peaks": {"flops": peaks.flops, "f64": peaks.wide, "memory": peaks.bandwidth,
        **{x.name: x.bandwidth for x in peaks.levels}},
        "worst": {k: max(x[k] for x in found.values())
        for k in ("walls apart", "steps apart", "highest roof")},
        "programs": found,
    }  # fmt: skip
    print(json.dumps(record["worst"]))
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
