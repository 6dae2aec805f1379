"""KVCache: what does not fit is an error, and a program that cannot know it drops what has no room."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, op
from tessera.core.errors import AxisError, ShapeError

RNG = np.random.default_rng(3)


def drawn(*shape: int) -> ts.Tensor:
    return ts.tensor(RNG.standard_normal(shape).astype(np.float32))


def filled(n: int, room: int = 5) -> KVCache:
    k = drawn(1, 2, n, 3)
    return KVCache.empty(1, 2, room, 3).append(k, -k)


def test_appending_past_the_room_is_an_error():
    cache = filled(4)
    with pytest.raises(AxisError) as e:
        cache.append(drawn(1, 2, 2, 3), drawn(1, 2, 2, 3))
    assert e.value.message == (
        "KVCache.append: length 4 is out of range for 2 more positions in a cache of 5; use 0 to 3"
    )
    assert "test_cache.py" in str(e.value)
    full = cache.append(drawn(1, 2, 1, 3), drawn(1, 2, 1, 3))
    assert int(full.length) == 5
    with pytest.raises(
        AxisError, match="length 5 is out of range for 1 more positions in a cache of 5"
    ):
        full.append(drawn(1, 2, 1, 3), drawn(1, 2, 1, 3))


def test_more_positions_than_the_cache_has_are_an_error_in_a_trace_too():
    k = drawn(1, 2, 6, 3)
    for f in (lambda c, k: c.append(k, k), ts.jit(lambda c, k: c.append(k, k))):
        with pytest.raises(ShapeError) as e:
            f(KVCache.empty(1, 2, 5, 3), k)
        assert (
            e.value.message == "KVCache.append: got 6 positions for a cache of 5; make a larger one"
        )


def test_a_length_that_a_trace_knows_is_checked_while_tracing():
    with pytest.raises(AxisError, match=r"KVCache\.append: length 4 is out of range"):
        ts.jit(lambda k: filled(4).append(k, k).K)(drawn(1, 2, 2, 3))


@pytest.mark.parametrize("target", ["cpu", "numpy"])
@pytest.mark.parametrize("length", range(6))
@pytest.mark.parametrize("more", [1, 2, 5])
def test_a_traced_append_drops_what_has_no_room(length, more, target):
    cache = filled(length) if length else KVCache.empty(1, 2, 5, 3)
    k, v = drawn(1, 2, more, 3), drawn(1, 2, more, 3)
    f = ts.jit(lambda c, k, v: c.append(k, v), target=target)
    got = f(cache, k, v)
    fits = min(more, 5 - length)
    assert int(got.length) == length + fits
    assert got.length.dtype is ts.i32
    for held, new, out in ((cache.K, k, got.K), (cache.V, v, got.V)):
        want = held.numpy().copy()
        want[:, :, length : length + fits] = new.numpy()[:, :, :fits]
        np.testing.assert_array_equal(out, want)
    with ts.checked():
        if fits == more:
            np.testing.assert_array_equal(f(cache, k, v).K, got.K)
            return
        with pytest.raises(
            AxisError,
            match=rf"KVCache\.append: length {length} is out of range for {more} more positions in a cache of 5",  # noqa: E501
        ):
            f(cache, k, v)


def test_a_loop_of_appends_stops_at_the_room():
    k = drawn(1, 2, 1, 3)

    def run(c, k):
        return ts.fori_loop(0, 9, lambda i, c: c.append(k * op.cast(i, "f32"), k), c)

    got = ts.jit(run)(KVCache.empty(1, 2, 5, 3), k)
    assert int(got.length) == 5
    np.testing.assert_array_equal(
        got.K[0, 0, :, 0], k.numpy()[0, 0, 0, 0] * np.arange(5, dtype=np.float32)
    )
    with ts.checked(), pytest.raises(AxisError, match=r"KVCache\.append: length 5 is out of range"):
        ts.jit(run)(KVCache.empty(1, 2, 5, 3), k)


@pytest.mark.parametrize(
    ("k", "v", "text"),
    [
        ((2, 2, 1, 3), (1, 2, 1, 3),
        "got f32[2,2,1,3] for K, expected f32[1,2,positions,3] as in the cache f32[1,2,5,3]"),
        ((1, 2, 1, 3), (1, 3, 1, 3),
        "got f32[1,3,1,3] for V, expected f32[1,2,positions,3] as in the cache f32[1,2,5,3]"),
        ((1, 2, 1, 4), (1, 2, 1, 4),
        "got f32[1,2,1,4] for K, expected f32[1,2,positions,3] as in the cache f32[1,2,5,3]"),
        ((1, 2, 3), (1, 2, 3), "got f32[1,2,3] for K, expected f32[1,2,positions,3] as in the cache "
                               "f32[1,2,5,3]"),
        ((1, 2, 2, 3), (1, 2, 1, 3), "got K f32[1,2,2,3] and V f32[1,2,1,3], expected as many positions"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(k, v, text):
    for f in (lambda c, k, v: c.append(k, v), ts.jit(lambda c, k, v: c.append(k, v))):
        with pytest.raises(ShapeError) as e:
            f(KVCache.empty(1, 2, 5, 3), drawn(*k), drawn(*v))
        assert e.value.message == f"KVCache.append: {text}"


def test_symbolic_positions():
    @ts.jit
    def f(c: KVCache, k: ts.Tensor[1, 2, "S", 3, ts.f32]):
        return c.append(k, k)

    for n in (1, 2, 3):
        got = f(filled(3), drawn(1, 2, n, 3))
        assert int(got.length) == min(3 + n, 5)
    assert f.compiled == 1
