"""op.random: distributions against SciPy, streams, reproducibility, derivatives, messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import tessera as ts
from tessera import Tensor, op
from tessera.core.dtype import DType
from tessera.core.errors import DTypeError, OperandError, ShapeError, TesseraError
from tessera.core.philox import random_words
from tessera.lang.random import repeated
from tessera.ops import random as ops_random
from tessera.ops.random_bits import fine, random_bits, unit
from tests.support.runners.tolerance import assert_same_bits

R = op.random
N = 100_000
KEY = ts.key(2024)


def array(x: Any) -> np.ndarray[Any, Any]:
    """A tensor as f64 or integers."""
    a = np.asarray(x)
    return a if a.dtype.kind in "biuc" else a.astype(np.float64)


# Distributions ----------------------------------------------------------------------------------

CONTINUOUS: dict[str, tuple[Callable[[DType], Tensor], Any]] = {
    "uniform": (lambda d: R.uniform(KEY, (N,), dtype=d), stats.uniform()),
    "uniform_ab": (lambda d: R.uniform(KEY, (N,), -3.0, 5.0, dtype=d), stats.uniform(-3, 8)),
    "normal": (lambda d: R.normal(KEY, (N,), dtype=d), stats.norm()),
    "normal_ms": (lambda d: R.normal(KEY, (N,), 2.0, 0.5, dtype=d), stats.norm(2, 0.5)),
    "truncated": (lambda d: R.truncated_normal(KEY, -1.0, 2.0, (N,), dtype=d), stats.truncnorm(-1, 2)),
    "left_tail": (
        lambda d: R.truncated_normal(KEY, -30.0, -8.0, (N,), dtype=d), stats.truncnorm(-30, -8),
    ),
    "right_tail": (
        lambda d: R.truncated_normal(KEY, 5.0, float("inf"), (N,), dtype=d),
        stats.truncnorm(5, np.inf),
    ),
    "exponential": (lambda d: R.exponential(KEY, (N,), 3.0, dtype=d), stats.expon(scale=3)),
    "laplace": (lambda d: R.laplace(KEY, (N,), 1.0, 2.0, dtype=d), stats.laplace(1, 2)),
    "gumbel": (lambda d: R.gumbel(KEY, (N,), 1.0, 2.0, dtype=d), stats.gumbel_r(1, 2)),
    "gamma_half": (lambda d: R.gamma(KEY, 0.5, (N,), dtype=d), stats.gamma(0.5)),
    "gamma_1": (lambda d: R.gamma(KEY, 1.0, (N,), dtype=d), stats.gamma(1)),
    "gamma_7": (lambda d: R.gamma(KEY, 7.0, (N,), 0.1, dtype=d), stats.gamma(7, scale=0.1)),
    "loggamma": (lambda d: R.loggamma(KEY, 0.02, (N,), dtype=d), stats.loggamma(0.02)),
    "beta": (lambda d: R.beta(KEY, 2.0, 0.5, (N,), dtype=d), stats.beta(2, 0.5)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [ts.f32, ts.f64], ids=str)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_continuous_law_is_that_of_scipy(name: str, dtype: DType) -> None:
    """Kolmogorov-Smirnov at 1%, and the mean and variance within four of their deviations."""
    draw, law = CONTINUOUS[name]
    t = draw(dtype)
    assert t.dtype is dtype
    x = array(t)
    assert stats.kstest(x, law.cdf).statistic < 1.63 / np.sqrt(N)
    mean, var, kurtosis = law.stats("mvk")
    assert abs(x.mean() - mean) < 4 * np.sqrt(var / N)
    assert abs(x.var() - var) < 4 * var * np.sqrt((kurtosis + 2) / N)


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 9.9, 10.0, 47.5, 1000.0])
def test_poisson_counts_have_their_probabilities(rate: float) -> None:
    x = array(R.poisson(KEY, rate, (N,)))
    if rate == 0:
        assert (x == 0).all()
        return
    low, high = (int(q) for q in stats.poisson(rate).ppf([0.001, 0.999]))
    edges = np.unique(np.linspace(low, high, 30).astype(int))
    seen = np.histogram(x, [-np.inf, *(edges + 0.5), np.inf])[0]
    want = N * np.diff([0, *stats.poisson(rate).cdf(edges), 1])
    assert stats.chisquare(seen, want).pvalue > 0.01
    assert abs(x.mean() - rate) < 4 * np.sqrt(rate / N)


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-3, 4), (5, 6), (-(2**62), 2**62)])
def test_integers_are_equally_likely(low: int, high: int) -> None:
    x = array(R.randint(KEY, (N,), low, high))
    assert x.min() >= low
    assert x.max() < high
    cells = min(high - low, 16)
    seen = np.bincount(((x - low) * (cells / (high - low))).astype(int), minlength=cells)
    assert stats.chisquare(seen).pvalue > 0.01 if cells > 1 else (x == low).all()


@pytest.mark.parametrize("dtype", [ts.i8, ts.u8, ts.i32, ts.i64, ts.u64], ids=str)
def test_integers_fill_the_whole_of_a_dtype(dtype: DType) -> None:
    info = np.iinfo(dtype.np)
    x = array(R.randint(KEY, (N,), int(info.min), int(info.max) + 1, dtype=dtype))
    assert x.dtype == dtype.np
    top = (x >> (dtype.bits - 4)) & 15
    assert stats.chisquare(np.bincount(top, minlength=16)).pvalue > 0.01


def test_integers_take_bounds_by_element_and_an_empty_range_gives_low() -> None:
    low, high = ts.tensor([0, -5, 7]), ts.tensor([10, 0, 7])
    x = array(R.randint(KEY, (1000, 3), low, high))
    assert x.min(0).tolist() == [0, -5, 7]
    assert x.max(0).tolist() == [9, -1, 7]


def test_bernoulli_is_true_with_its_probability() -> None:
    p = np.array([0.0, 0.1, 0.5, 1.0])
    share = array(R.bernoulli(KEY, ts.tensor(p), (N, 4))).mean(0)
    assert share[0] == 0
    assert share[3] == 1
    assert (np.abs(share - p) <= 4 * np.sqrt(p * (1 - p) / N)).all()


def test_categorical_has_the_probabilities_of_softmax() -> None:
    logits = ts.tensor(np.log([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]))
    x = array(R.categorical(KEY, logits, shape=(N, 2)))
    for column, p in zip(x.T, np.exp(logits.numpy()), strict=True):
        assert stats.chisquare(np.bincount(column, minlength=3), N * p).pvalue > 0.01
    turned = array(R.categorical(KEY, logits.T, axis=0, shape=(N, 2)))
    assert (
        stats.chisquare(
            np.bincount(turned[:, 0], minlength=3), N * np.array([0.1, 0.2, 0.7])
        ).pvalue
        > 0.01
    )
    never = ts.tensor([0.0, -np.inf])
    assert (array(R.categorical(KEY, never, shape=(1000,))) == 0).all()


def test_dirichlet_lies_on_the_simplex_with_beta_margins() -> None:
    x = array(R.dirichlet(KEY, ts.tensor([1.0, 2.0, 3.0]), (N,), dtype=ts.f64))
    np.testing.assert_allclose(x.sum(1), 1, rtol=1e-12)
    for k, a in enumerate([1, 2, 3]):
        assert stats.kstest(x[:, k], stats.beta(a, 6 - a).cdf).statistic < 1.63 / np.sqrt(N)
    tiny = array(R.dirichlet(KEY, ts.tensor([1e-3, 1e-3]), (1000,)))
    np.testing.assert_allclose(tiny.sum(1), 1, rtol=1e-6)  # where both gamma variables underflow


def test_complex_normals_have_variance_one_and_no_preferred_phase() -> None:
    z = np.asarray(R.normal(KEY, (N,), dtype=ts.c64))
    assert z.dtype == np.complex64
    assert abs(np.mean(np.abs(z) ** 2) - 1) < 4 / np.sqrt(N)
    assert stats.kstest(np.angle(z), stats.uniform(-np.pi, 2 * np.pi).cdf).pvalue > 0.01
    assert stats.kstest(np.abs(z) ** 2, stats.expon.cdf).pvalue > 0.01


@pytest.mark.parametrize("dtype", [ts.bf16, ts.f16, ts.f8e4m3, ts.f8e5m2], ids=str)
def test_narrow_uniforms_stay_below_high(dtype: DType) -> None:
    x = array(R.uniform(KEY, (N,), dtype=dtype))
    assert 0 <= x.min() < x.max() < 1
    assert len(np.unique(x)) == 2 ** {"bf16": 8, "f16": 11, "f8e4m3": 4, "f8e5m2": 3}[dtype.name]
    y = array(R.uniform(KEY, (N,), 2.0, 3.0, dtype=dtype))
    assert 2 <= y.min() < y.max() < 3
    assert abs(array(R.normal(KEY, (N,), dtype=dtype)).std() - 1) < 0.02


def test_the_ends_of_the_unit_interval() -> None:
    """fine never gives 0 or 1, unit gives 0 and never 1: so no logarithm is infinite."""
    for wide, word in ((ts.f32, np.uint32), (ts.f64, np.uint64)):
        ends = ts.tensor(np.array([0, np.iinfo(word).max], word))
        low, high = array(fine(ends, wide))
        digits = 24 if wide is ts.f32 else 53
        assert low == 0.5 ** (wide.bits + 1)
        assert high == 1 - 2.0**-digits
        assert array(unit(ends, wide)).tolist() == [0, 1 - 2.0**-digits]
    assert np.sqrt(-2 * np.log(0.5**33)) > 6.7
    assert np.sqrt(-2 * np.log(0.5**65)) > 9.4


# Streams ----------------------------------------------------------------------------------------


def test_split_streams_are_independent() -> None:
    keys = ts.split(KEY, 8)
    x = np.stack([array(R.normal(k, (N // 10,))) for k in (KEY, *keys)])
    r = np.corrcoef(x)[np.triu_indices(9, 1)]
    assert np.abs(r).max() < 4 / np.sqrt(N // 10)
    # One joint cell table of two streams.
    u, v = (array(R.uniform(k, (N,))) for k in keys[:2])
    table = np.histogram2d(u, v, bins=8)[0]
    assert stats.chisquare(table.ravel()).pvalue > 0.01


def test_elements_of_one_stream_are_independent() -> None:
    u = array(R.uniform(KEY, (N,)))
    for lag in (1, 2, 3, 4, 64):
        table = np.histogram2d(u[:-lag], u[lag:], bins=8)[0]
        assert stats.chisquare(table.ravel()).pvalue > 0.01, lag


def test_neighbouring_seeds_and_folded_keys_do_not_collide() -> None:
    keys = [tuple(ts.key(s).tolist()) for s in range(-50, 50)]
    keys += [tuple(k) for s in range(10) for k in ts.split(ts.key(s), 50).tolist()]
    keys += [tuple(ts.fold_in(ts.key(s), i).tolist()) for s in range(10) for i in range(50)]
    assert len(set(keys)) == len(keys)
    assert ts.key(-1).tolist() == ts.key(2**64 - 1).tolist() == [2**32 - 1] * 2


def test_elements_do_not_depend_on_the_rest_of_the_tensor() -> None:
    """A prefix of a longer draw, and any shape of it, hold the same numbers."""
    for f in (
        R.bits, R.uniform, R.normal, R.exponential, R.gumbel, R.laplace,
        lambda k, s: R.gamma(k, 0.3, s), lambda k, s: R.poisson(k, 20.0, s),
    ):  # fmt: skip
        whole = f(KEY, (60,))
        assert_same_bits(f(KEY, (7,)), whole[:7])
        assert_same_bits(f(KEY, (3, 4, 5)), whole.reshape(3, 4, 5))


def test_traced_keys_seeds_and_steps_give_the_same_numbers() -> None:
    def f(key: Tensor, step: Tensor) -> Any:
        a, b = ts.split(key)
        return R.normal(a, (5,)), R.gamma(b, 2.0, (3,)), R.bits(ts.fold_in(key, step), (2,))

    for got, want in zip(ts.jit(f)(KEY, 3), f(KEY, 3), strict=True):
        assert_same_bits(got, want)
    assert_same_bits(ts.jit(ts.key)(-5), ts.key(-5))


def test_symbolic_shapes_draw_the_same_numbers() -> None:
    @ts.jit
    def noise(key: Tensor, x: Tensor["B", "S", ts.f32]) -> Tensor:
        return R.normal(key, x.shape) + R.dropout(key, x)

    for shape in ((2, 3), (4, 5)):
        x = op.ones(shape)
        assert_same_bits(noise(KEY, x), R.normal(KEY, shape) + R.dropout(KEY, x))
    assert noise.compiled == 1


@pytest.mark.parametrize("draw", [
    lambda k: op.random.normal(k, (256, 8)), lambda k: op.random.uniform(k, (37,), dtype=ts.f64),
    lambda k: op.random.normal(k, (5, 3), dtype=ts.f64), ts.split, lambda k: ts.fold_in(k, 3),
    lambda k: op.random.bernoulli(k, 0.3, (4097,)), lambda k: op.random.randint(k, (), 0, 9),
    lambda k: op.random.bits(k, (0, 3)),
])  # fmt: skip
def test_jitted_draws_are_machine_code_with_the_bits_of_the_reference(draw: Any) -> None:
    k, jitted = ts.key(11), ts.jit(draw)
    assert not any("random_bits" in name for name in jitted.lower(k).host_steps)
    assert_same_bits(jitted(k), draw(k))


@pytest.mark.parametrize("dtype", [ts.u32, ts.u64], ids=str)
@pytest.mark.parametrize("number", [0, 1, 2, 5])
def test_compiled_words_are_those_of_philox(dtype: DType, number: int) -> None:
    rng = np.random.default_rng(number)
    keys = [ts.tensor(rng.integers(2**32, size=(3, 41), dtype=np.uint32)) for _ in range(2)]
    counter = ts.tensor(rng.integers(2**64, size=(3, 41), dtype=np.uint64))
    draw = lambda *xs: random_bits(*xs, draw=number, purpose=number, dtype=dtype)  # noqa: E731
    want = random_words(
        *(x.numpy() for x in (*keys, counter)), dtype.bits // 32, draw=number, purpose=number
    )
    np.testing.assert_array_equal(ts.jit(draw)(*keys, counter).numpy(), want)


def test_the_numbers_of_a_key_are_pinned() -> None:
    """These are the format: a change here changes every stored seed of every user."""
    k = ts.key(42)
    assert ts.split(k).tolist() == PINNED_SPLIT
    assert ts.fold_in(k, 7).tolist() == PINNED_FOLD
    assert R.bits(k, (3,)).tolist() == PINNED_BITS
    assert R.randint(k, (4,), 0, 1000).tolist() == PINNED_RANDINT
    np.testing.assert_array_equal(array(R.uniform(k, (3,))), PINNED_UNIFORM)
    np.testing.assert_allclose(array(R.normal(k, (3,), dtype=ts.f64)), PINNED_NORMAL, rtol=1e-14)
    np.testing.assert_allclose(array(R.gamma(k, 0.5, (3,), dtype=ts.f64)), PINNED_GAMMA, rtol=1e-12)


PINNED_SPLIT = [[541301508, 2550652962], [528846114, 1519611893]]
PINNED_FOLD = [1928664837, 3952527727]
PINNED_BITS = [2632642643, 4242219303, 3547071013]
PINNED_RANDINT = [859, 703, 77, 541]
PINNED_UNIFORM = [0.6129598617553711, 0.9877186417579651, 0.8258668184280396]
PINNED_NORMAL = [-0.6653748678073488, -1.4338891806537386, 0.13500793462831737]
PINNED_GAMMA = [0.29646926827111514, 0.053750409237135, 0.15200784712472484]


# Choices ----------------------------------------------------------------------------------------


def test_a_permutation_holds_each_number_once_and_every_order_is_as_likely() -> None:
    x = array(R.permutation(KEY, 1000))
    assert sorted(x.tolist()) == list(range(1000))
    orders = [tuple(R.permutation(k, 3).tolist()) for k in ts.split(KEY, 600)]
    seen = np.unique([str(o) for o in orders], return_counts=True)[1]
    assert len(seen) == 6
    assert stats.chisquare(seen).pvalue > 0.01


def test_a_permutation_of_a_tensor_moves_whole_slices() -> None:
    x = ts.tensor(np.arange(12.0).reshape(3, 4))
    order = array(R.permutation(KEY, 4))
    np.testing.assert_array_equal(R.permutation(KEY, x, axis=1).numpy(), x.numpy()[:, order])


def test_choices_follow_p_and_do_not_repeat_without_replacement() -> None:
    p = [0.1, 0.6, 0.3]
    x = array(R.choice(KEY, ts.tensor([5.0, 6.0, 7.0]), (N,), p=p))
    assert stats.chisquare([(x == v).sum() for v in (5, 6, 7)], N * np.array(p)).pvalue > 0.01
    assert sorted(R.choice(KEY, 10, (2, 5), replace=False).numpy().ravel()) == list(range(10))
    first = [R.choice(k, 3, (2,), replace=False, p=p).tolist() for k in ts.split(KEY, 600)]
    assert all(a != b for a, b in first)
    seen = np.bincount([a for a, _ in first], minlength=3)
    assert stats.chisquare(seen, 600 * np.array(p)).pvalue > 0.01
    assert set(R.choice(KEY, 4, (200,)).tolist()) == {0, 1, 2, 3}


# Dropout and derivatives ------------------------------------------------------------------------


def test_dropout_zeroes_a_share_and_keeps_the_mean() -> None:
    x = op.ones((N,))
    y = array(R.dropout(KEY, x, 0.3))
    assert set(np.unique(y)) == {0.0, float(np.float32(1 / 0.7))}
    assert abs((y == 0).mean() - 0.3) < 4 * np.sqrt(0.21 / N)
    assert R.dropout(KEY, x, 0.3, training=False) is x
    assert (array(R.dropout(KEY, x, 1.0)) == 0).all()
    assert op.dropout is R.dropout


def test_dropout_is_linear_with_one_mask() -> None:
    a, b = R.normal(ts.key(1), (50,), dtype=ts.f64), R.normal(ts.key(2), (50,), dtype=ts.f64)

    def f(x: Tensor) -> Tensor:
        return op.dropout(KEY, x, 0.4)

    np.testing.assert_allclose(f(a * 2 + b).numpy(), (f(a) * 2 + f(b)).numpy(), rtol=1e-14)
    np.testing.assert_array_equal(ts.jvp(f, (a,), (b,))[1].numpy(), f(b).numpy())
    np.testing.assert_array_equal(ts.vjp(f, a)[1](b)[0].numpy(), f(b).numpy())


def test_parameters_have_reparameterised_gradients() -> None:
    mean, std = ts.tensor(1.5, ts.f64), ts.tensor(0.7, ts.f64)
    z = R.normal(KEY, (9,), dtype=ts.f64)
    draw = ts.grad(lambda m, s: R.normal(KEY, (9,), m, s, dtype=ts.f64).sum(), argnums=(0, 1))
    g_mean, g_std = draw(mean, std)
    assert float(g_mean) == 9
    np.testing.assert_allclose(float(g_std), float(z.sum()), rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.01, 0.3, 1.0, 5.0, 80.0])
def test_the_slope_of_gamma_is_the_series(alpha: float) -> None:
    """d log z / d alpha at fixed P(alpha, z) = sum z^n Gamma(a) / Gamma(a + n + 1) (psi(a + n + 1) - log
    z).
    """
    a = ts.tensor(np.full(20, alpha))
    log_z, slope = ts.jvp(lambda a: R.loggamma(KEY, a), (a,), (op.ones_like(a),))
    want = np.zeros(20)
    z, term = np.exp(log_z.numpy()), np.ones(20)
    for n in range(2000):
        want += term * (special.digamma(alpha + n + 1) - log_z.numpy()) / alpha
        term *= z / (alpha + n + 1)
    np.testing.assert_allclose(slope.numpy(), want, rtol=1e-8)


def test_gamma_moves_with_alpha_as_its_mean_does() -> None:
    a = ts.tensor(np.full(20_000, 3.0))
    slope = ts.jvp(lambda a: R.gamma(KEY, a), (a,), (op.ones_like(a),))[1].numpy()
    assert abs(slope.mean() - 1) < 4 * slope.std() / np.sqrt(20_000)


# Messages ---------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], Any], type[TesseraError], str]] = {
    "key_is_a_seed": (
        lambda: R.normal(0, (3,)), OperandError,
        "normal: the key is int 0, expected u32[2]; make one with ts.key(seed)",
    ),
    "key_of_floats": (
        lambda: R.normal(ts.tensor([1.0, 2.0]), (3,)), OperandError,
        "normal: the key is f32[2], expected u32[2]; make one with ts.key(seed)",
    ),
    "stack_of_keys": (
        lambda: R.uniform(ts.split(KEY), (3,)), ShapeError,
        "uniform: the key is u32[2,2], a stack of keys; pick one, as in keys[0]",
    ),
    "integer_uniform": (
        lambda: R.uniform(KEY, (3,), dtype=ts.i32), DTypeError,
        "uniform: dtype is i32, expected a floating-point one such as f32",
    ),
    "float_randint": (
        lambda: R.randint(KEY, (3,), 0, 2, dtype=ts.f32), DTypeError,
        "randint: dtype is f32, expected an integer one such as i64",
    ),
    "signed_bits": (
        lambda: R.bits(KEY, (3,), ts.i32), DTypeError,
        "bits: dtype is i32, expected an unsigned one such as u32",
    ),
    "negative_size": (
        lambda: R.normal(KEY, (-1,)), OperandError, "normal: size -1 in shape (-1,) is negative",
    ),
    "bounds_the_wrong_way": (
        lambda: R.uniform(KEY, (3,), 2, 1), OperandError,
        "uniform: low is 2 and high is 1, expected low < high",
    ),
    "bound_out_of_dtype": (
        lambda: R.randint(KEY, (3,), 0, 300, dtype=ts.u8), OperandError,
        "randint: the bound 300 does not fit u8",
    ),
    "float_bound": (
        lambda: R.randint(KEY, (3,), ts.tensor(0.5), 3), DTypeError,
        "randint: a bound is f32[], expected integers",
    ),
    "parameter_too_large": (
        lambda: R.normal(KEY, (2,), mean=op.zeros((3,))), ShapeError,
        "normal: a parameter is f32[3], which does not broadcast to shape [2]",
    ),
    "complex_parameter": (
        lambda: R.normal(KEY, (2,), mean=ts.tensor([1j, 2j])), DTypeError,
        "normal: a parameter is c64[2], expected real numbers",
    ),
    "probability": (
        lambda: R.bernoulli(KEY, 1.5), OperandError,
        "bernoulli: p is 1.5, expected a probability between 0 and 1",
    ),
    "dropout_probability": (
        lambda: op.dropout(KEY, op.ones((2,)), -0.1), OperandError,
        "dropout: p is -0.1, expected a probability between 0 and 1",
    ),
    "seed_of_floats": (
        lambda: ts.key(1.5), DTypeError, "key: the seed is f32[], expected an integer",
    ),
    "seed_too_large": (
        lambda: ts.key(2**64), OperandError,
        "key: the seed 18446744073709551616 does not fit 64 bits",
    ),
    "folded_vector": (
        lambda: ts.fold_in(KEY, ts.tensor([1, 2])), ShapeError,
        "fold_in: the data is i64[2], expected a scalar",
    ),
    "alpha_not_positive": (
        lambda: R.gamma(KEY, -1.0), OperandError, "gamma: alpha is -1.0, expected a positive number",
    ),
    "rate_negative": (
        lambda: R.poisson(KEY, -1.0), OperandError,
        "poisson: rate is -1.0, expected a number that is not negative",
    ),
    "scalar_dirichlet": (
        lambda: R.dirichlet(KEY, 1.0), ShapeError,
        "dirichlet: alpha is f32[], expected one concentration per component",
    ),
    "categorical_shape": (
        lambda: R.categorical(KEY, op.zeros((2, 3)), shape=(3,)), ShapeError,
        "categorical: shape [3] does not end in [2], the shape of the logits f32[2,3] without axis 1",
    ),
    "too_many_picks": (
        lambda: R.choice(KEY, 3, (4,), replace=False), OperandError,
        "choice: 4 picks from 3 need replace=True",
    ),
    "p_of_another_size": (
        lambda: R.choice(KEY, 3, (4,), p=[0.5, 0.5]), ShapeError,
        "choice: p has shape [2], expected [3], one per choice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_say_what_is_wrong(name: str) -> None:
    call, kind, text = WRONG[name]
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.message == text
    assert caught.value.location is not None
    assert caught.value.location.file == __file__


DRAWS = {
    "bits": ((5,),), "uniform": ((5,), -1.0, 2), "bernoulli": (0.25, (5,)), "randint": ((5,), 0, 9),
    "normal": ((5,), 1.0),
    "truncated_normal": (-1.0, 2.0, (5,)), "exponential": ((5,),), "laplace": ((5,),), "gumbel": ((5,),),
    "permutation": (6,),
    "gamma": (2.0, (3,)), "poisson": (3.0, (3,)),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [n if n in ("normal", "randint", "permutation") else pytest.param(n, marks=pytest.mark.deep)
    for n in DRAWS],
)  # fmt: skip
def test_a_draw_that_is_repeated_has_the_bits_of_the_first(name):
    draw = repeated(getattr(ops_random, name), often=2)
    for seed in range(5):
        key = ts.key(seed)
        got, want = draw(key, *DRAWS[name]), getattr(ops_random, name)(key, *DRAWS[name])
        assert got.numpy().tobytes() == want.numpy().tobytes()
        assert (got.type, got.device) == (want.type, want.device)


def test_draws_of_other_arguments_are_other_programs():
    calls = []

    def counted(key, shape, mean=0.0, std=1.0, dtype=ts.f32):
        calls.append(shape)
        return ops_random.normal(key, shape, mean, std, dtype)

    draw, key = repeated(counted, often=2), ts.key(3)

    def drawn(*args, **kwargs):
        got = [draw(key, *args, **kwargs) for _ in range(4)][-1]
        want = ops_random.normal(key, *args, **kwargs)
        assert got.dtype is want.dtype
        assert got.numpy().tobytes() == want.numpy().tobytes()

    for args, kwargs in (
        (((3,),), {}), (((2, 2),), {}), (((3,), 1), {}), (((3,), 1.5), {}), (((3,),), {"std": 2.0}),
        (((3,),), {"dtype": ts.bf16}),
        (((3,), 0.0), {}), (((3,), -0.0), {}),
    ):  # fmt: skip
        before = len(calls)
        drawn(*args, **kwargs)
        assert len(calls) == before + 3  # two op by op, one to trace
    before = len(calls)
    drawn((3,), ts.tensor(2.0))  # data is not part of a program
    with ts.checked():  # where a key is used once
        for k in ts.split(ts.key(4), 4):
            draw(k, (3,))
    assert (
        ts.jit(lambda k: draw(k, (3,)))(key).numpy().tobytes() == draw(key, (3,)).numpy().tobytes()
    )
    assert len(calls) == before + 4 + 4 + 1


def test_a_mirrored_interval_has_the_mirrored_numbers() -> None:
    for low, high in [(-0.1, 0.3), (-1.0, 2.0), (0.5, 4.0), (-0.2, 0.21), (1.0, 1.5)]:
        x = R.truncated_normal(KEY, low, high, (64,), dtype=ts.f64).numpy()
        np.testing.assert_array_equal(
            R.truncated_normal(KEY, -high, -low, (64,), dtype=ts.f64).numpy(), -x
        )
