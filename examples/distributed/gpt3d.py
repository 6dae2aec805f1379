"""Train a GPT over data, tensor and pipeline axes with ZeRO: a logical mesh of dp=2 x tp=2 x pp=2.

    python examples/distributed/gpt3d.py --zero zero1 --schedule 1f1b
    tessera run -n 4 examples/distributed/gpt3d.py --zero zero3 --schedule interleaved

The last line has the SHA-256 of parameters and optimiser state: it does not depend on the number of ranks.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tessera as ts
from examples.distributed import gpt
from tessera import dist, op

MESH = dist.Mesh(["dp", "tp", "pp"], shape=(2, 2, 2))
# Axes counted from the end: layers are stacked in front.
SPLIT = {"q": -1, "k": -1, "v": -1, "o": -2, "up": -1, "down": -2}
LAYERS, MICROBATCHES = 4, 4


def first(p: dict[str, Any], tokens: ts.Tensor) -> ts.Tensor:
    """Embedding of a microbatch."""
    return op.take(p["embedding"], tokens[:, :-1], axis=0) + p["position"]


def block(p: dict[str, Any], x: ts.Tensor) -> ts.Tensor:
    """A layer."""
    x = x + gpt.attend(p, op.layernorm(x, **p["norm1"]))
    return x + op.gelu(op.layernorm(x, **p["norm2"]) @ p["up"]) @ p["down"]


def last(p: dict[str, Any], x: ts.Tensor, tokens: ts.Tensor) -> ts.Tensor:
    """The loss of a microbatch."""
    return op.cross_entropy(op.layernorm(x, **p["norm"]) @ p["head"], tokens[:, 1:])


def init(chunks: int) -> dict[str, Any]:
    """Parameters, with the layers stacked by stage."""
    p = gpt.init(layers=LAYERS)
    return {
        "first": {"embedding": p["embedding"], "position": p["position"]},
        "blocks": dist.stacked(p["blocks"], MESH.size("pp"), chunks),
        "last": {"norm": p["norm"], "head": p["head"]},
    }


def train(zero: str, schedule: str, steps: int) -> tuple[float, str]:
    """The last loss, and the hash of parameters and state."""
    s = getattr(dist.strategy, zero)(MESH, "dp") + dist.strategy.tensor(MESH, "tp", SPLIT)
    s = s + dist.strategy.pipeline(MESH, "pp")
    chunks = 2 if schedule == "interleaved" else 1
    loss = dist.pipeline(
        first, block, last, MESH, "pp", microbatches=MICROBATCHES, schedule=schedule, chunks=chunks
    )
    optimizer, params = ts.optim.chain(ts.optim.clip_norm(1.0), ts.optim.adam(1e-3)), init(chunks)
    step = s.step(loss, optimizer)
    state, params = s.state(optimizer.init(params)), s.params(params)
    rng, value = np.random.default_rng(1), 0.0
    for _ in range(steps):
        tokens = s.batch(rng.integers(0, gpt.VOCABULARY, (16, gpt.LENGTH + 1)))
        value, params, state = step(params, state, tokens)
    return float(value), gpt.digest((params, state))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--zero", default="zero1", choices=("data", "zero1", "zero2", "zero3"))
    parser.add_argument("--schedule", default="1f1b", choices=("gpipe", "1f1b", "interleaved"))
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()
    loss, found = train(given.zero, given.schedule, given.steps)
    if dist.rank() == 0:
        print(
            f"{given.zero} {given.schedule} on {dist.size()} ranks: loss {loss:.6f}, sha256 {found}"
        )
