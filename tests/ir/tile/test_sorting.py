"""Sorting and sets against NumPy; order of ties, NaN and -0.0; derivatives through the permutation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError, ShapeError, TraceError
from tests.support.breadth import examples

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.5, np.inf, -np.inf, np.nan])
FLOATS = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5), elements=NUMBERS
)


def same(got, want) -> None:
    """Equal with NaN for NaN and the sign of zeros."""
    got, want = np.asarray(got), np.asarray(want)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@given(FLOATS, st.data())
@settings(max_examples=150, deadline=None)
def test_ascending_order_is_numpys_stable_order(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    order = np.argsort(x, axis, kind="stable")
    np.testing.assert_array_equal(op.argsort(x, axis), order)
    same(op.sort(x, axis), np.take_along_axis(x, order, axis))
    np.testing.assert_array_equal(ts.jit(lambda x: op.argsort(x, axis))(x), order)


@given(FLOATS)
@settings(max_examples=150, deadline=None)
def test_descending_order_is_a_stable_order_of_the_reverse_relation(x):
    order = np.asarray(op.argsort(x, -1, descending=True))
    np.testing.assert_array_equal(np.sort(order, -1), np.indices(x.shape)[-1])
    y = np.take_along_axis(x, order, -1)
    same(op.sort(x, -1, descending=True), y)
    rank = np.where(np.isnan(y), np.inf, y) + 0.0
    first = np.isnan(y).astype(int)
    key_now, key_next = rank[..., :-1], rank[..., 1:]
    tie = (key_now == key_next) & (first[..., :-1] == first[..., 1:])
    assert ((key_now > key_next) | tie | (first[..., :-1] > first[..., 1:])).all()
    assert (order[..., :-1] < order[..., 1:])[tie].all()


@given(FLOATS, st.booleans(), st.data())
@examples(100)
def test_topk_is_the_head_of_the_order(x, largest, data):
    k = data.draw(st.integers(0, x.shape[-1]))
    values, where = op.topk(x, k, largest=largest)
    order = np.asarray(op.argsort(x, -1, descending=largest))[..., :k]
    np.testing.assert_array_equal(where, order)
    same(values, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("dtype", [ts.bf16, ts.f16, ts.i4, ts.u8, ts.bool_])
def test_every_kind_sorts(dtype):
    x = ts.tensor([1, 0, 3, 1, 0]).astype(dtype)
    want = [bool(v) for v in (0, 0, 1, 1, 1)] if dtype is ts.bool_ else [0, 0, 1, 1, 3]
    assert op.sort(x).tolist() == want
    assert op.sort(x).dtype is dtype


def test_tangents_follow_the_permutation():
    x, t = np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 0.0]]), np.arange(6.0).reshape(2, 3)
    order = np.argsort(x, -1, kind="stable")
    _y, dy = ts.jvp(op.sort, (x,), (t,))
    np.testing.assert_array_equal(dy, np.take_along_axis(t, order, -1))
    ct = np.array([[10.0, 20.0, 30.0], [1.0, 2.0, 3.0]])
    want = np.zeros((2, 3))
    np.put_along_axis(want, order, ct, -1)
    np.testing.assert_array_equal(ts.vjp(op.sort, x)[1](ct)[0], want)
    gradient = ts.grad(lambda x: op.sum(op.topk(x, 2)[0] * np.array([1.0, 10.0])))(x)
    np.testing.assert_array_equal(gradient, [[1, 0, 10], [1, 10, 0]])


@given(
    st.lists(st.integers(-3, 3), max_size=6).map(sorted),
    st.lists(st.integers(-4, 4), max_size=5),
    st.sampled_from(["left", "right"]),
)
@examples(100)
def test_searchsorted_equals_numpy(x, values, side):
    a, b = np.array(x, dtype=int), np.array(values, dtype=float)
    np.testing.assert_array_equal(op.searchsorted(a, b, side), np.searchsorted(a, b, side))
    shuffled = a[::-1].copy()
    sorter = np.arange(len(a))[::-1].copy()
    np.testing.assert_array_equal(
        op.searchsorted(shuffled, b, side, sorter=sorter), np.searchsorted(a, b, side)
    )


@given(FLOATS)
@examples(100)
def test_unique_equals_numpy(x):
    found = op.unique_all(x)
    want = np.unique(x.reshape(-1), return_index=True, return_inverse=True, return_counts=True,
                     equal_nan=False)  # fmt: skip
    np.testing.assert_array_equal(found.values, want[0])
    np.testing.assert_array_equal(found.indices, want[1])
    np.testing.assert_array_equal(found.inverse_indices, want[2].reshape(x.shape))
    np.testing.assert_array_equal(found.counts, want[3])
    np.testing.assert_array_equal(np.asarray(found.values)[np.asarray(found.inverse_indices)], x)
    assert np.asarray(op.unique_counts(x).counts).sum() == x.size
    np.testing.assert_array_equal(op.unique_inverse(x).inverse_indices, found.inverse_indices)
    np.testing.assert_array_equal(op.unique_values(x), op.unique(x))


@given(FLOATS, st.integers(0, 12))
@examples(100)
def test_nonzero_equals_numpy_and_its_fixed_size_form_agrees(x, size):
    want = np.nonzero(x)
    assert [i.tolist() for i in op.nonzero(x)] == [i.tolist() for i in want]

    def fixed(x):
        return op.nonzero(x, size=size, fill=-1)

    padded = [[*w.tolist()[:size], *[-1] * max(size - len(w), 0)] for w in want]
    assert [g.tolist() for g in fixed(x)] == padded
    assert [g.tolist() for g in ts.jit(fixed)(x)] == padded


@given(FLOATS, st.lists(NUMBERS, max_size=4), st.booleans())
@examples(100)
def test_isin_equals_numpy(x, among, invert):
    others = np.array(among, dtype=float)
    np.testing.assert_array_equal(
        op.isin(x, others, invert=invert), np.isin(x, others, invert=invert)
    )


def test_symbolic_sizes():
    @ts.jit
    def f(x: ts.Tensor["N", ts.f64]):
        return op.sort(x), op.topk(x, 2)[1], op.nonzero(x, size=x.shape[0])[0]

    for n in (2, 5):
        x = np.random.default_rng(n).normal(size=n)
        y, where, places = f(x)
        np.testing.assert_array_equal(y, np.sort(x))
        np.testing.assert_array_equal(where, np.argsort(-x)[:2])
        np.testing.assert_array_equal(places, np.arange(n))
    assert f.compiled == 1
    with pytest.raises(ShapeError, match=r"topk: needs N >= 2, but N = 1 from axis 0 of x"):
        f(np.ones(1))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: op.topk(np.zeros(3), 4), ShapeError,
         "topk: k is 4, but axis 0 of f64[3] has only 3 elements"),
        (lambda: op.topk(np.zeros(3), -1), OperandError, "topk: k is -1, expected a size of 0 or more"),
        (lambda: op.searchsorted(np.zeros((2, 2)), 1.0), ShapeError,
         "searchsorted: f64[2,2] has 2 axes, expected one sorted axis"),
        (lambda: op.searchsorted(np.zeros(2), 1.0, "top"), OperandError,
         "searchsorted: side is 'top', expected 'left' or 'right'"),
        (lambda: ts.jit(op.unique_values)(np.zeros(2)), TraceError,
         "unique_all: f64[2] is traced, so the size of the result is not known; call it outside jit"),
        (lambda: ts.jit(op.nonzero)(np.zeros(2)), TraceError,
         "nonzero: f64[2] is traced, so the size of the result is not known; give it with "
         "op.nonzero(x, size=...)"),
    ],
)  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error) as e:
        call()
    assert e.value.message == text
