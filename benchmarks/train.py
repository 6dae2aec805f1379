"""Steps of training on two threads: Tessera's CPU target beside PyTorch (eager, compiled) and JAX.

    python benchmarks/train.py [--peers tessera,torch,jax] [--only gpt,mlp] [--record FILE] [--dtype f32]

Every (workload, peer) runs in a process of its own, peers in turn, and the whole round is repeated; a
row shows the median of the rounds' medians, the spread, and the ratio of the best peer to Tessera.
All start from the same numbers.  In the first round the losses of twenty steps and what they did to the
parameters are compared, those of every two libraries and, in f32, of each with PyTorch in f64 ("exact");
Tessera begins with an empty cache there: `first` is the time of its first call.
Run it with an interpreter that has the peers installed (make test-oracles sets one up); the peer
`compile`, which takes minutes to compile, runs only when it is named.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from training.start import WORKLOADS

PEERS = ("tessera", "torch", "jax")
STEPS = 20
SECONDS, LEAST = 2.0, 5  # of samples in a later round
PATIENCE = 300  # seconds after which a process is given up
DTYPES = {"f32": "float32", "f64": "float64", "exact": "float64"}  # exact: from the numbers of f32


# In the process of one peer ----------------------------------------------------------------------


def training_of(peer: str, name: str, dtype: str, threads: int) -> Any:
    """What takes a step, and what gives the parameters."""
    w = WORKLOADS[name]
    library = "torch" if peer == "compile" else peer
    if library == "torch":
        importlib.import_module("torch").set_num_threads(threads)
    if library == "jax" and dtype == "f64":
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    more = {"compiled": True} if peer == "compile" else {}
    make = importlib.import_module(f"training.with_{library}").training
    drawn = "float32" if dtype == "exact" else DTYPES[dtype]
    start = [
        {k: x.astype(DTYPES[dtype]) if x.dtype.kind == "f" else x for k, x in arrays.items()}
        for arrays in w.start(drawn)
    ]
    return make(name, w.adam, w.rate, *start, **more)


def work(peer: str, name: str, dtype: str, threads: int, keep: str) -> None:
    """Time one workload in this process; keep the losses and the parameters after so many steps."""
    if hasattr(os, "sched_setaffinity"):  # JAX has no setting for the number of its threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    take, params = training_of(peer, name, dtype, threads)
    losses, samples = [], []
    stop, least = float("inf"), STEPS if keep else LEAST
    while len(samples) < least or time.perf_counter() < stop:
        start = time.perf_counter()
        losses.append(float(take()))
        samples.append(time.perf_counter() - start)
        if len(samples) == 1:
            stop = time.perf_counter() + SECONDS
        if keep and len(samples) == STEPS:
            np.savez(keep, losses=np.array(losses), **params())
    print(json.dumps({"median": statistics.median(samples[1:]), "first": samples[0]}))


# The rounds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """What all processes of a run have in common."""

    dtype: str
    threads: int
    folder: Path

    def environment(self, name: str) -> dict[str, str]:
        """Threads, and caches that are empty when the run begins."""
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TESSERA_THREADS")
        caches = ("TESSERA_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
        return {
            **os.environ,
            **dict.fromkeys(names, str(self.threads)),
            **{c: str(self.folder / f"{c}-{name}") for c in caches},
        }

    def kept(self, name: str, peer: str) -> Path:
        """Where a training leaves what it reached."""
        return self.folder / f"{name}-{'exact' if self.dtype == 'exact' else peer}.npz"


def measure(peer: str, name: str, given: Settings, keep: bool) -> dict[str, float] | None:
    command = [sys.executable, __file__, "--worker", peer, "--only", name, "--dtype", given.dtype]
    command += ["--threads", str(given.threads)]
    command += ["--keep", str(given.kept(name, peer))] if keep else []
    print(f"{name} {peer} ...", file=sys.stderr, flush=True)
    try:
        out = subprocess.run(
            command, env=given.environment(name), capture_output=True, text=True, check=False,
            timeout=PATIENCE,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"{peer} on {name}: gave up after {PATIENCE} s", file=sys.stderr)
        return None
    if out.returncode:
        print(f"{peer} on {name}: {out.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(out.stdout.splitlines()[-1])
    return found


def rounds(names: list[str], peers: list[str], count: int, given: Settings) -> Any:
    """The numbers of every process: times[name][peer] is a list of them."""
    times: dict[str, dict[str, list[Any]]] = {n: {p: [] for p in peers} for n in names}
    for i in range(count):
        for n in names:
            for p in peers:
                found = measure(p, n, given, keep=i == 0)
                if found is not None:
                    times[n][p].append(found)
            if i == 0 and given.dtype == "f32" and "torch" in peers:
                measure("torch", n, replace(given, dtype="exact"), keep=True)
    return times


def apart(name: str, one: str, other: str, given: Settings) -> dict[str, float] | None:
    """How far two trainings are from each other: their losses, and their ways relative to one's length."""
    files = [given.kept(name, p) for p in (one, other)]
    if not all(f.exists() for f in files):
        return None
    ours, theirs = (dict(np.load(f)) for f in files)
    begin = WORKLOADS[name].start("float64" if given.dtype == "f64" else "float32")[0]
    loss = np.max(np.abs(ours["losses"] - theirs["losses"]) / np.abs(theirs["losses"]))
    gap = sum(np.sum((ours[k].astype(float) - theirs[k]) ** 2) for k in begin)
    way = sum(np.sum((theirs[k].astype(float) - begin[k]) ** 2) for k in begin)
    size = sum(np.sum(begin[k].astype(float) ** 2) for k in begin)
    found = {"losses": loss, "update": (gap / way) ** 0.5, "params": (gap / size) ** 0.5}
    return {k: float(f"{x:.2g}") for k, x in found.items()}


def row(times: dict[str, list[Any]]) -> dict[str, Any]:
    """Medians, spreads and the ratio of one workload."""
    medians = {p: [t["median"] for t in found] for p, found in times.items() if found}
    middle = {p: statistics.median(t) for p, t in medians.items()}
    rest = [t for p, t in middle.items() if p != "tessera"]
    ratio = min(rest) / middle["tessera"] if rest and "tessera" in middle else float("nan")
    return {
        "ms": {p: round(t * 1e3, 3) for p, t in middle.items()},
        "spread_ms": {p: round((max(t) - min(t)) * 1e3, 3) for p, t in medians.items()},
        "first_s": {p: round(found[0]["first"], 3) for p, found in times.items() if found},
        "ratio": round(ratio, 3),
    }


def versions(peers: list[str]) -> dict[str, str]:
    """What was measured where."""
    found = {"python": platform.python_version(), "numpy": np.__version__}
    for module in ("torch", "jax"):
        if module in peers:
            found[module] = importlib.import_module(module).__version__
    info = Path("/proc/cpuinfo")
    models = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in models if line.startswith("model name")]
    return found | {"cpu": (named or [platform.machine()])[0], "cores": str(os.cpu_count())}


def report(names: list[str], peers: list[str], times: Any, given: Settings) -> Any:
    """Print the table and what is apart; the rows of the record."""
    heads = "".join(f"{p:>12}" for p in peers)
    print(f"{'workload, ms a step':38}{heads}   best peer / tessera (goal)   first call, s")
    rows: dict[str, Any] = {}
    for n in names:
        w, found = WORKLOADS[n], row(times[n])
        cells = "".join(f"{found['ms'].get(p, float('nan')):12.2f}" for p in peers)
        first = "  ".join(f"{p} {t:.2f}" for p, t in found["first_s"].items())
        print(f"{w.title:38}{cells}   {found['ratio']:.2f} ({w.goal})   {first}", flush=True)
        pairs = combinations((*peers, "exact"), 2)
        found["apart"] = {f"{p}, {q}": a for p, q in pairs if (a := apart(n, p, q, given))}
        rows[w.title] = found | {"goal": w.goal}
    print(f"\nafter {STEPS} steps, relative distance of two: losses, update, parameters")
    for title, found in rows.items():
        for pair, a in found["apart"].items():
            print(f"{title:38}{pair:>16}  " + "".join(f"{x:12.1e}" for x in a.values()))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--keep", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.only, given.dtype, given.threads, given.keep)
        return
    peers, wanted = given.peers.split(","), given.only.split(",")
    names = [n for n in WORKLOADS if any(w in n for w in wanted)]
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(given.dtype, given.threads, Path(folder))
        times = rounds(names, peers, given.rounds, settings)
        rows = report(names, peers, times, settings)
    if given.record:
        about = {"versions": versions(peers), "dtype": given.dtype, "threads": given.threads}
        given.record.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
