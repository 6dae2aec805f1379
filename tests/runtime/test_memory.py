"""Memory for results: used again only when nobody holds it."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import tessera as ts
from tessera.runtime import memory
from tessera.runtime.allocator import blocks
from tessera.runtime.allocator_ir import PLACES, first_place


@pytest.fixture(autouse=True)
def fresh():
    blocks()
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
        assert not np.shares_memory(made.storage, x)
        assert made.storage.ctypes.data % 64 == 0 or not x.flags.c_contiguous


def test_an_array_may_change_its_size():
    a = memory.empty((1 << 15,), np.float32)
    a[:] = np.arange(1 << 15)
    for n in (1 << 16, 1 << 14, 3 << 15, 10):
        before = a.copy()
        a.resize((n,), refcheck=False)
        both = min(n, before.size)
        assert a.ctypes.data % 64 == 0
        assert (a[:both] == before[:both]).all()
        assert (a[both:] == 0).all()


def test_sizes_of_one_place_keep_apart():
    sizes = [n for n in range(1 << 16, 40 << 20, 4096) if first_place(n) == first_place(1 << 16)]
    sizes = sizes[: PLACES + 1]
    arrays = {n: memory.empty((n,), np.uint8) for n in sizes}
    places = {n: a.ctypes.data for n, a in arrays.items()}
    for n in sizes:
        del arrays[n]
    assert memory.kept() == sum(sizes[:PLACES])  # the last one found no slot
    again = {n: memory.empty((n,), np.uint8) for n in sizes[:PLACES]}
    assert {n: a.ctypes.data for n, a in again.items()} == {n: places[n] for n in again}
    assert memory.kept() == 0
    last = memory.empty((sizes[-1],), np.uint8)
    del last
    assert memory.kept() == sizes[-1]


def test_hundreds_of_sizes_are_kept():
    sizes = range(1 << 16, (1 << 16) + 300 * 64, 64)
    arrays = [memory.empty((n,), np.uint8) for n in sizes]
    places = [a.ctypes.data for a in arrays]
    for a, n in zip(arrays, sizes, strict=True):
        a[:] = n % 251
    assert all((a == n % 251).all() for a, n in zip(arrays, sizes, strict=True))
    arrays.clear()
    del a
    assert memory.kept() == sum(sizes)
    assert [memory.empty((n,), np.uint8).ctypes.data for n in sizes] == places
    memory.clear()
    assert memory.kept() == 0


def test_zeros_by_the_handler_are_zeros():
    b = blocks()
    a = memory.empty((1 << 18,), np.uint8)
    a[:] = 7
    place = a.ctypes.data
    del a
    before = b._set(b.capsule)
    try:
        zeros = np.zeros(1 << 18, np.uint8)
    finally:
        b._set(before)
    assert (zeros.ctypes.data, zeros.any()) == (place, False)


def test_arrays_that_outlive_the_interpreter():
    text = """
import sys, numpy as np, tessera as ts
sys.kept = ts.tensor(np.ones((500, 500), np.float32)).storage
np.kept = [ts.jit(lambda x: x @ x)(ts.tensor(sys.kept)).storage]
class Late:
    def __init__(self, a): self.a = a
    def __del__(self): del self.a
np.late = Late(ts.tensor(sys.kept).storage)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_numpy_allocates_as_ever():
    memory.empty((1 << 20,), np.uint8)
    assert np._core.multiarray.get_handler_name() == "default_allocator"
    assert np._core.multiarray.get_handler_name(memory.empty((1 << 20,), np.uint8)) == "tessera"
    assert np._core.multiarray.get_handler_name(np.empty(1 << 20, np.uint8)) == "default_allocator"


def test_free_memory_is_what_the_system_says_or_all_pages(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_free_address_space", lambda: None)
    monkeypatch.setattr(memory, "_free_in_group", lambda *names: None)
    monkeypatch.setattr(memory, "_numbers", lambda path: {"MemAvailable:": 5, "MemFree:": 3})
    assert memory.available() == 5 * 1024 + memory.kept()
    monkeypatch.setattr(memory, "_numbers", lambda path: {})
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory.available() == pages + memory.kept()
    monkeypatch.setattr(memory, "_free_in_group", lambda *names: 77)
    assert memory.available() == 77 + memory.kept()
