"""What ts.tensor and the ops take: numbers that fit, arrays of any library, and nothing that changes
later.
"""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import DTypeError, OperandError, TesseraError

RUNS_ON = "numpy"


class Lent:
    """An array of another library, known by one protocol alone."""

    def __init__(self, data, refuses=False):
        self.data, self.refuses = data, refuses

    def __array__(self, dtype=None, copy=None):
        if self.refuses:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.\nUse detach")
        return self.data


@pytest.mark.parametrize(
    ("data", "dtype", "text"),
    [
        ([300], "i8", "tensor: 300 does not fit i8; take a wider dtype, or wrap around with "
                      "ts.tensor(x).astype(i8)"),
        ([-1], "u8", "tensor: -1 does not fit u8; take a wider dtype, or wrap around with "
                     "ts.tensor(x).astype(u8)"),
        ([[1, 9]], "i4", "tensor: 9 does not fit i4; take a wider dtype, or wrap around with "
                         "ts.tensor(x).astype(i4)"),
        (2**40, "i32", f"tensor: {2**40} does not fit i32; take a wider dtype, or wrap around with "
                       f"ts.tensor(x).astype(i32)"),
        ([2**70], "i64", f"tensor: {2**70} does not fit i64; take a wider dtype, or wrap around with "
                         f"ts.tensor(x).astype(i64)"),
        ([1.5, 2.0], "i32", "tensor: 1.5 is no integer and would lose its fraction in i32; round it with "
                            "op.round, or cut it off with ts.tensor(x).astype(i32)"),
        ([1e30], "i64", f"tensor: {int(1e30)} does not fit i64; take a wider dtype, or wrap around with "
                        f"ts.tensor(x).astype(i64)"),
        ([float("nan")], "i32", "tensor: nan is no integer and does not fit i32; replace it first, or keep "
                                "a floating-point dtype"),
        (float("inf"), "u16", "tensor: inf is no integer and does not fit u16; replace it first, or keep a "
                              "floating-point dtype"),
        (np.array([300]), "i8", "tensor: 300 does not fit i8; take a wider dtype, or wrap around with "
                                "ts.tensor(x).astype(i8)"),
        (np.array([0.5], np.float32), "i8",
        "tensor: 0.5 is no integer and would lose its fraction in i8; round it with op.round, or cut it off "
        "with ts.tensor(x).astype(i8)"),
        (Lent(np.array([-3])), "u32",
        "tensor: -3 does not fit u32; take a wider dtype, or wrap around with ts.tensor(x).astype(u32)"),
    ],
)  # fmt: skip
def test_a_number_that_its_dtype_cannot_hold_is_an_error(data, dtype, text):
    with pytest.raises(DTypeError) as e:
        ts.tensor(data, dtype=dtype)
    assert e.value.message == text
    with pytest.raises(DTypeError):
        ts.asarray(data, dtype=dtype)


def test_numbers_that_fit_are_taken_exactly():
    assert ts.tensor([-128, 127], dtype="i8").tolist() == [-128, 127]
    assert ts.tensor([0.0, 255.0], dtype="u8").tolist() == [0, 255]
    assert ts.tensor(2**64 - 1, dtype="u64").item() == 2**64 - 1
    assert ts.tensor([True, 3], dtype="i4").tolist() == [1, 3]
    assert ts.tensor([], dtype="i8").shape == (0,)
    assert ts.tensor([300, 1.5], dtype=bool).tolist() == [True, True]
    assert ts.tensor([1e6], dtype="f16").tolist() == [float("inf")]
    assert ts.tensor([300]).astype("i8").tolist() == [44]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: op.full((2,), 300, dtype="i8"), "full: 300 does not fit i8; take a wider dtype"),
        (lambda: op.full_like(ts.tensor([1], dtype="u8"), -1),
        "full: -1 does not fit u8; take a wider dtype"),
        (lambda: op.full((), 0.5, dtype="i8"),
        "full: 0.5 is no integer and would lose its fraction in i8; round it with op.round, or cut it off "
        "with ts.tensor(x).astype(i8)"),
        (lambda: op.arange(300, dtype="i8"), "arange: 299 does not fit i8; take a wider dtype"),
        (lambda: op.arange(-2, 3, dtype="u8"), "arange: -2 does not fit u8; take a wider dtype"),
        (lambda: ts.tensor([1, 2], dtype="i8").at[0].set(300),
        "at.set: 300 does not fit i8; take a wider dtype"),
        (lambda: ts.tensor(2**70), "tensor: an integer of 71 bits does not fit i64; write a float"),
        (lambda: op.add(2**70, 1), "add: an integer of 71 bits does not fit i64; write a float"),
        (lambda: ts.tensor(np.array([1, None], object)),
        "tensor: cannot take an array of Python objects as a tensor; convert it to numbers first, as in "
        "x.astype(numpy.float32)"),
        (lambda: ts.tensor(np.array(["a"])),
        "tensor: cannot take an array of text as a tensor; convert it to numbers first, as in "
        "x.astype(numpy.float32)"),
        (lambda: op.sin(np.array(["2020-01-01"], "datetime64[D]")),
        "sin: cannot take an array of dates as a tensor; convert it to numbers first, as in "
        "x.astype(numpy.float32)"),
        (lambda: ts.tensor(np.zeros(2, [("a", "f4")])),
        "tensor: cannot take a structured array of [('a', '<f4')] as a tensor; pass its fields one by one, "
        "as in x['a']"),
    ],
)  # fmt: skip
def test_the_siblings_of_tensor_refuse_the_same(call, text):
    with pytest.raises(DTypeError) as e:
        call()
    assert e.value.message == text


@pytest.mark.parametrize("take", [ts.tensor, ts.asarray, op.sin, lambda x: ts.jit(op.sin)(x)])
def test_the_mask_of_a_masked_array_is_not_dropped(take):
    with pytest.raises(OperandError) as e:
        take(np.ma.masked_array([1.0, 2.0], [0, 1]))
    assert (
        "a masked array has elements without a value, and a tensor has no mask; pass x.filled(value)"
        in e.value.message
    )


def test_a_library_that_keeps_its_memory_is_quoted():
    with pytest.raises(OperandError) as e:
        op.sin(Lent(np.zeros(2), refuses=True))
    assert e.value.message == (
        "sin: cannot read the data of Lent: Can't call numpy() on Tensor that requires grad; take an array "
        "on a "
        "GPU with ts.from_dlpack(x)"
    )


VIEWS = {
    "reshape": lambda x: op.reshape(x, (10, 10)),
    "flip": op.flip,
    "transpose": op.transpose,
    "squeeze": op.squeeze,
    "cast": lambda x: op.cast(x, "f32"),
    "broadcast": lambda x: op.broadcast_to(x, (2, 100)),
    "unstack": lambda x: op.unstack(op.reshape(x, (2, 50)))[0],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("lend", [lambda a: a, Lent], ids=["numpy", "lent"])
def test_results_do_not_change_with_the_array_that_they_came_from(name, wrap, lend):
    a = np.arange(100, dtype=np.float32)
    y = wrap(VIEWS[name])(lend(a))
    before = y.numpy().copy()
    a[:] = -1
    np.testing.assert_array_equal(y, before)


def test_a_jitted_identity_does_not_lend_the_memory_of_its_argument():
    a = np.arange(100, dtype=np.float32)
    y = ts.jit(lambda x: x)(a)
    a[:] = -1
    assert y.tolist()[5] == 5


def test_what_numpy_sees_of_a_tensor_cannot_be_written_to():
    t = ts.tensor([1.0, 2.0])
    for view in (t.numpy(), np.asarray(t), np.asarray(t, dtype=np.float32), np.from_dlpack(t)):
        assert not view.flags.writeable
    copy = np.array(t)
    copy[0] = 7
    other = np.asarray(t, dtype=np.float64)
    other[0] = 8
    assert t.tolist() == [1, 2]


@pytest.mark.parametrize("size", [3, 100])
@pytest.mark.parametrize("borrow", [ts.asarray, ts.from_dlpack])
def test_eager_and_jit_agree_on_borrowed_memory(size, borrow):
    a = np.zeros(size, np.float32)
    t = borrow(a)
    row = t[:2]

    def f(x):
        return x + t, x[:2] * row

    g = ts.jit(f)
    x = op.ones((size,))
    for k in (0, 5):
        a[:] = k
        for got, want in zip(g(x), f(x), strict=True):
            np.testing.assert_array_equal(got, want)


def test_integers_beyond_64_bits_in_lists_are_named():
    with pytest.raises(
        TesseraError, match="cannot take a list of integers beyond 64 bits as a tensor"
    ):
        ts.tensor([2**70])
