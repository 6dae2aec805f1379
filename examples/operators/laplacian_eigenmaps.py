"""Laplacian eigenmaps: the second eigenvector of a graph's Laplacian parts two interleaved moons."""

import numpy as np

import tessera as ts
from tessera import op


def moons(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points on two half circles that reach into each other, and which of them each is on."""
    t = rng.uniform(0, np.pi, count)
    which = np.arange(count) % 2
    x = np.where(which, 1 - np.cos(t), np.cos(t))
    y = np.where(which, 0.4 - np.sin(t), np.sin(t))
    return np.stack([x, y], 1) + 0.04 * rng.normal(size=(count, 2)), which


def main() -> None:
    points, which = moons(400, np.random.default_rng(0))
    square = ((points[:, None] - points[None]) ** 2).sum(-1)
    weight = np.exp(-square / (2 * 0.15**2))
    degree = weight.sum(1) ** -0.5
    similar = op.diag(ts.tensor(degree)) @ op.dense(ts.tensor(weight)) @ op.diag(ts.tensor(degree))
    # The largest eigenvalues of D^-1/2 W D^-1/2 are the smallest of the Laplacian I - D^-1/2 W D^-1/2.
    found = op.spectral(similar.assume("self_adjoint"), 3, which="largest")
    second = np.asarray(found.U)[:, 1] * degree
    right = np.mean((second > 0) == (which == 1))
    right = max(right, 1 - right)
    print(
        f"eigenvalues {np.asarray(1 - found.S).round(5)}; {right:.1%} of the points on their moon"
    )
    assert abs(float(found.S[0]) - 1) < 1e-8
    assert right > 0.99


if __name__ == "__main__":
    main()
