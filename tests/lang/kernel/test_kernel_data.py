"""What data decide in kernels: places, bounds, exits, sums into memory; and what the language refuses."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f32, i32, i64, kernel, tile
from tests.lang.kernel.test_kernel_language import both, data, message

HOSTILE = [-(2**63), -(2**62), -9, -8, -7, -1, 0, 1, 2, 5, 2**31, 2**40, 2**62, 2**63 - 1]


@kernel
def boxes(x: KTile["N"], ids: KTile["K", i64]):
    p = tile.program(ids.shape[0])
    y = tile.empty((ids.shape[0], 8), x.dtype)
    tile.store(y, tile.load(x, at=(ids[p],), shape=(8,), fill=7), at=(p, 0))
    return y


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_a_box_at_any_place_reads_what_is_there_and_fill_elsewhere(n, dtype):
    x, ids = np.arange(1, n + 1).astype(dtype), np.array(HOSTILE)
    want = [[x[i + k] if 0 <= i + k < n else 7 for k in range(8)] for i in map(int, ids)]
    np.testing.assert_array_equal(both(boxes, x, ids), np.array(want, dtype))


@kernel
def stored(x: KTile["N"], ids: KTile["K", i64]):
    p = tile.program(ids.shape[0])
    t = tile.arange(8, i32) + tile.cast(p * 10, i32)
    tile.store(x, t, at=(ids[p],), distinct=True)


def test_a_box_that_is_stored_at_any_place_stays_in_its_tensor():
    x, ids = np.zeros(20, np.int32), np.array([-(2**62), -3, 9, 17, 2**62])
    got = both(stored, x, ids)
    want = np.zeros(20, np.int32)
    for p, i in enumerate(ids):
        for k in range(8):
            if 0 <= i + k < 20:
                want[i + k] = k + 10 * p
    np.testing.assert_array_equal(got, want)


def test_a_hostile_index_has_a_defined_result_in_every_form():
    @kernel.schedule(block(4))
    def sums(ids: KTile["K", i64], x: KTile["N", f32], y: KTile["M", f32]):
        i = tile.load(ids)
        tile.accumulate(y, x[i] + 1, at=(i,))

    ids = np.array(HOSTILE)
    x, y = data(3), np.zeros(4, np.float32)
    want = y.copy()
    for i in map(int, ids):
        if 0 <= i < 4:
            want[i] += (x[i] if i < 3 else 0) + 1
    np.testing.assert_allclose(both(sums, ids, x, y), want)


@kernel.schedule(block(4))
def early(x: KTile["N", f32], limit):
    i = tile.program(x.shape[0])
    y = tile.empty(x.shape, f32)
    t = x[i]
    if t > limit:
        return y
    tile.store(y, t * 2, at=(i,))
    return y


def test_a_kernel_may_be_left_early():
    x = data(9)
    np.testing.assert_array_equal(both(early, x, 0.5), np.where(x > 0.5, 0, x * 2))


@kernel
def nested(x: KTile["N", i32], most):
    """Counts pairs i < j with x[i] == x[j], and leaves each inner loop at the first."""
    tile.program(1)
    found = 0
    for i in range(x.shape[0]):
        for j in range(i + 1, x.shape[0]):
            if x[i] == x[j]:
                found += 1
                break
        if found >= most:
            break
    y = tile.empty((1,), i64)
    tile.store(y, found, at=(0,))
    return y


@pytest.mark.parametrize("most", [0, 2, 99])
def test_loops_within_loops_are_left_one_by_one(most):
    x = np.random.default_rng(3).integers(0, 5, 11).astype(np.int32)
    found = 0
    for i in range(11):
        found += any(x[i] == x[j] for j in range(i + 1, 11))
        if found >= most:
            break
    assert both(nested, x, most).item() == found


@kernel
def unbranched(x: KTile["N", i32]):
    """A while in a branch that is not taken has no rounds, though its test would hold for ever."""
    i = tile.program(x.shape[0])
    n = x[i]
    if n > 0:
        while n != 1:
            n = n // 2
    y = tile.empty(x.shape, i32)
    tile.store(y, n, at=(i,))
    return y


def test_a_loop_of_a_branch_that_is_not_taken_does_not_run():
    np.testing.assert_array_equal(both(unbranched, np.array([-3, 0, 9], np.int32)), [-3, 0, 1])


def test_a_large_tile_is_carried_by_a_loop_that_data_end():
    @kernel
    def doubled(x: KTile["N", "N", f32], rounds):
        tile.program(1)
        t = tile.load(x, at=(0, 0), shape=x.shape)
        n = 0
        while n < rounds:
            t = t * 2
            n += 1
        y = tile.empty(x.shape, f32)
        tile.store(y, t, at=(0, 0))
        return y

    x = data(40, 40)
    np.testing.assert_array_equal(both(doubled, x, 3), x * 8)


def test_sums_into_memory_have_the_order_of_the_grid():
    @kernel.schedule(block(4))
    def total(x: KTile["N", f32]):
        y = tile.empty((1,), f32)
        t = tile.load(x)
        tile.accumulate(y, t, at=(tile.cast(t * 0, i32),))
        return y

    x = data(23) * 1e3
    want = np.float32(0)
    for v in x:
        want += v
    assert both(total, x).item() == want


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Held:
    a: Any
    b: Any


@kernel.schedule(block(4))
def by_field(p):
    return tile.load(p.a) - tile.load(p.b)


@kernel.schedule(block(4))
def by_key(p):
    return tile.load(p["a"]) - tile.load(p["b"])


def test_arguments_may_hold_tensors():
    a, b = data(7), data(7, seed=1)
    for x in (Pair(a, b), Held(a, b)):
        np.testing.assert_array_equal(both(by_field, x), a - b)
    np.testing.assert_array_equal(both(by_key, {"a": a, "b": b}), a - b)
    np.testing.assert_array_equal(both(by_field, Held(ts.tensor(a), ts.tensor(b))), a - b)


@kernel.schedule(block(4))
def low_rank_rows(a, x: KTile["N", "D"]):
    """(u v^T) x of an operator of low rank, by its factors."""
    u, v = a
    inner = tile.dot(tile.load(v, rows=v.shape[0]).T, tile.load(x, rows=x.shape[0]))
    return tile.dot(tile.load(u, rows=tile.context().m), inner)


def test_an_operator_is_the_tuple_of_its_tensors():
    r = np.random.default_rng(0)
    u, v, x = (ts.tensor(r.normal(size=s)) for s in ((7, 2), (7, 2), (7, 3)))
    a = ts.op.low_rank(u, v)
    want = u.numpy() @ v.numpy().T @ x.numpy()
    for f in (low_rank_rows, ts.jit(lambda a, x: low_rank_rows(a, x))):
        np.testing.assert_allclose(f(a, x).numpy(), want, rtol=1e-12, atol=1e-12)
    with ts.interpret(step=True):
        np.testing.assert_allclose(low_rank_rows(a, x).numpy(), want, rtol=1e-12, atol=1e-12)
    g = ts.grad(lambda u: ts.op.sum(low_rank_rows(ts.op.low_rank(u, v), x)))(u)
    slope = np.broadcast_to((v.numpy().T @ x.numpy()).sum(axis=1), (7, 2))
    np.testing.assert_allclose(g.numpy(), slope, rtol=1e-12, atol=1e-12)


def test_a_kernel_shows_its_texts():
    k = boxes.lower(data(3), np.arange(3))
    assert k.tile == k.text
    assert "define" in k.llvm
    assert "@triton.jit" in k.triton
    assert "tl.load" in k.triton


def _indexed(x: KTile["N", f32], p: KTile["N", i64]):
    tile.store(x, tile.load(x), at=(tile.load(p),))


def _unrolled(x: KTile["N", f32], p: KTile["N", i64]):
    n = p[0]
    for i in range(4):
        if n > i:
            break
    return tile.load(x)


def _loop_return(x: KTile["N", f32], p: KTile["N", i64]):
    for i in range(p[0]):
        if i > 2:
            return tile.load(x)
    return tile.load(x)


def _half_return(x: KTile["N", f32], p: KTile["N", i64]):  # noqa: RET503
    if p[0] > 2:
        return tile.load(x)


def _float_bound(x: KTile["N", f32], p: KTile["N", i64]):
    for _ in tile.range(x[0]):
        pass
    return tile.load(x)


def _how(x: KTile["N", f32], p: KTile["N", i64]):
    tile.accumulate(x, tile.load(x), at=(tile.load(p),), how="sub")


def _empty_slice(x: KTile["N", f32], p: KTile["N", i64]):
    return tile.load(x, 4)[3:3]


def _far(x: KTile["N", f32], p: KTile["N", i64]):
    return tile.load(x, 4)[4]


def _exclusive(x: KTile["N", f32], p: KTile["N", i64]):
    return tile.scan(tile.load(x), tile.maximum, axis=0, exclusive=True)


REFUSED = [
    (_indexed, "store: x is written at places that are data; say distinct=True if no two of them are equal, "
               "or add up "
     "with tile.accumulate"),
    (_unrolled, "a loop that is written out is not left by data; use tile.range"),
    (_loop_return, "return stands outside of loops that run; leave a loop by break, and return after it"),
    (_half_return, "a kernel returns results in one branch of an if and none in the other"),
    (_float_bound, "the stop of a range is f32[], expected one integer"),
    (_how, "accumulate: got 'sub', expected one of add, mul, max, min, and, or, xor"),
    (_empty_slice, "a slice of 4 elements from 3 to 3 is empty"),
    (_far, "index 4 lies outside of an axis of 4 elements"),
    (_exclusive, "scan: an exclusive one needs init, the fold of no elements"),
]  # fmt: skip


@pytest.mark.parametrize(("f", "text"), REFUSED, ids=[f.__name__ for f, _ in REFUSED])
def test_what_has_no_meaning_is_refused(f, text):
    lines, _ = message(kernel(f), data(5), np.arange(5))
    assert lines[0] == text


def test_a_loop_that_data_end_has_a_derivative():
    @kernel
    def powers(x: KTile["N", f32], n):
        t = tile.load(x)
        for _ in range(n):
            t = t * 2
        return t

    np.testing.assert_array_equal(both(powers, data(3), 2), data(3) * 4)
    slope = ts.grad(lambda x: ts.op.sum(powers(x, 3)))(ts.tensor(data(3)))
    np.testing.assert_array_equal(slope.numpy(), np.full(3, 8, np.float32))


def test_the_interpreter_finds_places_that_are_not_distinct():
    @kernel.schedule(block(4))
    def put(x: KTile["N", f32], p: KTile["N", i64]):
        y = tile.empty(x.shape, f32)
        tile.store(y, tile.load(x), at=(tile.load(p),), distinct=True)
        return y

    x = data(4)
    np.testing.assert_array_equal(both(put, x, np.array([2, 0, 3, 1])), x[[1, 3, 0, 2]])
    lines, _ = message(put, x, np.array([2, 0, 2, 1]))
    assert lines[0].startswith(
        "scatter: two elements of a tile are written to one place of global made2"
    )


def test_functions_of_tile_tell_their_arguments():
    assert list(inspect.signature(tile.scan).parameters) == [
        "x", "how", "axis", "reverse", "exclusive", "init",
    ]  # fmt: skip
    assert "at" in inspect.signature(tile.load).parameters
    assert tile.accumulate.__doc__.startswith("Fold a tile into the elements of a tensor")
