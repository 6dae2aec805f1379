"""Fine-tune a frozen network by low-rank updates (LoRA), then merge them into its weights.

    python examples/nn/lora.py

`nn.map_modules` puts an adapter around every linear layer; `nn.partition` cuts the model into what is trained
and what is frozen, so that no derivative of the frozen weights is ever computed.
"""

from typing import Any

import numpy as np

import tessera as ts
from tessera import nn, op

SIZES, RANK, ALPHA = [16, 128, 128, 4], 4, 8.0


class LoRA(nn.Module):
    """A linear layer plus a product of two thin matrices."""

    base: nn.Linear
    down: Any
    up: Any

    def __init__(self, base, key):
        out, into = base.weight.shape
        self.base = base
        self.down = nn.init.normal(key, (RANK, into), std=into**-0.5)
        self.up = op.zeros((out, RANK))  # zero, so that training starts at the frozen network

    def __call__(self, x):
        return self.base(x) + (ALPHA / RANK) * (x @ self.down.T) @ self.up.T

    def merged(self):
        """The same layer with ordinary weights."""
        return nn.replace(self.base, weight=self.base.weight + (ALPHA / RANK) * self.up @ self.down)


def adapted(model, key):
    """The model with an adapter at every linear layer."""
    keys = iter(ts.split(key, 16))
    return nn.map_modules(
        lambda name, m: LoRA(m, next(keys)) if isinstance(m, nn.Linear) else m, model
    )


def merge(model):
    return nn.map_modules(lambda name, m: m.merged() if isinstance(m, LoRA) else m, model)


def task(seed, n, shift=0.0):
    """Four classes by the quadrant of two hidden features; another task turns the features."""
    x = np.random.default_rng(seed).normal(size=(n, SIZES[0])).astype(np.float32)
    u = np.cos(shift) * x[:, 0] + np.sin(shift) * x[:, 2]
    v = np.cos(shift) * x[:, 1] - np.sin(shift) * x[:, 3]
    return ts.tensor(x), ts.tensor((u > 0) * 2 + (v > 0))


def fit(trained, frozen, data, optimizer, steps):
    """The trained part after so many steps, and the last loss."""

    @ts.jit
    def step(trained, frozen, state, x, y):
        loss = lambda t: op.cross_entropy(nn.combine(t, frozen)(x), y)  # noqa: E731
        value, grads = ts.value_and_grad(loss)(trained)
        return value, *optimizer.update(grads, state, trained)

    state = optimizer.init(trained)
    for _ in range(steps):
        value, trained, state = step(trained, frozen, state, *data)
    return trained, value.item()


def accuracy(model, x, y):
    return op.mean(op.argmax(model(x), axis=-1) == y).item()


def main(steps=150):
    first, second, test = task(0, 2000), task(1, 500, shift=1.2), task(2, 2000, shift=1.2)
    base, value = fit(
        nn.MLP(SIZES, op.relu, key=ts.key(0)), None, first, ts.optim.adam(2e-3), steps
    )
    print(f"pretrained: loss {value:.3f}, on its task {accuracy(base, *first):.3f}, "
          f"on the new one {accuracy(base, *test):.3f}")  # fmt: skip
    model = adapted(base, ts.key(1))
    mine, frozen = nn.partition(model, lambda name, p: name.endswith((".up", ".down")))
    mine, value = fit(mine, frozen, second, ts.optim.adam(1e-2), steps)
    model = nn.combine(mine, frozen)
    sizes = [sum(p.size for p in ts.tree.leaves(t)) for t in (mine, frozen)]
    merged = merge(model)
    print(f"{sizes[0]:,} numbers beside {sizes[1]:,} frozen ones: loss {value:.3f}, "
          f"on the new task {accuracy(model, *test):.3f}, merged {accuracy(merged, *test):.3f}")  # fmt: skip
    return base, model, merged, test


if __name__ == "__main__":
    main()
