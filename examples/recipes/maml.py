"""Meta-learning (MAML): parameters from which one gradient step learns a new sine wave.

    python examples/recipes/maml.py

The outer gradient goes through the inner one, so it is a gradient of a gradient; tasks are mapped by
`ts.vmap`.
"""

import numpy as np

import tessera as ts
from tessera import op

WIDTH, RATE, SHOTS, TASKS = 40, 0.02, 10, 16
optimizer = ts.optim.adam(2e-3)


def init(key):
    sizes = (1, WIDTH, WIDTH, 1)
    keys = ts.split(key, len(sizes) - 1)
    return [
        (op.random.normal(k, (m, n), std=(1 / m) ** 0.5), op.zeros((n,)))
        for k, m, n in zip(keys, sizes, sizes[1:])
    ]


def net(params, x):
    for w, b in params[:-1]:
        x = op.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss(params, x, y):
    return op.mse(net(params, x), y)


def adapt(params, x, y, steps=1):
    """A few steps of gradient descent on one task."""
    for _ in range(steps):
        grads = ts.grad(loss)(params, x, y)
        params = ts.tree.map(lambda p, g: p - RATE * g, params, grads)
    return params


def meta_loss(params, x, y, new_x, new_y):
    """The loss on new points of each task, after a step on its few known points."""

    def one(x, y, new_x, new_y):
        return loss(adapt(params, x, y), new_x, new_y)

    return op.mean(ts.vmap(one)(x, y, new_x, new_y))


@ts.jit
def step(params, state, *tasks):
    value, grads = ts.value_and_grad(meta_loss)(params, *tasks)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


def waves(rng, tasks, points=SHOTS):
    """Known and new points of sine waves with drawn heights and phases, (tasks, points, 1) each."""
    height, phase = rng.uniform(0.5, 3, (tasks, 1, 1)), rng.uniform(0, np.pi, (tasks, 1, 1))
    x = rng.uniform(-3, 3, (2, tasks, points, 1))
    y = height * np.sin(x + phase)
    return tuple(a.astype(np.float32) for a in (x[0], y[0], x[1], y[1]))


def train(key, steps, seed=0):
    """The parameters and the loss of every step."""
    rng, params = np.random.default_rng(seed), init(key)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        value, params, state = step(params, state, *waves(rng, TASKS))
        losses.append(value.item())
    return params, losses


def main():
    params, losses = train(ts.key(0), 1500)
    for i in range(0, 1500, 300):
        print(f"step {i:4d}  loss after one inner step {np.mean(losses[i : i + 100]):.3f}")
    x, y, new_x, new_y = (ts.asarray(a) for a in waves(np.random.default_rng(1), 100))
    for steps in (0, 1, 5):
        one = lambda x, y, u, v: loss(adapt(params, x, y, steps), u, v)  # noqa: E731, B023
        print(
            f"new waves after {steps} steps: {op.mean(ts.vmap(one)(x, y, new_x, new_y)).item():.3f}"
        )


if __name__ == "__main__":
    main()
