"""Kernels of the language beside the same kernels in Triton, on a GPU, in turn by the device's clock.

    python benchmarks/gpu_kernels.py [--only NAME] [--rounds 9] [--record FILE]
    TRITON_INTERPRET=1 python benchmarks/gpu_kernels.py --agree      no GPU: both on a few elements,
    results compared

A row has the median of both, and Triton's time over ours: 0.95 or more is wanted of each (blocks, warps and
stages are the same on both sides).  Results are compared first; Triton's launches are replayed from a graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

sys.path.insert(0, str(Path(__file__).parent.parent))

import tessera as ts
from benchmarks.peers import ours, theirs
from benchmarks.peers.cases import CASES, Case, drawn

WANTED = 0.95
SAMPLE = 5e-3  # seconds of a sample
REPLAYS = 10  # launches in a graph


def tensors(case: Case, large: bool, device: str) -> tuple[list[Any], list[Any]]:
    """The arguments of ours and of theirs; on a GPU both have the same memory."""
    mine, other = [], []
    for i, spec in enumerate(case.large if large else case.small):
        x = drawn(spec, np.random.default_rng(i))
        if isinstance(x, np.ndarray):
            t = torch.from_numpy(x).to(device)
            t = t.bfloat16() if spec[0] == "bf16" else t
            # Triton's interpreter multiplies the bits of bf16: the same numbers in f32 there
            other.append(t.float() if spec[0] == "bf16" and device == "cpu" else t)
            mine.append(ts.from_dlpack(t))
        else:
            mine.append(x)
            other.append(x)
    return mine, other


def results(made: Any) -> list[Any]:
    """Results as arrays of f64."""
    out = []
    for x in made if isinstance(made, tuple) else (made,):
        a = x.detach().cpu().double().numpy() if isinstance(x, torch.Tensor) else x.numpy()
        out.append(np.asarray(a, np.float64))
    return out


def differ(name: str, case: Case, mine: list[Any], other: list[Any]) -> str | None:
    """How results differ, if they do."""
    a = results(getattr(ours, name)(*mine, **case.keywords))
    b = results(getattr(theirs, name)(*other, **case.keywords))
    if not case.same:  # random numbers: the same share of elements is kept
        share = [float((x != 0).mean()) for (x,) in (a, b)]
        return (
            None
            if abs(share[0] - share[1]) < 0.1
            else f"{share[0]:.3f} and {share[1]:.3f} are kept"
        )
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape:
            return f"shapes {x.shape} and {y.shape}"
        worst = float(np.abs(x - y).max() / max(1.0, float(np.abs(y).max())))
        if not worst < 2e-2:
            return f"results differ by {worst:.2g} of the largest"
    return None


def ours_of(name: str, case: Case, args: list[Any]) -> Callable[[int], float]:
    """What runs our kernel so many times, and says the seconds of the device."""
    arrays = [x for x in args if isinstance(x, ts.Tensor)]
    numbers = [x for x in args if not isinstance(x, ts.Tensor)]
    f: Any = ts.jit(lambda *xs: getattr(ours, name)(*xs, *numbers, **case.keywords))
    f(*arrays)
    (entry,) = f._variants.values()
    timed = entry.executable.timed([x.storage for x in arrays])
    seconds: Callable[[int], float] = timed.seconds
    return seconds


def theirs_of(name: str, case: Case, args: list[Any]) -> Callable[[int], float]:
    """The same of Triton's kernel."""

    def call() -> Any:
        return getattr(theirs, name)(*args, **case.keywords)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPLAYS):
            call()

    def seconds(times: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        n = max(1, times // REPLAYS)
        begin.record()
        for _ in range(n):
            graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / (n * REPLAYS) * times

    return seconds


def sampled(clocks: list[Callable[[int], float]], rounds: int) -> list[list[float]]:
    """Seconds of a run of each, sampled in turn."""
    counts = [max(REPLAYS, round(SAMPLE / max(f(REPLAYS) / REPLAYS, 1e-6))) for f in clocks]
    found: list[list[float]] = [[] for _ in clocks]
    for _ in range(rounds):
        for f, n, seconds in zip(clocks, counts, found, strict=True):
            seconds.append(f(n) / n)
    return found


def agree(names: list[str]) -> int:
    """Compare on a few elements; how many differ."""
    wrong = 0
    for name in names:
        if name == "arcsine":  # Triton's interpreter has no libdevice
            continue
        said = differ(name, CASES[name], *tensors(CASES[name], False, "cpu"))
        wrong += said is not None
        print(f"{name:20} {said or 'alike'}", flush=True)
    return wrong


def row_of(name: str, rounds: int) -> dict[str, Any]:
    """Compare the results of both at their full size, then their times."""
    case = CASES[name]
    mine, other = tensors(case, True, "cuda")
    try:
        said = differ(name, case, mine, other)
        if said is not None:
            return {"fault": said}
        both = sampled([ours_of(name, case, mine), theirs_of(name, case, other)], rounds)
    except Exception as e:
        return {"fault": f"{type(e).__name__}: {e}"[:300]}
    a, b = map(statistics.median, both)
    spread = max((max(x) - min(x)) / statistics.median(x) for x in both)
    return {
        "source": case.source,
        "ms": a * 1e3,
        "triton ms": b * 1e3,
        "ratio": b / a,
        "spread": spread,
    }


def told(row: dict[str, Any]) -> str:
    """A row in words."""
    if "fault" in row:
        return str(row["fault"])
    return f"{row['ms']:8.4f} ms  triton {row['triton ms']:8.4f}  ratio {row['ratio']:5.2f}  spread {row['spread']:.0%}"  # noqa: E501


def main() -> int:
    """Print the table; 1 if results differ."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--only", default="")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--record", type=Path)
    p.add_argument("--agree", action="store_true", help="compare by interpreters, without a GPU")
    args = p.parse_args()
    names = [n for n in CASES if args.only in n]
    if args.agree:
        return 1 if agree(names) else 0
    rows: dict[str, Any] = {}
    for name in names:
        rows[name] = row_of(name, args.rounds)
        print(f"{name:20} {told(rows[name])}", flush=True)
        torch.cuda.empty_cache()
        write(args.record, rows)
    below = [n for n, r in rows.items() if r.get("ratio", 0) < WANTED]
    print(f"{len(rows) - len(below)} of {len(rows)} at {WANTED} or more; below: {', '.join(below)}")
    return 1 if any("fault" in r for r in rows.values()) else 0


def write(path: Path | None, rows: dict[str, Any]) -> None:
    """Put the record on disk."""
    if path is not None:
        about = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        }
        path.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
