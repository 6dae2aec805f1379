"""Gradients of kernels against JAX's of the same functions, in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.lang.kernel.test_kernel_grad import CASES
from tests.lang.kernel.test_kernel_grad_data import CASES as BY_DATA

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


# Kernels that data steer


def recurrence(decay: Any, x: Any) -> Any:
    pair = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])  # noqa: E731
    return jax.lax.associative_scan(pair, (jax.nn.sigmoid(decay), x), axis=1)[1]


def scans(x: Any) -> Any:
    products = jnp.cumprod(x, 1)
    before = jnp.concatenate([jnp.ones_like(x[:, :1]), products[:, :-1]], 1)
    return jax.lax.cummax(x, 1) * jax.lax.cummin(x, 1, reverse=True) + before


def csr(rows: Any, cols: Any, values: Any, x: Any) -> Any:
    at = np.repeat(np.arange(len(rows) - 1), np.diff(rows))
    return jax.ops.segment_sum(values[:, None] * x[cols], at, len(rows) - 1)


def ragged(x: Any, count: Any) -> Any:
    out = []
    for row, n in zip(x, count, strict=True):
        total = jnp.zeros(())
        for k in range(0, int(n), 4):
            total = jnp.sin(total + (row[k : min(k + 4, n)] ** 2).sum())
        out.append(total)
    return jnp.stack(out)[:, None]


def powers(x: Any, n: Any) -> Any:
    return jax.lax.fori_loop(0, int(n), lambda i, y: jnp.cos(y * x) + i, jnp.ones_like(x))


def until(x: Any) -> Any:
    ends = jnp.cumsum(x < 0, 1) - (x < 0) == 0
    return jnp.where(ends, x, 1).prod(1)[:, None]


STEERED = {
    "picked": lambda x, i: jnp.exp(x[i]),
    "pairs": lambda x, i, j, w: x[i, j] * x[j, i] * w,
    "along": lambda x, i: jnp.take_along_axis(x * x, i, 1),
    "grouped": lambda x, w, e: jnp.concatenate([x[k * 4 : k * 4 + 4] @ w[e[k]] for k in range(3)]),
    "shuffled": lambda x: jnp.concatenate([(x * x)[:, 5:2:-1] * (x * x)[:, 2::-1], jnp.sort(x, 1)], 1),
    "spread": lambda x, i: jnp.zeros((18, 3)).at[i].set(jnp.sin(x)),
    "added": lambda x, i, y: y.at[i].add(x * x),
    "binned": lambda x, i: jnp.zeros(7).at[i].add(jnp.where(x > -1, jnp.exp(x), 0)),
    "split_k": lambda a, b: a @ b, "scans": scans, "recurrence": recurrence,
    "past_the_end": lambda x: jnp.concatenate([jnp.cumsum(x[:, :4], 1), jnp.cumsum(x[:, 4:], 1)], 1) / x,
    "folded": lambda x: jax.nn.logsumexp(x, 1), "csr": csr, "ragged": ragged, "powers": powers,
    "newton": jnp.sqrt, "until": until,
}  # fmt: skip


@pytest.mark.parametrize("name", STEERED)
def test_the_gradient_of_what_data_steer_is_that_of_jax(name: str) -> None:
    f, args, argnums, kwargs = BY_DATA[name]
    g = STEERED[name]
    got = ts.grad(lambda *xs: op.sum(op.sin(f(*xs, **kwargs))), argnums=argnums)(*args)
    want = jax.grad(lambda *xs: jnp.sin(g(*xs)).sum(), argnums=argnums)(*args)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y, atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("name", ["picked", "added", "recurrence", "ragged", "newton"])
def test_forward_mode_is_that_of_jax(name: str) -> None:
    f, args, argnums, _ = BY_DATA[name]
    moved = [args[k] for k in argnums]
    steps = [np.cos(np.arange(x.size)).reshape(x.shape) for x in moved]

    def at(g: Any) -> Any:
        def of(*xs: Any) -> Any:
            given = dict(zip(argnums, xs, strict=True))
            return g(*(given.get(i, a) for i, a in enumerate(args)))

        return of

    got = ts.jvp(at(f), [*map(ts.tensor, moved)], [*map(ts.tensor, steps)])
    want = jax.jvp(at(STEERED[name]), moved, steps)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y, atol=1e-11, rtol=1e-10)
