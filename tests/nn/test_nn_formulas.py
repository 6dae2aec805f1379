"""Layers beside their formulas in NumPy, with weights and options of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import erf, expit, log_softmax, softmax

import tessera as ts
from tessera import nn

RUNS_ON = "numpy"
RNG = np.random.default_rng(8)
X = RNG.normal(0, 2, (3, 4, 6))


def shrunk(x: Any, width: float) -> Any:
    return np.sign(x) * np.maximum(np.abs(x) - width, 0)


def elu(x: Any, alpha: float = 1.0) -> Any:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


ACTIVATIONS: dict[str, tuple[Any, Any]] = {
    "ReLU": (nn.ReLU(), np.maximum(X, 0)),
    "ReLU6": (nn.ReLU6(), np.clip(X, 0, 6)),
    "GELU": (nn.GELU(), X * 0.5 * (1 + erf(X / np.sqrt(2)))),
    "GELU tanh": (nn.GELU("tanh"), 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)))),
    "SiLU": (nn.SiLU(), X * expit(X)),
    "Mish": (nn.Mish(), X * np.tanh(np.logaddexp(0, X))),
    "Sigmoid": (nn.Sigmoid(), expit(X)),
    "Tanh": (nn.Tanh(), np.tanh(X)),
    "Softplus": (nn.Softplus(), np.logaddexp(0, X)),
    "Softplus beta": (nn.Softplus(2.5), np.logaddexp(0, 2.5 * X) / 2.5),
    "Softsign": (nn.Softsign(), X / (1 + np.abs(X))),
    "ELU": (nn.ELU(), elu(X)),
    "ELU alpha": (nn.ELU(1.7), elu(X, 1.7)),
    "CELU alpha": (nn.CELU(1.7), np.maximum(X, 0) + np.minimum(0, 1.7 * np.expm1(X / 1.7))),
    "CELU": (nn.CELU(), elu(X)),
    "SELU": (nn.SELU(), 1.0507009873554805 * elu(X, 1.6732632423543772)),
    "LeakyReLU": (nn.LeakyReLU(), np.where(X > 0, X, 0.01 * X)),
    "LeakyReLU slope": (nn.LeakyReLU(0.3), np.where(X > 0, X, 0.3 * X)),
    "Hardtanh": (nn.Hardtanh(), np.clip(X, -1, 1)),
    "Hardtanh ends": (nn.Hardtanh(-0.5, 2.0), np.clip(X, -0.5, 2)),
    "Hardsigmoid": (nn.Hardsigmoid(), np.clip(X / 6 + 0.5, 0, 1)),
    "Hardswish": (nn.Hardswish(), X * np.clip(X / 6 + 0.5, 0, 1)),
    "LogSigmoid": (nn.LogSigmoid(), -np.logaddexp(0, -X)),
    "Tanhshrink": (nn.Tanhshrink(), X - np.tanh(X)),
    "Softshrink": (nn.Softshrink(), shrunk(X, 0.5)),
    "Softshrink width": (nn.Softshrink(0.8), shrunk(X, 0.8)),
    "Hardshrink": (nn.Hardshrink(), np.where(np.abs(X) > 0.5, X, 0)),
    "Hardshrink width": (nn.Hardshrink(0.8), np.where(np.abs(X) > 0.8, X, 0)),
    "Threshold": (nn.Threshold(0.3, -7.0), np.where(X > 0.3, X, -7)),
    "Softmax": (nn.Softmax(), softmax(X, -1)),
    "Softmax axis": (nn.Softmax(1), softmax(X, 1)),
    "LogSoftmax": (nn.LogSoftmax(), log_softmax(X, -1)),
    "LogSoftmax axis": (nn.LogSoftmax(0), log_softmax(X, 0)),
    "GLU": (nn.GLU(), X[..., :3] * expit(X[..., 3:])),
    "GLU axis": (nn.GLU(1), X[:, :2] * expit(X[:, 2:])),
    "PReLU": (nn.PReLU(dtype="f64"), np.where(X > 0, X, 0.25 * X)),
    "PReLU channels": (nn.PReLU(4, 0.4, dtype="f64"), np.where(X > 0, X, 0.4 * X)),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_its_formula(name: str) -> None:
    layer, want = ACTIVATIONS[name]
    np.testing.assert_allclose(layer(ts.tensor(X)), want, rtol=1e-6, atol=1e-12)


def convolved(x: Any, w: Any, b: Any, stride: int, dilation: int, groups: int) -> Any:
    """Sums over windows of a padded signal (batch, channels, n)."""
    out, _, k = w.shape
    n = (x.shape[2] - dilation * (k - 1) - 1) // stride + 1
    y = np.zeros((len(x), out, n))
    into, made = x.shape[1] // groups, out // groups
    for o in range(out):
        part = x[:, o // made * into : (o // made + 1) * into]
        for i in range(n):
            seen = part[:, :, i * stride : i * stride + dilation * (k - 1) + 1 : dilation]
            y[:, o, i] = (seen * w[o]).sum((1, 2)) + b[o]
    return y


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 2, "same", "valid", ((1, 3),)])
def test_a_convolution_with_borders_of_every_mode(mode: str, padding: Any) -> None:
    layer = nn.Conv1d(4, 6, 3, 1, padding, 2, 2, padding_mode=mode, key=ts.key(1), dtype="f64")
    pairs = {0: (0, 0), 2: (2, 2), "same": (2, 2), "valid": (0, 0)}.get(padding, (1, 3))
    how: Any = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}[
        mode
    ]
    x = np.pad(X, ((0, 0), (0, 0), pairs), mode=how)
    want = convolved(x, np.asarray(layer.weight), np.asarray(layer.bias), 1, 2, 2)
    np.testing.assert_allclose(layer(ts.tensor(X)), want, rtol=1e-9, atol=1e-12)


def test_strides_and_a_transposed_convolution() -> None:
    layer = nn.Conv1d(4, 6, 3, 2, 1, key=ts.key(1), dtype="f64")
    want = convolved(
        np.pad(X, ((0, 0), (0, 0), (1, 1))),
        np.asarray(layer.weight),
        np.asarray(layer.bias),
        2,
        1,
        1,
    )
    np.testing.assert_allclose(layer(ts.tensor(X)), want, rtol=1e-9, atol=1e-12)
    back = nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2, dilation=2, key=ts.key(2), dtype="f64")
    w, b = np.asarray(back.weight), np.asarray(back.bias)
    assert w.shape == (4, 3, 3)
    y = np.zeros((3, 6, 5 * 2 + 2 * 2 + 1 + 1))
    for c in range(4):
        for i in range(6):
            for k in range(3):
                y[:, c // 2 * 3 : c // 2 * 3 + 3, i * 2 + k * 2] += X[:, c, i, None] * w[c, :, k]
    np.testing.assert_allclose(
        back(ts.tensor(X)), y[:, :, 1:-1] + b[:, None], rtol=1e-9, atol=1e-12
    )
    without = nn.ConvTranspose1d(4, 6, 3, bias=False, key=ts.key(2))
    assert without.bias is None


def test_what_a_convolution_cannot_be_is_refused() -> None:
    for make, message in (
        (
            lambda: nn.Conv1d(4, 6, 3, padding_mode="mirror", key=ts.key(0)),
            "padding_mode is 'mirror'",
        ),
        (
            lambda: nn.Conv1d(4, 6, 3, groups=3, key=ts.key(0)),
            "3 groups do not divide 4 in and 6 out",
        ),
        (lambda: nn.Conv2d(4, 6, (3, 3, 3), key=ts.key(0)), "expected a number or 2 of them"),
        (
            lambda: nn.Conv1d(4, 6, 3, 1, 9, padding_mode="reflect", key=ts.key(0))(
                ts.tensor(np.float32(X))
            ),
            "needs more than 6",
        ),
        (lambda: nn.MoE(4, 5, 3, 4, key=ts.key(0)), "top_k is 4, expected at most the 3 experts"),
    ):
        with pytest.raises(ts.TesseraError, match=message):
            make()


def silu(x: Any) -> Any:
    return x * expit(x)


def test_swiglu_is_its_formula() -> None:
    layer = nn.SwiGLU(6, 5, True, key=ts.key(3), dtype="f64")

    def applied(part: Any, x: Any) -> Any:
        return x @ np.asarray(part.weight).T + np.asarray(part.bias)

    want = applied(layer.down, silu(applied(layer.gate, X)) * applied(layer.up, X))
    np.testing.assert_allclose(layer(ts.tensor(X)), want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("top", [1, 2])
def test_a_mixture_of_experts_is_a_loop_over_tokens(top: int, normalise: bool) -> None:
    layer = nn.MoE(6, 5, 3, top, normalise, key=ts.key(4), dtype="f64")
    gate, up, down = (np.asarray(w) for w in (layer.gate, layer.up, layer.down))
    tokens = X.reshape(-1, 6)
    chances = softmax(tokens @ np.asarray(layer.router.weight).T, -1)
    want, hits = np.zeros_like(tokens), np.zeros(3)
    for i, (x, p) in enumerate(zip(tokens, chances, strict=True)):
        chosen = np.argsort(-p)[:top]
        for e in chosen:
            share = p[e] / (p[chosen].sum() if normalise else 1)
            want[i] += share * (down[e] @ (silu(gate[e] @ x) * (up[e] @ x)))
            hits[e] += 1
    got, balance = layer(ts.tensor(X), aux=True)
    np.testing.assert_allclose(np.asarray(got).reshape(-1, 6), want, rtol=1e-9, atol=1e-12)
    even = 3 * (hits / len(tokens) / top * chances.mean(0)).sum()
    np.testing.assert_allclose(balance, even, rtol=1e-9)
