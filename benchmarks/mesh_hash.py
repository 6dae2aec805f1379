"""One hash: train GPTs on a logical mesh of 8 shards, on several numbers of ranks and engines, and compare SHA-256.

    python benchmarks/mesh_hash.py --steps 5 --ranks 1 2 4 --engines local mpi
    python benchmarks/mesh_hash.py --steps 100 --width 96 --ranks 1 2 4 8
    python benchmarks/mesh_hash.py --bubble

The record (benchmarks/records/mesh_hash.json) has the hash, the loss and the seconds of each run.  --bubble measures what part of
a step the stages of a pipeline wait, from the time of steps with few and with many microbatches of one size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from examples.distributed import gpt, gpt3d, mixture
from tessera import dist
from tessera.core.pipeline import Schedule

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "records" / "mesh_hash.json"
STRATEGIES = ("data", "tp", "zero1", "zero2", "zero3", "zero3+tp", "gpt3d", "mixture")


def train(strategy: str, steps: int, width: int) -> tuple[float, str]:
    """The loss and the hash of one configuration on the ranks of this run."""
    gpt.WIDTH = width
    if strategy == "gpt3d":
        return gpt3d.train("zero1", "1f1b", steps)
    if strategy == "mixture":
        return mixture.train(steps)
    return gpt.train(strategy, steps)


def child(strategy: str, steps: int, width: int) -> None:
    """Run one configuration, and print a line on the first rank."""
    begin = time.perf_counter()
    loss, digest = train(strategy, steps, width)
    if dist.rank() == 0:
        row = {"loss": loss, "sha256": digest, "seconds": round(time.perf_counter() - begin, 2)}
        print(json.dumps(row))


def measured(strategy: str, ranks: int, engine: str, args: argparse.Namespace) -> Any:
    """The line of a run."""
    command = [
        sys.executable, "-m", "tessera.cli", "run", "-n", ranks, "--engine", engine, __file__, "--child", strategy,
        "--steps", args.steps, "--width", args.width,
    ]  # fmt: skip
    env = {**os.environ, "TESSERA_TARGET": args.target}
    done = subprocess.run(
        [str(c) for c in command], check=False, cwd=ROOT, env=env, capture_output=True, text=True
    )
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(args: argparse.Namespace) -> int:
    """All runs, and whether each configuration has one hash."""
    rows, failed = [], 0
    config = {"steps": args.steps, "width": args.width, "target": args.target}
    for strategy in args.strategies:
        found = set()
        for engine in args.engines:
            for n in args.ranks:
                row = measured(strategy, n, engine, args)
                rows.append({"strategy": strategy, "ranks": n, "engine": engine, **row})
                found.add(row.get("sha256", row.get("error")))
                print(rows[-1], flush=True)
                RECORD.write_text(json.dumps({**config, "runs": rows}, indent=1) + "\n")
        failed += len(found) != 1
        print(f"{strategy}: {'one hash' if len(found) == 1 else 'several hashes'}", flush=True)
    return failed


def bubble(schedule: str, chunks: int) -> dict[str, float]:
    """The part of a step that is not proportional to the number of microbatches, beside what the schedule says."""
    times = {}
    for count in (4, 12):
        mesh = dist.Mesh(["pp"], shape=(2,))
        loss = dist.pipeline(
            gpt3d.first, gpt3d.block, gpt3d.last, mesh, "pp", microbatches=count, schedule=schedule, chunks=chunks
        )  # fmt: skip
        p = gpt.init(layers=4)
        params = {
            "first": {"embedding": p["embedding"], "position": p["position"]},
            "blocks": dist.stacked(p["blocks"], 2, chunks), "last": {"norm": p["norm"], "head": p["head"]},
        }  # fmt: skip
        s = dist.strategy.pipeline(mesh, "pp")
        f = ts.jit(ts.value_and_grad(loss))
        rng = np.random.default_rng(0)
        tokens = s.batch(rng.integers(0, gpt.VOCABULARY, (8 * count, gpt.LENGTH + 1)))
        laid = s.params(params)
        f(laid, tokens)
        times[count] = min(_seconds(f, laid, tokens) for _ in range(5))
    each = (times[12] - times[4]) / 8  # of one microbatch
    return {
        "measured": round(1 - 4 * each / times[4], 3),
        "schedule": round(
            Schedule(schedule, 2, 4, chunks).bubble(3.0), 3
        ),  # backward computes forward again
        "seconds": round(times[4], 4),
    }


def _seconds(f: Any, *args: Any) -> float:
    dist.barrier()
    begin = time.perf_counter()
    float(f(*args)[0])
    return time.perf_counter() - begin


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--engines", nargs="+", default=["local"])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--child", default=None)
    parser.add_argument("--bubble", action="store_true")
    args = parser.parse_args()
    if args.child:
        child(args.child, args.steps, args.width)
        return 0
    if args.bubble:
        for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
            found = bubble(schedule, chunks)
            if dist.rank() == 0:
                print(schedule, found, flush=True)
        return 0
    return compare(args)


if __name__ == "__main__":
    sys.exit(main())
