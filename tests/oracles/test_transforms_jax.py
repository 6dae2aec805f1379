"""Random programs against JAX in f64: values, gradients, Hessian-vector products, vmaps.

A program is a list of steps on 3 by 3 matrices; each step is written once, in a small language that
both libraries speak, so that the two differ only in who runs and transforms it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.runners.tolerance import Tolerance, assert_close

RUNS_ON = "numpy"

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
pytestmark = pytest.mark.oracle

PROGRAMS = 304
SIZE = 3
EYE = np.eye(SIZE)


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    with jax.disable_jit():  # nothing to compile but single ops
        yield
    jax.config.update("jax_enable_x64", False)


# The two languages ------------------------------------------------------------------------------

OURS = SimpleNamespace(
    sin=op.sin, tanh=op.tanh, exp=op.exp, log1p=op.log1p, sqrt=op.sqrt, abs=op.abs,
    sigmoid=op.sigmoid, softplus=op.softplus, gelu=op.gelu, erf=op.erf, maximum=op.maximum,
    where=op.where, logaddexp=op.logaddexp, sum=op.sum, mean=op.mean, max=op.max, var=op.var,
    prod=op.prod, norm=lambda x: op.norm(x), logsumexp=op.logsumexp, softmax=op.softmax,
    cumsum=lambda x: op.cumsum(x, 0), cumprod=lambda x: op.cumprod(x, 1), matmul=op.matmul,
    einsum=op.einsum, transpose=op.transpose, flip=lambda x: op.flip(x, 0), reshape=op.reshape,
    roll=lambda x: op.roll(x, 1, 1), concat=op.concat, pad=op.pad, outer=op.outer, diag=op.diagonal,
    tril=op.tril, sort=lambda x: op.sort(x, 1), argsort=lambda x: op.argsort(x, 1),
    along=lambda x, i: op.take_along_axis(x, i, 1), take=lambda x, i: op.take(x, i, 0),
    topk=lambda x: op.topk(x, 2)[0], add_at=lambda x, i, v: x.at[i].add(v),
    set_at=lambda x, i, v: x.at[i].set(v), window=lambda x, i: op.dynamic_slice(x, (i, 0), (2, 3)),
    argmax=lambda x: op.argmax(x, 0), scan=ts.scan, cond=ts.cond, fori=ts.fori_loop,
    loop=ts.while_loop, stop=op.stop_gradient, solve=op.solve, inv=op.inv, cholesky=op.cholesky,
    slogdet=lambda x: op.slogdet(x)[1], det=op.det, eigvalsh=op.eigvalsh, svdvals=op.svdvals,
    eigh=op.eigh, qr=lambda x: op.qr(x)[1], expm=op.expm, rfft=lambda x: op.abs(op.rfft(x)),
    asarray=ts.asarray, checkpoint=ts.checkpoint, jit=ts.jit,
)  # fmt: skip


# What einsum means, spelled out: JAX's own takes seconds to start up.
PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "ij,jk->ik": lambda x, y: x @ y,
    "ij,lj->il": lambda x, y: x @ y.T,
    "ij,ij->i": lambda x, y: jnp.sum(x * y, axis=1),
}


def theirs() -> SimpleNamespace:
    """JAX under the same names."""
    return SimpleNamespace(
        sin=jnp.sin, tanh=jnp.tanh, exp=jnp.exp, log1p=jnp.log1p, sqrt=jnp.sqrt, abs=jnp.abs,
        sigmoid=jax.nn.sigmoid, softplus=jax.nn.softplus, erf=jax.scipy.special.erf,
        gelu=lambda x: jax.nn.gelu(x, approximate=False), maximum=jnp.maximum, where=jnp.where,
        logaddexp=jnp.logaddexp, sum=jnp.sum, mean=jnp.mean, max=jnp.max, var=jnp.var,
        prod=jnp.prod, norm=jnp.linalg.norm, logsumexp=jax.nn.logsumexp, softmax=jax.nn.softmax,
        cumsum=lambda x: jnp.cumsum(x, 0), cumprod=lambda x: jnp.cumprod(x, 1), matmul=jnp.matmul,
        einsum=lambda spec, x, y: PRODUCTS[spec](x, y), transpose=jnp.transpose,
        flip=lambda x: jnp.flip(x, 0),
        reshape=jnp.reshape, roll=lambda x: jnp.roll(x, 1, 1), concat=jnp.concatenate, pad=jnp.pad,
        outer=jnp.outer, diag=jnp.diagonal, tril=jnp.tril, sort=lambda x: jnp.sort(x, 1),
        argsort=lambda x: jnp.argsort(x, 1), along=lambda x, i: jnp.take_along_axis(x, i, 1),
        take=lambda x, i: jnp.take(x, i, 0), topk=lambda x: lax.top_k(x, 2)[0],
        add_at=lambda x, i, v: jnp.asarray(x).at[i].add(v),
        set_at=lambda x, i, v: jnp.asarray(x).at[i].set(v),
        window=lambda x, i: lax.dynamic_slice(x, (i, jnp.zeros((), i.dtype)), (2, 3)),
        argmax=lambda x: jnp.argmax(x, 0), scan=lax.scan, cond=lax.cond, fori=lax.fori_loop,
        loop=lax.while_loop, stop=lax.stop_gradient, solve=jnp.linalg.solve, inv=jnp.linalg.inv,
        cholesky=jnp.linalg.cholesky, slogdet=lambda x: jnp.linalg.slogdet(x)[1],
        det=jnp.linalg.det, eigvalsh=jnp.linalg.eigvalsh, eigh=jnp.linalg.eigh,
        svdvals=lambda x: jnp.linalg.svd(x, compute_uv=False), qr=lambda x: jnp.linalg.qr(x)[1],
        expm=jax.scipy.linalg.expm, rfft=lambda x: jnp.abs(jnp.fft.rfft(x)),
        asarray=jnp.asarray, checkpoint=jax.checkpoint, jit=lambda f: f,
    )  # fmt: skip


# Steps: (language, matrix, matrix) -> matrix -----------------------------------------------------

ROWS = np.array([2, 0, 2])


def positive(n: Any, x: Any) -> Any:
    """A positive definite matrix with eigenvalues that lie apart."""
    return n.matmul(x, n.transpose(x)) + n.asarray(np.diag([1.0, 2.0, 4.0]))


def wide(n: Any, v: Any) -> Any:
    """A scalar, row or column as a matrix."""
    return v + n.asarray(np.zeros((SIZE, SIZE)))


def spectral(n: Any, x: Any) -> Any:
    """A function of a symmetric matrix through its eigenvectors, whose signs do not matter."""
    w, v = n.eigh(positive(n, x))
    return n.matmul(v * n.sqrt(w), n.transpose(v))


def scanned(n: Any, x: Any, y: Any) -> Any:
    def step(c: Any, r: Any) -> Any:
        c = n.tanh(c + n.matmul(y, r))
        return c, c * r

    last, rows = n.scan(step, x[0], y)
    return rows + last


def reversed_scan(n: Any, x: Any, y: Any) -> Any:
    return n.scan(lambda c, r: (c * n.sin(n.sum(r)), c + r), n.sum(x), y, reverse=True)[1]


def branched(n: Any, x: Any, y: Any) -> Any:
    return n.cond(n.sum(x) > n.sum(y), lambda a, b: n.sin(a) * b, lambda a, b: a - n.tanh(b), x, y)


def looped(n: Any, x: Any, y: Any) -> Any:
    return n.fori(0, 3, lambda i, c: n.sin(c) + 0.3 * y, x)


def halved(n: Any, x: Any, y: Any) -> Any:
    """A loop whose length depends on the values; reverse mode must not enter it."""
    small = n.loop(lambda c: n.max(n.abs(c)) > 0.5, lambda c: c * 0.5, n.stop(x))
    return y * small


def again(n: Any, x: Any, y: Any) -> Any:
    return n.checkpoint(lambda a, b: n.sin(n.matmul(a, b)) * n.tanh(a))(x, y)


Step = Callable[[Any, Any, Any], Any]
STEPS: dict[str, Step] = {
    "sin": lambda n, x, y: n.sin(x),
    "exp": lambda n, x, y: n.exp(0.4 * x),
    "log": lambda n, x, y: n.log1p(x * x),
    "root": lambda n, x, y: n.sqrt(x * x + 0.5),
    "quotient": lambda n, x, y: x / (y * y + 1.0),
    "power": lambda n, x, y: (x * x + 0.2) ** 1.5 * 0.2,
    "gates": lambda n, x, y: n.sigmoid(x) * n.softplus(y),
    "bells": lambda n, x, y: n.gelu(x) + n.erf(y),
    "pick": lambda n, x, y: n.where(x > y, n.sin(x), y * y * 0.5),
    "larger": lambda n, x, y: n.maximum(x, y) - 0.3 * n.abs(x),
    "logaddexp": lambda n, x, y: n.logaddexp(x, y),
    "sum": lambda n, x, y: x * 0.3 * n.sum(y, axis=0),
    "centre": lambda n, x, y: x - n.mean(x, axis=1, keepdims=True),
    "normalise": lambda n, x, y: x / n.sqrt(n.var(x, axis=1, keepdims=True) + 0.1),
    "largest": lambda n, x, y: wide(n, n.max(x, axis=0)) * y,
    "prod": lambda n, x, y: wide(n, n.prod(n.tanh(x), axis=1)) + y,
    "norm": lambda n, x, y: x / (n.norm(x) + 1.0),
    "softmax": lambda n, x, y: n.matmul(n.softmax(x, axis=-1), y),
    "logsumexp": lambda n, x, y: y - wide(n, n.logsumexp(x, axis=0)),
    "cumsum": lambda n, x, y: n.cumsum(x) * 0.4,
    "cumprod": lambda n, x, y: n.cumprod(n.tanh(x)) + y,
    "matmul": lambda n, x, y: n.matmul(x, y) * 0.4,
    "bilinear": lambda n, x, y: n.einsum("ij,lj->il", n.einsum("ij,jk->ik", x, y), x) * 0.2,
    "batched product": lambda n, x, y: n.einsum("ij,ij->i", x, y)[:, None] * 0.3 + y,
    "transpose": lambda n, x, y: n.transpose(x) + y,
    "flip": lambda n, x, y: n.flip(x) * n.roll(y),
    "reshape": lambda n, x, y: n.reshape(n.reshape(x, (9,)) * 0.5, (3, 3)) - n.tril(y),
    "concat": lambda n, x, y: n.concat([x, y])[1:4] * 0.7,
    "pad": lambda n, x, y: n.pad(x, ((1, 1), (0, 0)))[:3] + n.pad(y, ((0, 0), (2, 0)))[:, :3],
    "strides": lambda n, x, y: wide(n, n.concat([x, y])[::2, 1]) * y,
    "outer": lambda n, x, y: n.outer(x[0], y[:, 1]),
    "diagonal": lambda n, x, y: y * n.diag(x),
    "sort": lambda n, x, y: n.sort(x) + 0.5 * y,
    "topk": lambda n, x, y: y * n.sum(n.topk(x), axis=1),
    "take": lambda n, x, y: n.take(x, n.asarray(ROWS)) * y,
    "take along": lambda n, x, y: n.along(y, n.argsort(x)),
    "chosen": lambda n, x, y: n.take(y, n.argmax(x)) + x,
    "scatter add": lambda n, x, y: n.add_at(x, n.asarray(ROWS), n.sin(y)),
    "scatter": lambda n, x, y: n.set_at(x, n.asarray(ROWS[:2]), y[:2] * 2.0),
    "window": lambda n, x, y: n.concat([n.window(x, n.argmax(y)[0]), y[:1]]),
    "scan": scanned,
    "scan back": reversed_scan,
    "cond": branched,
    "fori": looped,
    "while": halved,
    "checkpoint": again,
    "jit": lambda n, x, y: n.jit(lambda a, b: n.sin(a) * b + n.sum(a))(x, y) * 0.3,
    "solve": lambda n, x, y: n.solve(positive(n, x), y),
    "inv": lambda n, x, y: n.inv(positive(n, x)) + y,
    "cholesky": lambda n, x, y: n.cholesky(positive(n, x)) * 0.5,
    "slogdet": lambda n, x, y: y * n.slogdet(positive(n, x)) * 0.3,
    "det": lambda n, x, y: y * n.tanh(n.det(x)),
    "eigenvalues": lambda n, x, y: y + n.sqrt(n.eigvalsh(positive(n, x))),
    "spectral": lambda n, x, y: spectral(n, x) * 0.5,
    "singular values": lambda n, x, y: y * n.svdvals(x + n.asarray(np.diag([3.0, -2.0, 1.0]))) * 0.3,
    "qr": lambda n, x, y: n.qr(x + 3.0 * n.asarray(EYE)) * 0.4,
    "expm": lambda n, x, y: n.expm(n.tanh(x) * 0.5),
    "rfft": lambda n, x, y: wide(n, n.sum(n.rfft(x + 2.0), axis=1)) * 0.1 + y,
}  # fmt: skip


# Programs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """Steps by name with the numbers of the matrices they read: the operands come first."""

    number: int
    steps: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        return f"{self.number}: " + ", ".join(f"{s}({i},{j})" for s, i, j in self.steps)

    def run(self, n: Any, x: Any, y: Any) -> Any:
        """A scalar of two matrices; it weighs every step, so that no one is in vain."""
        values = [x, y]
        total = 0.0
        for k, (name, i, j) in enumerate(self.steps):
            # Bounded values keep the derivatives of long programs of one size.
            values.append(n.tanh(STEPS[name](n, values[i], values[j])) * 1.5)
            total = total + n.sum(n.sin(values[-1] + 0.3 * k))
        return total


def program(number: int) -> Program:
    rng = np.random.default_rng([2024, number])
    names = list(STEPS)
    # The first step goes through the table, so that every step occurs often.
    length = 6 if number % 10 == 0 else 2
    chosen = [names[number % len(names)], *rng.choice(names, length - 1)]
    steps = []
    for k, name in enumerate(chosen):
        recent = max(0, k - 1)
        steps.append((str(name), int(rng.integers(recent, k + 2)), int(rng.integers(0, k + 2))))
    return Program(number, tuple(steps))


def operands(p: Program, count: int) -> list[Any]:
    rng = np.random.default_rng([2025, p.number])
    return [rng.normal(size=(SIZE, SIZE)) for _ in range(count)]


def close(got: Any, want: Any) -> None:
    """1e-9 of the largest element."""
    for g, w in zip(ts.tree.leaves(got), jax.tree.leaves(want), strict=True):
        w = np.asarray(w)
        assert np.isfinite(w).all()
        assert_close(g, w, Tolerance(1e-9, 1e-9 * max(1e-6, float(np.abs(w).max(initial=0)))))


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_a_program_and_its_transforms(number: int) -> None:
    p, n = program(number), theirs()
    x, y, u, v = operands(p, 4)

    def mine(*xs: Any) -> Any:
        return p.run(OURS, *xs)

    def yours(*xs: Any) -> Any:
        return p.run(n, *xs)

    # Values and gradients, and forward mode by what it must give.
    want, grads = jax.value_and_grad(yours, argnums=(0, 1))(x, y)
    xs, ds = [tuple(map(ts.asarray, pair)) for pair in ((x, y), (u, v))]
    got, ours = ts.jit(ts.value_and_grad(mine, argnums=(0, 1)))(*xs)
    close(got, want)
    close(ours, grads)
    slope = sum(np.sum(np.asarray(g) * d) for g, d in zip(grads, (u, v), strict=True))
    close(ts.jvp(mine, xs, ds)[1], slope)

    # Second derivatives, forward over reverse.
    moved = jax.jvp(jax.grad(yours, argnums=(0, 1)), (x, y), (u, v))[1]
    close(ts.hvp(mine, xs, ds), moved)

    # A batch whose first element is the point from above, along any axis.
    axis = number % 3
    batch = np.stack([y, v], axis)
    values = jax.vmap(yours, in_axes=(None, axis))(x, batch)
    f = ts.vmap(ts.value_and_grad(mine, argnums=(0, 1)), in_axes=(None, axis))
    each, (gx, gy) = f(xs[0], ts.asarray(batch))
    close(each, values)
    close((gx[0], gy[0]), grads)
    total = ts.grad(lambda x, y: op.sum(ts.vmap(mine, (None, axis))(x, y)), argnums=(0, 1))
    close(total(xs[0], ts.asarray(batch)), (op.sum(gx, 0), op.moveaxis(gy, 0, axis)))
