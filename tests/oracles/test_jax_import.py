"""ts.jax.import_function: functions of JAX in our eager code, jit, grad and vmap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.flags import override

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
pytestmark = pytest.mark.oracle

RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((4, 5)), RNG.standard_normal((5, 4))
V = RNG.standard_normal(7)
S = X @ X.T + 4 * np.eye(4)
IMAGE, KERNEL = RNG.standard_normal((2, 6, 6, 3)), RNG.standard_normal((3, 3, 3, 4))
N = np.array([[3, -7, 5], [2, 0, -9]])


@pytest.fixture(autouse=True)
def wide_numbers() -> Iterator[None]:
    with jax.enable_x64(True), override(target="numpy"):
        yield


def mlp(x: Any) -> Any:
    h = jax.nn.gelu(x @ jnp.asarray(Y, x.dtype))
    h = jax.nn.silu(h) + jax.nn.softmax(h, axis=0)
    return jax.nn.log_softmax(h) * jax.nn.standardize(h)


def conv_net(x: Any) -> Any:
    y = lax.conv_general_dilated(
        x, jnp.asarray(KERNEL, x.dtype), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = jnp.tanh(y)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return lax.reduce_window(y, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME").mean((1, 2))


def depthwise(x: Any) -> Any:
    return lax.conv_general_dilated(
        jnp.transpose(x, (0, 3, 1, 2)), jnp.asarray(KERNEL.reshape(12, 1, 3, 3)[:6]), (2, 1),
        [(1, 2), (0, 1)],
        lhs_dilation=(1, 2), rhs_dilation=(2, 1), feature_group_count=3,
    )  # fmt: skip


def recurrent(x: Any) -> Any:
    def step(h: Any, row: Any) -> Any:
        h = jnp.tanh(h + row)
        return h, h[::-1]

    return lax.scan(step, jnp.zeros(5, x.dtype), x, reverse=True)


def loops(x: Any) -> Any:
    a = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]
    b = lax.fori_loop(0, 4, lambda i, c: c + i * x, x)
    c = lax.switch(1, [jnp.sin, jnp.cos, jnp.tan], x)
    return a, b, c, lax.cond(x.sum() > 0, lambda: x, lambda: -x), lax.map(jnp.sum, x)


def running(x: Any) -> Any:
    return (
        jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 1), lax.cumlogsumexp(x, 0, reverse=True),
        lax.associative_scan(jnp.add, x, axis=1),
    )  # fmt: skip


def places(x: Any) -> Any:
    i = jnp.array([2, 0, -1])
    return (
        x[i], x[:, i], x[1, 2], x[i, i], x[1:3, ::2], x[i[:, None], i[None]], jnp.take(x, i, axis=1),
        x.at[i].add(1.0), x.at[1, 2].set(5.0), x.at[:, i].multiply(2.0), x.at[i, i].max(0.0),
        x.at[0].min(0.3),
        jnp.take_along_axis(x, jnp.argsort(x, 1), 1), lax.dynamic_slice(x, (1, 2), (2, 2)),
        lax.dynamic_update_slice(x, x[:2, :2], (3, 1)), jnp.roll(x, 2, 1),
        jax.vmap(lambda r, k: r[k])(x, jnp.arange(4)),
    )  # fmt: skip


def order(x: Any) -> Any:
    keys = jnp.round(x)
    return (
        jnp.sort(x, 0), jnp.argsort(x, 1, descending=True), lax.sort((keys, x), dimension=1, num_keys=2),
        lax.top_k(x, 3),
        jnp.argmax(x, 1), jnp.argmin(x), jnp.median(x), jnp.quantile(x, 0.3, axis=1),
        jnp.searchsorted(jnp.sort(x[0]), x[1]),
        jnp.unique(keys, size=5), jnp.percentile(x, 40.0),
    )  # fmt: skip


def spectra(x: Any) -> Any:
    return (
        jnp.fft.fft(x), jnp.fft.ifft(x + 1j), jnp.fft.rfft(x), jnp.fft.irfft(x + 0j, n=7), jnp.fft.fft2(x),
        jnp.fft.fftshift(x), jnp.convolve(x[0], x[1]),
    )  # fmt: skip


def linalg(x: Any) -> Any:
    w, v = jnp.linalg.eigh(x)
    return (
        jnp.linalg.solve(x, x[:, :2] + 1), jnp.linalg.inv(x), jnp.linalg.det(x), jnp.linalg.slogdet(x),
        jnp.linalg.cholesky(x), w,
        jnp.abs(v), jnp.linalg.svd(x, compute_uv=False), jnp.abs(jnp.linalg.qr(x)[1]), jnp.linalg.norm(x),
        jax.scipy.linalg.solve_triangular(x, x, lower=True, trans=1), jnp.trace(x), jnp.kron(x, x),
        jnp.einsum("ij,kj->ik", x, x),
    )  # fmt: skip


def elements(x: Any) -> Any:
    y = jnp.abs(x) + 0.1
    return (
        x**3, y**x, x**-2, jnp.exp2(x), jnp.log1p(y), jnp.expm1(x), jnp.arctan2(x, y), jnp.sinh(x),
        jnp.cbrt(x), jax.scipy.special.erf(x),
        jax.scipy.special.gammaln(y), jax.scipy.special.digamma(y), jnp.clip(x, -0.5, 0.5),
        jnp.where(x > 0, x, 0),
        jnp.sign(x), jnp.floor(x), jnp.round(x), jnp.remainder(x, 0.7), jnp.logaddexp(x, y), jax.nn.relu(x),
        jax.nn.sigmoid(x), jnp.isfinite(x),
        jnp.hypot(x, y), jnp.float32(x), x.astype(jnp.bfloat16), jnp.real(jnp.exp(1j * x)), jnp.var(x, 0),
        jnp.prod(x, 1), jnp.max(x, 0),
        jnp.all(x > -9), jnp.any(x > 9, 0), jnp.tril(x), jnp.pad(x, 1), jnp.tile(x, (2, 1)),
        jnp.repeat(x, 2, 0), jnp.stack([x, y]),
    )  # fmt: skip


def special(x: Any) -> Any:
    f, y = jax.scipy.special, jnp.abs(x) + 0.1
    return (
        f.gammainc(y, y[::-1]), f.gammaincc(y, y[::-1]), f.i0(x), f.i0e(x), f.i1(x), f.i1e(x),
        f.betainc(y, y[::-1], jax.nn.sigmoid(x)), f.zeta(y + 1, y),
    )  # fmt: skip


def whole(n: Any) -> Any:
    return (
        n // 2, n % 4, lax.div(n, 2), lax.rem(n, 4), n << 2, n >> 1, n & 3, n | 8, n ^ 5, ~n, abs(n),
        jnp.cumsum(n, 1),
        n.astype(jnp.uint8), lax.shift_right_logical(n, 3), n.sum(), jnp.bincount(jnp.abs(n[0]), length=9),
    )  # fmt: skip


def drawn(x: Any) -> Any:
    key = jax.random.key(7)
    a, b = jax.random.split(key)
    return (
        jax.random.bits(a, (5,)), jax.random.uniform(b, (3, 2)),
        jax.random.normal(jax.random.fold_in(a, 3), (7,)) + x[0, 0],
        jax.random.randint(b, (4,), 0, 10), jax.random.bernoulli(a, 0.4, (6,)), jax.random.permutation(b, 8),
    )  # fmt: skip


PROGRAMS = {
    f.__name__: (f, x)
    for f, x in (
        (mlp, X), (conv_net, IMAGE), (depthwise, IMAGE), (recurrent, X), (loops, X), (running, X),
        (places, X), (order, X), (spectra, X),
        (linalg, S), (elements, X), (special, X), (whole, N), (drawn, X),
    )
}  # fmt: skip


def check(got: Any, want: Any, rtol: float = 1e-10) -> None:
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype), k
        a, b = (x.astype(np.float64) if x.dtype.kind == "V" else x for x in (a, b))
        low = b.dtype in (np.float32, np.complex64)
        np.testing.assert_allclose(
            a, b, rtol=3e-5 if low else rtol, atol=3e-5 if low else rtol, err_msg=str(k)
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_in_f64(name: str) -> None:
    f, x = PROGRAMS[name]
    g = ts.jax.import_function(f, x)
    check(g(x), f(jnp.asarray(x)))


@pytest.mark.deep
@pytest.mark.parametrize("name", ["mlp", "conv_net", "recurrent", "running", "spectra", "linalg"])
def test_programs_in_f32(name: str) -> None:
    f, x = PROGRAMS[name]
    x = x.astype(np.float32)
    with jax.enable_x64(False):
        g = ts.jax.import_function(f, x)
        want = f(jnp.asarray(x))
    got, want = (jax.tree.leaves(t) for t in (g(x), want))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=2e-4)


def total(f: Any, add: Any) -> Any:
    """The sum of all results that are real numbers."""

    def run(x: Any) -> Any:
        parts = [y for y in jax.tree.leaves(f(x)) if str(y.dtype) in ("float64", "f64")]
        return sum(add(y * y) for y in parts)

    return run


QUICK = ["mlp"]


@pytest.mark.parametrize("name", QUICK)
def test_gradients(name: str) -> None:
    gradients(name)


@pytest.mark.deep
@pytest.mark.parametrize(
    "name", ["conv_net", "depthwise", "recurrent", "running", "places", "elements", "linalg"]
)
def test_more_gradients(name: str) -> None:
    gradients(name)


def gradients(name: str) -> None:
    f, x = PROGRAMS[name]
    g = ts.jax.import_function(f, x)
    got = ts.jit(ts.grad(total(g, op.sum)))(x)
    np.testing.assert_allclose(
        got, jax.grad(total(f, jnp.sum))(jnp.asarray(x)), rtol=1e-8, atol=1e-8
    )


def test_second_derivatives_of_a_linear_solve() -> None:
    def f(a: Any) -> Any:
        return jnp.sum(jnp.linalg.solve(a, jnp.ones(3)) ** 2)

    a = S[:3, :3]
    g = ts.jax.import_function(f, a)
    np.testing.assert_allclose(
        ts.hessian(g)(a), jax.hessian(f)(jnp.asarray(a)), rtol=1e-7, atol=1e-9
    )


def test_trees_jit_and_vmap() -> None:
    def f(p: Any, x: Any) -> Any:
        return {"y": x @ p["w"] + p["b"], "n": (jnp.sum(x),)}

    p = {"w": Y, "b": np.ones(4)}
    g = ts.jax.import_function(f, p, X)
    for got in (g(p, X), ts.jit(g)(p, X)):
        check(got, f(p, jnp.asarray(X)))
    row = ts.jax.import_function(f, p, X[0])
    batch = ts.vmap(row, in_axes=(None, 0))(p, X)
    np.testing.assert_allclose(batch["y"], X @ Y + 1)


def test_errors() -> None:
    g = ts.jax.import_function(lambda x: x + 1, X)
    with pytest.raises(ts.TesseraError) as e:
        g(V)
    assert e.value.message == (
        "<lambda>: argument 0 is f64[7], but the function was imported for f64[4,5]; import it again for "
        "other shapes"
    )
    with pytest.raises(ts.jax.JaxError) as j:
        ts.jax.import_function(lambda x: lax.linalg.schur(x), S)
    assert j.value.message == (
        "jax: the primitive 'schur' has no rule here; import the part of the function without it"
    )
