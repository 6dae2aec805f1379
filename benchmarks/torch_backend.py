"""torch.compile by Tessera beside inductor and eager PyTorch: values and gradients, time of a call and of a
training step, and what the first one costs.

    python benchmarks/torch_backend.py [NAME ...] [--seconds 3] [--threads 2] [--cpu] [--only-ours]
        [--caches FOLDER] [--json PATH]

Every model runs in a process of its own, with empty caches or those in FOLDER; calls are in turn, and a ratio
is the median time of the other over ours.  --cpu counts processor time, which other work on the machine
hardly moves, and wants one thread.  The cost of the first call is processor time too, of all processes that
took part, without the time of a later call.  Needs torch and, for inductor, a C++ compiler; models of
torchvision and transformers need those packages.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

CALL_WAYS = ("eager", "inductor", "tessera")


def _settle(model: Any) -> None:
    """A model without dropout, none of whose weights start at zero: those hide all that lies before them."""
    import torch

    rates = ("dropout", "attention_dropout", "activation_dropout", "p")
    for m in [model, *model.modules()]:
        drops = type(m).__name__ in ("Dropout", "StochasticDepth")
        for rate in rates if drops else rates[:-1]:
            if isinstance(getattr(m, rate, None), float):
                setattr(m, rate, 0.0)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1 and not p.any():
                p.normal_(std=0.02)


def runs(way: str, name: str, train: bool) -> Callable[[], Any]:
    """A call, or a step of training, of a model compiled in one way."""
    import torch

    from benchmarks import torch_zoo
    from tests.support.cases import torch_models

    torch.manual_seed(0)
    model, inputs = (torch_zoo.SMALL | torch_zoo.ZOO | torch_zoo.SHORT)[name]()
    model = copy.deepcopy(model).train(train)
    _settle(model)
    run = model if way == "eager" else torch.compile(model, backend=way)

    def call() -> Any:
        if not train:
            with torch.no_grad():
                return run(**inputs)
        for p in model.parameters():
            p.grad = None
        loss = torch_models.loss_of(run(**inputs))
        loss.backward()
        return loss

    call.model = model  # type: ignore[attr-defined]
    return call


def found(call: Any, train: bool) -> list[Any]:
    """What a call computes: outputs, or the loss and every gradient."""
    from tests.support.cases import torch_models

    outputs = [x.detach().clone() for x in torch_models.tensors_of(call())]
    if train:
        outputs += [p.grad.clone() for p in call.model.parameters() if p.grad is not None]
    return outputs


def furthest(got: list[Any], want: list[Any]) -> float:
    """The largest difference, relative to the largest element of its tensor or, for gradients that all but
    vanish, to a hundredth of the largest of all.
    """
    assert [x.shape for x in got] == [x.shape for x in want]
    wide = [x for x in want if x.is_floating_point() and x.numel()]
    floor = 1e-2 * max(float(x.abs().max()) for x in wide)
    far = 0.0
    for g, w in zip(got, want, strict=True):
        if w.is_floating_point() and w.numel():
            scale = max(float(w.abs().max()), floor, 1e-6)
            far = max(far, float((g - w).abs().max()) / scale)
    return far


def spent() -> float:
    """Processor seconds of this process and all that it started."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # ended meanwhile
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[p] for p in ours) / os.sysconf("SC_CLK_TCK")


def measured(name: str, train: bool, options: argparse.Namespace) -> dict[str, Any]:
    """The times of a model in every way, taken in turn, and how long each took to its first result."""
    import tessera as ts

    ways = ("eager", "tessera") if options.only_ours else CALL_WAYS
    clock = time.process_time if options.cpu else time.perf_counter
    calls, first, cost, values = {}, {}, {}, {}
    for way in ways:
        call = runs(way, name, train)
        start, before = time.perf_counter(), spent()
        call()
        first[way], cost[way] = time.perf_counter() - start, spent() - before
        values[way] = found(call, train)
        calls[way] = call
    far = {way: furthest(values[way], values["eager"]) for way in ways if way != "eager"}
    del values
    times: dict[str, list[float]] = {way: [] for way in ways}
    stop = time.perf_counter() + options.seconds * len(ways)
    while time.perf_counter() < stop or len(times["tessera"]) < 5:
        for way, call in calls.items():
            start = clock()
            call()
            times[way].append(clock() - start)
    ms = {way: 1e3 * statistics.median(t) for way, t in times.items()}
    told = ts.torch.report(reset=True)
    row = {
        "model": name, "train": train, "ms": ms, "best_ms": {w: 1e3 * min(t) for w, t in times.items()},
        "first_s": first, "first_cpu_s": cost, "furthest": far,
        "rounds": len(times["tessera"]), "fallbacks": dict(told.fallbacks), "breaks": len(told.breaks),
    }  # fmt: skip
    return row | {f"{w}_over_ours": ms[w] / ms["tessera"] for w in ways if w != "tessera"}


def alone(options: argparse.Namespace) -> None:
    """Measure one model in this process and print its row."""
    import torch

    import tessera as ts

    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    (name,) = options.names
    ts.torch.report(reset=True)
    with ts.threads(options.threads):
        print(json.dumps(measured(name, options.train, options)))


def child(name: str, train: bool, options: argparse.Namespace) -> dict[str, Any] | None:
    """The row of one model, measured in a process with caches of its own."""
    words = [sys.executable, __file__, name, "--alone", "--seconds", str(options.seconds)]
    words += ["--threads", str(options.threads)]
    flags = {"--cpu": options.cpu, "--only-ours": options.only_ours, "--train": train}
    words += [flag for flag, on in flags.items() if on]
    with tempfile.TemporaryDirectory() as empty:
        place = options.caches or Path(empty)
        told = os.environ | {
            "OMP_NUM_THREADS": str(options.threads), "TORCHINDUCTOR_COMPILE_THREADS": str(options.threads),
            "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"), "TESSERA_CACHE_DIR": str(place / "tessera"),
        }  # fmt: skip
        done = subprocess.run(words, env=told, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{name} failed:\n{done.stderr[-2000:]}", flush=True)
        return None
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def mean(rows: list[dict[str, Any]], ratio: Callable[[dict[str, Any]], float]) -> float:
    """The geometric mean of a ratio."""
    return math.exp(statistics.fmean(math.log(ratio(r)) for r in rows))


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The ratios over all rows, of calls and of first calls."""
    made = {"eager_over_ours": mean(rows, lambda r: r["eager_over_ours"])}
    if all("inductor_over_ours" in r for r in rows):
        made["inductor_over_ours"] = mean(rows, lambda r: r["inductor_over_ours"])
        for key in ("first_s", "first_cpu_s"):
            made[f"{key}_over_inductor"] = mean(
                rows, lambda r, k=key: r[k]["tessera"] / r[k]["inductor"]
            )
    return {k: round(v, 3) for k, v in made.items()}


def shown(r: dict[str, Any]) -> str:
    """A row as a line."""
    times = "  ".join(
        f"{w} {t:8.2f} ms (first {r['first_cpu_s'][w]:5.1f} s)" for w, t in r["ms"].items()
    )
    far = r["furthest"]["tessera"]
    kept = f"  PyTorch ran {r['fallbacks']}" if r["fallbacks"] else ""
    ratio = f"  {r['inductor_over_ours']:.2f}" if "inductor_over_ours" in r else ""
    return f"{r['model']:15s} {'train' if r['train'] else 'eval ':5s} {times}{ratio}  off {far:.1e}{kept}"


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models; 'small', 'short', 'zoo' for all of these")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--mode", choices=("eval", "train", "both"), default="both")
    parser.add_argument("--caches", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        alone(options)
        return
    import torch

    from benchmarks import torch_zoo

    groups = {"small": torch_zoo.SMALL, "zoo": torch_zoo.ZOO, "short": torch_zoo.SHORT}
    names = [n for given in options.names or ["zoo"] for n in groups.get(given, [given])]
    rows = []
    for name in names:
        for train in (False, True):
            if options.mode in ("both", "train" if train else "eval"):
                row = child(name, train, options)
                if row is not None:
                    rows.append(row)
                    print(shown(row), flush=True)
    if rows:
        print("  ".join(f"{k} {v:.2f}" for k, v in summary(rows).items()))
    if options.json:
        about = {
            "machine": platform.machine(), "cores": os.cpu_count(), "threads": options.threads,
            "clock": "processor" if options.cpu else "wall", "torch": torch.__version__,
            "load_average": round(os.getloadavg()[0], 1),
        }  # fmt: skip
        record = {"about": about, "summary": summary(rows), "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
