"""What a profile costs, and how much of the wall time it accounts for, on the training step of the demo.

    python benchmarks/profiling.py [--threads 1] [--rounds 12] [--out record.json]

Steps with and without a profile run in turn, a few at a time; the least of each counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import tessera as ts
from tessera import op

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import gpt

STEPS = 4  # in a sample


def demo() -> Any:
    """A function that trains so many steps of the demo's model at its default sizes."""
    text, characters = gpt.read_stories()
    params = gpt.init(ts.key(0), len(characters), 64, 64, 2)
    optimizer = ts.optim.adam(1e-3)
    batch = next(gpt.batches(np.random.default_rng(0), text, 16, 64))
    held = SimpleNamespace(params=params, state=optimizer.init(params))
    inputs, targets = map(ts.tensor, batch)

    def loss_of(params, inputs, targets):
        return op.cross_entropy(gpt.model(params, inputs, heads=4), targets)

    @ts.jit(target="cpu")
    def step(params, state, inputs, targets):
        loss, grads = ts.value_and_grad(loss_of)(params, inputs, targets)
        return loss, *optimizer.update(grads, state, params)

    def train(steps: int) -> None:
        for _ in range(steps):
            _, held.params, held.state = step(held.params, held.state, inputs, targets)

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with ts.threads(given.threads):
        # On one thread the clock is that of the thread, so that a busy machine disturbs little.
        clock = time.thread_time if given.threads == 1 else time.perf_counter
        found = {
            "threads": given.threads,
            "rounds": given.rounds,
            **show(demo(), given.rounds, clock),
        }
    if given.out:
        known = json.loads(given.out.read_text()) if given.out.exists() else []
        kept = [x for x in known if x["threads"] != given.threads]
        given.out.write_text(json.dumps([*kept, found], indent=1) + "\n")


def show(train: Any, rounds: int, clock: Any) -> dict[str, float]:
    """Measure, print, and tell."""
    train(2)
    off, on, accounted = [], [], []
    for _ in range(rounds):
        train(1)
        off.append(timed(train, clock))
        with ts.profile() as p:
            train(1)  # the first step of a profile makes programs ready for it
            on.append(timed(train, clock))
        accounted.append(p.total / p.wall)
    per = 1e3 / STEPS
    print(f"a step takes {min(off) * per:.3f} ms, under a profile {min(on) * per:.3f} ms: "
          f"{min(on) / min(off) - 1:+.1%}")  # fmt: skip
    print(f"of the wall time {min(accounted):.1%} to {max(accounted):.1%} is accounted for")
    return {
        "ms a step": min(off) * per, "ms a step under a profile": min(on) * per,
        "overhead of the best": min(on) / min(off) - 1,
        "overhead of the median": statistics.median(on) / statistics.median(off) - 1,
        "least accounted": min(accounted), "most accounted": max(accounted),
    }  # fmt: skip


def timed(train: Any, clock: Any) -> float:
    begin = clock()
    train(STEPS)
    return float(clock() - begin)


if __name__ == "__main__":
    main()
