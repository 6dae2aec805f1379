"""The CUDA runtime on a driver in Python: memory, copies, DLPack, launches, graphs, errors."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.core.errors import DeviceError, OutOfMemoryError
from tessera.runtime.cuda import api, driver, nvtx, replay
from tessera.runtime.cuda.api import API
from tessera.runtime.cuda.device import Gpu, count, gpu
from tessera.runtime.cuda.graph import LaunchGraph
from tessera.runtime.cuda.launch import DeviceLaunch, Launcher, Pointer, TensorMap, f32, i32, i64
from tessera.runtime.cuda.memory import DeviceArray, from_dlpack, to_device
from tessera.runtime.cuda.module import DriverModule
from tessera.runtime.cuda.stream import DriverEvent, DriverStream
from tessera.runtime.cuda.tma import TYPES, tensor_map
from tests.support.fakes.cuda_fake import FakeCuda, scale

RUNS_ON = "numpy"
ROOT = Path(__file__).parents[2]
MIB = 1 << 20


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    library = FakeCuda()
    with driver.use(library):
        yield library


# The driver ---------------------------------------------------------------------------------------


def test_the_table_of_the_driver_is_what_the_fake_has() -> None:
    """A function that nobody stands in for would be tested by nobody."""
    assert {n for n in API.functions if not hasattr(FakeCuda, f"do_{n}")} == set()


def test_without_a_driver_the_error_says_what_was_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(driver.LOADERS, "cuda", driver.DriverLoader("cuda"))
    monkeypatch.setattr(api, "API", replace(API, libraries=("libcuda-nowhere.so.1",)))
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


# Streams and events -------------------------------------------------------------------------------


def test_streams_and_events(fake: FakeCuda) -> None:
    g = gpu()
    one, two = DriverStream(g), DriverStream(g)
    fake.busy |= {one.handle}
    event = one.record()
    assert (one.done(), two.done(), event.done()) == (False, True, False)
    two.wait(event)
    two.wait(one)
    assert fake.waits == [(two.handle, one.handle)] * 2
    event.synchronize()
    assert event.done()
    one.synchronize()
    begin, end = DriverEvent(g, timing=True), DriverEvent(g, timing=True)
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


@pytest.mark.parametrize("shared", [0, 1024, 49_088, 49_089, 65_536, 98_240, 98_305, 232_384])
def test_more_shared_memory_than_a_launch_has_is_asked_for(fake: FakeCuda, shared: int) -> None:
    """48 KB, static and dynamic, are there without asking; the fake refuses a launch like the driver."""
    f = scale(fake).module.function("scale", shared)
    assert fake.attributes == ({(f.handle, 8): shared} if shared + 64 > 48 * 1024 else {})
    assert f.static_shared == 64


def test_code_that_is_none_is_an_error_with_the_log_of_the_driver(fake: FakeCuda) -> None:
    with pytest.raises(DeviceError) as e:
        DriverModule(b"bad ptx", gpu())
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
        DeviceLaunch(f, (1, 1, 1), 128, (b, Pointer(0), i32(n), f32(2))),
        DeviceLaunch(f, (0, 1, 1), 128, (b, b, i32(n), f32(100))),
        DeviceLaunch(f, (7, 2, 3), 64, (c, b, i32(n), f32(3)), (2, 1, 1)),
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
    other, side = to_device(np.zeros(10, "f4")), DriverStream(gpu())
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
        Launcher([DeviceLaunch(f, (1, 1, 1), 32, (i64(1), Pointer(0)))], gpu())


def test_large_clusters_are_allowed(fake: FakeCuda) -> None:
    f = scale(fake)
    parameters = (Pointer(0), Pointer(0), i32(0), f32(0))
    for size, allowed in ((8, {}), (16, {(f.handle, 14): 1})):
        Launcher([DeviceLaunch(f, (16, 1, 1), 32, parameters, (size, 1, 1))], gpu())
        assert fake.attributes == allowed


def test_tensor_maps_follow_their_cells(fake: FakeCuda) -> None:
    seen: list[bytes] = []
    fake.kernels["tiles"] = (128, 4), lambda m, n: seen.append(m)
    f = DriverModule(b"fake", gpu()).function("tiles")
    first = tensor_map(4096, "f2", (8, 64), (128, 2), (4, 32), swizzle=64)
    launcher = Launcher([DeviceLaunch(f, (1, 1, 1), 32, (TensorMap(first, 0, 16), i32(3)))], gpu())
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
    stream = DriverStream(gpu())
    with LaunchGraph.capture(stream) as graph:
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


@pytest.mark.parametrize("version", [12020, 13000])
def test_a_launch_begins_early_where_it_waits_for_the_one_before_it_alone(
    fake: FakeCuda, version: int
) -> None:
    fake.version = version
    launcher, (a, bc) = program(fake)
    first, second = (replace(x, early=True) for x in launcher.launches)
    launches = [first, second, second, replace(first, early=False), second, second, second]
    waits: list[tuple[int, ...]] = [(), (0,), (0,), (2,), (1, 3), (4,), ()]
    for given, early in ((waits, [1, 5]), (None, [1, 2, 4, 5, 6])):
        many, begun, made = Launcher(launches, gpu()), len(fake.launched), len(fake.early)
        with LaunchGraph.capture(DriverStream(gpu())) as graph:
            graph.run(many, [a.ptr, bc.ptr], given)
        (nodes,) = (x for g, x in fake.graphs.items() if g == graph._graph)
        assert fake.early[made:] == [nodes[i] for i in early if version >= 12030]
        for node in fake.early[made:]:
            assert fake.behind[node] == (nodes[nodes.index(node) - 1],)
        assert [x[3] for x in fake.launched[begun:]] == [
            x.cluster and (4, *x.cluster) for x in launches
        ]
        before = len(fake.early)
        many.run([a.ptr, bc.ptr])  # outside of graphs everything ends before the next begins
        assert len(fake.early) == before


def test_a_capture_that_fails_ends_the_capture(fake: FakeCuda) -> None:
    stream = DriverStream(gpu())
    with pytest.raises(ZeroDivisionError), LaunchGraph.capture(stream):
        raise ZeroDivisionError
    assert (fake.capturing, fake.graphs) == ({}, {})
    launcher, (a, bc) = program(fake)
    with LaunchGraph.capture(stream) as graph:
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
    g, side = gpu(), DriverStream(gpu())
    late, theirs = g.pool.alloc(40 * MIB), from_dlpack(to_device(np.ones(3)))
    late.used_on(side)
    fake.busy.add(side.handle)
    with LaunchGraph.capture(g.stream) as graph:
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


def test_launches_of_which_few_have_other_addresses_are_the_same_graph(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FEWEST", 2)
    launcher, (_, bc) = program(fake)
    first, second = launcher.launches
    many = replay.Replayed([first, *[second] * 7], gpu())  # one of eight reads cell 0
    rng, held = np.random.default_rng(0), []
    for i in range(6):
        held.append(to_device(rng.standard_normal(5).astype("f4")))  # the caller keeps them
        many.run([held[-1].ptr, bc.ptr])
        x = held[-1].numpy()
        np.testing.assert_array_equal(bc.numpy().reshape(2, 5), [2 * x, 3 * (2 * x)])
        assert fake.calls.count("cuGraphLaunch") == i
    assert fake.calls.count("cuGraphExecKernelNodeSetParams") == 4
    assert (len(fake.graphs), len(many._known)) == (1, 1)
    other = to_device(np.zeros(10, "f4"))
    many.run([held[0].ptr, other.ptr])  # all launches have other addresses: no graph of the past
    assert fake.calls.count("cuGraphLaunch") == 5
    np.testing.assert_array_equal(other.numpy()[:5], 2 * held[0].numpy())


def test_launches_that_come_again_with_their_addresses_are_a_graph(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FEWEST", 2)
    launcher, (a, bc) = program(fake)
    again = replay.Replayed(launcher.launches, gpu())
    other = to_device(np.ones(5, "f4")), to_device(np.zeros(10, "f4"))
    x = np.arange(5)
    for graphs, (p, q), want in [
        (0, (a, bc), x), (1, (a, bc), x), (2, (a, bc), x), (2, other, 1 + 0 * x),
        (3, other, 1 + 0 * x), (4, (a, bc), x),
    ]:  # fmt: skip
        again.run([p.ptr, q.ptr])
        np.testing.assert_array_equal(q.numpy().reshape(2, 5), [2 * want, 6 * want])
        assert fake.calls.count("cuGraphLaunch") == graphs
    assert len(fake.graphs) == 2
    arrays = [to_device(np.zeros(10, "f4")) for _ in range(3 * replay._MOST)]
    for new in arrays:  # addresses that do not come again are forgotten
        again.run([a.ptr, new.ptr])
        np.testing.assert_array_equal(new.numpy().reshape(2, 5), [2 * x, 6 * x])
    assert len(again._known) == replay._MOST


def test_addresses_that_are_always_new_are_changed_in_one_graph(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FEWEST", 2)
    launcher, (a, _) = program(fake)
    always = replay.Replayed(launcher.launches, gpu())
    kept = [to_device(np.zeros(10, "f4")) for _ in range(3 * replay._MOST)]
    x = a.numpy()
    for new in kept:  # the caller keeps every result, which all launches write
        always.run([a.ptr, new.ptr])
        np.testing.assert_array_equal(new.numpy().reshape(2, 5), [2 * x, 3 * (2 * x)])
    assert len(fake.graphs) == 1
    assert fake.calls.count("cuGraphLaunch") == 2 * replay._MOST


def test_every_dtype_has_its_number_in_a_tensor_map() -> None:
    """CUtensorMapDataType of cuda.h; what it lacks is copied as a number of the same width."""
    order = ["u1", "u2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ml_dtypes.bfloat16]
    other = {
        "i1": 0,
        "?": 0,
        ml_dtypes.float8_e4m3fn: 0,
        ml_dtypes.float8_e5m2: 0,
        "i2": 1,
        "c8": 4,
    }
    want = {np.dtype(t): code for code, t in enumerate(order)}
    assert want | {np.dtype(t): code for t, code in other.items()} == TYPES
