"""Train a mixture of experts on a logical mesh of ep=4 x dp=2: each shard along ep holds two of eight
experts.

    python examples/distributed/mixture.py
    tessera run -n 4 examples/distributed/mixture.py

Tokens go to their experts by all_to_all, and none is dropped however uneven the choice is.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tessera as ts
from examples.distributed.gpt import digest
from tessera import dist, op

MESH = dist.Mesh(["ep", "dp"], shape=(4, 2))
WIDTH, HIDDEN, EXPERTS, CHOICES, CLASSES = 16, 32, 8, 2, 4


def init() -> dict[str, Any]:
    """Parameters."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> ts.Tensor:
        return ts.tensor((0.3 * rng.normal(size=shape)).astype(np.float32))

    experts = {"up": normal(EXPERTS, WIDTH, HIDDEN), "down": normal(EXPERTS, HIDDEN, WIDTH)}
    return {"router": normal(WIDTH, EXPERTS), "experts": experts, "head": normal(WIDTH, CLASSES)}


def expert(p: dict[str, Any], rows: ts.Tensor) -> ts.Tensor:
    """One expert on rows."""
    return op.gelu(rows @ p["up"]) @ p["down"]


def loss(params: dict[str, Any], x: ts.Tensor, labels: ts.Tensor) -> ts.Tensor:
    """Mean cross entropy."""
    scores, chosen = op.topk(x @ params["router"], CHOICES)
    y = x + dist.experts(expert, params["experts"], x, op.softmax(scores), chosen)
    return op.cross_entropy(y @ params["head"], labels)


def train(steps: int) -> tuple[float, str]:
    """The last loss, and the hash of parameters and state."""
    s = dist.strategy.expert(MESH, "ep") + dist.strategy.data(MESH, "dp")
    optimizer, params = ts.optim.adam(3e-3), init()
    step = s.step(loss, optimizer)
    state, params = s.state(optimizer.init(params)), s.params(params)
    rng, value = np.random.default_rng(1), 0.0
    for _ in range(steps):
        x = rng.normal(size=(32, WIDTH)).astype(np.float32)
        labels = (x[:, 0] > 0) + 2 * (x[:, 1] > 0)
        value, params, state = step(params, state, s.batch(x), s.batch(labels))
    return float(value), digest((params, state))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    last, found = train(given.steps)
    if dist.rank() == 0:
        print(f"mixture on {dist.size()} ranks: loss {last:.6f}, sha256 {found}")
