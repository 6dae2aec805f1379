"""How long the first call of a GPT takes to compile for the CPU, cold and from the disk cache.

    python benchmarks/compile.py [--rounds 5] [--record FILE]

The model of examples/gpt.py with 4 layers, width 256, on 8 sequences of 256: its forward pass, and a
training step with Adam.  Every sample is a process of its own: cold with an empty cache, warm with
the cache that the process before it left.  Compiling ends when the program could run; importing
Tessera is not part of it, importing what runs and what lowers is.  A row shows the median and the spread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).parent.parent / "examples"
VOCABULARY, LAYERS, WIDTH, HEADS, LENGTH, BATCH = 96, 4, 256, 4, 256, 8
WORKLOADS = ("forward", "train step")


def workload(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The jitted function and its arguments."""
    import tessera as ts
    from tessera import op

    sys.path.insert(0, str(EXAMPLES))
    gpt: Any = __import__("gpt")
    rng = np.random.default_rng(0)
    params = gpt.init(ts.key(0), VOCABULARY, LENGTH, WIDTH, LAYERS)
    tokens, targets = (ts.tensor(rng.integers(0, VOCABULARY, (BATCH, LENGTH))) for _ in range(2))
    if name == "forward":
        return ts.jit(lambda p, t: gpt.model(p, t, heads=HEADS), target="cpu"), (params, tokens)
    optimizer = ts.optim.adam(1e-3)

    def loss_of(p: Any, inputs: Any, wanted: Any) -> Any:
        return op.cross_entropy(gpt.model(p, inputs, heads=HEADS), wanted)

    def step(p: Any, state: Any, inputs: Any, wanted: Any) -> Any:
        loss, grads = ts.value_and_grad(loss_of)(p, inputs, wanted)
        return loss, *optimizer.update(grads, state, p)

    return ts.jit(step, target="cpu"), (params, optimizer.init(params), tokens, targets)


class Clock:
    """Seconds spent in functions of the compiler, by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, name: str, phase: str) -> None:
        """Add up the time of a function; what it calls of other phases is part of it."""
        f: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return f(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

        setattr(owner, name, timed)


def watch_lowering(clock: Clock, machine: Any) -> None:
    """Watch the passes below Graph IR, once they are loaded: a warm start does not load them."""
    load: Callable[[], Any] = machine._lowering
    seen: list[Any] = []

    def lowering() -> Any:
        build = load()
        if not seen:
            seen.append(build)
            clock.watch(build.to_schedule, "lower", "schedule")
            clock.watch(build, "form_of", "forms")
            clock.watch(build.to_tile, "lower", "tile")
            clock.watch(build, "program", "emit")
        return build

    machine._lowering = lowering


def work(name: str) -> None:
    """Compile one workload in this process and print its figures."""
    f, args = workload(name)
    clock = Clock()
    start = time.perf_counter()
    from tessera.compile.cpu import executable as machine
    from tessera.lang import jit
    from tessera.runtime import builder, code

    clock.seconds["import of what runs"] = time.perf_counter() - start
    clock.watch(jit, "trace", "trace")
    clock.watch(machine, "key_of", "text and key")
    clock.watch(machine, "load", "image from disk")
    clock.watch(machine, "loaded", "machine code into memory")
    clock.watch(code.Loading, "finish", "wait for LLVM, and load")
    clock.watch(machine, "save", "image to disk")
    clock.watch(machine, "_lowering", "import of what lowers")
    watch_lowering(clock, machine)
    low = f.lower(*args)
    total = time.perf_counter() - start
    for step in low.record[1:]:
        clock.seconds[step.name] = step.seconds
    begin = time.perf_counter()
    f(*args)
    builder._close()  # so that the children's time is counted
    figures = {
        "compiled after": total,
        "first run": time.perf_counter() - begin,
        **clock.seconds,
        "LLVM in children (CPU)": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
    }
    image = low._executable.image
    counts = {"nodes": len(low.graph.nodes), "calls": len(image.steps)}
    print(json.dumps({"seconds": figures, "counts": counts | {"kernels": len(image.kernels)}}))


def sample(name: str, cache: str) -> dict[str, Any]:
    """The figures of a new process."""
    command = [sys.executable, __file__, "--worker", name]
    # Bytecode is kept, as it is where Tessera is installed.
    env = {**os.environ, "TESSERA_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": ""}
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return found


def measure(rounds: int) -> dict[str, dict[str, Any]]:
    """For each workload, cold and warm: medians and spreads of every phase."""
    samples: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for name in WORKLOADS:
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm"):
                    samples.setdefault(f"{name}, {state}", []).append(sample(name, cache))
    rows = {}
    for row, found in samples.items():
        phases = {p: [s["seconds"].get(p, 0.0) for s in found] for p in found[0]["seconds"]}
        rows[row] = {
            "counts": found[0]["counts"],
            "seconds: median, spread": {
                p: [round(statistics.median(t), 4), round(max(t) - min(t), 4)]
                for p, t in phases.items()
            },
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker)
        return
    rows = measure(given.rounds)
    for name, row in rows.items():
        counts = ", ".join(f"{n} {what}" for what, n in row["counts"].items())
        print(f"{name} ({counts})")
        for phase, (middle, spread) in row["seconds: median, spread"].items():
            print(f"  {phase:28} {middle * 1e3:9.1f} ms  +- {spread * 1e3:.1f}")
    if given.record:
        from tessera.ir.target.cpu.machine import architecture
        from tessera.runtime.threads import cores

        about = {
            "machine": architecture().split()[1], "cores": cores(), "system": platform.platform(),
            "python": platform.python_version(), "numpy": np.__version__, "rounds": given.rounds,
            "rows": rows,
        }  # fmt: skip
        given.record.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
