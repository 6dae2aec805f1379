"""Functions under NumPy's, SciPy's and PyTorch's names: the values of those libraries, eager and jitted."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.core.library_names import ANSWERS
from tessera.lang.names.aliases import ALIASES

RNG = np.random.default_rng(7)
V, W = RNG.standard_normal(9), RNG.standard_normal(5)
A, B = RNG.standard_normal((4, 6)), RNG.standard_normal((6, 3))
CUBE = RNG.standard_normal((2, 3, 4))
Z = RNG.standard_normal(5) + 1j * RNG.standard_normal(5)
WHOLE, OTHER = RNG.integers(-30, 30, (3, 5)), RNG.integers(1, 12, (3, 5))
HOLES = np.where(RNG.uniform(size=(4, 6)) < 0.3, np.nan, A)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan])
P = np.array([0.01, 0.2, 0.5, 0.77, 0.999])
X = np.array([0.05, 0.4, 1.0, 2.5, 7.0, 30.0])
EDGES = np.array([-1.0, -0.2, 0.3, 1.1])

# name: arguments of calls; a tuple ends in a dict of keywords where it has some
NUMPY: dict[str, list[tuple[Any, ...]]] = {
    "ravel": [(A,), (3.0,)], "atleast_1d": [(2.0,), (V,)], "atleast_2d": [(2.0,), (V,), (A,)],
    "atleast_3d": [(2.0,), (V,), (A,), (CUBE,)], "hstack": [([V, W],), ([A, A],)],
    "vstack": [([V, V],), ([A, A],)],
    "dstack": [([V, V],), ([A, A],)], "column_stack": [([V, V],), ([A, A[:, 0]],)],
    "append": [(A, V), (A, A, {"axis": 1})], "array_split": [(V, 4), (A, 4, {"axis": 1}), (V, [2, 5])],
    "hsplit": [(A, 3), (V, 3)], "vsplit": [(A, 2)], "dsplit": [(CUBE, 2)], "fliplr": [(A,)], "flipud": [(A,)],
    "rollaxis": [(CUBE, 2), (CUBE, 0, 3), (CUBE, 1, 1)],
    "delete": [(V, 3), (A, [0, 2], {"axis": 1}), (A, slice(1, 5, 2))],
    "insert": [(V, 2, 7.0), (A, 1, 5.0, {"axis": 1}), (A, 4, V[:6], {"axis": 0})],
    "diagflat": [(W,), (W, 2), (W, -1)],
    "ptp": [(A,), (A, {"axis": 1, "keepdims": True})],
    "average": [(A,), (A, {"axis": 1, "weights": np.abs(V[:6])}), (A, {"weights": np.abs(A)})],
    "median": [(V,), (A,), (A, {"axis": 0}), (A, {"axis": 1, "keepdims": True}), (HOLES, {"axis": 0}),
               (A[:0], {"axis": 1}), (A[:0], {"axis": -1, "keepdims": True})],
    "quantile": [(A[:0], P, {"axis": 1}), (A, 0.3), (A, P, {"axis": 1}),
    (CUBE, P, {"axis": (0, 2), "keepdims": True}),
                 *((A, 0.37, {"axis": 1, "method": m}) for m in ("lower", "higher", "midpoint", "nearest"))],
    "percentile": [(A, 30), (A, 100 * P, {"axis": 0})], "nanmedian": [(HOLES, {"axis": 1})],
    "nanquantile": [(HOLES, P, {"axis": 1})], "nanpercentile": [(HOLES, 30.0)],
    "cov": [(A,), (A, {"rowvar": False}), (V, V[::-1]), (V,), (A[:1],), (A, {"bias": True}), (A, {"ddof": 0}),
            (A, {"fweights": np.arange(1, 7)}), (A, {"aweights": np.abs(V[:6])})],
    "corrcoef": [(A,), (A, {"rowvar": False}), (V, V[::-1]), (V,), (A[:1],)],
    "digitize": [(V, EDGES), (V, EDGES, {"right": True}), (V, EDGES[::-1]),
    (V, EDGES[::-1].copy(), {"right": True}), (V, EDGES[:1])],
    "histogram_bin_edges": [(V,), (V, 4), (V, 4, (0.0, 1.0)), (V, EDGES)],
    "histogram": [(V,), (A, 4), (A, EDGES), (V, 5, (-1.0, 1.0)), (V, 5, {"density": True}),
    (V, 5, {"weights": np.abs(V)})],
    **{f: [(HOLES,), (HOLES, {"axis": 0}), (HOLES, {"axis": 1, "keepdims": True})]
       for f in ("nansum", "nanprod", "nanmean", "nanmax", "nanmin", "nanstd", "nanvar")},
    **{f: [(HOLES,), (HOLES, {"axis": 1})] for f in ("nancumsum", "nancumprod", "nanargmax", "nanargmin")},
    "isclose": [(V, V + 1e-9), (SPECIAL, SPECIAL), (SPECIAL, SPECIAL, {"equal_nan": True}), (V, V[::-1])],
    "allclose": [(V, V + 1e-9), (V, V + 1)],
    "array_equal": [(V, V), (V, W), (SPECIAL, SPECIAL, {"equal_nan": True})],
    "array_equiv": [(np.ones((2, 3)), 1.0)],
    "nan_to_num": [(SPECIAL,), (SPECIAL, {"nan": 1.0, "posinf": 2.0, "neginf": -3.0}), (WHOLE,)],
    "isposinf": [(SPECIAL,)], "isneginf": [(SPECIAL,)], "isreal": [(Z,), (V,)], "iscomplex": [(Z,)],
    "fmax": [(SPECIAL, 1.0), (WHOLE, OTHER)], "fmin": [(SPECIAL, 1.0), (WHOLE, OTHER)], "deg2rad": [(V,)],
    "rad2deg": [(V,)],
    "angle": [(Z,), (V,), (Z, {"deg": True})], "heaviside": [(SPECIAL, 0.5)],
    "sinc": [(V,), (np.array([0.0, 1.0, 0.5]),)],
    "float_power": [(np.abs(V), 1.5)], "logaddexp2": [(V, V[::-1])], "ldexp": [(V, np.arange(9) - 4)],
    "modf": [(SPECIAL[:-1],), (V * 5,)], "divmod": [(V * 5, 1.5)], "gcd": [(WHOLE, OTHER), (WHOLE, 0)],
    "lcm": [(WHOLE, OTHER)],
    "dot": [(V, V), (A, B), (A, V[:6]), (CUBE, B[:4]), (2.0, V)], "inner": [(V, V), (A, A), (CUBE, CUBE[0])],
    "vdot": [(Z, Z[::-1]), (A, A)],
    "convolve": [(V, W, m) for m in ("full", "same", "valid")]
    + [(W, V, "same"), (Z, V, "same"), (WHOLE[0], OTHER[1])],
    "correlate": [(V, W, m) for m in ("full", "same", "valid")]
    + [(W, V, m) for m in ("full", "same", "valid")]
    + [(Z, Z[::-1], "full"), (V, W[:4], "same"), (W[:4], V, "same")],
    "interp": [(V, EDGES, W[:4]), (V, EDGES, W[:4], {"left": -5.0, "right": 5.0}),
    (np.append(EDGES, np.nan), EDGES, W[:4]), (V, EDGES[:1], W[:1])],
    "trapezoid": [(V,), (A, {"axis": 0, "dx": 0.5}), (A, V[:6])],
    "unwrap": [(V * 9,), (A * 9, {"axis": 0}), (V * 9, {"period": 4.0})],
    "ediff1d": [(A,), (V, {"to_end": 1.0, "to_begin": W})], "polyval": [(W, V)], "polyadd": [(W, V)],
    "polysub": [(W, V)], "polymul": [(W, V)],
    "polyder": [(W,), (W, 2)], "polyint": [(W,), (W, 2)],
    "vander": [(W,), (W, 3), (W, {"increasing": True})], "polyfit": [(V, V**3 - V, 3)],
    "tri": [(3,), (3, 5, 1)], "tril_indices": [(4,), (4, 1), (3, -1, 5)], "triu_indices": [(4,), (4, 1)],
    "diag_indices": [(3,), (2, 3)],
    "indices": [((2, 3),)], "unravel_index": [(np.array([3, 7, 11]), (3, 4))],
    "ravel_multi_index": [([np.array([1, 2]), np.array([3, 0])], (3, 4))],
    "logspace": [(0.0, 2.0, 5)], "geomspace": [(1.0, 1000.0, 4)], "hamming": [(8,), (1,)],
    "hanning": [(8,)], "blackman": [(8,)], "bartlett": [(8,)],
    "kaiser": [(9, 8.6)], "argwhere": [(WHOLE > 0,)], "flatnonzero": [(WHOLE > 0,)],
    "lexsort": [([WHOLE[0], OTHER[0] % 3],)],
    "choose": [(np.array([0, 1, 2]), [W[:3], W[2:], V[:3]])],
    "piecewise": [(V, [V < 0, V > 1], [lambda v: -v, 3.0, 0.5])],
    "apply_along_axis": [(lambda v: v.sum(), 0, A), (lambda v: v * 2, 1, A)],
    "bitwise_count": [(WHOLE,), (OTHER.astype(np.uint8),)],
    "packbits": [(WHOLE > 0,), (WHOLE > 0, {"axis": 1}), (WHOLE > 0, {"bitorder": "little"})],
    "unpackbits": [(OTHER.astype(np.uint8),), (OTHER.astype(np.uint8), {"axis": 1, "count": 11}),
    (OTHER.astype(np.uint8), {"axis": 0, "count": 30, "bitorder": "little"})],
    "union1d": [(WHOLE, OTHER)], "intersect1d": [(WHOLE, OTHER)], "setdiff1d": [(WHOLE, OTHER)],
    "setxor1d": [(WHOLE, OTHER)],
    "histogram2d": [(V, V[::-1]), (V, V[::-1], 3), (V, V[::-1], [2, 3], {"density": True}),
    (V, V[::-1], {"range": ((-1.0, 1.0), (0.0, 2.0)), "weights": np.abs(V)})],
    "tril_indices_from": [(A,), (A, 1)], "triu_indices_from": [(A,), (A, -1)],
    "diag_indices_from": [(np.eye(3),)],
    "fromfunction": [(lambda i, j: i + 2 * j, (2, 3)), (lambda i: i * i, (4,), {"dtype": int})],
    "apply_over_axes": [(lambda x, a: x.sum(a), CUBE, [0, 2])], "poly": [(W,)],
    "polydiv": [(V, W), (W, V[:3])],
    "degrees": [(V,)], "radians": [(V,)], "irfft2": [(CUBE + 0j,)],
    "tensorinv": [(np.eye(24).reshape(4, 6, 8, 3) + 0.1,)],
    "tensorsolve": [(RNG.standard_normal((2, 3, 6)), RNG.standard_normal((2, 3)))],
    "multi_dot": [([A, B, B.T, A.T],), ([V[:4], A, B],)], "identity": [(3,)], "matvec": [(A, V[:6])],
    "vecmat": [(V[:4], A)],
}  # fmt: skip
SCIPY: dict[str, list[tuple[Any, ...]]] = {
    "ndtr": [(V * 3,)], "ndtri": [(P,)], "erfcx": [(np.array([-2.0, 0.0, 3.0, 9.9, 10.1, 40.0, 1e4]),)],
    "log_ndtr": [(np.array([-60.0, -9.0, -1.5, -0.5, 0.0, 3.0, 12.0]),)], "logit": [(P,)],
    "xlogy": [(SPECIAL[:4], X[:4]), (0.0, 0.0)],
    "xlog1py": [(SPECIAL[:4], X[:4]), (0.0, -1.0)], "entr": [(np.array([-1.0, 0.0, 0.5, 3.0]),)],
    "rel_entr": [(np.array([0.0, 1.0, 2.0, 0.0, -1.0]), np.array([1.0, 0.0, 3.0, 0.0, 1.0]))],
    "boxcox": [(X, 0.7), (X, 0.0)],
    "boxcox1p": [(X, 0.7), (X, 0.0)], "betaln": [(X, X[::-1])], "factorial": [(np.arange(9.0),)],
    "comb": [(10.0, np.arange(12.0)), (5.5, 2.2)],
    "poch": [(X, 2.5)], "multigammaln": [(X + 3, 4)],
    "zeta": [(np.array([1.5, 2.0, 4.5, 12.0]), 1.0), (2.5, X)],
    "gammainc": [(X[:, None], X), (100.0, np.array([0.0, 80.0, 100.0, 130.0, np.inf])),
        (np.inf, np.array([0.0, 2.0, np.inf]))],
    "gammaincc": [
        (X[:, None], X),
        (100.0, np.array([80.0, 100.0, 130.0])),
        (np.inf, np.array([0.0, 2.0, np.inf])),
    ],
    "betainc": [(X[:, None], 1.3, P), (0.5, X[:, None], P), (2.0, 3.0, np.array([0.0, 1.0]))],
    "gammasgn": [(np.array([0.0, -0.0, 2.5, -0.5, -1.5, -2.0, np.inf]),)],
    "rgamma": [(np.array([0.0, -3.0, 0.5, -0.5, 7.0]),)], "beta": [(X, X[::-1]), (-0.5, 1.2)],
    "betaincc": [(X[:, None], 1.3, P)], "zetac": [(np.array([1.5, 2.0, 4.5, 30.0]),)],
    "perm": [(10.0, np.arange(12.0)), (5.5, 2.2)], "cosm1": [(V, ), (1e-9,)],
    "exp10": [(V,)], "exprel": [(np.array([0.0, 1e-12, -3.0, 4.0, np.inf]),)],
    "powm1": [(X, 0.3), (1 + 1e-13, 2.0)], "inv_boxcox": [(X, 0.7), (X, 0.0)],
    "inv_boxcox1p": [(X, 0.7), (X, 0.0)], "pseudo_huber": [(1.5, V)],
    "diric": [(np.array([0.0, 0.3, 2 * np.pi, 1.7]), 4), (np.array([0.3, 2 * np.pi]), 3)],
    "sindg": [(np.array([0.0, 90.0, 180.0, 270.0, 33.0, -400.0]),)],
    "cosdg": [(np.array([0.0, 90.0, 180.0, 270.0, 33.0, -400.0]),)], "tandg": [(np.array([33.0, -400.0]),)],
    "cotdg": [(np.array([33.0, -400.0]),)], "radian": [(10.0, 30.0, 15.0)],
    "agm": [(X, X[::-1]), (1e-8, 1.0)], "ellipk": [(np.array([-3.0, 0.0, 0.5, 0.999999, 1.0]),)],
    "ellipkm1": [(np.array([1e-20, 0.3]),)], "ellipe": [(np.array([-3.0, 0.0, 0.5, 0.999999, 1.0]),)],
    "chdtr": [(X[:, None], X)], "chdtrc": [(X[:, None], X)],
    "gdtr": [(1.3, X[:, None], X)], "gdtrc": [(1.3, X[:, None], X)], "pdtr": [(np.arange(5.0), 2.5)],
    "pdtrc": [(np.arange(5.0), 2.5)],
    "bdtr": [(np.arange(5.0), 6.0, 0.3)], "bdtrc": [(np.arange(7.0), 6.0, 0.3)],
    "nbdtr": [(np.arange(5.0), 6.0, 0.3)], "nbdtrc": [(np.arange(5.0), 6.0, 0.3)],
    "fdtr": [(3.0, 7.0, X)], "fdtrc": [(3.0, 7.0, X)], "stdtr": [(X[:, None], V)], "log_expit": [(V * 9,)],
    **{f"eval_{f}": [(n, V) for n in (0, 1, 2, 7)]
    for f in ("chebyt", "chebyu", "legendre", "hermite", "hermitenorm", "laguerre", "sh_chebyt",
    "sh_chebyu", "sh_legendre")},
    "eval_gegenbauer": [(5, 0.7, V)], "eval_genlaguerre": [(5, 0.7, V)],
    "eval_jacobi": [(n, 0.7, 1.3, V) for n in (0, 1, 6)],
    "i0": [(V * 6,)], "i1": [(V * 6,)], "i0e": [(np.array([0.0, 7.99, 8.01, 700.0, -3.0]),)],
    "i1e": [(np.array([0.0, 7.99, 8.01, 700.0, -3.0]),)],
}  # fmt: skip


def cases() -> list[Any]:
    found = [
        (n, getattr(np.linalg, n, None) or getattr(np.fft, n, None) or getattr(np, n), c)
        for n, cs in NUMPY.items()
        for c in cs
    ]
    found += [(n, getattr(scipy.special, n), c) for n, cs in SCIPY.items() for c in cs]
    return [pytest.param(*c, id=f"{c[0]}-{i}") for i, c in enumerate(found)]


def leaves(x: Any) -> list[Any]:
    return [np.asarray(v) for v in (x if isinstance(x, tuple | list) else [x])]


def same(got: Any, want: Any) -> None:
    for a, b in zip(leaves(got), leaves(want), strict=True):
        assert a.shape == b.shape
        tolerance = 1e-5 if a.dtype == np.float32 else 1e-11
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "theirs", "call"), cases())
def test_a_function_has_the_values_of_its_library(
    name: str, theirs: Callable[..., Any], call: tuple[Any, ...]
) -> None:
    kwargs = call[-1] if isinstance(call[-1], dict) else {}
    args = call[: len(call) - bool(kwargs)]
    theirs_kwargs = {("ddof" if k == "correction" else k): v for k, v in kwargs.items()}
    want, ours = theirs(*args, **theirs_kwargs), getattr(op, name)
    # What a function computes is what is looked at; its ops are compiled, each alone and among
    # others, elsewhere.
    target = "numpy" if zlib.crc32(name.encode()) % 6 else "cpu"
    with override(target=target):
        agrees(ours, name, args, kwargs, want)


def agrees(ours: Any, name: str, args: Any, kwargs: Any, want: Any) -> None:
    """Eager and jitted calls have the values wanted."""
    same(ours(*args, **kwargs), want)
    arrays = [i for i, a in enumerate(args) if isinstance(a, np.ndarray) and a.dtype.kind in "fc"]
    if name in ("argwhere", "flatnonzero", "piecewise", "diag_indices_from") or not arrays:
        return

    @ts.jit
    def jitted(*xs: Any) -> Any:
        given = list(args)
        for i, x in zip(arrays, xs, strict=True):
            given[i] = x
        return ours(*given, **kwargs)

    same(jitted(*(ts.tensor(args[i]) for i in arrays)), want)


def test_roots_are_the_zeros() -> None:
    zeros = np.array([-2.0, 0.5, 3.0])
    got = np.sort_complex(op.roots(np.poly(zeros)).numpy())
    np.testing.assert_allclose(got, zeros, rtol=1e-12)
    with pytest.raises(ts.TesseraError, match=r"roots: got f64\[1\], expected two coefficients"):
        op.roots(np.ones(1))


def test_histograms_of_three_variables() -> None:
    points = RNG.standard_normal((40, 3))
    (got, edges), (want, theirs) = (
        op.histogramdd(points, (2, 3, 4)),
        np.histogramdd(points, (2, 3, 4)),
    )
    np.testing.assert_array_equal(got, want)
    for a, b in zip(edges, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_answers_name_what_exists() -> None:
    for name, text in ANSWERS.items():
        for root, said in re.findall(r"\b(op|ts|nn)\.([a-z_0-9]+(?:\.[a-z_]+)?)", text, re.I):
            value: Any = {"op": op, "ts": ts, "nn": ts.nn}[root]
            for part in said.split("."):
                assert hasattr(value, part), f"{name}: {text}"
                value = getattr(value, part)


def test_a_name_of_scipy_is_answered() -> None:
    with pytest.raises(
        AttributeError, match=r"op has no 'airy'; write ts.callback\(scipy.special.airy"
    ):
        op.airy  # noqa: B018


def test_aliases_are_the_ops_themselves() -> None:
    for other, own in ALIASES.items():
        assert getattr(op, other) is getattr(op, own)


def test_every_name_of_the_array_api_is_there() -> None:
    import tessera.array_api as xp

    apart = {
        "asarray",
        "astype",
        "can_cast",
        "finfo",
        "iinfo",
        "isdtype",
        "result_type",
        "from_dlpack",
    }
    functions = [
        n for n in xp.__all__ if callable(getattr(xp, n)) and not isinstance(getattr(xp, n), type)
    ]
    assert [
        n for n in functions if not hasattr(op, n) and n not in apart and not n.startswith("_")
    ] == []


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_has_both_derivatives(name: str) -> None:
    f, a, x = getattr(op, name), 2.3, 1.7
    h = 1e-6
    theirs = getattr(scipy.special, name)
    want = [
        (theirs(a + h, x) - theirs(a - h, x)) / (2 * h),
        (theirs(a, x + h) - theirs(a, x - h)) / (2 * h),
    ]
    got = ts.grad(f, argnums=(0, 1))(ts.tensor(a, dtype=ts.f64), ts.tensor(x, dtype=ts.f64))
    np.testing.assert_allclose([float(g) for g in got], want, rtol=1e-7)
    rows = ts.jit(ts.vmap(ts.grad(f, argnums=1), (None, 0)))(
        ts.tensor(a, dtype=ts.f64), ts.tensor(X)
    )
    np.testing.assert_allclose(
        rows,
        np.exp((a - 1) * np.log(X) - X - scipy.special.gammaln(a))
        * (1 if name == "gammainc" else -1),
        rtol=1e-9,
    )


def test_incomplete_beta_has_its_derivatives() -> None:
    given, h = (1.3, 2.2, 0.4), 1e-6
    want = []
    for i in range(3):
        up, down = ([v + s * h * (j == i) for j, v in enumerate(given)] for s in (1, -1))
        want.append((scipy.special.betainc(*up) - scipy.special.betainc(*down)) / (2 * h))
    got = ts.grad(op.betainc, argnums=(0, 1, 2))(*(ts.tensor(v, dtype=ts.f64) for v in given))
    np.testing.assert_allclose([float(g) for g in got], want, rtol=1e-7)


def test_sizes_that_depend_on_data_are_known_eagerly_or_given() -> None:
    x = np.array([3, 1, 1, 0, 7])
    same(op.bincount(x), np.bincount(x))
    same(op.bincount(x, np.arange(5.0), 10), np.bincount(x, np.arange(5.0), 10))
    same(ts.jit(lambda v: op.bincount(v, length=8))(x), np.bincount(x))
    with pytest.raises(
        ts.TesseraError,
        match="bincount: the size of the result depends on the data; give length= inside jit",
    ):
        ts.jit(op.bincount)(x)


def test_segments_are_folded_by_their_ids() -> None:
    ids = np.array([0, 2, 2, -1])
    folds = {
        "sum": (np.add, 0.0),
        "prod": (np.multiply, 1.0),
        "max": (np.maximum, -np.inf),
        "min": (np.minimum, np.inf),
    }
    for name, (fold, start) in folds.items():
        want = np.full((3, 6), start)
        fold.at(want, ids[:3], A[:3])
        segment = getattr(op, f"segment_{name}")
        same(segment(A, ids, count=3), want)
        same(ts.jit(lambda x, f=segment: f(x, ids, count=3))(A), want)
    with pytest.raises(
        ts.TesseraError,
        match=r"segment_sum: the segments are f64\[9\], expected a vector of integers",
    ):
        op.segment_sum(A, V, count=3)


def test_images_and_bags() -> None:
    x = RNG.standard_normal((2, 8, 3, 4))
    assert op.pixel_shuffle(x, 2).shape == (2, 2, 6, 8)
    same(op.pixel_unshuffle(op.pixel_shuffle(x, 2), 2), x)
    same(op.channel_shuffle(np.arange(6.0).reshape(1, 6), 2), np.array([[0.0, 3, 1, 4, 2, 5]]))
    assert op.unfold(x, 2, padding=1).shape == (2, 32, 20)
    same(
        op.pdist(A),
        np.array([np.linalg.norm(A[i] - A[j]) for i in range(4) for j in range(i + 1, 4)]),
    )
    same(op.normalize(A, axis=1), A / np.linalg.norm(A, axis=1, keepdims=True))
    same(op.embedding_bag(np.array([[0, 2], [1, 1]]), A), np.stack([A[[0, 2]].mean(0), A[1]]))
    hot = op.gumbel_softmax(ts.key(0), A, hard=True)
    same(op.sum(hot, -1), np.ones(4))
    same(op.linear(A, B.T, np.ones(3)), A @ B + 1)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: op.quantile(V, 0.5, method="best"),
    "quantile: method is 'best', expected one of linear, lower, higher, midpoint, nearest"),
    (lambda: op.array_split(V, 0), "array_split: parts is 0, expected 1 or more"),
    (lambda: op.delete(V, 20), "delete: index 20 is out of range of axis 0 of size 9"),
    (lambda: op.convolve(A, V), r"convolve: got f64\[4,6\] and f64\[9\], expected two vectors with elements"),
    (lambda: op.convolve(V, W, "most"), "convolve: mode is 'most', expected full, same or valid"),
    (lambda: op.gcd(V, 2), r"gcd: got f64\[9\] and i64\[9\], expected integers"),
    (lambda: op.pixel_shuffle(CUBE, 2), "pixel_shuffle: 4 does not divide the 2 channels"),
    (lambda: op.ldexp(V, V), r"ldexp: exponent is f64\[9\], expected integers"),
])  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ts.TesseraError, match=message):
        call()
