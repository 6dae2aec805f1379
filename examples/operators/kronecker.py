"""Kronecker structure: an operator of 250,000 rows is applied and solved through two of 500."""

import numpy as np

import tessera as ts
from tessera import op


def main() -> None:
    rng = np.random.default_rng(0)
    n = 500
    a, b = (np.eye(n) + 0.3 * rng.normal(size=(n, n)) / n**0.5 for _ in range(2))
    big = op.kronecker(op.dense(ts.tensor(a)), op.dense(ts.tensor(b)))
    x = rng.normal(size=n * n)
    y = big @ x
    by_hand = (a @ x.reshape(n, n) @ b.T).reshape(-1)
    print(
        f"{big}: {8 * big.shape[0] ** 2 / 1e9:.0f} GB as a matrix, {16 * n * n / 1e6:.0f} MB as factors"
    )
    assert np.abs(np.asarray(y) - by_hand).max() < 1e-10
    back = big.solve(y)
    error = float(op.max(op.abs(back - x)))
    print(f"solve: largest error {error:.1e}")
    assert error < 1e-9


if __name__ == "__main__":
    main()
