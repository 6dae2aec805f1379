"""Spectra that the structure tells: stencils of neighbours have products of waves as eigenvectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tessera as ts
from tessera import op
from tests.support.cases.operator_cases import close

RUNS_ON = "numpy"  # what is compared here is algebra, not machine code
SHAPES = [(1,), (2,), (5,), (6,), (3, 4), (2, 3, 3)]
BOUNDARIES = ["dirichlet", "neumann", "periodic"]
every_boundary = pytest.mark.parametrize("boundary", BOUNDARIES)


def wanted(w: Any, which: str, k: int) -> Any:
    order = {"magnitude": -np.abs(w), "largest": -w, "smallest": w}[which]
    return w[np.argsort(order, kind="stable")][:k]


def helmholtz(shape: tuple[int, ...], boundary: str, dtype: Any = ts.f64) -> Any:
    """0.3 - laplacian, with other steps along other axes."""
    steps = tuple(0.5 + 0.2 * i for i in range(len(shape)))
    return 0.3 * op.eye(math.prod(shape), dtype) - op.laplacian(shape, steps, boundary, dtype)


@every_boundary
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_waves_are_the_eigenvectors(shape: tuple[int, ...], boundary: str) -> None:
    a = helmholtz(shape, boundary)
    m = np.asarray(a.todense())
    k = min(4, len(m))
    for which in ("magnitude", "largest", "smallest"):
        s = op.spectral(a, k, which=which)
        close(s.S, wanted(np.linalg.eigvalsh(m), which, k), 1e-12)
        u = np.asarray(s.U)
        close(u.T @ u, np.eye(k), 1e-12)
        close(m @ u, u * np.asarray(s.S), 1e-12)
        assert bool(s.info.converged)
        assert int(s.info.iterations) == 0
    close(op.logdet(a), np.linalg.slogdet(m)[1], 1e-12)
    close(op.slogdet(-a)[0], (-1.0) ** len(m), 0)


@pytest.mark.parametrize("dtype", [ts.f32, ts.c128], ids=str)
def test_they_have_the_dtype_of_the_operator(dtype: Any) -> None:
    a = helmholtz((4, 5), "neumann", dtype)
    s = op.spectral(a, 3)
    assert (s.U.dtype, s.S.dtype) == (dtype, dtype.real)
    close(a @ s.U, np.asarray(s.U) * np.asarray(s.S), 1e-5)


@every_boundary
def test_large_grids_are_not_searched(boundary: str) -> None:
    """The smoothest waves of a grid of a million points, which products alone would not tell apart."""
    n = 1000
    a = -op.laplacian((n, n), 1 / n, boundary, ts.f64)
    s = op.spectral(a, 6, which="smallest")
    u = np.asarray(s.U)
    close(u.T @ u, np.eye(6), 1e-12)
    off = np.abs(np.asarray(a @ s.U) - u * np.asarray(s.S)).max()
    assert off <= 1e-12 * 8 * n * n
    grid = {"dirichlet": (1.0, 1.0), "neumann": (0.0, 1.0), "periodic": (0.0, 2.0)}[boundary]
    lowest = np.pi**2 * np.array([2 * grid[0] ** 2, grid[0] ** 2 * 5 if grid[0] else grid[1] ** 2])
    np.testing.assert_allclose(np.asarray(s.S)[:2], lowest, rtol=1e-2, atol=1e-9)
    assert float(op.norm(a)) == pytest.approx(8 * n * n, rel=1e-4)


def test_constants_are_in_the_kernel_of_differences() -> None:
    for boundary in ("neumann", "periodic"):
        assert float(op.logdet(op.laplacian((3, 4), boundary=boundary, dtype=ts.f64))) == -np.inf


def test_other_stencils_are_searched() -> None:
    """A tap that is not along an axis, or not the same on both sides, has no such waves."""
    cross = op.stencil({(0, 0): 9.0, (1, 1): 1.0, (-1, -1): 1.0}, (7, 8), dtype=ts.f64)
    s = op.spectral(cross, 2, which="largest", tol=1e-10)
    close(s.S, wanted(np.linalg.eigvalsh(np.asarray(cross.todense())), "largest", 2), 1e-9)
    assert int(s.info.iterations) > 0
    skewed = op.stencil({-1: 1.0, 0: 3.0, 1: 2.0}, 6, dtype=ts.f64)
    close(op.logdet(skewed), np.linalg.slogdet(np.asarray(skewed.todense()))[1], 1e-12)


@every_boundary
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_functions_solutions_and_pseudoinverses_take_transforms(
    shape: tuple[int, ...], boundary: str
) -> None:
    a = helmholtz(shape, boundary)
    m = np.asarray(a.todense())
    x = np.random.default_rng(3).normal(size=(len(m), 2))
    w, v = np.linalg.eigh(m)
    for columns in (x, x[:, 0], x + 1j * x[::-1]):
        close(op.expm(-0.1 * a) @ columns, scipy.linalg.expm(-0.1 * m) @ columns, 1e-12)
        close(op.sqrtm(a) @ columns, (v * np.sqrt(w)) @ v.T @ columns, 1e-12)
        close(op.function(a, op.sin) @ columns, (v * np.sin(w)) @ v.T @ columns, 1e-12)
        close(a.solve(columns), np.linalg.solve(m, columns), 1e-12)
        close(
            op.resolvent(a, 0.1) @ columns,
            np.linalg.solve(0.1 * np.eye(len(m)) - m, columns),
            1e-11,
        )
    flat = op.laplacian(shape, 0.5, boundary, ts.f64)
    want = np.linalg.pinv(np.asarray(flat.todense())) @ x
    close(op.pseudoinverse(flat) @ x, want, 1e-12)
    close(op.logdet(op.sqrtm(a)), np.log(w).sum() / 2, 1e-12)


@pytest.mark.parametrize("dtype", [ts.f32, ts.c128], ids=str)
def test_functions_keep_the_dtype_of_the_operator(dtype: Any) -> None:
    a = helmholtz((4, 5), "periodic", dtype)
    x = np.random.default_rng(4).normal(size=20).astype(dtype.np)
    got = op.expm(-a) @ x
    assert got.dtype is dtype
    close(got, scipy.linalg.expm(-np.asarray(a.todense())) @ x, 1e-6)


@every_boundary
def test_heat_flows_on_a_large_grid(boundary: str) -> None:
    """Two steps are one of twice the time, and without an outside nothing is lost."""
    a = op.laplacian((700, 600), 1.0, boundary, ts.f64)
    x = np.random.default_rng(5).normal(size=700 * 600)
    once, twice = op.expm(3.0 * a) @ x, op.expm(1.5 * a) @ (op.expm(1.5 * a) @ x)
    close(once, twice, 1e-12)
    if boundary != "dirichlet":
        close(np.asarray(once).sum(), x.sum(), 1e-8)


def test_a_value_where_the_function_has_none_is_named() -> None:
    with pytest.raises(
        ts.TesseraError, match="log has no finite value at the eigenvalue 0 of scale"
    ):
        op.logm(-op.laplacian((3, 4), boundary="neumann", dtype=ts.f64)) @ np.ones(12)
    shifted = op.laplacian(4, boundary="periodic", dtype=ts.f64) + 2 * op.eye(4, ts.f64)
    with pytest.raises(ts.TesseraError, match="is singular: an eigenvalue is 0; use pseudoinverse"):
        shifted.solve(np.ones(4))
