"""x[key] and x.at[key] against NumPy on random keys, eager and traced."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
import tessera.array_api as xp
from tessera import op
from tessera.core.dtype import f32
from tessera.core.errors import AxisError, DTypeError, OperandError, ShapeError, TraceError
from tests.support.breadth import examples

SIZES = st.integers(0, 4)


@st.composite
def _slices(draw: st.DrawFn) -> slice:
    end = st.none() | st.integers(-6, 6)
    step = draw(st.sampled_from([None, 1, 2, 3, -1, -2, -3]))
    return slice(draw(end), draw(end), step)


@st.composite
def _keys(draw: st.DrawFn, shape: tuple[int, ...], repeats: bool = True) -> tuple[object, ...]:
    """A key that fits a shape; its index arrays broadcast together."""
    common = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)]))
    key: list[object] = []
    axis = 0
    while axis < len(shape):
        n = shape[axis]
        kind = draw(st.sampled_from(["slice", "slice", "int", "array", "mask", "new", "stop"]))
        if kind == "stop":
            break
        if kind == "new":
            key.append(None)
            continue
        if kind == "int" and n:
            key.append(draw(st.integers(-n, n - 1)))
        elif kind == "array" and n and repeats:
            part = common[draw(st.integers(0, len(common))) :]
            data = draw(st.lists(st.integers(-n, n - 1), min_size=int(np.prod(part, dtype=int)),
                                 max_size=int(np.prod(part, dtype=int))))  # fmt: skip
            key.append(np.array(data, dtype=int).reshape(part))
        elif kind == "mask" and common == ():
            data = draw(st.lists(st.booleans(), min_size=n, max_size=n))
            if sum(data) == 1:  # broadcasts with every other index
                key.append(np.array(data))
            else:
                key.append(slice(None))
        else:
            key.append(draw(_slices()))
        axis += 1
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), Ellipsis)
    return tuple(key)


def _tail_fits(x: np.ndarray, key: tuple[object, ...]) -> bool:
    """An Ellipsis moves later entries to other axes, where they may not fit."""
    try:
        x[key]
    except IndexError:
        return False
    return True


@st.composite
def _cases(draw: st.DrawFn, repeats: bool = True) -> tuple[np.ndarray, tuple[object, ...]]:
    shape = tuple(draw(st.lists(SIZES, max_size=4)))
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    key = draw(_keys(shape, repeats).filter(lambda k: _tail_fits(x, k)))
    return x, key


@given(_cases())
@examples(600)
def test_index_equals_numpy(case):
    x, key = case
    want = x[key]
    got = ts.asarray(x)[key]
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.asarray(got), want)


@given(_cases())
@examples(200)
def test_jit_equals_eager(case):
    x, key = case
    t = ts.asarray(x)
    arrays = [k for k in key if isinstance(k, np.ndarray) and k.dtype != bool]

    def f(x, arrays):
        given_ = iter(arrays)
        is_array = [isinstance(k, np.ndarray) and k.dtype != bool for k in key]
        return x[tuple(next(given_) if a else k for k, a in zip(key, is_array, strict=True))]

    np.testing.assert_array_equal(np.asarray(ts.jit(f)(t, arrays)), x[key])


@given(_cases(repeats=False), st.sampled_from(["set", "add", "max", "min"]), st.booleans())
@examples(600)
def test_update_equals_numpy(case, how, scalar):
    x, key = case
    want = x.copy()
    shape = () if scalar else x[key].shape
    value = (np.arange(np.prod(shape, dtype=int), dtype=np.float32) * 1.5 + 2).reshape(shape)
    f = {"set": lambda a, b: b, "add": np.add, "max": np.maximum, "min": np.minimum}[how]
    want[key] = f(want[key], value)
    t = ts.asarray(x)
    eager = getattr(t.at[key], how)(value)
    np.testing.assert_array_equal(np.asarray(eager), want)
    traced = ts.jit(lambda t, v: getattr(t.at[key], how)(v))(t, value)
    np.testing.assert_array_equal(np.asarray(traced), want)
    np.testing.assert_array_equal(np.asarray(t), x)  # the source is left alone


_UFUNCS = {"add": np.add, "max": np.maximum, "min": np.minimum}


@given(_cases(), st.sampled_from(["set", "add", "max", "min"]))
@examples(600)
def test_repeated_indices_update_in_order(case, how):
    x, key = case
    want, value = x.copy(), (np.arange(x[key].size, dtype=np.float32) % 7).reshape(x[key].shape)
    if how == "set":
        want[key] = value
    else:
        _UFUNCS[how].at(want, key, value)
    got = getattr(ts.asarray(x).at[key], how)(value)
    np.testing.assert_array_equal(np.asarray(got), want)


# Masks, traced indices, symbolic sizes


@given(
    st.lists(st.integers(0, 3), max_size=3).map(tuple), st.randoms(use_true_random=False), st.data()
)
@examples(100)
def test_masks_equal_numpy(shape, random, data):
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    t = ts.asarray(x)
    rank = data.draw(st.integers(0, len(shape)))
    mask = np.array([random.random() < 0.5 for _ in range(int(np.prod(shape[:rank], dtype=int)))])
    mask = mask.astype(bool).reshape(shape[:rank])
    np.testing.assert_array_equal(t[mask], x[mask])
    if mask.size:  # an empty list has no dtype and counts as integers
        np.testing.assert_array_equal(t[mask.tolist()], x[mask])
    many = np.arange(x[mask].size).reshape(x[mask].shape)
    for value in (7, many):
        want = x.copy()
        want[mask] = value
        np.testing.assert_array_equal(t.at[mask].set(value), want)
        want = x.copy()
        want[mask] += value
        np.testing.assert_array_equal(t.at[mask].add(value), want)
    filled = ts.jit(lambda t, m: t.at[m].max(5))(t, mask)
    np.testing.assert_array_equal(filled, np.where(mask.reshape(mask.shape + (1,) * (x.ndim - rank)),
                                                   np.maximum(x, 5), x))  # fmt: skip


def test_setitem_of_the_array_api_leaves_other_tensors_alone():
    x = xp.arange(6)
    y = x[1:4]
    x[::2] = 0
    x[-1] = 9
    assert x.tolist() == [0, 1, 0, 3, 0, 9]
    assert y.tolist() == [1, 2, 3]
    z = ts.arange(6)
    w = xp.asarray(z)
    w[0] = 7
    assert (z.tolist()[0], w.tolist()[0]) == (0, 7)


@pytest.mark.parametrize(
    "key", [2, slice(1, None, 2), [0, 2, 2], [[0], [2]], np.arange(5) % 2 == 0]
)
def test_at_multiplies_and_gets(key):
    x, v = np.arange(1.0, 6.0), 3.0
    want = x.copy()
    np.multiply.at(want, key, v)
    t = ts.tensor(x)
    for run in (lambda t: (t.at[key].multiply(v), t.at[key].get()),):
        for got in (run(t), ts.jit(run)(t) if not isinstance(key, np.ndarray) else run(t)):
            np.testing.assert_array_equal(got[0], want)
            np.testing.assert_array_equal(got[1], x[key])


def test_the_derivative_of_products_at_repeated_places_is_right_beside_zeros():
    i = np.array([0, 0, 1, 1, 2, 2, 3])
    x = ts.tensor([2.0, 0.0, 3.0, 0.0, 5.0], dtype="f64")
    v = ts.tensor([3.0, 4.0, 5.0, 6.0, 0.0, 7.0, 2.0], dtype="f64")

    def f(x, v):
        return op.sum(x.at[i].multiply(v) * ts.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype="f64"))

    dx, dv = ts.grad(f, (0, 1))(x, v)
    assert dx.tolist() == [12.0, 60.0, 0.0, 8.0, 5.0]
    assert dv.tolist() == [8.0, 6.0, 0.0, 0.0, 63.0, 0.0, 0.0]


def test_traced_scalars_index_where_they_point():
    x = np.arange(24.0).reshape(2, 3, 4)

    @ts.jit
    def f(x, i, j):
        return x[i], x[:, j, ::-1], x[i, :, j], x[..., i], x.at[i, j].set(0)

    for i, j in ((0, 2), (1, -1), (-2, 0)):
        got = f(x, i, j)
        want = x.copy()
        want[i, j] = 0
        for g, w in zip(got, (x[i], x[:, j, ::-1], x[i, :, j], x[..., i], want), strict=True):
            np.testing.assert_array_equal(g, w)
    assert f.compiled == 1


def test_traced_indices_outside_read_the_nearest_and_write_nothing():
    @ts.jit
    def f(x, i):
        return x[i], x.at[i].add(1.0)

    y, z = f(np.array([1.0, 2.0, 3.0]), np.array([7, -9, 1]))
    assert y.tolist() == [3.0, 1.0, 2.0]
    assert z.tolist() == [1.0, 3.0, 3.0]  # a write outside is dropped, as in JAX


def test_symbolic_sizes():
    @ts.jit
    def f(x: ts.Tensor["N", "S", ts.f32], i):
        n, s = x.shape
        return (
            x[:, 0], x[-1], x[:-1], x[..., : s // 2], x[:, ::-1], x[:, 1::2], x[n - 1, s - 2],
            x[:, i], x[i, :-1], x[None, ..., -2:], x[[0, -1]],
            x.at[:, 1:].set(0.0), x.at[:, ::-2].add(1.0), x.at[i].max(3.0),
        )  # fmt: skip

    for n, s in ((2, 3), (4, 6)):
        x = np.arange(n * s, dtype=np.float32).reshape(n, s)
        i = np.array([1, 0, -1])
        a, b, c = x.copy(), x.copy(), x.copy()
        a[:, 1:] = 0
        b[:, ::-2] += 1
        c[i] = np.maximum(c[i], 3)
        want = (
            x[:, 0], x[-1], x[:-1], x[..., : s // 2], x[:, ::-1], x[:, 1::2], x[n - 1, s - 2],
            x[:, i], x[i, :-1], x[None, ..., -2:], x[[0, -1]], a, b, c,
        )  # fmt: skip
        for g, w in zip(f(x, i), want, strict=True):
            np.testing.assert_array_equal(g, w)
    assert f.compiled == 1
    with pytest.raises(ShapeError, match=r"needs S - 2 >= 0, but S = 1 from axis 1 of x"):
        f(np.ones((2, 1), np.float32), i)


def test_indexing_is_differentiable():
    x, i = np.arange(12.0).reshape(3, 4), np.array([2, 0, 2])
    gradient = ts.grad(lambda x: op.sum(x[i, ::-2] * np.array([[1.0, 10.0]])))(x)
    np.testing.assert_array_equal(gradient, [[0, 10, 0, 1], [0, 0, 0, 0], [0, 20, 0, 2]])
    # Of two values for one place the later one counts.
    of_value = ts.grad(lambda v: op.sum(ts.asarray(x).at[i, 0].set(v) * x))(np.ones(3))
    assert of_value.tolist() == [0.0, 0.0, 8.0]
    kept = ts.grad(lambda x: op.sum(x.at[i, 0].set(5.0)))(x)
    np.testing.assert_array_equal(kept, [[0, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])


# Named functions


@given(_cases(), st.data())
@examples(60)
def test_take_equals_numpy(case, data):
    x, _ = case
    if not x.ndim or not x.size:
        return
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    n = x.shape[axis]
    i = np.array(data.draw(st.lists(st.integers(-n, n - 1), max_size=4)), dtype=int)
    np.testing.assert_array_equal(op.take(x, i, axis), np.take(x, i, axis))
    np.testing.assert_array_equal(
        op.take(x, i[:, None] if i.size else i), np.take(x, i[:, None] if i.size else i)
    )
    order = np.argsort(-x, axis)
    np.testing.assert_array_equal(
        op.take_along_axis(x, order, axis), np.take_along_axis(x, order, axis)
    )
    want = x.copy()
    np.put_along_axis(want, order, 2 * x, axis)
    np.testing.assert_array_equal(op.put_along_axis(x, order, 2 * x, axis), want)


def test_take_along_axis_broadcasts_the_other_axes():
    x, i = np.arange(6).reshape(2, 3), np.array([[2, 0, 0, 1]])
    np.testing.assert_array_equal(op.take_along_axis(x, i, 1), np.take_along_axis(x, i, 1))


def test_scatter_add_is_the_adjoint_of_gather():
    rng = np.random.default_rng(0)
    x, i, j = rng.normal(size=(4, 5, 2)), rng.integers(0, 4, (3, 2)), rng.integers(0, 5, (2,))
    y = op.gather(x, i, j, axes=(0, 1))
    ct = rng.normal(size=y.shape)
    back = op.scatter_add(np.zeros(x.shape), ct, i, j, axes=(0, 1))
    np.testing.assert_allclose(np.sum(np.asarray(y) * ct), np.sum(x * np.asarray(back)), rtol=1e-12)


@given(st.integers(-3, 6), st.integers(0, 4))
@examples(40)
def test_dynamic_slices_lie_inside(start, size):
    x = np.arange(4)
    at = min(max(start, 0), 4 - size)
    assert op.dynamic_slice(x, [start], (size,)).tolist() == x[at : at + size].tolist()
    want = x.copy()
    want[at : at + size] = 9
    written = ts.jit(lambda x, s: op.dynamic_update_slice(x, np.full(size, 9), s))(
        x, np.array([start])
    )
    assert written.tolist() == want.tolist()


X = ts.asarray(np.zeros((3, 4), np.float32))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: X[3], AxisError,
         "index: 3 is out of range for axis 0 of f32[3,4], which has size 3; use -3 to 2"),
        (lambda: X[:, -5], AxisError,
         "index: -5 is out of range for axis 1 of f32[3,4], which has size 4; use -4 to 3"),
        (lambda: X[[0, 3]], AxisError,
         "index: index 3 at [1] is out of range for axis 0 of f32[3,4]; use -3 to 2"),
        (lambda: X[0, 0, 0], AxisError, "index: 3 indices for f32[3,4], which has rank 2"),
        (lambda: X[..., ...], AxisError, "index: a key can hold only one '...'"),
        (lambda: X[::0], AxisError, "index: the step of a slice of axis 0 of f32[3,4] is 0"),
        (lambda: X[1.5], OperandError,
         "index: cannot index with f32[]; use integers, slices, None, ..., integer tensors or masks"),
        (lambda: X["a":], OperandError,
         "index: 'a' in a slice of axis 0 of f32[3,4] is not an integer"),
        (lambda: X[np.array([True, False])], AxisError,
         "index: axis 0 of the mask bool[2] is 2, but axis 0 of f32[3,4] is 3"),
        (lambda: X[[0, 1], [0, 1, 2]], ShapeError,
         "index: operands i64[2], i64[3] do not broadcast: axis -1 is 2 and 3; sizes must be equal or 1"),
        (lambda: X.at[0].set(np.zeros(3, np.float32)), ShapeError,
         "broadcast_to: f32[3] does not broadcast to [4]: 3 is neither 1 nor 4"),
        (lambda: ts.arange(3).at[0].set(1.5), DTypeError,
         "at.set: the value is f32[], which i64[3] cannot hold; cast one of them with astype"),
        (lambda: ts.jit(lambda x, m: x[m])(X, np.ones(3, bool)), TraceError,
         "index: the mask bool[3] is traced, so how many elements it picks is not known; use "
         "op.where(mask, x, other), or op.nonzero(mask, size=...)"),
        (lambda: ts.jit(lambda x, i: x[i:])(X, 1), TraceError,
         "index: a slice of axis 0 of f32[3,4] has the traced bound i64[], so its size is not known; "
         "use op.dynamic_slice(x, start, sizes)"),
        (lambda: op.take(X, 0.5, 0), DTypeError, "take: the index is f32[], expected integers"),
        (lambda: op.gather(np.zeros((0, 2)), np.array([0])), AxisError,
         "gather: index 0 at [0] is out of range for axis 0 of f64[0,2], which is empty"),
        (lambda: op.dynamic_slice(X, (0, 0), (4, 1)), ShapeError,
         "dynamic_slice: a part of size 4 does not fit axis 0 of f32[3,4]"),
        (lambda: op.scatter(X, 1.0, np.array([0]), axes=(0, 1)), ShapeError,
         "scatter: 1 indices for axes (0, 1), expected one for each"),
    ],
)  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error) as e:
        call()
    assert e.value.message == text
    assert str(e.value.location).startswith(__file__)


_KEYS: list[Any] = [
    0, -1, (0, 1), slice(1, None), (slice(None, None, -1), 0), (None, 1), (..., -2), (0, None, slice(1, 3)),
    [2, 0], ([0, 1], [2, 0]), (slice(None), [1, 0, 1]), ([0, 1], slice(None), [1, 2]),
    (0, slice(None), [1, 2]), ([1], 1, [0, 2]), (None, [0, 1], None), (..., [[0, 1], [2, 0]]),
    ([[0], [1]], slice(1, 3), [0, 3]), (slice(None, None, -1), [0, 1], slice(0, 4, 2)), (1, [0, -1]),
    (slice(0, 1), [0, -3], None, 2),
]  # fmt: skip


@pytest.mark.parametrize("key", _KEYS, ids=str)
def test_a_key_that_comes_again_means_the_same(key: Any) -> None:
    """With other index tensors of another shape, kind and dtype, and for tensors of other shapes."""
    items = key if isinstance(key, tuple) else (key,)

    def made(f: Any, more: int = 0) -> Any:
        out = tuple(f((np.array(k) + more) % 2) if isinstance(k, list) else k for k in items)
        return out if isinstance(key, tuple) else out[0]

    kinds = [
        np.array,
        ts.tensor,
        lambda a: ts.tensor(a.astype(np.int32)),
        lambda a: ts.tensor(a.astype("u1")),
    ]
    for shape in ((2, 3, 4), (3, 4, 5), (2, 3, 4)):
        a = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        x = ts.tensor(a)
        for k, more in itertools.product(kinds, (0, 1)):
            got, want = x[made(k, more)], a[made(np.array, more)]
            np.testing.assert_array_equal(got, want)
            traced = ts.jit(lambda x, k=k, more=more: x[made(k, more)], target="numpy")(x)
            np.testing.assert_array_equal(traced, want)
            after = a.copy()
            after[made(np.array, more)] = -want[..., :1]
            np.testing.assert_array_equal(x.at[made(k, more)].set(-want[..., :1]), after)
        for bad in (True, 1.0, np.float32(1), "0"):
            with contextlib.suppress(ts.TesseraError):
                x[bad]
        np.testing.assert_array_equal(x[1], a[1])


def test_an_index_outside_is_an_error_each_time() -> None:
    x = ts.ones((3, 4), f32)
    for _ in range(2):
        for key, text in (
            (3, "index: 3 is out of range for axis 0"),
            ((0, 0, 0), "3 indices for f32[3,4], which has rank 2"),
            (ts.tensor([0, 3]), "index: index 3 at [1] is out of range for axis 0"),
            ((slice(None), np.array([4])), "index: index 4 at [0] is out of range for axis 1"),
            ((..., ...), "a key can hold only one '...'"),
        ):  # fmt: skip
            with pytest.raises(AxisError) as e:
                x[key]
            assert text in str(e.value)
            assert "test_indexing.py" in str(e.value)
            with pytest.raises(AxisError):
                x.at[key].set(0)
