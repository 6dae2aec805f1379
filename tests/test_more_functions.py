"""Functions of NumPy and SciPy that are written with ops, against NumPy and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

import tessera as ts
from tessera import op
from tessera.core.flags import override

RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((4, 5)), RNG.standard_normal((4, 5))
V, W = RNG.standard_normal(7), RNG.standard_normal(3)
BAD = np.where(RNG.random((4, 5)) < 0.3, np.nan, X)
BAD[0, 0], BAD[3] = np.inf, np.nan
N = np.array([3, 1, 0, 3, 2, 3, 9])
P, A, B = RNG.random(50), RNG.uniform(0.1, 40, 50), RNG.uniform(0.1, 60, 50)
EDGE = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5])
BINS = np.array([-1.0, -0.3, 0.2, 1.5])

SAME: dict[str, Any] = {
    # statistics
    "median": lambda m: (m.median(X), m.median(X, axis=1), m.median(X[:3], axis=0, keepdims=True), m.median(BAD, axis=1)),
    "quantile": lambda m: (m.quantile(X, 0.3), m.quantile(X, np.array([0.0, 0.25, 1.0]), axis=1), m.quantile(X, 0.6, axis=0, method="lower"),
                           m.quantile(X, 0.6, axis=0, method="nearest"), m.quantile(X, 0.6, axis=(0, 1), method="midpoint", keepdims=True)),
    "percentile": lambda m: (m.percentile(X, 30.0, axis=1), m.percentile(X, np.array([10.0, 90.0]), method="higher")),
    "nan folds": lambda m: (m.nansum(BAD, axis=1), m.nanprod(BAD[1:], axis=0), m.nanmean(BAD[:3], axis=1), m.nanvar(BAD[1:3], axis=1), m.nanstd(BAD[1:3]),
                            m.nanmax(BAD[:3], axis=1), m.nanmin(BAD[:3], axis=0), m.nanargmax(BAD[:3], axis=1), m.nanargmin(BAD[:3]),
                            m.nanmedian(BAD[:3], axis=1), m.nanquantile(BAD[:3], 0.3, axis=1), m.nanpercentile(BAD[:3], 40.0)),
    "ptp": lambda m: (m.ptp(X), m.ptp(X, axis=1)),
    "nan_to_num": lambda m: (m.nan_to_num(EDGE), m.nan_to_num(EDGE, nan=1.0, posinf=2.0, neginf=-3.0)),
    "isclose": lambda m: (m.isclose(X, X + 1e-9), m.isclose(EDGE, EDGE), m.isclose(EDGE, EDGE, equal_nan=True), m.isclose(X, Y, rtol=0.5, atol=0.3), m.allclose(X, X)),
    "average": lambda m: (m.average(X, axis=1), m.average(X, axis=0, weights=np.abs(Y))),
    "cov": lambda m: (m.cov(X), m.cov(X, rowvar=False), m.cov(V), m.cov(X, Y, bias=True), m.cov(X, ddof=2), m.corrcoef(X), m.corrcoef(X, Y)),
    "digitize": lambda m: (m.digitize(V, BINS), m.digitize(BINS, BINS, right=True)),
    "histogram": lambda m: (*m.histogram(V), *m.histogram(V, bins=BINS), *m.histogram(V, 4, (-1.0, 1.0), density=True), *m.histogram(V, 3, weights=V**2), m.histogram(np.ones(3), 2)[0]),
    # curves
    "interp": lambda m: (m.interp(V, BINS, np.arange(4.0)), m.interp(np.float64(0.1), BINS, BINS**2)),
    "trapezoid": lambda m: (m.trapezoid(X), m.trapezoid(X, dx=0.5, axis=0), m.trapezoid(V, np.sort(V)), m.trapezoid(X, np.cumsum(np.abs(Y), 1))),
    "polyval": lambda m: (m.polyval(W, X), m.polyval(W, 2.0), m.vander(V, 4), m.vander(V, increasing=True)),
    "convolve": lambda m: tuple(m.convolve(a, b, mode) for a, b in ((V, W), (W, V)) for mode in ("full", "same", "valid")),
    "correlate": lambda m: (m.correlate(V, W), m.correlate(V, W, "full"), m.correlate(V, W, "same")),
    # stacking
    "stacks": lambda m: (m.vstack([V, V]), m.hstack([V, W]), m.hstack([X, Y]), m.dstack([X, Y]), m.dstack([V, V]), m.column_stack([V, V]), m.append(X, Y, axis=1), m.append(X, V),
                         m.atleast_1d(3.0), m.atleast_2d(V), m.atleast_3d(V), m.atleast_3d(X), m.ravel(X), m.flipud(X), m.fliplr(X)),
    "products": lambda m: (m.dot(V, V), m.dot(X, Y.T), m.dot(np.stack([X, Y]), X[0]), m.inner(X, Y), m.vdot(X, Y), m.vdot(X + 1j, Y - 2j)),
    "indices": lambda m: (m.tri(3, 4, 1), *m.tril_indices(3, 1), *m.triu_indices(3, -1, 4), m.indices((2, 3)), *m.unravel_index(np.array([5, 7, 0]), (3, 4)), m.ravel_multi_index((np.array([1, 2]), np.array([3, 0])), (3, 4))),
    # numbers
    "numbers": lambda m: (m.sinc(X), m.sinc(EDGE[:4]), m.heaviside(EDGE, 0.25), m.deg2rad(X), m.rad2deg(X), m.fmax(EDGE, EDGE[::-1]), m.fmin(EDGE, EDGE[::-1]), m.logaddexp2(X, Y)),
}  # fmt: skip


def leaves(x: Any) -> list[Any]:
    return [np.asarray(v) for v in (x if isinstance(x, tuple) else (x,))]


@pytest.mark.parametrize("name", SAME)
def test_as_in_numpy(name: str) -> None:
    f = SAME[name]
    with override(target="numpy"):
        got = leaves(f(op))
    want = leaves(f(np))
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.shape == b.shape, k
        np.testing.assert_allclose(
            a, b, rtol=3e-7 if a.dtype == np.float32 else 1e-12, atol=1e-12, err_msg=str(k)
        )


for _name in ("cov", "convolve", "correlate", "polyval"):
    del SAME[_name]

SPECIAL: dict[str, tuple[Any, ...]] = {
    "xlogy": (np.array([0.0, 0.0, 1.0, 2.0, 0.0]), np.array([0.0, 3.0, 0.5, 4.0, np.nan])), "xlog1py": (np.array([0.0, 0.0, 1.0]), np.array([-1.0, 3.0, 0.5])),
    "entr": (np.array([0.0, 0.5, 2.0, -1.0]),), "rel_entr": (np.array([0.0, 0.5, 2.0, -1.0, 1.0]), np.array([1.0, 0.25, 3.0, 1.0, 0.0])),
    "ndtr": (X * 3,), "ndtri": (P,), "logit": (P,), "gammaln": (A,), "betaln": (A, B), "factorial": (np.arange(12.0),),
    "gammainc": (A, B), "gammaincc": (A, B), "betainc": (A, B, P), "i0": (X * 9,), "i0e": (X * 40,), "i1": (X * 9,), "i1e": (X * 40,),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_as_in_scipy(name: str) -> None:
    args = SPECIAL[name]
    with override(target="numpy"):
        got = getattr(op, name)(*args)
    np.testing.assert_allclose(got, getattr(special, name)(*args), rtol=3e-11, atol=1e-14)


def test_counts_and_segments() -> None:
    with override(target="numpy"):
        np.testing.assert_array_equal(op.bincount(N, length=10), np.bincount(N, minlength=10))
        np.testing.assert_array_equal(op.bincount(N, length=3), [1, 1, 1])
        np.testing.assert_allclose(op.bincount(N, V, length=10), np.bincount(N, V, 10))
        ids = np.array([0, 2, 2, 5])
        for name, fold in (
            ("sum", np.add),
            ("prod", np.multiply),
            ("max", np.maximum),
            ("min", np.minimum),
        ):
            want = np.full((3, 5), {"sum": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}[name])
            fold.at(want, ids[:3], X[:3])
            np.testing.assert_allclose(getattr(op, f"segment_{name}")(X, ids, count=3), want)


def test_in_programs_and_their_derivatives() -> None:
    def f(x: Any) -> Any:
        return (
            op.median(x)
            + op.sum(op.quantile(x, 0.3, axis=1))
            + op.nanmean(x)
            + op.interp(x[0, 0], BINS, BINS**2)
            + op.sum(op.i0e(x))
        )

    with override(target="numpy"):
        np.testing.assert_allclose(ts.jit(f)(X), f(ts.tensor(X)), rtol=1e-12)
        got, h = ts.grad(f)(ts.tensor(X)), 1e-6
        for i in ((0, 0), (2, 3)):
            step = np.zeros_like(X)
            step[i] = h
            want = (float(f(ts.tensor(X + step))) - float(f(ts.tensor(X - step)))) / (2 * h)
            np.testing.assert_allclose(np.asarray(got)[i], want, rtol=1e-5, atol=1e-7)
