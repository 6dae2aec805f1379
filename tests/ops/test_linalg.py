"""Linear algebra: factors multiply back, solutions solve, derivatives are slopes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tessera as ts
from tessera import op
from tessera.core.errors import (
    AxisError,
    NumericalError,
    OperandError,
    RuleError,
    ShapeError,
    TesseraError,
)
from tests.support.runners.each import over

RUNS_ON = "numpy"

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
BATCHES = ((), (2,), (2, 1), (0,))
SIZES = (0, 1, 2, 5)


def draw(shape: tuple[int, ...], dtype: Any = np.float64, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def near_identity(shape: tuple[int, ...], dtype: Any = np.float64, seed: int = 0) -> Any:
    return (draw(shape, dtype, seed) / 4 + 2 * np.eye(shape[-1])).astype(dtype)


def definite(shape: tuple[int, ...], dtype: Any = np.float64, seed: int = 0) -> Any:
    x = near_identity(shape, dtype, seed)
    return x @ x.conj().mT


def close(got: Any, want: Any, times: float = 1.0) -> None:
    g, w = np.asarray(got), np.asarray(want)
    assert g.shape == w.shape
    eps = np.finfo(g.dtype).eps if g.dtype.kind in "fc" else 0.0
    np.testing.assert_allclose(g, w, rtol=times * 200 * eps, atol=times * 200 * eps)


def word(x: Any) -> str:
    return x.__name__ if isinstance(x, type) else str(x)


over_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=word)
over_squares = over(shape=[(*b, n, n) for b in BATCHES for n in SIZES])
over_matrices = over(
    shape=[(*b, *s) for b in BATCHES for s in ((3, 3), (5, 2), (2, 5), (0, 3), (3, 0))]
)


# Factors ----------------------------------------------------------------------------------------


@over_dtypes
@over_squares
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_factor_times_adjoint(dtype: Any, shape: Any, upper: bool) -> None:
    a = definite(shape, dtype)
    f = op.cholesky(a, upper=upper)
    x = np.asarray(f)
    close(x.conj().mT @ x if upper else x @ x.conj().mT, a)
    close(f, np.linalg.cholesky(a, upper=upper))
    assert x.dtype == dtype


@over_dtypes
@over_matrices
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_q_times_r(dtype: Any, shape: Any, mode: str) -> None:
    a = draw(shape, dtype)
    q, r = map(np.asarray, op.qr(a, mode=mode))
    close(q @ r, a)
    close(q.conj().mT @ q, np.zeros_like(q.conj().mT @ q) + np.eye(q.shape[-1], dtype=dtype))
    close(r, np.triu(r))
    assert (q.dtype, r.dtype) == (dtype, dtype)
    assert [x.shape for x in (q, r)] == [x.shape for x in np.linalg.qr(a, mode)]


@over_dtypes
@over_matrices
def test_l_times_u_is_x_in_the_order_of_perm(dtype: Any, shape: Any) -> None:
    a = draw(shape, dtype)
    perm, lower, upper = map(np.asarray, op.lu(a))
    assert perm.dtype == np.int64
    assert perm.shape == shape[:-1]
    close(lower @ upper, np.take_along_axis(a, perm[..., None], -2))
    size = np.abs(lower.real) + np.abs(lower.imag)  # what LAPACK picks complex pivots by
    assert (size <= 2 if lower.dtype.kind == "c" else size <= 1).all()
    close(upper, np.triu(upper))


@over_dtypes
@over_matrices
@pytest.mark.parametrize("full", [False, True])
def test_u_s_vh(dtype: Any, shape: Any, full: bool) -> None:
    a = draw(shape, dtype)
    u, s, vh = map(np.asarray, op.svd(a, full_matrices=full))
    k = s.shape[-1]
    close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a)
    want = np.linalg.svd(a, full_matrices=full)
    assert [(x.shape, x.dtype) for x in (u, s, vh)] == [(x.shape, x.dtype) for x in want]
    close(op.svdvals(a), s)
    assert (np.diff(s) <= 0).all()


@over_dtypes
@over_squares
def test_hermitian_eigenvectors(dtype: Any, shape: Any) -> None:
    a = draw(shape, dtype)
    a = a + a.conj().mT
    w, v = map(np.asarray, op.eigh(a))
    close((v * w[..., None, :]) @ v.conj().mT, a)
    close(w, np.linalg.eigvalsh(a))
    close(op.eigvalsh(a), w)
    assert w.dtype == a.real.dtype


@over_dtypes
@over_squares
def test_general_eigenvectors(dtype: Any, shape: Any) -> None:
    a = draw(shape, dtype)
    w, v = map(np.asarray, op.eig(a))
    assert w.dtype == v.dtype == np.result_type(dtype, np.complex64)
    close(a @ v, v * w[..., None, :])
    close(op.sum(op.eigvals(a), -1), np.trace(a, axis1=-2, axis2=-1).astype(w.dtype))


def test_only_the_hermitian_part_counts() -> None:
    a, skew = definite((3, 3)), draw((3, 3), seed=1)
    b = a + skew - skew.T
    close(op.cholesky(b), np.linalg.cholesky(a))
    close(op.eigh(b)[0], np.linalg.eigvalsh(a))


# Solutions --------------------------------------------------------------------------------------


@over_dtypes
@over_squares
def test_solution_solves(dtype: Any, shape: Any) -> None:
    a = near_identity(shape, dtype)
    b = draw((*shape[:-1], 3), dtype, seed=1)
    close(a @ np.asarray(op.solve(a, b)), b)
    vector = draw(shape[-1:], dtype, seed=2)
    x = np.asarray(op.solve(a, vector))
    assert x.shape == shape[:-1]
    close((a @ x[..., None])[..., 0], np.broadcast_to(vector, x.shape))
    close(a @ np.asarray(op.inv(a)), np.broadcast_to(np.eye(shape[-1], dtype=dtype), shape))


def test_solve_broadcasts_and_promotes() -> None:
    a, b = near_identity((2, 1, 3, 3)), draw((4, 3, 2)).astype(np.float32)
    x = op.solve(a, b)
    assert x.dtype is ts.f64
    close(x, np.linalg.solve(a, b.astype(np.float64)))


@over_dtypes
@over_squares
def test_triangles_are_solved(dtype: Any, shape: Any) -> None:
    a, b = near_identity(shape, dtype), draw((*shape[:-1], 2), dtype, seed=1)
    for lower, transpose, unit in itertools.product((False, True), repeat=3):
        part = np.tril(a) if lower else np.triu(a)
        if unit:
            part = part + np.eye(shape[-1], dtype=dtype) * (1 - part)
        x = op.triangular_solve(a, b, lower=lower, transpose=transpose, unit_diagonal=unit)
        close((part.mT if transpose else part) @ np.asarray(x), b)
        assert np.asarray(x).dtype == dtype


@over_dtypes
@over_matrices
def test_pinv_has_the_laws_of_penrose(dtype: Any, shape: Any) -> None:
    a = draw(shape, dtype)
    p = np.asarray(op.pinv(a))
    close(a @ p @ a, a)
    close(p @ a @ p, p)
    close(a @ p, (a @ p).conj().mT)
    close(p @ a, (p @ a).conj().mT)


def test_pinv_and_rank_drop_small_singular_values() -> None:
    u, _, vh = np.linalg.svd(draw((2, 4, 3)), full_matrices=False)
    a = (u * np.array([3.0, 1.0, 1e-4])) @ vh
    assert op.matrix_rank(a).tolist() == [3, 3]
    assert op.matrix_rank(a, rtol=1e-2).tolist() == [2, 2]
    assert op.matrix_rank(a, rtol=np.array([1e-2, 1e-6])).tolist() == [2, 3]
    assert op.matrix_rank(np.zeros((0, 3))).item() == 0
    assert op.matrix_rank(np.ones((4, 4), np.float32)).item() == 1
    close(op.pinv(a, rtol=1e-2), np.linalg.pinv(a, rtol=1e-2))
    each = np.array([1e-2, 1e-6])
    close(op.pinv(a, rtol=each), np.linalg.pinv(a, rtol=each), 1e4)


@pytest.mark.parametrize("shape", [(5, 2), (2, 5), (3, 3)])
def test_least_squares(shape: tuple[int, int]) -> None:
    a, b = draw(shape), draw(shape[:1], seed=1)
    found, want = op.lstsq(a, b), np.linalg.lstsq(a, b)
    close(found.solution, want[0])
    close(op.lstsq(a, b[:, None])[0][:, 0], want[0])
    assert int(found.rank) == want[2]
    close(found.singular_values, want[3])
    if shape[0] > shape[1]:
        close(found.residuals, want[1][0])


# Functions --------------------------------------------------------------------------------------


@over_dtypes
@over_squares
def test_determinants(dtype: Any, shape: Any) -> None:
    a = draw(shape, dtype)
    close(op.det(a), np.linalg.det(a), 10)
    sign, size = op.slogdet(a)
    want = np.linalg.slogdet(a)
    close(sign, want.sign)
    close(size, want.logabsdet)
    assert np.asarray(size).dtype == a.real.dtype
    eye = np.eye(shape[-1], dtype=dtype)
    close(a @ np.asarray(op.adjugate(a)), np.linalg.det(a)[..., None, None] * eye, 10)


@over_dtypes
@over_squares
def test_expm(dtype: Any, shape: Any) -> None:
    a = draw(shape, dtype)
    close(op.expm(a), scipy.linalg.expm(a), 10)
    inverse = np.asarray(op.expm(-a))
    eye = np.broadcast_to(np.eye(shape[-1], dtype=dtype), shape)
    close(np.asarray(op.expm(a)) @ inverse, eye, 1e3)


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 7])
def test_matrix_power(n: int) -> None:
    a = near_identity((2, 3, 3))
    close(op.matrix_power(a, n), np.linalg.matrix_power(a, n), 1e3)


@over_dtypes
@over_matrices
def test_matrix_norms(dtype: Any, shape: Any) -> None:
    a = draw(shape, dtype)
    extremes = [] if 0 in shape[-2:] else [1, -1, 2, -2, np.inf, -np.inf]
    for ord in ("fro", "nuc", *extremes):
        for keep in (False, True):
            want = np.linalg.matrix_norm(a, ord=ord, keepdims=keep)
            close(op.matrix_norm(a, ord, keepdims=keep), want)


@pytest.mark.parametrize("ord", [2, 1, 0, 3, -1, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [None, 1, (0, 2)])
def test_vector_norms(ord: float, axis: Any) -> None:
    a = draw((2, 3, 4), np.complex128)
    for keep in (False, True):
        want = np.linalg.vector_norm(a, ord=ord, axis=axis, keepdims=keep)
        close(op.vector_norm(a, ord, axis, keep), want)


@pytest.mark.parametrize("offset", [-4, -1, 0, 2, 5])
def test_diagonals(offset: int) -> None:
    a = draw((2, 3, 4))
    close(op.diagonal(a, offset), np.diagonal(a, offset, -2, -1))
    close(op.diagonal(a, offset, 0, 1), np.diagonal(a, offset, 0, 1))
    close(op.trace(a, offset), np.trace(a, offset, -2, -1))
    v = draw((3,))
    close(op.matrix_diag(v, offset), np.diag(v, offset))
    close(op.diagonal(op.matrix_diag(a, offset), offset), a)


def test_trace_of_integers_is_summed_in_64_bits() -> None:
    y = op.trace(np.full((3, 3), 100, np.int8))
    assert y.dtype is ts.i64
    assert y.item() == 300


def test_cross_product() -> None:
    a, b = draw((4, 3)), draw((3,), seed=1)
    close(op.cross(a, b), np.cross(a, b))
    close(op.cross(a[:3].T, a[:3].T, axis=0), np.zeros((3, 3)))
    p, q = draw((3, 2)), draw((3, 2), seed=1)
    close(op.cross(p, q, axis=0), np.cross(p, q, axis=0))


@pytest.mark.parametrize("dtype", [ts.bf16, ts.f16])
def test_narrow_dtypes_are_computed_wide_and_rounded_once(dtype: Any) -> None:
    a = ts.tensor(definite((3, 3)).astype(np.float32)).astype(dtype)
    wide = op.cast(a, ts.f32)
    assert op.cholesky(a).dtype is dtype
    pairs = (
        (op.cholesky(a), op.cholesky(wide)),
        (op.inv(a), op.inv(wide)),
        (op.det(a), op.det(wide)),
    )
    for narrow, full in pairs:
        assert np.array_equal(np.asarray(narrow), np.asarray(op.cast(full, dtype)))
    assert op.eigvals(a).dtype is ts.c64


def test_integers_become_f32() -> None:
    assert op.det(np.array([[2, 1], [1, 2]])).dtype is ts.f32


# jit and symbolic sizes -------------------------------------------------------------------------

JITTED: dict[str, Callable[[Any], Any]] = {
    "cholesky": op.cholesky, "qr": op.qr, "lu": op.lu, "svd": op.svd, "eigh": op.eigh, "eig": op.eig,
    "inv": op.inv, "det": op.det, "slogdet": op.slogdet, "pinv": op.pinv, "expm": op.expm,
    "matrix_rank": op.matrix_rank, "trace": op.trace, "adjugate": op.adjugate,
    "solve": lambda a: op.solve(a, a), "power": lambda a: op.matrix_power(a, 3),
    "norm": lambda a: op.matrix_norm(a, 2), "diag": lambda a: op.matrix_diag(a, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", JITTED)
def test_jit_is_eager(name: str) -> None:
    f, a = JITTED[name], ts.tensor(definite((2, 3, 3)))
    eager = ts.tree.leaves(f(a))
    compiled = ts.tree.leaves(ts.jit(f)(a))
    for x, y in zip(eager, compiled, strict=True):
        assert np.array_equal(np.asarray(x), np.asarray(y))


def test_one_compilation_serves_every_size() -> None:
    @ts.jit
    def f(a: ts.Tensor["N", "N", ts.f64]) -> Any:
        return op.cholesky(a), op.svd(a), op.det(a), op.pinv(a), op.solve(a, a[0])

    for n in (2, 3, 7):
        a = definite((n, n))
        factor, (_, s, _), d, p, x = f(ts.tensor(a))
        close(factor, np.linalg.cholesky(a))
        close(s, np.linalg.svdvals(a))
        close(d, np.linalg.det(a), 10)
        close(p, np.linalg.inv(a), 10)
        close(x, np.linalg.solve(a, a[0]))
    assert f.compiled == 1


# Derivatives ------------------------------------------------------------------------------------


def slope(f: Callable[..., Any], x: Any, t: Any, h: float = 1e-6) -> list[Any]:
    high, low = (ts.tree.leaves(f(ts.tensor(x + s * h * t))) for s in (1, -1))
    return [(np.asarray(a) - np.asarray(b)) / (2 * h) for a, b in zip(high, low, strict=True)]


B = draw((3, 2), seed=5)
SMOOTH: dict[str, Callable[[Any], Any]] = {
    "cholesky": op.cholesky,
    "cholesky_upper": lambda a: op.cholesky(a, upper=True),
    "qr": op.qr,
    "qr_complete": lambda a: op.qr(a, mode="complete"),
    "lu": lambda a: op.lu(a)[1:],
    "solve_matrix": lambda a: op.solve(a, B),
    "solve_side": lambda a: op.solve(ts.tensor(definite((3, 3))), a),
    "triangle_lower": lambda a: op.triangular_solve(a, B),
    "triangle_upper": lambda a: op.triangular_solve(a, B, lower=False, transpose=True),
    "triangle_unit": lambda a: op.triangular_solve(a, B, unit_diagonal=True),
    "inv": op.inv, "det": op.det, "slogdet": op.slogdet, "pinv": op.pinv, "expm": op.expm,
    "adjugate": op.adjugate, "eigvalsh": op.eigvalsh, "svdvals": op.svdvals, "eigvals": op.eigvals,
    "eigh": lambda a: _gauge_free(*op.eigh(a)),
    "eig": lambda a: (op.abs(op.eig(a)[1]), op.eig(a)[0]),
    "svd": lambda a: _polar(*op.svd(a, full_matrices=False)),
    "frechet": lambda a: op.expm_frechet(a, op.mul(a, a)),
    "trace": op.trace, "diagonal": lambda a: op.diagonal(a, 1),
    "cross": lambda a: op.cross(a, op.flip(a)),
    "nuclear": lambda a: op.matrix_norm(a, "nuc"), "spectral": lambda a: op.matrix_norm(a, 2),
    "power": lambda a: op.matrix_power(a, -3),
}  # fmt: skip


def _gauge_free(w: Any, v: Any) -> Any:
    """The phases of eigenvectors are arbitrary; projectors are not."""
    scaled = op.mul(v, op.reshape(op.exp(w), (1, 3)))
    return w, op.matmul(scaled, op.matrix_transpose(op.conj(v))), op.abs(v)


def _polar(u: Any, s: Any, vh: Any) -> Any:
    return s, op.matmul(u, vh), op.matmul(op.mul(u, op.reshape(op.log(s), (1, -1))), vh), op.abs(u)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_jvp_is_the_slope(name: str, dtype: Any) -> None:
    f, a, t = SMOOTH[name], near_identity((3, 3), dtype, seed=3), draw((3, 3), dtype, seed=4)
    if name.startswith("cholesky"):
        a = definite((3, 3), dtype)
    _, tangents = ts.jvp(f, (ts.tensor(a),), (ts.tensor(t),))
    for got, want in zip(ts.tree.leaves(tangents), slope(f, a, t), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_vjp_is_the_adjoint_of_jvp(name: str, dtype: Any) -> None:
    f, a, t = SMOOTH[name], near_identity((3, 3), dtype, seed=3), draw((3, 3), dtype, seed=4)
    if name.startswith("cholesky"):
        a = definite((3, 3), dtype)
    ys, tangents = ts.jvp(f, (ts.tensor(a),), (ts.tensor(t),))
    cts = ts.tree.map(lambda y: ts.tensor(draw(y.shape, np.asarray(y).dtype, seed=6)), ys)
    (back,) = ts.vjp(f, ts.tensor(a))[1](cts)
    pairs = zip(ts.tree.leaves(cts), ts.tree.leaves(tangents), strict=True)
    left = sum(np.real(np.sum(np.asarray(c) * np.asarray(y))) for c, y in pairs)
    np.testing.assert_allclose(np.real(np.sum(np.asarray(back) * t)), left, rtol=1e-9)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 3)])
def test_jvp_of_rectangles(shape: tuple[int, ...]) -> None:
    a, t = draw(shape, seed=3), draw(shape, seed=4)
    functions: list[Callable[[Any], Any]] = [
        op.pinv, op.svdvals, lambda a: op.svd(a, full_matrices=False),
    ]  # fmt: skip
    if shape[-2] >= shape[-1]:
        functions.append(op.qr)
    for f in functions:
        _, tangents = ts.jvp(f, (ts.tensor(a),), (ts.tensor(t),))
        for got, want in zip(ts.tree.leaves(tangents), slope(f, a, t), strict=True):
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5)


def test_equal_eigenvalues_give_finite_derivatives() -> None:
    eye, t = np.eye(3), draw((3, 3))
    for f in (op.eigh, op.svd):
        _, tangents = ts.jvp(f, (ts.tensor(eye),), (ts.tensor(t),))
        assert all(np.isfinite(np.asarray(x)).all() for x in ts.tree.leaves(tangents))
    g = ts.grad(lambda a: op.sum(op.eigh(a)[0]))(ts.tensor(eye))
    close(g, eye)


def test_orthogonal_factor_is_smooth_where_singular_values_are_equal() -> None:
    """The polar factor U @ Vh at the identity moves by the skew part of the tangent."""
    t = draw((3, 3))

    def polar(a: Any) -> Any:
        u, _, vh = op.svd(a)
        return op.matmul(u, vh)

    _, tangent = ts.jvp(polar, (ts.tensor(np.eye(3)),), (ts.tensor(t),))
    close(tangent, (t - t.T) / 2)


def test_det_has_a_gradient_at_a_singular_matrix() -> None:
    a = np.array([[1.0, 2.0], [2.0, 4.0]])
    close(ts.grad(op.det)(ts.tensor(a)), [[4.0, -2.0], [-2.0, 1.0]])


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_det_has_second_derivatives_at_singular_matrices(rank: int) -> None:
    """Of a polynomial in the entries: d2 det[s, t] is the part of det(a + s + t) with both once."""
    rng = np.random.default_rng(rank)
    a = rng.normal(size=(3, rank)) @ rng.normal(size=(rank, 3))
    s, t = rng.normal(size=(2, 3, 3))
    got = ts.jvp(lambda x: ts.jvp(op.det, (x,), (t,))[1], (ts.tensor(a),), (ts.tensor(s),))[1]
    signs = [(1, 1), (-1, -1), (1, -1), (-1, 1)]
    mixed = [i * j * np.linalg.det(a + i * s + j * t) for i, j in signs]
    np.testing.assert_allclose(got, sum(mixed) / 4, rtol=1e-10, atol=1e-12)
    h = ts.hessian(op.det)(ts.tensor(a)).numpy().reshape(9, 9)
    np.testing.assert_allclose(s.reshape(9) @ h @ t.reshape(9), got, rtol=1e-10, atol=1e-12)


def test_second_derivatives() -> None:
    a, t, u = near_identity((3, 3), seed=3), draw((3, 3), seed=4), draw((3, 3), seed=5)
    for f in (op.det, op.inv, op.expm, op.pinv, lambda a: op.cholesky(op.matmul(a, a.T))):
        first = lambda x, f=f: ts.jvp(f, (x,), (ts.tensor(t),))[1]  # noqa: E731
        _, second = ts.jvp(first, (ts.tensor(a),), (ts.tensor(u),))
        (want,) = slope(first, a, u)
        np.testing.assert_allclose(np.asarray(second), want, rtol=1e-5, atol=1e-5)


# Errors -----------------------------------------------------------------------------------------

A23, A22, ONES = np.zeros((2, 3)), np.eye(2), np.ones((2, 2))
WRONG: list[tuple[Callable[[], Any], type[TesseraError], str]] = [
    (lambda: op.cholesky(A23), ShapeError,
     "cholesky: f64[2,3] is not square: its last two axes are 2 and 3"),
    (lambda: op.inv(np.zeros(3)), ShapeError, "inv: f64[3] is no matrix; it needs at least 2 axes"),
    (lambda: op.cholesky(-A22), NumericalError,
     "cholesky: f64[2,2] is not positive definite; add a multiple of the identity or use op.eigh"),
    (lambda: op.solve(ONES, np.ones(2)), NumericalError,
     "solve: f64[2,2] is singular; use op.lstsq or op.pinv for the solution of least squares"),
    (lambda: op.inv(ONES), NumericalError,
     "inv: f64[2,2] is singular; use op.pinv for the pseudoinverse"),
    (lambda: op.triangular_solve(0 * A22, np.ones(2)), NumericalError,
     "triangular_solve: f64[2,2] has a zero on its diagonal, so it is singular"),
    (lambda: op.svd(A22 * np.nan), NumericalError,
     "svd: f64[2,2] did not converge; check it for NaN and infinite elements"),
    (lambda: op.eig(A22 * np.nan), NumericalError,
     "eig: f64[2,2] did not converge; check it for NaN and infinite elements"),
    (lambda: op.solve(A22, np.zeros((3, 1))), ShapeError,
     "solve: the matrix f64[2,2] has 2 rows but the right-hand side f64[3,1] has 3"),
    (lambda: op.solve(A22, 1.0), ShapeError,
     "solve: the right-hand side f32[] is a scalar; pass a vector or matrix"),
    (lambda: op.lstsq(A23, np.zeros(3)), ShapeError,
     "lstsq: the matrix f64[2,3] has 2 rows but the right-hand side f64[3,1] has 3"),
    (lambda: op.qr(A23, mode="full"), OperandError,
     "qr: mode is 'full', expected 'reduced' or 'complete'"),
    (lambda: op.matrix_power(A22, 1.5), OperandError,
     "matrix_power: the power 1.5 is not an integer"),
    (lambda: op.matrix_norm(A22, "max"), OperandError,
     "matrix_norm: ord is 'max', expected 'fro', 'nuc', 1, -1, 2, -2, inf or -inf"),
    (lambda: op.cross(np.zeros(2), np.zeros(2)), ShapeError,
     "cross: axis -1 of f64[2] is 2, expected 3"),
    (lambda: op.cross(np.zeros((3, 3)), np.zeros(3), axis=0), AxisError,
     "cross: axis 0 is not the same axis of f64[3,3] and f64[3] once they broadcast; "
     "count it from the end"),
    (lambda: op.diagonal(np.zeros(3)), ShapeError,
     "diagonal: f64[3] is no matrix; it needs at least 2 axes"),
    (lambda: op.diagonal(A22, 0, 1, -1), AxisError, "diagonal: axis1 and axis2 are both 1"),
    (lambda: op.matrix_diag(1.0), ShapeError,
     "matrix_diag: f32[] is a scalar; it needs at least 1 axis"),
    (lambda: ts.jvp(op.qr, (ts.tensor(A23),), (ts.tensor(A23),)), RuleError,
     "qr has no derivative for f64[2,3]; it needs mode reduced and at least as many rows as columns"),
    (lambda: ts.jvp(op.svd, (ts.tensor(A23),), (ts.tensor(A23),)), RuleError,
     "svd has no derivative for f64[2,3] with full_matrices; pass full_matrices=False"),
    (lambda: ts.jvp(op.lu, (ts.tensor(A23),), (ts.tensor(A23),)), RuleError,
     "lu has no derivative for f64[2,3]; it needs a square matrix"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=[w[2][:40] for w in WRONG])
def test_errors(call: Callable[[], Any], kind: type[TesseraError], text: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}\n  at {re.escape(__file__)}"):
        call()


def test_norms_by_extremes_of_an_empty_matrix_are_errors() -> None:
    for ord in (2, -2):
        with pytest.raises(ShapeError, match="has no elements along axis"):
            op.matrix_norm(np.zeros((0, 3)), ord)


def test_a_singular_matrix_in_jit_is_a_numerical_error() -> None:
    f = ts.jit(op.inv)
    f(ts.tensor(np.eye(2)))
    with pytest.raises(NumericalError, match=r"^inv: f64\[2,2\] is singular"):
        f(ts.tensor(ONES))
    assert issubclass(NumericalError, ArithmeticError)
