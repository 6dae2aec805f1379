"""Train a GPT with the sequence cut over four shards: keys and values go round a ring.

python examples/distributed/context.py
tessera run -n 4 examples/distributed/context.py
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tessera as ts
from examples.distributed import gpt
from tessera import dist, op

MESH = dist.Mesh(["dp", "sp"], shape=(2, 4))


def attend(p: dict[str, Any], x: ts.Tensor) -> ts.Tensor:
    """Causal attention over a cut sequence."""
    batch, length, width = x.shape
    split = (batch, length, gpt.HEADS, width // gpt.HEADS)
    q, k, v = (op.transpose(op.reshape(x @ p[n], split), (0, 2, 1, 3)) for n in "qkv")
    y = op.transpose(dist.attention(q, k, v, axis="sp", causal=True), (0, 2, 1, 3))
    return op.reshape(y, x.shape) @ p["o"]


def loss(params: dict[str, Any], tokens: ts.Tensor, labels: ts.Tensor) -> ts.Tensor:
    """Mean cross entropy of the next token."""
    x = op.take(params["embedding"], tokens, axis=0) + params["position"]
    for p in params["blocks"]:
        x = x + attend(p, op.layernorm(x, **p["norm1"]))
        x = x + op.gelu(op.layernorm(x, **p["norm2"]) @ p["up"]) @ p["down"]
    return op.cross_entropy(op.layernorm(x, **params["norm"]) @ params["head"], labels)


def train(steps: int) -> tuple[float, str]:
    """The last loss, and the hash of parameters and state."""
    s = dist.strategy.sequence(MESH, "sp") + dist.strategy.zero2(MESH, "dp")
    optimizer, params = ts.optim.adam(1e-3), gpt.init(layers=1)
    step = s.step(loss, optimizer)
    state, params = s.state(optimizer.init(params)), s.params(params)
    rng, value = np.random.default_rng(1), 0.0
    for _ in range(steps):
        tokens = rng.integers(0, gpt.VOCABULARY, (4, gpt.LENGTH + 1))
        value, params, state = step(params, state, s.batch(tokens[:, :-1]), s.batch(tokens[:, 1:]))
    return float(value), gpt.digest((params, state))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2)
    given = parser.parse_args()
    last, found = train(given.steps)
    if dist.rank() == 0:
        print(f"context parallel on {dist.size()} ranks: loss {last:.6f}, sha256 {found}")
