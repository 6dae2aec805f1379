"""ts.stablehlo.load: what jax.jit(f).lower(...).as_text() prints, as a function of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.flags import override

jax = pytest.importorskip("jax")
from tests.oracles.test_jax_import import IMAGE, PROGRAMS, S, X, check  # noqa: E402

jnp, lax, nn, special = jax.numpy, jax.lax, jax.nn, jax.scipy.special
pytestmark = pytest.mark.oracle

V = np.linspace(0.1, 2.0, 6)
N = np.array([[3, -7, 5], [2, 0, -9]])


@pytest.fixture(autouse=True)
def wide_numbers() -> Iterator[None]:
    with jax.enable_x64(True), override(target="numpy"):
        yield


def loaded(f: Any, *args: Any) -> Any:
    return ts.stablehlo.load(jax.jit(f, keep_unused=True).lower(*args).as_text())


def agree(f: Any, *args: Any, rtol: float = 1e-10) -> None:
    check(loaded(f, *args)(*args), jax.jit(f)(*args), rtol)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    f, x = PROGRAMS[name]
    agree(f, x)


ELEMENTS = """abs absolute acos arccosh1 arcsinh arctan arctanh cbrt ceil conj cos cosh deg2rad exp exp2 expm1 fabs
floor isfinite isinf isnan log log10 log1p log2 negative positive rad2deg reciprocal rint round sign signbit sin sinc sinh
sqrt square tan tanh trunc nan_to_num"""  # noqa: E501
PAIRS = """add arctan2 divide floor_divide fmax fmin fmod greater greater_equal heaviside hypot less less_equal logaddexp
logaddexp2 maximum minimum mod multiply nextafter not_equal power remainder subtract true_divide copysign ldexp1"""  # noqa: E501
FOLDS = """all any argmax argmin average cumprod cumsum max mean median min nanmax nanmean nanmin nanprod nanstd nansum
nanvar prod ptp std sum var sort argsort count_nonzero diff flip ravel transpose nancumsum nanargmax"""  # noqa: E501
ACTIVATIONS = """celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu log_sigmoid log_softmax logsumexp
relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish mish"""  # noqa: E501
SPECIAL = "digamma entr erf erfc erfinv1 expit gammaln log_ndtr logit1 ndtr xlogy2 xlog1py2 gamma rel_entr2 betaln2"  # noqa: E501


def named() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Functions of JAX by name, with arguments."""
    grid = X[:3, :4]
    for name in ELEMENTS.split():
        f, x = getattr(jnp, name.rstrip("1") if name.endswith("h1") else name), grid / 4
        yield f"jnp.{name}", f, (1 + np.abs(x) if name.endswith("h1") else x,)
    for name in PAIRS.split():
        second = N[0, :1] if name.endswith("ldexp1") else np.abs(grid) + 0.3
        yield f"jnp.{name}", getattr(jnp, name.removesuffix("1")), (np.abs(grid), second)
    for name in FOLDS.split():
        yield f"jnp.{name}", getattr(jnp, name), (grid,)
    for name in ACTIVATIONS.split():
        yield f"nn.{name}", getattr(nn, name), (grid,)
    for name in SPECIAL.split():
        two = name.endswith("2")
        args = (V, V[::-1] + 0.2) if two else (V / 3,)
        yield f"special.{name}", getattr(special, name.rstrip("12")), args
    yield from ((f.__name__, f, args) for f, args in OWN)
    for k, f in enumerate(SHORT):
        yield f"short{k}", f, (grid,)
    for k, f in enumerate(SQUARE):
        yield f"square{k}", f, (S,)
    for k, f in enumerate(WHOLE):
        yield f"whole{k}", f, (N,)


SHORT = [
    lambda x: x.T @ x, lambda x: jnp.einsum("ij,ik->jk", x, x), lambda x: jnp.tensordot(x, x, 2),
    lambda x: jnp.outer(x, x),
    lambda x: jnp.kron(x, x), lambda x: jnp.cross(x[:, :3], x[:, 1:]), lambda x: jnp.stack([x, -x], 1),
    lambda x: jnp.concatenate([x, x], 1),
    lambda x: jnp.tile(x, (2, 3)), lambda x: jnp.repeat(x, 2, 1), lambda x: jnp.roll(x, 1, 0),
    lambda x: jnp.rot90(x), lambda x: jnp.pad(x, 2, mode="reflect"),
    lambda x: jnp.pad(x, 1, mode="edge"), lambda x: jnp.where(x > 0, x, 2.0),
    lambda x: jnp.clip(x, -0.5, 0.5), lambda x: jnp.tril(x),
    lambda x: jnp.triu(x, 1), lambda x: jnp.diag(x[0]), lambda x: jnp.trace(x),
    lambda x: jnp.split(x, 2, 1), lambda x: x[1], lambda x: x[:, ::-2],
    lambda x: x[jnp.array([2, 0]), jnp.array([1, 3])], lambda x: x.at[1].set(0.0),
    lambda x: x.at[:, 1].add(x[:, 0]), lambda x: x.at[0, 0].multiply(3.0),
    lambda x: x.at[jnp.array([0, 0, 1])].min(0.1), lambda x: jnp.take(x, jnp.array([3, 1]), 1),
    lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    lambda x: jnp.searchsorted(jnp.sort(x[0]), x[1]), lambda x: jnp.unique(x, size=4),
    lambda x: jnp.histogram(x, 4)[0], lambda x: jnp.interp(x, V, V**2),
    lambda x: jnp.quantile(x, 0.3), lambda x: jnp.percentile(x, 60.0, axis=0), lambda x: jnp.cov(x),
    lambda x: jnp.corrcoef(x), lambda x: jnp.convolve(x[0], x[1]),
    lambda x: jnp.correlate(x[0], x[1]), lambda x: jnp.polyval(x[0], x), lambda x: jnp.vander(x[0]),
    lambda x: jnp.meshgrid(x[0], x[1]),
    lambda x: jnp.linspace(x[0, 0], 3.0, 5), lambda x: jnp.arange(4) + x, lambda x: jnp.full((2,), x[0, 0]),
    lambda x: jnp.fft.fft(x), lambda x: jnp.fft.rfft2(x),
    lambda x: jnp.fft.irfft(x), lambda x: jnp.gradient(x), lambda x: jnp.trapezoid(x),
    lambda x: jnp.nonzero(x > 0, size=5), lambda x: jnp.digitize(x, V),
    lambda x: lax.top_k(x, 2), lambda x: lax.sort((x, -x), num_keys=1),
    lambda x: lax.sort((jnp.round(x), x), num_keys=2), lambda x: lax.cummax(x, 1),
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME"),
    lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 1), "VALID"),
    lambda x: lax.dynamic_slice(x, (1, 9), (2, 2)), lambda x: lax.dynamic_update_slice(x, x[:1], (2, 1)),
    lambda x: lax.reduce_precision(x, 8, 7),
    lambda x: lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "SAME"),
    lambda x: lax.associative_scan(jnp.multiply, x), lambda x: lax.map(jnp.sum, x),
    lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x),
    lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x),
    lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    lambda x: lax.switch(jnp.int32(x[0, 0] > 9), [jnp.sin, jnp.cos, jnp.tan], x),
    lambda x: lax.scan(lambda c, r: (c + r, c * r), x[0], x), lambda x: jax.vmap(jnp.dot)(x, x),
    lambda x: jax.grad(lambda y: jnp.sum(jnp.sin(y) ** 2))(x),
    lambda x: jax.grad(lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID").sum())(x),
    lambda x: jax.hessian(lambda y: jnp.prod(y))(x[0, :3]),
    lambda x: jax.jacobian(lambda y: jnp.tanh(y))(x[0]), lambda x: x.astype(jnp.bfloat16),
    lambda x: x.astype(jnp.float16) * 2, lambda x: (x * 9).astype(jnp.int8),
    lambda x: jnp.exp(1j * x), lambda x: jnp.angle(x + 1j),
    lambda x: lax.bitcast_convert_type(x, jnp.int64), lambda x: nn.one_hot(jnp.argmax(x, 1), 4),
    lambda x: jax.random.normal(jax.random.key(3), (5,)) + x[0, 0],
    lambda x: jax.random.permutation(jax.random.key(1), 6),
    lambda x: jax.random.categorical(jax.random.key(2), x),
    lambda x: nn.dot_product_attention(*[x.reshape(1, 3, 2, 2).astype(jnp.float32)] * 3),
    lambda x: jax.image.resize(x, (6, 5), "linear"),
    lambda x: jax.ops.segment_sum(x, jnp.array([0, 1, 0]), 2),
    lambda x: jnp.select([x > 1, x > 0], [x, -x]), lambda x: jnp.piecewise(x, [x > 0], [1.0, 0.0]),
]  # fmt: skip
SQUARE = [
    jnp.linalg.inv, jnp.linalg.det, jnp.linalg.slogdet, jnp.linalg.cholesky, jnp.linalg.eigvalsh,
    jnp.linalg.norm, lambda x: jnp.linalg.solve(x, x[:, 0]),
    lambda x: jnp.abs(jnp.linalg.qr(x)[1]), lambda x: jnp.linalg.svd(x, compute_uv=False),
    lambda x: jnp.linalg.matrix_power(x, 3), jnp.linalg.pinv,
    lambda x: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(x), True), x[0]),
    lambda x: jax.scipy.linalg.solve_triangular(x, x[0], lower=False),
    lambda x: jax.scipy.linalg.expm(x / 9), lambda x: jnp.linalg.lstsq(x, x[0])[0],
    lambda x: jax.grad(lambda y: jnp.linalg.slogdet(y)[1])(x),
]  # fmt: skip
WHOLE = [
    lambda n: n // 2, lambda n: n % 4, lambda n: n << 1, lambda n: n >> 1, lambda n: n & 3, lambda n: n | 8,
    lambda n: n ^ 5, lambda n: ~n, jnp.abs, jnp.sum,
    lambda n: lax.div(n, 2), lambda n: lax.rem(n, 4), lambda n: lax.population_count(n),
    lambda n: jnp.bincount(jnp.abs(n[0]), length=9), lambda n: n.astype(jnp.uint8),
    lambda n: jnp.gcd(n, 6), lambda n: jnp.sort(n, 1), lambda n: n > 1, lambda n: n / 2, jnp.cumsum,
    lambda n: jnp.packbits(n > 0),
]  # fmt: skip


def conv_transposed(x: Any) -> Any:
    return lax.conv_transpose(x, jnp.ones((2, 2, 3, 2)), (2, 2), "SAME")


def batch_norm(x: Any) -> Any:
    return (x - x.mean((0, 1, 2))) / jnp.sqrt(x.var((0, 1, 2)) + 1e-5)


def conv_gradient(x: Any) -> Any:
    return jax.grad(lambda k: jnp.sum(lax.conv_general_dilated(x, k, (1, 1), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2))(
        jnp.ones((2, 2, 3, 2))
    )  # fmt: skip


OWN = [(f, (IMAGE,)) for f in (conv_transposed, batch_norm, conv_gradient)]


@pytest.mark.deep
def test_two_hundred_functions() -> None:
    wrong, count = {}, 0
    for name, f, args in named():
        count += 1
        try:
            agree(f, *args, rtol=1e-8)
        except (AssertionError, ts.TesseraError) as e:
            wrong[name] = f"{type(e).__name__}: {e}".strip()[:160]
    assert not wrong, wrong
    assert count >= 200


def test_derivatives_and_batches_of_a_loaded_module() -> None:
    def f(x: Any) -> Any:
        def step(h: Any, r: Any) -> Any:
            h = jnp.tanh(h + r)
            return h, h

        return jnp.sum(lax.scan(step, jnp.zeros(5), x)[1] ** 2)

    g = loaded(f, X)
    np.testing.assert_allclose(ts.jit(ts.grad(g))(X), jax.grad(f)(X), rtol=1e-8)
    row = loaded(lambda r: jnp.sort(r)[::-1] * 2, X[0])
    np.testing.assert_allclose(ts.vmap(row)(X), np.sort(X, 1)[:, ::-1] * 2)


def test_what_we_export_is_read_again() -> None:
    def f(x: Any) -> Any:
        return op.softmax(op.tanh(x) @ op.transpose(x)), op.cumsum(x, 1), op.sort(x, 0)

    g = ts.stablehlo.load(ts.stablehlo.export(f, X))
    for a, b in zip(g(X), f(ts.tensor(X)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
