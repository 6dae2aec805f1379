"""The CUDA runtime on a device: copies, launches, graphs, other libraries, and errors that leave it
usable.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.core.errors import DeviceError, OutOfMemoryError
from tessera.runtime.cuda.device import count, gpu
from tessera.runtime.cuda.driver import available
from tessera.runtime.cuda.graph import LaunchGraph
from tessera.runtime.cuda.launch import DeviceLaunch, Launcher, Pointer, TensorMap, f32, i32, i64
from tessera.runtime.cuda.memory import DeviceArray, empty, from_dlpack, to_device
from tessera.runtime.cuda.module import DriverFunction, DriverModule
from tessera.runtime.cuda.staging import CHUNK
from tessera.runtime.cuda.stream import DriverEvent, DriverStream
from tessera.runtime.cuda.tma import tensor_map
from tests.support.cases.cuda_cases import every_dtype
from tests.support.cases.cuda_kernels import PLAIN, TILE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="no CUDA device here"),
]
RUNS_ON = "numpy"
ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def function(name: str, shared: int = 0) -> DriverFunction:
    return DriverModule(PLAIN.encode(), gpu()).function(name, shared)


def scaling(n: int, *factors: float) -> Launcher:
    """Cell i + 1 is cell i times a factor."""
    f = function("scale")
    launches = [
        DeviceLaunch(f, (-(-n // 256), 1, 1), 256, (Pointer(i + 1), Pointer(i), i32(n), f32(k)))
        for i, k in enumerate(factors)
    ]
    return Launcher(launches, gpu())


def spinning(milliseconds: float) -> Launcher:
    """A kernel that takes this long and then writes 1 to cell 0."""
    time = i64(int(milliseconds * 1e6))
    return Launcher([DeviceLaunch(function("spin"), (1, 1, 1), 1, (Pointer(0), time))], gpu())


def sample(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Any bytes, since copies and views must keep them all; a bool is 0 or 1."""
    data = np.random.default_rng(1).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    if dtype == "?":
        data &= 1
    return data.view(dtype).reshape(shape)


def in_a_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def test_the_device_is_one_that_we_know() -> None:
    g = gpu()
    assert count() >= 1
    assert g.driver.version >= (12, 0)
    assert g.capability >= (8, 0)
    assert g.multiprocessors > 50
    assert g.shared_per_block > 48 << 10
    assert g.l2 > MIB
    assert 0 < g.memory_free <= g.memory_total
    assert g.name


@pytest.mark.parametrize(
    "n", [0, 1, 3, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 10 * CHUNK + 7, 3 * 10**9]
)
def test_bytes_come_back_as_they_were(n: int) -> None:
    x = np.arange(-(-n // 8), dtype=np.uint64).view(np.uint8)[:n]
    y = to_device(x)
    assert y.ptr % 512 == 0
    assert np.array_equal(y.numpy(), x)
    assert np.array_equal(y.copy().numpy(), x)
    y.memset(7)
    assert np.all(y.numpy() == 7)


@every_dtype
def test_every_dtype_comes_back(dtype: Any) -> None:
    for shape in ((), (0, 2), (3,), (5, 7, 2)):
        x = sample(shape, dtype)
        y = to_device(x).numpy()
        assert (y.dtype, y.shape, y.tobytes()) == (x.dtype, x.shape, x.tobytes())


def test_many_small_arrays_at_once() -> None:
    arrays = [np.full(300, i) for i in range(5000)]  # more than all pinned buffers hold
    held = [to_device(a) for a in arrays]
    assert all(np.array_equal(d.numpy(), a) for a, d in zip(arrays, held, strict=True))


def test_launches_in_a_row_and_in_a_graph() -> None:
    n, factors = 100_003, (2.0, 3.0, 0.5, 4.0)
    x = np.arange(n, dtype="f4")
    launcher = scaling(n, *factors)
    arrays = [to_device(x), *(empty((n,), "f4") for _ in factors)]
    launcher.run([a.ptr for a in arrays])
    for a, by in zip(arrays[1:], np.cumprod(factors), strict=True):
        np.testing.assert_array_equal(a.numpy(), x * np.float32(by))
    stream = DriverStream(gpu())
    for a in arrays[1:]:
        a.memset()
    with LaunchGraph.capture(stream) as graph:
        graph.run(launcher, [a.ptr for a in arrays])
    assert graph.nodes == len(factors)
    graph.instantiate()
    assert not arrays[-1].numpy().any()
    graph.launch()
    np.testing.assert_array_equal(arrays[-1].numpy(), 12 * x)
    other = [to_device(x + 1), *(empty((n,), "f4") for _ in factors)]
    graph.update([[a.ptr for a in other]])
    graph.launch()
    np.testing.assert_array_equal(other[-1].numpy(), 12 * (x + 1))
    np.testing.assert_array_equal(arrays[-1].numpy(), 12 * x)


def test_a_captured_run_that_the_graph_was_not_told_of() -> None:
    launcher, x = scaling(8, 2.0), to_device(np.ones(8, "f4"))
    out, stream = to_device(np.zeros(8, "f4")), DriverStream(gpu())
    stream.wait(gpu().stream)
    with LaunchGraph.capture(stream) as graph:
        launcher.run([x.ptr, out.ptr], stream)
    graph.instantiate()
    graph.launch()
    np.testing.assert_array_equal(out.numpy(), np.full(8, 2))


def test_memory_is_used_again_in_the_order_of_the_stream() -> None:
    """What a dead array held is still read by kernels that were launched before it died."""
    n = 4 * MIB
    launcher, out = scaling(n, 1.0), [empty((n,), "f4") for _ in range(20)]
    for i, target in enumerate(out):
        x = to_device(np.full(n, i, "f4"))
        launcher.run([x.ptr, target.ptr])
        del x
    assert [float(t.numpy()[-1]) for t in out] == list(range(20))


def test_another_stream_keeps_its_memory() -> None:
    g, flag = gpu(), to_device(np.zeros(1, "i4"))
    side, spin = DriverStream(g), spinning(30)
    side.wait(g.stream)
    spin.run([flag.ptr], side)
    flag.owner.used_on(side)
    ptr = flag.ptr
    del flag
    fresh = to_device(np.zeros(1, "i4"))  # not yet the memory that the kernel will write
    assert fresh.ptr != ptr
    side.synchronize()
    assert int(fresh.numpy()[0]) == 0


def test_streams_and_events_take_their_time() -> None:
    g, flag = gpu(), to_device(np.zeros(1, "i4"))
    side, spin = DriverStream(g), spinning(20)
    spin.run([flag.ptr], side)  # the first launch loads the kernel
    side.synchronize()
    flag.memset()
    side.wait(g.stream)
    begin, end = DriverEvent(g, timing=True), DriverEvent(g, timing=True)
    begin.record(side)
    spin.run([flag.ptr], side)
    end.record(side)
    assert not end.done()
    assert not side.done()
    g.stream.wait(side)
    assert int(flag.numpy()[0]) == 1  # the main stream has waited
    assert side.done()
    assert 19 < begin.elapsed(end) < 200


def test_dynamic_shared_memory_of_all_that_there_is() -> None:
    most = gpu().shared_per_block
    n = most // 4
    launcher = Launcher(
        [DeviceLaunch(function("stage", most), (1, 1, 1), 256, (Pointer(0), Pointer(1), i32(n)))],
        gpu(),
    )
    x, out = to_device(np.arange(n, dtype="f4")), empty((n,), "f4")
    launcher.run([out.ptr, x.ptr])
    np.testing.assert_array_equal(out.numpy(), np.arange(n))


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_clusters(size: int) -> None:
    out = empty((32,), "i4")
    Launcher(
        [DeviceLaunch(function("ranks"), (32, 1, 1), 32, (Pointer(0),), (size, 1, 1))], gpu()
    ).run([out.ptr])
    np.testing.assert_array_equal(out.numpy(), np.arange(32) % size)


def test_a_tile_by_its_descriptor() -> None:
    f = DriverModule(TILE.encode(), gpu()).function("tile")
    x = np.arange(40 * 32, dtype="f4").reshape(40, 32)
    one, two, out = to_device(x), to_device(-x), empty((8, 16), "f4")
    data = tensor_map(one.ptr, "f4", x.shape, (128, 4), (8, 16))

    def tile(row: int, column: int, source: DeviceArray) -> Any:
        parameters = (TensorMap(data, 0), Pointer(1), i32(row), i32(column))
        Launcher([DeviceLaunch(f, (1, 1, 1), 128, parameters)], gpu()).run([source.ptr, out.ptr])
        return out.numpy()

    np.testing.assert_array_equal(tile(8, 16, one), x[8:16, 16:])
    np.testing.assert_array_equal(tile(3, 4, two), -x[3:11, 4:20])
    np.testing.assert_array_equal(tile(36, 0, one)[4:], np.zeros((4, 16)))  # out of bounds


def test_threads_launch_at_once() -> None:
    n, faults = 10_000, []
    launcher = scaling(n, 2.0, 2.0)

    def work(i: int) -> None:
        for _ in range(50):
            arrays = [to_device(np.full(n, i, "f4")), empty((n,), "f4"), empty((n,), "f4")]
            launcher.run([a.ptr for a in arrays])
            if not np.all(arrays[-1].numpy() == 4 * i):
                faults.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert faults == []


# Other libraries ----------------------------------------------------------------------------------


@every_dtype
def test_dlpack_with_torch(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    x = sample((3, 5), dtype)
    ours = to_device(x)
    try:
        theirs = torch.from_dlpack(ours)
    except (BufferError, RuntimeError) as e:
        if "float8" not in x.dtype.name:
            raise
        pytest.skip(f"this torch does not take {x.dtype}: {e}")
    assert theirs.data_ptr() == ours.ptr
    back = from_dlpack(theirs)
    assert (back.ptr, back.dtype, back.shape) == (ours.ptr, x.dtype, (3, 5))
    assert theirs.cpu().view(torch.uint8).numpy().tobytes() == x.tobytes()
    assert back.numpy().tobytes() == x.tobytes()


def test_torch_and_we_wait_for_each_other() -> None:
    torch = pytest.importorskip("torch")
    n = 8 * MIB
    launcher, x = scaling(n, 3.0), torch.ones(n, device="cuda")
    for i in range(1, 20):
        y = empty((n,), "f4")
        source = from_dlpack(x * i)  # torch's memory is kept until our kernel has read it
        launcher.run([source.ptr, y.ptr])
        del source
        z = torch.from_dlpack(y)  # and ours until torch's have
        del y
        total = (z + 1).sum()
        del z
        assert float(total) == n * (3 * i + 1)


def test_torch_reads_the_array_interface() -> None:
    torch = pytest.importorskip("torch")
    x = to_device(np.arange(6, dtype="f4").reshape(2, 3))
    gpu().synchronize()  # torch does not look at the stream of an array interface
    assert torch.as_tensor(x, device="cuda").sum().item() == 15


@pytest.mark.parametrize("dtype", ["?", "i4", "f2", "f4", "c16"])
def test_dlpack_with_cupy(dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    x = sample((3, 5), dtype)
    ours = to_device(x)
    theirs = cupy.from_dlpack(ours)
    assert theirs.data.ptr == ours.ptr
    assert theirs.get().tobytes() == x.tobytes()
    assert from_dlpack(theirs).numpy().tobytes() == x.tobytes()
    assert cupy.asarray(ours).get().tobytes() == x.tobytes()


# Errors -------------------------------------------------------------------------------------------


def still_works() -> None:
    launcher, x = scaling(100, 2.0), to_device(np.ones(100, "f4"))
    out = empty((100,), "f4")
    launcher.run([x.ptr, out.ptr])
    np.testing.assert_array_equal(out.numpy(), np.full(100, 2))


def test_code_that_is_none() -> None:
    with pytest.raises(
        DeviceError, match="cuModuleLoadDataEx failed with CUDA_ERROR_INVALID_IMAGE"
    ):
        DriverModule(b"\x7fELF but not for long", gpu())
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_INVALID_PTX .* on sm_\d+: ptxas .*line \d+"):
        DriverModule(
            PLAIN.replace("ld.param.u32 %r0, [n];", "ld.param.u32 %r0, [m];").encode(), gpu()
        )
    with pytest.raises(DeviceError, match=r"CUDA_ERROR_NOT_FOUND .* for a kernel 'nothing'"):
        function("nothing")
    still_works()


def test_launches_that_cannot_be() -> None:
    with pytest.raises(DeviceError, match="bytes of shared memory, but a block on cuda:0"):
        function("stage", gpu().shared_per_block + 4)
    out = empty((4,), "i4")
    with pytest.raises(
        DeviceError, match=r"CUDA_ERROR_INVALID_VALUE .* for kernel 'ranks', launch 1 of 1"
    ):
        Launcher([DeviceLaunch(function("ranks"), (1, 1, 1), 4096, (Pointer(0),))], gpu()).run(
            [out.ptr]
        )
    with pytest.raises(AssertionError, match=r"got parameters of \(8,\) bytes"):
        Launcher([DeviceLaunch(function("scale"), (1, 1, 1), 32, (Pointer(0),))], gpu())
    still_works()


def test_tensor_maps_that_cannot_be() -> None:
    x = empty((8, 64), "f4")
    with pytest.raises(
        DeviceError, match="cuTensorMapEncodeTiled failed with CUDA_ERROR_INVALID_VALUE"
    ):
        tensor_map(x.ptr + 4, "f4", (8, 64), (256, 4), (4, 32))


def test_more_memory_than_there_is() -> None:
    g = gpu()
    kept = to_device(np.arange(10))
    with pytest.raises(
        OutOfMemoryError, match=r"GiB: .* GiB of .* GiB are free and tensors of this"
    ):
        empty((g.memory_total + MIB,), "u1")
    np.testing.assert_array_equal(kept.numpy(), np.arange(10))
    del kept
    half = empty((g.memory_free // 2,), "u1")
    size = half.nbytes
    del half
    assert g.pool.held >= size
    empty((int(size * 1.5),), "u1")  # what is kept goes back first
    g.pool.trim()
    assert g.pool.held < size
    still_works()


def test_a_kernel_that_fails_is_told_with_what_to_do() -> None:
    done = in_a_process("""
from tests.runtime.test_cuda_device import *
x = to_device(np.ones(8, "f4"))
scaling(8, 2.0).run([x.ptr, 64])
try:
    x.numpy()
except DeviceError as e:
    print(e.message)
""")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout, done.stdout + done.stderr
    assert "start the process again; compute-sanitizer finds the kernel" in done.stdout
    assert done.returncode == 0


def test_arrays_that_live_until_the_end_do_no_harm() -> None:
    done = in_a_process("""
from tests.runtime.test_cuda_device import *
class Ring: pass
ring = Ring(); ring.me = ring
ring.x = to_device(np.ones(1000)); ring.stream = DriverStream(gpu()); ring.f = function("scale")
ring.launcher = scaling(8, 2.0)
with LaunchGraph.capture(ring.stream) as ring.graph:
    ring.launcher.run([ring.x.ptr, ring.x.ptr], ring.stream)
ring.graph.instantiate()
ring.lent, ring.taken = ring.x.__dlpack__(), from_dlpack(ring.x)
sys.modules["kept"] = ring
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_no_device_is_an_error_that_says_where_to_look() -> None:
    done = in_a_process(
        """
from tessera.core.errors import DeviceError
from tessera.runtime.cuda.driver import available, load
print(available())
try:
    load()
except DeviceError as e:
    print(e.message)
""",
        CUDA_VISIBLE_DEVICES="",
    )
    assert done.stdout.startswith("False\ncuda: the NVIDIA driver finds no device: ")
    assert "CUDA_VISIBLE_DEVICES" in done.stdout
