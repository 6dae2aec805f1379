"""The CUDA runtime on a driver in Python: memory, copies, DLPack, launches, graphs, errors."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
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
from tessera.core.processor import cores
from tessera.runtime.cuda import driver, nvtx, staging
from tessera.runtime.cuda.device import Gpu, count, gpu
from tessera.runtime.cuda.graph import Graph
from tessera.runtime.cuda.launch import Launch, Launcher, Pointer, TensorMap, f32, i32, i64
from tessera.runtime.cuda.memory import DeviceArray, empty, from_dlpack, to_device
from tessera.runtime.cuda.module import Function, Module
from tessera.runtime.cuda.stream import LEGACY, Event, Stream
from tessera.runtime.cuda.tma import tensor_map
from tests.cuda_fake import FakeCuda

RUNS_ON = "numpy"
ROOT = Path(__file__).parent.parent
MIB = 1 << 20
DTYPES = [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    library = FakeCuda()
    with driver.use(library):
        yield library


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK", 4096)


def scale(fake: FakeCuda) -> Function:
    """A kernel out[i] = x[i] * factor on n numbers."""

    def run(out: bytes, x: bytes, n: bytes, factor: bytes) -> None:
        size, by = struct.unpack("<i", n)[0], struct.unpack("<f", factor)[0]
        source = (ctypes.c_float * size).from_address(int.from_bytes(x, "little"))
        target = (ctypes.c_float * size).from_address(int.from_bytes(out, "little"))
        target[:] = [v * by for v in source]

    fake.kernels["scale"] = (8, 8, 4, 4), run
    return Module(b"fake", gpu()).function("scale", 100)


# The driver ---------------------------------------------------------------------------------------


def test_the_table_of_the_driver_is_what_the_fake_has() -> None:
    """A function that nobody stands in for would be tested by nobody."""
    assert {n for n in driver.SIGNATURES if not hasattr(FakeCuda, f"do_{n}")} == set()


def test_without_a_driver_the_error_says_what_was_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda-nowhere.so.1")
    monkeypatch.setattr(driver, "_DRIVER", None)
    monkeypatch.setattr(driver, "_ABSENT", "")
    assert not driver.available()
    with pytest.raises(DeviceError) as e:
        driver.load()
    assert e.value.message == (
        "cuda: there is no NVIDIA driver here (libcuda-nowhere.so.1: libcuda-nowhere.so.1: cannot open "
        "shared object file: No such file or directory); install one, so that nvidia-smi works, or use "
        "the device 'cpu'"
    )
    monkeypatch.setattr(ctypes, "CDLL", None)  # looked for once, not at every question
    assert not driver.available()


def test_a_driver_without_a_device_is_an_error() -> None:
    with pytest.raises(DeviceError) as e, driver.use(FakeCuda(devices=0)):
        pass
    assert e.value.message == (
        "cuda: the NVIDIA driver finds no device: cuInit failed with CUDA_ERROR_NO_DEVICE (no CUDA-capable "
        "device is detected); look at nvidia-smi and at CUDA_VISIBLE_DEVICES, or use the device 'cpu'"
    )


def test_errors_have_the_words_of_the_driver(fake: FakeCuda) -> None:
    d = driver.load()
    d.check("cuInit", 0)
    with pytest.raises(DeviceError) as e:
        d.check("cuMemFree", 1, " of 3")
    assert e.value.message == (
        "cuda: cuMemFree failed with CUDA_ERROR_INVALID_VALUE (invalid argument) of 3"
    )
    with pytest.raises(DeviceError, match=r"failed with error 12345 \(error 12345\)"):
        d.check("cuMemFree", 12345)
    with pytest.raises(DeviceError) as e:
        d.check("cuStreamSynchronize", 700)
    assert e.value.message == (
        "cuda: cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was "
        "encountered); a kernel failed while it ran, which ends the use of this device: start the process "
        "again; compute-sanitizer finds the kernel"
    )


def test_an_old_driver_is_an_error_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeCuda, "do_cuTensorMapEncodeTiled")
    with driver.use(FakeCuda()) as d:
        assert d.version == (13, 0)
        assert not d.has("cuTensorMapEncodeTiled")
        with pytest.raises(DeviceError) as e:
            tensor_map(0, "f4", (8,), (4,), (8,))
        assert e.value.message == (
            "cuda: this NVIDIA driver has no cuTensorMapEncodeTiled; install driver 525 (CUDA 12.0) or newer"
        )
        with pytest.raises(AttributeError):
            d.cuNothing  # noqa: B018


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_of_a_process_with_a_driver_is_told_so(fake: FakeCuda) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            driver.load()
        except DeviceError as e:
            os.write(writer, e.message.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    said = os.read(reader, 1000).decode()
    os.close(reader)
    assert said == (
        "cuda: this process was forked from one that had used the GPU, which CUDA does not allow; start "
        "processes by 'spawn' (multiprocessing.set_start_method)"
    )


def test_importing_tessera_looks_for_no_driver() -> None:
    code = """
import ctypes, sys
ctypes.CDLL = None
import tessera
print([m for m in sys.modules if "runtime.cuda." in m and not m.endswith(".driver")])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


# Devices ------------------------------------------------------------------------------------------


def test_a_device_knows_what_it_is(fake: FakeCuda) -> None:
    g = gpu()
    assert gpu(0) is g
    assert (count(), g.index, g.name, g.capability) == (1, 0, "Fake H200", (9, 0))
    assert (g.multiprocessors, g.shared_per_block, g.l2) == (132, 232_448, 50 << 20)
    assert (g.memory_free, g.memory_total) == (256 * MIB, 256 * MIB)
    with pytest.raises(DeviceError) as e:
        Gpu(1)
    assert e.value.message == "cuda: there is no device cuda:1; devices are cuda:0"


def test_a_device_becomes_current_once_a_thread(fake: FakeCuda) -> None:
    g = gpu()
    for _ in range(3):
        g.make_current()
    assert fake.calls.count("cuCtxSetCurrent") == 1
    thread = threading.Thread(target=g.make_current)
    thread.start()
    thread.join()
    g.make_current()
    assert fake.calls.count("cuCtxGetCurrent") == 2


def test_among_several_devices_the_driver_is_asked() -> None:
    with driver.use(FakeCuda(devices=2)) as d:
        one, two = gpu(0), gpu(1)
        for g in (one, two, one):
            g.make_current()
            assert d.library.current == g.context
        d.library.current = 0  # another library
        one.make_current()
        assert d.library.current == one.context


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
    pool, side = g.pool, Stream(g)
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
from tests.cuda_fake import FakeCuda
from tessera.runtime.cuda import driver
from tessera.runtime.cuda.memory import to_device
with driver.use(FakeCuda()):
    class Ring: pass
    ring = Ring()
    ring.me, ring.data = ring, to_device([1, 2, 3])
    held = to_device([4.0])
    import sys
    sys.modules["kept"] = held
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
    assert cores() >= 1


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
    assert e.value.message == "from_dlpack: the tensor is on a device of kind 1, expected CUDA (2)"
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


# Streams and events -------------------------------------------------------------------------------


def test_streams_and_events(fake: FakeCuda) -> None:
    g = gpu()
    one, two = Stream(g), Stream(g)
    fake.busy |= {one.handle}
    event = one.record()
    assert (one.done(), two.done(), event.done()) == (False, True, False)
    two.wait(event)
    two.wait(one)
    assert fake.waits == [(two.handle, one.handle)] * 2
    event.synchronize()
    assert event.done()
    one.synchronize()
    begin, end = Event(g, timing=True), Event(g, timing=True)
    begin.record()
    end.record(one)
    assert begin.elapsed(end) == 1.5
    with pytest.raises(AssertionError, match="without timing"):
        event.elapsed(end)
    del event, begin, end
    assert fake.events == {}
    g.synchronize()
    fake.faults["cuStreamQuery"] = [719]
    with pytest.raises(DeviceError, match="cuStreamQuery failed"):
        one.done()


# Modules and launches -----------------------------------------------------------------------------


def test_a_kernel_knows_what_it_needs(fake: FakeCuda) -> None:
    f = scale(fake)
    assert (f.registers, f.local_bytes, f.static_shared, f.max_threads) == (40, 8, 64, 1024)
    assert f.parameters == ((0, 8), (8, 8), (16, 4), (20, 4))
    assert fake.attributes == {}
    large = f.module.function("scale", 200_000)
    assert fake.attributes == {(large.handle, 8): 200_000}
    with pytest.raises(DeviceError) as e:
        f.module.function("scale", 232_448)
    assert e.value.message == (
        "cuda: kernel 'scale' needs 232512 bytes of shared memory, but a block on cuda:0 (Fake H200) has "
        "232448; use smaller tiles or fewer stages"
    )
    with pytest.raises(DeviceError) as e:
        f.module.function("nothing")
    assert e.value.message == (
        "cuda: cuModuleGetFunction failed with CUDA_ERROR_NOT_FOUND (named symbol not found) for a kernel "
        "'nothing'"
    )


def test_code_that_is_none_is_an_error_with_the_log_of_the_driver(fake: FakeCuda) -> None:
    with pytest.raises(DeviceError) as e:
        Module(b"bad ptx", gpu())
    assert e.value.message == (
        "cuda: cuModuleLoadDataEx failed with CUDA_ERROR_INVALID_IMAGE (device kernel image is invalid) for "
        "7 bytes of code on sm_90: line 1: syntax error"
    )


def program(fake: FakeCuda, n: int = 5) -> tuple[Launcher, list[DeviceArray]]:
    """b = 2 a; c = 3 b of n numbers each, b and c halves of one array."""
    f = scale(fake)
    memory = [to_device(np.arange(n, dtype="f4")), to_device(np.zeros(2 * n, "f4"))]
    b, c = Pointer(1), Pointer(1, 4 * n)
    launches = [
        Launch(f, (1, 1, 1), 128, (b, Pointer(0), i32(n), f32(2))),
        Launch(f, (0, 1, 1), 128, (b, b, i32(n), f32(100))),
        Launch(f, (7, 2, 3), 64, (c, b, i32(n), f32(3)), (2, 1, 1)),
    ]
    return Launcher(launches, gpu()), memory


def test_a_launcher_runs_kernels_with_the_addresses_of_a_run(fake: FakeCuda) -> None:
    launcher, (a, bc) = program(fake)
    assert (launcher.cells, len(launcher.launches)) == (2, 2)  # an empty grid is no launch
    launcher.run([a.ptr, bc.ptr])
    x = np.arange(5)
    np.testing.assert_array_equal(bc.numpy().reshape(2, 5), [2 * x, 6 * x])
    main = gpu().stream.handle
    assert fake.launched == [
        ("scale", (1, 1, 1, 128, 1, 1), 100, None, main),
        ("scale", (7, 2, 3, 64, 1, 1), 100, (4, 2, 1, 1), main),
    ]
    other, side = to_device(np.zeros(10, "f4")), Stream(gpu())
    launcher.run([a.ptr, other.ptr], side)
    np.testing.assert_array_equal(other.numpy().reshape(2, 5), [2 * x, 6 * x])
    assert fake.launched[-1][-1] == side.handle
    with pytest.raises(struct.error):
        launcher.run([a.ptr])


def test_a_launch_that_fails_is_named(fake: FakeCuda) -> None:
    launcher, (a, bc) = program(fake)
    fake.faults["cuLaunchKernelEx"] = [0, 719]
    with pytest.raises(DeviceError) as e:
        launcher.run([a.ptr, bc.ptr])
    assert e.value.message.startswith(
        "cuda: cuLaunchKernelEx failed with CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure) for kernel "
        "'scale', launch 2 of 2: grid (7, 2, 3), 64 threads, 100 bytes of shared memory; a kernel failed"
    )
    launcher.run([a.ptr, bc.ptr])
    fake.faults["cuLaunchKernelEx"] = [2]
    with pytest.raises(
        OutOfMemoryError, match="cuLaunchKernelEx failed with CUDA_ERROR_OUT_OF_MEMORY"
    ):
        launcher.run([a.ptr, bc.ptr])


def test_parameters_that_do_not_fit_a_kernel_are_refused(fake: FakeCuda) -> None:
    f = scale(fake)
    with pytest.raises(
        AssertionError, match=r"got parameters of \(8, 8\) bytes, expected \(8, 8, 4, 4\)"
    ):
        Launcher([Launch(f, (1, 1, 1), 32, (i64(1), Pointer(0)))], gpu())


def test_large_clusters_are_allowed(fake: FakeCuda) -> None:
    f = scale(fake)
    parameters = (Pointer(0), Pointer(0), i32(0), f32(0))
    for size, allowed in ((8, {}), (16, {(f.handle, 14): 1})):
        Launcher([Launch(f, (16, 1, 1), 32, parameters, (size, 1, 1))], gpu())
        assert fake.attributes == allowed


def test_tensor_maps_follow_their_cells(fake: FakeCuda) -> None:
    seen: list[bytes] = []
    fake.kernels["tiles"] = (128, 4), lambda m, n: seen.append(m)
    f = Module(b"fake", gpu()).function("tiles")
    first = tensor_map(4096, "f2", (8, 64), (128, 2), (4, 32), swizzle=64)
    launcher = Launcher([Launch(f, (1, 1, 1), 32, (TensorMap(first, 0, 16), i32(3)))], gpu())
    for base in (4096, 8192, 8192, 512):
        launcher.run([base])
        assert seen[-1] == struct.pack("<Q", base + 16) + first[8:]
    assert fake.calls.count("cuTensorMapReplaceAddress") == 3
    fake.faults["cuTensorMapReplaceAddress"] = [1]
    with pytest.raises(
        DeviceError, match="cuTensorMapReplaceAddress failed with CUDA_ERROR_INVALID_VALUE"
    ):
        launcher.run([64])


@pytest.mark.parametrize("rank", range(1, 6))
def test_a_tensor_map_has_its_axes_turned_round(fake: FakeCuda, rank: int) -> None:
    shape, box = (3, 5, 7, 16, 64)[-rank:], (1, 1, 1, 8, 32)[-rank:]
    strides = [2 * int(np.prod(shape[i + 1 :])) for i in range(rank)]
    data = tensor_map(
        1 << 20,
        ml_dtypes.bfloat16,
        shape,
        strides,
        box,
        swizzle=128,
        l2promotion=256,
        nan_fill=True,
    )
    assert len(data) == 128
    wanted = struct.pack(
        f"<Q5B3x{2 * rank - 1}Q{rank}I",
        1 << 20,
        9,
        0,
        3,
        3,
        1,
        *shape[::-1],
        *strides[-2::-1],
        *box[::-1],
    )
    assert data == wanted.ljust(128, b"\0")


def test_a_tensor_map_that_cannot_be_says_what_it_was_of(fake: FakeCuda) -> None:
    with pytest.raises(DeviceError) as e:
        tensor_map(8, "f4", (8, 64), (256, 4), (4, 32))
    assert e.value.message == (
        "cuda: cuTensorMapEncodeTiled failed with CUDA_ERROR_INVALID_VALUE (invalid argument) for float32 "
        "(8, 64) at 0x8, strides of (256, 4) bytes, box (4, 32), swizzle 0"
    )


# Graphs -------------------------------------------------------------------------------------------


def test_a_graph_does_what_was_captured(fake: FakeCuda) -> None:
    launcher, (a, bc) = program(fake)
    stream = Stream(gpu())
    with Graph.capture(stream) as graph:
        graph.run(launcher, [a.ptr, bc.ptr])
    assert graph.nodes == 2
    np.testing.assert_array_equal(bc.numpy(), np.zeros(10))  # captured, not done
    graph.instantiate()
    graph.launch()
    x = np.arange(5)
    np.testing.assert_array_equal(bc.numpy().reshape(2, 5), [2 * x, 6 * x])
    a2, bc2 = to_device(np.ones(5, "f4")), to_device(np.zeros(10, "f4"))
    graph.update([[a2.ptr, bc.ptr]])
    assert fake.calls.count("cuGraphExecKernelNodeSetParams") == 1  # one kernel reads cell 0
    graph.launch(stream)
    np.testing.assert_array_equal(bc.numpy().reshape(2, 5), [[2] * 5, [6] * 5])
    graph.update([[a2.ptr, bc2.ptr]])
    graph.update([[a2.ptr, bc2.ptr]])
    assert fake.calls.count("cuGraphExecKernelNodeSetParams") == 3
    graph.launch()
    np.testing.assert_array_equal(bc2.numpy(), bc.numpy())
    graph.destroy()
    assert (fake.graphs, fake.executables) == ({}, {})


def test_a_capture_that_fails_ends_the_capture(fake: FakeCuda) -> None:
    stream = Stream(gpu())
    with pytest.raises(ZeroDivisionError), Graph.capture(stream):
        raise ZeroDivisionError
    assert (fake.capturing, fake.graphs) == ({}, {})
    launcher, (a, bc) = program(fake)
    with Graph.capture(stream) as graph:
        launcher.run([a.ptr, bc.ptr], stream)  # may also be captured without being told of
    fake.faults["cuGraphInstantiate"] = [2]
    with pytest.raises(OutOfMemoryError):
        graph.instantiate()
    graph.instantiate()
    fake.faults["cuGraphLaunch"] = [719]
    with pytest.raises(DeviceError, match="cuGraphLaunch failed"):
        graph.launch()
    del graph
    assert (fake.graphs, fake.executables) == ({}, {})


def test_the_main_stream_can_be_captured_too(fake: FakeCuda) -> None:
    """Nothing that dies or is allocated meanwhile may touch the stream."""
    launcher, (a, bc) = program(fake)
    g, side = gpu(), Stream(gpu())
    late, theirs = g.pool.alloc(40 * MIB), from_dlpack(to_device(np.ones(3)))
    late.used_on(side)
    fake.busy.add(side.handle)
    with Graph.capture(g.stream) as graph:
        launcher.run([a.ptr, bc.ptr])
        del late, theirs
        block = g.pool.alloc(20 * MIB)
        assert g.pool.trim() == 0
        with pytest.raises(DeviceError) as e:
            a.numpy()
    assert e.value.message == (
        "cuda: host memory cannot be copied while the main stream is captured; copy before or after"
    )
    assert (g.capturing, g.deferred, block.size) == (False, [], 20 * MIB)
    graph.instantiate()
    graph.launch()
    np.testing.assert_array_equal(bc.numpy()[:5], 2 * np.arange(5))


def test_ranges_are_named_where_the_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Library:
        def nvtxRangePushA(self, name: bytes) -> None:
            calls.append(name)

        def nvtxRangePop(self) -> None:
            calls.append("end")

    monkeypatch.setattr(nvtx, "_library", lambda: None)
    with nvtx.named("step"):
        pass
    monkeypatch.setattr(nvtx, "_library", Library)
    with pytest.raises(KeyError), nvtx.named("step"):
        raise KeyError
    assert calls == [b"step", "end"]
