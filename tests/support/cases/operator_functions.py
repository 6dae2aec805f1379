"""Operator-valued functions of one tensor, over every constructor and combinator, beside their matrices.

The matrix is written for any module that speaks as NumPy does, so that JAX can differentiate it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import tessera as ts
from tessera import op

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)
N = 4
A = RNG.normal(size=(N, N)) / 4 + 2 * np.eye(N)
B = RNG.normal(size=(N, N)) / 4 + 2 * np.eye(N)
V = np.array([3.0, 0.5, -0.4, 0.7])
PLACES = np.array([1, 3, 0, 2])
Q = np.linalg.qr(RNG.normal(size=(N, N)))[0]


class Sample(NamedTuple):
    """An operator-valued function, the same as a matrix by a module like NumPy, and where."""

    make: Callable[[Any], Any]
    matrix: Callable[[Any, Any], Any]
    at: Array


def _dense(t: Any) -> Any:
    return op.dense(t)


def _circulant(n: Any, c: Any) -> Any:
    return n.stack([n.roll(c, k) for k in range(c.shape[0])], 1)


def _toeplitz(n: Any, c: Any, r: Any) -> Any:
    both = n.concatenate([r[:0:-1], c])
    i, j = np.indices((c.shape[0], r.shape[0]))
    return both[r.shape[0] - 1 + i - j]


def _series(n: Any, m: Any) -> Any:
    """exp of a small matrix."""
    out = term = n.eye(m.shape[0])
    for k in range(1, 30):
        term = term @ m / k
        out = out + term
    return out


def _sqrt(n: Any, m: Any, steps: int = 12) -> Any:
    """The principal square root by the iteration of Denman and Beavers."""
    y, z = m, n.eye(m.shape[0])
    for _ in range(steps):
        y, z = (y + n.linalg.inv(z)) / 2, (z + n.linalg.inv(y)) / 2
    return y


def _log(n: Any, m: Any) -> Any:
    """The principal logarithm: 2 atanh((m - 1) (m + 1)^-1), of a fourth root."""
    root = _sqrt(n, _sqrt(n, _sqrt(n, m)))
    one = n.eye(m.shape[0])
    x = (root - one) @ n.linalg.inv(root + one)
    out, power = 0 * x, x
    for k in range(20):
        out, power = out + power / (2 * k + 1), power @ x @ x
    return 16 * out


def _sign(n: Any, m: Any) -> Any:
    """By Newton's iteration."""
    for _ in range(30):
        m = (m + n.linalg.inv(m)) / 2
    return m


def _held(m: Any) -> Any:
    return (m + m.T) / 2


def _cos(n: Any, m: Any) -> Any:
    """cos of a small matrix by its series."""
    out = term = n.eye(m.shape[0])
    for k in range(1, 15):
        term = -term @ m @ m / ((2 * k - 1) * (2 * k))
        out = out + term
    return out


def _pinv(n: Any, m: Any) -> Any:
    return n.linalg.inv(m.T @ m) @ m.T


def _convolution(n: Any, w: Any, size: int, mode: str) -> Any:
    return n.stack([n.convolve(e, w, mode) for e in np.eye(size)], 1)


def _image(n: Any, w: Any, h: int, k: int) -> Any:
    """A 3 by 3 kernel on a periodic grid."""
    total: Any = 0
    for i in range(3):
        for j in range(3):
            move = np.kron(np.roll(np.eye(h), i - 1, 0), np.roll(np.eye(k), j - 1, 0))
            total = total + w[i, j] * move
    return total


SPARSE = (np.array([0, 2, 1, 1, 3]), np.array([0, 2, 3, 5]))
TILES = (np.array([0, 1]), np.array([0, 1, 2]))
L3 = -2 * np.eye(3) + np.eye(3, k=1) + np.eye(3, k=-1)


def _sparse(n: Any, t: Any) -> Any:
    rows = np.repeat(np.arange(3), np.diff(SPARSE[1]))
    places = np.zeros((5, 3, 4))
    places[np.arange(5), rows, SPARSE[0]] = 1
    return n.einsum("k,kij->ij", t, places)


def _blocks(n: Any, t: Any) -> Any:
    zero = np.zeros((2, 2))
    return n.concatenate(
        [n.concatenate([t[0], zero], 1), n.concatenate([zero, t[1]], 1)], 0
    )  # fmt: skip


def _direct(n: Any, a: Any, b: Any) -> Any:
    right, left = np.zeros((a.shape[0], b.shape[1])), np.zeros((b.shape[0], a.shape[1]))
    return n.concatenate([n.concatenate([a, right], 1), n.concatenate([left, b], 1)], 0)


SAMPLES: dict[str, Sample] = {
    # Constructors
    "eye": Sample(lambda t: op.eye(N, ts.f64), lambda n, t: 0 * t + np.eye(N), A),
    "zero": Sample(lambda t: op.zero(N, 3, ts.f64), lambda n, t: 0 * t[:, :3], A),
    "dense": Sample(_dense, lambda n, t: t, A),
    "dense of a product": Sample(lambda t: op.dense(t @ t), lambda n, t: t @ t, A),
    "claimed": Sample(lambda t: op.dense(t @ t.T, flags=("positive",)), lambda n, t: t @ t.T, A),
    "diag": Sample(op.diag, lambda n, t: n.diag(t), V),
    "tridiagonal": Sample(
        lambda t: op.tridiagonal(t[1:], t + 2, t[:3]),
        lambda n, t: n.diag(t[1:], -1) + n.diag(t + 2) + n.diag(t[:3], 1), V,
    ),
    "triangular": Sample(op.triangular, lambda n, t: n.tril(t), A),
    "unit triangle": Sample(
        lambda t: op.triangular(t, lower=False, unit_diagonal=True),
        lambda n, t: n.triu(t, 1) + np.eye(N), A,
    ),
    "permutation": Sample(
        lambda t: op.permutation([2, 0, 1, 3], ts.f64) @ op.diag(t),
        lambda n, t: np.eye(N)[[2, 0, 1, 3]] @ n.diag(t), V,
    ),
    "select": Sample(
        lambda t: op.select([1, 1, 3], N, ts.f64) @ op.dense(t), lambda n, t: t[np.array([1, 1, 3])], A
    ),
    "projector": Sample(
        lambda t: op.projector(t[:, :2]),
        lambda n, t: t[:, :2] @ n.linalg.inv(t[:, :2].T @ t[:, :2]) @ t[:, :2].T, A,
    ),
    "low_rank": Sample(
        lambda t: op.low_rank(t[:, :2], t[:, 2:], t[0, :2]),
        lambda n, t: (t[:, :2] * t[0, :2]) @ t[:, 2:].T, A,
    ),
    "low_rank of one factor": Sample(
        lambda t: op.low_rank(t[:, :2]), lambda n, t: t[:, :2] @ t[:, :2].T, A
    ),
    "fft": Sample(
        lambda t: op.dct(N, dtype=ts.f64) @ op.diag(t) @ op.idct(N, dtype=ts.f64),
        lambda n, t: DCT @ n.diag(t) @ np.linalg.inv(DCT), V,
    ),
    "conv1d": Sample(
        lambda t: op.conv1d(t[:3], 5, mode="full"), lambda n, t: _convolution(n, t[:3], 5, "full"), V
    ),
    "conv1d same": Sample(
        lambda t: op.conv1d(t[:3], 5), lambda n, t: _convolution(n, t[:3], 5, "same"), V
    ),
    "conv2d periodic": Sample(
        lambda t: op.conv2d(t[:3, :3], (3, 4), boundary="periodic"),
        lambda n, t: _image(n, t[:3, :3], 3, 4), A,
    ),
    "toeplitz": Sample(
        lambda t: op.toeplitz(t, t[:3] * 2), lambda n, t: _toeplitz(n, t, t[:3] * 2), V
    ),
    "mirrored toeplitz": Sample(lambda t: op.toeplitz(t), lambda n, t: _toeplitz(n, t, t), V),
    "circulant": Sample(op.circulant, _circulant, V),
    "sparse": Sample(
        lambda t: op.sparse((t[0, 0] * t.reshape(-1)[:5], *SPARSE), shape=(3, 4)),
        lambda n, t: _sparse(n, t[0, 0] * t.reshape(-1)[:5]), A,
    ),
    "tiles": Sample(
        lambda t: op.sparse((op.reshape(t[:2], (2, 2, 2)), *TILES), shape=(4, 4)),
        lambda n, t: _blocks(n, t[:2].reshape(2, 2, 2)), A,
    ),
    "stencil": Sample(
        lambda t: t[0] * op.stencil({-1: 1.0, 0: -2.0, 1: 1.0}, 3, dtype=ts.f64),
        lambda n, t: t[0] * L3, V,
    ),
    "laplacian": Sample(
        lambda t: op.laplacian(3, dtype=ts.f64) @ op.diag(t[:3]), lambda n, t: L3 @ n.diag(t[:3]), V
    ),
    "gradient": Sample(
        lambda t: op.divergence(3, dtype=ts.f64) @ op.diag(t) @ op.gradient(3, dtype=ts.f64),
        lambda n, t: -DIFFERENCE.T @ n.diag(t) @ DIFFERENCE, V,
    ),
    "from_matvec": Sample(
        lambda t: op.from_matvec(lambda x, w: (w @ w) @ x, (N, N), dtype=ts.f64, params=t),
        lambda n, t: t @ t, A,
    ),
    "from_matvec of a closure": Sample(
        lambda t: op.from_matvec(lambda x: t @ (t @ x), (N, N), dtype=ts.f64), lambda n, t: t @ t, A
    ),
    "from_matvec with places": Sample(  # whole numbers among the tensors, before and after those that move
        lambda t: op.from_matvec(
            lambda x, i, w, j: op.take(w @ op.take(x, i, 0), j, 0), (N, N), dtype=ts.f64,
            params=(PLACES, t, PLACES[::-1]),
        ),
        lambda n, t: t[PLACES[::-1]] @ np.eye(N)[PLACES], A,
    ),
    "from_matvec with an adjoint": Sample(
        lambda t: op.from_matvec(
            lambda x, w: w @ x + t @ x, (N, N), lambda y, w: w.T @ y + t.T @ y, ts.f64, params=2 * t
        ),
        lambda n, t: 3 * t, A,
    ),
    "jacobian": Sample(
        lambda t: op.jacobian(op.sin, t[0]), lambda n, t: n.diag(n.cos(t[0])), A
    ),
    "jacobian of a closure": Sample(
        lambda t: op.jacobian(lambda x: op.sin(t @ x), V), lambda n, t: n.cos(t @ V)[:, None] * t, A
    ),
    "hessian": Sample(
        lambda t: op.hessian(lambda x: op.sum(op.exp(t @ x / 8)), V),
        lambda n, t: (t.T * n.exp(t @ V / 8)) @ t / 64, A,
    ),
    "sketch": Sample(
        lambda t: SKETCH @ op.dense(t), lambda n, t: COUNT @ t, A
    ),
    "reconstructed": Sample(
        lambda t: op.spectral(op.sym(op.dense(t))).filter(op.cos).reconstruct(),
        lambda n, t: _cos(n, _held(t)), A / 3,
    ),
    # Combinators
    "plus": Sample(
        lambda t: op.dense(t) + op.diag(t[0]) + op.eye(N, ts.f64),
        lambda n, t: t + n.diag(t[0]) + np.eye(N), A,
    ),
    "minus": Sample(lambda t: op.eye(N, ts.f64) - op.dense(t), lambda n, t: np.eye(N) - t, A),
    "scale": Sample(lambda t: 3 * op.dense(t), lambda n, t: 3 * t, A),
    "scale by a tensor": Sample(lambda t: t[0, 1] * op.dense(t), lambda n, t: t[0, 1] * t, A),
    "scale of a constant": Sample(
        lambda t: t[0] * op.eye(N, ts.f64), lambda n, t: t[0] * np.eye(N), V
    ),
    "divide": Sample(lambda t: op.dense(B) / t[0], lambda n, t: B / t[0], V),
    "compose": Sample(lambda t: op.dense(t) @ op.dense(t), lambda n, t: t @ t, A),
    "compose of three": Sample(
        lambda t: op.compose(op.dense(t), op.diag(t[0]), op.dense(t).T),
        lambda n, t: t @ n.diag(t[0]) @ t.T, A,
    ),
    "gram": Sample(lambda t: op.dense(t).H @ op.dense(t), lambda n, t: t.T @ t, A),
    "adjoint": Sample(lambda t: op.dense(t).H, lambda n, t: t.T, A),
    "transpose": Sample(lambda t: (op.diag(t[0]) @ op.dense(t)).T, lambda n, t: (n.diag(t[0]) @ t).T, A),
    "power": Sample(lambda t: op.dense(t) ** 3, lambda n, t: t @ t @ t, A),
    "negative power": Sample(
        lambda t: op.dense(t) ** -2, lambda n, t: n.linalg.inv(t @ t), A
    ),
    "kronecker": Sample(
        lambda t: op.kronecker(t[:2, :2], op.diag(t[0, :3])),
        lambda n, t: n.kron(t[:2, :2], n.diag(t[0, :3])), A,
    ),
    "tensor": Sample(
        lambda t: op.tensor(t[:2, :2], t[:2, :2]), lambda n, t: n.kron(t[:2, :2], t[:2, :2]), A
    ),
    "kronsum": Sample(
        lambda t: op.kronsum(t[:2, :2], t[1:, 1:]),
        lambda n, t: n.kron(t[:2, :2], np.eye(3)) + n.kron(np.eye(2), t[1:, 1:]), A,
    ),
    "direct_sum": Sample(
        lambda t: op.direct_sum(t[:2], op.eye(1, ts.f64), t[:, :1] @ t[:1]),
        lambda n, t: _direct(n, _direct(n, t[:2], np.eye(1)), t[:, :1] @ t[:1]), A,
    ),
    "block": Sample(
        lambda t: op.block([[t, op.diag(t[0])], [None, op.dense(t) @ op.dense(t)]]),
        lambda n, t: n.concatenate(
            [n.concatenate([t, n.diag(t[0])], 1), n.concatenate([0 * t, t @ t], 1)], 0
        ), A,
    ),
    "inverse": Sample(lambda t: op.inverse(op.dense(t)), lambda n, t: n.linalg.inv(t), A),
    "inverse of a circulant": Sample(
        lambda t: op.inverse(op.circulant(t)), lambda n, t: n.linalg.inv(_circulant(n, t)), V
    ),
    "pseudoinverse": Sample(
        lambda t: op.pseudoinverse(op.dense(t[:, :2])), lambda n, t: _pinv(n, t[:, :2]), A
    ),
    "resolvent": Sample(
        lambda t: op.resolvent(op.dense(t), -1.5), lambda n, t: n.linalg.inv(-1.5 * np.eye(N) - t), A
    ),
    "resolvent at a tensor": Sample(
        lambda t: op.resolvent(op.dense(B), -t[0]), lambda n, t: n.linalg.inv(-t[0] * np.eye(N) - B), V
    ),
    "commutator": Sample(
        lambda t: op.commutator(op.dense(t), op.dense(B)), lambda n, t: t @ B - B @ t, A
    ),
    "anticommutator": Sample(
        lambda t: op.anticommutator(op.dense(t), op.diag(t[0])),
        lambda n, t: t @ n.diag(t[0]) + n.diag(t[0]) @ t, A,
    ),
    "sym": Sample(lambda t: op.sym(op.dense(t)), lambda n, t: _held(t), A),
    "skew": Sample(lambda t: op.skew(op.dense(t)), lambda n, t: (t - t.T) / 2, A),
    "expm": Sample(lambda t: op.expm(op.dense(t)), _series, A / 2),
    "expm of a sum": Sample(
        lambda t: op.expm(op.kronsum(t[:2, :2], t[2:, 2:])),
        lambda n, t: n.kron(_series(n, t[:2, :2]), _series(n, t[2:, 2:])), A / 2,
    ),
    "expm of a multiple": Sample(
        lambda t: op.expm(t[0] * op.laplacian(3, dtype=ts.f64)), lambda n, t: _series(n, t[0] * L3), V / 4
    ),
    "logm": Sample(lambda t: op.logm(op.dense(t)), _log, A),
    "sqrtm": Sample(lambda t: op.sqrtm(op.dense(t)), _sqrt, A),
    "sqrtm of a repeated value": Sample(
        lambda t: op.sqrtm(op.sym(op.dense(t))), lambda n, t: _sqrt(n, _held(t)),
        (Q * [2.0, 2, 3, 3]) @ Q.T,
    ),
    "sign": Sample(
        lambda t: op.sign(op.dense(t)), _sign, B - 2 * np.eye(N) + np.diag([2.0, -2.0, 2.0, -3.0])
    ),
    "function": Sample(
        lambda t: op.function(op.sym(op.dense(t)), op.cos), lambda n, t: _cos(n, _held(t)), A / 3
    ),
    "slice": Sample(
        lambda t: (op.dense(t) @ op.dense(t))[1:3, ::2], lambda n, t: (t @ t)[1:3, ::2], A
    ),
    "slice of a toeplitz": Sample(
        lambda t: op.toeplitz(t)[1:3, :3], lambda n, t: _toeplitz(n, t, t)[1:3, :3], V
    ),
    "adjoint of a triangle": Sample(lambda t: op.triangular(t).H, lambda n, t: n.tril(t).T, A),
    "simplified": Sample(
        lambda t: ts.simplify(op.dense(t) @ op.diag(t[0]) + op.dense(t) @ op.dense(t)),
        lambda n, t: t @ (n.diag(t[0]) + t), A,
    ),
    "jacobi": Sample(
        lambda t: op.jacobi(op.dense(t)), lambda n, t: n.diag(1 / n.diag(t)), A
    ),
    "block_jacobi": Sample(
        lambda t: op.block_jacobi(op.dense(t), 2),
        lambda n, t: _direct(n, n.linalg.inv(t[:2, :2]), n.linalg.inv(t[2:, 2:])), A,
    ),
    "assumed": Sample(
        lambda t: (op.dense(t) + op.dense(t.T)).assume("self_adjoint"), lambda n, t: t + t.T, A
    ),
}  # fmt: skip

DIFFERENCE = np.diff(np.eye(5), axis=0)[:, 1:-1]
DCT = np.asarray(op.dct(N, dtype=ts.f64).todense())
SKETCH = op.sketch(ts.key(3), 3, N, "count", ts.f64)
COUNT = np.asarray(SKETCH.todense())
