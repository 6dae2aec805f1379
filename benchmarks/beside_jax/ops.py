"""Single ops of medium size under the names that NumPy and JAX have for them, and ordinary pairs of ops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import special

import tessera as ts
from beside_jax.case import Case, Function, normal
from tessera import op

A, B, V = normal(0, 300, 700), normal(1, 300, 700), normal(2, 200_000)
W = np.abs(V) + np.float32(0.1)
I = np.random.default_rng(3).integers(0, 300, 5000).astype(np.int32)
S = normal(4, 60, 60)
SPD = (S @ S.T + 60 * np.eye(60)).astype(np.float32)
SMALL = normal(5, 200, 5, 5)
SMALL_SPD = (SMALL @ SMALL.transpose(0, 2, 1) + 5 * np.eye(5)).astype(np.float32)
IMAGES, FILTERS = normal(6, 4, 8, 64, 64), normal(7, 16, 8, 3, 3)
C = (A + 1j * B).astype(np.complex64)

UNARY = (
    "sin cos tan arctan sinh cosh tanh exp exp2 expm1 log1p cbrt square abs sign floor ceil round trunc "
    "isnan isinf isfinite negative reciprocal deg2rad signbit sinc i0 nan_to_num"
)
OF_POSITIVE = "log log2 log10 sqrt"
BINARY = (
    "add subtract multiply divide power maximum minimum arctan2 hypot logaddexp fmod remainder floor_divide "
    "copysign nextafter heaviside less equal float_power"
)
FOLDS = (
    "sum mean max min prod var std argmax argmin any all cumsum cumprod median nansum nanmean nanmax ptp "
    "count_nonzero"
)
SPECIAL = "erf erfc gammaln digamma ndtr expit i0e i1 entr"


def same(name: str, *operands: Any, **options: Any) -> Case:
    """A function that both have under one name."""
    label = name + "".join(f" {k}={v}" for k, v in options.items())
    ours: Function = getattr(op, name)
    theirs: Function = getattr(jnp, name)
    return Case(label, lambda *x: ours(*x, **options), lambda *x: theirs(*x, **options), operands)


def both(name: str, f: Function, *operands: Any) -> Case:
    """A function of the namespace."""
    return Case(name, lambda *x: f(op, *x), lambda *x: f(jnp, *x), operands)


def cases() -> list[Case]:
    """All cases."""
    found = [same(n, V) for n in UNARY.split()] + [same(n, W) for n in OF_POSITIVE.split()]
    found += [same(n, W, V) for n in BINARY.split()]
    for n in FOLDS.split():
        found += [same(n, A, axis=0), same(n, A, axis=1), same(n, A)]
    return [*found, *_arranged(), *_indexed(), *_linear(), *_neural(), *_special(), *_derived()]


def _arranged() -> list[Case]:
    return [
        *(same(n, A, axis=k) for n in ("sort", "argsort") for k in (0, 1)),
        *(same(n, V) for n in ("sort", "argsort")),
        *(same(n, A) for n in ("transpose", "ravel", "diff", "tril", "trace", "diagonal")),
        same("flip", A, axis=1),
        same("roll", A, shift=3, axis=1),
        same("repeat", A, repeats=3, axis=0),
        same("repeat", A, repeats=3, axis=1),
        same("tile", A, reps=(2, 2)),
        Case("pad", lambda x: op.pad(x, 3), lambda x: jnp.pad(x, 3), (A,)),
        both("pad reflect", lambda p, x: p.pad(x, 3, mode="reflect"), A),
        *(both(f"concatenate {k}", lambda p, x, y, k=k: p.concatenate([x, y], k), A, B) for k in (0, 1)),
        both("stack 2", lambda p, x, y: p.stack([x, y], 2), A, B),
        both("where", lambda p, x, y: p.where(x > 0, y, x), A, B),
        both(
            "five points",
            lambda p, x: x[1:-1, 1:-1] * 4 - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:], A,
        ),
        both(
            "five points by roll",
            lambda p, x: p.roll(x, 1, 0) + p.roll(x, -1, 0) + p.roll(x, 1, 1) + p.roll(x, -1, 1) - 4 * x, A,
        ),
    ]  # fmt: skip


def _indexed() -> list[Case]:
    along = np.random.default_rng(8).integers(0, 700, (300, 700)).astype(np.int32)
    places = np.random.default_rng(9).integers(0, 200_000, 50_000).astype(np.int32)
    ends = np.linspace(-3, 3, 100).astype(np.float32)
    return [
        both("take rows", lambda p, x, i: p.take(x, i, axis=0), A, I),
        both("take columns", lambda p, x, i: p.take(x, i, axis=1), A, I),
        both("take_along_axis", lambda p, x, i: p.take_along_axis(x, i, axis=1), A, along),
        both("x[i, i]", lambda p, x, i: x[i, i], A, I),
        both("x.at[i].set", lambda p, x, i: x.at[i].set(0.0), A, I[:100]),
        both("x.at[i].add", lambda p, x, i, v: x.at[i].add(v), A, I, normal(10, 5000, 700)),
        both("v.at[i].add(1)", lambda p, x, i: x.at[i].add(1.0), V, places),
        both("searchsorted", lambda p, a, v: p.searchsorted(a, v), np.sort(V), V[:5000]),
        both("bincount", lambda p, i: p.bincount(i, length=300), I),
        both("histogram", lambda p, x: p.histogram(x, bins=50)[0], V),
        both("interp", lambda p, x, a, b: p.interp(x, a, b), V[:20_000], ends, ends),
        both("quantile", lambda p, x: p.quantile(x, 0.3, axis=1), A),
        Case("top_k", lambda x: op.topk(x, 5)[0], lambda x: lax.top_k(x, 5)[0], (A,)),
    ]


def _linear() -> list[Case]:
    found = [
        both("matmul", lambda p, x, y: x @ y, A, B.T.copy()),
        both("matrix times vector", lambda p, x, y: x @ y, A, V[:700]),
        both("matmul 200x5x5", lambda p, x, y: x @ y, SMALL, SMALL),
        both("einsum ijk,ikl->il", lambda p, x, y: p.einsum("ijk,ikl->il", x, y), SMALL, SMALL),
        both("einsum ab,cb,cd->ad", lambda p, *x: p.einsum("ab,cb,cd->ad", *x), A[:100], B[:100], A[:100]),
        both("cov", lambda p, x: p.cov(x), A),
        both("outer", lambda p, x: p.outer(x, x), V[:700]),
        both("kron", lambda p, x: p.kron(x, x), S[:25, :25]),
        both("convolve", lambda p, x, y: p.convolve(x, y), V[:5000], V[:100]),
        both("distances", _distances, A[:, :8].copy(), B[:, :8].copy()),
    ]  # fmt: skip
    for n in ("cholesky", "inv", "det", "eigh", "svd", "qr"):
        plain = n in ("svd", "qr")
        for label, x in (("", S if plain else SPD), (" 200x5x5", SMALL if plain else SMALL_SPD)):
            found.append(Case(n + label, _sizes(op, n), _sizes(jnp.linalg, n), (x,)))
    for label, a, b in (("", SPD, S), (" 200x5x5", SMALL_SPD, SMALL)):
        found.append(Case("solve" + label, op.solve, jnp.linalg.solve, (a, b)))
    return found


def _neural() -> list[Case]:
    return [
        Case("softmax", op.softmax, jax.nn.softmax, (A,)),
        Case("log_softmax", op.log_softmax, jax.nn.log_softmax, (A,)),
        Case("gelu", op.gelu, lambda x: jax.nn.gelu(x, approximate=False), (V,)),
        Case("silu", op.silu, jax.nn.silu, (V,)),
        Case("softplus", op.softplus, jax.nn.softplus, (V,)),
        Case("one_hot", lambda i: op.one_hot(i, 300), lambda i: jax.nn.one_hot(i, 300), (I,)),
        Case("conv2d", lambda x, k: op.conv2d(x, k, padding=1), _conv, (IMAGES, FILTERS)),
        Case("max_pool", lambda x: op.max_pool(x, 2), _max_pool, (IMAGES,)),
        Case("fft", op.fft, jnp.fft.fft, (C[:, :512].copy(),)),
        Case("fft of 700", op.fft, jnp.fft.fft, (C,)),
        Case("rfft", op.rfft, jnp.fft.rfft, (A[:, :512].copy(),)),
        Case("fft2", op.fft2, jnp.fft.fft2, (C[:256, :512].copy(),)),
        both("complex product", lambda p, x, y: x * y, C, C),
        both("complex abs", lambda p, x: p.abs(x), C),
        both("complex exp", lambda p, x: p.exp(x), C),
        both("complex matmul", lambda p, x, y: x @ y, C, C.T.copy()),
        both("complex sum", lambda p, x: p.sum(x, 1), C),
        both("i32 // and %", lambda p, x, y: x // y + x % y, I, I + 1),
        both("f64 exp", lambda p, x: p.exp(x), V.astype(np.float64)),
        both("f16 x * x + x", lambda p, x: x * x + x, V.astype(np.float16)),
    ]  # fmt: skip


def _sizes(library: Any, name: str) -> Function:
    """A factorisation, whose vectors may have either sign."""
    f = getattr(library, name)

    def run(x: Any) -> Any:
        made = f(x)
        return tuple(map(abs, made)) if isinstance(made, tuple) else made

    return run


def _distances(p: Any, x: Any, y: Any) -> Any:
    return p.sqrt(p.sum((x[:, None] - y[None]) ** 2, 2))


def _times(x: Any, y: Any) -> Any:
    return x @ y


def _conv(x: Any, k: Any) -> Any:
    return lax.conv(x, k, (1, 1), "SAME")


def _max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _special() -> list[Case]:
    x, y, unit = W[:5000], W[5000:10_000], (W[:5000] % 0.9).astype(np.float32)
    found = [Case(n, getattr(op, n), getattr(special, n), (W,)) for n in SPECIAL.split()]
    inverse = (W % 0.9 + 0.05).astype(np.float32)
    found += [
        Case(n, getattr(op, n), getattr(special, n), (inverse,))
        for n in ("erfinv", "ndtri", "logit")
    ]
    found += [
        Case(n, getattr(op, n), getattr(special, n), (x, y))
        for n in ("gammainc", "gammaincc", "betaln")
    ]
    found.append(Case("betainc", op.betainc, special.betainc, (x, y, unit)))
    found.append(Case("zeta", op.zeta, special.zeta, (x + 1.5, y)))
    return found  # fmt: skip


def _derived() -> list[Case]:
    def grad(name: str, f: Function, *operands: Any) -> Case:
        return Case(
            f"gradient of {name}",
            lambda x, *r: ts.grad(lambda x: f(op, x, *r))(x),
            lambda x, *r: jax.grad(lambda x: f(jnp, x, *r))(x),
            operands,
        )

    return [
        grad("log-sum-exp", lambda p, x: p.sum(p.log(p.sum(p.exp(x), 1))), A),
        grad("take", lambda p, x, i: p.sum(p.take(x, i, axis=0) ** 2), A, I),
        grad("sort", lambda p, x: p.sum(p.sort(x, axis=1)[:, :5]), A),
        grad("cumsum", lambda p, x: p.sum(p.cumsum(x, axis=1) ** 2), A),
        grad("distances", lambda p, *x: p.sum(_distances(p, *x)), A[:, :8].copy(), B[:, :8].copy()),
        Case("vmap of matrix times vector", ts.vmap(_times), jax.vmap(_times), (SMALL, SMALL[:, 0].copy())),
    ]  # fmt: skip
