"""A program of symbolic sizes is the program of its numbers, where sizes are one, or zero by arithmetic.

A symbolic size is one at least; N - 1 and N // 2 are zero then.  Functions that take another way for one
element, and folds of no elements, are compared with the same program of static sizes, bit for bit.
"""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f64, op

EMPTY = {
    "x[1:]": lambda x: x[1:],
    "half": lambda x: x[: x.shape[0] // 2],
    "no rows": lambda x: x[1:][:, None] * op.ones((1, 5), dtype=f64),
    "no columns": lambda x: op.ones((5, 1), dtype=f64) * x[1:][None],
    "neither": lambda x: x[1:][:, None] * x[1:][None],
    "inner": lambda x: op.ones((2, 1, 3), dtype=f64) * x[: x.shape[0] // 2][None, :, None],
}

FOLDS = {
    "sum": lambda y: (op.sum(y), op.sum(y, 0), op.sum(y, -1), op.sum(y * y)),
    "sum alone": lambda y: op.sum((y + y) * 0.5),
    "prod": lambda y: (op.prod(y), op.prod(y, 0), op.prod(y, -1)),
    "mean": lambda y: (op.mean(y), op.var(y), op.mean(y, -1)),
    "truth": lambda y: (op.all(y > 0), op.any(y > 0), op.all(y > 0, -1), op.count_nonzero(y)),
    "softmax": lambda y: (op.sum(op.softmax(y, -1) * y), op.sum(op.softmax(y, 0))),
    "logsumexp": lambda y: (op.logsumexp(y), op.logsumexp(y, -1)),
    "running": lambda y: (op.sum(op.cumsum(y, -1)), op.sum(op.cumprod(y, 0))),
    "products": lambda y: (op.einsum("...i,...i->...", y, y), op.tensordot(y, y, axes=y.ndim)),
    "narrow": lambda y: (op.sum(y.astype(ts.bf16), -1), op.sum(y.astype(ts.i32)), op.sum(y.astype(ts.f32))),
    "long": lambda y: op.sum(op.flatten(y)[:, None] * op.ones((1, 700), dtype=f64), 0),
    "slopes": lambda y: (ts.grad(lambda v: op.sum(v * v))(y), ts.grad(lambda v: op.sum(op.exp(v)))(y)),
    "scan": lambda y: ts.scan(lambda c, v: (c + op.sum(v), c), op.ones((), dtype=f64), y),
    "mapped": lambda y: (ts.vmap(lambda v: op.sum(v) + 1)(y), ts.vmap(op.sum, in_axes=-1)(y)),
    "matmul": lambda y: (
        (op.ones((2, 4, 1), dtype=f64) * op.flatten(y)[None, None])
        @ (op.flatten(y)[:, None] * op.ones((1, 3), dtype=f64))
    ),
    "padded": lambda y: (op.sum(op.pad(y, 1) + 1), op.concatenate([op.sort(y, 0), y], 0)),
}  # fmt: skip


def eye(n):
    return ts.eye(n, dtype=f64)


ONES = {
    "linspace": lambda x: op.linspace(0.5, 1.0, x.shape[0], dtype=f64) + x,
    "linspace, open": lambda x: op.linspace(0.5, 1.0, x.shape[0], dtype=f64, endpoint=False) + x,
    "linspace of vectors": lambda x: op.linspace(x, x + 1, x.shape[0]),
    "logspace": lambda x: op.logspace(0.5, 1.0, x.shape[0]),
    "geomspace": lambda x: op.geomspace(0.5, 1.0, x.shape[0]),
    "interp": lambda x: op.interp(op.linspace(-2.0, 2.0, 7, dtype=f64), op.sort(x), x * 2),
    "digitize": lambda x: op.digitize(op.linspace(-2.0, 2.0, 7, dtype=f64), op.sort(x)),
    "trapezoid": lambda x: op.trapezoid(x),
    "unwrap": lambda x: op.unwrap(x * 4),
    "ediff1d": lambda x: op.ediff1d(x),
    "quantile": lambda x: (op.quantile(x, 0.3), op.median(x), op.percentile(x, [20, 80])),
    "statistics": lambda x: (
        op.cov(x),
        op.std(x, correction=1),
        op.ptp(x),
        op.histogram(x, bins=4)[0],
    ),
    "slopes": lambda x: (ts.grad(op.max)(x), ts.grad(op.prod)(x), ts.grad(op.norm)(x)),
    "sorted": lambda x: (
        op.sort(x),
        op.searchsorted(op.sort(x), x * 0.5, side="right"),
        op.argmax(x),
    ),
    "transforms": lambda x: (op.abs(op.fft(x)), op.irfft(op.rfft(x), n=x.shape[0]), op.fftshift(x)),
    "frequencies": lambda x: (op.fftfreq(x.shape[0]), op.rfftfreq(x.shape[0])),
    "solve": lambda x: op.solve(x[:, None] * x + 3 * eye(x.shape[0]), x),
    "det": lambda x: (
        op.det(x[:, None] * x + eye(x.shape[0])),
        op.inv(x[:, None] * x + eye(x.shape[0])),
    ),
    "pads": lambda x: (op.pad(x, 2, mode="edge"), op.pad(x, 1, mode="wrap"), op.roll(x, 1)),
    "broadcasts": lambda x: (
        x[:, None] + x[None],
        op.broadcast_to(x[:1], x.shape),
        op.tril(x[:, None] * x),
    ),
    "at": lambda x: (x.at[-1].set(3.0), x.at[0].add(x[-1]), x[:-1], x[::-1]),
    "vander": lambda x: (op.vander(x), op.diagonal(x[:, None] * x, 1)),
    "loop": lambda x: ts.fori_loop(
        0, x.shape[0], lambda i, c: c + x[i] * i, op.zeros((), dtype=f64)
    ),
}


def _compare(f, n):
    def named(x: Tensor["N", f64]):
        return f(x)

    for k in (n, 3):
        x = ts.tensor(np.random.default_rng(k + 1).standard_normal(k))
        got, want = ts.tree.leaves(ts.jit(named)(x)), ts.tree.leaves(ts.jit(f)(x))
        for a, b in zip(got, want, strict=True):
            assert a.dtype is b.dtype
            np.testing.assert_array_equal(a.numpy(), b.numpy(), strict=True)


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("view", EMPTY)
def test_what_is_empty_by_arithmetic_folds_to_the_identity(view, fold):
    _compare(lambda x: FOLDS[fold](EMPTY[view](x)), 1)


@pytest.mark.parametrize("name", ONES)
def test_one_element_of_a_symbolic_axis(name):
    _compare(ONES[name], 1)


def test_a_long_sum_of_nothing_reads_nothing():
    """The launches of a shared fold took a block that no instance had written, outside of memory."""

    def h(x: Tensor["N", f64]):
        return op.sum((x[1:] + x[:-1]) * 0.5)

    f = ts.jit(h)
    for n in (1, 2, 1, 40_000, 1):
        assert float(f(ts.tensor(np.ones(n)))) == n - 1
