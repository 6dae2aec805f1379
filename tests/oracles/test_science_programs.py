"""Programs of users: a wave in a well, a Julia set and a mixture of Gaussians, by NumPy and JAX too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


# Schroedinger's equation in a harmonic well, by steps in space and in momentum ------------------------

POINTS, LENGTH, STEP = 256, 20.0, 0.005
X = np.linspace(-LENGTH / 2, LENGTH / 2, POINTS, endpoint=False)
K = 2 * np.pi * np.fft.fftfreq(POINTS, LENGTH / POINTS)
START = np.exp(-((X - 1) ** 2) / 2) * np.exp(2j * X) / np.pi**0.25


def split_step(o: Any, fft: Any, ifft: Any, loop: Any, psi: Any, v: Any, k: Any) -> Any:
    turn, move = o.exp(-0.5j * STEP * v), o.exp(-0.5j * STEP * k * k)
    return loop(0, 100, lambda i, p: ifft(fft(p * turn) * move) * turn, psi)


def test_a_wave_in_a_well() -> None:
    v = 0.5 * X**2
    ours = np.asarray(
        ts.jit(lambda *xs: split_step(op, op.fft, op.ifft, op.fori_loop, *xs))(START, v, K)
    )
    theirs = split_step(jnp, jnp.fft.fft, jnp.fft.ifft, jax.lax.fori_loop, START, v, K)
    np.testing.assert_allclose(ours, theirs, atol=1e-12)
    norm = np.sum(abs(ours) ** 2) * LENGTH / POINTS
    assert abs(norm - 1) < 1e-12
    # The middle of the wave swings as a classical mass: x0 cos t + p0 sin t.
    middle = np.sum(X * abs(ours) ** 2) * LENGTH / POINTS
    assert abs(middle - (np.cos(0.5) + 2 * np.sin(0.5))) < 1e-4


def test_the_energy_of_a_wave_has_a_gradient() -> None:
    def energy(o: Any, fft: Any, ifft: Any, loop: Any, v: Any) -> Any:
        psi = split_step(o, fft, ifft, loop, START, v, K)
        return o.sum(X * o.abs(psi) ** 2)

    v = 0.5 * X**2
    ours = ts.jit(ts.grad(lambda v: energy(op, op.fft, op.ifft, op.fori_loop, v)))(v)
    theirs = jax.grad(lambda v: energy(jnp, jnp.fft.fft, jnp.fft.ifft, jax.lax.fori_loop, v))(v)
    np.testing.assert_allclose(ours, theirs, atol=1e-10)


# The Julia set of z^2 + c --------------------------------------------------------------------------------


def test_a_julia_set() -> None:
    c, (h, w) = -0.8 + 0.156j, (40, 60)
    z = np.linspace(-1.5, 1.5, w) + 1j * np.linspace(-1, 1, h)[:, None]

    @ts.jit
    def steps(z: Any) -> Any:
        def step(i: Any, s: Any) -> Any:
            z, n = s
            here = op.abs(z) <= 2
            return op.where(here, z * z + c, z), n + op.cast(here, "i32")

        return op.fori_loop(0, 30, step, (z, op.zeros(z.shape, dtype="i32")))[1]

    want, y = np.zeros((h, w), np.int32), z
    for _ in range(30):
        here = abs(y) <= 2
        y, want = np.where(here, y * y + c, y), want + here
    assert np.mean(np.asarray(steps(z)) == want) > 0.99  # the border is chaotic


# A mixture of Gaussians by expectation and maximisation -----------------------------------------------


def numpy_step(x: Any, mu: Any, s: Any, p: Any) -> Any:
    from_middle = x[None] - mu[:, None]
    size = np.einsum("knd,kde,kne->kn", from_middle, np.linalg.inv(s), from_middle)
    logs = -0.5 * (size + np.linalg.slogdet(2 * np.pi * s)[1][:, None]) + np.log(p)[:, None]
    total = np.log(np.exp(logs).sum(0))
    r = np.exp(logs - total)
    n = r.sum(1)
    mu = (r @ x) / n[:, None]
    d = x[None] - mu[:, None]
    return mu, np.einsum("kn,knd,kne->kde", r, d, d) / n[:, None, None], n / len(x), total.sum()


@ts.jit
def our_step(x: Any, mu: Any, s: Any, p: Any) -> Any:
    factor = op.cholesky(s)
    y = op.triangular_solve(factor, op.matrix_transpose(x[None] - mu[:, None]))
    size, roots = op.sum(y * y, 1), op.sum(op.log(op.diagonal(factor)), -1)
    logs = -0.5 * (size + x.shape[1] * np.log(2 * np.pi)) - roots[:, None] + op.log(p)[:, None]
    r = op.softmax(logs, 0)
    n = op.sum(r, 1)
    mu = (r @ x) / n[:, None]
    d = x[None] - mu[:, None]
    s = op.einsum("kn,knd,kne->kde", r, d, d) / n[:, None, None]
    return mu, s, n / x.shape[0], op.sum(op.logsumexp(logs, 0))


def test_a_mixture_of_gaussians() -> None:
    rng = np.random.default_rng(0)
    middles = np.array([[0.0, 4, 0], [3, -2, 1], [-4, -1, 2]])
    x = np.concatenate([m + rng.normal(size=(80, 3)) for m in middles])
    state = [x[[0, 100, 200]], np.stack([np.eye(3)] * 3), np.full(3, 1 / 3)]
    want, likelihoods = list(state), []
    for _ in range(8):
        *state, ours = our_step(x, *state)
        *want, theirs = numpy_step(x, *want)
        likelihoods.append(float(ours))
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    for a, b in zip(state, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    assert np.all(np.diff(likelihoods) > -1e-9)
    np.testing.assert_allclose(np.asarray(state[0]), middles, atol=0.5)
