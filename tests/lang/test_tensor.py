"""Tensor: construction, conversion, operators and methods, as NumPy users expect them."""

import operator
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tessera as ts
from tessera import Tensor, op
from tessera.core.errors import OperandError, TesseraError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, "f32"), (2, "i64"), (True, "bool"), (1j, "c64"), ([1.0, 2.0], "f32"), ([1, 2], "i64"),
        ([True], "bool"), ([], "f32"), (np.float64(1), "f64"), (np.zeros(2, np.int8), "i8"),
        (np.zeros(2), "f64"), ([[1.5], [2]], "f32"), ([1j], "c64"),
    ],
)  # fmt: skip
def test_default_dtypes(data, dtype):
    t = ts.tensor(data)
    assert str(t.dtype) == dtype
    assert t.shape == np.shape(data)


def test_tensor_copies_and_asarray_need_not():
    a = np.zeros(3)
    t, u = ts.tensor(a), ts.asarray(a)
    a[0] = 1
    assert t.tolist() == [0, 0, 0]
    assert u.tolist() == [1, 0, 0]


def test_given_dtypes_are_exact():
    assert ts.tensor([0.1], dtype="f64").item() == 0.1
    assert ts.tensor(2**53 + 1, dtype="i64").item() == 2**53 + 1
    assert ts.tensor([1.7, -1.7, 300.0]).astype("u8").tolist() == [1, 0, 255]


def test_a_list_of_tensors_is_stacked():
    t = ts.tensor([ts.tensor([1.0, 2.0]), ts.tensor([3.0, 4.0])])
    assert t.tolist() == [[1, 2], [3, 4]]


@given(
    hnp.arrays(
        st.sampled_from(
            [np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_, np.complex64]
        ),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements={"allow_subnormal": False},
    )
)
def test_numpy_round_trip(a):
    t = ts.tensor(a)
    assert t.numpy().dtype == a.dtype
    np.testing.assert_array_equal(np.asarray(t), a)
    assert t.tolist() == a.tolist() or np.isnan(a).any()


def test_numpy_view_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        ts.tensor([1.0]).numpy()[0] = 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.uint8, np.complex128])
def test_dlpack_both_ways(dtype):
    a = RNG.normal(size=(2, 3)).astype(dtype)
    t = ts.tensor(a)
    np.testing.assert_array_equal(np.from_dlpack(t), a)
    np.testing.assert_array_equal(ts.asarray(np.from_dlpack(t)), a)
    assert t.__dlpack_device__() == (1, 0)
    # a broadcast tensor has no memory of its own to hand out, so it is copied
    wide = op.broadcast_to(ts.tensor(a[0]), (4, 3))
    np.testing.assert_array_equal(np.from_dlpack(wide), np.broadcast_to(a[0], (4, 3)))


BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
]  # fmt: skip


@pytest.mark.parametrize("f", BINARY, ids=lambda f: f.__name__)
def test_binary_operators(f):
    a, b = RNG.uniform(0.5, 2, size=(2, 3)), RNG.uniform(0.5, 2, size=(3,))
    for x, y in ((a, b), (a, 1.5), (2.5, a)):
        t = f(ts.tensor(x) if isinstance(x, np.ndarray) else x,
            ts.tensor(y) if isinstance(y, np.ndarray) else y)  # fmt: skip
        assert isinstance(t, Tensor)
        np.testing.assert_allclose(t, f(x, y), rtol=1e-14)
    np.testing.assert_allclose(f(a, ts.tensor(b)), f(a, b), rtol=1e-14)  # NumPy on the left


@pytest.mark.parametrize(
    "f", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_integer_operators(f):
    a, b = np.array([12, 7, 0]), np.array([1, 2, 3])
    np.testing.assert_array_equal(f(ts.tensor(a), ts.tensor(b)), f(a, b))
    np.testing.assert_array_equal(f(ts.tensor(a), 2), f(a, 2))
    np.testing.assert_array_equal(f(9, ts.tensor(b)), f(9, b))


def test_unary_operators_and_matmul():
    a = RNG.normal(size=(3, 3))
    t = ts.tensor(a)
    np.testing.assert_array_equal(-t, -a)
    np.testing.assert_array_equal(+t, a)
    np.testing.assert_array_equal(abs(t), abs(a))
    np.testing.assert_array_equal(~ts.tensor([1, 2]), [-2, -3])
    np.testing.assert_allclose(t @ t, a @ a)
    np.testing.assert_allclose(a @ t, a @ a)


def test_comparison_with_other_things():
    t = ts.tensor([1.0])
    assert (t == None) is False  # noqa: E711
    assert (t != "a") is True
    with pytest.raises(TypeError):
        t + "a"


def test_python_numbers_do_not_widen():
    assert (ts.tensor([1], dtype="i8") + 1).dtype is ts.i8
    assert (ts.tensor([1.0], dtype="bf16") * 0.5).dtype is ts.bf16
    assert (ts.tensor([1], dtype="i8") * 0.5).dtype is ts.f32
    assert (ts.tensor([True]) + 1).dtype is ts.i64
    assert (ts.tensor([1.0]) + 1j).dtype is ts.c64


@pytest.mark.parametrize(
    "name", ["sum", "prod", "mean", "var", "std", "max", "min", "argmax", "argmin"]
)
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_reductions(name, axis):
    a = RNG.normal(size=(3, 4))
    got = getattr(ts.tensor(a), name)(axis=axis)
    np.testing.assert_allclose(got, getattr(a, name)(axis=axis), rtol=1e-13)
    kept = getattr(ts.tensor(a), name)(axis=axis, keepdims=True)
    assert kept.shape == getattr(a, name)(axis=axis, keepdims=True).shape


def test_shape_methods():
    a = RNG.normal(size=(2, 3, 4))
    t = ts.tensor(a)
    assert (t.ndim, t.size, t.nbytes, len(t)) == (3, 24, 192, 2)
    np.testing.assert_array_equal(t.reshape(4, -1), a.reshape(4, -1))
    np.testing.assert_array_equal(t.reshape((6, 4)), a.reshape(6, 4))
    np.testing.assert_array_equal(t.transpose(), a.transpose())
    np.testing.assert_array_equal(t.transpose(1, 0, 2), a.transpose(1, 0, 2))
    np.testing.assert_array_equal(t.mT, np.swapaxes(a, 1, 2))
    np.testing.assert_array_equal(ts.tensor(a[0]).T, a[0].T)
    np.testing.assert_array_equal(t.flatten(), a.flatten())
    np.testing.assert_array_equal(ts.tensor(a[:1]).squeeze(), a[0])
    np.testing.assert_array_equal([np.asarray(r) for r in t], a)
    z = a[0] + 1j * a[1]
    np.testing.assert_array_equal(ts.tensor(z).H, z.conj().T)
    np.testing.assert_array_equal(ts.tensor(z).real, z.real)
    np.testing.assert_array_equal(ts.tensor(z).imag, z.imag)


def test_scalars_become_python_numbers():
    assert float(ts.tensor(1.5)) == 1.5
    assert int(ts.tensor(3)) == 3
    assert complex(ts.tensor(1 + 2j)) == 1 + 2j
    assert bool(ts.tensor(False)) is False
    assert [10, 20][ts.tensor(1)] == 20
    assert f"{ts.tensor(1.25):.1f}" == "1.2"
    assert ts.tensor([[2.5]]).item() == 2.5


def test_text():
    assert repr(ts.tensor([1.0, 2.0])) == "Tensor([1., 2.], f32[2])"
    assert str(ts.tensor([1, 2])) == "[1 2]"
    seen = []
    ts.jit(lambda x: seen.append(repr(x)) or x)(ts.tensor([1.0]))
    assert seen == ["Tensor(traced f32[1])"]


def test_a_tensor_cannot_be_written_to():
    a = ts.tensor([1.0, 2.0, 3.0])
    with pytest.raises(OperandError) as e:
        a[0] = 9
    assert e.value.message == (
        "x[0] = value: a tensor is a value and cannot be written to; make a new one with "
        "x = x.at[0].set(value)"
    )
    assert str(e.value).endswith("a[0] = 9")
    with pytest.raises(OperandError, match=re.escape("x = x.at[..., 1:, ::2, None].set(value)")):
        a[..., 1:, ::2, None] = 9
    c = a.at[1].set(5)
    assert (a.tolist(), c.tolist()) == ([1, 2, 3], [1, 5, 3])


def test_in_place_operators_rebind_the_name():
    a = ts.tensor([1.0, 2.0])
    b = a
    b += 1
    b *= 2
    assert (a.tolist(), b.tolist()) == ([1, 2], [4, 6])


def test_dtypes_and_types_survive_pickling():
    for d in (ts.f32, ts.bf16 @ ts.saturate, ts.tf32):
        assert pickle.loads(pickle.dumps(d)) is d
    t = ts.core.types.TensorType(ts.f32, (2, 3))
    assert pickle.loads(pickle.dumps(t)) is t


def test_a_tensor_is_hashable_by_identity():
    a, b = ts.tensor([1.0]), ts.tensor([1.0])
    assert len({a, b, a}) == 2


def test_sizes_of_a_new_shape_are_given_apart_or_together():
    x, one = ts.tensor(np.arange(12.0)), ts.tensor(np.array([[3.0]]))
    for sizes in ((3, 4), ((3, 4),), ([3, 4],), (3, -1), ((-1, 4),), (np.int64(3), 4)):
        assert x.reshape(*sizes).shape == (3, 4), sizes
    for sizes in ((12,), ((12,),), ([12],), (-1,), ((-1,),)):
        assert x.reshape(*sizes).shape == (12,), sizes
    assert one.reshape().shape == one.reshape(()).shape == one.reshape([]).shape == ()
    for sizes in (((3,), (4,)), ((3, 4), 1), (3, (4,)), ("12",), (5,), ()):
        with pytest.raises(TesseraError):
            x.reshape(*sizes)
