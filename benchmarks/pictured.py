"""Measures the runs that the documentation shows as pictures: two streams, and a profile of a training step.

    python benchmarks/pictured.py --record benchmarks/records/pictured-x86-2.json

`tools/pictures_of_runs.py` draws the record, so that a picture shows one run that took place, with its times.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import tessera as ts
from tessera import op
from tessera.inspect.profile_tracks import tracks_of

N, BATCHES = 768, 4
R = np.random.default_rng(0)


@ts.jit
def encode(x: Any, w: Any) -> Any:
    """The first stage: products of a batch."""
    for _ in range(3):
        x = op.tanh(x @ w)
    return x


@ts.jit
def score(h: Any, w: Any) -> Any:
    """The second stage."""
    for _ in range(2):
        h = op.softmax(h @ w)
    return op.sum(h, axis=-1)


def load(w: Any) -> Any:
    """A batch, as the host makes one."""
    return ts.tensor(
        np.sort(R.standard_normal((N, N // 4), dtype=np.float32).repeat(4, axis=1) @ w)
    )


def streams() -> dict[str, Any]:
    """Batches through two streams: the second waits for an event of the first, the host prepares the next."""
    host = R.standard_normal((N, N), dtype=np.float32) / 30
    w = ts.tensor(host)
    a, b = ts.Stream(), ts.Stream()
    best: dict[str, Any] = {}
    for _ in range(6):
        loads = []
        with ts.profile() as p:
            zero = time.perf_counter_ns()
            out = []
            for _ in range(BATCHES):
                begin = time.perf_counter_ns() - zero
                x = load(host)
                loads.append([begin, time.perf_counter_ns() - zero])
                with a, ts.threads(1):
                    y = encode(x, w)
                b.wait(a.record())
                with b, ts.threads(1):
                    out.append(score(y, w))
            b.synchronize()
        tracks, _ = tracks_of(p.spans)
        if not best or p.wall < best["wall"]:
            best = {"wall": p.wall, "loads": loads, "tracks": tracks}
    return best


def layer(p: Any, x: Any) -> Any:
    """A block of the network whose training step is profiled."""
    h = op.gelu(op.layernorm(x) @ p["up"] + p["b"]) @ p["down"]
    return x + h


@ts.jit
def step(params: Any, x: Any, y: Any) -> Any:
    """A training step."""

    def loss(params: Any) -> Any:
        h = x
        for p in params:
            h = layer(p, h)
        return op.mse(op.softmax(h), y)

    value, grads = ts.value_and_grad(loss)(params)
    return value, ts.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def profile() -> dict[str, Any]:
    """Where the time of ten training steps goes."""
    n, m = 256, 1024
    params: Any = [
        {"up": _weights(n, m), "b": op.zeros((m,)), "down": _weights(m, n)} for _ in range(2)
    ]
    x, y = _weights(1024, n), op.softmax(_weights(1024, n))
    step(params, x, y)
    with ts.profile() as p:
        for _ in range(10):
            value, params = step(params, x, y)
            value.item()
    rows = [
        {"name": r.name, "what": r.what, "seconds": r.seconds, "fraction": r.fraction, "bound": r.bound}
        for r in sorted(p.kernels, key=lambda r: -r.seconds)
    ]  # fmt: skip
    return {"wall": p.wall, "totals": p.totals, "kernels": rows}


def _weights(*shape: int) -> Any:
    return ts.tensor(R.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="write the record here")
    given = parser.parse_args()
    cpu = next((x.partition(":")[2].strip() for x in Path("/proc/cpuinfo").read_text().splitlines()
        if x.startswith("model name")), "")  # fmt: skip
    found = {"cpu": cpu, "cores": os.cpu_count(), "numpy": np.__version__,
             "streams": streams(), "profile": profile()}  # fmt: skip
    text = json.dumps(found, indent=1) + "\n"
    if given.record:
        given.record.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
