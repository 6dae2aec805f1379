"""What ranks cost and gain: steps of a GPT on two ranks, one rank and no mesh, and all-reduces by MPI.

    python benchmarks/mesh_scaling.py --record benchmarks/records/mesh-scaling-x86-2.json
    python benchmarks/mesh_scaling.py --only steps --engines local --width 256

The two ranks of a run take turns with the first of them alone: for one round of steps the first rank runs the
same program as the only rank, with all logical shards, and a program without a mesh, while the second one
turns in a loop that touches no memory.  So all kinds of a row run in one process, within seconds of each
other, and each has both cores to itself where the system allows the real-time class (--shared leaves it out).
A row has the best and the median time of each kind, and the least processor time of the first rank; a ratio
is that of the best, and the quartiles are those of the ratios of rounds.

`all_reduce` compares what a compiled program calls for a sum over two ranks of MPI with mpi4py's own
Allreduce into memory that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from examples.distributed import gpt
from tessera import dist, op
from tessera.core.flags import override
from tessera.core.ranks import RankEngine, engine, start_on
from tessera.ir.target.cpu.machine import architecture
from tessera.ops import ranks

ROOT = Path(__file__).parent.parent
SIZES = [1 << k for k in range(10, 27, 2)]  # 1 KB to 64 MB
_LEAST = 0.05  # seconds of a sample
_PAUSE = 0.1  # seconds before a sample: Linux stops the real-time class for 50 ms of a second that it fills
_SHARED = "MESH_SCALING_SHARED"
STRATEGIES = ("data", "zero2", "zero3", "tensor")


class Step:
    """A step of training that goes on from its own results."""

    def __init__(
        self, strategy: dist.strategy.Strategy | None, params: Any, tokens: Any, numerics: str
    ):
        optimizer = ts.optim.adam(1e-3)
        if strategy is None:
            self._f = ts.jit(_whole(optimizer), numerics=numerics)
            self._tree = params, optimizer.init(params)
            self._tokens = ts.tensor(tokens)
        else:
            with override(numerics=numerics):
                self._f = strategy.step(gpt.loss, optimizer)
            self._tree = strategy.params(params), strategy.state(optimizer.init(params))
            self._tokens = strategy.batch(tokens)
        self._numerics = numerics
        self._steps(2)

    def run(self, often: int) -> tuple[float, float]:
        """Seconds of a step, on average, and seconds of processor time of this rank."""
        time.sleep(_PAUSE)
        with on_cores():
            begin, used = time.perf_counter(), time.process_time()
            self._steps(often)
            return (time.perf_counter() - begin) / often, (time.process_time() - used) / often

    def _steps(self, often: int) -> None:
        with override(numerics=self._numerics):
            for _ in range(often):
                value, *tree = self._f(*self._tree, self._tokens)
                self._tree = tuple(tree)
            float(value)


def _whole(optimizer: Any) -> Callable[..., Any]:
    def step(params: Any, state: Any, tokens: Any) -> Any:
        value, grads = ts.value_and_grad(gpt.loss)(params, tokens)
        return value, *optimizer.update(grads, state, params)

    return step


def strategy_of(name: str, shards: int, axis: str = "x") -> dist.strategy.Strategy:
    """A strategy on a mesh of so many shards."""
    mesh = dist.Mesh([axis], shape=(shards,))
    if name == "tensor":
        return dist.strategy.tensor(mesh, axis, gpt.SPLIT)
    made: dist.strategy.Strategy = getattr(dist.strategy, name)(mesh, axis)
    return made


class Turns:
    """Who runs: all ranks, or the first while the others turn on their cores."""

    def __init__(self, path: str):
        self._file = open(path, "r+b")  # noqa: SIM115
        self._flag = np.frombuffer(mmap.mmap(self._file.fileno(), 8), np.int64)
        self._rounds = 0

    def alone(self, f: Callable[[], Any], timed: bool = True) -> None:
        """f() on the first rank as if it were the only one."""
        many = engine()
        self._rounds += 1
        dist.barrier()
        if many.rank:
            with on_cores() if timed else contextlib.nullcontext():
                while self._flag[0] < self._rounds:
                    time.sleep(0 if timed else 0.05)
        else:
            start_on(RankEngine())
            f()
            start_on(many)
            self._flag[0] = self._rounds
        dist.barrier()


@contextlib.contextmanager
def on_cores() -> Iterator[None]:
    """While the block runs, nothing else of an ordinary class runs on this core."""
    if os.environ.get(_SHARED):
        yield
        return
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def steps(args: argparse.Namespace) -> dict[str, Any]:
    """The times of a step, in rounds."""
    gpt.WIDTH, gpt.HEADS, gpt.LENGTH, gpt.LAYERS = args.width, 8, args.length, args.layers
    params = gpt.init(layers=args.layers)
    tokens = np.random.default_rng(1).integers(0, gpt.VOCABULARY, (args.rows, args.length + 1))
    s = strategy_of(args.strategy, args.shards)
    both = {
        "ranks": Step(s, params, tokens, "deterministic"), "ranks_fast": Step(s, params, tokens, "fast"),
    }  # fmt: skip
    one: dict[str, Step] = {}

    def make() -> None:
        one["one_rank"] = Step(
            strategy_of(args.strategy, args.shards, "y"), params, tokens, "deterministic"
        )
        one["one_shard"] = Step(strategy_of(args.strategy, 1, "y"), params, tokens, "deterministic")
        one["no_mesh"] = Step(None, params, tokens, "deterministic")

    turns = Turns(args.turns)
    turns.alone(make, timed=False)
    often = int(dist.broadcast(np.array(max(1, int(_LEAST / both["ranks"].run(2)[0])))))
    kinds = ("ranks", "ranks_fast", "one_rank", "one_shard", "no_mesh")
    times: dict[str, list[tuple[float, float]]] = {k: [] for k in kinds}

    def round_alone() -> None:
        for kind, step in one.items():
            times[kind].append(step.run(often))

    for i in range(args.rounds):
        for kind in list(both) if i % 2 else list(both)[::-1]:
            dist.barrier()
            times[kind].append(both[kind].run(often))
        turns.alone(round_alone)
    return times


def row(found: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Best, median and ratios of the kinds of a row."""
    times, used = ({k: [x[i] for x in v] for k, v in found.items()} for i in (0, 1))

    def ratio(a: str, b: str) -> dict[str, Any]:
        pairs = statistics.quantiles([x / y for x, y in zip(times[a], times[b], strict=True)], n=4)
        best = min(times[a]) / min(times[b])
        return {"best": round(best, 4), "quartiles": [round(p, 4) for p in pairs]}

    ms = {
        k: {
            "best": 1e3 * min(v),
            "median": 1e3 * statistics.median(v),
            "processor": 1e3 * min(used[k]),
        }
        for k, v in times.items()
    }
    return {
        "ms": {k: {n: round(x, 3) for n, x in v.items()} for k, v in ms.items()},
        "speedup": ratio("one_rank", "ranks"), "speedup_over_no_mesh": ratio("no_mesh", "ranks"),
        "mesh_over_none": ratio("one_shard", "no_mesh"), "shards_over_none": ratio("one_rank", "no_mesh"),
        "deterministic_over_fast": ratio("ranks", "ranks_fast"),
    }  # fmt: skip


def all_reduces(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Sums over two ranks by the op of compiled programs and by mpi4py."""
    from mpi4py import MPI

    me, group, ranges = dist.rank(), (0, 1), ((0, 1), (1, 2))
    run = ranks.SUM.numpy
    assert run is not None
    ts.jit(op.exp)(np.zeros(3, np.float32))  # memory is used again from when there is machine code
    rows = []
    for nbytes in SIZES:
        x = np.random.default_rng(me).normal(size=nbytes // 4).astype(np.float32)
        out, mine = np.empty_like(x), x[None]

        def ours(x: Any = mine) -> Any:
            return run(x, group=group, ranges=ranges, mine=me)

        def theirs(x: Any = x, out: Any = out) -> Any:
            MPI.COMM_WORLD.Allreduce(x, out)
            return out

        assert np.array_equal(ours(), theirs())
        often = int(max(3, min(2000, 2e9 / nbytes / 10)))
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for i in range(args.rounds):
            for f in (ours, theirs) if i % 2 else (theirs, ours):
                time.sleep(_PAUSE)
                MPI.COMM_WORLD.Barrier()
                with on_cores():
                    begin = time.perf_counter()
                    for _ in range(often):
                        f()
                    times[f.__name__].append((time.perf_counter() - begin) / often)
        best = {k: min(v) for k, v in times.items()}
        pairs = [a / b for a, b in zip(times["ours"], times["theirs"], strict=True)]
        rows.append({
            "bytes": nbytes, "us": {k: round(1e6 * v, 2) for k, v in best.items()},
            "ratio": round(best["ours"] / best["theirs"], 3), "median": round(statistics.median(pairs), 3),
        })  # fmt: skip
    return rows


def child(args: argparse.Namespace) -> None:
    """Measure on the ranks of this run; the first prints what was found."""
    found = steps(args) if args.child == "steps" else all_reduces(args)
    if dist.rank() == 0:
        print(json.dumps(found))


def measured(kind: str, name: str, args: argparse.Namespace) -> Any:
    """What two ranks measure."""
    given = {"strategy": name, "width": args.width, "length": args.length, "layers": args.layers,
             "rows": args.rows, "shards": args.shards, "rounds": args.rounds}  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "tessera.cli",
        "run",
        "-n",
        "2",
        "--engine",
        args.engine,
        __file__,
    ]
    command += ["--child", kind, *(str(x) for k, v in given.items() for x in (f"--{k}", v))]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TESSERA_THREADS": "1"}
    env[_SHARED] = "1" if args.shared else ""
    with tempfile.NamedTemporaryFile() as turns:
        turns.write(bytes(8))
        turns.flush()
        command += ["--turns", turns.name]
        done = subprocess.run(
            command, check=True, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["steps", "all_reduce"])
    parser.add_argument("--engine", default="local", choices=["local", "mpi"], help="of the steps")
    parser.add_argument("--strategy", default="data", choices=STRATEGIES)
    parser.add_argument("--strategies", nargs="+", default=["data"], choices=STRATEGIES)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--shared", action="store_true", help="share the cores with other programs")
    parser.add_argument("--child", default=None)
    parser.add_argument("--turns", default="")
    args = parser.parse_args()
    if args.child:
        child(args)
        return
    whole: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": architecture().split(" +")[0], "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()], "rounds": args.rounds,
    }  # fmt: skip
    if args.only != "all_reduce":
        size = {
            k: getattr(args, k) for k in ("engine", "width", "length", "layers", "rows", "shards")
        }
        whole["steps"] = {**size, "results": {}}
        for name in args.strategies:
            whole["steps"]["results"][name] = r = row(measured("steps", name, args))
            print(name, json.dumps(r), flush=True)
    if args.only != "steps":
        args.engine = "mpi"
        whole["all_reduce"] = measured("all_reduce", "data", args)
        for r in whole["all_reduce"]:
            print(r, flush=True)
    if args.record:
        args.record.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
