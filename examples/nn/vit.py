"""A vision transformer: patches of a picture are tokens, and a class token reads them.

python examples/nn/vit.py
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import nn, op

sys.path.insert(0, str(Path(__file__).parents[2]))
from examples.nn.digits import SIDE, digits

PATCH, WIDTH, HEADS, LAYERS = 3, 48, 4, 2
optimizer = ts.optim.chain(
    ts.optim.clip_norm(1.0), ts.optim.adamw(ts.optim.warmup_cosine(5e-3, 40, 400), decay=0.01)
)


class Block(nn.Module):
    """A pre-norm transformer block."""

    norm1: nn.LayerNorm
    attn: nn.MultiHeadAttention
    norm2: nn.LayerNorm
    mlp: nn.MLP

    def __init__(self, key):
        a, b = ts.split(key)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiHeadAttention(WIDTH, HEADS, key=a)
        self.mlp = nn.MLP([WIDTH, 2 * WIDTH, WIDTH], key=b)

    def __call__(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    patch: nn.Conv2d
    reader: Any
    places: Any
    blocks: list[Block]
    norm: nn.LayerNorm
    out: nn.Linear

    def __init__(self, key):
        a, b, c, d, *keys = ts.split(key, 4 + LAYERS)
        self.patch = nn.Conv2d(1, WIDTH, PATCH, PATCH, key=a)
        self.reader = nn.init.normal(b, (1, 1, WIDTH), std=0.02)
        self.places = nn.init.normal(c, ((SIDE // PATCH) ** 2 + 1, WIDTH), std=0.02)
        self.blocks = [Block(k) for k in keys]
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10, key=d)

    def __call__(self, x):
        tokens = op.swapaxes(op.flatten(self.patch(x), 2), 1, 2)
        first = op.broadcast_to(self.reader, (x.shape[0], 1, WIDTH))
        h = op.concat([first, tokens], axis=1) + self.places
        for block in self.blocks:
            h = block(h)
        return self.out(self.norm(h[:, 0]))


@ts.jit
def step(model, state, x, labels):
    loss = lambda m: op.cross_entropy(m(x), labels, label_smoothing=0.05)  # noqa: E731
    value, grads = ts.value_and_grad(loss)(model)
    model, state = optimizer.update(grads, state, model)
    return value, model, state


def train(key, steps, batch=64, seed=0):
    """The model and the loss of every step."""
    rng, model, losses = np.random.default_rng(seed), ViT(key), []
    state = optimizer.init(model)
    for _ in range(steps):
        value, model, state = step(model, state, *digits(rng, batch))
        losses.append(value.item())
    return model, losses


def main():
    model, losses = train(ts.key(0), 400)
    for i in range(0, 400, 80):
        print(f"step {i:3d}  loss {np.mean(losses[i : i + 20]):.3f}")
    x, labels = digits(np.random.default_rng(1), 1000)
    right = np.mean(ts.jit(model)(x).numpy().argmax(-1) == labels)
    print(f"{100 * right:.1f}% of 1,000 new digits are read correctly")


if __name__ == "__main__":
    main()
