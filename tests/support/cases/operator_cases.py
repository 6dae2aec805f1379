"""Every constructor of operators with the dense matrix that NumPy or SciPy builds of the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.signal
import scipy.sparse

import tessera as ts
from tessera import op
from tessera.ops.random import normal, permutation, randint
from tessera.ops.random_bits import split

Array = np.ndarray[Any, Any]
Case = tuple[Any, Array]
DTYPES = {"f32": np.float32, "f64": np.float64, "c128": np.complex128}


EPS = {"f32": 2e-4, "f64": 1e-9, "c128": 1e-9}


def near(got: Any, want: Any, eps: float, what: str) -> None:
    x, y = np.asarray(got), np.asarray(want)
    assert x.shape == y.shape, f"{what}: {x.shape} for {y.shape}"
    size = 1 + np.max(np.abs(y), initial=0.0)
    off = np.max(np.abs(x - y), initial=0.0)
    assert off <= eps * size, f"{what}: off by {off:.3g} of {size:.3g}"


def close(got: Any, want: Any, tol: float = 1e-8) -> None:
    """Within a tolerance of the largest number, or of one if that is smaller."""
    want = np.asarray(want)
    off = np.abs(np.asarray(got) - want).max(initial=0)
    assert off <= tol * max(1.0, np.abs(want).max(initial=0))


def condition(m: Array) -> float:
    return float(np.linalg.cond(m)) if m.size else 1.0


def is_square(m: Array) -> bool:
    return m.shape[0] == m.shape[1]


def is_regular(m: Array) -> bool:
    return is_square(m) and condition(m) < 100


def wide(x: Array) -> Array:
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def symmetric_part(m: Array) -> Array:
    """The self-adjoint part."""
    return (m + m.conj().T) / 2


def skew_part(m: Array) -> Array:
    """The skew-adjoint part."""
    return (m - m.conj().T) / 2


class Draw:
    """Numbers of one dtype."""

    def __init__(self, dtype: Any, seed: int = 0):
        self.rng, self.dtype = np.random.default_rng(seed), np.dtype(dtype)

    @property
    def ts(self) -> Any:
        """The dtype as Tessera names it."""
        return {"float32": ts.f32, "float64": ts.f64, "complex128": ts.c128}[self.dtype.name]

    def __call__(self, *shape: int) -> Array:
        x = self.rng.normal(size=shape)
        if self.dtype.kind == "c":
            x = x + 1j * self.rng.normal(size=shape)
        return np.asarray(x).astype(self.dtype)

    def square(self, n: int) -> Array:
        """A matrix whose eigenvalues lie well right of zero."""
        return (self(n, n) / 2 + (3 + n / 2) * np.eye(n)).astype(self.dtype)


def _columns(f: Callable[[Array], Array], n: int) -> Array:
    return np.stack([np.asarray(f(e)).ravel() for e in np.eye(n)], 1)


def _laplacian(n: int, boundary: str) -> Array:
    m = np.diag(-2.0 * np.ones(n)) + np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    if boundary == "periodic":
        m[0, -1] += 1
        m[-1, 0] += 1
    if boundary == "neumann":
        m[0, 0] = m[-1, -1] = -1
    return m


def _gradient(n: int, boundary: str) -> Array:
    d = np.diff(np.eye(n + 2), axis=0)[:, 1:-1]
    if boundary == "neumann":
        return d[1:-1]
    return np.roll(np.eye(n), 1, 1) - np.eye(n) if boundary == "periodic" else d


def _eye(d: Draw) -> Case:
    return op.eye(4, d.ts), np.eye(4)


def _zero(d: Draw) -> Case:
    return op.zero(3, 5, d.ts), np.zeros((3, 5))


def _zero_square(d: Draw) -> Case:
    return op.zero(4, dtype=d.ts), np.zeros((4, 4))


def _dense(d: Draw) -> Case:
    a = d.square(4)
    return op.dense(a), a


def _tall(d: Draw) -> Case:
    a = d(5, 3)
    return op.dense(a), a


def _diag(d: Draw) -> Case:
    v = d(4) + 3
    return op.diag(v), np.diag(v)


def _tridiagonal(d: Draw) -> Case:
    low, main, up = d(4), d(5) + 5, d(4)
    return op.tridiagonal(low, main, up), np.diag(low, -1) + np.diag(main) + np.diag(up, 1)


def _lower(d: Draw) -> Case:
    a = d.square(4)
    return op.triangular(a), np.tril(a)


def _upper(d: Draw) -> Case:
    a = d.square(4)
    m = np.triu(a, 1) + np.eye(4)
    return op.triangular(a, lower=False, unit_diagonal=True), m


def _permutation(d: Draw) -> Case:
    p = [2, 0, 3, 1, 4]
    return op.permutation(p, d.ts), np.eye(5)[p]


def _select(d: Draw) -> Case:
    return op.select([3, 0, 3], 5, d.ts), np.eye(5)[[3, 0, 3]]


def _projector(d: Draw) -> Case:
    u = d(5, 2)
    q, _ = np.linalg.qr(u)
    return op.projector(u), q @ q.conj().T


def _complex(d: Draw) -> Any:
    return ts.c64 if d.dtype == np.float32 else ts.c128


def _fft(d: Draw) -> Case:
    return op.fft(5, dtype=_complex(d)), scipy.fft.fft(np.eye(5), axis=0)


def _fft_unitary(d: Draw) -> Case:
    return op.ifft(6, norm="ortho", dtype=_complex(d)), scipy.fft.ifft(
        np.eye(6), axis=0, norm="ortho"
    )


def _fft_grid(d: Draw) -> Case:
    m = _columns(lambda e: scipy.fft.fftn(e.reshape(2, 3)), 6)
    return op.fft((2, 3), dtype=_complex(d)), m


def _fft_box(d: Draw) -> Case:
    m = _columns(lambda e: scipy.fft.fftn(e.reshape(2, 1, 3)), 6)
    return op.fft((2, 1, 3), dtype=_complex(d)), m


def _dct(d: Draw) -> Case:
    return op.dct(5, dtype=d.ts), scipy.fft.dct(np.eye(5), axis=0)


def _dct_orthogonal(d: Draw) -> Case:
    return op.dct(4, 1, "ortho", d.ts), scipy.fft.dct(np.eye(4), 1, axis=0, norm="ortho")


def _dct_other(kind: int) -> Callable[[Draw], Case]:
    return lambda d: (op.dct(4, kind, dtype=d.ts), scipy.fft.dct(np.eye(4), kind, axis=0))


def _idct(d: Draw) -> Case:
    return op.idct(5, dtype=d.ts), scipy.fft.idct(np.eye(5), axis=0)


def _conv_full(d: Draw) -> Case:
    w = d(3)
    return op.conv1d(w, 5, mode="full"), _columns(lambda e: np.convolve(e, w), 5)


def _conv_same(d: Draw) -> Case:
    w = np.array([0.3, 4, 0.2, -0.4]).astype(d.dtype) + d(4) / 9
    return op.conv1d(w, 6), _columns(lambda e: scipy.signal.convolve(e, w, "same"), 6)


def _conv_ring(d: Draw) -> Case:
    w = np.array([0.5, 4, 0.2]).astype(d.dtype) + d(3) / 9
    m = scipy.linalg.circulant(np.roll(np.concatenate([w, np.zeros(3)]), -1))
    return op.conv1d(w, 6, boundary="periodic"), m


def _conv_image(d: Draw) -> Case:
    w = d(2, 3)
    f = lambda e: scipy.signal.convolve2d(e.reshape(3, 4), w, "valid")  # noqa: E731
    return op.conv2d(w, (3, 4), mode="valid"), _columns(f, 12)


def _conv_large(d: Draw) -> Case:
    w = d(12, 11)
    f = lambda e: scipy.signal.convolve(e.reshape(4, 3), w, "full")[5:9, 5:8]  # noqa: E731
    return op.conv2d(w, (4, 3)), _columns(f, 12)


def _conv_torus(d: Draw) -> Case:
    w = d(3, 3) / 9
    w[1, 1] += 4
    f = lambda e: scipy.signal.convolve2d(e.reshape(3, 4), w, "same", "wrap")  # noqa: E731
    return op.conv2d(w, (3, 4), boundary="periodic"), _columns(f, 12)


def _toeplitz(d: Draw) -> Case:
    c, r = d(5), d(3)
    return op.toeplitz(c, r), scipy.linalg.toeplitz(c, r)


def _toeplitz_square(d: Draw) -> Case:
    c = d(4) / 2
    c[0] = 5
    return op.toeplitz(c), scipy.linalg.toeplitz(c)


def _toeplitz_long(d: Draw) -> Case:
    c, r = d(70), d(66)
    return op.toeplitz(c, r), scipy.linalg.toeplitz(c, r)


def _circulant(d: Draw) -> Case:
    c = d(5) / 2
    c[0] += 5
    return op.circulant(c), scipy.linalg.circulant(c)


def _kronecker(d: Draw) -> Case:
    a, b = d.square(2), d.square(3)
    return op.kronecker(op.dense(a), op.dense(b)), np.kron(a, b)


def _kronecker_tall(d: Draw) -> Case:
    a, v, b = d(2, 3), d(2), d(3, 1)
    return op.kronecker(a, op.diag(v), b), np.kron(np.kron(a, np.diag(v)), b)


def _kronsum(d: Draw) -> Case:
    a, b = d.square(2), d.square(3)
    return op.kronsum(a, b), np.kron(a, np.eye(3)) + np.kron(np.eye(2), b)


def _kronsum_symmetric(d: Draw) -> Case:
    a, b = (x + x.conj().T for x in (d.square(3), d.square(2)))
    parts = [op.dense(x, flags=("self_adjoint",)) for x in (a, b)]
    return op.kronsum(*parts), np.kron(a, np.eye(2)) + np.kron(np.eye(3), b)


def _direct_sum(d: Draw) -> Case:
    a, v = d.square(3), d(2) + 4
    return op.direct_sum(a, op.diag(v), op.eye(1, d.ts)), scipy.linalg.block_diag(a, np.diag(v), 1)


def _direct_sum_tall(d: Draw) -> Case:
    a, b = d(2, 1), d(2, 3)
    return op.direct_sum(a, b), scipy.linalg.block_diag(a, b)


def _block(d: Draw) -> Case:
    a, b = d.square(2), d.square(3)
    c = d(2, 3)
    m = np.block([[a, c], [np.zeros((3, 2)), b]])
    return op.block([[a, c], [None, op.dense(b)]]), m


def _low_rank(d: Draw) -> Case:
    u, s, v = d(5, 2), d(2), d(4, 2)
    return op.low_rank(u, v, s), (u * s) @ v.conj().T


def _low_rank_positive(d: Draw) -> Case:
    u = d(5, 2)
    return op.low_rank(u), u @ u.conj().T


def _sparse(d: Draw) -> Case:
    m = d.square(5) * (d.rng.random((5, 5)) < 0.3) + 3 * np.eye(5)
    m = m.astype(d.dtype)
    return op.sparse(scipy.sparse.csr_array(m)), m


def _tiles(d: Draw) -> Case:
    m = np.kron(d.rng.random((3, 2)) < 0.6, np.ones((2, 3))) * d(6, 6)
    m = m.astype(d.dtype)
    return op.sparse(scipy.sparse.bsr_array(m, blocksize=(2, 3))), m


def _stencil(d: Draw) -> Case:
    taps = {(-1, 0): 1.0, (0, 1): 2.0, (0, 0): 5.0}

    def f(e: Array) -> Array:
        x = np.pad(e.reshape(3, 2), 1, mode="edge")
        return x[:-2, 1:-1] + 2 * x[1:-1, 2:] + 5 * x[1:-1, 1:-1]

    return op.stencil(taps, (3, 2), "neumann", d.ts), _columns(f, 6)


def _laplace(boundary: str) -> Callable[[Draw], Case]:
    def run(d: Draw) -> Case:
        m = np.kron(_laplacian(3, boundary) / 0.25, np.eye(2)) + np.kron(
            np.eye(3), _laplacian(2, boundary)
        )
        return op.laplacian((3, 2), (0.5, 1.0), boundary, d.ts), m

    return run


def _differences(boundary: str) -> Callable[[Draw], Case]:
    def run(d: Draw) -> Case:
        rows = [
            np.kron(_gradient(3, boundary), np.eye(2)),
            np.kron(np.eye(3), _gradient(2, boundary)),
        ]
        return op.gradient((3, 2), 1.0, boundary, d.ts), np.concatenate(rows, 0)

    return run


def _divergence(boundary: str) -> Callable[[Draw], Case]:
    def run(d: Draw) -> Case:
        return op.divergence(4, 2.0, boundary, d.ts), -_gradient(4, boundary).T / 2

    return run


def _matvec(d: Draw) -> Case:
    a = d(3, 4)
    return op.from_matvec(lambda x, w: op.matmul(w, x), (3, 4), dtype=d.ts, params=a), a


def _matvec_adjoint(d: Draw) -> Case:
    a = d.square(4)
    b = np.ascontiguousarray(a.conj().T)
    f, g = (lambda x: op.matmul(a, x)), (lambda y: op.matmul(b, y))
    return op.from_matvec(f, (4, 4), adjoint=g, dtype=d.ts), a


def _jacobian(d: Draw) -> Case:
    a, x = d(3, 4), d(4) / 3
    f = lambda v: op.sin(op.matmul(a, v))  # noqa: E731
    return op.jacobian(f, x), np.cos(a @ x)[:, None] * a


def _hessian(d: Draw) -> Case:
    x, a = d(4) / 3, np.abs(d(3, 4)) / 2
    if d.dtype.kind == "c":  # a loss is real: the matrix of a quadratic form, given as a derivative
        m = d.square(4)
        return op.jacobian(lambda v: op.matmul(m, v), x), m
    f = lambda v: op.sum(op.exp(op.matmul(a, v))) + 2 * op.sum(v * v)  # noqa: E731
    return op.hessian(f, x), (a.T * np.exp(a @ x)) @ a + 4 * np.eye(4)


def _linear_map(d: Draw) -> Case:
    a, x = d(3, 4), d(4) / 3
    _, m = ts.linearize(lambda v: op.matmul(a, v) * 2, ts.tensor(x))
    return m, 2 * a


def _sketch_count(d: Draw) -> Case:
    a = op.sketch(ts.key(3), 3, 6, "count", d.ts)
    return a, np.asarray(a.data[0]) * (np.arange(3)[:, None] == a.static[0].array[None, :])


def _sketch_gaussian(d: Draw) -> Case:
    m = np.asarray(normal(ts.key(3), (3, 6), dtype=d.ts.real)) / 3**0.5
    return op.sketch(ts.key(3), 3, 6, "gaussian", d.ts), m


def _sketch_rademacher(d: Draw) -> Case:
    m = (2.0 * np.asarray(randint(ts.key(3), (3, 6), 0, 2)) - 1) / 3**0.5
    return op.sketch(ts.key(3), 3, 6, "rademacher", d.ts), m


def _sketch_srft(d: Draw) -> Case:
    signs, rows = split(ts.key(3), 2)
    turned = scipy.fft.dct(np.eye(6), axis=0, norm="ortho")
    turned = turned * (2.0 * np.asarray(randint(signs, (6,), 0, 2)) - 1)
    m = turned[np.asarray(permutation(rows, 6))[:3]] * 2**0.5
    return op.sketch(ts.key(3), 3, 6, "srft", d.ts), m


def _spectral(d: Draw) -> Case:
    a = d.square(4)
    a = (a + a.conj().T) / 2
    return op.spectral(op.dense(a, flags=("self_adjoint",))).reconstruct(), a


def _adjoint(d: Draw) -> Case:
    a = d.square(4)
    return op.dense(a).H, a.conj().T


def _transpose(d: Draw) -> Case:
    a = d.square(4)
    return op.triangular(a).T, np.tril(a).T


def _conj(d: Draw) -> Case:
    a = d.square(3)
    return op.dense(a).conj(), a.conj()


def _inverse(d: Draw) -> Case:
    a = d.square(4)
    return op.inverse(a), np.linalg.inv(a)


def _pseudoinverse(d: Draw) -> Case:
    a = d(5, 3)
    return op.pseudoinverse(op.dense(a)), np.linalg.pinv(a)


def _power(d: Draw) -> Case:
    a = d.square(3) / 3
    return op.dense(a) ** 3, np.linalg.matrix_power(a, 3)


def _exponential(d: Draw) -> Case:
    a = d.square(3) / 4
    return op.expm(op.dense(a)), scipy.linalg.expm(a)


def _scale(d: Draw) -> Case:
    a, s = d.square(3), d()
    return op.dense(a) * (s + 2), a * (s + 2)


def _woodbury(d: Draw) -> Case:
    v, u, w = d(6) + 5, d(6, 2), d(6, 2)
    return op.diag(v) + 0.5 * op.low_rank(u, w), np.diag(v) + 0.5 * u @ w.conj().T


def _difference(d: Draw) -> Case:
    a, b = d.square(3), d(3, 3) / 4
    return op.dense(a) - op.dense(b), a - b


def _product(d: Draw) -> Case:
    a, b = d.square(3), d.square(3)
    return op.dense(a) @ op.diag(np.diagonal(b)) @ op.dense(b), a @ np.diag(np.diagonal(b)) @ b


def _gram(d: Draw) -> Case:
    a = d(5, 3)
    x = op.dense(a)
    return x.H @ x, a.conj().T @ a


def _slice(d: Draw) -> Case:
    a = d(6, 6)
    return op.toeplitz(a[0], a[1])[1:5, ::2], scipy.linalg.toeplitz(a[0], a[1])[1:5, ::2]


CASES: dict[str, Callable[[Draw], Case]] = {
    "eye": _eye, "zero": _zero, "zero_square": _zero_square, "dense": _dense, "tall": _tall,
    "diag": _diag, "tridiagonal": _tridiagonal, "lower": _lower, "upper": _upper,
    "permutation": _permutation, "select": _select, "projector": _projector, "fft": _fft,
    "fft_unitary": _fft_unitary, "fft_grid": _fft_grid, "fft_box": _fft_box, "dct": _dct,
    "dct_orthogonal": _dct_orthogonal, "dct_3": _dct_other(3), "dct_4": _dct_other(4), "idct": _idct,
    "conv_torus": _conv_torus, "conv_full": _conv_full, "conv_same": _conv_same,
    "conv_ring": _conv_ring, "conv_image": _conv_image, "conv_large": _conv_large,
    "toeplitz": _toeplitz, "toeplitz_square": _toeplitz_square, "toeplitz_long": _toeplitz_long,
    "circulant": _circulant, "kronecker": _kronecker, "kronecker_tall": _kronecker_tall,
    "kronsum": _kronsum, "kronsum_symmetric": _kronsum_symmetric, "direct_sum": _direct_sum,
    "direct_sum_tall": _direct_sum_tall, "block": _block, "low_rank": _low_rank,
    "low_rank_positive": _low_rank_positive, "sparse": _sparse, "tiles": _tiles, "stencil": _stencil,
    "laplace_dirichlet": _laplace("dirichlet"), "laplace_neumann": _laplace("neumann"),
    "laplace_periodic": _laplace("periodic"), "gradient_dirichlet": _differences("dirichlet"),
    "gradient_neumann": _differences("neumann"), "gradient_periodic": _differences("periodic"),
    "divergence_dirichlet": _divergence("dirichlet"), "divergence_neumann": _divergence("neumann"),
    "divergence_periodic": _divergence("periodic"), "matvec": _matvec, "matvec_adjoint": _matvec_adjoint,
    "jacobian": _jacobian, "hessian": _hessian, "linear_map": _linear_map,
    "sketch_count": _sketch_count, "sketch_gaussian": _sketch_gaussian,
    "sketch_rademacher": _sketch_rademacher, "sketch_srft": _sketch_srft, "spectral": _spectral,
    "adjoint": _adjoint, "transpose": _transpose, "conj": _conj, "inverse": _inverse,
    "pseudoinverse": _pseudoinverse, "power": _power, "expm": _exponential, "scale": _scale,
    "woodbury": _woodbury, "difference": _difference, "product": _product, "gram": _gram,
    "slice": _slice,
}  # fmt: skip
