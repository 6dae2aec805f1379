"""An LSTM that adds two marked numbers of a sequence.

    python examples/nn/lstm.py

Every sequence holds random numbers, two of them marked; the answer is their sum (the "adding problem").
"""

import numpy as np

import tessera as ts
from tessera import nn, op

HIDDEN, LENGTH = 32, 30
optimizer = ts.optim.chain(ts.optim.clip_norm(1.0), ts.optim.adam(1e-2))


class Adder(nn.Module):
    lstm: nn.LSTM
    out: nn.Linear

    def __init__(self, key):
        a, b = ts.split(key)
        self.lstm, self.out = nn.LSTM(2, HIDDEN, key=a), nn.Linear(HIDDEN, 1, key=b)

    def __call__(self, xs):
        _, (h, _) = self.lstm(xs)
        return self.out(h[-1])[:, 0]


@ts.jit
def step(model, state, xs, targets):
    value, grads = ts.value_and_grad(lambda m: op.mse(m(xs), targets))(model)
    model, state = optimizer.update(grads, state, model)
    return value, model, state


def adding_problem(rng, batch, length=LENGTH):
    """Sequences of (number, mark), and the sum of the two marked numbers."""
    numbers, each = rng.uniform(size=(batch, length)), np.arange(batch)
    marks = np.zeros((batch, length))
    marks[each, rng.integers(0, length // 2, batch)] = 1
    marks[each, rng.integers(length // 2, length, batch)] = 1
    xs = np.stack([numbers, marks], axis=-1)
    return xs.astype(np.float32), (numbers * marks).sum(axis=1).astype(np.float32)


def train(key, steps, batch=64, length=LENGTH, seed=0):
    """The model and the loss of every step."""
    rng, model, losses = np.random.default_rng(seed), Adder(key), []
    state = optimizer.init(model)
    for _ in range(steps):
        value, model, state = step(model, state, *adding_problem(rng, batch, length))
        losses.append(value.item())
    return model, losses


def main():
    model, losses = train(ts.key(0), 600)
    print("always guessing 1 has a mean square error of 0.167")
    for i in range(0, 600, 100):
        print(f"step {i:3d}  error {np.mean(losses[i : i + 20]):.4f}")
    xs, targets = adding_problem(np.random.default_rng(1), 500)
    print(f"on 500 new sequences: {op.mse(model(xs), targets).item():.4f}")


if __name__ == "__main__":
    main()
