"""Rounding to storage formats: nearest even, stochastic, saturating, float to integer, tf32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.dtype import (
    FORMATS,
    bf16,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i4,
    i8,
    i64,
    saturate,
    stochastic_round,
    u8,
    u64,
)
from tessera.core.rounding import round_mantissa, round_to

NARROW = [bf16, f16, f8e4m3, f8e5m2]
every_narrow = pytest.mark.parametrize("d", NARROW, ids=str)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def representable(d):
    """Every finite value of an 8-bit or 16-bit float format, ascending, without -0."""
    bits = np.arange(1 << d.bits).astype(f"u{d.bits // 8}")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = bits.view(d.np).astype(np.float64)
    return np.unique(x[np.isfinite(x)])


@every_narrow
def test_representable_values_do_not_move(d):
    x = representable(d)
    for policy in (d, d @ stochastic_round, d @ saturate):
        np.testing.assert_array_equal(round_to(x, policy).astype(np.float64), x)


@every_narrow
@given(x=st.floats(-400, 400))
def test_nearest_is_nearest_with_ties_to_even(d, x):
    grid = representable(d)
    got = float(round_to(np.float32([x]), d)[0])
    x = float(np.float32(x))
    best = np.abs(grid - x).min()
    assert abs(got - x) == best
    rivals = grid[np.abs(grid - x) == best]
    if len(rivals) == 2:
        assert int(np.array(got).astype(d.np).view(f"u{d.bits // 8}")) % 2 == 0


@every_narrow
def test_zero_keeps_its_sign_and_nan_stays(d):
    y = round_to(np.float32([0.0, -0.0, np.nan]), d).astype(np.float64)
    assert np.signbit(y[:2]).tolist() == [False, True]
    assert np.isnan(y[2])


@every_narrow
def test_overflow_follows_the_format_and_saturate_clamps(d):
    top = float(ml_dtypes.finfo(d.np).max)
    x = np.float32([3e38, -3e38, np.inf, -np.inf])
    with np.errstate(over="ignore"):
        free = round_to(x, d).astype(np.float64)
    if d is f8e4m3:
        assert np.isnan(free).all()  # this format has no infinity
    elif d is not bf16:
        np.testing.assert_array_equal(free, [np.inf, -np.inf, np.inf, -np.inf])
    clamped = round_to(x, d @ saturate).astype(np.float64)
    np.testing.assert_array_equal(clamped[2:], [top, -top])
    assert np.abs(clamped).max() == top
    assert np.isnan(round_to(np.float32([np.nan]), d @ saturate).astype(np.float64)).all()


@every_narrow
@given(x=st.floats(-300, 300, width=32))
def test_stochastic_rounding_takes_a_neighbour(d, x):
    grid = representable(d)
    got = float(round_to(np.float32([x]), d @ stochastic_round)[0])
    below, above = grid[grid <= x].max(), grid[grid >= x].min()
    assert got in (below, above)


@every_narrow
def test_stochastic_rounding_is_right_on_average(d):
    """The mean of n roundings lies within 5 standard deviations of the value."""
    for x in (1.0 + 1 / 3 / 64, -0.7391, 0.1):
        xs = np.full(20_000, x, np.float32)
        y = round_to(xs, d @ stochastic_round).astype(np.float64)
        gap = y.max() - y.min()
        assert gap > 0
        assert abs(y.mean() - float(np.float32(x))) <= 5 * gap / 2 / np.sqrt(len(xs))


def test_stochastic_rounding_is_a_function_of_its_input():
    x = np.random.default_rng(0).normal(size=100).astype(np.float32)
    d = bf16 @ stochastic_round
    assert round_to(x, d).tobytes() == round_to(x.copy(), d).tobytes()


@pytest.mark.parametrize("d", [i4, i8, u8, i64, u64], ids=str)
def test_floats_truncate_and_clamp_into_integers(d):
    low, high = int(ml_dtypes.iinfo(d.np).min), int(ml_dtypes.iinfo(d.np).max)
    x = np.array([0.9, -0.9, 2.5, np.nan, np.inf, -np.inf, 1e30, -1e30, float(low), float(high)])
    want = [0, 0, 2, 0, high, low, high, low, low, high]
    assert [int(v) for v in round_to(x, d)] == want


@pytest.mark.parametrize("name", ["bf16", "f16", "f8e4m3", "f8e5m2", "f32"])
def test_every_float_format_truncates_into_integers(name):
    x = np.array([-1.75, 1.75, 3.5]).astype(FORMATS[name].np)
    assert [int(v) for v in round_to(x, i8)] == [-1, 1, 3]


def test_integers_wrap_and_saturate_clamps():
    x = np.array([300, -129, 127, -1])
    assert round_to(x, i8).tolist() == [44, 127, 127, -1]
    assert round_to(x, i8 @ saturate).tolist() == [127, -128, 127, -1]
    assert round_to(x, u8).tolist() == [44, 127, 127, 255]
    assert round_to(x, u8 @ saturate).tolist() == [255, 0, 127, 0]
    assert [int(v) for v in round_to(np.arange(-10, 11), i4)] == [
        (n + 8) % 16 - 8 for n in range(-10, 11)
    ]
    assert [int(v) for v in round_to(np.array([9, -9]), i4 @ saturate)] == [7, -8]
    assert int(round_to(np.array([2**64 - 1], np.uint64), i64 @ saturate)[0]) == 2**63 - 1
    assert int(round_to(np.array([-5]), u64 @ saturate)[0]) == 0


@pytest.mark.parametrize("d", FORMATS.values(), ids=str)
def test_a_scalar_stays_an_array(d):
    for x in (np.array(1.0), np.array(1), np.array(True)):
        for policy in (d, *([d @ saturate] if d.kind in "iuf" else [])):
            y = round_to(x, policy)
            assert isinstance(y, np.ndarray)
            assert (y.shape, y.dtype) == ((), d.np)


@given(floats)
def test_tf32_keeps_ten_bits(x):
    (y,) = round_mantissa(np.float32([x]), 10)
    assert int(np.float32(y).view(np.uint32)) % (1 << 13) == 0
    if np.isfinite(y) and x != 0:
        scale = 2.0 ** np.floor(np.log2(abs(float(np.float32(x)))))
        assert abs(float(y) - float(np.float32(x))) <= max(scale, 2.0**-126) * 2.0**-11


def test_tf32_rounds_ties_to_even_and_keeps_what_is_not_finite():
    one = 1.0
    x = np.float32([one + 2**-11, one + 3 * 2**-11, np.inf, -np.inf, np.nan])
    y = round_mantissa(x, 10)
    np.testing.assert_array_equal(y[:4], [1.0, 1.0 + 2 * 2**-10, np.inf, -np.inf])
    assert np.isnan(y[4])


def test_wide_formats_are_ieee_casts():
    x = np.random.default_rng(0).normal(size=50)
    np.testing.assert_array_equal(round_to(x, f32), x.astype(np.float32))
    np.testing.assert_array_equal(round_to(x, f64), x)
