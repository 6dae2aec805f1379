"""Hints of kernels: each acts, or is refused by name; test_knobs.py has them all on every target."""

import re

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, Schedule, block, f32, kernel, op, tile
from tessera.core.errors import ScheduleError
from tessera.ir.tile.ir import walk
from tessera.lang.kernel.hints import LACKS, threads


def product(ahead=None, deep=None, **hints):
    @kernel.schedule(block(16, 16).k(8))
    def mm(a: KTile["M", "K"], b: KTile["K", "N"]):
        T = tile.context()
        acc = tile.zeros((T.m, T.n), f32)
        for kb in tile.range_k(a.shape, T.k, prefetch=ahead, stages=deep):
            left = tile.load(a, rows=T.m, cols=kb, **hints)
            acc = tile.dot(left, tile.load(b, rows=kb, cols=T.n), acc)
        return acc

    return mm


A = np.random.default_rng(0).normal(size=(50, 50)).astype(np.float32)


def prefetches(f):
    ops = walk(f.lower(A, A).body)
    return [(o.memory.name, str(o.attributes["at"])) for o in ops if o.name == "prefetch"]


def test_prefetch_asks_for_the_tiles_of_later_rounds():
    plain, loops, loads = product(), product(ahead=2), product(prefetch=3)
    assert prefetches(plain) == []
    assert prefetches(loops) == [("a", "(16*_m, _i1 + 16)"), ("b", "(_i1 + 16, 16*_n)")]
    assert prefetches(loads) == [("a", "(16*_m, _i1 + 24)")]
    for f in (loops, loads):
        assert f(A, A).numpy().tobytes() == plain(A, A).numpy().tobytes()
        assert f.hints(A, A) == []


def test_prefetch_outside_of_a_loop_asks_for_the_tile_of_a_later_instance():
    @kernel.schedule(block(8))
    def double(x: KTile["M", "N"]):
        return tile.load(x, prefetch=2) * 2

    ops = [o for o in walk(double.lower(A).body) if o.name == "prefetch"]
    assert [str(o.attributes["at"]) for o in ops] == ["(8*_m + 16, 0)"]
    np.testing.assert_array_equal(double(A).numpy(), A * 2)


def test_stages_are_those_of_the_schedule_or_as_deep_as_loads_ask():
    assert threads([], Schedule()) is None
    assert threads([("prefetch", 2)], Schedule()) == (4, 3)
    assert threads([("stages", 5), ("prefetch", 2)], Schedule(warps=8)) == (8, 5)
    assert threads([("stages", 5)], Schedule(stages=2)) == (4, 2)
    made = {}
    for name, f in {"plain": product(), "ahead": product(ahead=2), "deep": product(deep=4)}.items():
        (node,) = ts.trace(lambda a, f=f: f(a, a), ts.tensor(A)).nodes
        made[name] = node.params.get("threads")
    assert made == {"plain": None, "ahead": (4, 3), "deep": (4, 4)}


def test_what_a_target_refuses_is_reported():
    f = product(vector=4, stages=3).with_schedule(block(16).warps(8).swizzle("xor"))
    assert f.hints(A, A) == [f"{n} ({LACKS['cpu'][n]})" for n in ("swizzle", "warps")]
    assert f.hints(A, A, target="cuda") == [f"swizzle ({LACKS['cuda']['swizzle']})"]
    line = str(ts.check(f, A, A, tools=("hints",)))
    assert line.startswith("hints: mm: refused on cpu: swizzle (a CPU has no shared memory), warps")
    assert "refused on cuda: swizzle (Triton lays out shared memory" in line
    assert str(ts.check(product(), A, A, tools=("hints",))) == "hints: mm: all are used"
    with pytest.raises(
        ts.TesseraError, match="hints: target is 'abacus', expected one of numpy, cpu"
    ):
        f.hints(A, A, target="abacus")


HINTS = [
    ({"vector": 7}, "hint vector is 7, expected a power of two up to 16"),
    ({"vector": "wide"}, "hint vector is 'wide', expected a whole number of at least 1"),
    ({"stages": 0}, "hint stages is 0, expected a whole number of at least 1"),
    ({"stages": 99}, "hint stages is 99, expected at most 16"),
    ({"swizzle": "spiral"}, "hint swizzle is 'spiral', expected one of none, xor"),
    ({"prefetch": -1}, "hint prefetch is -1, expected a whole number from 0 to 16"),
    ({"prefetch": True}, "hint prefetch is True, expected a whole number from 0 to 16"),
    ({"space": "shared"}, "there is no hint space; there are vector, stages, swizzle, prefetch"),
]


@pytest.mark.parametrize(("hints", "text"), HINTS, ids=[str(h) for h, _ in HINTS])
def test_a_hint_of_no_meaning_is_an_error_at_its_line(hints, text):
    with pytest.raises(ts.TesseraError, match=re.escape(text)) as e:
        product(**hints)(A, A)
    assert "test_hints.py" in str(e.value)


def test_a_store_and_a_range_have_hints_of_their_own():
    @kernel
    def swizzled(x: KTile["N"], y: KTile["N"]):
        tile.store(y, tile.load(x), swizzle="xor")

    @kernel
    def wide(x: KTile["M", "N"]):
        acc = tile.zeros((64,))
        for nb in tile.range_k(x.shape, 8, vector=4):
            acc = acc + tile.sum(tile.load(x, cols=nb), axis=1)
        return acc

    with pytest.raises(ts.TesseraError, match="there is no hint swizzle; there are vector"):
        swizzled(A[0], A[0])
    with pytest.raises(
        ts.TesseraError, match="there is no hint vector; there are stages, prefetch"
    ):
        wide(A)


SCHEDULES = [
    (lambda: block(0), "Schedule: block is 0, expected a whole number of at least 1"),
    (lambda: block(16, -1), "Schedule: block is -1, expected a whole number of at least 1"),
    (lambda: block(m=[16, 0]), "Schedule: block is 0, expected a whole number of at least 1"),
    (lambda: block(16).warps(3), "Schedule: warps is 3, expected a power of two up to 32"),
    (lambda: block(16).warps([4, 64]), "Schedule: warps is 64, expected a power of two up to 32"),
    (lambda: block(16).stages(0), "Schedule: stages is 0, expected a whole number of at least 1"),
    (lambda: block(16).vector(7), "Schedule: vector is 7, expected a power of two up to 16"),
    (lambda: block(16).k(0), "Schedule: k is 0, expected a whole number of at least 1"),
    (lambda: block(16).swizzle("x"), "Schedule: swizzle is 'x', expected one of none, xor"),
    (lambda: block(1, 2, 3, 4), "Schedule: block is (1, 2, 3, 4), expected rows, columns and k"),
    (lambda: Schedule(warps=3), "Schedule: warps is 3, expected a power of two up to 32"),
    (lambda: Schedule(warps=4).with_vector(3), "Schedule: vector is 3, expected a power of two"),
    (
        lambda: kernel.autotune(space={"warps": [3]}),
        "Schedule: warps is 3, expected a power of two",
    ),
]


@pytest.mark.parametrize(("make", "text"), SCHEDULES, ids=[t for _, t in SCHEDULES])
def test_a_setting_of_no_meaning_is_an_error_at_the_call(make, text):
    with pytest.raises(ScheduleError, match=re.escape(text)) as e:
        make()
    assert "test_hints.py" in str(e.value)


@pytest.mark.parametrize("shape", [(300, 200, 70), (600, 1, 30), (3, 90, 40)])
@pytest.mark.parametrize("tile_shape", [(128, 128, 64), (7, 9, 11), (4096, 4096, 8)])
def test_the_tile_shape_of_a_product_cuts_it_and_changes_no_bit(shape, tile_shape):
    m, n, k = shape
    rng = np.random.default_rng(1)
    a, b = (ts.tensor(rng.normal(size=s).astype(np.float32)) for s in ((m, k), (k, n)))
    plain = ts.jit(lambda a, b: op.exp(op.matmul(a, b) * 0.01))
    cut = ts.jit(lambda a, b: op.exp(op.matmul(a, b, tile_shape=tile_shape) * 0.01))
    assert cut(a, b).numpy().tobytes() == plain(a, b).numpy().tobytes()
    (step,) = cut.lower(a, b).schedule.steps
    assert step.tile == tile_shape
    again = ts.ir.parse(cut.lower(a, b).schedule.text)
    assert again.steps[0].tile == tile_shape


def test_a_smaller_tile_shape_makes_more_instances():
    a = ts.zeros((256, 256))

    def instances(tile_shape):
        f = ts.jit(lambda a: op.matmul(a, a, tile_shape=tile_shape))
        (kernel,) = f.lower(a).tile.values()
        return int(np.prod([n for _, n in kernel.grid]))

    assert instances((32, 64, 64)) > instances((128, 128, 64)) > instances((256, 256, 64)) == 1
