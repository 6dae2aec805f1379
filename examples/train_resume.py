"""Train a small network with ts.train.  Kill it at any time and start it again: it ends with the same bits.

    python examples/train_resume.py --folder /tmp/run --steps 200

The last line is the SHA-256 of the last checkpoint: parameters, optimiser, step and key.
"""

import argparse
import hashlib

import numpy as np

import tessera as ts
from tessera import data, op, train

WIDTH = 32


def spirals(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals, and which one each belongs to."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, n)
    t = rng.uniform(0.5, 3, n)
    angle = 2.5 * t + np.pi * label
    points = np.stack([t * np.cos(angle), t * np.sin(angle)], -1) + rng.normal(0, 0.05, (n, 2))
    return points.astype(np.float32), label


def start(key):
    """Parameters and the state of the optimiser."""
    k1, k2, k3 = ts.split(key, 3)
    params = {
        "in": op.random.normal(k1, (2, WIDTH)),
        "mid": op.random.normal(k2, (WIDTH, WIDTH)) / WIDTH**0.5,
        "out": op.random.normal(k3, (WIDTH, 2)) / WIDTH**0.5,
    }
    return params, optimizer.init(params)


def loss(params, batch, key):
    points, label = batch
    h = op.gelu(points @ params["in"])
    h = op.dropout(key, op.gelu(h @ params["mid"]), 0.1)
    return op.cross_entropy(h @ params["out"], label)


optimizer = ts.optim.adamw(3e-3)


@ts.jit
def step(state, batch, key):
    params, moments = state
    value, grads = ts.value_and_grad(loss)(params, batch, key)
    return optimizer.update(grads, moments, params), {"loss": value}


def noisy(batch, keys):
    """Points moved a little, each by its own key."""
    points, label = batch
    return points + 0.02 * ts.vmap(lambda k: op.random.normal(k, (2,)))(keys), label


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--folder", default="build/train_resume")
    args.add_argument("--steps", type=int, default=200)
    args.add_argument("--every", type=int, default=10)
    given = args.parse_args()

    loader = data.Loader(spirals(1000), batch=64, key=ts.key(1), transform=ts.jit(noisy), workers=2)
    checkpoints = train.Checkpoints(given.folder, every=given.every, keep=2)
    end = train.fit(
        step, start(ts.key(0)), loader, given.steps, key=ts.key(2), checkpoints=checkpoints,
        loggers=[train.CSV(f"{given.folder}/loss.csv"), train.TensorBoard(given.folder)],
    )  # fmt: skip
    last = checkpoints.path(end.step)
    print(f"step {end.step}  loss {end.metrics.get('loss', float('nan')):.4f}  {last}")
    print(hashlib.sha256(last.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
