"""Memory of ranks: train a GPT under ZeRO-1, 2, 3 and FSDP, and compare each rank's peak with the planner's
figure.

    python benchmarks/mesh_memory.py --ranks 4 --width 384

A rank runs the step until it is compiled, lets go of everything, and takes the resident set from there:
parameters, state and a step, by the high-water mark of the kernel (Linux).  Memory that ranks share is
counted in halves.  The record (benchmarks/records/mesh_memory.json) has the largest rank beside the plan.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from examples.distributed import gpt
from tessera import dist
from tessera.plan.machine import ranks
from tessera.runtime import memory

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "records" / "mesh_memory.json"
STAGES = {"data": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}


def resident(file: str = "status") -> dict[str, int]:
    """Bytes of this process by name."""
    lines = (line.split() for line in Path(f"/proc/self/{file}").read_text().splitlines())
    return {w[0].rstrip(":"): int(w[1]) * 1024 for w in lines if w[2:] == ["kB"]}


def own() -> int:
    """Bytes that lie in memory and are not shared with other ranks."""
    now = resident()
    return now["VmRSS"] - now["RssShmem"]


def settle() -> None:
    """Give back what no one uses."""
    gc.collect()
    memory.clear()
    ctypes.CDLL(None).malloc_trim(0)


def measured(config: str, width: int, rows: int) -> tuple[float, float]:
    """The planner's figure for a rank, and the peak of this one."""
    gpt.WIDTH, gpt.HEADS = width, 8
    optimizer, params = ts.optim.adam(1e-3), gpt.init()
    tokens = np.zeros((rows, gpt.LENGTH + 1), np.int64)
    p = dist.plan(
        gpt.loss, ranks(dist.size()), params, tokens, optimizer=optimizer, zero=STAGES[config], tp=1
    )
    s = getattr(dist.strategy, config)(dist.Mesh(["dp"], shape=(dist.size(),)), "dp")
    step = s.step(gpt.loss, optimizer)

    def begun() -> Any:
        """Parameters and state that a step has written, so that they lie in memory."""
        first = step(s.params(params), s.state(optimizer.init(params)), s.batch(tokens))
        return step(*first[1:], s.batch(tokens))[1:]

    begun()
    settle()
    base, tree = own(), begun()
    settle()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins here
    tree = step(*tree, s.batch(tokens)), tree
    end = resident()
    between = resident("smaps_rollup")["Pss_Shmem"]
    del tree
    return p.memory.total, end["VmHWM"] - end["RssShmem"] - base + between


def child(args: argparse.Namespace) -> None:
    """Measure one configuration, and print a line on the first rank."""
    planned, peak = measured(args.child, args.width, args.rows)
    most = float(dist.all_reduce(peak, op="max"))
    if dist.rank() == 0:
        row = {"config": args.child, "ranks": dist.size(), "planned": planned, "measured": most}
        print(json.dumps({**row, "ratio": round(most / planned, 4)}))


def main() -> int:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[4])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--configs", nargs="+", default=list(STAGES), choices=STAGES)
    parser.add_argument("--record", default=str(RECORD), help="the file of the record; '' for none")
    parser.add_argument("--child", default=None)
    args = parser.parse_args()
    if args.child:
        child(args)
        return 0
    rows: list[dict[str, Any]] = []
    for n in args.ranks:
        for config in args.configs:
            command = [
                sys.executable,
                "-m",
                "tessera.cli",
                "run",
                "-n",
                n,
                __file__,
                "--child",
                config,
            ]
            command += ["--width", args.width, "--rows", args.rows]
            env = {**os.environ, "PYTHONPATH": str(ROOT), "TESSERA_THREADS": "1"}
            done = subprocess.run(
                [str(c) for c in command], check=True, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
            )  # fmt: skip
            rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
            print(rows[-1], flush=True)
            if args.record:
                about = {"width": args.width, "rows": args.rows}
                Path(args.record).write_text(json.dumps({**about, "runs": rows}, indent=1) + "\n")
    return int(any(abs(r["ratio"] - 1) > 0.05 for r in rows))


if __name__ == "__main__":
    sys.exit(main())
