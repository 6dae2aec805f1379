"""Caches: decode is prefill is any chunking to the bit; what does not fit is an error; annotated ones are
linear.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, Tensor, f32, op
from tessera.core.errors import (
    AnnotationError,
    AxisError,
    OperandError,
    RuleError,
    ShapeError,
    TraceError,
)

B, HEADS, SHARED, D, S = 2, 4, 2, 8, 70
RNG = np.random.default_rng(5)


def drawn(*shape: int) -> Any:
    return ts.tensor(RNG.standard_normal(shape).astype(np.float32))


Q, K, V = drawn(B, HEADS, S, D), drawn(B, SHARED, S, D), drawn(B, SHARED, S, D)


@ts.jit
def step(cache: Any, q: Tensor["B", "H", "S", "D", f32], k: Tensor["B", "G", "S", "D", f32],
    v: Tensor["B", "G", "S", "D", f32]):  # fmt: skip
    cache = cache.append(k, v)
    return ts.flash_attention(q, cache), cache


def chunked(cache: Any, size: int, between: Any = lambda c: c) -> np.ndarray:
    """The rows of attention, fed in chunks of this size."""
    outs = []
    for i in range(0, S, size):
        y, cache = step(cache, *(x[:, :, i : i + size] for x in (Q, K, V)))
        cache = between(cache)
        outs.append(y.numpy())
    return np.concatenate(outs, axis=1)


KINDS = {
    "plain": {}, "lengths": {"per_sequence": True}, "i8": {"quantized": "i8"}, "f8": {"quantized": "f8e4m3"},
    "window": {"window": 9}, "pages": {"page": 16, "pages": 12},
}  # fmt: skip


def empty(kind: str, size: int = 80) -> Any:
    return KVCache.empty(B, SHARED, size, D, **KINDS[kind])


def by_numpy(window: int = S) -> np.ndarray:
    """Attention in f64, position by position."""
    q, k, v = (x.numpy().astype(np.float64) for x in (Q, K, V))
    k, v = (np.repeat(x, HEADS // SHARED, axis=1) for x in (k, v))
    scores = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(D)
    i, j = np.mgrid[:S, :S]
    scores = np.where((j <= i) & (j > i - window), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("bhij,bhjd->bihd", weights / weights.sum(-1, keepdims=True), v)
    return y.reshape(B, S, HEADS * D)


@pytest.mark.parametrize("kind", KINDS)
def test_decode_is_prefill_is_any_chunking(kind):
    whole = chunked(empty(kind), S)
    for size in (1, 7, 64):
        np.testing.assert_array_equal(chunked(empty(kind), size), whole)
    error = {"i8": 0.03, "f8": 0.12}.get(kind, 1e-5)
    np.testing.assert_allclose(whole, by_numpy(9 if kind == "window" else S), atol=error)


def test_pages_have_the_bits_of_one_room():
    np.testing.assert_array_equal(chunked(empty("pages"), 7), chunked(empty("plain"), 7))


def test_a_ring_keeps_its_window_in_little_memory():
    ring = KVCache.empty(B, SHARED, 16, D, window=9)
    np.testing.assert_allclose(chunked(ring, 8), by_numpy(9), atol=1e-5)
    np.testing.assert_array_equal(chunked(ring, 8), chunked(ring, 1))


@ts.jit
def ragged_step(cache: Any, q: Tensor["B", "H", "S", "D", f32], k: Tensor["B", "G", "S", "D", f32],
    v: Tensor["B", "G", "S", "D", f32], counts: Any):  # fmt: skip
    cache = cache.append(k, v, counts=counts)
    return ts.flash_attention(q, cache, counts=counts), cache


@pytest.mark.parametrize("kind", ["lengths", "pages"])
def test_sequences_of_unequal_lengths(kind):
    """A sequence has the bits that it has beside others of other lengths."""
    counts = np.array([[5, 3], [1, 4], [4, 0], [2, 2]], np.int32)
    cache, rows = empty(kind), [[], []]
    at = [0, 0]
    for c in counts:
        n = int(c.max())
        parts = [np.zeros((B, h, n, D), np.float32) for h in (HEADS, SHARED, SHARED)]
        for b in range(B):
            for p, x in zip(parts, (Q, K, V), strict=True):
                p[b, :, : c[b]] = x.numpy()[b, :, at[b] : at[b] + c[b]]
        q, k, v = map(ts.tensor, parts)
        y, cache = ragged_step(cache, q, k, v, ts.tensor(c))
        y = y.numpy()
        for b in range(B):
            rows[b].append(y[b, : c[b]])
            at[b] += c[b]
    assert cache.length.numpy().tolist() == at == [12, 9]
    want = chunked(empty(kind), 1)
    for b in range(B):
        np.testing.assert_array_equal(np.concatenate(rows[b]), want[b, : at[b]])


@pytest.mark.parametrize("kind", ["plain", "i8", "pages", "window"])
def test_moving_to_the_host_and_back_changes_nothing(kind):
    moved = chunked(empty(kind), 7, lambda c: c.offload().prefetch("cpu"))
    np.testing.assert_array_equal(moved, chunked(empty(kind), 7))


# What caches can do -----------------------------------------------------------------------------


def rows(cache: Any) -> list[np.ndarray]:
    """The keys of each sequence, as far as they are filled."""
    k = cache.read()[0].numpy()
    n = np.broadcast_to(cache.length.numpy(), (k.shape[0],))
    return [k[b, :, : n[b]] for b in range(k.shape[0])]


def filled(kind: str, n: int = 20) -> Any:
    return empty(kind).append(K[:, :, :n], V[:, :, :n])


@pytest.mark.parametrize(
    ("kind", "jitted"), [("plain", False), ("lengths", False), ("pages", False), ("pages", True)]
)
def test_truncate_fork_prune_and_reset(kind, jitted):
    def run(c: Any, k: Any, v: Any) -> Any:
        short = c.truncate(18).append(k, v)
        forked = short.fork(ts.tensor([1, 0, 1])).append(
            *(op.take(x, ts.tensor([0, 1, 0]), axis=0) for x in (k, v))
        )
        return short, forked, c.prune(16), c.reset().append(k, v)

    more = drawn(B, SHARED, 3, D), drawn(B, SHARED, 3, D)
    c = filled(kind)
    short, forked, pruned, fresh = (ts.jit(run) if jitted else run)(c, *more)
    k, m = K.numpy(), more[0].numpy()
    old = [np.concatenate([k[b, :, :18], m[b]], axis=1) for b in range(B)]
    for got, want in zip(rows(short), old, strict=True):
        np.testing.assert_array_equal(got, want)
    for got, (b, e) in zip(rows(forked), ((1, 0), (0, 1), (1, 0)), strict=True):
        np.testing.assert_array_equal(got, np.concatenate([old[b], m[e]], axis=1))
    for b in range(B):
        np.testing.assert_array_equal(rows(pruned)[b], k[b, :, 16:20])
        np.testing.assert_array_equal(rows(fresh)[b], m[b])
        np.testing.assert_array_equal(rows(c)[b], k[b, :, :20])


def test_forks_share_the_pages_of_their_prefix():
    one = KVCache.empty(1, SHARED, 64, D, page=8, pages=12).append(K[:1, :, :20], V[:1, :, :20])
    assert int(one.used) == 3
    four = one.fork([0, 0, 0, 0])
    assert int(four.used) == 7, (
        "a copy of the page that is not full for each, and two that all share"
    )
    assert (four.table.numpy()[:, :2] == one.table.numpy()[:, :2]).all()
    grown = four.append(*(drawn(4, SHARED, 1, D) for _ in range(2)))
    np.testing.assert_array_equal(rows(one)[0], K.numpy()[0, :, :20])
    assert len({r[:, 20].tobytes() for r in rows(grown)}) == 4


def test_a_rolling_cache_keeps_positions():
    c = KVCache.empty(1, SHARED, 8, D, window=5)
    for i in range(11):
        c = c.append(K[:1, :, i : i + 1], V[:1, :, i : i + 1])
    assert c.positions().numpy().tolist() == [8, 9, 10, 3, 4, 5, 6, 7]
    np.testing.assert_array_equal(c.K.numpy()[0, :, 1], K.numpy()[0, :, 9])
    back = c.truncate(9).append(K[:1, :, 9:11], V[:1, :, 9:11])
    np.testing.assert_array_equal(back.K.numpy(), c.K.numpy())


def test_a_loop_over_tokens_in_one_program():
    @ts.jit
    def run(c, q, k, v):
        def body(c, x):
            q, k, v = (op.expand_dims(y, 2) for y in x)
            c = c.append(k, v)
            return c, ts.flash_attention(q, c)

        return ts.scan(body, c, tuple(op.moveaxis(x, 2, 0) for x in (q, k, v)))

    c, y = run(empty("plain"), Q, K, V)
    np.testing.assert_array_equal(y.numpy()[:, :, 0].transpose(1, 0, 2), chunked(empty("plain"), S))
    assert int(c.length) == S


def test_caches_have_derivatives():
    def loss(k: Any, v: Any) -> Any:
        c = KVCache.empty(B, SHARED, 12, D, per_sequence=True).append(k, v)
        return op.sum(op.square(ts.flash_attention(Q[:, :, :6], c)))

    def plain(k: Any, v: Any) -> Any:
        y = op.attention(Q[:, :, :6], k, v, causal=True)
        return op.sum(op.square(y))

    given = K[:, :, :6], V[:, :, :6]
    grads = [ts.jit(ts.grad(f, (0, 1)), target="numpy")(*given) for f in (loss, plain)]
    for got, want in zip(*grads, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), atol=1e-5)


def test_dropout_drops_weights():
    c = filled("plain", 6)
    q = Q[:, :, :6]
    plain = ts.flash_attention(q, c).numpy()
    draws = ts.jit(
        lambda keys: ts.vmap(lambda k: ts.flash_attention(q, c, dropout=0.3, key=k))(keys),
        target="numpy",
    )
    many = draws(ts.split(ts.key(0), 100)).numpy()
    assert not np.array_equal(many[0], many[1])
    np.testing.assert_allclose(many.mean(0), plain, atol=6 * many.std(0).max() / 10)
    assert (many[:, :, 0] == 0).mean() > 0.2, (
        "the first query has one weight, which is dropped or not"
    )


# Effects and linear state -----------------------------------------------------------------------

Cached = KVCache["B", "H", "S_max", "D_h", f32]


def test_effects_are_in_the_text():
    g = ts.trace(
        lambda c, k: c.append(k, k).offload(), KVCache.empty(1, 2, 5, 3), drawn(1, 2, 1, 3)
    )
    assert g.text.count('effects = ["state"]') == 2
    assert g.text.count('effects = ["movement"]') == 3
    assert ts.ir.parse(g.text).text == g.text


def test_a_write_is_refused_in_what_is_computed_twice():
    c, k = KVCache.empty(1, 2, 5, 3), drawn(1, 2, 1, 3)
    with pytest.raises(
        RuleError,
        match=r"checkpoint: state_write in .* has the effect 'state', which computing again would repeat",
    ):
        ts.jit(ts.grad(ts.checkpoint(lambda k, c: op.sum(c.append(k, k).K))))(k, c)


def test_an_annotated_cache_is_checked_and_one_program():
    @ts.jit
    def f(c: Cached, k: Tensor["B", "H", "S", "D_h", f32]):
        return c.append(k, k)

    for room, n in ((5, 2), (9, 3), (9, 1)):
        assert int(f(KVCache.empty(1, 2, room, 3), drawn(1, 2, n, 3)).length) == n
    assert f.compiled == 1
    with pytest.raises(AnnotationError) as e:
        f(KVCache.empty(1, 2, 5, 3, "f64"), drawn(1, 2, 1, 3))
    assert e.value.message == (
        "argument 'c.K' is f64[1,2,5,3], expected dtype f32 as in Tensor['B', 'H', 'S_max', 'D_h', f32]; "
        "cast it: "
        "c.K.astype(f32)"
    )
    with pytest.raises(
        AnnotationError, match=r"expected a cache as in KVCache\['B', 'H', 'S_max', 'D_h', f32\]"
    ):
        f(drawn(1, 2, 5, 3), drawn(1, 2, 1, 3))


def test_annotations_of_caches_stand_for_caches_in_shapes():
    def f(x: Tensor["B", "S", 16, f32], c: Cached):
        q, k, v = ts.split_qkv(x, heads=2, kv_heads=1)
        c = c.append(k, v)
        return ts.flash_attention(q, c), c

    for s in (ts.shapes(f), ts.shapes(f, Tensor["B", "S", 16, f32], Cached)):
        assert [str(t) for t in s.outputs] == [
            "f32[B,S,2*D_h]",
            *["f32[B,H,S_max,D_h]"] * 2,
            "i32[]",
        ]
        assert {str(g) for g in s.guards} >= {"H == 1", "D_h == 4", "S_max >= S"}
        assert [str(r.type) for r in s.rows if r.what == "state_write"] == [
            "f32[B,H,S_max,D_h]"
        ] * 2
    ring = ts.shapes(f, Tensor["B", "S", 16, f32], Cached @ ts.rolling_window(6))
    assert "S_max - 5 >= S" in {str(g) for g in ring.guards}
    with pytest.raises(ShapeError, match=r"KVCache\.append: got f32\[2,1,3,4\] for K"):
        ts.shapes(f, Tensor[2, 3, 16, f32], KVCache[2, 2, 8, 4, f32])
    for spec in (Cached @ ts.paged, Cached @ ts.rolling_window, KVCache["B", f32]):
        with pytest.raises(OperandError, match="does not say all of a cache; pass one that"):
            ts.shapes(f, Tensor[2, 3, 16, f32], spec)
    with pytest.raises(
        OperandError, match=r"OptimizerState\[x\] says no shapes by itself; pass the state"
    ):
        ts.shapes(f, Tensor[2, 3, 16, f32], ts.OptimizerState["x"])


STALE = {
    "append": lambda c, k: (c.append(k, k), c.append(k, k)),
    "read": lambda c, k: (c.append(k, k), c.K),
    "attention": lambda c, k: (c.append(k, k), ts.flash_attention(k, c)),
    "length": lambda c, k: (c.truncate(1), c.length),
    "returned": lambda c, k: (c.append(k, k), c),
    "reset": lambda c, k: (c.reset(), c.fork([0])),
    "second": lambda c, k: [(d.append(k, k), d.reset()) for d in (c.append(k, k),)],
}


@pytest.mark.parametrize("name", STALE)
def test_a_stale_state_is_refused(name):
    use = STALE[name]

    @ts.jit
    def f(c: Cached, k: Any):
        return use(c, k)

    @ts.jit
    def value(c: Any, k: Any):
        return use(c, k)

    args = KVCache.empty(1, 2, 5, 3), drawn(1, 2, 1, 3)
    with pytest.raises(
        TraceError,
        match=r"KVCache\.\w+: this state is stale: a newer one was made of it; use that one",
    ):
        f(*args)
    value(*args)  # as a value it stays one
    assert int(args[0].length) == 0, "and so does what was given"


# Wrong programs ---------------------------------------------------------------------------------


def new(*shape: int) -> Any:
    return ts.zeros(shape)


WRONG: dict[str, tuple[Any, type[Exception]]] = {
    "KVCache.append: got f32[3,2,1,3] for K, expected f32[1,2,positions,3] as in the cache f32[1,2,5,3]":
        (lambda: KVCache.empty(1, 2, 5, 3).append(new(3, 2, 1, 3), new(1, 2, 1, 3)), ShapeError),
    "KVCache.append: got 6 positions for a cache of 5; make a larger one":
        (lambda: KVCache.empty(1, 2, 5, 3).append(new(1, 2, 6, 3), new(1, 2, 6, 3)), ShapeError),
    "KVCache.append: length 4 is out of range for 2 more positions in a cache of 5; use 0 to 3":
        (lambda: KVCache.empty(1, 2, 5, 3).append(new(1, 2, 4, 3), new(1, 2, 4, 3)).append(new(1, 2, 2, 3),
        new(1, 2, 2, 3)), AxisError),
    "KVCache.append: counts need a length for each sequence; make the cache with per_sequence=True":
        (lambda: KVCache.empty(1, 2, 5, 3).append(new(1, 2, 1, 3), new(1, 2, 1, 3), counts=ts.tensor([1])),
        OperandError),
    "KVCache.append: counts are i64[2], expected one number for each of 1 sequences":
        (lambda: KVCache.empty(1, 2, 5, 3, per_sequence=True).append(new(1, 2, 1, 3), new(1, 2, 1, 3),
        counts=ts.tensor([1, 1])), ShapeError),
    "KVCache.append: counts 3 at [0] is out of range for 2 new positions; use 0 to 2":
        (lambda: KVCache.empty(1, 2, 5, 3, per_sequence=True).append(new(1, 2, 2, 3), new(1, 2, 2, 3),
        counts=ts.tensor([3])), AxisError),
    "KVCache.append: got 3 positions for a ring of 5 with a window of 4, which takes 2 at once; make a "
    "larger ring, or append fewer":
        (lambda: KVCache.empty(1, 2, 5, 3, window=4).append(new(1, 2, 3, 3), new(1, 2, 3, 3)), ShapeError),
    "KVCache.append: got bf16[1,2,1,3] for K, expected f32[1,2,positions,3] as in the cache i8[1,2,5,3]":
        (lambda: KVCache.empty(1, 2, 5, 3, quantized="i8").append(*[new(1, 2, 1, 3).astype("bf16")] * 2),
        ShapeError),
    "KVCache.append: length 4 is out of range for 2 more positions in a cache of 5; use 0 to 3 ":
        (lambda: KVCache.empty(1, 2, 5, 3,
        quantized="i8").append(*[new(1, 2, 4, 3)] * 2).append(*[new(1, 2, 2, 3)] * 2), AxisError),
    "KVCache.append: got f32[1,3,1,3] for V, expected f32[1,2,positions,3] as in the cache":
        (lambda: KVCache.empty(1, 2, 8, 3, page=4, pages=3).append(new(1, 2, 1, 3), new(1, 3, 1, 3)),
        ShapeError),
    "KVCache.append: got K f32[1,2,1,3] and V f32[1,2,2,3], expected as many positions":
        (lambda: KVCache.empty(1, 2, 8, 3, page=4, pages=3).append(new(1, 2, 1, 3), new(1, 2, 2, 3)),
        ShapeError),
    "KVCache.append: pages 2 is out of range for a pool of 1; use 0 to 1":
        (lambda: KVCache.empty(1, 2, 8, 3, page=4, pages=1).append(*[new(1, 2, 5, 3)] * 2), AxisError),
    "KVCache.append: length 8 at [0] is out of range for 1 more positions in a cache of 8; use 0 to 7":
        (lambda: KVCache.empty(1, 2, 8, 3, page=4,
        pages=3).append(*[new(1, 2, 8, 3)] * 2).append(*[new(1, 2, 1, 3)] * 2), AxisError),
    "KVCache.empty: window, quantized and page are kinds of caches; give one of them":
        (lambda: KVCache.empty(1, 2, 8, 3, page=4, pages=3, window=2), OperandError),
    "KVCache.empty: window is 9, expected 1 to 8, the slots of the ring":
        (lambda: KVCache.empty(1, 2, 8, 3, window=9), OperandError),
    "KVCache.empty: quantized is i16, expected one of i8, f8e4m3, f8e5m2":
        (lambda: KVCache.empty(1, 2, 8, 3, quantized="i16"), OperandError),
    "KVCache.empty: page is 4 and pages None, expected how many positions a page has and how many pages "
    "there are":
        (lambda: KVCache.empty(1, 2, 8, 3, page=4), OperandError),
    "KVCache.truncate: length -1 is out of range for a number of positions; use 0 to 2147483647":
        (lambda: KVCache.empty(1, 2, 8, 3).truncate(-1), AxisError),
    "KVCache.truncate: the positions to forget 3 is out of range for a ring of 5 with a window of 4; use 0 "
    "to 1":
        (lambda: _fed(KVCache.empty(1, 2, 5, 3, window=4), 7).truncate(4), AxisError),
    "KVCache.prune: count is 3, but the cache holds 2 positions":
        (lambda: KVCache.empty(1, 2, 5, 3).append(*[new(1, 2, 2, 3)] * 2).prune(3), OperandError),
    "KVCache.prune: count is float 1.5, expected a number of positions":
        (lambda: KVCache.empty(1, 2, 5, 3).prune(1.5), OperandError),
    "KVCache.prune: a rolling cache forgets by itself what its window does not see":
        (lambda: KVCache.empty(1, 2, 5, 3, window=4).prune(1), OperandError),
    "KVCache.prune: count is 3, expected a multiple of the 4 positions of a page":
        (lambda: KVCache.empty(1, 2, 8, 3, page=4, pages=3).prune(3), OperandError),
    "KVCache.fork: the sequences are i64[1,1], expected their numbers, as in [0, 0, 1]":
        (lambda: KVCache.empty(1, 2, 5, 3).fork([[0]]), ShapeError),
    "take: index 1 at [0] is out of range for axis 0 of f32[1,2,5,3]; use -1 to 0":
        (lambda: KVCache.empty(1, 2, 5, 3).fork([1]), AxisError),
    "flash_attention: got Tensor for the cache, expected a KVCache; for keys and values alone use "
    "op.attention(q, k, v)":
        (lambda: ts.flash_attention(new(1, 2, 1, 3), new(1, 2, 1, 3)), OperandError),
    "flash_attention: q is f32[1,3,1,3] and the keys f32[1,2,5,3], expected (batch, heads, seq, dim) with "
    "heads that those of the keys divide":
        (lambda: ts.flash_attention(new(1, 3, 1, 3), KVCache.empty(1, 2, 5, 3)), ShapeError),
    "flash_attention: q is bf16[1,2,1,3] and the keys f32[1,2,5,3], expected one dtype; cast q with astype":
        (lambda: ts.flash_attention(new(1, 2, 1, 3).astype("bf16"), KVCache.empty(1, 2, 5, 3)), OperandError),
    "flash_attention: dropout 0.5 needs key=, such as ts.key(0)":
        (lambda: ts.flash_attention(new(1, 2, 1, 3), KVCache.empty(1, 2, 5, 3), dropout=0.5), OperandError),
    "split_qkv: qkv is f32[2,3], expected (batch, seq, width)": (lambda: ts.split_qkv(new(2, 3), heads=1),
    ShapeError),
    "split_qkv: the width of f32[1,2,10] is no multiple of 6, for 2 heads of queries and 2 of keys and values":  # noqa: E501
        (lambda: ts.split_qkv(new(1, 2, 10), heads=2), ShapeError),
    "split_qkv: heads is 3 and kv_heads 2, expected positive numbers of which the second divides the first":
        (lambda: ts.split_qkv(new(1, 2, 14), heads=3, kv_heads=2), OperandError),
    "state_move: to is 'moon', expected one of device, host": (lambda: op.state_move(new(2), to="moon"),
    OperandError),
}  # fmt: skip


def _fed(cache: Any, n: int) -> Any:
    for _ in range(n):
        cache = cache.append(new(1, 2, 1, 3), new(1, 2, 1, 3))
    return cache


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_wrong_program_says_what_is_wrong(text):
    program, kind = WRONG[text]
    with pytest.raises(kind) as e:
        program()
    assert e.value.message == text.strip()
    assert "test_state.py" in str(e.value)
