"""Writes of parts touch the part alone where nobody reads the old tensor, at every level, with the bits
of a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, Tensor, f32, op
from tessera.compile.cpu.executable import _CompiledRegion
from tessera.core.writes import WRITES
from tessera.inspect.work import work_of
from tessera.ir.schedule.ir import Primitive
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels

RNG = np.random.default_rng(7)
B, H, ROOM, D = 2, 3, 64, 24


def drawn(*shape: int, dtype: Any = np.float32) -> Any:
    return (RNG.standard_normal(shape) * 9).astype(dtype)


def rows(wrap: bool = False) -> Any:
    return lambda held, new, first, count: op.state_write(held, new, first, count, wrap=wrap)


def box(*axes: int) -> Any:
    def f(x: Any, v: Any, *starts: Any) -> Any:
        return op.dynamic_update_slice(
            x, v, [starts[axes.index(a)] if a in axes else 0 for a in range(x.ndim)]
        )

    return f


CACHE, NEW = drawn(B, H, ROOM, D), drawn(B, H, 3, D)
CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "append": (rows(), (CACHE, NEW, np.int64(5), np.int64(3))),
    "append past the room": (rows(), (CACHE, NEW, np.int64(ROOM - 1), np.int64(3))),
    "a length for each": (rows(), (CACHE, NEW, np.array([61, 0]), np.array([3, 1]))),
    "ring": (rows(True), (CACHE, NEW, np.array([62, 130]), np.array([3, 2]))),
    "bytes": (rows(), (CACHE.astype(np.int8), NEW.astype(np.int8), np.int64(5), np.int64(2))),
    "rows": (box(0), (drawn(100, 70), drawn(3, 70), np.int64(96))),
    "a row of each": (box(2), (CACHE, NEW[:, :, :1], np.int32(-4))),
    "elements of lines": (box(1), (drawn(40, 130), drawn(40, 7), np.int64(125))),
    "a box": (box(0, 1), (drawn(40, 130), drawn(2, 7), np.int64(9), np.int64(30))),
    "a vector": (box(0), (drawn(5000), drawn(33), np.int64(4999))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_level_agrees_with_numpy(name: str) -> None:
    f, xs = CASES[name]
    g = ts.trace(f, *map(ts.tensor, xs))
    want = ts.jit(f, target="numpy")(*xs).numpy()
    p = levels.lower(levels.prepared(g))
    assert [s.primitive for s in p.steps if isinstance(s, Primitive)], "it is one primitive"
    for level in (levels.by_schedule, levels.by_tile, levels.by_llvm):
        assert same_bits(level(p, xs)[0], want), level
    np.testing.assert_array_equal(ts.jit(f, target="cpu")(*xs).numpy(), want)


def program(f: Any) -> Any:
    """What ran last."""
    entry = list(f._variants.values())[-1]
    return list(entry.executable._prepared.values())[-1]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {}, "lengths": {"per_sequence": True}, "window": {"window": 40}, "i8": {"quantized": "i8"},
    "f8": {"quantized": "f8e4m3"}, "pages": {"page": 16, "pages": 20},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_decode_step_copies_no_byte_of_a_donated_cache(kind: str) -> None:
    def step(cache: Any, k: Any, v: Any) -> Any:
        return cache.append(k, v)

    kept, donating = ts.jit(step, target="cpu"), ts.jit(step, donate=("cache",), target="cpu")
    first = KVCache.empty(B, H, 128, D, **KINDS[kind])
    one, two = (kept(first, *map(ts.tensor, (NEW, NEW))) for _ in range(2))
    for _ in range(3):
        k, v = (ts.tensor(drawn(B, H, 1, D)) for _ in range(2))
        one, two = kept(one, k, v), donating(two, k, v)
    for a, b in zip(ts.tree.leaves(one), ts.tree.leaves(two), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    names = [n for n in ("K", "V", "K_scale", "V_scale") if hasattr(one, n)]
    assert program(kept).copied == sum(getattr(one, n).numpy().nbytes for n in names)
    assert program(donating).copied == 0


def test_an_annotated_cache_of_any_size_is_written_in_place() -> None:
    def step(cache: KVCache["B", "H", "S", "D", f32], k: Tensor["B", "H", "N", "D", f32]):
        return cache.append(k, k)

    f = ts.jit(step, donate=("cache",), target="cpu")
    for room, n in ((70, 5), (200, 1)):
        cache = f(f(KVCache.empty(B, H, room, D), ts.tensor(NEW)), ts.tensor(drawn(B, H, n, D)))
        assert int(cache.length) == 3 + n
        assert program(f).copied == 0
    assert f.compiled == 1


def test_what_is_read_afterwards_is_copied() -> None:
    f = ts.jit(lambda x, v: (op.dynamic_update_slice(x, v, (3, 0)), op.sum(x)), donate=("x",),
        target="cpu")  # fmt: skip
    x, v = drawn(100, 70), drawn(2, 70)
    with pytest.warns(RuntimeWarning, match="is not used again"):
        got, total = f(ts.jit(lambda x: x * 1.0)(x), ts.tensor(v))
    np.testing.assert_allclose(total.numpy(), x.sum(), rtol=1e-3)
    np.testing.assert_array_equal(got.numpy()[3:5], v)
    np.testing.assert_array_equal(got.numpy()[5:], x[5:])
    assert program(f).copied == x.nbytes


def test_two_writes_into_one_tensor() -> None:
    def f(x: Any, v: Any, i: Any) -> Any:
        return op.dynamic_update_slice(op.dynamic_update_slice(x, v, (i, 0)), v * 2.0, (i + 1, 0))

    x, v = drawn(100, 70), drawn(2, 70)
    want = x.copy()
    want[8:10], want[9:11] = v, v * 2
    for donate in ((), ("x",)):
        jitted = ts.jit(f, donate=donate, target="cpu")
        got = jitted(ts.jit(lambda x: x * 1.0)(x), ts.tensor(v), ts.tensor(8))
        np.testing.assert_array_equal(got.numpy(), want)
        assert program(jitted).copied == (0 if donate else x.nbytes)


def test_bytes_are_those_of_the_part() -> None:
    f, xs = CASES["append"]
    p = levels.lower(levels.prepared(ts.trace(f, *map(ts.tensor, xs))))
    (s,) = (s for s in p.steps if isinstance(s, Primitive))
    types = {n: b.type for n, b in p.buffers.items()}
    assert work_of(s, types, {}).bytes == 2 * NEW.nbytes + 16
    assert {d.name for d in WRITES} == {"write_slice", "write_rows"}


def test_a_small_tensor_is_chosen_from() -> None:
    """One launch with what stands beside it, where a second one would cost more than the copy."""
    p = levels.lower(levels.prepared(ts.trace(lambda x, v: op.dynamic_update_slice(x, v, (3,)),
        *map(ts.tensor, (drawn(64), drawn(4))))))  # fmt: skip
    assert not [s for s in p.steps if isinstance(s, Primitive)]


# Loops: what a loop carries is its own after the first step


def decode(cache: Any, ks: Any) -> Any:
    def body(c: Any, k: Any) -> Any:
        c = c.append(k, k)
        return c, op.sum(c.K[:, :, 0])

    return ts.scan(body, cache, ks)


def region_of(f: Any) -> Any:
    entry = list(f._variants.values())[-1]
    return next(iter(entry.executable._regions.values()))


def test_a_loop_over_tokens_writes_its_cache_in_place() -> None:
    f = ts.jit(decode, target="cpu")
    ks = drawn(6, B, H, 1, D)
    first = KVCache.empty(B, H, 512, D)
    cache, sums = f(first, ts.tensor(ks))
    np.testing.assert_array_equal(cache.K.numpy()[:, :, :6], ks[:, :, :, 0].transpose(1, 2, 0, 3))
    assert not cache.K.numpy()[:, :, 6:].any()
    assert not first.K.numpy().any(), "what was given stays"
    np.testing.assert_allclose(sums.numpy(), ks[0].sum().repeat(6), rtol=1e-4)
    region = _CompiledRegion(region_of(f), {})
    step = region.again(3)
    assert step is not region
    state = list(region(*(x.numpy() for x in (cache.K, cache.V, cache.length)), ks[0]))[:3]
    places = [x.ctypes.data for x in state[:2]]
    state = step(*state, ks[1])[:3]
    assert [x.ctypes.data for x in state[:2]] == places, "the memory of the step before"
    kept = state[0]
    before = kept.copy()
    state = step(*state, ks[2])[:3]
    np.testing.assert_array_equal(kept, before, "somebody else holds it")
    assert state[0].ctypes.data != kept.ctypes.data


@pytest.mark.parametrize("what", ["swapped", "twice", "given", "kept in results", "while"])
def test_loops_whose_tensors_meet_have_the_bits_of_numpy(what: str) -> None:
    """Memory is written over only where nothing else sees it, whatever a step returns."""
    x, y = drawn(300, 70), drawn(300, 70)
    v = drawn(4, 2, 70)

    def put(a: Any, v: Any, i: Any) -> Any:
        return op.dynamic_update_slice(a, v, (i, 0))

    def body(c: Any, v: Any) -> Any:
        a, b, i = c
        new = put(a, v, i)
        if what == "swapped":
            return (b, new, i + 3), op.max(b[:9])
        if what == "twice":
            return (new, new, i + 3), op.max(b[:9])
        if what == "given":
            return (new, b, i + 3), op.max(b[:9])
        return (new, put(b, v * 2.0, i + 1), i + 3), new

    def run(x: Any, y: Any, v: Any) -> Any:
        if what == "while":
            go = ts.while_loop(
                lambda c: c[2] < 12, lambda c: body(c, v[0])[0], (x, y, op.full((), 0, "i64"))
            )
            return go, x
        return ts.scan(body, (x, y, op.full((), 0, "i64")), v), x

    want = ts.jit(run, target="numpy")(x, y, v)
    got = ts.jit(run, target="cpu")(x, y, v)
    for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
