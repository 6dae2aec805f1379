"""Whether the inspector, the profiler and `tessera bench` agree about time, and no kernel is above its roof.

    python benchmarks/agreement.py [--rounds 7] [--budget 0.15] [--out record.json]

Ten programs.  In each round all three measure in turn: bench the median of a call, the profiler the median
of its calls, the inspector the time of a run on its page.  What each is to the first is taken in each round,
so that what slows a round slows all three, and the medians over rounds are compared; so is the sum of the
kernels of the profiler and of the page.  Best on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
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


def programs() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Each takes a millisecond or more on sixteen cores, so that a call itself is small beside it."""
    k = ts.key
    net = nn.Sequential(nn.Linear(512, 1024, key=k(0)), op.gelu, nn.Linear(1024, 256, key=k(1)))
    q = [normal(1, 8, 1024, 64) for _ in range(3)]
    blur = normal(2048)
    return {
        "matmul 2048": (lambda a, b: a @ b, (normal(2048, 2048), normal(2048, 2048))),
        "matmul f64 1024": (lambda a, b: a @ b,
        (normal(1024, 1024, dtype=np.float64), normal(1024, 1024, dtype=np.float64))),
        "softmax 8192x4096": (op.softmax, (normal(8192, 4096),)),
        "layernorm + gelu": (lambda x: op.gelu(op.layernorm(x)), (normal(8192, 2048),)),
        "attention 8x1024x64": (lambda *x: op.attention(*x, causal=True), tuple(q)),
        "conv 16x64x56x56": (lambda x, w: op.relu(op.conv2d(x, w, padding=1)),
        (normal(16, 64, 56, 56), normal(64, 64, 3, 3))),
        "training step of an MLP": (step, (net, normal(1024, 512), normal(1024, 256))),
        "heat, 20 turns of 1024x1024": (heat, (normal(1024, 1024),)),
        "kernel by hand": (lambda x, a, g: gated(x, a, g),
        (normal(8192, 1024), normal(8192, 1024), normal(1024))),
        "circulant of 2048 on 512 columns": (lambda c, x: op.circulant(c) @ x, (blur, normal(2048, 512))),
    }  # fmt: skip


def by_bench(f: Any, args: tuple[Any, ...], budget: float, folder: Path) -> dict[str, float]:
    """The median of a call as `tessera bench` shows it."""
    return {"bench": _measured(Subject(f, args, {}), budget).median}


def by_profiler(f: Any, args: tuple[Any, ...], budget: float, folder: Path) -> dict[str, float]:
    """The median of a call, its kernels, and the highest share of a roof."""
    begin, times = time.perf_counter(), list[float]()
    f(*args)
    with ts.profile() as p:
        while len(times) < 3 or time.perf_counter() - begin < budget:
            f(*args)
            times.append(0.0)
    calls = [s for s in p.spans if s.kind == "call" and s.name == f.__name__]
    assert len(calls) == len(times)
    return {
        "profiler": statistics.median((s.end - s.begin) / 1e9 for s in calls),
        "kernels, profiler": sum(r.usual * len(r.runs) / len(calls) for r in p.kernels),
        "roof, profiler": max(r.fraction for r in p.kernels),
    }


def by_inspector(f: Any, args: tuple[Any, ...], budget: float, folder: Path) -> dict[str, float]:
    """The time of a run on the page, of its kernels, and the highest share of a roof."""
    page = f.inspect(*args, path=folder / "page.html")
    (data, _), *_ = programs_in(page.read_text(), "page")
    return {
        "inspector": data["timeline"]["usual"],
        "kernels, inspector": sum(s["seconds"] for s in data["steps"]),
        "roof, inspector": max((s.get("roof", 0.0) for s in data["steps"]), default=0.0),
    }


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
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=0.15, help="seconds of each measurement")
    parser.add_argument("--only", default="", help="programs whose name has this")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    peaks = peaks_here()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (g, args) in programs().items():
            if given.only not in name:
                continue
            f = ts.jit(g, target="cpu")
            f(*args)
            rounds = [measured(f, args, given.budget, Path(folder), i) for i in range(given.rounds)]
            middle = {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}
            walls = apart(rounds, ("bench", "profiler", "inspector"))
            parts = apart(rounds, ("kernels, profiler", "kernels, inspector"))
            highest = max(r[k] for r in rounds for k in ("roof, profiler", "roof, inspector"))
            found[name] = middle | {
                "walls apart": walls,
                "kernels apart": parts,
                "highest roof": highest,
            }
            shown = (f"{k} {1e3 * middle[k]:.3f} ms" for k in ("bench", "profiler", "inspector"))
            print(f"{name:36} {', '.join(shown)}: {walls:.1%} apart; kernels {parts:.1%} apart; "
                f"highest roof {highest:.0%}", flush=True)  # fmt: skip
    record = {
        "machine": platform.processor() or platform.machine(), "threads": peaks.threads,
        "rounds": given.rounds,
        "peaks": {"flops": peaks.flops, "f64": peaks.wide, "memory": peaks.bandwidth,
        **{x.name: x.bandwidth for x in peaks.levels}},
        "worst": {k: max(x[k] for x in found.values())
        for k in ("walls apart", "kernels apart", "highest roof")},
        "programs": found,
    }  # fmt: skip
    print(json.dumps(record["worst"]))
    if given.out:
        given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
