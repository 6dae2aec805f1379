"""Random kernels, run in every way there is: machine code, the Tile interpreter, step by step, a model in
NumPy, and Triton's interpreter where Triton and PyTorch are installed.

    python tools/fuzz_kernels.py --seed 0 --count 3000 --jobs 2 --record benchmarks/records/fuzz-kernels.json
    python tools/fuzz_kernels.py --hostile --count 200      indices that may be anything
    python tools/fuzz_kernels.py --gpu --count 500 --jobs 12 on the CUDA device, too
    python tools/fuzz_kernels.py --seed 17 --count 1 --show one kernel, as Python

Kernel number i of a run has the seed `--seed` + i.  A kernel that fails is made smaller and printed as a
test. Kernels run in processes of their own: one that ends its process is a failure too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHUNK = 40  # kernels of a process
PATIENCE = 600  # seconds that a process may take


def worker(seeds: list[int], hostile: bool, triton: bool, gpu: bool) -> None:
    """Run kernels and print what was found, a line of JSON for each."""
    from tests.support.cases.random_data_kernels import random_case
    from tests.support.runners import kernel_runs as rk

    guarded: Any = None
    if triton:
        from tests.oracles import triton_guarded as guarded
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = [random_case(s, hostile) for s in seeds]
        for seed, case in zip(seeds, cases, strict=True):
            said = rk.verdict(case, folder)
            way = "ok" if said is None else said
            if said is None and guarded is not None:
                way = guarded.verdict(case, folder) or "ok"
            if said is None and gpu:
                way = rk.device_verdict(case, folder) or "ok"
            row = {"seed": seed, "family": case.family, "said": way, "indices": rk.indices(case)}
            if rk.failed(None if way.startswith(("ok", "left out")) else way):
                small = rk.shrunk(case, folder) if rk.failed(said) else case
                row["test"] = small.test()
            print(json.dumps(row), flush=True)


def chunk(args: argparse.Namespace, seeds: list[int]) -> list[dict[str, Any]]:
    """The rows of some kernels, from a process of their own."""
    command = [sys.executable, str(Path(__file__)), "--worker", json.dumps(seeds)]
    command += ["--hostile"] * args.hostile + ["--triton"] * args.triton + ["--gpu"] * args.gpu
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    if args.triton:
        env |= {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "0"}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    rows = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    if len(rows) < len(seeds):
        said = f"the process ended with {done.returncode}: {done.stderr[-400:]}"
        rows.append({"seed": seeds[len(rows)], "family": "?", "said": said, "test": ""})
    return rows


def is_fault(row: dict[str, Any]) -> bool:
    """Whether something is wrong with a kernel."""
    return "test" in row


def rows_of(args: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """What was found of every kernel, in order, process by process."""
    seeds = list(range(args.seed, args.seed + args.count))
    parts = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    end = time.monotonic() + args.time
    with ThreadPoolExecutor(args.jobs) as pool:
        yield from pool.map(lambda x: chunk(args, x) if time.monotonic() < end else [], parts)


def main(argv: list[str] | None = None) -> int:
    """Run kernels; 1 if one of them fails."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--count", type=int, default=100)
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--record", type=Path)
    p.add_argument("--hostile", action="store_true", help="indices that may be anything")
    p.add_argument("--triton", action="store_true", help="also by Triton's interpreter")
    p.add_argument("--gpu", action="store_true", help="also on the CUDA device")
    p.add_argument(
        "--time", type=float, default=float("inf"), help="seconds after which none starts"
    )
    p.add_argument("--show", action="store_true", help="print the kernels alone")
    p.add_argument("--worker", help=argparse.SUPPRESS)
    args = p.parse_args(argv)
    if args.worker:
        worker(json.loads(args.worker), args.hostile, args.triton, args.gpu)
        return 0
    if args.show:
        sys.path.insert(0, str(ROOT))
        from tests.support.cases.random_data_kernels import random_case

        for seed in range(args.seed, args.seed + args.count):
            print(random_case(seed, args.hostile).source(f"kernel_{seed}"))
        return 0
    done = Record(args)
    for rows in rows_of(args):
        for row in rows:
            done.add(row)
        done.write()
    print(done)
    return 1 if done.faults else 0


class Record:
    """What was found so far; a record that exists is added to, so that it holds runs of several seeds."""

    def __init__(self, args: argparse.Namespace):
        self.path, self.begin = args.record, time.perf_counter()
        kept = self.path is not None and self.path.exists()
        old = json.loads(self.path.read_text()) if kept else {}
        self.found = Counter[str](old.get("families", {}))
        self.faults: list[Any] = old.get("faults", [])
        self.seconds = old.get("seconds", 0.0)
        self.seeds: list[Any] = [*old.get("seeds", []), [args.seed, 0]]
        self.ways = {"hostile": args.hostile, "triton": args.triton, "gpu": args.gpu}
        self.indices = old.get("indices", 0)

    def add(self, row: dict[str, Any]) -> None:
        """One kernel more."""
        kind = "fault" if is_fault(row) else row["said"].split(":")[0]
        self.found[f"{row['family']} {kind}"] += 1
        self.seeds[-1][1] += 1
        self.indices += row.get("indices", 0)
        if is_fault(row):
            self.faults.append(row)
            print(f"seed {row['seed']}, {row['family']}: {row['said']}\n{row['test']}", flush=True)

    @property
    def totals(self) -> dict[str, int]:
        """How many kernels of each kind."""
        out = Counter[str]()
        for name, n in self.found.items():
            out[name.partition(" ")[2]] += n
        return dict(out)

    def write(self) -> None:
        """Put the record on disk."""
        if self.path is None:
            return
        text = {
            "count": sum(self.found.values()), "seeds": self.seeds, **self.ways, "indices": self.indices,
            "seconds": round(self.seconds + time.perf_counter() - self.begin, 1),
            "totals": self.totals, "families": dict(sorted(self.found.items())), "faults": self.faults,
        }  # fmt: skip
        self.path.write_text(json.dumps(text, indent=1) + "\n")

    def __str__(self) -> str:
        return f"{sum(self.found.values())} kernels: {self.totals}"


if __name__ == "__main__":
    sys.exit(main())
