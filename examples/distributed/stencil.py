"""Heat on a plate by a five-point stencil, the plate cut into 2 by 2 shards that exchange their edges.

    python examples/distributed/stencil.py
    tessera run -n 4 examples/distributed/stencil.py

`by_convolution` leaves the exchange to the compiler; `by_hand` writes it with dist.shard_map and
dist.permute.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import numpy as np

import tessera as ts
from tessera import dist, op

MESH = dist.Mesh(["x", "y"], shape=(2, 2))
SPEC = dist.ShardSpec((0, 1), ("x", "y"))
KERNEL = 0.2 * np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)


@ts.jit
def by_convolution(u: ts.Tensor) -> ts.Tensor:
    """A step; the edge of the plate is kept at zero."""
    wide = op.conv2d(op.reshape(u, (1, 1, *u.shape)), KERNEL[None, None], padding=1)
    return u + op.reshape(wide, u.shape)


def neighbours(u: ts.Tensor, axis: str, dim: int) -> ts.Tensor:
    """The sum of the elements before and after each along an axis of the plate."""
    n = MESH.size(axis)
    right = [(i, i + 1) for i in range(n - 1)]
    edge = op.take(u, np.array([u.shape[dim] - 1]), axis=dim)
    before = dist.permute(edge, axis, right)
    after = dist.permute(op.take(u, np.array([0]), axis=dim), axis, [(b, a) for a, b in right])
    wide = op.concat([before, u, after], axis=dim)
    low, high = (op.take(wide, np.arange(k, k + u.shape[dim]), axis=dim) for k in (0, 2))
    return low + high


def of_shard(u: ts.Tensor) -> ts.Tensor:
    """A step of one shard."""
    return u + 0.2 * (neighbours(u, "x", 0) + neighbours(u, "y", 1) - 4 * u)


by_hand = ts.jit(dist.shard_map(of_shard, MESH, SPEC, SPEC))


def start() -> Any:
    """A hot square."""
    u = np.zeros((16, 16), np.float32)
    u[4:9, 5:12] = 1
    return u


def run(steps: int, step: Any = by_convolution) -> Any:
    """The temperature after some steps."""
    u = dist.tensor(start(), SPEC, MESH)
    for _ in range(steps):
        u = step(u)
    return u


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    u = run(parser.parse_args().steps).numpy()
    if dist.rank() == 0:
        text = hashlib.sha256(u.tobytes()).hexdigest()
        print(f"stencil on {dist.size()} ranks: heat {u.sum():.6f}, sha256 {text}")
