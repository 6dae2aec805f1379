"""AMD GPUs without one: the HIP runtime in Python runs whole programs, its calls as its header declares
them.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.cli import doctor
from tessera.compile.gpu import bind
from tessera.core.dtype import bf16, f32
from tessera.core.errors import DeviceError, OperandError, OutOfMemoryError
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.runtime.cuda import driver, replay
from tessera.runtime.cuda.device import Gpu, gpu
from tessera.runtime.cuda.graph import LaunchGraph
from tessera.runtime.cuda.launch import DeviceLaunch, Launcher, Pointer, i32
from tessera.runtime.cuda.launch import f32 as float_value
from tessera.runtime.cuda.memory import DeviceArray, from_dlpack, to_device
from tessera.runtime.cuda.module import DriverModule
from tessera.runtime.cuda.stream import DriverEvent, DriverStream
from tessera.runtime.hip import api
from tessera.runtime.hip.api import API
from tessera.runtime.triton_builder import BuiltCode
from tests.support.fakes.cuda_fake import scale
from tests.support.fakes.gpu_fake import launching_gpus
from tests.support.fakes.hip_fake import FakeHip, as_ctypes, declared
from tests.support.runners.tolerance import assert_close

RUNS_ON = "numpy"
MIB = 1 << 20


@pytest.fixture
def fake() -> Iterator[FakeHip]:
    library = FakeHip()
    with driver.use(library, "hip"):
        yield library


@pytest.fixture
def hip() -> Iterator[Any]:
    with launching_gpus("hip") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that some ops run on the host
        yield library


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


# The driver


def test_the_table_has_the_arguments_that_the_header_declares() -> None:
    """By size: integers and addresses travel in the same registers."""
    known = declared()
    assert {f.name for f in API.functions.values()} == set(known)
    for ours, f in API.functions.items():
        assert [*map(ctypes.sizeof, f.types)] == [*map(ctypes.sizeof, as_ctypes(known[f.name]))], (
            ours
        )
        assert hasattr(FakeHip, f"do_{ours}"), ours


def test_without_a_driver_the_error_says_what_was_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(driver.LOADERS, "hip", driver.DriverLoader("hip"))
    nowhere = ("libamdhip64-nowhere.so.7", "libamdhip64-nowhere.so")
    monkeypatch.setattr(api, "API", replace(API, libraries=nowhere))
    assert not driver.available("hip")
    with pytest.raises(DeviceError) as e:
        driver.load("hip")
    assert e.value.message == (
        "hip: there is no AMD driver here (libamdhip64-nowhere.so.7: libamdhip64-nowhere.so.7: cannot open "
        "shared object file: No such file or directory); install ROCm, so that rocminfo works, or use the "
        "device 'cpu'"
    )


def test_without_a_device_tensors_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError) as e, driver.use(FakeHip(devices=0), "hip"):
        pass
    assert e.value.message == (
        "hip: the AMD driver finds no device: hipInit failed with hipErrorNoDevice (no ROCm-capable device "
        "is "
        "detected); look at rocminfo and at HIP_VISIBLE_DEVICES, or use the device 'cpu'"
    )
    monkeypatch.setattr(driver.LOADERS["hip"], "absent", e.value.message)
    for use in (
        ts.tensor(1.0).to,
        lambda d: ts.tensor(1.0, device=d),
        ts.jit(op.exp, target="hip"),
    ):
        with pytest.raises(DeviceError, match="hip: the AMD driver finds no device"):
            use("hip" if not isinstance(use, ts.lang.jit.Jitted) else ts.tensor(1.0))


def test_doctor_names_the_target(hip: FakeHip, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._target("hip") == {"works": True, "note": "Triton, on an AMD GPU"}
    monkeypatch.setitem(driver.LOADERS, "hip", driver.DriverLoader("hip"))
    monkeypatch.setattr(api, "API", replace(API, libraries=("libamdhip64-nowhere.so",)))
    report = doctor.examine()
    assert report["targets"]["hip"] == {
        "works": False, "note": "hip: there is no AMD driver here",
    }  # fmt: skip


def test_errors_have_the_words_of_the_driver(fake: FakeHip) -> None:
    d = driver.load("hip")
    with pytest.raises(DeviceError) as e:
        d.check("cuStreamSynchronize", 700)
    assert e.value.message == (
        "hip: hipStreamSynchronize failed with hipErrorIllegalAddress (an illegal memory access was "
        "encountered); a kernel failed while it ran, which ends the use of this device: start the process "
        "again; rocgdb finds the kernel"
    )
    with pytest.raises(DeviceError) as e:
        DriverModule(b"another", gpu(0, "hip"))
    assert e.value.message == (
        "hip: hipModuleLoadDataEx failed with hipErrorInvalidImage (device kernel image is invalid) for 7 "
        "bytes "
        "of code on gfx942"
    )
    with pytest.raises(DeviceError) as e:
        scale(fake).module.function("nothing")
    assert e.value.message == (
        "hip: hipModuleGetFunction failed with hipErrorNotFound (named symbol not found) for a kernel "
        "'nothing'"
    )


def test_an_old_driver_is_an_error_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeHip, "do_hipGetDeviceProperties")
    with driver.use(FakeHip(), "hip") as d:
        assert d.version == (7, 1)
        with pytest.raises(DeviceError) as e:
            gpu(0, "hip")
        assert e.value.message == (
            "hip: this AMD driver has no hipGetDeviceProperties; install ROCm 6.0 or newer"
        )
        with pytest.raises(AttributeError):
            d.cuTensorMapEncodeTiled  # noqa: B018


def test_out_of_memory_says_how_much_there_is(fake: FakeHip) -> None:
    held = gpu(0, "hip").pool.alloc(100 * MIB)
    with pytest.raises(OutOfMemoryError) as e:
        gpu(0, "hip").pool.alloc(200 * MIB)
    assert e.value.message == (
        "hip: hipMalloc failed for 200.0 MiB: 156.0 MiB of 256.0 MiB are free and tensors of this process "
        "hold "
        "100.0 MiB; let go of tensors or use smaller ones"
    )
    assert held.size == 100 * MIB


# The runtime


def test_a_device_knows_what_it_is(fake: FakeHip) -> None:
    g = gpu(0, "hip")
    assert gpu(0, "hip") is g
    assert (str(g), g.architecture, g.capability) == ("hip:0 (Fake MI300X)", "gfx942", (9, 4))
    assert g.target == ("hip", "gfx942", 64)
    assert (g.multiprocessors, g.shared_per_block, g.l2) == (304, 65_536, 4 << 20)
    with pytest.raises(DeviceError) as e:
        Gpu(1, "hip")
    assert e.value.message == "hip: there is no device hip:1; devices are hip:0"
    fake.architecture = "?"
    with pytest.raises(DeviceError) as e:
        Gpu(0, "hip")
    assert e.value.message == (
        "hip: hipGetDeviceProperties says that hip:0 is a b'?', expected a name such as gfx942; this ROCm "
        "lays "
        "properties out otherwise than ROCm 6 and 7 do"
    )


def test_launches_and_graphs(fake: FakeHip, monkeypatch: pytest.MonkeyPatch) -> None:
    g, f = gpu(0, "hip"), scale(fake)
    a, b = to_device(np.arange(5, dtype="f4"), g), to_device(np.zeros(5, "f4"), g)
    one = DeviceLaunch(f, (3, 2, 1), 256, (Pointer(1), Pointer(0), i32(5), float_value(2)))
    launcher = Launcher([one, one], g)
    launcher.run([a.ptr, b.ptr])
    assert fake.launched == [("scale", (3, 2, 1, 256, 1, 1), 100, None, g.stream.handle)] * 2
    np.testing.assert_array_equal(b.numpy(), 2 * np.arange(5))
    aside = DriverStream(g)
    with LaunchGraph.capture(aside) as graph:
        graph.run(launcher, [a.ptr, b.ptr])
    assert graph.nodes == 2
    graph.instantiate()
    c = to_device(np.ones(5, "f4"), g)
    graph.update([[c.ptr, b.ptr]])
    graph.launch()
    np.testing.assert_array_equal(b.numpy(), np.full(5, 2))
    fake.faults["cuLaunchKernelEx"] = [0, 719]
    with pytest.raises(DeviceError) as e:
        launcher.run([a.ptr, b.ptr])
    assert e.value.message.startswith(
        "hip: hipModuleLaunchKernel failed with hipErrorLaunchFailure (unspecified launch failure) for "
        "kernel "
        "'scale', launch 2 of 2: grid (3, 2, 1), 256 threads, 100 bytes of shared memory; a kernel failed"
    )
    monkeypatch.setattr(replay, "FEWEST", 2)
    again = replay.Replayed([one, one], g)
    for _ in range(3):
        again.run([a.ptr, b.ptr])
    assert fake.calls.count("cuGraphLaunch") == 3  # one of them above
    with pytest.raises(AssertionError, match="has no clusters"):
        Launcher([replace(one, cluster=(2, 1, 1))], g)


def test_a_kernel_needs_no_leave_for_shared_memory(fake: FakeHip) -> None:
    f = scale(fake).module.function("scale", 60_000)
    assert (fake.attributes, f.parameters) == ({}, None)  # nothing set, and nothing to compare with
    with pytest.raises(DeviceError) as e:
        f.module.function("scale", 65_536)
    assert e.value.message == (
        "hip: kernel 'scale' needs 65600 bytes of shared memory, but a block on hip:0 (Fake MI300X) has "
        "65536; "
        "use smaller tiles or fewer stages"
    )


def test_streams_events_and_memory(fake: FakeHip) -> None:
    g = gpu(0, "hip")
    side, x = DriverStream(g), to_device(np.arange(6), g)
    side.wait(g.stream)
    begin, end = DriverEvent(g, timing=True), DriverEvent(g, timing=True)
    begin.record()
    end.record(side)
    end.synchronize()
    assert (begin.elapsed(end), side.done()) == (1.5, True)
    y = x.copy()
    x.memset(0)
    np.testing.assert_array_equal(y.numpy(), np.arange(6))
    del x
    g.synchronize()
    assert g.pool.trim() == 0  # y is in the segment
    assert (g.memory_free, g.memory_total) == (fake.total - fake.taken, fake.total)


def test_memory_goes_to_other_libraries_as_that_of_rocm(fake: FakeHip) -> None:
    x = to_device(np.arange(6), gpu(0, "hip"))
    assert x.__dlpack_device__() == (10, 0)
    assert not hasattr(x, "__cuda_array_interface__")
    y = from_dlpack(x)
    assert (y.ptr, y.gpu) == (x.ptr, x.gpu)
    assert "hip:0" in repr(y)
    del y
    assert fake.waits[-1] == (None, x.gpu.stream.handle)  # the null stream comes after ours


# Programs


def test_tensors_live_where_they_are_put(hip: FakeHip) -> None:
    x = normal(6, 5)
    t = ts.tensor(x).to("hip")
    assert str(t.device) == "hip:0"
    assert [str(d) for d in ts.devices()] == ["cpu:0", "hip:0"]
    np.testing.assert_array_equal((t + 1.0).numpy(), x + 1)
    np.testing.assert_array_equal(t[2:4].numpy(), x[2:4])
    np.testing.assert_array_equal(t.T.numpy(), x.T)
    assert ts.from_dlpack(t.storage).device == t.device
    assert t.__dlpack_device__() == (10, 0)
    with ts.device("hip:0"):
        assert ts.tensor(x).device == t.device
    with ts.device(ts.gpu):
        assert ts.tensor(x).device == t.device
    with pytest.raises(DeviceError, match="no device hip:3"):
        t.to("hip:3")


def test_programs_run_through_the_driver(hip: FakeHip) -> None:
    w, x = normal(24, 17), normal(33, 24)

    def loss(w: Any, x: Any) -> Any:
        return op.sum(op.softmax(op.gelu(x @ w)) ** 2)

    f = ts.jit(ts.value_and_grad(loss))
    want = f(ts.tensor(w), ts.tensor(x))
    for _ in range(3):
        got = f(ts.tensor(w).to("hip"), ts.tensor(x).to("hip"))
        for a, b in zip(got, want, strict=True):
            assert a.device.kind == "hip"
            assert_close(a.numpy(), b.numpy(), times=4)
    with launching_gpus("cuda") as cuda:
        f(ts.tensor(w).to("cuda"), ts.tensor(x).to("cuda"))
    there, here = ([s[3] for _, s, *_ in fake.launched] for fake in (hip, cuda))
    assert there == [2 * n for n in here] * 3  # waves of 64 threads
    assert {shared for _, _, shared, _, _ in hip.launched} == {1000}


def test_a_program_whose_addresses_come_again_is_a_graph(
    hip: FakeHip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "FEWEST", 2)
    x = ts.tensor(normal(7, 9)).to("hip")

    @ts.jit
    def f(x: Any) -> Any:
        for _ in range(3):
            (x,) = op.barrier(op.softmax(x) * 2.0)
        return x

    for _ in range(5):
        y = f(x)
        assert_close(y.numpy(), f(ts.tensor(x.numpy())).numpy())
        del y
    assert hip.calls.count("cuGraphLaunch") >= 2


def test_attention_in_bf16_by_its_own_kernels(hip: FakeHip) -> None:
    q, k, v = (ts.tensor(normal(1, 2, 24, 16, seed=i)) for i in range(3))

    def f(q: Any, k: Any, v: Any) -> Any:
        y = op.attention(q.astype(bf16), k.astype(bf16), v.astype(bf16), causal=True)
        return op.sum(y.astype(f32) ** 2)

    there = ts.jit(ts.grad(f))(*(x.to("hip") for x in (q, k, v)))
    here = ts.jit(ts.grad(f))(q, k, v)
    size = float(np.abs(here.numpy()).max())
    np.testing.assert_allclose(there.numpy() / size, here.numpy() / size, atol=0.03)
    assert any(name.startswith("attention") for name, *_ in hip.launched)


def test_targets_and_pages_know_the_device(hip: FakeHip, tmp_path: Any) -> None:
    f = ts.jit(lambda x: op.softmax(x) + 1.0, target="hip")
    x = ts.tensor(normal(3, 100))
    assert_close(f(x).numpy(), f(x.to("hip")).numpy())
    assert str(f(x).device) == "hip:0"
    assert "@triton.jit" in f.lower(x).target.text
    page = ts.jit(op.softmax).inspect(x.to("hip"), path=tmp_path / "page.html")
    assert "gfx942" in page.read_text()


def test_an_architecture_is_compiled_for_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TritonSource] = []

    def build(sources: list[TritonSource]) -> list[BuiltCode]:
        asked.extend(sources)
        return [BuiltCode(s.name, 4, 0, 0, (1, 1, 1), s.name.encode()) for s in sources]

    monkeypatch.setattr(bind, "build", build)

    @ts.jit(target="hip:gfx942")
    def f(x: Any) -> Any:
        return op.softmax(op.fori_loop(0, 3, lambda i, y: y * 2.0 + x, x))

    x = ts.tensor(normal(3, 100))
    for _ in range(3):
        with pytest.raises(DeviceError) as e:
            f(x)
        assert e.value.message == (
            "f: it is compiled for hip:gfx942, which is an architecture and no device; look at it with "
            ".lower(...), or use the target 'hip'"
        )
    seen = f.lower(x)
    assert "@triton.jit" in seen.target.text
    assert sorted(seen.code) == sorted(seen.target)
    assert any(n.startswith("scan_0.") for n in seen.code)  # the body of the loop
    assert {s.target for s in asked} == {("hip", "gfx942", 64)}
    for name, target in (
        ("cuda:sm_90a", ("cuda", 90, 32)),
        ("hip:gfx1201", ("hip", "gfx1201", 32)),
    ):
        asked.clear()
        assert ts.jit(op.exp, target=name).lower(x).code
        assert {s.target for s in asked} == {target}
    with pytest.raises(OperandError) as wrong:
        ts.jit(op.exp, target="cpu").lower(x).code  # noqa: B018
    assert wrong.value.message == (
        'lower: code is of targets that are architectures, such as jit(target="hip:gfx942")'
    )
    for name in ("hip:sm_90", "cuda:gfx942", "cuda:x", "cpu:1", "hip:"):
        with pytest.raises(OperandError, match="expected one of numpy, cpu, cuda, hip"):
            ts.jit(op.exp, target=name)


def test_what_is_of_both_kinds_of_device_goes_by_the_host(hip: FakeHip) -> None:
    with launching_gpus("cuda"):
        assert [str(d) for d in ts.devices()] == ["cpu:0", "cuda:0", "hip:0"]
        x = ts.tensor(normal(5)).to("hip")
        y = x.to("cuda")
        assert (str(y.device), str(y.to("hip").device)) == ("cuda:0", "hip:0")
        np.testing.assert_array_equal(y.numpy(), x.numpy())
        assert isinstance(y.storage, DeviceArray)
        with pytest.raises(DeviceError, match=r"is on hip:0 but operand 1 .* is on cuda:0"):
            x + y


def test_code_for_an_architecture_names_the_steps_that_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program with host steps gave an empty dictionary, and no word."""
    made = lambda s: BuiltCode(s.name, 4, 0, 0, (1, 1, 1), b"code")  # noqa: E731
    monkeypatch.setattr(bind, "build", lambda sources: [*map(made, sources)])
    x = op.ones((64, 64))
    seen = ts.jit(lambda x: op.inv(op.exp(x) @ x) + 1, target="hip:gfx942").lower(x)
    with pytest.warns(
        RuntimeWarning, match=r"3 kernels have code and 1 steps have none: inv_0: it has no GPU"
    ):
        code = seen.code
    assert sorted(code) == sorted(seen.target)
    assert len(code) == 3


def test_steps_without_a_kernel_are_named_for_every_target() -> None:
    x = op.ones((40, 40))

    def f(x: Any) -> Any:
        return ts.fori_loop(0, 2, lambda i, v: op.inv(v) + op.exp(v), x)

    elsewhere = "it has no GPU form yet and runs on the host, where its operands travel"
    assert ts.jit(f, target="hip:gfx942").lower(x).host_steps == {"scan_0.inv_0": elsewhere}
    library = "a library of the device computes it where CuPy is installed, the host elsewhere"
    assert ts.jit(f, target="cuda:sm_90").lower(x).host_steps == {"scan_0.inv_0": library}
    assert ts.jit(op.eigh, target="hip:gfx942").lower(x).host_steps == {"eigh_0": elsewhere}
    here = {"eigh_0": "it has no kernel and runs on the host by its reference"}
    assert ts.jit(op.eigh, target="cpu").lower(x).host_steps == here
    assert ts.jit(op.exp, target="cpu").lower(x).host_steps == {}
    only = ts.jit(op.eigh, target="hip:gfx942").lower(x)
    with pytest.warns(
        RuntimeWarning, match=r"eigh: 0 kernels have code and 1 steps have none: eigh_0: it has"
    ):
        assert only.code == {}
