"""What docs/numerics.md says of policies, for every op that does arithmetic in a format."""

import numpy as np
import pytest

import tessera as ts
from tessera import (
    accum,
    bf16,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    op,
    saturate,
    stochastic_round,
    u8,
    u16,
    u32,
)
from tessera.core.flags import override

INTEGERS = (i4, i8, i16, i32, u8, u16, u32)
FLOATS = (f8e4m3, f8e5m2, bf16, f16, f32, f64)


def limits(d):
    signed = d.kind == "i"
    return (-(2 ** (d.bits - 1)) if signed else 0), 2 ** (d.bits - signed) - 1


def numbers(t):
    return [int(v) for v in np.asarray(t)]


@pytest.mark.parametrize("d", INTEGERS, ids=str)
def test_integer_arithmetic_under_saturate_is_exact_then_clamped(d):
    low, high = limits(d)
    a, b = [low, high, high, 3, low], [high, high, 1, 2, 1]
    x, y = (ts.tensor(np.array(v), dtype=d @ saturate) for v in (a, b))
    for f in (op.add, op.sub, op.mul):
        exact = [int(v) for v in f(ts.tensor(a, dtype=f64), ts.tensor(b, dtype=f64)).numpy()]
        if d is not i32 and d is not u32:  # products of 32 bits are no exact f64
            assert numbers(f(x, y)) == [min(max(v, low), high) for v in exact], f
    assert numbers(op.add(x, y))[1] == high
    assert op.matmul(x, y).item() <= high
    assert (x + y).dtype is d @ saturate


@pytest.mark.parametrize("d", [u8, u16, u32], ids=str)
def test_ops_on_bits_keep_them_under_saturate(d):
    x = np.array([0, 5], d.np)
    assert numbers(op.bitwise_invert(ts.asarray(x).astype(d @ saturate))) == numbers(~x)


@pytest.mark.parametrize("d", FLOATS, ids=str)
def test_float_arithmetic_under_saturate_has_no_infinities(d):
    top = float(op.full((), np.inf, f64).astype(d @ saturate))
    assert np.isfinite(top)
    x = ts.tensor([top, -top, 1.0, np.nan], dtype=d @ saturate)
    doubled = np.asarray(x * 2).astype(np.float64)
    assert doubled[:3].tolist() == [top, -top, 2.0]
    assert np.isnan(doubled[3])
    over = np.asarray(x[:3] / 0.0).astype(np.float64)
    assert over.tolist() == [top, -top, top]
    assert float(op.sum(x[:1] * op.ones((4,), d @ saturate))) == top


def test_without_saturate_floats_overflow_and_integers_wrap():
    assert np.isposinf(float(op.full((), 3e38) * 10))
    assert numbers(ts.tensor([100], dtype=i8) + 100) == [-56]


@pytest.mark.parametrize("d", FLOATS[:4], ids=str)
def test_beyond_the_range_stochastic_rounding_overflows_as_nearest_does(d):
    x = ts.tensor([1e39, -1e39, np.inf, -np.inf, np.nan], dtype=f64)
    nearest, random = (np.asarray(x.astype(p)).astype(f64.np) for p in (d, d @ stochastic_round))
    assert np.array_equal(nearest, random, equal_nan=True)
    assert numbers(np.sign(x.astype(d @ stochastic_round @ saturate).numpy().astype(f64.np))[:4]) == [1, -1,
        1, -1]  # fmt: skip


def test_formats_that_meet_in_a_third_keep_a_common_policy():
    x, y = op.ones((2,), bf16 @ saturate), op.ones((2,), f16 @ saturate)
    assert (x + y).dtype is f32 @ saturate


def test_a_literal_beyond_the_format_is_an_infinity_and_no_warning():
    assert np.isposinf(ts.tensor([1e39]).numpy()).all()


def test_tf32_rounds_the_operands_of_contractions_and_of_nothing_else():
    x = op.full((1, 1), 1 + 2**-12).astype(ts.tf32)
    assert (x @ x).item() == 1
    assert op.einsum("ij,jk->ik", x, x).item() == 1
    assert x.sum().item() == 1 + 2**-12
    assert (x * 1).item() == 1 + 2**-12


@pytest.mark.parametrize("target", ["numpy", "cpu"])
@pytest.mark.parametrize("d", [bf16 @ accum(bf16), f8e4m3 @ accum(f8e4m3)], ids=str)
def test_contractions_that_accumulate_in_a_narrow_format_run(d, target):
    """NumPy's einsum knows no bf16: sums over an axis, transposes of convolutions and pairs of rows."""
    x, w = (np.array([[1.0, -0.5, 2.0], [0.5, 1.5, -1.0]]) * k for k in (1, 0.5))
    a, b = ts.tensor(x, dtype=d), ts.tensor(w, dtype=d)
    with override(target=target):
        got = [
            op.einsum("ij->i", a),
            op.einsum("ij,ij->i", a, b),
            op.conv_transpose(op.reshape(a, (1, 2, 3)), op.reshape(b, (2, 3, 1))),
        ]
    want = [x.sum(1), (x * w).sum(1), np.einsum("ci,co->oi", x, w)[None]]
    for y, z in zip(got, want, strict=True):
        assert y.dtype is d
        np.testing.assert_allclose(np.asarray(y).astype(float), z, rtol=0.1, atol=0.1)


def test_tf32_rounds_every_remainder_to_nearest_even():
    """Numbers around each tie, of odd and even mantissas, beside rounding in f64."""
    ends = np.array([0, 1, 4094, 4095, 4096, 4097, 8190, 8191], np.uint32)
    raw = (
        np.arange(0x3F800000, 0x3F800000 + (6 << 13), 1 << 13, dtype=np.uint32)[:, None] + ends
    ).reshape(-1)
    x = np.concatenate([raw.view(np.float32), -raw.view(np.float32)])
    want = (np.rint(x.astype(np.float64) * 1024) / 1024).astype(np.float32)
    one = np.ones((1, 1), np.float32)
    for target in ("numpy", "cpu"):
        with override(target=target):
            got = ts.jit(lambda x, y: x @ y)(
                ts.tensor(x[:, None]).astype(ts.tf32), ts.tensor(one).astype(ts.tf32)
            )
            np.testing.assert_array_equal(got.astype(f32).numpy()[:, 0], want)
