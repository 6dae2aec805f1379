# ruff: noqa: C408, E701, E702  (the kernels of the specification stand as they are written there)
"""The kernel language: what kernels mean, in the interpreter and as machine code."""

from __future__ import annotations

import math
from math import sqrt

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, KVCache, Schedule, Tile, accum, bf16, block, f32, kernel, op, tile
from tessera.core.flags import override
from tessera.lang.kernel.values import KernelError
from tessera.lang.tile import dropout_in_kernel

INF = math.inf
d = 16


def data(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def both(f, *args, **kwargs):
    """The results by the interpreter, after Python alone and machine code gave the same bits."""
    with ts.interpret():
        want = f(*args, **kwargs)
    with ts.interpret(step=True):
        same(want, f(*args, **kwargs))
    same(want, f(*args, **kwargs))
    return want.numpy() if isinstance(want, ts.Tensor) else tuple(x.numpy() for x in want)


def same(want, got):
    for x, y in zip(*([x] if isinstance(x, ts.Tensor) else x for x in (want, got)), strict=True):
        assert x.type == y.type
        assert x.numpy().tobytes() == y.numpy().tobytes()


# The kernels of the specification, as they are written there


# fmt: off
@kernel.autotune(space=dict(BM=[64,128], BN=[64,96,128], BD=[64,128],
                            warps=[4,8], stages=[2,3], vector=[4,8]),
                 metric="latency_ms", budget_ms=180, cache="~/.sched")
def flash_attention(q: KTile["B*H","S","D_h", bf16 @accum(f32)], cache: KVCache, *, dropout: float,
    causal: bool):
    T  = tile.context()
    Qb = tile.load(q, rows=T.m, cols=T.d, vector=T.vector, prefetch=2)
    acc = tile.zeros((T.m,T.d), f32); m = tile.full((T.m,), -INF); l = tile.zeros((T.m,), f32)
    for nblk in tile.range_n(cache.K.shape, T.n, prefetch=2):
        Kb = tile.load(cache.K, nblk, cols=T.d, vector=T.vector)
        Vb = tile.load(cache.V, nblk, cols=T.d, vector=T.vector)
        S  = tile.dot(Qb, tile.transpose(Kb)) * tile.rsqrt(float(T.d))
        if causal: tile.mask_causal(S, tile.row_index(), tile.col_index(nblk))
        P, m_c, l_c = tile.softmax_online(S)
        if dropout: P = dropout_in_kernel(P, p=dropout)
        acc, m, l = tile.softmax_accumulate(acc, m, l, P, Vb, m_c, l_c)
    return tile.cast(acc / l[:,None], bf16)


@kernel.auto
def attention_score(q: Tile, k: Tile) -> Tile:
    scores = tile.dot(q, k.T) / sqrt(d)
    # Verification ensures no overflow/underflow
    return scores  # noqa: RET504
# fmt: on


def attention(q, k, v, causal, keep=1.0):
    """Attention in float64 on (heads, rows, size)."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        s = np.where(np.tri(*s.shape[-2:], s.shape[-1] - s.shape[-2], dtype=bool), s, -np.inf)
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True) * keep) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 19])
def test_flash_attention_of_the_specification(causal, rows):
    heads, length = (2, 2), 19
    q = ts.tensor(data(4, rows, 16), bf16)
    k, v = (ts.tensor(data(*heads, length, 16, seed=i), bf16) for i in (1, 2))
    cache = KVCache.empty(*heads, 32, 16, "bf16").append(k, v)
    with ts.interpret():
        got = flash_attention(q, cache, dropout=0.0, causal=causal)
    assert got.type == q.type
    flat = (x.numpy().reshape(4, length, 16) for x in (k, v))
    want = attention(q.numpy(), *flat, causal)
    np.testing.assert_allclose(np.asarray(got.numpy(), np.float64), want, atol=0.01)


def test_flash_attention_is_the_same_as_machine_code():
    q = ts.tensor(data(4, 19, 16), bf16)
    k, v = (ts.tensor(data(2, 2, 19, 16, seed=i), bf16) for i in (1, 2))
    cache = KVCache.empty(2, 2, 32, 16, "bf16").append(k, v)
    small = flash_attention.with_schedule(block(16, 8))
    both(small, q, cache, dropout=0.25, causal=True)
    assert len(flash_attention.search.space) == 96


def test_the_bits_of_flash_attention_do_not_depend_on_its_schedule():
    q = ts.tensor(data(1, 11, 8), bf16)
    k, v = (ts.tensor(data(1, 1, 13, 8, seed=i) * 4, bf16) for i in (1, 2))
    cache = KVCache.empty(1, 1, 16, 8, "bf16").append(k, v)
    programs = {}
    with ts.interpret():
        space = block(m=[5, 16], n=[1, 7, 13, 16]).vector([4, 8]).warps([4, 8]).stages([2, 3])
        for s in space:
            f = flash_attention.with_schedule(s)
            text = f.lower(q, cache, dropout=0.2, causal=True).text
            if text not in programs:
                programs[text] = f(q, cache, dropout=0.2, causal=True).numpy().tobytes()
    assert len(space) == 64
    assert len(programs) == 16  # its loop says how far it looks ahead, and warps are of GPUs
    assert len(set(programs.values())) == 1


def test_attention_score_of_the_specification():
    q, k = data(70, 16), data(33, 16, seed=1)
    with ts.interpret():
        got = attention_score(q, k)
    want = q.astype(np.float64) @ k.T.astype(np.float64) / 4
    np.testing.assert_allclose(got.numpy(), want, atol=1e-5)


def test_schedules_of_the_specification_inherit_and_override():
    base_schedule = Schedule(block=(128, 128), warps=8, stages=3)

    @kernel.schedule(base_schedule.with_block(64, 64))
    def small_attention(q: Tile, k: Tile):
        return tile.dot(q, k.T)

    @kernel.schedule(base_schedule.with_warps(4))
    def memory_limited_attention(q: Tile, k: Tile):
        return tile.dot(q, k.T)

    assert small_attention.schedule == Schedule(block=(64, 64), warps=8, stages=3)
    assert memory_limited_attention.schedule == Schedule(block=(128, 128), warps=4, stages=3)
    q, k = data(9, 4), data(5, 4, seed=1)
    with ts.interpret():
        for f in (small_attention, memory_limited_attention):
            np.testing.assert_allclose(f(q, k).numpy(), q @ k.T, atol=1e-5)


# Blocks and edges


@kernel.schedule(block(16))
def scaled_add(x: KTile["N", f32], y: KTile["N", f32], a):
    return tile.load(x) * a + tile.load(y)


@pytest.mark.parametrize("n", [1, 15, 16, 37])
def test_a_tensor_need_not_be_whole_blocks(n):
    x, y = data(n), data(n, seed=1)
    np.testing.assert_array_equal(both(scaled_add, x, y, 2.0), x * 2 + y)


@kernel.schedule(block(6, 5).k(4))
def matmul(a: KTile["M", "K"], b: KTile["K", "N"]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        acc = tile.dot(tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n), acc)
    return acc


def test_a_matrix_product_of_blocks():
    a, b = data(13, 7), data(7, 11, seed=1)
    np.testing.assert_allclose(both(matmul, a, b), a @ b, atol=1e-5)


def test_sizes_stay_symbolic_where_no_tile_needs_their_number():
    t = matmul.lower(data(13, 7), data(7, 11))
    assert t.body is matmul.lower(data(3, 4), data(4, 5)).body
    assert set(t.sizes) == {"M", "K", "N"}


def test_every_schedule_gives_the_same_bits():
    a, b = data(13, 70), data(70, 11, seed=1)
    with ts.interpret():
        made = {
            matmul.with_schedule(s).__call__(a, b).numpy().tobytes()
            for s in block(m=[4, 13, 16], n=[3, 8], k=[5, 16, 80])
        }
    assert len(made) == 1


@kernel.schedule(block(4))
def layernorm(x: KTile["M", "D"], gain: KTile["D"], *, eps=1e-5):
    row = tile.load(x)
    centred = row - tile.mean(row, axis=1, keepdims=True)
    spread = tile.mean(centred * centred, axis=1, keepdims=True)
    return centred * tile.rsqrt(spread + eps) * tile.load(gain)


def test_a_row_is_loaded_whole():
    x, g = data(7, 13), data(13, seed=1)
    w = x.astype(np.float64)
    c = w - w.mean(1, keepdims=True)
    want = c / np.sqrt((c * c).mean(1, keepdims=True) + 1e-5) * g
    np.testing.assert_allclose(both(layernorm, x, g), want, atol=1e-5)


@kernel.schedule(block(4, 8))
def row_sums(x: KTile["M", "N"]):
    T = tile.context()
    total, top = 0.0, tile.full((T.m,), -INF)
    for nb in tile.range_k(x.shape, T.n):
        piece = tile.exp(tile.load(x, rows=T.m, cols=nb))
        total = total + tile.sum(piece, axis=1)
        top = tile.maximum(top, tile.max(-piece, axis=1))
    return total, top


@pytest.mark.parametrize("n", [1, 7, 8, 19])
def test_folds_leave_out_what_lies_past_the_end(n):
    x = data(5, n)
    total, top = both(row_sums, x)
    np.testing.assert_allclose(total, np.exp(x).sum(1), rtol=1e-5)
    np.testing.assert_allclose(top, -np.exp(x).min(1), rtol=1e-5)


# Python around tiles


@kernel
def square(x):
    return x * x


def twice(x):
    return x + square(x)


@kernel.schedule(block(8))
def polynomial(x: KTile["N"], *, powers=(1, 2), doubled=False):
    t = tile.load(x)
    total = tile.zeros(t.shape)
    for p in powers:
        term = t if p == 1 else square(t) if p == 2 else t**p
        total += term
    if doubled:
        total = twice(total)
    return total


def test_kernels_call_kernels_and_functions_and_unroll_python_loops():
    x = data(11)
    np.testing.assert_allclose(both(polynomial, x), x + x * x, rtol=1e-6)
    got = both(polynomial, x, powers=(3,), doubled=True)
    np.testing.assert_allclose(got, x**3 + x**6, rtol=1e-4, atol=1e-6)


@kernel.schedule(block(4))
def stepwise(x: KTile["M", "N"], limit):
    """The sum of a row, in which odd columns count twice and a row beyond a limit is 0."""
    T = tile.context()
    total = tile.zeros((T.m, 1), f32)
    for j in tile.range(x.shape[1]):
        part = tile.load(x, rows=T.m, cols=tile.span(x.shape[1], j, 1))
        weight = 1.0
        if j % 2 == 1:
            weight = 2.0
        total = total + part * weight
    if tile.sum(total) > limit:
        total = total * 0.0
    return total


def test_an_if_on_what_is_known_when_it_runs_selects():
    x = np.abs(data(8, 5))
    want = (x * np.array([1, 2, 1, 2, 1], np.float32)).sum(1, keepdims=True)
    np.testing.assert_allclose(both(stepwise, x, 1e9), want, rtol=1e-6)
    assert not both(stepwise, x, -1.0).any()


@kernel.schedule(block(4))
def store_some(x: KTile["M", "N"], y: KTile["M", "N"]):
    t = tile.load(x)
    tile.store(y, t * 10, mask=t > 0)
    if tile.sum(t) > 0:
        tile.store(y, t)


def test_stores_are_masked_and_conditional_and_the_argument_is_kept():
    x, y = data(6, 5), data(6, 5, seed=1)
    before = y.copy()
    got = both(store_some, x, y)
    want = np.where(x > 0, x * 10, y)
    for rows in (slice(0, 4), slice(4, 6)):
        if x[rows].sum() > 0:
            want[rows] = x[rows]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(y, before)


def test_a_call_that_was_made_before_is_planned():
    x, y = data(9), data(9, seed=1)
    for a in (2.0, 3.0):
        np.testing.assert_array_equal(scaled_add(x, y, a).numpy(), x * np.float32(a) + y)
    np.testing.assert_array_equal(scaled_add(x[::2], ts.tensor(y[:5]), 1.0).numpy(), x[::2] + y[:5])
    np.testing.assert_array_equal(scaled_add(x, y, a=1.0).numpy(), x + y)
    t, before = data(6, 5), data(6, 5, seed=1)
    kept = before.copy()
    first, second = store_some(t, before), store_some(t, before)
    assert first.numpy().tobytes() == second.numpy().tobytes()
    np.testing.assert_array_equal(before, kept)


@kernel.schedule(block(4))
def embed(ids: KTile["N"], table: KTile["V", "D"]):
    return tile.load(table, rows=tile.load(ids))


def test_rows_at_places_that_a_tile_holds():
    ids, table = np.array([3, 0, 6, 6, 1], np.int64), data(7, 5)
    np.testing.assert_array_equal(both(embed, ids, table), table[ids])


@kernel.schedule(block(4))
def through_scratch(x: KTile["M", 8]):
    room = tile.alloc((4, 8), f32, space="shared")
    tile.copy_async(room, x, rows=tile.context().m)
    tile.wait()
    tile.barrier()
    return tile.read(room) * 2 + tile.load(x) * 0


def test_scratch_is_filled_asynchronously():
    x = data(8, 8)
    np.testing.assert_allclose(both(through_scratch, x), x * 2, rtol=1e-6)


@kernel.schedule(block(3))
def along_own_grid(x: KTile["B", "M", "N"]):
    return tile.load(x) + tile.cast(tile.row_index(), f32)


def test_batch_axes_are_an_axis_of_the_grid():
    x = data(2, 5, 4)
    want = x + np.arange(5, dtype=np.float32)[:, None]
    np.testing.assert_allclose(both(along_own_grid, x), want, rtol=1e-6)


@kernel.schedule(block(4, 3))
def block_sums(x: KTile["B", "M", "N"]):
    T = tile.context()
    return tile.per_block(tile.sum(tile.load(x, rows=T.m, cols=T.n)))


def test_instances_return_partial_sums_side_by_side():
    x = data(2, 6, 7)
    want = [[b[i : i + 4, j : j + 3].sum() for i in (0, 4) for j in (0, 3, 6)] for b in x]
    np.testing.assert_allclose(both(block_sums, x), want, rtol=1e-5, atol=1e-6)


@kernel.schedule(block(4))
def made_by_hand(x: KTile["B", "M", "N"]):
    y = tile.empty(x.shape, f32)
    t = tile.load(x) + tile.batch_index()
    tile.store(y, t, rows=tile.context().m)
    return y


def test_a_kernel_makes_a_tensor_and_stores_to_it():
    x = data(3, 6, 5)
    want = x + np.arange(3, dtype=np.float32)[:, None, None]
    np.testing.assert_allclose(both(made_by_hand, x), want, rtol=1e-6)


@kernel
def by_hand(x: KTile["M", "N"], y: KTile["M", "N"]):
    """Rows from the last to the first, each instance one, in pieces of five columns."""
    row = tile.program(x.shape[0])
    for nb in tile.range_m(x.shape[1], 5, start=5):
        tile.prefetch(x, tile.span(x, row, 1), nb)
        part = tile.load(x, tile.span(x, x.shape[0] - 1 - row, 1), nb)
        tile.store(y, part, rows=tile.span(x, row, 1), cols=nb)


def test_a_grid_and_places_by_hand():
    x, y = data(4, 13), data(4, 13, seed=1)
    want = np.concatenate([y[:, :5], x[::-1, 5:]], axis=1)
    np.testing.assert_array_equal(both(by_hand, x, y), want)


@kernel.schedule(block(4, 4))
def causal_sums(x: KTile["N", "D"]):
    """For each row the sum of the rows up to it: later blocks are not visited."""
    T = tile.context()
    total = tile.zeros((T.m, T.d), f32)
    rows = tile.row_index(x)
    for nb in tile.range_n(x.shape, T.n, stop=(tile.program_of("m") + 1) * T.m):
        seen = tile.cast(tile.col_index(nb) <= rows, f32)
        total = tile.dot(seen, tile.load(x, nb), total)
    return total


def test_a_loop_may_stop_where_an_instance_says():
    x = data(10, 3)
    np.testing.assert_allclose(both(causal_sums, x), np.cumsum(x, 0), atol=1e-5)


def test_a_kernel_is_stepped_through_as_python(capsys):
    @kernel.schedule(block(4))
    def watched(x: KTile["N"]):
        t = tile.load(x) * 2
        print(t)
        return t

    x = np.arange(6, dtype=np.float32)
    with ts.interpret(step=True):
        np.testing.assert_array_equal(watched(x).numpy(), x * 2)
    assert capsys.readouterr().out == "tile f32[4]\n[0. 2. 4. 6.]\ntile f32[4]\n[ 8. 10.  0.  0.]\n"
    np.testing.assert_array_equal(watched(x).numpy(), x * 2)
    assert capsys.readouterr().out == ""


@kernel.schedule(block(4, 4))
def lanes(x: KTile["M", "N"]):
    """Sums of exponentials, in four lanes that are joined at the end."""
    T = tile.context()
    total = tile.zeros((T.m, T.n))
    for nb in tile.range_k(x.shape, T.n):
        total = total + tile.exp(tile.load(x, rows=T.m, cols=nb))
    return tile.sum(total, axis=1)


def test_what_a_loop_adds_up_in_lanes_keeps_them_past_the_end():
    x = data(3, 8)
    np.testing.assert_allclose(both(lanes, x), np.exp(x).sum(1), rtol=1e-5)
    x = data(3, 7)
    np.testing.assert_allclose(both(lanes, x), np.exp(x).sum(1), rtol=1e-5)


def test_an_empty_tensor_has_an_empty_result():
    assert scaled_add(data(0), data(0), 1.0).numpy().shape == (0,)
    assert matmul(data(0, 3), data(3, 2)).numpy().shape == (0, 2)
    assert not matmul(data(2, 0), data(0, 3)).numpy().any()


def test_a_kernel_in_a_jitted_function_is_a_node_of_its_graph():
    @ts.jit
    def f(a, b):
        return ts.op.exp(matmul(a, b + 1)) * 2

    a, b = data(13, 7), data(7, 11, seed=1)
    want = np.exp(a.astype(np.float64) @ (b + 1)) * 2
    np.testing.assert_allclose(f(a, b).numpy(), want, rtol=1e-4)
    assert [n.op.name for n in f.lower(ts.tensor(a), ts.tensor(b)).graph.nodes].count("kernel") == 1
    batched = ts.vmap(matmul, in_axes=(0, None))(ts.tensor(np.stack([a, a])), ts.tensor(b))
    np.testing.assert_allclose(batched.numpy()[1], a @ b, atol=1e-5)


def test_a_jitted_kernel_has_symbolic_sizes_unless_a_tile_needs_the_number():
    f = ts.jit(lambda a, b: matmul(a, b))
    g = ts.trace(f, ts.Tensor["P", "Q", f32], ts.Tensor["Q", 3, f32])
    assert str(g.outputs[0].type) == "f32[P,3]"
    with pytest.raises(ts.TesseraError, match=r"size D is symbolic here .* give the axis a number"):
        ts.trace(lambda x, g: layernorm(x, g), ts.Tensor["P", "Q", f32], ts.Tensor["Q", f32])


scale = 2.0


def test_a_name_that_changes_is_read_again():
    global scale

    @kernel
    def scaled(x: KTile["N"]):
        return tile.load(x) * scale

    x = data(3)
    with ts.interpret():
        first = scaled(x).numpy()
        scale = 3.0
        second = scaled(x).numpy()
        scale = 2.0
    np.testing.assert_allclose(second / first, 1.5, rtol=1e-6)


def test_a_tensor_that_is_none_is_part_of_what_a_call_remembers():
    @kernel
    def joined(x: KTile["N"], y: KTile["N"], z: KTile["N"]):
        if y is None:
            return tile.load(x) - tile.load(z)
        return tile.load(x) + tile.load(y) * tile.load(z)

    x, y, z = (data(21, seed=i) for i in range(3))
    with override(verify=False):
        for _ in range(2):  # the second time there is a plan for each
            np.testing.assert_array_equal(joined(x, None, z).numpy(), x - z)
            np.testing.assert_array_equal(joined(x, y, z).numpy(), x + y * z)
    assert len(joined._plans) == 2


# Errors


def message(f, *args, **kwargs):
    with pytest.raises(ts.TesseraError) as caught, ts.interpret():
        f(*args, **kwargs)
    return str(caught.value).splitlines(), caught.value


def test_an_error_shows_the_line_with_a_caret():
    @kernel
    def wrong(x: KTile["M", "N"]):
        t = tile.load(x)
        return tile.exp(tile.dot(t, t))

    lines, error = message(wrong, data(3, 4))
    assert lines[0] == "dot: f32[64,4] and f32[64,4] are not (m, k) and (k, n)"
    assert lines[1].endswith("return tile.exp(tile.dot(t, t))")
    begin = lines[2].index("^")
    assert lines[1][begin : begin + lines[2].count("^")] == "tile.dot(t, t)"
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[1:] == ["message", "__call__"] or frames == ["message", "__call__"]


def _no_load(x: KTile["N"]):
    return x + 1


def _carried(x: KTile["M", "N"]):
    T = tile.context()
    t = tile.zeros((T.m,), f32)
    for nb in tile.range_k(x.shape, 4):
        t = tile.load(x, rows=T.m, cols=nb)
    return t


def _none_carried(x: KTile["M", "N"]):
    last = None
    for j in tile.range(3):
        last = j
    return tile.load(x) * last


def _nothing(x: KTile["N"]):
    tile.load(x)


def _everywhere(x: KTile["M", "N"]):
    return tile.sum(tile.load(x))


def _while(x: KTile["N"]):
    while True:
        pass


def _try(x: KTile["N"]):
    try:
        return tile.load(x)
    finally:
        pass


def _undefined(x: KTile["N"]):
    return tile.load(x) + missing


def _branch(x: KTile["N"]):
    t = tile.load(x)
    if tile.sum(t) > 0:
        y = t
    return y


def _library(x: KTile["N"]):
    return math.exp(tile.load(x))


def _hint(x: KTile["N"]):
    return tile.load(x, colour=3)


def _truth(x: KTile["N"]):
    t = tile.load(x)
    if t > 0:
        t = -t
    return t


ERRORS = [
    (_no_load, 1, "add: x: f32[N] lies in memory; load a tile of it with tile.load"),
    (_carried, 2, "t is f32[64] before the loop and f32[64,4] after a round of it"),
    (_none_carried, 2, "last is None before the loop; a loop carries tiles"),
    (_nothing, 1, "_nothing neither returns nor stores anything"),
    (_everywhere, 2, "every instance along the grid axis _m returns the whole f32[]; return a tile of each "
     "block, or tile.per_block of it"),
    (_while, 1, "while: nothing ends this loop; leave it by break"),
    (_try, 1, "a kernel has no statement of the kind 'try'"),
    (_undefined, 1, "missing is not defined"),
    (_branch, 1, "y is assigned in one branch of an if alone; give it a value before"),
    (_library, 1, "exp is a Python function that knows no tiles; write tile.exp"),
    (_hint, 1, "there is no hint colour; there are vector, stages, swizzle, prefetch"),
    (_truth, 1, "a condition needs one truth value, got bool[64]; use tile.where for elements"),
]  # fmt: skip


@pytest.mark.parametrize(("f", "rank", "text"), ERRORS, ids=[e[0].__name__ for e in ERRORS])
def test_errors_say_what_is_wrong(f, rank, text):
    lines, _ = message(kernel(f), data(*(5, 6)[:rank]))
    assert lines[0] == text
    assert "test_kernel_language.py" in lines[1]


def test_an_argument_must_fit_its_annotation():
    lines, _ = message(scaled_add, data(3).astype(np.float64), data(3), 1.0)
    assert lines[0].startswith("argument 'x' is f64[3], expected dtype f32")
    lines, _ = message(scaled_add, data(3), data(4), 1.0)
    assert "N" in lines[0]


def test_an_intrinsic_is_for_kernels():
    with pytest.raises(KernelError, match=r"tile\.zeros is for kernels"):
        tile.zeros((2, 2))


@kernel
def _statistics(x: KTile["N"]):
    t = tile.load(x)
    return tile.erfinv(t) + tile.lgamma(t)


def test_functions_of_statistics_have_the_bits_of_ops():
    x = ts.tensor(np.array([0.25, 0.5, 0.9], np.float32))
    assert np.array_equal(_statistics(x).numpy(), (op.erfinv(x) + op.lgamma(x)).numpy())


@kernel
def chosen_before(x: KTile["N", 4, f32], *, first: bool):
    i = tile.program(x.shape[0])
    t = tile.load(x, at=(i, 0), shape=(1, 4))
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.where(first, t, 5), at=(i, 0))
    return out


@pytest.mark.parametrize("first", [True, False])
def test_where_of_a_known_condition_has_the_shape_of_both_sides(first):
    """It was the number 5 alone, which a store wrote to one element."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    want = x if first else np.full_like(x, 5)
    np.testing.assert_array_equal(chosen_before(x, first=first).numpy(), want)
    with ts.interpret(step=True):
        np.testing.assert_array_equal(chosen_before(x, first=first).numpy(), want)
