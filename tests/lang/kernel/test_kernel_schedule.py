"""Schedules: values that inherit, print and save; spaces; kernels that choose among them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, Schedule, accum, block, f32, kernel, tile
from tessera.core.errors import OperandError, ScheduleError
from tessera.core.flags import override
from tessera.lang.schedule import Space


def data(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_a_schedule_is_a_value():
    s = Schedule(block=(128, 128), k=64, warps=8, stages=3, vector=8, swizzle="xor")
    assert s == block(128, 128).k(64).warps(8).stages(3).vector(8).swizzle("xor").schedule
    assert str(s) == "block(128, 128).k(64).warps(8).stages(3).vector(8).swizzle('xor')"
    assert eval(str(s), {"block": block}).schedule == s
    assert hash(s) == hash(Schedule.from_dict(s.to_dict()))
    assert s.hash == Schedule.from_dict(s.to_dict()).hash != s.with_warps(4).hash
    assert Schedule(block=(128, 128, 64)) == Schedule(block=(128, 128), k=64)


def test_schedules_inherit_and_override():
    base = Schedule(block=(128, 128), warps=8, stages=3)
    assert base.with_block(64, 64) == Schedule(block=(64, 64), warps=8, stages=3)
    assert base.with_warps(4).with_k(32).with_d(64).k == 32
    assert base.with_stages(2).with_vector(4).with_swizzle("none").stages == 2
    assert Schedule(warps=4).over(base) == base.with_warps(4)
    assert Schedule().over(base) == base


def test_a_schedule_is_saved_and_loaded(tmp_path):
    s = block(96, 40).k(24).swizzle("xor").schedule
    s.save(tmp_path / "s.json")
    assert Schedule.load(tmp_path / "s.json") == s
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(ScheduleError, match="holds no schedule"):
        Schedule.load(tmp_path / "bad.json")


def test_a_space_is_every_choice():
    space = block(m=[64, 128], n=[64, 96, 128], k=[64]).warps([4, 8]).stages(2).space
    assert len(space) == 12 == len(set(space))
    assert all(s.stages == 2 and s.k == 64 for s in space)
    assert (
        Space.of({"BM": [64, 128], "BN": [64, 96, 128], "k": 64, "warps": [4, 8], "stages": 2})
        == space
    )
    assert str(space).startswith("12 schedules: m=[64, 128], n=[64, 96, 128]")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Schedule(block=(0, 4)), "block is 0, expected a whole number of at least 1"),
        (lambda: Schedule(warps=True), "warps is True, expected a whole number"),
        (lambda: Schedule(swizzle="spiral"), "swizzle is 'spiral', expected one of none, xor"),
        (lambda: Schedule(block=(1, 2, 3, 4)), "expected rows, columns and k"),
        (lambda: Schedule.from_dict({"tiles": 3}), "Schedule has no tiles"),
        (lambda: Space.of({"BX": [1]}), "BX is no setting"),
        (lambda: block(m=[1, 2]).schedule, "expected one; name one value"),
        (lambda: kernel.schedule(3), "expected a Schedule"),
    ],
    ids=["zero", "bool", "swizzle", "four", "unknown", "setting", "several", "number"],
)
def test_what_is_no_schedule_says_so(make, text):
    with pytest.raises(ScheduleError, match=text):
        make()


@kernel.auto
def doubled(x: KTile["M", "N"]):
    T = tile.context()
    return tile.load(x, rows=T.m, cols=T.n) * 2


def test_an_automatic_kernel_has_blocks_no_larger_than_its_tensors():
    text = doubled.lower(data(3, 40)).text
    assert "extent = [8, 64]" in text
    x = data(3, 40)
    with ts.interpret():
        np.testing.assert_array_equal(doubled(x).numpy(), x * 2)


SPACE = {
    "BM": [8, 16], "BN": [8, 12], "BD": [16, 64], "warps": [4, 8], "stages": [2, 3], "vector": [4, 8],
}  # fmt: skip


def attention_kernel(cache):
    @kernel.autotune(space=SPACE, metric="latency_ms", budget_ms=180, cache=cache)
    def attention(
        q: KTile["B", "S", "D_h", f32 @ accum(f32)],
        k: KTile["B", "L", "D_h"],
        v: KTile["B", "L", "D_h"],
    ):
        T = tile.context()
        rows = tile.load(q, rows=T.m, cols=T.d, vector=T.vector)
        acc = tile.zeros((T.m, T.d), f32)
        top, total = tile.full((T.m,), -math.inf), tile.zeros((T.m,), f32)
        for nb in tile.range_n(k.shape, T.n, prefetch=2):
            s = tile.dot(rows, tile.load(k, nb).T) * tile.rsqrt(float(T.d))
            e, m, l = tile.softmax_online(s)
            acc, top, total = tile.softmax_accumulate(acc, top, total, e, tile.load(v, nb), m, l)
        return acc / total[:, None]

    return attention


def test_tuning_measures_once_and_remembers(tmp_path):
    q, k, v = (data(2, 17, 32, seed=i) for i in range(3))
    attention = attention_kernel(tmp_path)
    with override(cache_dir=tmp_path):
        y = attention(q, k, v)
    s = np.einsum("bsd,bld->bsl", *(x.astype(np.float64) for x in (q, k))) / math.sqrt(32)
    e = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(y.numpy(), e / e.sum(-1, keepdims=True) @ v, atol=1e-5)
    (found,) = attention.found.values()
    # A last axis of 32 needs d=64; warps, stages and vectors do not change the program on a CPU.
    assert 1 <= found.tried <= 4
    assert found.schedule.d == 64
    again = attention_kernel(tmp_path)
    again(q, k, v)
    (known,) = again.found.values()
    assert (known.schedule, known.tried) == (found.schedule, 0)
    assert (tmp_path / "tune.sqlite").exists()


def test_tuning_says_what_is_wrong():
    with pytest.raises(OperandError, match="metric is 'joules', expected one of latency_ms"):
        kernel.autotune(space=SPACE, metric="joules")
    with pytest.raises(OperandError, match="budget_ms is 0"):
        kernel.autotune(space=SPACE, budget_ms=0)
    with pytest.raises(ScheduleError, match="the space has no schedule"):
        kernel.autotune(space={"BM": []})
    q = data(1, 3, 100)
    with pytest.raises(ts.TesseraError, match=r"T\.d covers the last axis of q, 100 elements"):
        attention_kernel(None)(q, q, q)


def test_a_schedule_may_be_given_to_a_product_of_a_graph():
    a, b = data(9, 7), data(7, 5, seed=1)
    plain, cut = ts.op.matmul(a, b), ts.op.matmul(a, b, tile_shape=(128, 128, 64))
    assert plain.numpy().tobytes() == cut.numpy().tobytes()
