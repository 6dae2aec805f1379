"""An LSTM that adds two marked numbers of a sequence, by `ts.scan` over its steps.

    python examples/recipes/lstm.py

Every sequence holds random numbers, two of them marked; the answer is their sum (the "adding
problem", which a plain recurrent network does not learn).
"""

import numpy as np

import tessera as ts
from tessera import op

HIDDEN, LENGTH = 32, 30
optimizer = ts.optim.adam(1e-2)


def init(key, inputs=2, hidden=HIDDEN):
    a, b, c = ts.split(key, 3)
    return {
        "input": op.random.normal(a, (inputs, 4 * hidden), std=0.3),
        "hidden": op.random.normal(b, (hidden, 4 * hidden), std=hidden**-0.5),
        "bias": op.zeros((4 * hidden,)).at[hidden : 2 * hidden].set(1.0),  # remember at first
        "out": op.random.normal(c, (hidden, 1), std=hidden**-0.5),
    }


def cell(params, carry, x):
    """One step: gates in the order of PyTorch, input, forget, candidate, output."""
    h, c = carry
    gates = x @ params["input"] + h @ params["hidden"] + params["bias"]
    i, f, g, o = op.split(gates, 4, axis=-1)
    c = op.sigmoid(f) * c + op.sigmoid(i) * op.tanh(g)
    h = op.sigmoid(o) * op.tanh(c)
    return (h, c), h


def lstm(params, xs):
    """All hidden states of sequences (length, batch, inputs)."""
    zero = op.zeros((xs.shape[1], params["hidden"].shape[0]), xs.dtype)
    return ts.scan(lambda carry, x: cell(params, carry, x), (zero, zero), xs)[1]


def loss(params, xs, targets):
    return op.mse((lstm(params, xs)[-1] @ params["out"])[:, 0], targets)


@ts.jit
def step(params, state, xs, targets):
    value, grads = ts.value_and_grad(loss)(params, xs, targets)
    grads = ts.optim.clip_by_global_norm(grads, 1.0)
    params, state = optimizer.update(grads, state, params)
    return value, params, state


def adding_problem(rng, batch, length=LENGTH):
    """Sequences of (number, mark), and the sum of the two marked numbers."""
    numbers = rng.uniform(size=(length, batch))
    first, second = rng.integers(0, length // 2, batch), rng.integers(length // 2, length, batch)
    marks, each = np.zeros((length, batch)), np.arange(batch)
    marks[first, each] = marks[second, each] = 1
    xs = np.stack([numbers, marks], axis=-1)
    return xs.astype(np.float32), (numbers * marks).sum(axis=0).astype(np.float32)


def train(key, steps, batch=64, seed=0):
    """The parameters and the loss of every step."""
    rng, params = np.random.default_rng(seed), init(key)
    state, losses = optimizer.init(params), []
    for _ in range(steps):
        value, params, state = step(params, state, *adding_problem(rng, batch))
        losses.append(value.item())
    return params, losses


def main():
    params, losses = train(ts.key(0), 600)
    print("always guessing 1 has a mean square error of 0.167")
    for i in range(0, 600, 100):
        print(f"step {i:3d}  error {np.mean(losses[i : i + 20]):.4f}")
    error = loss(params, *adding_problem(np.random.default_rng(1), 500))
    print(f"on 500 new sequences: {error.item():.4f}")


if __name__ == "__main__":
    main()
