"""Kernels that people write, on a GPU: threads, updates, tuning; without a GPU, by the Tile interpreter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, bf16, block, f32, kernel, op, stdlib, tile
from tessera.core.errors import DeviceError, ScheduleError
from tessera.ir.graph.text import parse_graph
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.ir.tile.ir import walk
from tessera.ir.tile.verify import verify
from tessera.lang.kernel import tune_gpu
from tessera.runtime.gpu.clock import Figures, Timed
from tests.support.fakes.gpu_fake import BUILT, fake_gpu, launching_gpus

RUNS_ON = "numpy"
SPACE = {"BM": [16, 8, 4], "warps": [2, 4], "stages": [2, 3]}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device of Python, for which nobody has to build anything."""
    monkeypatch.setattr(tune_gpu, "version", lambda: "0")
    BUILT.clear()
    with fake_gpu():
        yield


def data(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def there(*arrays: Any) -> list[Any]:
    return [ts.tensor(x).to("cuda") for x in arrays]


@kernel
def scaled(x: KTile["M", "N"]):
    T = tile.context()
    return tile.load(x, rows=T.m, cols=T.n) * 3


@kernel
def turned_over(x: KTile["M", "N"], y: KTile["M", "N"]):
    T = tile.context()
    t = tile.load(x, rows=T.m)
    tile.store(y, t + tile.load(y, rows=T.m), rows=T.m)
    return t * 2


def built() -> list[TritonSource]:
    return list(BUILT)


def test_a_schedule_says_how_many_warps_run_a_block(cuda: None) -> None:
    x = data(20, 24)
    (a,) = there(x)
    for chosen, warps, stages in (
        (block(8, 8), 4, 2), (block(8, 8).warps(2), 2, 2), (block(8, 8).warps(8).stages(5), 8, 5),
        (block(128, 128), 8, 2),
    ):  # fmt: skip
        BUILT.clear()
        np.testing.assert_array_equal(scaled.with_schedule(chosen)(a).numpy(), x * 3)
        (source,) = built()
        assert (source.warps, source.stages) == (warps, stages), chosen


def test_threads_are_kept_in_a_graph(cuda: None) -> None:
    f = scaled.with_schedule(block(8, 8).warps(2).stages(4))
    (a,) = there(data(6, 6))
    jitted = ts.jit(lambda x: f(x) + 1)
    np.testing.assert_array_equal(jitted(a).numpy(), data(6, 6) * 3 + 1)
    assert {(s.warps, s.stages) for s in built() if s.name == "scaled"} == {(2, 4)}
    plain = ts.trace(lambda x: scaled(x), ts.tensor(data(6, 6)))
    assert "threads" not in str(plain)
    text = str(ts.trace(lambda x: f(x), ts.tensor(data(6, 6))))
    (node,) = parse_graph(text).nodes
    assert node.params["threads"] == (2, 4)


def test_what_a_kernel_updates_is_updated_on_the_device(
    cuda: None, recwarn: pytest.WarningsRecorder
) -> None:
    x, y = data(10, 12), data(10, 12, seed=1)
    a, b = there(x, y)
    new, twice = turned_over.with_schedule(block(4))(a, b)
    assert (new.device.kind, twice.device.kind) == ("cuda", "cuda")
    np.testing.assert_array_equal(new.numpy(), x + y)
    np.testing.assert_array_equal(twice.numpy(), x * 2)
    np.testing.assert_array_equal(b.numpy(), y)  # a tensor is a value
    assert not [w for w in recwarn if "runs on the host" in str(w.message)]
    both = ts.jit(lambda x, y: turned_over(x, turned_over(x, y)[0] * 2)[0])
    np.testing.assert_array_equal(both(a, b).numpy(), x + 2 * (x + y))


def test_an_update_is_launched_by_the_driver() -> None:
    with launching_gpus():
        x, y = data(7, 5), data(7, 5, seed=1)
        new, twice = turned_over.with_schedule(block(4))(*there(x, y))
        np.testing.assert_array_equal(new.numpy(), x + y)
        np.testing.assert_array_equal(twice.numpy(), x * 2)


class Clock:
    """Takes the place of a device's clock: few warps are slow, and the smallest blocks are fast."""

    spilled: frozenset[int] = frozenset()

    def __init__(self, p: Any, inputs: Any):
        (call,) = p.segments[0].launches
        self.warps = call.source.warps
        self.blocks = p.planned.lowered.launches[call.name].kernel.text
        self.figures = [Figures(32, 8 * (self.warps in self.spilled), 1000)]

    def run(self) -> None:
        """Nobody asks."""

    def seconds(self, times: int) -> float:
        rows = int(re.findall(r"extent = \[(\d+)", self.blocks)[0])
        return times * 1e-4 * rows / self.warps


def tuned(cache: Any) -> Any:
    return kernel.autotune(space=SPACE, budget_ms=1000, cache=cache)(scaled.function)


def test_the_fastest_schedule_of_a_device_is_found_and_kept(
    cuda: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.compile.gpu.executable.Timed", Clock)
    x = data(40, 64)
    (a,) = there(x)
    f = tuned(tmp_path)
    np.testing.assert_array_equal(f(a).numpy(), x * 3)
    (found,) = f.found.values()
    assert (found.schedule.m, found.schedule.warps) == (4, 4)
    assert found.tried == 12
    assert found.before == pytest.approx(8 * found.seconds)
    # The next process knows, also while it traces; the processor of this machine is another matter.
    again = tuned(tmp_path)
    BUILT.clear()
    np.testing.assert_array_equal(ts.jit(lambda x: again(x))(a).numpy(), x * 3)
    assert {s.warps for s in built()} == {4}
    (known,) = again.found.values()
    assert (known.schedule, known.tried) == (found.schedule, 0)
    np.testing.assert_array_equal(f(ts.tensor(x)).numpy(), x * 3)
    assert len(f.found) == 2


def test_what_spills_is_not_measured(
    cuda: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.compile.gpu.executable.Timed", Clock)
    monkeypatch.setattr(Clock, "spilled", frozenset({4}))
    (a,) = there(data(40, 64))
    f = tuned(tmp_path)
    f(a)
    (found,) = f.found.values()
    assert (found.schedule.warps, found.tried) == (2, 6)


def test_what_finds_no_room_is_left_out(
    cuda: None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(Clock):
        def __init__(self, p: Any, inputs: Any):
            super().__init__(p, inputs)
            if "extent = [4" in self.blocks or self.warps == 4:
                raise DeviceError("cuda: needs more shared memory")

    monkeypatch.setattr("tessera.compile.gpu.executable.Timed", Small)
    (a,) = there(data(40, 64))
    f = tuned(tmp_path)
    f(a)
    (found,) = f.found.values()
    assert (found.schedule.m, found.schedule.warps) == (8, 2)
    monkeypatch.setattr(tune_gpu, "_BATCH", 1)  # the first one finds no room, a later one does
    monkeypatch.setattr(tune_gpu, "_SHARE", 1)
    later = kernel.autotune(space={"BM": [4, 8], "warps": [4, 2]}, cache=tmp_path / "later")
    assert later(scaled.function)(a).shape == (40, 64)
    monkeypatch.setattr(Small, "__init__", _no_room)
    with pytest.raises(DeviceError, match="nothing fits"):
        tuned(tmp_path / "other")(there(data(80, 64))[0])


def _no_room(self: Any, p: Any, inputs: Any) -> None:
    raise DeviceError("cuda: nothing fits")


def test_an_empty_space_says_so(cuda: None) -> None:
    @kernel.autotune(space={"BD": [16]})
    def whole(x: KTile["M", "D", f32]):
        T = tile.context()
        return tile.load(x, rows=T.m, cols=T.d) * 2

    with pytest.raises((ScheduleError, ts.TesseraError), match=r"T\.d covers the last axis"):
        whole(there(data(4, 100))[0])


def test_a_program_is_timed_in_memory_that_stays() -> None:
    with launching_gpus() as fake:
        e: Any = ts.jit(lambda x: scaled(x) + 1)
        x = data(8, 8)
        (a,) = there(x)
        e(a)
        (entry,) = e._variants.values()
        timed: Timed = entry.executable.timed([a.storage])
        ran, held = len(fake.launched), entry.executable.gpu.pool.used
        timed.seconds(3)
        assert len(fake.launched) - ran == 3 * len(timed.figures) > 0
        assert entry.executable.gpu.pool.used == held


def test_the_library_has_schedules_for_a_gpu(cuda: None) -> None:
    """Blocks that a processor's caches hold would not fit the registers of a GPU."""
    x, w = data(300, 280), data(280, 260, seed=1)
    got = stdlib.matmul(*there(x, w)).numpy()
    np.testing.assert_allclose(got, x @ w, rtol=1e-4, atol=1e-3)
    largest = max(_shared(k) for k in BUILT.values())
    assert 3 * largest <= 227 << 10  # in three stages
    small = stdlib.matmul.with_schedule(block(16, 16).k(16).warps(1))
    BUILT.clear()
    np.testing.assert_allclose(small(*there(x, w)).numpy(), x @ w, rtol=1e-4, atol=1e-3)
    assert {s.warps for s in built()} == {1}


def _shared(k: Any) -> int:
    """Bytes of the factors of a product that a step takes."""
    dots = [x for x in walk(k.body) if x.name == "dot"]
    return max((4 * sum(int(np.prod(t.shape)) for t in x.operands[:2]) for x in dots), default=0)


@kernel
def wide_product(a: KTile["M", "K"], b: KTile["N", "K"]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        left, right = tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=T.n, cols=kb)
        acc = tile.dot(tile.cast(left, f32), tile.cast(right, f32).T, acc)
    return acc


def test_products_of_narrow_floats_are_left_to_matrix_units(cuda: None) -> None:
    """A cast to f32 changes no product: what is multiplied are the numbers as they are stored."""
    x, y = (data(*s, seed=1).astype(bf16.np) for s in ((24, 40), (16, 40)))
    f = wide_product.with_schedule(block(8, 16).k(16))
    got = f(*there(x, y)).numpy()
    np.testing.assert_allclose(
        got, x.astype(np.float64) @ y.astype(np.float64).T, rtol=1e-5, atol=1e-5
    )
    (k,) = BUILT.values()
    verify(k)
    (dot,) = (x for x in walk(k.body) if x.name == "dot")
    assert [t.dtype for t in dot.operands] == [bf16, bf16, f32]
    mixed = f(*there(x.astype(np.float32), y.astype(np.float32))).numpy()
    np.testing.assert_array_equal(got, mixed)


def test_attention_of_the_library_is_the_compilers_where_that_has_it(cuda: None) -> None:
    q = data(2, 3, 40, 16).astype(bf16.np)
    a, b, c = there(q, q, q)
    plain = stdlib.flash_attention_2(a, b, c, causal=True)
    assert plain.numpy().tobytes() == op.attention(a, b, c, causal=True).numpy().tobytes()
    want = stdlib.flash_attention_2(*map(ts.tensor, (q, q, q)), causal=True)
    np.testing.assert_allclose(
        plain.numpy().astype(np.float32), want.numpy().astype(np.float32), rtol=2e-2, atol=2e-2
    )
    near = stdlib.flash_attention_2(a, b, c, causal=True, window=8)
    assert near.device.kind == "cuda"


def test_bytes_times_narrow_floats_are_products_of_narrow_floats(cuda: None) -> None:
    x, w = data(24, 64).astype(bf16.np), data(64, 32, seed=2)
    q, s = stdlib.quantise(ts.tensor(w), group=16)
    want = stdlib.quantised_matmul(ts.tensor(x), q, s).numpy().astype(np.float32)
    BUILT.clear()
    got = stdlib.quantised_matmul(*there(x), q.to("cuda"), s.to("cuda")).numpy()
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2e-2, atol=2e-2)
    (k,) = (k for k in BUILT.values() if k.name == "by_weights")
    verify(k)
    (dot,) = (o for o in walk(k.body) if o.name == "dot")
    assert [t.dtype for t in dot.operands] == [bf16, bf16, f32]
