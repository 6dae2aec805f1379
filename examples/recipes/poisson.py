"""Solve a Poisson equation with a varying coefficient by conjugate gradients, three ways.

    python examples/recipes/poisson.py

-div(a grad u) = f on a square, u = 0 on its edge.  The operator is a product of others, divergence,
diagonal, gradient, and never a matrix; the same as a sparse matrix is the check.  A solver for a
constant coefficient, which is exact by sines, is the preconditioner.  At the end the coefficient
itself is found from a solution, by the gradient through the solver.
"""

import numpy as np
import scipy.sparse

import tessera as ts
from tessera import f64, op

SIDE = 48
SHAPE, SPACING = (SIDE, SIDE), 1 / (SIDE + 1)


def diffusion(coefficient):
    """-div(a grad .) for a coefficient on every face between cells (the rows of the gradient)."""
    grad = op.gradient(SHAPE, SPACING, dtype=f64)
    return (grad.H @ op.diag(coefficient) @ grad).assume("positive", "self_adjoint")


def as_sparse(coefficient):
    """The same as a matrix in compressed rows, by SciPy."""
    ends = scipy.sparse.diags([1.0, -1.0], [0, -1], (SIDE + 1, SIDE)) / SPACING
    eye = scipy.sparse.eye(SIDE)
    grad = scipy.sparse.vstack([scipy.sparse.kron(ends, eye), scipy.sparse.kron(eye, ends)])
    return (grad.T @ scipy.sparse.diags(coefficient) @ grad).tocsr()


def faces(a):
    """A coefficient given as a function of place, on the faces of both directions."""
    middle, edge = (np.arange(SIDE) + 1) * SPACING, (np.arange(SIDE + 1) + 0.5) * SPACING
    down = a(*np.meshgrid(edge, middle, indexing="ij"))
    across = a(*np.meshgrid(middle, edge, indexing="ij"))
    return np.concatenate([down.reshape(-1), across.reshape(-1)])


def wall(x, y):
    """A square inside of which heat moves twenty times better."""
    return np.where((abs(x - 0.42) < 0.2) & (abs(y - 0.55) < 0.2), 20.0, 1.0)


def laplace_solver():
    """The inverse of -laplacian, by sine transforms."""
    return op.inverse(-op.laplacian(SHAPE, SPACING, dtype=f64))


def main():
    a, f = ts.asarray(faces(wall)), ts.ones((SIDE * SIDE,), dtype=f64)
    operator = diffusion(a)
    u, plain = op.cg(operator, f, tol=1e-9)
    v, better = op.cg(operator, f, tol=1e-9, precondition=laplace_solver())
    w, sparse = op.cg(op.sparse(as_sparse(a.numpy())).assume("positive"), f, tol=1e-9)
    print(f"{SIDE * SIDE:,} unknowns; steps: {plain.iterations.item()} as a product of operators, "
          f"{sparse.iterations.item()} as a sparse matrix, {better.iterations.item()} preconditioned")  # fmt: skip  # noqa: E501
    apart = max(op.max(op.abs(u - other)).item() for other in (v, w))
    print(f"largest u {op.max(u).item():.5f}, solutions {apart:.1e} apart")

    def misfit(inside):
        guess = ts.asarray(faces(wall) > 1) * (inside - 1.0) + 1.0
        return op.sum(
            (op.cg(diffusion(guess), f, tol=1e-9, precondition=laplace_solver())[0] - u) ** 2
        )

    inside = ts.tensor(5.0, f64)
    for i in range(6):  # Newton's method on the logarithm, with a gradient through the solver
        value, slope = ts.value_and_grad(misfit)(inside)
        print(f"round {i}  coefficient inside {inside.item():8.4f}  misfit {value.item():.2e}")
        inside = inside * op.exp(-2 * value / (slope * inside))


if __name__ == "__main__":
    main()
