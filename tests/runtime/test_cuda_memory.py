"""Memory of a device, on a driver in Python: the pool, arrays, copies, DLPack, and the order of all of it."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.core.errors import CopyError, DeviceError, DTypeError, OutOfMemoryError, ShapeError
from tessera.runtime.code import LlvmSource, load
from tessera.runtime.cuda import driver, staging
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.launch import DeviceLaunch, Launcher, Pointer, f32, i32
from tessera.runtime.cuda.memory import DeviceArray, empty, from_dlpack, to_device
from tessera.runtime.cuda.stream import DriverStream
from tests.support.cases.cuda_cases import every_dtype
from tests.support.fakes.cuda_fake import FakeCuda, LazyCuda, scale

RUNS_ON = "numpy"
LEGACY = 1  # the stream that libraries use when they say nothing
ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    library = FakeCuda()
    with driver.use(library):
        yield library


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK", 4096)


# The pool -----------------------------------------------------------------------------------------


def test_blocks_are_aligned_and_do_not_overlap(fake: FakeCuda) -> None:
    pool = gpu().pool
    random = np.random.default_rng(0)
    held: dict[int, Any] = {}
    for step in range(2000):
        if random.random() < 0.55:
            held[step] = pool.alloc(int(2 ** random.uniform(0, 22)))
        elif held:
            del held[list(held)[int(random.integers(len(held)))]]
        if step % 100 == 0:
            spans = sorted((b.ptr, b.ptr + b.size) for b in held.values())
            assert all(a[1] <= b[0] for a, b in pairwise(spans))
            assert all(fake.is_ours(b.ptr, b.size) and b.ptr % 512 == 0 for b in held.values())
            assert pool.used == sum(b.size for b in held.values())
            assert pool.held == fake.taken
    held.clear()
    assert pool.used == 0
    assert pool.trim() > 0
    assert (pool.held, fake.taken) == (0, 0)


def test_memory_is_used_again_without_asking_the_driver(fake: FakeCuda) -> None:
    pool = gpu().pool
    first = pool.alloc(1000).ptr
    before = len(fake.calls)
    for _ in range(10):
        assert pool.alloc(900).ptr == first
    assert len(fake.calls) == before
    assert pool.alloc(0).ptr == 0
    assert pool.alloc(0).size == 0


def test_pieces_are_cut_and_joined(fake: FakeCuda) -> None:
    pool = gpu().pool
    big = pool.alloc(40 * MIB)
    start = big.ptr
    del big
    parts = [pool.alloc(20 * MIB), pool.alloc(20 * MIB)]
    assert sorted(b.ptr for b in parts) == [start, start + 20 * MIB]
    parts.clear()
    assert pool.alloc(40 * MIB).ptr == start
    assert fake.calls.count("cuMemAlloc") == 1


def test_small_blocks_do_not_break_up_large_segments(fake: FakeCuda) -> None:
    pool = gpu().pool
    del (big := [pool.alloc(40 * MIB)])[:]
    keep = pool.alloc(100), pool.alloc(2 * MIB)
    assert pool.alloc(40 * MIB).size == 40 * MIB
    assert (fake.calls.count("cuMemAlloc"), len(keep), big) == (3, 2, [])


def test_kept_memory_goes_back_when_there_is_not_enough(fake: FakeCuda) -> None:
    pool = gpu().pool
    pool.alloc(200 * MIB)
    assert pool.held == 200 * MIB
    other = pool.alloc(220 * MIB)
    assert pool.held == 220 * MIB
    assert fake.is_ours(other.ptr, other.size)


def test_out_of_memory_says_how_much_there_is_and_leaves_all_in_order(fake: FakeCuda) -> None:
    pool = gpu().pool
    held = pool.alloc(100 * MIB)
    with pytest.raises(OutOfMemoryError) as e:
        pool.alloc(200 * MIB)
    assert e.value.message == (
        "cuda: cuMemAlloc failed for 200.0 MiB: 156.0 MiB of 256.0 MiB are free and tensors of this process "
        "hold 100.0 MiB; let go of tensors or use smaller ones"
    )
    del held
    assert pool.alloc(200 * MIB).size == 200 * MIB


def test_a_small_segment_is_enough_when_memory_is_scarce() -> None:
    with driver.use(FakeCuda(total=4 * MIB)):
        assert gpu().pool.alloc(100).size == 512
        assert gpu().pool.held == 2 * MIB


def test_a_block_of_another_stream_waits_for_it(fake: FakeCuda) -> None:
    g = gpu()
    pool, side = g.pool, DriverStream(g)
    block = pool.alloc(40 * MIB)
    start = block.ptr
    block.used_on(g.stream)
    assert fake.events == {}
    block.used_on(side)
    block.used_on(side)
    assert list(fake.events.values()) == [side.handle]
    fake.busy.add(side.handle)
    del block
    assert pool.used == 40 * MIB
    second = pool.alloc(20 * MIB)  # the side stream is waited for rather than new memory asked for
    assert second.ptr == start
    assert fake.waits == [(g.stream.handle, side.handle)]
    del second
    block = pool.alloc(40 * MIB)
    block.used_on(side)
    fake.busy.clear()
    del block
    assert pool.alloc(20 * MIB).ptr == start
    assert len(fake.waits) == 1


def test_nobody_waits_while_there_is_other_memory(fake: FakeCuda) -> None:
    g = gpu()
    side, block, spare = DriverStream(g), g.pool.alloc(20 * MIB), g.pool.alloc(40 * MIB)
    block.used_on(side)
    fake.busy.add(side.handle)
    start = spare.ptr
    del block, spare
    assert g.pool.alloc(20 * MIB).ptr == start
    assert fake.waits == []


def test_threads_share_a_pool(fake: FakeCuda) -> None:
    pool, faults, sizes = gpu().pool, [], (100, 5000, 70_000, 2 * MIB)

    def work(seed: int) -> None:
        random, held = np.random.default_rng(seed), []
        for _ in range(1500):
            block = pool.alloc(sizes[random.integers(len(sizes))])
            mark = (ctypes.c_int64 * 2).from_address(block.ptr)
            mark[:] = seed, block.ptr
            held.append((block, mark))
            if len(held) > 5:
                block, mark = held.pop(int(random.integers(5)))
                if list(mark) != [seed, block.ptr]:
                    faults.append((seed, block.ptr))
                del block, mark

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    gc.collect()
    assert faults == []
    assert pool.used == 0


def test_blocks_may_outlive_the_interpreter() -> None:
    code = """
from tests.support.fakes.cuda_fake import FakeCuda
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.memory import from_dlpack, to_device
with driver.use(FakeCuda()):
    class Ring: pass
    ring = Ring()
    ring.me, ring.data = ring, to_device([1, 2, 3])
    held = to_device([4.0])
    import sys
    sys.modules["kept"] = [held, held.__dlpack__(), from_dlpack(held)]
    ring.lent, ring.taken = held.__dlpack__(), from_dlpack(ring.data)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Arrays -------------------------------------------------------------------------------------------


def sample(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(sum(shape))
    return random.integers(0, 2, shape).astype(dtype) if dtype == "?" else (
        random.integers(-5, 100, shape).astype(dtype)
    )  # fmt: skip


@every_dtype
def test_arrays_come_back_as_they_were(fake: FakeCuda, dtype: Any) -> None:
    for shape in ((), (0,), (1,), (3, 0, 2), (7, 5), (2, 3, 4)):
        x = sample(shape, dtype)
        y = to_device(x)
        assert (y.shape, y.dtype, y.size, y.ndim) == (x.shape, x.dtype, x.size, x.ndim)
        assert (y.nbytes, y.device) == (x.nbytes, 0)
        assert (
            y.strides == tuple(s // x.itemsize for s in np.empty(shape, dtype).strides)
            or 0 in shape
        )
        for z in (y, y.copy(), y.reshape(-1).reshape(shape) if y.size else y):
            out = z.numpy()
            assert out.dtype == x.dtype
            assert out.tobytes() == x.tobytes()
    assert gpu().pool.used <= 512 * 2


def test_large_arrays_go_in_chunks(fake: FakeCuda, small_chunks: None) -> None:
    arrays = [np.arange(n, dtype="u1") for n in (1, 255, 4096, 4097, 3 * 4096, 50_001)]
    held = [to_device(a) for a in arrays for _ in range(3)]
    for a, d in zip([a for a in arrays for _ in range(3)], held, strict=True):
        np.testing.assert_array_equal(d.numpy(), a)
    assert len(fake.pinned) == 6  # three each way
    waited = fake.calls.count("cuEventSynchronize")
    assert waited > 30
    assert fake.calls.count("cuMemHostAlloc") == 6


def test_host_copies_on_threads_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_THREADS", 3)
    x = np.arange(3_500_001, dtype=np.uint8)
    out = np.zeros(x.size + 1, np.uint8)
    staging._copy(out.ctypes.data, x.ctypes.data, x.size)
    np.testing.assert_array_equal(out[:-1], x)
    assert out[-1] == 0


def test_what_is_no_row_major_array_of_numbers(fake: FakeCuda) -> None:
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(to_device(x.T).numpy(), x.T)
    np.testing.assert_array_equal(to_device(x[:, ::2]).numpy(), x[:, ::2])
    np.testing.assert_array_equal(to_device(x.astype(">i4")).numpy(), x)
    with pytest.raises(DTypeError) as e:
        to_device(np.array([None]))
    assert e.value.message == "to_device: elements are object, expected numbers"


def test_views_share_memory(fake: FakeCuda) -> None:
    x = to_device(np.arange(12, dtype="f4"))
    rows = x.reshape(3, -1)
    assert (rows.shape, rows.ptr, rows.owner) == ((3, 4), x.ptr, x.owner)
    np.testing.assert_array_equal(
        rows.view("u1").numpy(), np.arange(12, dtype="f4").view("u1").reshape(3, 16)
    )
    rows.memset(0)
    np.testing.assert_array_equal(x.numpy(), np.zeros(12))
    rows.fill(np.ones((3, 4)))
    np.testing.assert_array_equal(x.numpy(), np.ones(12))
    ptr = x.ptr
    del x
    assert empty((12,), "f4").ptr != ptr  # rows still hold it
    for wrong in (5, (7, -1), (-3, -4)):
        with pytest.raises(ShapeError, match=r"reshape: \(3, 4\) has 12 elements"):
            rows.reshape(wrong)
    with pytest.raises(ShapeError, match=r"view: rows of .* are no multiple of 32 bytes"):
        rows.view(np.dtype((np.void, 32)))
    with pytest.raises(ShapeError, match=r"fill: got an array \(2,\), expected \(3, 4\)"):
        rows.fill(np.zeros(2))


def test_a_copy_has_memory_of_its_own(fake: FakeCuda) -> None:
    x = to_device(np.arange(5))
    y = x.copy()
    x.memset(0)
    np.testing.assert_array_equal(y.numpy(), np.arange(5))


def test_a_copy_that_fails_is_an_error_and_nothing_is_lost(fake: FakeCuda) -> None:
    fake.faults["cuMemcpyHtoDAsync"] = [719]
    with pytest.raises(DeviceError, match="cuMemcpyHtoDAsync failed with CUDA_ERROR_LAUNCH_FAILED"):
        to_device(np.ones(3))
    np.testing.assert_array_equal(to_device(np.ones(3)).numpy(), np.ones(3))


# Other libraries ----------------------------------------------------------------------------------


def test_the_array_interface(fake: FakeCuda) -> None:
    x = to_device(np.ones((2, 3), "f4"))
    assert x.__cuda_array_interface__ == {
        "version": 3, "shape": (2, 3), "typestr": "<f4", "data": (x.ptr, False), "strides": None,
        "stream": gpu().stream.handle,
    }  # fmt: skip
    assert empty((0,), "f4").__cuda_array_interface__["data"] == (0, False)


class Old:
    """A producer from before DLPack 1.0."""

    def __init__(self, x: DeviceArray):
        self.x, self.streams = x, []

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self.x.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


@every_dtype
def test_dlpack_round_trips(fake: FakeCuda, dtype: Any) -> None:
    for shape in ((), (0, 3), (4,), (2, 1, 3)):
        x = sample(shape, dtype)
        ours = to_device(x)
        for producer in (ours, Old(ours)):
            theirs = from_dlpack(producer)
            assert (theirs.ptr, theirs.shape, theirs.dtype) == (ours.ptr, ours.shape, ours.dtype)
            assert theirs.numpy().tobytes() == x.tobytes()


def test_memory_lives_as_long_as_any_holder(fake: FakeCuda) -> None:
    x = to_device(np.arange(5))
    ptr = x.ptr
    y = from_dlpack(x)
    del x
    assert empty((5,), "i8").ptr != ptr
    z = y.reshape(5, 1)
    del y
    np.testing.assert_array_equal(z.numpy()[:, 0], np.arange(5))
    assert gpu().pool.used == 512
    del z
    assert gpu().pool.used == 512  # a consumer may still read it on its stream
    gpu().pool.trim()
    assert gpu().pool.used == 0


def test_a_consumer_may_have_ended_its_stream(fake: FakeCuda) -> None:
    capsule = to_device(np.arange(5)).__dlpack__(stream=7777)
    fake.faults["cuEventRecord"] = [400]
    del capsule
    assert gpu().pool.used == 0


# What C code does that raises an error and lets go of what it has.
FAIL = """
declare void @PyErr_SetNone(ptr)
declare void @Py_DecRef(ptr)

define ptr @fail(ptr %error, ptr %object) {
  call void @PyErr_SetNone(ptr %error)
  call void @Py_DecRef(ptr %object)
  ret ptr null
}
"""


@pytest.mark.parametrize("version", [None, (1, 0)], ids=["plain", "versioned"])
def test_a_capsule_may_die_while_an_error_is_raised(fake: FakeCuda, version: Any) -> None:
    code = load(LlvmSource("failing", FAIL, ("fail",)))
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
    capsule = to_device(np.arange(5)).__dlpack__(max_version=version)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(capsule))
    address = id(capsule)
    del capsule
    with pytest.raises(ZeroDivisionError):
        kind(code.address)(ZeroDivisionError, address)
    gpu().pool.trim()
    assert gpu().pool.used == 0


def test_a_tensor_may_be_deleted_without_the_lock(fake: FakeCuda) -> None:
    capsule = to_device(np.arange(5)).__dlpack__()
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    address = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dltensor")
    deleter = ctypes.c_size_t.from_address(address + 56).value
    rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
    rename(("PyCapsule_SetName", ctypes.pythonapi))(capsule, b"used_dltensor")
    del capsule
    assert gpu().pool.used == 512
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(address)  # which lets go of the lock
    gpu().pool.trim()
    assert gpu().pool.used == 0


def test_a_capsule_that_nobody_takes_lets_go(fake: FakeCuda) -> None:
    x = to_device(np.arange(5))
    capsules = [x.__dlpack__(), x.__dlpack__(max_version=(1, 0))]
    del x
    assert gpu().pool.used == 512
    assert "dltensor_versioned" in repr(capsules[1])
    capsules.clear()
    gpu().pool.trim()
    assert gpu().pool.used == 0


def test_a_consumer_waits_on_the_stream_that_it_names(fake: FakeCuda) -> None:
    x, main = to_device(np.arange(5)), gpu().stream.handle
    for stream, waits in ((None, [LEGACY]), (1, [1]), (2, [2]), (7777, [7777]), (-1, [])):
        fake.waits.clear()
        x.__dlpack__(stream=stream)
        assert fake.waits == [(w, main) for w in waits]
    producer = Old(x)
    from_dlpack(producer)
    assert producer.streams == [main]


def test_dlpack_says_what_it_cannot_do(fake: FakeCuda) -> None:
    x = to_device(np.arange(6))
    with pytest.raises(BufferError, match=r"not on the device \(1, 0\); use \.numpy\(\)"):
        x.__dlpack__(dl_device=(1, 0))
    copied = x.__dlpack__(copy=True, max_version=(1, 0), dl_device=(2, 0))
    assert "dltensor_versioned" in repr(copied)
    with pytest.raises(BufferError, match="no code for int4"):
        to_device(np.zeros(3, ml_dtypes.int4)).__dlpack__()
    fixed = DeviceArray(x.shape, x.dtype, x.gpu, x.ptr, x.owner, writable=False)
    with pytest.raises(BufferError, match="read-only"):
        fixed.__dlpack__()
    assert not from_dlpack(fixed).writable
    with pytest.raises(DeviceError) as e:
        from_dlpack(np.zeros(3))
    assert (
        e.value.message
        == "from_dlpack: the tensor is on a device of kind 1, expected CUDA (2) or ROCm (10)"
    )
    with pytest.raises(DeviceError) as e:
        from_dlpack([1, 2])
    assert e.value.message == "from_dlpack: a list does not know DLPack"


def test_other_orders_are_not_taken(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    x = to_device(np.arange(6).reshape(2, 3))
    with monkeypatch.context() as m:
        m.setattr("tessera.runtime.cuda.dlpack._row_major", lambda shape: [1, 2])
        capsule = x.__dlpack__()
    producer = Old(x)
    producer.__class__ = type("Turned", (Old,), {"__dlpack__": lambda self, stream=None: capsule})
    with pytest.raises(CopyError) as e:
        from_dlpack(producer)
    assert e.value.message == (
        "from_dlpack: strides (1, 2) of shape (2, 3) are not in row-major order; pass a contiguous copy"
    )
    with pytest.raises(DeviceError, match="gave no fresh DLPack capsule"):
        from_dlpack(producer)


# Order --------------------------------------------------------------------------------------------


class Session:
    """Random work on arrays of one shape each, on two streams and for another library, and what it must
    give.
    """

    def __init__(self, seed: int, library: LazyCuda):
        self.random, self.library = np.random.default_rng(seed), library
        self.side = DriverStream(gpu())
        self.held: list[tuple[DeviceArray, np.ndarray[Any, Any]]] = []
        self.seen: list[tuple[list[float], np.ndarray[Any, Any]]] = []  # by another library
        kernel = scale(library)
        self.launchers = {
            n: Launcher(
                [DeviceLaunch(kernel, (1, 1, 1), 32, (Pointer(1), Pointer(0), i32(n), f32(2)))],
                gpu(),
            )
            for n in (3, 300, 3000)
        }

    def pick(self) -> tuple[DeviceArray, np.ndarray[Any, Any]]:
        return self.held[int(self.random.integers(len(self.held)))]

    def upload(self) -> None:
        x = self.random.integers(0, 99, self.random.choice([3, 300, 3000])).astype("f4")
        self.held.append((to_device(x), x.copy()))
        x[:] = -1  # which the device must not see

    def copy(self) -> None:
        x, value = self.pick()
        self.held.append((x.copy(), value))

    def launch(self) -> None:
        x, value = self.pick()
        out = empty(x.shape, "f4")
        self.launchers[x.size].run([x.ptr, out.ptr])
        self.held.append((out, value * 2))

    def launch_aside(self) -> None:
        x, value = self.pick()
        out = empty(x.shape, "f4")
        self.side.wait(gpu().stream)
        self.launchers[x.size].run([x.ptr, out.ptr], self.side)
        for a in (x, out):
            a.owner.used_on(self.side)
        if self.random.random() < 0.5:  # otherwise nobody wants the result
            gpu().stream.wait(self.side)
            self.held.append((out, value * 2))

    def lend(self) -> None:
        x, value = self.pick()
        capsule, ptr, n, seen = x.__dlpack__(stream=7777), x.ptr, x.size, list[float]()
        self.library.submit(7777, lambda: seen.extend((ctypes.c_float * n).from_address(ptr)))
        self.seen.append((seen, value))
        del capsule

    def drop(self) -> None:
        self.held.pop(int(self.random.integers(len(self.held))))

    def read(self) -> None:
        x, value = self.pick()
        np.testing.assert_array_equal(x.numpy(), value)

    def step(self) -> None:
        ways = [
            self.upload,
            self.copy,
            self.launch,
            self.launch_aside,
            self.lend,
            self.drop,
            self.drop,
        ]
        way = ways[int(self.random.integers(len(ways)))] if self.held else self.upload
        way()
        if self.held and self.random.random() < 0.1:
            self.read()


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_streams_shows_in_results(small_chunks: None, seed: int) -> None:
    library = LazyCuda(seed)
    with driver.use(library):
        session = Session(seed, library)
        for _ in range(300):
            session.step()
        for x, value in session.held:
            np.testing.assert_array_equal(x.numpy(), value)
        gpu().synchronize()
        for seen, value in session.seen:
            np.testing.assert_array_equal(seen, value)
        assert len(session.seen) > 10
        assert gpu().pool.held == 8 * MIB  # all of it used again and again


def test_memory_that_begins_between_words_is_copied(fake: FakeCuda) -> None:
    whole = to_device(np.arange(10, dtype="f4"))
    for skip, shared in ((4, True), (1, False), (3, False)):
        part = DeviceArray((4,), whole.dtype, whole.gpu, whole.ptr + 4 * skip, whole.owner)
        taken = from_dlpack(part)
        np.testing.assert_array_equal(taken.numpy(), np.arange(skip, skip + 4))
        assert (taken.ptr == part.ptr, taken.ptr % 16) == (shared, 0)
