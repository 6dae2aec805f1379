"""Sparse products, experts, factors, spectral convolutions and wavelets: their definitions, eager and
jitted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import tessera as ts
from tessera import op
from tessera.core.errors import NumericalError, OperandError, ShapeError
from tessera.lang.names.blocks import daubechies

RNG = np.random.default_rng(11)


def both(f: Any, *args: Any) -> Any:
    """The result of f, which is the same eager and jitted."""
    eager, jitted = f(*map(ts.tensor, args)), ts.jit(f)(*map(ts.tensor, args))
    for x, y in zip(ts.tree.leaves(eager), ts.tree.leaves(jitted), strict=True):
        assert x.numpy().tobytes() == y.numpy().tobytes()
    return ts.tree.map(lambda x: x.numpy(), eager)


def sparse(rows: int, columns: int) -> Any:
    dense = RNG.standard_normal((rows, columns)) * (RNG.uniform(size=(rows, columns)) < 0.3)
    dense[2] = 0.0  # a row without entries
    return scipy.sparse.csr_array(dense)


def test_sparse_products_are_those_of_scipy():
    a, x = sparse(7, 9), RNG.standard_normal((9, 4))
    got = both(op.spmm, a.data, a.indices, a.indptr, x)
    np.testing.assert_allclose(got, a @ x, rtol=1e-12, atol=1e-12)
    left, right = RNG.standard_normal((7, 5)), RNG.standard_normal((5, 9))
    got = both(op.sddmm, a.indices, a.indptr, left, right)
    rows = np.repeat(np.arange(7), np.diff(a.indptr))
    np.testing.assert_allclose(got, (left @ right)[rows, a.indices], rtol=1e-12, atol=1e-12)
    blocks = scipy.sparse.random(12, 15, 0.2, format="bsr", random_state=3)
    b = scipy.sparse.bsr_array(blocks.toarray(), blocksize=(4, 3))
    x = RNG.standard_normal((15, 2))
    got = both(op.bsmm, b.data, b.indices, b.indptr, x)
    np.testing.assert_allclose(got, b.toarray() @ x, rtol=1e-12, atol=1e-12)


def test_sparse_products_have_the_gradients_of_dense_ones():
    a, x = sparse(6, 5), ts.tensor(RNG.standard_normal((5, 3)))
    c, p = ts.tensor(a.indices), ts.tensor(a.indptr)
    gv, gx = ts.grad(lambda v, x: op.sum(op.sin(op.spmm(v, c, p, x))), (0, 1))(ts.tensor(a.data), x)
    slope = np.cos(a.toarray() @ x.numpy())
    np.testing.assert_allclose(gx.numpy(), a.toarray().T @ slope, rtol=1e-10, atol=1e-12)
    rows = np.repeat(np.arange(6), np.diff(a.indptr))
    want = (slope @ x.numpy().T)[rows, a.indices]
    np.testing.assert_allclose(gv.numpy(), want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reduction", ["sum", "prod", "max", "min", "mean"])
def test_segments_fold_as_numpy_does(reduction: str):
    x, ids = RNG.standard_normal((8, 3)), np.array([0, 2, 2, 0, 3, 0, 2, 2])
    got = both(lambda x, i: op.segment_reduce(x, i, count=4, reduction=reduction), x, ids)
    for k in (0, 2, 3):
        np.testing.assert_allclose(got[k], getattr(np, reduction)(x[ids == k], axis=0), rtol=1e-12)
    empty = {"sum": 0, "prod": 1, "mean": 0, "max": -np.inf, "min": np.inf}[reduction]
    assert (got[1] == empty).all()


def test_experts_go_out_and_come_back():
    tokens, scores = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 3))
    weights, chosen = both(lambda s: op.moe_router(s, 2), scores)
    np.testing.assert_allclose(weights.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(np.sort(chosen), np.sort(np.argsort(-scores)[:, :2]))
    rows, sizes, order = both(lambda t, c: op.moe_dispatch(t, c, experts=3), tokens, chosen)
    assert sizes.tolist() == np.bincount(chosen.ravel(), minlength=3).tolist()
    ends = np.cumsum(sizes)
    for e in range(3):
        held = sorted(map(tuple, rows[ends[e] - sizes[e] : ends[e]]))
        assert held == sorted(map(tuple, tokens[(chosen == e).any(1)]))
    got = both(op.moe_combine, rows, order, weights)
    np.testing.assert_allclose(got, tokens, rtol=1e-12)  # experts that change nothing


def test_factors_are_their_product():
    x, u, v, s = (RNG.standard_normal(n) for n in ((2, 5, 8), (8, 3), (3, 6), (3,)))
    got = both(op.factorized_matmul, x, u, v, s)
    np.testing.assert_allclose(got, x @ (u * s) @ v, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(
        both(op.factorized_matmul, x, u, v), x @ u @ v, rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize(
    ("sizes", "modes"), [((16,), (5,)), ((8, 10), (4, 3)), ((4, 6, 8), (2, 6, 5))]
)
def test_a_spectral_convolution_is_its_definition(sizes: Any, modes: Any):
    x = RNG.standard_normal((2, 3, *sizes))
    w = RNG.standard_normal((3, 4, *modes)) + 1j * RNG.standard_normal((3, 4, *modes))
    axes = tuple(range(2, x.ndim))
    f, full = (
        np.fft.rfftn(x, axes=axes),
        np.zeros((2, 4, *np.fft.rfftn(x, axes=axes).shape[2:]), complex),
    )
    for at in np.ndindex(*modes):
        place = tuple(
            m if i == len(modes) - 1 or m < modes[i] // 2 else sizes[i] - modes[i] + m
            for i, m in enumerate(at)
        )
        full[(..., *place)] = np.einsum("bi,io->bo", f[(..., *place)], w[(..., *at)])
    want = np.fft.irfftn(full, s=sizes, axes=axes)
    np.testing.assert_allclose(both(op.spectral_conv, x, w), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["haar", "db2", "db5", "db8"])
@pytest.mark.parametrize("n", [2, 12, 32])
def test_wavelets_are_orthogonal_and_come_back(name: str, n: int):
    x = RNG.standard_normal((3, n))
    low, high = both(lambda x: op.dwt(x, name), x)
    np.testing.assert_allclose((low**2).sum(1) + (high**2).sum(1), (x**2).sum(1), rtol=1e-9)
    np.testing.assert_allclose(
        both(lambda a, d: op.idwt(a, d, name), low, high), x, rtol=1e-8, atol=1e-9
    )
    other = both(lambda x: op.dwt(x, name, axis=0), x.T.copy())
    np.testing.assert_allclose(other[0], low.T, rtol=1e-12, atol=1e-13)


def test_filters_are_those_of_daubechies():
    r = np.sqrt(3)
    table = np.array([1 + r, 3 + r, 3 - r, 1 - r]) / (4 * np.sqrt(2))  # Daubechies 1988
    np.testing.assert_allclose(daubechies(2), table, rtol=1e-13)
    for p in range(1, 9):  # so many moments vanish
        h = daubechies(p)
        g = np.where(np.arange(2 * p) % 2, -1, 1) * h[::-1]
        for k in range(p):
            assert abs((g * np.arange(2.0 * p) ** k).sum()) < 1e-6 * (2.0 * p) ** k


def test_one_product_for_queries_keys_and_values():
    x, w, b = (RNG.standard_normal(n).astype(np.float32) for n in ((2, 5, 8), (8, 16), (16,)))
    got = both(lambda x, w, b: ts.qkv_projection(x, w, b, heads=2, kv_heads=1), x, w, b)
    want = both(lambda x, w, b: ts.split_qkv(x @ w + b, heads=2, kv_heads=1), x, w, b)
    for g, t in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, t)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: op.spmm(ts.ones((3,)), ts.ones((3,)), ts.tensor([0, 3]), ts.ones((2, 2))),
         "spmm: the columns are f32[3], expected a vector of integers"),
        (lambda: op.spmm(ts.ones((2,)), ts.tensor([0, 1, 1]), ts.tensor([0, 3]), ts.ones((2, 2))),
         "spmm: the values are f32[2], expected one for each column for i64[3]"),
        (lambda: op.sddmm(ts.tensor([0]), ts.tensor([0, 1]), ts.ones((1, 2)), ts.ones((3, 1))),
         "sddmm: a is f32[1,2] and b f32[3,1], which do not multiply"),
        (lambda: op.bsmm(ts.ones((1, 2, 2)), ts.tensor([0]), ts.tensor([0, 1]), ts.ones((3, 1))),
         "bsmm: x is f32[3,1], expected a multiple of the 2 columns of a block"),
        (lambda: op.segment_reduce(ts.ones((2,)), ts.tensor([0, 1]), count=2, reduction="any"),
         "segment_reduce: reduction is 'any', expected one of sum, prod, max, min, mean"),
        (lambda: op.moe_router(ts.ones((2,)), 1),
        "moe_router: the scores are f32[2], expected (tokens, experts)"),
        (lambda: op.factorized_matmul(ts.ones((2,)), ts.ones((2, 3)), ts.ones((2, 2))),
         "factorized_matmul: u is f32[2,3] and v f32[2,2], expected (in, rank) and (rank, out)"),
        (lambda: op.dwt(ts.ones((3,))), "dwt: x is f32[3], expected floats with an even size along axis -1"),
        (lambda: op.dwt(ts.ones((4,)), "sym4"), "dwt: wavelet is 'sym4', expected one of haar, db1, "),
        (lambda: op.idwt(ts.ones((4,)), ts.ones((2,))),
        "idwt: got f32[4] and f32[2], expected floats of one type"),
        (lambda: ts.qkv_projection(ts.ones((2, 2)), ts.ones((2, 6)), heads=1),
         "qkv_projection: x is f32[2,2] and the weight f32[2,6], expected (batch, seq, width) and a matrix"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_is_wrong(call: Any, text: str):
    with pytest.raises((OperandError, ShapeError)) as e:
        call()
    assert e.value.message.startswith(text)


def test_numbers_that_are_not_finite_are_told() -> None:
    good, bad = np.array([1.0, 2.0]), np.array([1.0, np.inf])
    f = ts.jit(lambda x: op.check_numerics(x, "the {loss}") * 2)
    np.testing.assert_array_equal(f(good).numpy(), good * 2)
    np.testing.assert_array_equal(ts.grad(lambda x: op.sum(f(x)))(good).numpy(), [2, 2])
    for g in (f, lambda x: op.check_numerics(x, "the {loss}")):
        with pytest.raises(NumericalError, match=r"check_numerics: the {loss}: inf is not finite"):
            g(bad)


def test_names_of_attention_are_in_op_too() -> None:
    for name in ("split_qkv", "qkv_projection", "flash_attention"):
        assert getattr(op, name) is getattr(ts, name)
