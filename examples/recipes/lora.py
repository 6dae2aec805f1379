"""Fine-tune a frozen network by low-rank updates (LoRA), then merge them into its weights.

    python examples/recipes/lora.py

The gradient is taken in the adapters only: the frozen weights are another argument, so that no
derivative of theirs is ever computed.
"""

import numpy as np

import tessera as ts
from tessera import op

SIZES, RANK, ALPHA = (16, 128, 128, 4), 4, 8.0


def init(key):
    keys = ts.split(key, len(SIZES) - 1)
    return [
        {"w": op.random.normal(k, (m, n), std=(2 / m) ** 0.5), "b": op.zeros((n,))}
        for k, m, n in zip(keys, SIZES, SIZES[1:])
    ]


def init_adapters(key):
    """A is random and B zero, so that training starts at the frozen network."""
    keys = ts.split(key, len(SIZES) - 1)
    return [
        {"a": op.random.normal(k, (m, RANK), std=m**-0.5), "b": op.zeros((RANK, n))}
        for k, m, n in zip(keys, SIZES, SIZES[1:])
    ]


def forward(frozen, adapters, x):
    for i, (p, q) in enumerate(zip(frozen, adapters)):
        x = x @ p["w"] + (ALPHA / RANK) * (x @ q["a"]) @ q["b"] + p["b"]
        x = op.relu(x) if i + 1 < len(frozen) else x
    return x


def merge(frozen, adapters):
    """The same network with ordinary weights."""
    return [
        {"w": p["w"] + (ALPHA / RANK) * q["a"] @ q["b"], "b": p["b"]}
        for p, q in zip(frozen, adapters)
    ]


def none_like(frozen):
    """Adapters that do nothing: ranks of zero."""
    return [
        {"a": op.zeros((p["w"].shape[0], 0)), "b": op.zeros((0, p["w"].shape[1]))} for p in frozen
    ]


def loss(adapters, frozen, x, y):
    return op.cross_entropy(forward(frozen, adapters, x), y)


def pretrain_loss(frozen, x, y):
    return op.cross_entropy(forward(frozen, none_like(frozen), x), y)


def trainer(loss, optimizer):
    """A jitted step that trains the first argument of a loss."""

    @ts.jit
    def step(params, state, *rest):
        value, grads = ts.value_and_grad(loss)(params, *rest)
        params, state = optimizer.update(grads, state, params)
        return value, params, state

    return step


pretrain = trainer(pretrain_loss, ts.optim.adam(2e-3))
finetune = trainer(loss, ts.optim.adam(1e-2))


def task(seed, n, shift=0.0):
    """Four classes by the quadrant of two hidden features; another task turns the features."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, SIZES[0])).astype(np.float32)
    u = np.cos(shift) * x[:, 0] + np.sin(shift) * x[:, 2]
    v = np.cos(shift) * x[:, 1] - np.sin(shift) * x[:, 3]
    return ts.tensor(x), ts.tensor((u > 0) * 2 + (v > 0))


def fit(step, params, state, *rest, steps):
    for _ in range(steps):
        value, params, state = step(params, state, *rest)
    return value.item(), params


def accuracy(frozen, adapters, x, y):
    return op.mean(op.argmax(forward(frozen, adapters, x), axis=-1) == y).item()


def main():
    first, second, test = task(0, 2000), task(1, 500, shift=1.2), task(2, 2000, shift=1.2)
    frozen = init(ts.key(0))
    value, frozen = fit(pretrain, frozen, ts.optim.adam(2e-3).init(frozen), *first, steps=150)
    print(
        f"pretrained: loss {value:.3f}, accuracy {accuracy(frozen, none_like(frozen), *first):.3f}"
    )
    adapters = init_adapters(ts.key(1))
    print(f"on the new task before: accuracy {accuracy(frozen, adapters, *test):.3f}")
    value, adapters = fit(
        finetune, adapters, ts.optim.adam(1e-2).init(adapters), frozen, *second, steps=100
    )
    sizes = [sum(p.size for p in ts.tree.leaves(t)) for t in (adapters, frozen)]
    print(f"after {sizes[0]:,} numbers beside {sizes[1]:,} frozen ones: loss {value:.3f}, "
          f"accuracy {accuracy(frozen, adapters, *test):.3f}")  # fmt: skip
    merged = merge(frozen, adapters)
    print(f"merged into the weights: accuracy {accuracy(merged, none_like(merged), *test):.3f}")


if __name__ == "__main__":
    main()
