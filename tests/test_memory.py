"""Memory for results: used again only when nobody holds it."""

import gc
import threading

import numpy as np
import pytest

import tessera as ts
from tessera.runtime import memory


@pytest.fixture(autouse=True)
def fresh():
    gc.collect()
    memory.clear()
    yield
    memory.clear()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.bool_, np.complex64])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (300, 700), (1 << 20,)])
def test_shape_dtype_and_alignment(shape, dtype):
    a = memory.empty(shape, dtype)
    assert (a.shape, a.dtype, a.flags.c_contiguous, a.flags.writeable) == (shape, dtype, True, True)
    assert a.nbytes < 1 << 16 or a.ctypes.data % 64 == 0
    a[...] = 1
    assert (a == 1).all()


def test_memory_is_used_again_when_its_array_is_gone():
    a = memory.empty((1 << 18,), np.float32)
    place = a.ctypes.data
    del a
    assert memory.kept() == 1 << 20
    b = memory.empty((1 << 10, 1 << 8), np.float32)
    assert b.ctypes.data == place
    assert memory.kept() == 0


def test_a_view_keeps_its_memory():
    a = memory.empty((1 << 18,), np.float32)
    a[:] = 7
    view = a[10:20].reshape(2, 5)
    del a
    others = [memory.empty((1 << 18,), np.float32) for _ in range(3)]
    for o in others:
        o[:] = 0
    assert (view == 7).all()


def test_what_is_kept_is_bounded():
    arrays = [memory.empty((1 << 26,), np.uint8) for _ in range(20)]
    arrays.clear()
    assert memory.kept() <= 1 << 30


def test_threads_never_share_a_block():
    wrong = []

    def work(number):
        for _ in range(50):
            a = memory.empty((1 << 16,), np.int64)
            a[:] = number
            if not (a == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_tensors_of_data_begin_at_a_line_and_are_copies():
    for x in (np.arange(1 << 16, dtype=np.float32), np.arange(1 << 16).reshape(64, -1).T):
        made = ts.tensor(x)
        np.testing.assert_array_equal(made.numpy(), x)
        assert not np.shares_memory(made.data, x)
        assert made.data.ctypes.data % 64 == 0 or not x.flags.c_contiguous
