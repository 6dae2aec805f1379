"""What ts.checked() costs: the training step of examples/gpt.py, with it and without, call by call in turn.

    python benchmarks/checked.py [--repeats N] [--record FILE]

Also the part of eager calls that looks at their indices.  Medians; the spread is the distance between the
quartiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.ops import places

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import gpt

WIDTH, LAYERS, HEADS, BATCH, CONTEXT = 64, 2, 4, 16, 64  # as examples/gpt.py has them


def training_step() -> Callable[[], Any]:
    """One step of training, on one batch."""
    text, characters = gpt.read_stories()
    params = gpt.init(ts.key(0), len(characters), CONTEXT, WIDTH, LAYERS)
    optimizer = ts.optim.adam(1e-3)
    state = optimizer.init(params)
    batch = [*map(ts.tensor, next(gpt.batches(np.random.default_rng(0), text, BATCH, CONTEXT)))]

    def loss_of(params: Any, inputs: Any, targets: Any) -> Any:
        return op.cross_entropy(gpt.model(params, inputs, heads=HEADS), targets)

    @ts.jit
    def step(params: Any, state: Any, inputs: Any, targets: Any) -> Any:
        value, grads = ts.value_and_grad(loss_of)(params, inputs, targets)
        return value, *optimizer.update(grads, state, params)

    return lambda: step(params, state, *batch)


def in_turn(a: Callable[[], Any], b: Callable[[], Any], repeats: int, inner: int = 1) -> list[Any]:
    """Seconds of a and of b, each (median, spread)."""
    times: tuple[list[float], list[float]] = ([], [])
    for f in (a, b, a, b):
        f()
    for _ in range(repeats):
        for f, kept in zip((a, b), times, strict=True):
            begin = time.perf_counter()
            for _ in range(inner):
                f()
            kept.append((time.perf_counter() - begin) / inner)
    out = []
    for kept in times:
        low, middle, high = statistics.quantiles(kept, n=4)
        out.append((middle, high - low))
    return out


def eager_calls() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Eager calls, and the part of each that looks at its indices."""
    rng = np.random.default_rng(0)
    x = ts.tensor(rng.standard_normal((4096, 64)).astype(np.float32))
    out: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for n in (8, 4096):
        i, y = ts.tensor(rng.integers(0, 64, n)), x[:n]
        out[f"take of {n}"] = (
            lambda i=i: op.take(x, i, axis=0),
            lambda i=i: places.in_bounds("take", i, x, 0),
        )
        out[f"scatter_add of {n}"] = (
            lambda i=i, y=y: op.scatter_add(x, y, i),
            lambda i=i: places.in_bounds("take", i, x, 0),
        )
        out[f"cross_entropy of {n}"] = (
            lambda i=i, y=y: op.cross_entropy(y, i),
            lambda i=i: places.labels_of("cross_entropy", i, 64, None, "the classes"),
        )
    return out  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    step, found = training_step(), {}

    def checked() -> Any:
        with ts.checked():
            return step()

    found["gpt step"] = in_turn(step, checked, args.repeats)
    for name, (whole, look) in eager_calls().items():
        found[name] = in_turn(whole, look, args.repeats, 20)
    (plain, a), (slow, b) = found["gpt step"]
    print(
        f"gpt step {plain * 1e3:.2f} ms (+-{a * 1e3:.2f}), checked {slow * 1e3:.2f} ms (+-{b * 1e3:.2f}): "
        f"{slow / plain:.3f} times"
    )
    for name, ((whole, a), (look, b)) in [*found.items()][1:]:
        print(
            f"{name:22} {whole * 1e6:8.1f} us (+-{a * 1e6:.1f}), looking {look * 1e6:6.1f} us "
            f"(+-{b * 1e6:.1f}): {look / whole:.3f} of it"
        )
    if args.record:
        args.record.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
