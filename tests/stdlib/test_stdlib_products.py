"""stdlib's products, rotary positions, Adam and cross entropy against float64, their derivatives,
schedules.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import erf

import tessera as ts
from tessera import bf16, block, i4, i8, op, stdlib


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def pulled(f, args, ct):
    """f(*args) and the cotangents of its arguments."""
    y, back = ts.vjp(f, *map(ts.tensor, args))
    return y.numpy(), *(d.numpy() for d in back(ts.tensor(ct)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_products_with_an_epilogue(activation):
    args = data(2, 13, 7), data(7, 11, seed=1), data(11, seed=2), data(2, 13, 11, seed=3)
    a, b, bias, residual = (x.astype(np.float64) for x in args)
    f = stdlib.matmul.with_schedule(block(6, 5).k(4))
    with ts.interpret():
        got = f(*args, activation=activation).numpy()
        ct = data(2, 13, 11, seed=4)
        other = pulled(lambda *xs: f(*xs, activation=activation), args, ct)
    np.testing.assert_allclose(
        got, ACTIVATIONS[activation](a @ b + bias) + residual, rtol=1e-5, atol=1e-5
    )

    def plain(a, b, bias, residual):
        x = op.matmul(a, b) + bias
        return (x if activation == "none" else getattr(op, activation)(x)) + residual

    for x, want in zip(
        other, pulled(plain, (a, b, bias, residual), ct.astype(np.float64)), strict=True
    ):
        np.testing.assert_allclose(x, want, rtol=1e-4, atol=1e-5)


def test_the_family_of_products():
    a, b, bias, r = data(3, 4), data(4, 5, seed=1), data(5, seed=2), data(3, 5, seed=3)
    x = a.astype(np.float64) @ b + bias
    with ts.interpret():
        for f, extra, want in (
            (stdlib.matmul_bias, (bias,), x),
            (stdlib.matmul_gelu, (bias,), ACTIVATIONS["gelu"](x)),
            (stdlib.matmul_relu, (bias,), np.maximum(x, 0)),
            (stdlib.matmul_residual, (r, bias), x + r),
        ):
            np.testing.assert_allclose(f(a, b, *extra).numpy(), want, rtol=1e-5, atol=1e-5)


def test_every_schedule_of_a_product_gives_one_hash():
    a, b = data(13, 70), data(70, 11, seed=1)
    with ts.interpret():
        made = {
            stdlib.matmul.with_schedule(s)(a, b, activation="gelu").numpy().tobytes()
            for s in block(m=[4, 13, 16], n=[3, 8], k=[5, 16, 80]).space
        }
    assert len(made) == 1


@pytest.mark.parametrize(
    "sizes", [(3, 0, 9, 1), (0, 0, 13, 0), (13, 0, 0, 0)], ids=["some", "one", "first"]
)
def test_groups_of_rows(sizes):
    x, w, n = data(13, 10), data(4, 10, 6, seed=1), np.array(sizes)
    ct = data(13, 6, seed=2)
    group = np.repeat(np.arange(4), sizes)
    want = np.einsum("rk,rkn->rn", x.astype(np.float64), w[group])
    f = stdlib.grouped_matmul.with_schedule(block(4, 5).k(3))
    with ts.interpret():
        got, dx, dw = pulled(lambda x, w: f(x, w, n), (x, w), ct)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(dx, np.einsum("rn,rkn->rk", ct, w[group]), rtol=1e-4, atol=1e-5)
    for i in range(4):
        mine = group == i
        np.testing.assert_allclose(dw[i], x[mine].T @ ct[mine], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [i8, i4], ids=str)
def test_weights_of_few_bits(dtype):
    x, w = data(5, 24), data(24, 9, seed=1)
    with ts.interpret():
        q, scale = stdlib.quantise(w, dtype, group=8)
        got = stdlib.quantised_matmul.with_schedule(block(4, 8))(x, q, scale).numpy()
    held = q.numpy().astype(np.float64) * scale.numpy().repeat(8, 0)
    assert np.abs(held - w).max() <= scale.numpy().max() / 2 * 1.0001
    np.testing.assert_allclose(got, x @ held, rtol=1e-5, atol=1e-5)


def test_a_product_of_bytes_is_exact_before_it_is_scaled():
    x, w = data(5, 24), data(24, 9, seed=1)
    (a, s), (b, t) = stdlib.quantise(x, axis=1), stdlib.quantise(w)
    got = stdlib.quantised_matmul(a, b, t, s).numpy()
    whole = a.numpy().astype(np.int64) @ b.numpy().astype(np.int64)
    np.testing.assert_array_equal(got, whole.astype(np.float32) * (s.numpy() * t.numpy()))
    np.testing.assert_allclose(got, x @ w, atol=0.2)


def rope(x, positions, base=10000.0):
    half = x.shape[-1] // 2
    angle = positions[:, None] * base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1
    )


@pytest.mark.parametrize("shape", [(5, 8), (3, 7, 6), (2, 3, 33, 4)], ids=str)
def test_rotary_positions(shape):
    x, ct = data(*shape), data(*shape, seed=1)
    positions = np.arange(shape[-2]) * 3 + 1
    with ts.interpret():
        got, dx = pulled(stdlib.rotary_embedding, (x,), ct)
        moved = stdlib.rotary_embedding.with_schedule(block(5))(x, positions).numpy()
    at = np.arange(shape[-2])
    np.testing.assert_allclose(got, rope(x.astype(np.float64), at), atol=1e-6)
    np.testing.assert_allclose(dx, rope(ct.astype(np.float64), -at), atol=1e-6)
    np.testing.assert_allclose(moved, rope(x.astype(np.float64), positions), atol=3e-5)


def test_adam_is_that_of_the_paper():
    p = {"w": data(5, 7), "b": data(11, seed=1)}
    m = {k: np.zeros_like(x) for k, x in p.items()}
    v, want = dict(m), {k: x.astype(np.float64) for k, x in p.items()}
    first, second = ({k: np.zeros(x.shape) for k, x in p.items()} for _ in range(2))
    with ts.interpret():
        for step in range(1, 4):
            g = {k: data(*x.shape, seed=step + 5) for k, x in p.items()}
            count = step if step < 3 else ts.tensor(step)
            p, m, v = stdlib.fused_adam(p, g, m, v, count, lr=0.01, decay=0.1)
            for k, x in want.items():
                first[k] = 0.9 * first[k] + 0.1 * g[k]
                second[k] = 0.999 * second[k] + 0.001 * g[k].astype(np.float64) ** 2
                moved = first[k] / (1 - 0.9**step) / (np.sqrt(second[k] / (1 - 0.999**step)) + 1e-8)
                want[k] = x * (1 - 0.01 * 0.1) - 0.01 * moved
    for k, x in want.items():
        np.testing.assert_allclose(p[k].numpy(), x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(v[k].numpy(), second[k], rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(smoothing, reduction):
    x, labels = data(2, 3, 37) * 5, np.array([[0, 36, -100], [5, 5, 17]])
    w = x.astype(np.float64)
    logs = w - np.log(np.exp(w).sum(-1, keepdims=True))
    known = labels >= 0
    target = np.where(
        known[..., None], np.eye(37)[np.maximum(labels, 0)] * (1 - smoothing) + smoothing / 37, 0
    )
    losses = -(target * logs).sum(-1)
    want = {"mean": losses.sum() / known.sum(), "sum": losses.sum(), "none": losses}[reduction]
    ct = data(*np.shape(want), seed=3)
    with ts.interpret():
        got, dx = pulled(
            lambda x: stdlib.fused_cross_entropy(
                x, labels, label_smoothing=smoothing, reduction=reduction
            ),
            (x,),
            ct,
        )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    row = ct / known.sum() if reduction == "mean" else np.broadcast_to(ct, losses.shape)
    slope = (np.exp(logs) * known[..., None] - target) * np.asarray(row)[..., None]
    np.testing.assert_allclose(dx, slope, rtol=1e-4, atol=1e-6)


def test_machine_code_has_the_bits_of_the_interpreter():
    a, b, bias = data(13, 70), data(70, 11, seed=1), data(11, seed=2)
    narrow = ts.tensor(a, bf16)
    q, scale = stdlib.quantise(b, i4, group=10)
    labels, n = np.arange(13) * 5, np.array([5, 8])

    def run():
        made = [
            stdlib.matmul.with_schedule(block(16, 16).k(32))(a, b, bias, activation="gelu"),
            stdlib.grouped_matmul.with_schedule(block(8, 16).k(32))(
                narrow, ts.tensor(data(2, 70, 11), bf16), n
            ),
            stdlib.quantised_matmul.with_schedule(block(8, 16))(a, q, scale),
            stdlib.rotary_embedding(a),
            stdlib.fused_cross_entropy(a, labels, reduction="none"),
            *stdlib.fused_adam(bias, bias, bias, bias * bias, 3),
        ]
        return [x.numpy().tobytes() for x in made]

    with ts.interpret():
        want = run()
    assert run() == want


def test_transforms_and_convolutions_are_those_of_the_compiler():
    assert stdlib.fft is op.fft
    assert stdlib.conv is op.conv


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: stdlib.matmul(data(2, 3), data(3, 2), activation="sin"),
            "activation is 'sin', expected one of none",
        ),
        (lambda: stdlib.rotary_embedding(data(4, 3)), "with an even size"),
        (
            lambda: stdlib.fused_cross_entropy(data(2, 3), np.zeros(2, int), reduction="max"),
            "reduction is 'max'",
        ),
        (
            lambda: stdlib.grouped_matmul(data(2, 3), data(1, 4, 5), np.array([2])),
            r"expected \(rows, k\) and",
        ),
        (lambda: stdlib.quantised_matmul(data(2, 3), data(3, 2), data(1, 2)), "expected i8 or i4"),
        (lambda: stdlib.quantise(data(4, 3), i8, group=3), "groups of 3 do not divide the 4"),
        (lambda: stdlib.stable_softmax(data(2, 3), axis=2), "axis 2 is no axis of"),
    ],
    ids=["activation", "odd", "reduction", "groups", "floats", "divide", "axis"],
)
def test_mistakes_have_a_message(call, text):
    with pytest.raises(ts.TesseraError, match=text):
        call()


def test_fused_adam_takes_its_step_as_a_number_or_as_a_tensor():
    rng = np.random.default_rng(0)
    p, g, m = (ts.tensor(rng.normal(size=7).astype(np.float32)) for _ in range(3))
    for step in (1, 2, 10, 1000):
        plain = stdlib.fused_adam(p, g, m, m * m, step, lr=0.1, b1=0.8, b2=0.95)
        held = stdlib.fused_adam(p, g, m, m * m, ts.tensor(step), lr=0.1, b1=0.8, b2=0.95)
        for a, b in zip(plain, held, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
