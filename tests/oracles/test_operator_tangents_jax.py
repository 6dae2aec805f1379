"""Derivatives of operator-valued functions against those of the dense matrix in JAX, in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.support.cases.operator_cases import close
from tests.support.cases.operator_functions import SAMPLES

RUNS_ON = "numpy"

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.oracle
RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize("name", SAMPLES)
def test_operators_have_the_derivatives_of_their_matrices(name: str) -> None:
    make, matrix, x = SAMPLES[name]
    dx = RNG.normal(size=x.shape)
    f = lambda t: matrix(jax.numpy, t)  # noqa: E731
    value, moved = ts.jvp(make, (ts.tensor(x),), (ts.tensor(dx),))
    want, want_moved = jax.jvp(f, (x,), (dx,))
    close(value.todense(), want, 1e-10)
    close(moved.todense(), want_moved, 1e-10)
    _, back = ts.vjp(make, ts.tensor(x))
    _, want_back = jax.vjp(f, x)
    weight = RNG.normal(size=value.shape)
    close(back(weight)[0], want_back(weight)[0], 1e-10)
    close(ts.jacfwd(make)(ts.tensor(x)), jax.jacfwd(f)(x), 1e-10)
    close(ts.jacrev(make)(ts.tensor(x)), jax.jacrev(f)(x), 1e-10)
