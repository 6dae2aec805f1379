"""A convolutional network with batch normalisation that reads noisy digits.

    python examples/nn/cnn.py

The running statistics are a dict beside the model: a call takes it and returns the new one.
"""

import sys
from pathlib import Path

import numpy as np

import tessera as ts
from tessera import nn, op

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples.nn.digits import SIDE, digits

optimizer = ts.optim.adam(1e-2)


def build(key):
    """The model, and the statistics that its layers start from."""
    a, b, c = ts.split(key, 3)
    return nn.with_state(
        nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, key=a), nn.BatchNorm(8), op.relu, nn.MaxPool(2),
            nn.Conv2d(8, 16, 3, padding=1, key=b), nn.BatchNorm(16), op.relu, nn.MaxPool(2),
            nn.Flatten(), nn.Linear(16 * (SIDE // 4) ** 2, 10, key=c),
        )
    )  # fmt: skip


def loss(model, stats, x, labels):
    scores, stats = model(x, stats)
    return op.cross_entropy(scores, labels), stats


@ts.jit
def step(model, stats, state, x, labels):
    (value, stats), grads = ts.value_and_grad(loss, has_aux=True)(model, stats, x, labels)
    model, state = optimizer.update(grads, state, model)
    return value, model, stats, state


@ts.jit
def accuracy(model, stats, x, labels):
    scores, _ = model(x, stats, training=False)
    return op.mean(op.argmax(scores, axis=-1) == labels)


def train(key, steps, batch=64, seed=0):
    """The model, its statistics, and the loss of every step."""
    rng, (model, stats) = np.random.default_rng(seed), build(key)
    state, losses = optimizer.init(model), []
    for _ in range(steps):
        value, model, stats, state = step(model, stats, state, *digits(rng, batch))
        losses.append(value.item())
    return model, stats, losses


def main():
    model, stats, losses = train(ts.key(0), 300)
    print(nn.summary(model, ts.Tensor[1, 1, SIDE, SIDE], stats, training=False))
    for i in range(0, 300, 50):
        print(f"step {i:3d}  loss {np.mean(losses[i : i + 20]):.3f}")
    right = accuracy(model, stats, *digits(np.random.default_rng(1), 1000))
    print(f"{100 * right.item():.1f}% of 1,000 new digits are read correctly")


if __name__ == "__main__":
    main()
