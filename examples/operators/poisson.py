"""A 2-D Poisson problem by conjugate gradients, and the heat equation by a function of its operator.

The Laplacian of a grid is a stencil of five points: nothing is stored but its weights.
"""

import argparse

import numpy as np

import tessera as ts
from tessera import f64, op


def laplacian(side: int) -> ts.Operator:
    """Minus the Laplacian on the inner points of a square with zero boundary."""
    return (-op.laplacian((side, side), 1 / (side + 1), dtype=f64)).assume("positive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=63, help="inner points along a side")
    parser.add_argument("--progress", action="store_true", help="print residuals")
    options = parser.parse_args()
    side = options.side
    a = laplacian(side)
    t = np.arange(1, side + 1) / (side + 1)
    wave = np.kron(np.sin(np.pi * t), np.sin(np.pi * t))
    # u = x (1 - x) exp(x) sin(pi y) is zero at the boundary, and this is minus its Laplacian.
    wanted = np.kron(t * (1 - t) * np.exp(t), np.sin(np.pi * t))
    force = np.kron((t**2 + 3 * t) * np.exp(t), np.sin(np.pi * t)) + np.pi**2 * wanted

    solve = ts.jit(lambda b: op.cg(a, b, tol=1e-10, progress=options.progress))
    u, info = solve(ts.tensor(force))
    error = float(op.max(op.abs(u - wanted)))
    print(
        f"{side}x{side}: {int(info.iterations)} steps, error {error:.2e} beside the exact solution"
    )
    assert error < 1 / (side + 1) ** 2  # the error of five points is of second order

    # Heat: u(t) = exp(-t A) u(0), and the first wave decays by exp(-2 pi^2 t).
    time = 0.01
    later = op.apply_function(a, lambda w: op.exp(-time * w), wave, degree=160)
    decay = float(op.sum(later * wave) / np.sum(wave**2))
    print(
        f"heat: the wave decays by {decay:.5f} in {time}, {np.exp(-2 * np.pi**2 * time):.5f} without a grid"
    )
    assert abs(decay - np.exp(-2 * np.pi**2 * time)) < 1 / (side + 1) ** 2


if __name__ == "__main__":
    main()
