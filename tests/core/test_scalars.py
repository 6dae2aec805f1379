"""The scalar table: every row against NumPy or SciPy, every identity, every stated error bound."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tessera.core.scalar import SCALARS, apply, arg, const, evaluate, product

ROWS = pytest.mark.parametrize("row", SCALARS.values(), ids=lambda r: r.name)
FOLDS = [r for r in SCALARS.values() if r.identity is not None]

# Rows with a counterpart in Python's math, which we did not write, and where to compare (lgamma
# away from its zeros at 1 and 2, where the counterpart is no better than SciPy).
MATH = {
    "sqrt": (math.sqrt, 0, 9), "cbrt": (math.cbrt, -9, 9), "exp": (math.exp, -9, 9),
    "exp2": (math.exp2, -9, 9), "expm1": (math.expm1, -2, 2), "log": (math.log, 0.01, 9),
    "log2": (math.log2, 0.01, 9), "log10": (math.log10, 0.01, 9), "log1p": (math.log1p, -0.9, 9),
    "sin": (math.sin, -9, 9), "cos": (math.cos, -9, 9), "tan": (math.tan, -1.4, 1.4),
    "asin": (math.asin, -1, 1), "acos": (math.acos, -1, 1), "atan": (math.atan, -9, 9),
    "sinh": (math.sinh, -9, 9), "cosh": (math.cosh, -9, 9), "tanh": (math.tanh, -9, 9),
    "asinh": (math.asinh, -9, 9), "acosh": (math.acosh, 1, 9), "atanh": (math.atanh, -0.99, 0.99),
    "erf": (math.erf, -3, 3), "erfc": (math.erfc, -3, 3), "lgamma": (math.lgamma, 2.5, 30),
    "gamma": (math.gamma, 0.1, 9), "floor": (math.floor, -9, 9), "ceil": (math.ceil, -9, 9),
    "trunc": (math.trunc, -9, 9), "round": (round, -9, 9), "abs": (abs, -9, 9),
    "neg": (lambda x: -x, -9, 9), "recip": (lambda x: 1 / x, 0.1, 9),
    "rsqrt": (lambda x: 1 / math.sqrt(x), 0.1, 9), "square": (lambda x: x * x, -9, 9),
    "sigmoid": (lambda x: 1 / (1 + math.exp(-x)), -9, 9),
}  # fmt: skip


@ROWS
def test_a_row_is_found_by_its_name(row):
    assert SCALARS[row.name] is row
    assert row.arity in (1, 2, 3, 4)
    assert row.ulp >= 0.5


@pytest.mark.parametrize("name", MATH)
def test_a_row_stays_within_its_bound(name):
    """Two implementations may lie apart by the sum of their errors; math's is at most 1 ulp."""
    f, low, high = MATH[name]
    x = np.random.default_rng(0).uniform(low, high, 500)
    want = np.array([f(float(v)) for v in x])
    apart = np.abs(SCALARS[name].numpy(x) - want) / np.spacing(np.abs(want))
    assert apart.max() <= SCALARS[name].ulp + 2


@pytest.mark.parametrize("row", FOLDS, ids=lambda r: r.name)
def test_an_identity_changes_nothing(row):
    for x in samples_of(row):
        with np.errstate(invalid="ignore"):
            assert row.numpy(x, x.dtype.type(row.identity)) == x
            assert row.numpy(x.dtype.type(row.identity), x) == x


@pytest.mark.parametrize("row", FOLDS, ids=lambda r: r.name)
def test_a_fold_is_associative_and_commutative(row):
    """In exact arithmetic: whole numbers, except logaddexp which rounds."""
    xs = samples_of(row)[:3]
    a, b, c = xs
    left, right = row.numpy(row.numpy(a, b), c), row.numpy(a, row.numpy(b, c))
    np.testing.assert_allclose(left, right, rtol=1e-15)
    assert row.numpy(a, b) == row.numpy(b, a)


def samples_of(row):
    if row.name.startswith("logical"):
        return [np.bool_(v) for v in (True, False, True)]
    if row.name in ("and", "or", "xor"):
        return [np.int64(v) for v in (5, -3, 12, 0, -1)]
    return [np.float64(v) for v in (1.0, -3.0, 4.0, 0.5, np.inf if row.name == "max" else 8.0)]


def test_sigmoid_does_not_overflow():
    with np.errstate(over="raise", invalid="raise"):
        y = SCALARS["sigmoid"].numpy(np.array([-1e4, -745.0, 0.0, 745.0, 1e4]))
    np.testing.assert_array_equal(y[[0, 2, 4]], [0.0, 0.5, 1.0])
    assert SCALARS["sigmoid"].numpy(np.float32(1)).dtype == np.float32


def test_sigmoid_keeps_nan():
    assert np.isnan(SCALARS["sigmoid"].numpy(np.array(np.nan)))


def test_an_expression_evaluates_and_prints():
    e = apply("add", apply("mul", arg(0), arg(1)), const(2.0))
    assert str(e) == "add(mul(x0, x1), 2.0)"
    assert evaluate(e, [np.float64(3), np.float64(4)]) == 14
    assert str(product(3)) == "mul(mul(x0, x1), x2)"
    assert evaluate(product(3), [2, 3, 4]) == 24


def test_equal_expressions_are_equal():
    assert apply("neg", arg(1)) == apply("neg", arg(1))
    assert hash(product(2)) == hash(product(2))
    assert product(2) != product(3)


def test_a_wrong_arity_is_caught():
    with pytest.raises(AssertionError, match="add"):
        apply("add", arg(0))
