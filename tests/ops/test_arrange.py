"""Arranging and ranges against NumPy, eager, traced and with symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import op
from tessera.core.errors import AxisError, DTypeError, OperandError, ShapeError, TraceError
from tests.support.breadth import examples

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def counted(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def check(f, want, *xs) -> None:
    """Eager and traced results equal a list of arrays."""
    for run in (f, ts.jit(f)):
        got = ts.tree.leaves(run(*xs))
        assert [g.shape for g in got] == [w.shape for w in want]
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)


@given(SHAPES, st.lists(st.integers(-9, 9), min_size=1, max_size=3))
@examples(80)
def test_roll_equals_numpy(shape, shifts):
    x = counted(shape)
    check(lambda x: op.roll(x, shifts[0]), [np.roll(x, shifts[0])], x)
    if len(shape) >= len(shifts):
        axes = tuple(range(len(shifts)))
        check(lambda x: op.roll(x, shifts, axes), [np.roll(x, shifts, axes)], x)
        back = op.roll(op.roll(x, shifts, axes), [-s for s in shifts], axes)
        np.testing.assert_array_equal(back, x)


@given(SHAPES, st.lists(st.integers(0, 3), min_size=1, max_size=4))
@examples(80)
def test_tile_equals_numpy(shape, reps):
    x = counted(shape)
    check(lambda x: op.tile(x, tuple(reps)), [np.tile(x, reps)], x)
    check(lambda x: op.tile(x, reps[0]), [np.tile(x, reps[0])], x)


@given(SHAPES, st.integers(0, 3), st.data())
@examples(80)
def test_repeat_equals_numpy(shape, times, data):
    x = counted(shape)
    check(lambda x: op.repeat(x, times), [np.repeat(x, times)], x)
    if shape:
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        check(lambda x: op.repeat(x, times, axis), [np.repeat(x, times, axis)], x)
        n = shape[axis]
        counts = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), dtype=int)
        check(lambda x: op.repeat(x, counts, axis), [np.repeat(x, counts, axis)], x)


@given(SHAPES.filter(len), st.sampled_from([1, 2, 4]), st.data())
@examples(40)
def test_numbers_of_few_bits_equal_those_of_numpy(shape, bits, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    each = np.moveaxis(np.unpackbits(x, axis=axis, bitorder="little"), axis, -1)
    parts = each.reshape(*each.shape[:-1], each.shape[-1] // bits, bits).astype(np.int32)
    want = np.moveaxis(parts @ (1 << np.arange(bits, dtype=np.int32)), -1, axis)
    check(lambda x: op.unpack_ints(x, bits, axis), [want], x)
    wraps = np.where(want >= 1 << (bits - 1), want - (1 << bits), want)
    check(lambda x: op.unpack_ints(x, bits, axis, signed=True), [wraps], x)


def test_numbers_of_few_bits_in_batches_and_errors():
    x = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    got = ts.vmap(lambda r: op.unpack_ints(r, 4, 0))(ts.tensor(x))
    np.testing.assert_array_equal(got, op.unpack_ints(x, 4, 1))
    with pytest.raises(OperandError, match="unpack_ints: bits is 3, expected 1, 2 or 4"):
        op.unpack_ints(x, 3)
    with pytest.raises(DTypeError, match="unpack_ints: got i8"):
        op.unpack_ints(x.astype(np.int8))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.sampled_from(["xy", "ij"]))
@examples(40)
def test_meshgrid_equals_numpy(sizes, indexing):
    xs = [counted((n,)) for n in sizes]
    check(lambda *xs: op.meshgrid(*xs, indexing=indexing), np.meshgrid(*xs, indexing=indexing), *xs)


@given(st.tuples(SHAPES, st.integers(0, 4), st.integers(0, 4)), st.integers(-5, 5))
@examples(80)
def test_triangles_equal_numpy_and_make_up_the_matrix(sizes, k):
    x = counted((*sizes[0], *sizes[1:]))
    check(lambda x: op.tril(x, k), [np.tril(x, k)], x)
    check(lambda x: op.triu(x, k), [np.triu(x, k)], x)
    np.testing.assert_array_equal(op.tril(x, k) + op.triu(x, k + 1), x)


@given(st.tuples(SHAPES, st.integers(0, 4), st.integers(0, 4)), st.integers(-5, 5))
@examples(40)
def test_rot90_equals_numpy(sizes, k):
    x = counted((*sizes[1:], *sizes[0]))
    check(lambda x: op.rot90(x, k), [np.rot90(x, k)], x)
    check(lambda x: op.rot90(x, k, (1, 0)), [np.rot90(x, k, (1, 0))], x)


def test_unstack_undoes_stack():
    xs = [counted((2, 3)) + i for i in range(4)]
    for axis in (0, 1, -1):
        check(lambda *xs, axis=axis: op.unstack(op.stack(xs, axis), axis), xs, *xs)


def test_broadcast_arrays():
    xs = [counted((2, 1)), counted((3,)), counted(())]
    check(op.broadcast_arrays, np.broadcast_arrays(*xs), *xs)
    assert op.broadcast_arrays() == []


@given(st.lists(st.integers(-2, 5), max_size=5), st.integers(0, 4), st.sampled_from([0, -1]))
@examples(40)
def test_one_hot_is_rows_of_the_identity(indices, size, axis):
    i = np.array(indices, dtype=np.int32)
    rows = np.array([[k == j for j in range(size)] for k in indices], np.float32)
    want = rows.reshape(len(i), size)
    check(lambda i: op.one_hot(i, size, axis=axis), [want if axis else want.T], i)


# Ranges


@given(st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([1, 2, 3, -1, -2]))
@examples(80)
def test_arange_of_integers_equals_numpy(a, b, step):
    y = ts.arange(a, b, step)
    assert y.dtype is ts.i64
    np.testing.assert_array_equal(y, np.arange(a, b, step))


@given(st.integers(-6, 6), st.integers(-6, 6), st.sampled_from([0.5, 0.25, -0.5, 1.5]))
@examples(80)
def test_arange_of_floats_equals_numpy(a, b, step):
    y = ts.arange(float(a), b, step)
    assert y.dtype is ts.f32
    np.testing.assert_array_equal(y, np.arange(a, b, step).astype(np.float32))


@given(st.floats(-10, 10), st.floats(-10, 10), st.integers(0, 7), st.booleans())
@examples(80)
def test_linspace_equals_numpy(a, b, n, endpoint):
    y = np.asarray(ts.linspace(a, b, n, dtype=ts.f64, endpoint=endpoint))
    np.testing.assert_allclose(y, np.linspace(a, b, n, endpoint), rtol=1e-14, atol=1e-14)
    assert n < 1 or y[0] == a
    assert n < 2 or not endpoint or y[-1] == b


def test_linspace_takes_tensors_and_complex_numbers():
    a, b = np.zeros(2, np.float32), np.array([1, 2], np.float32)
    check(lambda a, b: op.linspace(a, b, 3), [np.linspace(a, b, 3).astype(np.float32)], a, b)
    assert ts.linspace(0, 1j, 3).dtype is ts.c64
    assert ts.linspace(0, 1, 3).dtype is ts.f32


@pytest.mark.parametrize("k", [-3, -1, 0, 1, 4])
def test_eye_equals_numpy(k):
    for n, m in ((3, 3), (2, 4), (0, 2)):
        np.testing.assert_array_equal(ts.eye(n, m, k), np.eye(n, m, k, np.float32))
    assert ts.eye(2, dtype=ts.bool_).tolist() == [[True, False], [False, True]]


def test_creation_functions_are_at_the_top():
    assert ts.zeros((2, 0)).shape == (2, 0)
    assert ts.ones(3).tolist() == [1.0, 1.0, 1.0]
    assert ts.full((2,), 7).dtype is ts.i64
    assert ts.full_like(ts.ones(2), 3).tolist() == [3.0, 3.0]
    assert ts.zeros_like(ts.eye(2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert ts.ones_like(ts.arange(2)).dtype is ts.i64
    assert ts.empty((2, 3)).shape == ts.empty_like(ts.zeros((2, 3))).shape == (2, 3)


def test_symbolic_sizes():
    @ts.jit
    def f(x: ts.Tensor["N", "M", ts.f32]):
        n, m = x.shape
        row = ts.arange(m, dtype=ts.f32) + ts.arange(1, m + 1) + ts.linspace(0, 1, m)
        return x * row, op.tile(x, (2, 1)), op.repeat(x, 2, 1), op.triu(x), op.roll(x, 1), ts.eye(n)

    for n, m in ((2, 3), (4, 2)):
        x = counted((n, m))
        i = np.arange(m)
        got = f(x)
        np.testing.assert_allclose(got[0], x * (i + i + 1 + np.linspace(0, 1, m)), rtol=1e-6)
        for g, w in zip(
            got[1:],
            (np.tile(x, (2, 1)), np.repeat(x, 2, 1), np.triu(x), np.roll(x, 1), np.eye(n)),
            strict=True,
        ):
            np.testing.assert_array_equal(g, w)
    assert f.compiled == 1


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: op.roll(np.zeros((2, 3)), (1, 2), 0), AxisError,
         "roll: 2 shifts for axes (0,), expected one for each"),
        (lambda: op.tril(np.zeros(3)), ShapeError, "tril: f64[3] has fewer than 2 axes"),
        (lambda: op.repeat(np.zeros(3), np.array([1, 2])), ShapeError,
         "repeat: 2 counts for axis 0 of f64[3]"),
        (lambda: ts.jit(op.repeat)(np.zeros(3), np.array([1, 2, 3])), TraceError,
         "repeat: the counts i64[3] are traced, so the size of the result is not known; pass an int "
         "or call it outside jit"),
        (lambda: op.meshgrid(np.zeros(2), indexing="yx"), OperandError,
         "meshgrid: indexing is 'yx', expected 'xy' or 'ij'"),
        (lambda: op.rot90(np.zeros((2, 2)), axes=(0,)), AxisError,
         "rot90: axes are (0,), expected two"),
        (lambda: ts.arange(0, 3, 0), OperandError, "arange: the step is 0"),
        (lambda: ts.arange("3"), OperandError, "arange: '3' is not a number"),
    ],
)  # fmt: skip
def test_errors(call, error, text):
    with pytest.raises(error) as e:
        call()
    assert e.value.message == text
