"""Gradients of complex programs against JAX, whose cotangents are the conjugates of ours."""

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


_RNG = np.random.default_rng(0)
Z = _RNG.normal(size=(3, 4)) + 1j * _RNG.normal(size=(3, 4))
W = _RNG.normal(size=(4, 3)) + 1j * _RNG.normal(size=(4, 3))

CASES = {
    "exp": lambda o, z: o.sum(o.abs(o.exp(z))),
    "quotient": lambda o, z: o.sum(o.real(z / (1 + z * z))),
    "log": lambda o, z: o.sum(o.imag(o.log(z) * z)),
    "sqrt": lambda o, z: o.sum(o.abs(o.sqrt(z)) ** 2 * o.real(z)),
    "tanh": lambda o, z: o.sum(o.real(o.tanh(z) * o.conj(z))),
    "product": lambda o, z: o.sum(o.abs(z @ W) ** 2),
    "where": lambda o, z: o.sum(o.real(o.where(o.real(z) > 0, z * z, o.sin(z)))),
    "mean": lambda o, z: o.abs(o.mean(z * o.conj(z) * z)),
    "fold": lambda o, z: o.abs(o.prod(z)),
    "sine": lambda o, z: o.sum(o.real(o.sinh(z) * o.cos(z))),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    f = CASES[name]
    ours = np.asarray(ts.jit(ts.grad(lambda z: f(op, z)))(Z))
    theirs = np.asarray(jax.grad(lambda z: f(jnp, z))(Z))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
