"""Gradients of kernels against JAX's of the same functions, in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.lang.kernel.test_kernel_grad import CASES

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.oracle


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def layernorm(x: Any, gain: Any, bias: Any) -> Any:
    c = x - x.mean(-1, keepdims=True)
    return c / jnp.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * gain + bias


def attention(causal: bool) -> Any:
    def f(q: Any, k: Any, v: Any) -> Any:
        s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf) if causal else s
        return jax.nn.softmax(s, -1) @ v

    return f


def rope(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x[:, :, 0], x[:, :, 1]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], 2)


def masked(x: Any, count: Any) -> Any:
    keep = jnp.arange(x.shape[1]) < count[:, None]
    return jnp.where(keep, x, -jnp.inf).max(1) * jnp.where(keep, x * x, 0).sum(1)


THEIRS = {
    "layernorm": layernorm, "softmax": lambda x: jax.nn.softmax(x, -1), "matmul": lambda a, b, c: a @ b,
    "dense": lambda a, b, c: jax.nn.gelu(a @ b + c, approximate=False), "rope": rope,
    "attention": attention(False), "causal": attention(True), "masked": masked,
    "batched": lambda x, w: x @ w,
}  # fmt: skip


@pytest.mark.parametrize("name", THEIRS)
def test_the_gradient_is_that_of_jax(name: str) -> None:
    f, _, args, argnums, kwargs = CASES[name]
    g = THEIRS[name]
    got = ts.grad(lambda *xs: op.sum(op.sin(f(*xs, **kwargs))), argnums=argnums)(*args)
    want = jax.grad(lambda *xs: jnp.sin(g(*xs)).sum(), argnums=argnums)(*args)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y, atol=1e-11, rtol=1e-10)
