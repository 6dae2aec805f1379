"""A vision transformer: patches of a picture are tokens, and a class token reads them.

    python examples/recipes/vit.py

Blocks are those of a pre-norm transformer, with AdamW, a warm-up and smoothed labels.
"""

from pathlib import Path

import numpy as np

import tessera as ts
from tessera import op

GLYPHS = Path(__file__).parent.parent / "data" / "digits.csv"
SIDE, PATCH, WIDTH, HEADS, LAYERS = 12, 3, 48, 4, 2
PATCHES = (SIDE // PATCH) ** 2
optimizer = ts.optim.adamw(ts.optim.warmup_cosine(3e-3, 20, 250), decay=0.01)


def digits(rng, n):
    """Digits of 7 by 5 pixels somewhere in a noisy picture (n, SIDE, SIDE), and which they are."""
    glyphs = np.loadtxt(GLYPHS, delimiter=",").reshape(10, 7, 5)
    labels = rng.integers(0, 10, n)
    x = rng.normal(scale=0.2, size=(n, SIDE, SIDE))
    for picture, label in zip(x, labels):
        i, j = rng.integers(0, (SIDE - 6, SIDE - 4))
        picture[i : i + 7, j : j + 5] += glyphs[label]
    return x.astype(np.float32), labels


def init(key):
    keys = iter(ts.split(key, 4 + 4 * LAYERS))

    def matrix(m, n):
        return op.random.normal(next(keys), (m, n), std=m**-0.5)

    def norm():
        return {"gain": op.ones((WIDTH,)), "bias": op.zeros((WIDTH,))}

    def block():
        return {
            "norm1": norm(), "qkv": matrix(WIDTH, 3 * WIDTH), "mix": matrix(WIDTH, WIDTH),
            "norm2": norm(), "up": matrix(WIDTH, 2 * WIDTH), "down": matrix(2 * WIDTH, WIDTH),
        }  # fmt: skip

    return {
        "patch": matrix(PATCH * PATCH, WIDTH),
        "class": 0.02 * op.random.normal(next(keys), (WIDTH,)),
        "places": 0.02 * op.random.normal(next(keys), (PATCHES + 1, WIDTH)),
        "blocks": [block() for _ in range(LAYERS)],
        "norm": norm(),
        "out": matrix(WIDTH, 10),
    }


def patches(x):
    """(n, side, side) -> (n, patches, pixels of a patch)."""
    n, k = x.shape[0], SIDE // PATCH
    grid = op.reshape(x, (n, k, PATCH, k, PATCH))
    return op.reshape(op.transpose(grid, (0, 1, 3, 2, 4)), (n, PATCHES, PATCH * PATCH))


def layernorm(p, x):
    return op.layernorm(x, p["gain"], p["bias"])


def attend(p, x):
    n, length, width = x.shape
    qkv = op.reshape(x @ p["qkv"], (n, length, 3, HEADS, width // HEADS))
    q, k, v = op.unstack(op.transpose(qkv, (2, 0, 3, 1, 4)))
    y = op.swapaxes(op.attention(q, k, v), 1, 2)
    return op.reshape(y, (n, length, width)) @ p["mix"]


def forward(params, x):
    """The scores of the ten digits."""
    tokens = patches(x) @ params["patch"]
    first = op.broadcast_to(params["class"], (x.shape[0], 1, WIDTH))
    h = op.concat([first, tokens], axis=1) + params["places"]
    for p in params["blocks"]:
        h = h + attend(p, layernorm(p["norm1"], h))
        h = h + op.gelu(layernorm(p["norm2"], h) @ p["up"]) @ p["down"]
    return layernorm(params["norm"], h[:, 0]) @ params["out"]


def loss(params, x, labels):
    return op.cross_entropy(forward(params, x), labels, label_smoothing=0.05)


@ts.jit
def step(params, state, x, labels):
    value, grads = ts.value_and_grad(loss)(params, x, labels)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


@ts.jit
def accuracy(params, x, labels):
    return op.mean(op.argmax(forward(params, x), axis=-1) == labels)


def train(key, steps, batch=64, seed=0):
    """The parameters and the loss of every step."""
    rng, params = np.random.default_rng(seed), init(key)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        value, params, state = step(params, state, *digits(rng, batch))
        losses.append(value.item())
    return params, losses


def main():
    params, losses = train(ts.key(0), 250)
    for i in range(0, 250, 50):
        print(f"step {i:3d}  loss {np.mean(losses[i : i + 20]):.3f}")
    right = accuracy(params, *digits(np.random.default_rng(1), 1000))
    print(f"{100 * right.item():.1f}% of 1,000 new digits are read correctly")


if __name__ == "__main__":
    main()
