"""Kernel ridge regression: in closed form, by random features, and with its width found by gradient.

    python examples/recipes/kernel_ridge.py

The error of leaving each point out has a closed form too, (y - K a) / (1 - H_ii), and a gradient:
descending it picks the width of the kernel and the ridge without a validation set.
"""

import numpy as np

import tessera as ts
from tessera import f64, op

FEATURES = 300
optimizer = ts.optim.adam(0.1)


def rbf(x, y, width):
    """exp(-|x_i - y_j|^2 / (2 width^2)) for all pairs of rows."""
    gaps = op.sum(x**2, axis=1)[:, None] - 2 * x @ y.T + op.sum(y**2, axis=1)
    return op.exp(-op.maximum(gaps, 0.0) / (2 * width**2))


def fit(x, y, width, ridge):
    """The weights of all points: (K + ridge I)^-1 y."""
    k = op.dense(rbf(x, x, width), flags=("positive",)) + ridge * op.eye(x.shape[0], x.dtype)
    return k.solve(y)


def predict(new, x, weights, width):
    return rbf(new, x, width) @ weights


def leave_one_out(logs, x, y):
    """The mean square error at points that were left out, in closed form."""
    k = rbf(x, x, op.exp(logs["width"]))
    inverse = op.inv(k + op.exp(logs["ridge"]) * ts.eye(x.shape[0], dtype=x.dtype))
    return op.mean(((inverse @ y) / op.diagonal(inverse)) ** 2)


@ts.jit
def step(logs, state, x, y):
    value, grads = ts.value_and_grad(leave_one_out)(logs, x, y)
    logs, state = optimizer.update(grads, state, logs)
    return value, logs, state


def start():
    return {"width": op.full((), 1.0, f64), "ridge": op.full((), 0.0, f64)}


def choose(x, y, steps):
    """The logarithms of width and ridge, and the error at every step."""
    logs, values = start(), []
    state = optimizer.init(logs)
    for _ in range(steps):
        value, logs, state = step(logs, state, x, y)
        values.append(value.item())
    return logs, values


def random_features(key, x, new, y, width, ridge):
    """Predictions by cosines of random directions (Rahimi and Recht), without any n by n matrix."""
    k_w, k_b = ts.split(key)
    w = op.random.normal(k_w, (x.shape[1], FEATURES), dtype=f64) / width
    b = op.random.uniform(k_b, (FEATURES,), 0.0, 2 * np.pi, dtype=f64)

    def features(x):
        return (2 / FEATURES) ** 0.5 * op.cos(x @ w + b)

    f = features(x)
    return features(new) @ op.solve(f.T @ f + ridge * ts.eye(FEATURES, dtype=f64), f.T @ y)


def data(rng, n):
    x = rng.uniform(-2, 2, (n, 2))
    return x, np.sin(2 * x[:, 0]) * np.cos(x[:, 1]) + 0.1 * rng.normal(size=n)


def main():
    x, y = (ts.asarray(a) for a in data(np.random.default_rng(0), 300))
    new, truth = (ts.asarray(a) for a in data(np.random.default_rng(1), 500))
    logs, values = choose(x, y, 50)
    for i in range(0, 50, 10):
        print(f"step {i:2d}  error of points left out {values[i]:.4f}")
    width, ridge = op.exp(logs["width"]), op.exp(logs["ridge"])
    print(f"width {width.item():.2f}, ridge {ridge.item():.4f}; the noise has variance 0.0100")
    exact = predict(new, x, fit(x, y, width, ridge), width)
    sketch = random_features(ts.key(0), x, new, y, width, ridge)
    print(f"error on new points: kernel {op.mse(exact, truth).item():.4f}, "
          f"{FEATURES} random features {op.mse(sketch, truth).item():.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
