"""Gaussian process regression on a grid of places and times, by the structure of its covariance.

    python examples/recipes/gaussian_process.py

The covariance of a grid is a Kronecker product of a space part, which is dense and small, and a time
part, which is Toeplitz since times are evenly spaced.  The evidence is written as in a textbook, with
`solve` and `logdet` of an operator, and its hyperparameters are found by gradient.
"""

import numpy as np

import tessera as ts
from tessera import f64, op

PLACES, TIMES = 12, 50
SPACE, TIME = np.linspace(0, 1, PLACES), np.linspace(0, 10, TIMES)
optimizer = ts.optim.adam(0.1)


def matern(gap, length):
    """The covariance of functions that have one derivative (Matern 3/2)."""
    r = op.abs(gap) * 3**0.5 / length
    return (1 + r) * op.exp(-r)


def prior(logs):
    """The covariance of all points of the grid, places before times."""
    space = op.dense(matern(ts.asarray(SPACE[:, None] - SPACE), op.exp(logs["space"])))
    time = op.toeplitz(matern(ts.asarray(TIME), op.exp(logs["time"])))
    return op.exp(logs["scale"]) * op.kronecker(space, time)


def noisy(logs):
    """The covariance of the data: the prior and noise."""
    noise = op.exp(logs["noise"]) * op.eye(PLACES * TIMES, f64)
    return (prior(logs) + noise).assume("positive")


def evidence(logs, y):
    """-log p(y) without its constant."""
    k = noisy(logs)
    return 0.5 * (op.sum(y * k.solve(y)) + op.logdet(k))


def posterior_mean(logs, y):
    """The expected field at all points, K (K + noise I)^-1 y, from products with K only."""
    weights, info = op.cg(noisy(logs), y, tol=1e-8)
    return prior(logs) @ weights, info


@ts.jit
def step(logs, state, y):
    value, grads = ts.value_and_grad(evidence)(logs, y)
    logs, state = optimizer.update(grads, state, logs)
    return value, logs, state


def data(rng, noise=0.3):
    """A travelling wave with noise, and the wave without it, flattened."""
    clean = np.sin(6 * SPACE[:, None] - 2 * TIME) * np.exp(-SPACE[:, None])
    return (clean + noise * rng.normal(size=clean.shape)).reshape(-1), clean.reshape(-1)


def start():
    return {
        k: ts.tensor(v, f64)
        for k, v in {"space": -1.0, "time": 0.0, "scale": 0.0, "noise": 0.0}.items()
    }


def fit(y, steps):
    """The logarithms of the hyperparameters, and the evidence at every step."""
    logs, values = start(), []
    state = optimizer.init(logs)
    for _ in range(steps):
        value, logs, state = step(logs, state, y)
        values.append(value.item())
    return logs, values


def main():
    y, clean = data(np.random.default_rng(0))
    logs, values = fit(ts.tensor(y), 40)
    for i in range(0, 40, 10):
        print(f"step {i:2d}  -log evidence {values[i]:9.1f}")
    print("lengths: space {space:.2f}, time {time:.2f}; variance {scale:.2f}, noise {noise:.3f}".format(
        **{k: np.exp(v.item()) for k, v in logs.items()}))  # fmt: skip
    mean, info = posterior_mean(logs, ts.tensor(y))
    error = np.sqrt(np.mean((np.asarray(mean) - clean) ** 2))
    print(f"error of the data 0.300, of the posterior mean {error:.3f}, "
          f"after {info.iterations.item()} steps of conjugate gradients")  # fmt: skip


if __name__ == "__main__":
    main()
