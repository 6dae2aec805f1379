"""A convolutional network with batch normalisation that reads noisy digits.

    python examples/recipes/cnn.py

Running means and variances are state: the loss returns them beside its value (`has_aux=True`), as it
would in JAX, and the evaluation takes them as arguments.
"""

from pathlib import Path

import numpy as np

import tessera as ts
from tessera import op

GLYPHS = Path(__file__).parent.parent / "data" / "digits.csv"
SIDE, MOMENTUM, CHANNELS = 12, 0.1, (1, 8, 16)
optimizer = ts.optim.adam(1e-2)


def digits(rng, n):
    """Digits of 7 by 5 pixels somewhere in a noisy picture (n, 1, SIDE, SIDE), and which they are."""
    glyphs = np.loadtxt(GLYPHS, delimiter=",").reshape(10, 7, 5)
    labels = rng.integers(0, 10, n)
    x = rng.normal(scale=0.2, size=(n, 1, SIDE, SIDE))
    for picture, label in zip(x, labels):
        i, j = rng.integers(0, (SIDE - 6, SIDE - 4))
        picture[0, i : i + 7, j : j + 5] += glyphs[label]
    return x.astype(np.float32), labels


def init(key):
    """The parameters, and the running statistics of every normalisation."""
    keys = ts.split(key, len(CHANNELS))
    blocks, running = [], []
    for k, m, n in zip(keys, CHANNELS, CHANNELS[1:]):
        kernel = op.random.normal(k, (n, m, 3, 3), std=(2 / (9 * m)) ** 0.5)
        blocks.append({"kernel": kernel, "gain": op.ones((n,)), "bias": op.zeros((n,))})
        running.append({"mean": op.zeros((n,)), "var": op.ones((n,))})
    features = CHANNELS[-1] * (SIDE // 4) ** 2
    out = {
        "w": op.random.normal(keys[-1], (features, 10), std=features**-0.5),
        "b": op.zeros((10,)),
    }
    return {"blocks": blocks, "out": out}, running


def normalise(p, r, x, training):
    """Batch normalisation and the statistics to keep."""
    if not training:
        return op.batchnorm(x, r["mean"], r["var"], p["gain"], p["bias"]), r
    y, mean, var = op.batchnorm_train(x, p["gain"], p["bias"])
    n = x.shape[0] * x.shape[2] * x.shape[3]
    new = {"mean": mean, "var": var * n / (n - 1)}
    return y, ts.tree.map(lambda old, new: (1 - MOMENTUM) * old + MOMENTUM * new, r, new)


def forward(params, running, x, training=False):
    """The scores of the ten digits, and the new statistics."""
    updated = []
    for p, r in zip(params["blocks"], running):
        x, r = normalise(p, r, op.conv2d(x, p["kernel"], padding=1), training)
        x = op.max_pool2d(op.relu(x), 2)
        updated.append(ts.tree.map(ts.stop_gradient, r))
    return op.flatten(x, 1) @ params["out"]["w"] + params["out"]["b"], updated


def loss(params, running, x, labels):
    scores, running = forward(params, running, x, training=True)
    return op.cross_entropy(scores, labels), running


@ts.jit
def step(params, running, state, x, labels):
    (value, running), grads = ts.value_and_grad(loss, has_aux=True)(params, running, x, labels)
    params, state = optimizer.update(grads, state, params)
    return value, params, running, state


def train(key, steps, batch=64, seed=0):
    """Parameters, running statistics, and the loss of every step."""
    rng, (params, running) = np.random.default_rng(seed), init(key)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        value, params, running, state = step(params, running, state, *digits(rng, batch))
        losses.append(value.item())
    return params, running, losses


@ts.jit
def accuracy(params, running, x, labels):
    return op.mean(op.argmax(forward(params, running, x)[0], axis=-1) == labels)


def main():
    params, running, losses = train(ts.key(0), 300)
    for i in range(0, 300, 50):
        print(f"step {i:3d}  loss {np.mean(losses[i : i + 20]):.3f}")
    right = accuracy(params, running, *digits(np.random.default_rng(1), 1000))
    print(f"{100 * right.item():.1f}% of 1,000 new digits are read correctly")


if __name__ == "__main__":
    main()
