"""One hash: train GPTs on a logical mesh of 8 shards, on several numbers of ranks and engines, and compare
SHA-256.

    python benchmarks/mesh_hash.py --steps 5 --ranks 1 2 4 --engines local mpi
    python benchmarks/mesh_hash.py --steps 100 --width 96 --ranks 1 2 4 8 --threads 1 2 --restart 4:2 2:8
    python benchmarks/mesh_hash.py --bubble

The record (benchmarks/records/mesh_hash.json) has the hash and the loss of each run of a configuration:
dp8, tp8, dp4xtp2, dp2xtp2xpp2, zero1, zero2, zero3 and ep4xdp2.  --restart 4:2 kills the last of 4 ranks in
the middle, with SIGKILL, and goes on from the last checkpoint on 2.  --bubble measures what part of a step
the stages of a pipeline wait, from the time of steps with few and with many microbatches of one size.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tessera as ts
from examples.distributed import gpt, gpt3d, mixture
from tessera import dist
from tessera.core.pipeline import Schedule

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "records" / "mesh_hash.json"
CONFIGS = ("dp8", "tp8", "dp4xtp2", "dp2xtp2xpp2", "zero1", "zero2", "zero3", "ep4xdp2")


class Training(NamedTuple):
    """What a configuration trains, and how it is laid out."""

    strategy: dist.strategy.Strategy
    loss: Callable[..., Any]
    params: Any
    batch: Callable[[int], tuple[Any, ...]]


def tokens_of(step: int) -> tuple[Any, ...]:
    """The tokens of a step."""
    rng = np.random.default_rng([1, step])
    return (rng.integers(0, gpt.VOCABULARY, (16, gpt.LENGTH + 1)),)


def labelled(step: int) -> tuple[Any, ...]:
    """Rows and classes of a step."""
    x = np.random.default_rng([1, step]).normal(size=(32, mixture.WIDTH)).astype(np.float32)
    return x, (x[:, 0] > 0) + 2 * (x[:, 1] > 0)


def training(config: str, width: int, layers: int) -> Training:
    """A configuration by name."""
    gpt.WIDTH, gpt.HEADS = width, 8
    of = dist.strategy
    if config == "ep4xdp2":
        mixture.WIDTH, mixture.HIDDEN = width // 2, width
        s = of.expert(mixture.MESH, "ep") + of.data(mixture.MESH, "dp")
        return Training(s, mixture.loss, mixture.init(), labelled)
    if config == "dp2xtp2xpp2":
        m = gpt3d.MESH
        s = of.zero1(m, "dp") + of.tensor(m, "tp", gpt3d.SPLIT) + of.pipeline(m, "pp")
        loss = dist.pipeline(
            gpt3d.first, gpt3d.block, gpt3d.last, m, "pp", microbatches=gpt3d.MICROBATCHES, schedule="1f1b"
        )  # fmt: skip
        return Training(s, loss, gpt3d.init(1), tokens_of)
    if config == "tp8":
        s = of.tensor(dist.Mesh(["tp"], shape=(8,)), "tp", gpt.SPLIT)
    elif config == "dp4xtp2":
        mesh = dist.Mesh(["dp", "tp"], shape=(4, 2))
        s = of.data(mesh, "dp") + of.tensor(mesh, "tp", gpt.SPLIT)
    else:
        mesh = dist.Mesh(["dp"], shape=(8,))
        s = {"dp8": of.data, "zero1": of.zero1, "zero2": of.zero2, "zero3": of.zero3}[config](
            mesh, "dp"
        )
    return Training(s, gpt.loss, gpt.init(layers=layers), tokens_of)


def train(
    config: str, steps: int, width: int, layers: int, folder: str = "", kill: int = 0
) -> tuple[float, str]:
    """The last loss, and the hash of parameters and state; the last rank is killed after `kill` steps of
    a first run.
    """
    s, loss, params, batch = training(config, width, layers)
    optimizer = ts.optim.chain(ts.optim.clip_norm(1.0), ts.optim.adam(1e-3))
    step = s.step(loss, optimizer)
    tree: Any = (s.params(params), s.state(optimizer.init(params)))
    saved = ts.train.Checkpoints(folder, every=2) if folder else None
    found = None if saved is None else saved.restore({"at": 0, "value": 0.0, "tree": tree})
    at, value, tree = (
        (0, 0.0, tree) if found is None else (found["at"], found["value"], found["tree"])
    )
    first = os.environ.get("TESSERA_RESTARTS", "0") == "0"
    while at < steps:
        value, *tree = step(*tree, *(s.batch(x) for x in batch(at)))
        tree, at, value = tuple(tree), at + 1, float(value)
        if first and at == kill and dist.rank() == dist.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if saved is not None and saved.is_due(at):
            saved.save(at, {"at": at, "value": value, "tree": tree})
    return value, gpt.digest(tree)


def child(args: argparse.Namespace) -> None:
    """Run one configuration, and print a line on the first rank."""
    begin = time.perf_counter()
    loss, digest = train(args.child, args.steps, args.width, args.layers, args.folder, args.kill)
    if dist.rank() == 0:
        row = {"loss": loss, "sha256": digest, "seconds": round(time.perf_counter() - begin, 2)}
        print(json.dumps(row))


def measured(
    config: str, ranks: int, engine: str, threads: int, then: int, args: argparse.Namespace
) -> Any:
    """The line of a run."""
    command = [sys.executable, "-m", "tessera.cli", "run", "-n", ranks, "--engine", engine]
    program = [
        __file__,
        "--child",
        config,
        "--steps",
        args.steps,
        "--width",
        args.width,
        "--layers",
        args.layers,
    ]
    env = {**os.environ, "TESSERA_TARGET": args.target, "TESSERA_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        if then:
            command += ["--restart", 1, "--restart-on", then]
            program += ["--folder", folder, "--kill", max(1, args.steps // 2)]
        done = subprocess.run(
            [str(c) for c in (*command, *program)], check=False, cwd=ROOT, env=env, capture_output=True,
            text=True
        )  # fmt: skip
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    if then and f"restarting on {then} ranks" not in done.stderr:
        return {"error": "no rank was killed"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(args: argparse.Namespace) -> int:
    """All runs, and whether each configuration has one hash."""
    rows, failed = [], 0
    about = {"steps": args.steps, "width": args.width, "layers": args.layers, "target": args.target}
    runs = [(n, e, t, 0) for e in args.engines for n in args.ranks for t in args.threads]
    runs += [(int(a), "local", 1, int(b)) for a, b in (r.split(":") for r in args.restart)]
    for config in args.configs:
        found = set()
        for n, engine, threads, then in runs:
            row = measured(config, n, engine, threads, then, args)
            ranks = f"{n}, killed, {then}" if then else str(n)
            rows.append(
                {"config": config, "ranks": ranks, "engine": engine, "threads": threads, **row}
            )
            found.add(row.get("sha256", row.get("error")))
            print(rows[-1], flush=True)
            if args.record:
                Path(args.record).write_text(json.dumps({**about, "runs": rows}, indent=1) + "\n")
        failed += len(found) != 1
        print(f"{config}: {'one hash' if len(found) == 1 else 'several hashes'}", flush=True)
    return failed


def bubble(schedule: str, chunks: int) -> dict[str, float]:
    """The part of a step that is not proportional to the number of microbatches, beside what the schedule
    says.
    """
    times = {}
    for count in (4, 12):
        mesh = dist.Mesh(["pp"], shape=(2,))
        loss = dist.pipeline(
            gpt3d.first, gpt3d.block, gpt3d.last, mesh, "pp", microbatches=count, schedule=schedule,
            chunks=chunks
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
    parser.add_argument(
        "--layers", type=int, default=gpt.LAYERS, help="of the GPT without a pipeline"
    )
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--engines", nargs="+", default=["local"])
    parser.add_argument("--configs", nargs="+", default=list(CONFIGS), choices=CONFIGS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--restart", nargs="*", default=[], help="ranks before and after, as in 4:2"
    )
    parser.add_argument("--record", default=str(RECORD), help="the file of the record; '' for none")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--child", default=None)
    parser.add_argument("--folder", default="")
    parser.add_argument("--kill", type=int, default=0)
    parser.add_argument("--bubble", action="store_true")
    args = parser.parse_args()
    if args.child:
        child(args)
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
