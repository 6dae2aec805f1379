"""A Gaussian process on a grid: its covariance is a Kronecker product, plus a trend of low rank, plus noise.

The likelihood needs K^-1 y and log det K.  Both come from products with K, which costs two small
matrix products, and so does the gradient by the length scales.
"""

import numpy as np

import tessera as ts
from tessera import Tensor, f64, op

SIDE = 12
GRID = np.linspace(0, 1, SIDE)
NOISE = 0.05


def kernel(scale: Tensor) -> ts.Operator:
    """The covariance of points on a line."""
    gap = ts.tensor((GRID[:, None] - GRID) ** 2)
    return op.dense(op.exp(-gap / (2 * scale**2)), flags=("positive",))


def covariance(scales: Tensor) -> ts.Operator:
    """Kronecker product of two lines, a linear trend, and noise."""
    x, y = (g.reshape(-1) for g in np.meshgrid(GRID, GRID, indexing="ij"))
    trend = op.low_rank(ts.tensor(np.stack([x, y], 1)))
    grid = op.kronecker(kernel(scales[0]), kernel(scales[1]))
    return (grid + trend + NOISE * op.eye(SIDE * SIDE, f64)).assume("positive")


def likelihood(scales: Tensor, y: Tensor) -> Tensor:
    """-log p(y) without its constant, by products with the covariance."""
    k = covariance(scales)
    weights, _ = op.cg(k, y)
    return (op.sum(y * weights) + op.stochastic_logdet(k, samples=32, steps=40).value) / 2


def dense_likelihood(scales: Tensor, y: Tensor) -> Tensor:
    """The same by the dense matrix."""
    k = covariance(scales).todense()
    return (op.sum(y * op.solve(k, y)) + op.slogdet(k)[1]) / 2


def main() -> None:
    rng = np.random.default_rng(0)
    truth = ts.tensor(np.array([0.15, 0.4]))
    factor = np.linalg.cholesky(np.asarray(covariance(truth).todense()))
    y = ts.tensor(factor @ rng.normal(size=SIDE * SIDE))
    start = ts.tensor(np.array([0.25, 0.25]))
    value, slope = ts.value_and_grad(likelihood)(start, y)
    exact, dense_slope = ts.value_and_grad(dense_likelihood)(start, y)
    print(f"-log p: {float(value):.2f} from products, {float(exact):.2f} from the dense matrix")
    print(f"its gradient: {np.asarray(slope).round(1)}, {np.asarray(dense_slope).round(1)}")
    assert abs(float(value) - float(exact)) < 0.05 * abs(float(exact)) + 2
    assert (
        np.abs(np.asarray(slope - dense_slope)).max() < 0.1 * np.abs(np.asarray(dense_slope)).max()
    )

    run = ts.jit(ts.value_and_grad(likelihood))
    logs = op.log(start)
    for _ in range(15):  # descent in the logarithms of the scales
        _, g = run(op.exp(logs), y)
        step = g * op.exp(logs)
        logs = logs - 0.08 * step / op.maximum(op.norm(step), 1.0)
    found = np.exp(np.asarray(logs))
    print(f"length scales {found.round(2)}, of the process {np.asarray(truth)}")
    assert found[0] < found[1]


if __name__ == "__main__":
    main()
