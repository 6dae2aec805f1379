"""Activations, softmax, norms, attention, rope, embedding: laws, naive references, safe forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import tessera as ts
from tessera import op
from tests.support.runners.tolerance import Tolerance, assert_close, assert_same_bits

RUNS_ON = ("numpy", "cpu")
INF = np.inf


def normal(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng([7, *shape]).normal(size=shape).astype(dtype)


def grad_of(f: Any, *xs: Any) -> list[np.ndarray]:
    """Gradients of the weighted sum of f, so that no symmetry hides an error."""

    def total(xs: Any) -> Any:
        y = f(*xs)
        return op.sum(op.mul(y, normal(*y.shape)))

    return [np.asarray(g) for g in ts.grad(total)([ts.asarray(x) for x in xs])]


# Activations ------------------------------------------------------------------------------------

X = np.array([-1e3, -7.0, -3.0, -1.0, -0.3, 0.0, 0.4, 1.0, 3.0, 6.5, 1e3])


def elu(x: float, alpha: float = 1.0) -> float:
    return x if x > 0 else alpha * math.expm1(x)


NAIVE: dict[str, Any] = {
    "relu": lambda x: max(x, 0.0),
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "leaky_relu": lambda x: x if x > 0 else 0.01 * x,
    "elu": elu,
    "celu": elu,
    "selu": lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772),
    "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "silu": lambda x: x * sp.expit(x),
    "swish": lambda x: x * sp.expit(x),
    "mish": lambda x: x * math.tanh(np.logaddexp(x, 0)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "softsign": lambda x: x / (1 + abs(x)),
    "hardsigmoid": lambda x: min(max((x + 3) / 6, 0), 1),
    "hardswish": lambda x: x * min(max((x + 3) / 6, 0), 1),
    "hardtanh": lambda x: min(max(x, -1), 1),
    "log_sigmoid": sp.log_expit,
    "tanhshrink": lambda x: x - math.tanh(x),
    "hardshrink": lambda x: x if abs(x) > 0.5 else 0.0,
    "softshrink": lambda x: math.copysign(abs(x) - 0.5, x) if abs(x) > 0.5 else 0.0,
}


@pytest.mark.parametrize("name", NAIVE)
def test_an_activation_is_its_formula(name: str) -> None:
    want = np.array([NAIVE[name](x) for x in X])
    got = getattr(op, name)(X)
    assert_close(got, want, times=10)
    assert np.isfinite(np.asarray(got)).all()


@pytest.mark.parametrize("name", NAIVE)
def test_an_activation_of_large_numbers_has_a_finite_slope(name: str) -> None:
    (slope,) = grad_of(getattr(op, name), X)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("name", NAIVE)
def test_an_activation_keeps_bf16_and_lifts_integers(name: str) -> None:
    f = getattr(op, name)
    narrow = f(ts.tensor(X[2:-1], dtype=ts.bf16))
    assert narrow.dtype is ts.bf16
    assert_close(
        narrow,
        np.array([NAIVE[name](x) for x in np.asarray(ts.tensor(X[2:-1], dtype=ts.bf16), float)]),
    )
    assert f(np.array([1, -2])).dtype is ts.f32


def test_activations_take_their_parameters() -> None:
    x = np.array([-2.0, -0.5, 0.5, 2.0])
    assert_close(op.leaky_relu(x, 0.3), np.where(x > 0, x, 0.3 * x))
    assert_close(op.celu(x, 2.0), np.where(x > 0, x, 2 * np.expm1(x / 2)))
    assert_close(op.elu(x, 2.0), np.where(x > 0, x, 2 * np.expm1(x)))
    assert_close(op.softplus(x, 3.0), np.logaddexp(3 * x, 0) / 3)
    assert_close(op.swish(x, 2.0), x * sp.expit(2 * x))
    assert_close(op.hardtanh(x, -0.7, 1.5), np.clip(x, -0.7, 1.5))
    assert_close(op.threshold(x, 0.0, -9.0), np.where(x > 0, x, -9.0))
    assert_close(op.prelu(x, np.array(0.25)), np.where(x > 0, x, 0.25 * x))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    assert_close(op.gelu(x, approximate="tanh"), 0.5 * x * (1 + np.tanh(inner)))


def test_gelu_is_precise_far_left() -> None:
    """Small results count as much as others: there is no absolute tolerance."""
    x = np.array([-6.0, -12.0, -30.0])
    np.testing.assert_allclose(np.asarray(op.gelu(x)), x * sp.ndtr(x), rtol=1e-12, atol=0)
    x = np.array([-4.0, -6.0, -9.0])
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    got = np.asarray(op.gelu(x, approximate="tanh"))
    np.testing.assert_allclose(got, x * sp.expit(2 * inner), rtol=1e-12, atol=0)


def test_gated_units_split_an_axis() -> None:
    x = normal(3, 8)
    a, b = x[:, :4], x[:, 4:]
    assert_close(op.glu(x), a * sp.expit(b))
    assert_close(op.swiglu(x), a * sp.expit(a) * b)
    assert_close(op.geglu(x), a * sp.ndtr(a) * b, times=10)
    assert_close(op.glu(x.T, axis=0), (a * sp.expit(b)).T)


# Softmax ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (0, 1, 2)])
def test_softmax_is_that_of_scipy_and_sums_to_one(axis: Any) -> None:
    x = normal(2, 3, 4)
    y = np.asarray(op.softmax(x, axis))
    assert_close(y, sp.softmax(x, axis=axis))
    assert_close(y.sum(axis=axis), np.ones_like(y.sum(axis=axis)))
    assert_close(op.log_softmax(x, axis), sp.log_softmax(x, axis=axis))
    assert_close(op.softmin(x, axis), sp.softmax(-x, axis=axis))


@pytest.mark.parametrize("f", [op.softmax, op.softmax_safe, op.log_softmax])
def test_softmax_does_not_change_when_a_row_is_shifted(f: Any) -> None:
    x = np.round(normal(3, 5) * 8) / 8
    for shift in (1e4, -1e4):
        assert_close(f(x + shift), f(x))


def test_softmax_jvp_of_a_constant_tangent_is_zero() -> None:
    x = normal(3, 5)
    for f in (op.softmax, op.softmax_safe, op.log_softmax):
        _, t = ts.jvp(f, [x], [np.ones_like(x)])
        assert_close(t, np.zeros_like(x))


def test_softmax_of_rows_without_elements() -> None:
    assert op.softmax(np.zeros((2, 0))).shape == (2, 0)
    assert op.log_softmax(np.zeros((0, 3))).shape == (0, 3)


def test_softmax_of_half_precision_is_the_wide_one_rounded() -> None:
    x = ts.tensor(normal(4, 64), dtype=ts.bf16)
    y = op.softmax(x)
    assert y.dtype is ts.bf16
    assert_close(
        np.asarray(y, float), sp.softmax(np.asarray(x, float), axis=-1), Tolerance(4e-3, 1e-9)
    )


# The safe forms: see the definition in tessera/ops/softmax.py and normalization.py

ROWS = np.array(
    [[1.0, 2.0, -INF], [-INF, -INF, -INF], [INF, 1.0, -INF], [INF, 0.0, INF], [1e300, -1e300, 0.0]]
)


def test_softmax_safe_is_defined_on_every_row() -> None:
    want = [
        [*sp.softmax([1.0, 2.0]), 0.0], [0, 0, 0], [1, 0, 0], [0.5, 0, 0.5], [1, 0, 0],
    ]  # fmt: skip
    assert_close(op.softmax_safe(ROWS), np.array(want))


def test_logsumexp_safe_is_defined_on_every_row() -> None:
    want = [np.logaddexp(1.0, 2.0), -INF, INF, INF, 1e300]
    assert_close(op.logsumexp_safe(ROWS, axis=-1), np.array(want))
    assert np.asarray(op.logsumexp_safe(np.zeros((0, 2)), axis=0)).tolist() == [-INF, -INF]


def test_the_derivative_of_logsumexp_safe_is_softmax_safe() -> None:
    g = ts.grad(lambda x: op.sum(op.logsumexp_safe(x, axis=-1)))(ts.asarray(ROWS))
    assert_same_bits(g, op.softmax_safe(ROWS))


def test_softmax_safe_has_finite_derivatives_and_none_where_all_is_masked() -> None:
    (g,) = grad_of(op.softmax_safe, ROWS)
    assert np.isfinite(g).all()
    assert not g[1].any()


@pytest.mark.parametrize(("safe", "plain"), [(op.softmax_safe, op.softmax), (op.layernorm_safe, op.layernorm),
                                             (op.rmsnorm_safe, op.rmsnorm)])  # fmt: skip
def test_a_safe_form_is_the_plain_one_on_ordinary_rows(safe: Any, plain: Any) -> None:
    x = normal(4, 6)
    assert_close(safe(x), plain(x), times=10)
    assert_close(grad_of(safe, x)[0], grad_of(plain, x)[0], times=100)
    assert_close(op.logsumexp_safe(x, 1), op.logsumexp(x, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_a_safe_norm_of_constant_rows_is_zero_with_finite_derivatives(
    dtype: Any, eps: float
) -> None:
    big = np.finfo(dtype).max
    x = np.array([[0.1] * 7, [0.0] * 7, [big] * 7, [1e-40] * 7], dtype)
    y = np.asarray(op.layernorm_safe(x, eps=eps))
    assert_same_bits(np.abs(y), np.zeros_like(x))
    for f in (op.layernorm_safe, op.rmsnorm_safe):
        (g,) = grad_of(lambda x, f=f: f(x, eps=eps), x)
        assert np.isfinite(np.asarray(f(x, eps=eps))).all()
        assert np.isfinite(g).all()
    assert not np.asarray(op.rmsnorm_safe(x, eps=eps))[1].any()


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-12, 1.0, 1e12, 1e30, 1e38])
def test_a_safe_norm_without_eps_does_not_depend_on_scale(scale: float) -> None:
    x = np.linspace(-1, 2, 9)
    small = scale < 1e-38  # subnormal numbers have few digits
    tolerance = Tolerance(1e-2, 1e-2) if small else Tolerance(1e-5, 1e-6)
    rows = (x * scale).astype(np.float32)
    want = (x - x.mean()) / x.std()
    assert_close(op.layernorm_safe(rows, eps=0.0), want, tolerance)
    assert_close(op.rmsnorm_safe(rows, eps=0.0), x / np.sqrt(np.mean(x * x)), tolerance)


def test_the_plain_norm_overflows_where_the_safe_one_does_not() -> None:
    x = np.array([1e30, -1e30, 2e30], np.float32)
    assert not np.asarray(op.layernorm(x)).any()  # the variance is inf
    assert_close(op.layernorm_safe(x), (x / 1e30 - 2 / 3) / np.std([1, -1, 2]))


# Norms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [-1, 0, (1, 2)])
def test_layernorm_gives_mean_zero_and_variance_one(axis: Any) -> None:
    y = np.asarray(op.layernorm(3 + 2 * normal(3, 4, 5), axis=axis, eps=0.0))
    assert_close(y.mean(axis=axis), np.zeros_like(y.mean(axis=axis)), times=10)
    assert_close(y.var(axis=axis), np.ones_like(y.var(axis=axis)), times=10)


def test_layernorm_with_gain_and_bias() -> None:
    x, gain, bias = normal(2, 3, 4), normal(3, 4), normal(4)
    want = np.empty_like(x)
    for i in range(2):
        for j in range(3):
            row = x[i, j]
            want[i, j] = (row - row.mean()) / math.sqrt(row.var() + 1e-3) * gain[0] + bias
    assert_close(op.layernorm(x, gain[0], bias, eps=1e-3), want)
    both = (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5) * gain
    assert_close(op.layernorm(x, gain, axis=(1, 2)), both)
    assert_close(op.layernorm(x, bias=bias), np.asarray(op.layernorm(x)) + bias)


def test_rmsnorm_gives_mean_square_one() -> None:
    x, gain = normal(3, 8), normal(8)
    y = np.asarray(op.rmsnorm(x, eps=0.0))
    assert_close((y * y).mean(-1), np.ones(3))
    assert_close(
        op.rmsnorm(x, gain, eps=0.1), x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.1) * gain
    )


def test_batchnorm_by_statistics_and_by_batch() -> None:
    x, gain, bias = normal(4, 3, 5), normal(3), normal(3)
    y, mean, var = op.batchnorm_train(x, gain, bias)
    assert_close(mean, x.mean((0, 2)))
    assert_close(var, x.var((0, 2)))
    assert_close(op.batchnorm(x, mean, var, gain, bias), y)
    want = np.empty_like(x)
    for c in range(3):
        want[:, c] = (x[:, c] - x[:, c].mean()) / math.sqrt(x[:, c].var() + 1e-5) * gain[c] + bias[
            c
        ]
    assert_close(y, want, times=10)
    last, _, _ = op.batchnorm_train(np.moveaxis(x, 1, -1), gain, bias, axis=-1)
    assert_close(np.moveaxis(np.asarray(last), -1, 1), want, times=10)


def test_groupnorm_normalises_each_group() -> None:
    x, gain, bias = normal(2, 6, 4), normal(6), normal(6)
    want = np.empty_like(x)
    for n in range(2):
        for g in range(3):
            part = x[n, 2 * g : 2 * g + 2]
            want[n, 2 * g : 2 * g + 2] = (part - part.mean()) / math.sqrt(part.var() + 1e-5)
    assert_close(op.groupnorm(x, 3), want, times=10)
    full = want * gain[:, None] + bias[:, None]
    assert_close(op.groupnorm(x, 3, gain, bias), full, times=10)
    assert_close(op.instancenorm(x), op.groupnorm(x, 6))
    assert_close(op.groupnorm(x, 1), op.layernorm(x, axis=(1, 2)), times=10)


# Attention --------------------------------------------------------------------------------------


def naive_attention(q: Any, k: Any, v: Any, seen: Any, scale: float) -> np.ndarray:
    """Query by query, key by key; heads of q share heads of k in order."""
    heads, queries, _ = q.shape
    out = np.zeros((heads, queries, v.shape[-1]))
    for h in range(heads):
        g = h * k.shape[0] // heads
        for i in range(queries):
            keys = [j for j in range(k.shape[1]) if seen(i, j)]
            if not keys:
                continue
            scores = np.array([np.dot(q[h, i], k[g, j]) * scale for j in keys])
            for w, j in zip(sp.softmax(scores), keys, strict=True):
                out[h, i] += w * v[g, j]
    return out


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("queries", "keys"), [(3, 3), (2, 5), (5, 2), (1, 4), (0, 3), (3, 0)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_a_weighted_mean_of_values(
    groups: int, queries: int, keys: int, causal: bool
) -> None:
    q, k, v = normal(4, queries, 6), normal(groups, keys, 6), normal(groups, keys, 3)
    later = keys - queries
    want = naive_attention(q, k, v, lambda i, j: not causal or j <= i + later, 1 / math.sqrt(6))
    assert_close(op.attention(q, k, v, causal=causal), want, times=10)


def test_attention_takes_masks_and_a_scale() -> None:
    q, k, v = normal(2, 2, 3, 4), normal(2, 1, 5, 4), normal(2, 1, 5, 4)
    mask = np.random.default_rng(1).uniform(size=(2, 1, 3, 5)) < 0.6
    mask[0, 0, 1] = False
    got = np.asarray(op.attention(q, k, v, mask=mask, scale=0.3))
    for b in range(2):
        want = naive_attention(q[b], k[b], v[b], lambda i, j, b=b: mask[b, 0, i, j], 0.3)
        assert_close(got[b], want)
    added = op.attention(q, k, v, mask=np.where(mask, 0.0, -INF), scale=0.3)
    assert_close(added, got)
    assert not got[0, :, 1].any()


def test_attention_of_equal_keys_is_the_mean_of_the_values() -> None:
    q, v = normal(2, 3, 4), normal(2, 5, 6)
    k = np.broadcast_to(normal(1, 1, 4), (2, 5, 4))
    want = np.broadcast_to(v.mean(1, keepdims=True), (2, 3, 6))
    assert_close(op.attention(q, k, v), want)


def test_a_query_that_sees_no_key_has_zero_derivatives() -> None:
    q, k, v = normal(1, 3, 2), normal(1, 1, 2), normal(1, 1, 2)
    gq, gk, gv = grad_of(lambda q, k, v: op.attention(q, k, v, causal=True), q, k, v)
    assert all(np.isfinite(g).all() for g in (gq, gk, gv))
    assert not gq.any()


def test_attention_stays_one_node_and_takes_symbolic_sizes() -> None:
    @ts.jit
    def f(
        q: ts.Tensor["B", "H", "S", "D"],
        k: ts.Tensor["B", "G", "T", "D"],
        v: ts.Tensor["B", "G", "T", "D"],
    ) -> Any:  # type: ignore[name-defined]
        return op.attention(q, k, v, causal=True)

    for sizes in ((1, 4, 2, 3, 5, 6), (2, 6, 3, 2, 2, 4)):
        b, h, g, s, t, d = sizes
        q, k, v = (normal(b, n, m, d, dtype=np.float32) for n, m in ((h, s), (g, t), (g, t)))
        assert_close(f(q, k, v), op.attention(q, k, v, causal=True))
    assert [n.op.name for n in f.lower(q, k, v).traced.nodes] == ["attention"]


def test_attention_of_half_precision_rounds_once() -> None:
    q, k, v = (ts.tensor(normal(2, 4, 8), dtype=ts.bf16) for _ in range(3))
    wide = op.attention(*(x.astype(ts.f32) for x in (q, k, v)))
    assert_same_bits(op.attention(q, k, v), wide.astype(ts.bf16))


# Rotary positions -------------------------------------------------------------------------------


def test_rope_turns_pairs_from_both_halves() -> None:
    x = normal(2, 5, 6)
    want = np.empty_like(x)
    for b, s, i in np.ndindex(2, 5, 3):
        a = s * 10000.0 ** (-2 * i / 6)
        p, q = x[b, s, i], x[b, s, i + 3]
        want[b, s, i], want[b, s, i + 3] = (
            p * math.cos(a) - q * math.sin(a),
            q * math.cos(a) + p * math.sin(a),
        )
    assert_close(op.rope(x), want)
    assert_close(op.rope(x, np.arange(5)), want)
    assert_close(op.rope(x, np.broadcast_to(np.arange(5.0), (2, 5))), want)


def test_rope_keeps_lengths_and_depends_on_distance_only() -> None:
    q, k = normal(1, 8), normal(2, 8)[:1]
    length = np.linalg.norm(np.asarray(op.rope(q, np.array([11]))))
    assert_close(length, np.linalg.norm(q))
    products = [
        float(
            np.sum(
                np.asarray(op.rope(q, np.array([m]))) * np.asarray(op.rope(k, np.array([m + 3])))
            )
        )
        for m in (0, 5, 40)
    ]
    assert_close(np.array(products[1:]), np.full(2, products[0]), times=10)


def test_rope_at_opposite_positions_is_the_inverse() -> None:
    x = normal(4, 6)
    back = op.rope(op.rope(x, np.arange(4)), -np.arange(4))
    assert_close(back, x)


# Embedding, residual ----------------------------------------------------------------------------


def test_embedding_picks_rows_and_its_gradient_adds_up() -> None:
    table, ids = normal(5, 3), np.array([[0, 4], [4, 4]])
    assert_same_bits(op.embedding(table, ids), table[ids])
    ct = normal(2, 2, 3)
    g = ts.grad(lambda t: op.sum(op.mul(op.embedding(t, ids), ct)))(ts.asarray(table))
    want = np.zeros_like(table)
    for i, row in zip(ids.reshape(-1), ct.reshape(-1, 3), strict=True):
        want[i] += row
    assert_close(g, want)


def test_residual_adds_and_drops() -> None:
    x, y = np.zeros((40, 50)), np.ones((40, 50))
    assert_same_bits(op.residual(x, y), x + y)
    dropped = np.asarray(op.residual(x, y, dropout=0.25, key=ts.key(0)))
    assert set(np.unique(dropped)) == {0.0, 1 / 0.75}
    assert abs(dropped.mean() - 1) < 0.05


def test_cast_like_takes_the_dtype() -> None:
    assert op.cast_like(np.ones(2), ts.tensor([1.0], dtype=ts.bf16)).dtype is ts.bf16


# Errors -----------------------------------------------------------------------------------------

WRONG = [
    (lambda: op.gelu(X, approximate="erf"), "gelu: approximate is 'erf', expected 'none' or 'tanh'"),
    (lambda: op.glu(normal(3)), "glu: axis 0 of f64[3] is 3, expected an even size"),
    (lambda: op.softmax(normal(3), axis=1), "softmax: axis 1 is out of range for rank 1; use -1 to 0"),
    (lambda: op.layernorm(normal(2, 3), normal(4)),
     "layernorm: axis 'a1' is 3 in operand 0 f64[2,3] but 4 in operand 1 f64[4]"),
    (lambda: op.groupnorm(normal(2, 6), 4), "groupnorm: 4 groups do not divide the 6 channels of f64[2,6]"),
    (lambda: op.attention(normal(4, 2, 3), normal(3, 2, 3), normal(3, 2, 3)),
     "attention: 4 heads in q f64[4,2,3] are no multiple of 3 in k f64[3,2,3]"),
    (lambda: op.attention(normal(2, 2, 3), normal(2, 2, 4), normal(2, 2, 4)),
     "attention: axis 'dim' is 3 in f64[2,2,3] but 4 in f64[2,2,4]"),
    (lambda: op.attention(normal(2, 3), normal(2, 3), normal(2, 3)),
     "attention: operand 0 is f64[2,3], expected (..., heads, seq, dim) of one rank"),
    (lambda: op.attention(*[normal(1, 2, 3)] * 3, mask=np.ones((2, 2), int)),
     "attention: the mask is i64[2,2], expected bools (seen or not) or floats (added)"),
    (lambda: op.rope(normal(4, 3)), "rope: the last axis of f64[4,3] must have an even size"),
    (lambda: op.rope(normal(4, 2), np.arange(3)),
     "rope: operands f64[4], i64[3] do not broadcast: axis -1 is 4 and 3; sizes must be equal or 1"),
    (lambda: op.embedding(normal(4, 2), np.array([0.5])),
     "embedding: ids are f64[1], expected integers; cast with astype"),
    (lambda: op.residual(X, X, dropout=0.5), "residual: dropout 0.5 needs key=, such as ts.key(0)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"), WRONG, ids=[m.split(":")[0] + str(i) for i, (_, m) in enumerate(WRONG)]
)
def test_errors_say_what_was_wanted(wrong: Any, message: str) -> None:
    with pytest.raises(ts.TesseraError) as e:
        wrong()
    assert e.value.message == message


def _cubic(d: float, a: float = -0.75) -> float:
    """Keys' kernel, as in PyTorch."""
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def _tent(d: float) -> float:
    return max(1 - abs(d), 0.0)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border"])
@pytest.mark.parametrize(("mode", "weight"), [("linear", _tent), ("cubic", _cubic)])
def test_grid_sample_weighs_its_neighbours(
    mode: str, weight: Any, padding: str, align: bool
) -> None:
    """Every pixel of the plane, or of the border that goes on for ever, by its weight."""
    rng = np.random.default_rng(0)
    x, grid = rng.normal(size=(1, 2, 4, 5)), rng.uniform(-1.3, 1.3, (1, 3, 3, 2))
    want = np.zeros((1, 2, 3, 3))
    for i, j in np.ndindex(3, 3):
        place = [
            (g + 1) / 2 * (n - 1) if align else ((g + 1) * n - 1) / 2
            for g, n in zip(grid[0, i, j, ::-1], (4, 5), strict=True)
        ]
        if mode == "linear" and padding == "border":
            place = [min(max(p, 0), n - 1) for p, n in zip(place, (4, 5), strict=True)]
        for r, c in np.ndindex(20, 20):
            row, column = r - 8, c - 8
            if padding == "zeros" and not (0 <= row < 4 and 0 <= column < 5):
                continue
            pixel = x[0, :, min(max(row, 0), 3), min(max(column, 0), 4)]
            want[0, :, i, j] += weight(place[0] - row) * weight(place[1] - column) * pixel
    got = op.grid_sample(
        ts.tensor(x), ts.tensor(grid), mode=mode, padding=padding, align_corners=align
    )
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)
