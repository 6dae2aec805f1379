"""A Gaussian process of a hundred thousand points on a grid: likelihood, gradient and prediction without an
approximation.

The covariance s A (x) B + noise I has the eigenvectors of its factors, so that K^-1 y and log det K take
those of two small matrices, and so do their derivatives.
"""

import time

import numpy as np

import tessera as ts
from tessera import Tensor, f64, op

SIDE = 320
GRID = np.linspace(0, 1, SIDE)
GAP = ts.tensor((GRID[:, None] - GRID) ** 2)


def covariance(logs: Tensor, noisy: bool = True) -> ts.Operator:
    """Two lengths, a size and a noise, as logarithms."""
    wide, high, size, noise = (op.exp(logs[i]) for i in range(4))
    lines = [op.dense(op.exp(-GAP / (2 * w * w)), flags=("positive",)) for w in (wide, high)]
    smooth = size * op.kronecker(*lines)
    return smooth + noise * op.eye(SIDE * SIDE, f64) if noisy else smooth


def likelihood(logs: Tensor, y: Tensor) -> Tensor:
    """-log p(y) for each point, without its constant."""
    k = covariance(logs)
    return (op.sum(y * k.solve(y)) + op.logdet(k)) / (2 * SIDE * SIDE)


def main() -> None:
    rng = np.random.default_rng(0)
    x, z = np.meshgrid(GRID, GRID, indexing="ij")
    truth = np.sin(9 * x) * np.cos(4 * z)
    y = ts.tensor((truth + 0.3 * rng.normal(size=truth.shape)).reshape(-1))
    step = ts.jit(ts.value_and_grad(likelihood))
    logs = ts.tensor(np.log([0.3, 0.3, 1.0, 0.5]))
    first, _ = step(logs, y)
    start = time.perf_counter()
    for _ in range(30):
        value, g = step(logs, y)
        logs = logs - 0.3 * g / op.maximum(op.norm(g), 1.0)
    each = (time.perf_counter() - start) / 30
    smooth = covariance(logs, noisy=False) @ covariance(logs).solve(y)
    off = float(np.sqrt(np.mean((np.asarray(smooth).reshape(SIDE, SIDE) - truth) ** 2)))
    noise = float(np.exp(np.asarray(logs)[3])) ** 0.5
    print(f"{SIDE * SIDE} points, {each:.2f} s for a likelihood with its gradient")
    print(
        f"-log p of a point from {float(first):.3f} to {float(value):.3f}; noise {noise:.2f} of 0.30"
    )
    print(f"the smooth part is off by {off:.3f}")
    assert float(value) < float(first)
    assert abs(noise - 0.3) < 0.05
    assert off < 0.03


if __name__ == "__main__":
    main()
