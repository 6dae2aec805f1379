"""Streams of a GPU: beside the main one, in order where a result is read, on a driver that works as late
as it may.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError
from tessera.lang.stream import Pending
from tests.support.fakes import gpu_fake
from tests.support.fakes.cuda_fake import FakeCuda, LazyCuda

RUNS_ON = "numpy"


@pytest.fixture(params=range(3))
def lazy(request: pytest.FixtureRequest) -> Iterator[FakeCuda]:
    """A device whose streams do their work when a seed says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gpu_fake.FAKES, "cuda", partial(LazyCuda, request.param))
        with gpu_fake.launching_gpus() as fake:
            yield fake


def test_results_do_not_depend_on_when_streams_work(lazy: FakeCuda) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 40)).astype("f4")
    f, g = ts.jit(lambda x: x * 2.0 + 1.0), ts.jit(lambda x, y: x * y - 3.0)
    h = ts.jit(lambda x: x * (1 / 64))
    a, b = ts.Stream(device="cuda"), ts.Stream(device="cuda", priority=-1)
    assert lazy.priorities == [-1]
    t = ts.tensor(x, device="cuda")
    want = x
    for i in range(6):
        with a:
            y = f(t)
        with b:
            z = g(y, t)
        if i % 2:
            z = f(z)  # the main stream
        made = np.float32(2) * want + np.float32(1)
        want = made * want - np.float32(3)
        want = want * np.float32(2) + np.float32(1) if i % 2 else want
        want, t = want / 64, h(z)
    np.testing.assert_allclose(t.numpy(), want, rtol=1e-6)
    assert (a.device, t.device) == (ts.Stream(device="cuda:0").device, a.device)


def test_memory_of_a_stream_is_used_again_when_its_work_is_done(lazy: FakeCuda) -> None:
    f, s = ts.jit(lambda x: op.exp(x) * 0.5), ts.Stream(device="cuda")
    thrice = ts.jit(lambda x: x * 3.0)
    kept = []
    for i in range(12):
        x = np.full((64,), i / 8, "f4")
        t = ts.tensor(x, device="cuda")
        with s:
            y = f(t)
        del t  # its memory goes to what comes next, when the stream has read it
        other = thrice(ts.tensor(-x, device="cuda"))
        kept.append((y, other, x))
        if i % 3 == 2:
            kept.pop(0)
    for y, other, x in kept:
        np.testing.assert_allclose(y.numpy(), np.exp(x) / 2, rtol=1e-6)
        np.testing.assert_array_equal(other.numpy(), -3 * x)


def test_copies_belong_to_a_stream(lazy: FakeCuda) -> None:
    s, f = ts.Stream(device="cuda"), ts.jit(lambda x: x + 1.0)
    xs = [np.full((3000,), i, "f4") for i in range(5)]
    sent = [ts.tensor(x).to("cuda", stream=s) for x in xs]
    for t, x in zip(sent, xs, strict=True):
        np.testing.assert_array_equal(f(t).numpy(), x + 1)
    for i, (t, x) in enumerate(zip(sent, xs, strict=True)):
        back = f(t).to("cpu", stream=s, non_blocking=i % 2 == 0)
        assert back.device.kind == "cpu"
        np.testing.assert_array_equal(back.numpy(), x + 1)
    later = f(sent[0]).to("cpu", non_blocking=True)
    assert isinstance(later, Pending)
    np.testing.assert_array_equal(later.numpy(), xs[0] + 1)
    with pytest.raises(
        OperandError, match=r"to: stream is 3, expected a stream of a GPU, as ts.Stream"
    ):
        ts.tensor(xs[0]).to("cuda", stream=3)


def test_events_order_streams_and_the_host(lazy: FakeCuda) -> None:
    f, x = ts.jit(lambda x: x * 2.0), ts.tensor(np.ones(8, "f4"), device="cuda")
    a, b = ts.Stream(device="cuda"), ts.Stream(device="cuda")
    with a:
        y = f(x)
    e = a.record()
    b.wait(e)
    with b:
        z = f(y)
    after = b.record()
    after.wait()
    assert e.done
    assert after.done
    b.synchronize()
    assert z.numpy().tolist() == [4.0] * 8
    host = ts.Stream().record()
    with pytest.raises(OperandError, match="one of the two is of a GPU"):
        host.elapsed(after)


def test_a_stream_of_another_device_is_refused(lazy: FakeCuda) -> None:
    f, x = ts.jit(lambda x: x * 2.0), np.ones(8, "f4")
    with (
        pytest.raises(
            OperandError,
            match=r"runs on cuda:0, but the stream is of cpu:0; use ts.Stream\(device='cuda:0'\)",
        ),
        ts.Stream(),
    ):
        f(ts.tensor(x, device="cuda"))
    with pytest.raises(OperandError,
        match="runs on cpu:0, but the stream is of cuda:0"), ts.Stream(device="cuda"):  # fmt: skip
        f(ts.tensor(x))
    with pytest.raises(OperandError, match="streams of the CPU have none"):
        ts.Stream(priority=2)


def test_a_donated_result_and_derivatives(lazy: FakeCuda) -> None:
    f, s = ts.jit(lambda x: x * x), ts.Stream(device="cuda")
    g: Any = ts.jit(lambda x: x + 1.0, donate=["x"])
    with s:
        y = f(ts.tensor(np.full(5, 3.0, "f4"), device="cuda"))
    assert g(y).numpy().tolist() == [10.0] * 5
    assert f(f(ts.tensor(np.full(5, 2.0, "f4"), device="cuda"))).numpy().tolist() == [16.0] * 5
