"""What follows a contraction may read by data, by steps, backwards and along several axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op

READS: dict[str, Any] = {
    "x @ w + y[i]": lambda x, w, y, i, b: x @ w + y[i],
    "embedding": lambda x, w, y, i, b: x @ w * op.take(y, op.full((x.shape[0],), 3), 0),
    "betas[t] * (x @ w)": lambda x, w, y, i, b: b[i] * (x @ w),
    "dynamic_slice": lambda x, w, y, i, b: x @ w + op.dynamic_slice(b, (i,), (w.shape[1],)),
    "einsum": lambda x, w, y, i, b: op.einsum("ij,jk->ik", x, w) - y[i],
    "backwards": lambda x, w, y, i, b: x @ w + op.flip(y[2]),
    "by steps": lambda x, w, y, i, b: x @ w + b[: 2 * w.shape[1] : 2],
    "numbers of columns": lambda x, w, y, i, b: x @ w + op.flip(op.arange(w.shape[1])) * 2.0,
}
SIZES = [(1, 1, 1), (2, 3, 4), (7, 5, 3), (16, 16, 16), (33, 8, 17), (64, 64, 64), (130, 20, 48)]


def arguments(m: int, k: int, n: int) -> tuple[Any, ...]:
    draw = np.random.default_rng(m * n)
    arrays = [draw.standard_normal(s) for s in ((m, k), (k, n), (5, n), (2 * n + 5,))]
    x, w, y, b = map(ts.tensor, arrays)
    return x, w, y, ts.tensor(np.asarray(2)), b


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("sizes", SIZES[:4], ids=str)
def test_reads_after_a_product(name: str, sizes: tuple[int, int, int]) -> None:
    """36 of 40 sizes ended in an AttributeError."""
    args, f = arguments(*sizes), READS[name]
    want = ts.jit(f, target="numpy")(*args).numpy()
    np.testing.assert_allclose(ts.jit(f)(*args).numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", SIZES[4:], ids=str)
def test_larger_products_and_their_gradients(sizes: tuple[int, int, int]) -> None:
    args = arguments(*sizes)
    for f in (READS["x @ w + y[i]"], READS["backwards"]):
        whole = ts.grad(lambda *a, f=f: op.sum(f(*a) ** 2), argnums=(0, 2))
        for got, want in zip(
            ts.jit(whole)(*args), ts.jit(whole, target="numpy")(*args), strict=True
        ):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("target", ["cuda:sm_90", "hip:gfx942"])
def test_other_targets_lower_them_too(target: str) -> None:
    """Their kernels are verified: every access lies inside."""
    for sizes in SIZES[1:5:2]:
        args = [ts.tensor(x.numpy().astype(np.float32)) if x.dtype.kind == "f" else x
                for x in arguments(*sizes)]  # fmt: skip
        for f in READS.values():
            assert ts.jit(f, target=target).lower(*args).tile


def test_an_operator_of_rows_minus_a_dense_one_applies_in_one_program() -> None:
    """The product's other operand was read by data: the compiler had no name for it."""
    s = op.select([2, 4, 1], 5, ts.f64)
    w, v = (
        ts.tensor(np.random.default_rng(6).normal(size=(3, 5))),
        ts.tensor(np.random.default_rng(6).normal(size=5)),
    )

    def f(v: Any, w: Any) -> Any:
        a = s - op.dense(w)
        return (a + 3 * a) @ v

    want = 4 * (np.eye(5)[[2, 4, 1]] - w.numpy()) @ v.numpy()
    np.testing.assert_allclose(ts.jit(f)(v, w), want, rtol=1e-12)
    np.testing.assert_array_equal(ts.jit(f)(v, w), f(v, w))
