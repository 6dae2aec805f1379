"""Running folds: laws that tie them to folds and to each other, then NumPy and SciPy as oracles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import op
from tessera.core.errors import AxisError, ShapeError
from tests.support.breadth import examples

FOLDS = {"cumsum": np.cumsum, "cumprod": np.cumprod}
EXTREMES = {"cummax": np.maximum, "cummin": np.minimum}


def arrays(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 5), st.data())
@examples(100)
def test_running_folds_equal_numpy(shape, seed, data):
    x = arrays(seed, tuple(shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    back = np.flip(x, axis)
    for name, ufunc in {**EXTREMES, "cumsum": np.add, "cumprod": np.multiply}.items():
        f = getattr(op, name)
        np.testing.assert_array_equal(f(x, axis), ufunc.accumulate(x, axis))
        want = np.flip(ufunc.accumulate(back, axis), axis)
        np.testing.assert_array_equal(f(x, axis, reverse=True), want)
        jitted = ts.jit(lambda x, f=f: f(x, axis))(x)
        np.testing.assert_array_equal(jitted, f(x, axis))


def test_a_running_fold_ends_in_the_fold():
    x = arrays(1, (3, 5))
    np.testing.assert_allclose(op.cumsum(x, 1)[:, -1], op.sum(x, 1), rtol=1e-12)
    np.testing.assert_allclose(op.cumprod(x, 1)[:, -1], op.prod(x, 1), rtol=1e-12)
    np.testing.assert_array_equal(op.cummax(x, 1)[:, -1], op.max(x, 1))
    np.testing.assert_allclose(op.logcumsumexp(x, 1)[:, -1], op.logsumexp(x, 1), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["i8", "i32", "u8", "bool"])
def test_integers_accumulate_in_64_bits(dtype):
    x = ts.tensor([100, 100, 100], dtype="u8").astype(dtype)
    y = op.cumsum(x)
    assert y.dtype is (ts.u64 if dtype == "u8" else ts.i64)
    assert y.tolist() == np.cumsum(np.asarray(x)).tolist()


def test_bf16_is_summed_in_f32_and_rounded_once():
    x = ts.tensor([1.0] + [2.0**-9] * 8, dtype=ts.bf16)
    assert op.cumsum(x)[-1].item() == float(ts.tensor(1 + 8 * 2.0**-9, dtype=ts.bf16))


def test_nan_and_infinity():
    x = np.array([1.0, np.nan, 3.0])
    for name, ufunc in EXTREMES.items():
        np.testing.assert_array_equal(getattr(op, name)(x), ufunc.accumulate(x))
    low = np.array([-np.inf, -np.inf, 0.0, 800.0, 801.0])
    np.testing.assert_allclose(op.logcumsumexp(low), np.logaddexp.accumulate(low))
    t = ts.jvp(op.logcumsumexp, (low,), (np.ones(5),))[1]
    np.testing.assert_allclose(t, [0, 0, 1, 1, 1])


def test_no_axis_means_the_flat_tensor():
    x = arrays(2, (2, 3))
    np.testing.assert_array_equal(op.cumsum(x), np.cumsum(x))
    assert op.cumsum(np.float64(3.0)).tolist() == [3.0]


def test_linear_recurrence_is_the_recurrence():
    a, b = arrays(3, (2, 4)), arrays(4, (2, 4))
    y = np.zeros((2, 4))
    for i in range(4):
        y[:, i] = a[:, i] * (y[:, i - 1] if i else 0) + b[:, i]
    np.testing.assert_allclose(op.linear_recurrence(a, b), y)
    np.testing.assert_allclose(op.linear_recurrence(1.0, b), np.cumsum(b, -1))
    back = op.linear_recurrence(a[:, ::-1], b[:, ::-1], reverse=True)[:, ::-1]
    np.testing.assert_allclose(back, y)


def test_cumprod_has_right_derivatives_through_zeros():
    x = np.array([2.0, 0.0, 3.0, 0.0, 5.0])
    eps = 1e-4
    got = np.asarray(ts.vjp(op.cumprod, x)[1](np.ones(5))[0])

    def total(x):
        return np.cumprod(x).sum()

    steps = np.eye(5) * eps
    want = [(total(x + d) - total(x - d)) / (2 * eps) for d in steps]
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    gradient = ts.grad(lambda x: op.sum(op.cumprod(x)))
    columns = [np.asarray(ts.jvp(gradient, (x,), (d,))[1]) for d in np.eye(5)]
    second = [
        [
            (total(x + d + e) - total(x + d - e) - total(x - d + e) + total(x - d - e))
            / (4 * eps * eps)
            for e in steps
        ]
        for d in steps
    ]
    np.testing.assert_allclose(np.array(columns), np.array(second), rtol=1e-5, atol=1e-5)


def test_the_standard_forms():
    x = np.array([[1, 2, 3], [4, 5, 6]])
    assert op.cumulative_sum(x, axis=1).tolist() == [[1, 3, 6], [4, 9, 15]]
    assert op.cumulative_sum(x, axis=1, include_initial=True).tolist() == [
        [0, 1, 3, 6],
        [0, 4, 9, 15],
    ]
    assert op.cumulative_prod(x, axis=0, include_initial=True).tolist() == [
        [1] * 3,
        [1, 2, 3],
        [4, 10, 18],
    ]
    assert op.cumulative_sum(x, axis=0, dtype=ts.i8).dtype is ts.i8
    assert op.cumulative_sum(np.zeros((0,)), include_initial=True).tolist() == [0.0]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 5), st.data())
@examples(60)
def test_diff_equals_numpy(shape, n, data):
    x = arrays(n, tuple(shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    np.testing.assert_array_equal(op.diff(x, n, axis), np.diff(x, n, axis))


def test_diff_undoes_cumsum():
    x = np.arange(12).reshape(3, 4)
    back = op.diff(op.cumulative_sum(x, 1, include_initial=True), axis=1)
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(op.diff(x, axis=1, prepend=x[:, :1], append=x[:, :2]),
                                  np.diff(x, axis=1, prepend=x[:, :1], append=x[:, :2]))  # fmt: skip
    assert op.diff(np.array([True, False, False])).tolist() == [True, False]


def test_symbolic_sizes():
    @ts.jit
    def f(x: ts.Tensor["N", ts.f64]):
        return op.cumprod(x), op.diff(x), op.cumulative_sum(x, include_initial=True)

    for n in (2, 5):
        x = arrays(n, (n,))
        p, d, s = f(x)
        np.testing.assert_array_equal(p, np.cumprod(x))
        np.testing.assert_array_equal(d, np.diff(x))
        np.testing.assert_allclose(s, [0, *np.cumsum(x)])
    assert f.compiled == 1


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: op.cumsum(np.zeros((2, 3)), 2), AxisError,
         "cumsum: axis 2 is out of range for rank 2; use -2 to 1"),
        (lambda: op.cumulative_sum(np.zeros((2, 3))), AxisError,
         "cumsum: f64[2,3] has 2 axes; name one with axis="),
        (lambda: op.diff(np.zeros(3), n=-1), ShapeError, "diff: n is -1, expected 0 or more"),
    ],
)  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error) as e:
        call()
    assert e.value.message == text
