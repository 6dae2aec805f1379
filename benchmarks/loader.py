"""Whether the loader feeds the CNN of examples/nn without a gap: time that steps wait for batches, from a
profile.

    python benchmarks/loader.py [--device cuda] [--steps 200] [--workers 1] [--record FILE]

The batches are shuffled and augmented (a shift and noise for each sample, by its own key) by one thread or
as many as it says, two batches ahead, and moved to the device there.  What counts: the share of the time
that steps wait for a batch (below 0.01), the longest wait beside a step, and the time of a step beside one
whose batches lie ready (at most 1.05).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import tessera as ts
from examples.nn import cnn, digits
from tessera import op

BATCH, SAMPLES = 64, 4096


@ts.jit
def augmented(x: Any, keys: Any) -> Any:
    """Every picture with noise of its own and a shift by one pixel or none."""

    def one(x: Any, key: Any) -> Any:
        a, b = ts.split(key)
        x = x + 0.05 * op.random.normal(a, x.shape)
        return op.where(op.random.bernoulli(b, 0.5, ()), op.roll(x, 1, axis=-1), x)

    return ts.vmap(one)(x, keys)


def measure(device: str | None, steps: int, workers: int) -> dict[str, Any]:
    pictures = digits.digits(np.random.default_rng(0), SAMPLES)
    loader = ts.data.Loader(
        pictures, BATCH, key=ts.key(0), workers=workers, prefetch=2, device=device,
        transform=lambda batch, keys: (augmented(batch[0], keys), batch[1]),
    )  # fmt: skip
    model, stats = cnn.build(ts.key(1))
    state = cnn.optimizer.init(model)
    if device is not None:
        model, stats, state = ts.tree.map(lambda x: x.to(device), (model, stats, state))

    def run(batches: Any, n: int) -> float:
        nonlocal model, stats, state
        begin, value = time.perf_counter(), None
        for _ in range(n):
            value, model, stats, state = cnn.step(model, stats, state, *next(batches))
        assert value is not None
        value.item()  # the device is done
        return (time.perf_counter() - begin) / n

    batches = loader.steps()
    run(batches, 10)
    ready = [loader.batch(s) for s in range(steps)]
    alone = [run(iter(ready), steps) for _ in range(3)]
    fed = [run(batches, steps) for _ in range(3)]
    with ts.profile() as p:
        run(batches, steps)
    batches.close()
    waits = [(s.end - s.begin) / 1e9 for s in p.spans if s.kind == "data"]
    return {
        "device": device or "cpu", "steps": steps, "batch": BATCH, "workers": workers,
        "step_ms_ready": 1e3 * sorted(alone)[1], "step_ms_fed": 1e3 * sorted(fed)[1],
        "fed_over_ready": sorted(fed)[1] / sorted(alone)[1],
        "waiting_share": p.totals["waiting for data"] / p.wall, "waits": len(waits),
        "longest_wait_ms": 1e3 * max(waits, default=0.0),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    made = measure(args.device, args.steps, args.workers)
    print(json.dumps(made, indent=1))
    if args.record:
        args.record.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
