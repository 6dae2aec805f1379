"""Train a GPT on a logical mesh of 8 shards, on as many ranks as there are.

    python examples/distributed/gpt.py --strategy zero3
    tessera run -n 2 examples/distributed/gpt.py --strategy zero3
    tessera run -n 4 --engine mpi examples/distributed/gpt.py --strategy zero3+tp

The last line has the SHA-256 of parameters and optimiser state: it does not depend on the number of ranks.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import numpy as np

import tessera as ts
from tessera import dist, op

WIDTH, HEADS, VOCABULARY, LENGTH, LAYERS = 32, 4, 64, 16, 2
# The first matrix of each pair is cut by columns and the second by rows: one sum a pair.
SPLIT = {"q": 1, "k": 1, "v": 1, "o": 0, "up": 1, "down": 0, "head": 1}


def init(seed: int = 0, layers: int = LAYERS) -> dict[str, Any]:
    """Parameters."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> ts.Tensor:
        return ts.tensor((0.02 * rng.normal(size=shape)).astype(np.float32))

    def norm() -> dict[str, ts.Tensor]:
        return {"gain": op.ones((WIDTH,)), "bias": op.zeros((WIDTH,))}

    def block() -> dict[str, Any]:
        square = {name: normal(WIDTH, WIDTH) for name in "qkvo"}
        mlp = {"up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH)}
        return {"norm1": norm(), "norm2": norm(), **square, **mlp}

    return {
        "embedding": normal(VOCABULARY, WIDTH),
        "position": normal(LENGTH, WIDTH),
        "blocks": [block() for _ in range(layers)],
        "norm": norm(),
        "head": normal(WIDTH, VOCABULARY),
    }


def attend(p: dict[str, Any], x: ts.Tensor) -> ts.Tensor:
    """Causal attention with several heads."""
    batch, length, width = x.shape
    split = (batch, length, HEADS, width // HEADS)
    q, k, v = (op.transpose(op.reshape(x @ p[n], split), (0, 2, 1, 3)) for n in "qkv")
    y = op.transpose(op.attention(q, k, v, causal=True), (0, 2, 1, 3))
    return op.reshape(y, x.shape) @ p["o"]


def loss(params: dict[str, Any], tokens: ts.Tensor) -> ts.Tensor:
    """Mean cross entropy of the next token."""
    x = op.take(params["embedding"], tokens[:, :-1], axis=0) + params["position"]
    for p in params["blocks"]:
        x = x + attend(p, op.layernorm(x, **p["norm1"]))
        x = x + op.gelu(op.layernorm(x, **p["norm2"]) @ p["up"]) @ p["down"]
    return op.cross_entropy(op.layernorm(x, **params["norm"]) @ params["head"], tokens[:, 1:])


def strategy_of(name: str) -> dist.strategy.Strategy:
    """A strategy by name: data, zero1, zero2, zero3, tp, or two of them, as in zero3+tp."""
    first, _, second = name.partition("+")
    if name == "tp":
        return dist.strategy.tensor(dist.Mesh(["tp"], shape=(4,)), "tp", SPLIT)
    if not second:
        return getattr(dist.strategy, first)(dist.Mesh(["dp"], shape=(8,)), "dp")
    mesh = dist.Mesh(["dp", "tp"], shape=(4, 2))
    return getattr(dist.strategy, first)(mesh, "dp") + dist.strategy.tensor(mesh, "tp", SPLIT)


def digest(values: Any) -> str:
    """SHA-256 of all tensors of a tree."""
    found = hashlib.sha256()
    for x in ts.tree.leaves(values):
        found.update(np.ascontiguousarray(x.numpy()).tobytes())
    return found.hexdigest()


def train(strategy: str, steps: int) -> tuple[float, str]:
    """The last loss, and the hash of parameters and state."""
    s, optimizer, params = strategy_of(strategy), ts.optim.adam(1e-3), init()
    step = s.step(loss, optimizer)
    state, params = s.state(optimizer.init(params)), s.params(params)
    rng, value = np.random.default_rng(1), 0.0
    for _ in range(steps):
        tokens = s.batch(rng.integers(0, VOCABULARY, (16, LENGTH + 1)))
        value, params, state = step(params, state, tokens)
    return float(value), digest((params, state))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="data")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    last, found = train(given.strategy, given.steps)
    if dist.rank() == 0:
        print(f"{given.strategy} on {dist.size()} ranks: loss {last:.6f}, sha256 {found}")
