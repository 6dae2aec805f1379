"""Several GPUs without one: what belongs to a device stays there, and tensors move from one to another."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import DeviceError, OutOfMemoryError
from tessera.runtime.cuda import driver, replay
from tessera.runtime.cuda.device import Gpu, gpu
from tessera.runtime.cuda.graph import LaunchGraph
from tessera.runtime.cuda.launch import DeviceLaunch, Launcher, Pointer, f32, i32
from tessera.runtime.cuda.memory import DeviceArray, empty, from_dlpack, to_device
from tests.support.fakes.cuda_fake import FakeCuda, LazyCuda, scale
from tests.support.fakes.gpu_fake import launching_gpus
from tests.support.runners.tolerance import assert_close

RUNS_ON = "numpy"
MIB = 1 << 20


@pytest.fixture(params=["cuda", "hip"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeCuda]:
    with launching_gpus(request.param, 2) as library, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that some ops run on the host
        yield library


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def both(fake: FakeCuda) -> tuple[Gpu, Gpu]:
    return gpu(0, fake.api.kind), gpu(1, fake.api.kind)


# Tensors and programs


def test_a_program_runs_where_its_inputs_lie(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory, code, streams and graphs are of one device: the driver refuses anything else."""
    monkeypatch.setattr(replay, "FEWEST", 2)
    kind = fake.api.kind
    assert [str(d) for d in ts.devices()] == ["cpu:0", f"{kind}:0", f"{kind}:1"]

    @ts.jit
    def f(x: Any, y: Any) -> Any:
        for _ in range(3):
            (x,) = op.barrier(op.softmax(x) * 2.0 + y)
        return x, op.sort(x, 1)

    x, y = normal(7, 9), normal(9)
    want = [v.numpy() for v in f(ts.tensor(x), ts.tensor(y))]
    given = [[ts.tensor(v).to(f"{kind}:{i}") for v in (x, y)] for i in range(2)]
    for i in (0, 1) * 4:
        got = f(*given[i])
        for a, b in zip(got, want, strict=True):
            assert str(a.device) == f"{kind}:{i}"
            assert a.storage.gpu is both(fake)[i]
            assert_close(a.numpy(), b)
        assert str((given[i][0] * 2.0).device) == f"{kind}:{i}"
        del got, a
    used = {fake.home[stream] for _, _, _, _, stream in fake.launched}
    assert used == {0, 1}
    assert fake.calls.count("cuGraphLaunch") >= 2
    assert {fake.home[e] for e in fake.executables} == {0, 1}


def test_a_tensor_moves_between_devices_without_the_host(fake: FakeCuda) -> None:
    kind, x = fake.api.kind, normal(50, 3)
    t = ts.tensor(x).to(f"{kind}:0")
    before = fake.calls.count("cuMemcpyDtoHAsync")
    there = t.to(f"{kind}:1")
    back = there.to(kind)
    assert fake.calls.count("cuMemcpyDtoHAsync") == before
    assert fake.copied == [(600, 0, 1), (600, 1, 0)]
    assert [str(v.device) for v in (t, there, back)] == [f"{kind}:{i}" for i in (0, 1, 0)]
    assert t.to(f"{kind}:0") is t
    for v in (there, back):
        np.testing.assert_array_equal(v.numpy(), x)
    assert ts.tensor(np.zeros((0, 3), np.float32)).to(kind).to(f"{kind}:1").shape == (0, 3)
    with ts.device(f"{kind}:1"):
        assert ts.tensor(x).device == there.device
    with pytest.raises(DeviceError) as e:
        t.to(f"{kind}:2")
    devices = f"cpu:0, {kind}:0, {kind}:1"
    assert e.value.message == f"there is no device {kind}:2; devices are {devices}"


def test_a_target_may_be_a_device(fake: FakeCuda) -> None:
    kind, x = fake.api.kind, ts.tensor(normal(5))
    y = ts.jit(op.exp, target=f"{kind}:1")(x)
    assert str(y.device) == f"{kind}:1"
    assert_close(y.numpy(), np.exp(x.numpy()))


def test_tensors_of_two_devices_do_not_meet_in_a_call(fake: FakeCuda) -> None:
    kind = fake.api.kind
    x, y = (ts.tensor(normal(3)).to(f"{kind}:{i}") for i in range(2))

    @ts.jit
    def f(a: Any, b: Any) -> Any:
        return a * 2.0, [v + 1.0 for v in b]

    f(x, [x, x])  # what was compiled for one device does not let others in
    wanted = (
        f"f: argument 'a' f32[3] is on {kind}:0 but argument 'b.1' f32[3] is on {kind}:1; move one with "
        f"x.to('{kind}:0')"
    )
    for _ in range(2):
        with pytest.raises(DeviceError) as e:
            f(x, [x, y])
        assert e.value.message == wanted
    with pytest.raises(DeviceError, match=rf"'a' f32\[3\] is on cpu:0 but .* is on {kind}:1"):
        f(ts.tensor(normal(3)), [y])
    f(x, [np.ones(3, np.float32), 2.0])  # numbers and arrays of NumPy go along
    with pytest.raises(DeviceError, match=rf"is on {kind}:0 but operand 1 .* is on {kind}:1"):
        x + y
    with pytest.raises(DeviceError) as e:
        ts.jvp(lambda a, b: (a * 2.0, b * 3.0), (x, y), (x, y))
    assert e.value.message.endswith(
        f"an argument f32[3] is on {kind}:0 but another f32[3] is on {kind}:1; move one with x.to('{kind}:0')"
    )


def test_a_tensor_from_elsewhere_must_lie_there(fake: FakeCuda) -> None:
    kind = fake.api.kind
    table = ts.tensor(normal(100)).to(f"{kind}:1")
    f = ts.jit(lambda x: (x + 1.0, table * 2.0))
    with pytest.raises(DeviceError) as e:
        f(ts.tensor(normal(3)).to(kind))
    name = fake_name(fake)
    assert e.value.message == (
        f"<lambda>: it runs on {kind}:0 ({name}) but uses a tensor float32[100] on {kind}:1 ({name}); move "
        f"it "
        f"with x.to('{kind}:0')"
    )
    assert str(f(ts.tensor(normal(3)).to(f"{kind}:1"))[1].device) == f"{kind}:1"


def fake_name(fake: FakeCuda) -> str:
    return both(fake)[0].name


def test_donated_memory_stays_on_its_device(fake: FakeCuda) -> None:
    kind = fake.api.kind
    f = ts.jit(lambda x: x * 2.0, donate=("x",))
    for i in (0, 1):
        x = ts.tensor(normal(64)).to(f"{kind}:{i}")
        ptr = x.storage.ptr
        y = f(x)
        assert (y.storage.ptr, y.storage.gpu.index) == (ptr, i)


# Memory


def test_each_device_has_its_own_memory(fake: FakeCuda) -> None:
    one, two = both(fake)
    held = one.pool.alloc(200 * MIB)
    assert (one.pool.used, two.pool.used) == (200 * MIB, 0)
    assert two.pool.alloc(200 * MIB).size == held.size
    assert (one.memory_free, two.memory_free) == (56 * MIB, 56 * MIB)
    assert two.pool.trim() == 200 * MIB
    kind, function = fake.api.kind, fake.api.name("cuMemAlloc")
    with pytest.raises(OutOfMemoryError) as e:
        one.pool.alloc(100 * MIB)
    assert e.value.message == (
        f"{kind}: {function} failed for 100.0 MiB: 56.0 MiB of 256.0 MiB are free and tensors of this "
        f"process "
        "hold 200.0 MiB; let go of tensors or use smaller ones"
    )


def test_devices_are_told_once_to_read_each_other(fake: FakeCuda) -> None:
    one, two = both(fake)
    fake.peers.add((0, 1))  # another library was first
    x = to_device(np.arange(5), one)
    for _ in range(2):
        np.testing.assert_array_equal(x.to(two).to(one).numpy(), np.arange(5))
    assert fake.peers == {(1, 0), (0, 1)}
    assert fake.calls.count("cuCtxEnablePeerAccess") == 2


def test_devices_that_cannot_read_each_other_still_copy(fake: FakeCuda) -> None:
    fake.can_reach = False
    one, two = both(fake)
    np.testing.assert_array_equal(to_device(np.arange(5), one).to(two).numpy(), np.arange(5))
    assert fake.peers == set()


def test_a_copy_that_fails_names_both_devices(fake: FakeCuda) -> None:
    one, two = both(fake)
    x = to_device(np.arange(5), one)
    fake.faults["cuMemcpyPeerAsync"] = [1]
    with pytest.raises(DeviceError) as e:
        x.to(two)
    assert e.value.message == (
        f"{one.kind}: {fake.api.name('cuMemcpyPeerAsync')} failed with {two.driver.describe(1)} from {one} "
        f"to {two}"
    )
    with LaunchGraph.capture(two.stream), pytest.raises(DeviceError) as e:
        x.to(two)
    assert e.value.message == (
        f"{one.kind}: memory of another device cannot be copied while the main stream of {two} is captured; "
        f"copy "
        "before or after"
    )


def test_what_dies_leaves_the_current_device_alone(fake: FakeCuda) -> None:
    """Memory and code may die in the middle of calls for another device."""
    one, two = both(fake)
    x, f = to_device(np.arange(5), two), scale(fake, 1)
    lent, taken = x.__dlpack__(), from_dlpack(x)
    one.make_current()
    current = fake.current
    del lent, taken, f
    assert (fake.current, fake.unloaded) == (current, [1])


def test_threads_have_devices_of_their_own(fake: FakeCuda) -> None:
    found: dict[int, Any] = {}
    gate = threading.Barrier(2)

    def work(i: int) -> None:
        x = ts.tensor(normal(40, seed=i)).to(f"{fake.api.kind}:{i}")
        for _ in range(5):
            gate.wait()
            x = x * 1.5
        found[i] = x

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(2):
        assert found[i].storage.gpu.index == i
        assert_close(found[i].numpy(), normal(40, seed=i) * np.float32(1.5**5))


def test_a_thread_that_used_no_device_still_uses_none_afterwards(fake: FakeCuda) -> None:
    """What the garbage collector frees is freed in any thread, several times, and leaves no trace there."""
    g, found = both(fake)[1], []

    def work() -> None:
        before = fake.current
        for _ in range(3):
            with g.aside():
                assert fake.device == g.index
            found.append(fake.current == before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True] * 3


def test_a_program_without_enough_memory_is_the_users_error(fake: FakeCuda) -> None:
    """At its line, at every call, and what there was stays usable."""
    kind = fake.api.kind
    x = ts.tensor(normal(1000)).to(f"{kind}:1")

    @ts.jit
    def f(x: Any) -> Any:
        return op.broadcast_to(x, (100_000, 1000)) * 2.0

    for _ in range(2):
        with pytest.raises(OutOfMemoryError) as e:
            f(x)
        assert e.value.message.startswith(
            f"{kind}: {fake.api.name('cuMemAlloc')} failed for 382.0 MiB: 248.0 MiB of 256.0 MiB are free"
        )
        assert "f(x)" in str(e.value)
        assert len(traceback.extract_tb(e.value.__traceback__)) == 2  # here, and the call
    with pytest.raises(OutOfMemoryError) as e:
        ts.tensor(np.zeros(80 * MIB, np.float32)).to(kind)
    assert "failed for 320.0 MiB: 256.0 MiB of 256.0 MiB are free" in e.value.message
    np.testing.assert_array_equal((x * 2.0).numpy(), normal(1000) * 2)


# Order


def scaled(by: float, g: Gpu, x: DeviceArray, fake: FakeCuda) -> DeviceArray:
    """x * by, by a kernel of the device."""
    out = empty(x.shape, x.dtype, g)
    given = (Pointer(1), Pointer(0), i32(x.size), f32(by))
    Launcher([DeviceLaunch(scale(fake, g.index), (1, 1, 1), 32, given)], g).run([x.ptr, out.ptr])
    return out


@pytest.mark.parametrize("seed", range(12))
def test_a_copy_is_in_order_with_the_work_of_both_devices(seed: int) -> None:
    """Streams that do their work as late as they may show what nobody waits for."""
    library = LazyCuda(seed, devices=2)
    with driver.use(library):
        gpus = gpu(0), gpu(1)
        x = to_device(np.arange(50, dtype="f4"), gpus[0])
        want = np.arange(50, dtype="f4")
        for step in range(12):
            here, there = gpus[step % 2], gpus[1 - step % 2]
            made = scaled(2, here, x, library)
            lent = from_dlpack(made) if step % 3 == 0 else made
            x = lent.to(there)
            del made, lent
            noise = [to_device(np.full(50, -1, "f4"), here) for _ in range(2)]  # in the same memory
            x = scaled(0.75, there, x, library)
            want = want * np.float32(2) * np.float32(0.75)
            noise.clear()
        np.testing.assert_array_equal(x.numpy(), want)
