"""Gradients of linear algebra and of transforms against JAX, and stft against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

RUNS_ON = "numpy"

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
jnp = jax.numpy
pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


_RNG = np.random.default_rng(0)
A = _RNG.normal(size=(4, 4)) / 4 + 2 * np.eye(4)
TALL = _RNG.normal(size=(5, 3))
W = _RNG.normal(size=(4, 4))
V = _RNG.normal(size=(5, 3))


def _dot(xp: Any, x: Any, w: Any) -> Any:
    return xp.sum(x * w)


def _spectrum(xp: Any, y: Any) -> Any:
    return xp.sum(xp.abs(y) ** 2 * W[:, : y.shape[-1]])


CASES: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "cholesky": (A @ A.T, lambda a: _dot(op, op.cholesky(a), W),
                 lambda a: _dot(jnp, jnp.linalg.cholesky(a), W)),
    "qr": (TALL, lambda a: _dot(op, op.qr(a)[0], V), lambda a: _dot(jnp, jnp.linalg.qr(a)[0], V)),
    "eigh": (A + A.T, lambda a: _dot(op, op.eigh(a)[1] ** 2, W),
             lambda a: _dot(jnp, jnp.linalg.eigh(a)[1] ** 2, W)),
    "svd": (TALL, lambda a: _dot(op, op.svd(a, full_matrices=False)[0] ** 2, V),
            lambda a: _dot(jnp, jnp.linalg.svd(a, full_matrices=False)[0] ** 2, V)),
    "solve": (A, lambda a: _dot(op, op.solve(a, W), W),
              lambda a: _dot(jnp, jnp.linalg.solve(a, W), W)),
    "inv": (A, lambda a: _dot(op, op.inv(a), W), lambda a: _dot(jnp, jnp.linalg.inv(a), W)),
    "pinv": (TALL, lambda a: _dot(op, op.pinv(a), V.T),
             lambda a: _dot(jnp, jnp.linalg.pinv(a), V.T)),
    "det": (A, op.det, jnp.linalg.det),
    "slogdet": (A, lambda a: op.slogdet(a)[1], lambda a: jnp.linalg.slogdet(a)[1]),
    "expm": (A / 3, lambda a: _dot(op, op.expm(a), W),
             lambda a: _dot(jnp, jax.scipy.linalg.expm(a), W)),
    "nuclear": (TALL, lambda a: op.matrix_norm(a, "nuc"), lambda a: jnp.linalg.norm(a, "nuc")),
    "fft": (A, lambda a: _spectrum(op, op.fft(a)), lambda a: _spectrum(jnp, jnp.fft.fft(a))),
    "rfft": (A, lambda a: _spectrum(op, op.rfft(a)), lambda a: _spectrum(jnp, jnp.fft.rfft(a))),
    "irfft": (A, lambda a: _dot(op, op.irfft(op.fft(a), 4), W),
              lambda a: _dot(jnp, jnp.fft.irfft(jnp.fft.fft(a), 4), W)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_jax(name: str) -> None:
    x, ours, theirs = CASES[name]
    got = np.asarray(ts.grad(ours)(ts.tensor(x)))
    np.testing.assert_allclose(got, np.asarray(jax.grad(theirs)(x)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["det", "inv", "expm", "slogdet"])
def test_second_derivatives_are_those_of_jax(name: str) -> None:
    x, ours, theirs = CASES[name]
    along = ts.jvp(ts.grad(ours), (ts.tensor(x),), (ts.tensor(W),))[1]
    want = jax.jvp(jax.grad(theirs), (x,), (W,))[1]
    np.testing.assert_allclose(np.asarray(along), np.asarray(want), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("size", "hop"), [(8, 2), (9, 3), (16, 4)])
def test_stft_is_that_of_torch(size: int, hop: int) -> None:
    x = _RNG.normal(size=(2, 64))
    window = np.array(op.hann_window(size, dtype=ts.f64))
    want = torch.stft(
        torch.from_numpy(x), size, hop, window=torch.from_numpy(window), center=True,
        pad_mode="constant", return_complex=True,
    )  # fmt: skip
    got = op.stft(x, window, hop)
    np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=1e-12, atol=1e-12)
    back = torch.istft(want, size, hop, window=torch.from_numpy(window), length=64)
    np.testing.assert_allclose(
        np.asarray(op.istft(got, window, hop, length=64)), back.numpy(), rtol=1e-9, atol=1e-9
    )
