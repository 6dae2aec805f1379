"""Profiles of programs on a GPU, by a driver in Python: kernels have rows, a track, and names for
NVIDIA's profilers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import bf16
from tessera.inspect.profile import load, profile
from tessera.inspect.profile_facts import roof_of
from tessera.runtime.cuda import nvtx
from tessera.runtime.cuda.device import gpu
from tessera.runtime.gpu.bound_program import MOVES, RUNS, SERIES
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"
KERNEL = 1.5e-3  # seconds from one event to the next, by the driver in Python


@pytest.fixture
def cuda() -> Iterator[None]:
    with fake_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that some ops run on the host
        yield


def drawn(*shape: int) -> Any:
    rng = np.random.default_rng([*shape])
    return ts.tensor(rng.standard_normal(shape).astype(np.float32)).to("cuda")


def model(x: Any, w: Any) -> Any:
    return op.eigh(op.softmax(x @ w))[0]


class Ranges:
    """What NVTX exports, noting who is inside of whom."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.noted: list[tuple[str, ...]] = []

    def nvtxRangePushA(self, name: bytes) -> None:
        self.open.append(name.decode())
        self.noted.append(tuple(self.open))

    def nvtxRangePop(self) -> None:
        self.open.pop()


def test_kernels_on_a_gpu_have_rows_a_track_and_the_time_of_its_events(
    cuda: None, tmp_path: Any
) -> None:
    f, x, w = ts.jit(model), drawn(16, 32), drawn(32, 16)
    plain = f(x, w).numpy()
    with profile() as p:
        for _ in range(3):
            y = f(x, w)
    assert y.numpy().tobytes() == plain.tobytes()
    rows = {r.what: r for r in p.kernels if r.kind == "kernel"}
    assert [(r.launches, len(r.runs)) for r in rows.values()] == [(3, 3)] * len(rows)
    assert rows["product 16x16 over 32"].flops == 3 * 2 * 16 * 16 * 32
    assert rows["product 16x16 over 32"].bytes == 3 * 4 * (16 * 32 + 32 * 16 + 16 * 16)
    # A GPU computes exp(x - max) again rather than keeping it: for the sum, and for the shares.
    assert rows["fold 16 over 16"].flops == 3 * (7 * 16 * 16 + 16)
    assert all(r.seconds == pytest.approx(3 * KERNEL) for r in rows.values())
    assert all(next(iter(r.lines)).startswith(f"{__file__}:") for r in rows.values())
    (track,) = {s.thread for s in p.spans if s.device}
    assert track != 0
    launches = [s for s in p.spans if s.device == "cuda:0"]
    assert len(launches) == 3 * len(rows)
    assert p.busy == {"cuda:0": pytest.approx(KERNEL * len(launches))}
    assert sum(p.totals.values()) == pytest.approx(p.wall)
    assert p.totals["kernels"] == 0
    assert p.totals["launching on a GPU"] > 0
    assert [s.name for s in p.spans if s.kind == "host"] == ["eigh"] * 3
    named = {e["args"]["name"]: e["tid"] for e in p.trace()["traceEvents"] if e["ph"] == "M"}
    assert named["cuda:0"] != named["main"]
    assert "cuda:0 was busy" in str(p)
    p.save(tmp_path / "p.json")
    assert load(tmp_path / "p.json").as_dict() == p.as_dict()


def test_ranges_of_nvtx_are_programs_and_the_kernels_in_them(
    cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = Ranges()
    monkeypatch.setattr(nvtx, "_library", lambda: ranges)
    f, x, w = ts.jit(model), drawn(16, 32), drawn(32, 16)
    f(x, w)
    assert ranges.noted == []  # no profile, no ranges
    with profile() as p:
        f(x, w)
    kernels = [s.name for s in sorted(p.spans, key=lambda s: s.begin) if s.device]
    assert ranges.noted[:2] == [("model",), ("model", kernels[0])]
    assert [r[1] for r in ranges.noted if len(r) == 2] == kernels
    assert ranges.open == []


def test_an_attention_counts_by_its_products(cuda: None) -> None:
    q = drawn(1, 2, 64, 16).astype(bf16)

    def loss(q: Any) -> Any:
        return op.sum(op.attention(q, q, q, causal=True))

    step = ts.jit(ts.grad(loss))
    with profile() as p:
        step(q)
    pairs = 64 * 65 // 2
    counts = {
        r.name.rpartition("_")[0]: r.flops for r in p.kernels if r.name.startswith("attention")
    }
    assert counts == {"attention": 2 * 2 * 2 * pairs * 16, "attention_grad": 5 * 2 * 2 * pairs * 16}


def test_memory_is_that_of_the_plan(cuda: None) -> None:
    f, x, w = ts.jit(model), drawn(16, 32), drawn(32, 16)
    with profile() as p:
        f(x, w)
    (m,) = [m for m in p.memory if m.program == "model"]
    plan = f.lower(x, w).memory
    assert m.peak == plan.peak
    assert {(t.name, t.bytes) for t in m.tensors} == {
        (b, s.size) for s in plan.storages for b in s.lives
    }


def test_what_is_captured_in_a_graph_is_not_timed(
    cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    f, x = ts.jit(lambda x: x * 2.0), drawn(5)
    f(x)
    with profile() as p:
        monkeypatch.setattr(gpu(0), "capturing", True)
        y = f(x)
        monkeypatch.undo()
    assert p.kernels == []
    np.testing.assert_array_equal(y.numpy(), 2 * x.numpy())


def test_nothing_of_a_gpu_is_watched_when_no_profile_is_on(cuda: None) -> None:
    kinds = (RUNS, SERIES, MOVES)
    with profile():
        assert [len(k.observers) for k in kinds] == [1, 1, 1]
    with pytest.raises(ZeroDivisionError), profile():
        raise ZeroDivisionError
    assert [k.observers for k in kinds] == [(), (), ()]


def test_the_roof_of_a_gpu_is_that_of_its_data_sheet() -> None:
    assert roof_of("NVIDIA H200") == (989e12, 4.8e12)
    assert roof_of("NVIDIA A100-SXM4-80GB") == (312e12, 2.0e12)
    assert roof_of("Quadro") is None
