"""More kernels with one seeded fault each: what goes wrong in kernels that people write for a living."""

from __future__ import annotations

import numpy as np

from tessera import KTile, block, f32, i8, i16, i32, i64, kernel, tile, u8
from tests.support.cases.seeded_faults import data, fault


@fault("race", data(10, 8), data(10, 8))
@kernel.schedule(block(4))
def dw_stored_not_accumulated(x: KTile["M", "N", f32], dy: KTile["M", "N", f32]):
    dw = tile.empty((x.shape[1],), f32)
    tile.store(dw, tile.sum(tile.load(x) * tile.load(dy), axis=0), at=(0,))
    return dw


@fault("race", data(12, 4), np.array([0, 2, 1, 0, 3, 2, 1, 0, 0, 3, 3, 1], np.int32))
@kernel.schedule(block(4))
def centroid_scatter_distinct(x: KTile["N", 4, f32], a: KTile["N", i32]):
    T = tile.context()
    s = tile.empty((4, 4), f32)
    ids = tile.load(a, T.m)
    tile.store(s, tile.load(x), at=(ids[:, None], tile.arange(4, i32)[None, :]), distinct=True)
    return s


@fault("race", data(3, 9))
@kernel
def row_carry_without_row(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty((x.shape[1],), f32)
    acc = 0.0
    for j in tile.range(x.shape[1]):
        acc = acc + x[i, j]
        tile.store(out, acc, at=(j,))
    return out


@fault("race", data(17))
@kernel
def odd_even_sort_in_place(x: KTile["N", f32]):
    i = tile.program(x.shape[0] - 1)
    a, b = x[i], x[i + 1]
    tile.store(x, tile.minimum(a, b), at=(i,))
    tile.store(x, tile.maximum(a, b), at=(i + 1,))


@fault("race", data(6, 7))
@kernel.schedule(block(4, 4))
def jacobi_in_place(u: KTile["H", "W", f32]):
    i = tile.program((u.shape[0] + 3) // 4) * 4
    j = tile.program((u.shape[1] + 3) // 4) * 4
    up = tile.load(u, at=(i - 1, j), shape=(4, 4))
    dn = tile.load(u, at=(i + 1, j), shape=(4, 4))
    tile.store(u, tile.place(up, None) * 0.5 + tile.place(dn, None) * 0.5, at=(i, j))


@fault("race", data(8, 8))
@kernel
def transpose_in_place_all_pairs(x: KTile["N", "N", f32]):
    i = tile.program(x.shape[0])
    j = tile.program(x.shape[1])
    a, b = x[i, j], x[j, i]
    tile.store(x, b, at=(i, j))
    tile.store(x, a, at=(j, i))


@fault("race", data(20))
@kernel
def histogram_by_load_store(x: KTile["N", f32]):
    i = tile.program(x.shape[0])
    h = tile.empty((4,), f32)
    b = tile.cast(tile.minimum(tile.maximum(x[i] * 2, 0), 3), i32)
    tile.store(h, h[b] + 1, at=(b,), distinct=True)
    return h


@fault("race", data(4, 6, 5))
@kernel
def group_norm_wrong_channel(x: KTile["N", 6, 5, f32]):
    b = tile.program(x.shape[0])
    g = tile.program(2)
    t = tile.load(x, at=(b, g * 3, 0), shape=(1, 3, 5))
    out = tile.empty(x.shape, f32)
    tile.store(out, t - tile.mean(t), at=(b, g * 2, 0))
    return out


@fault("barrier", data(33))
@kernel.schedule(block(8))
def tree_scan_double_buffer(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.place(tile.load(x), None), at=(0,))
    tile.barrier()
    for d in (1, 2, 4):
        a = tile.read(s)
        b = tile.load(s, at=(tile.arange(8, i32) - d,), fill=0)
        tile.store(s, a + b, at=(0,))
        tile.barrier()
    return tile.place(tile.read(s), tile.load(x))


@fault("barrier", data(5, 8))
@kernel
def thomas_no_barrier(x: KTile["B", "N", f32]):
    k = tile.program(x.shape[0])
    s = tile.alloc((8,))
    out = tile.empty(x.shape, f32)
    for i in tile.range(8):
        tile.store(s, x[k, i] * 2, at=(i,))
    for i in tile.range(8):
        tile.store(out, s[7 - i], at=(k, i))
    return out


@fault("barrier", data(4, 8))
@kernel
def bitonic_in_scratch(x: KTile["M", 8, f32]):
    i = tile.program(x.shape[0])
    s = tile.alloc((8,))
    tile.store(s, tile.reshape(tile.load(x, at=(i, 0), shape=(1, 8)), (8,)), at=(0,))
    tile.barrier()
    k = tile.arange(8, i32)
    for step in (4, 2, 1):
        t = tile.read(s)
        o = tile.load(s, at=(k ^ step,))
        tile.barrier()
        tile.store(s, tile.where((k & step) == 0, tile.minimum(t, o), tile.maximum(t, o)), at=(0,))
    tile.barrier()
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.read(s)[None], at=(i, 0))
    return out


@fault("bounds", data(20), np.arange(1, 21).astype(np.int32))
@kernel.schedule(block(4))
def next_unchecked(x: KTile["N", f32], ids: KTile["N", i32]):
    return tile.load(x, rows=tile.load(ids), unchecked=True)


@fault("bounds", data(9))
@kernel.schedule(block(4))
def shift_unchecked(x: KTile["N", f32]):
    tile.load(x)
    return tile.load(x, rows=tile.row_index()[:, 0] + 1, unchecked=True)


@fault("bounds", data(8, 3), np.array([0, 7, 8, 2], np.int64))
@kernel.schedule(block(4))
def embedding_unchecked(t: KTile["V", "D", f32], ids: KTile["K", i64]):
    return tile.load(t, rows=tile.load(ids), unchecked=True)


@fault("bounds", data(40))
@kernel.schedule(block(8))
def scratch_too_short(x: KTile["N", f32]):
    s = tile.alloc((7,))
    t = tile.load(x)
    tile.store(s, tile.place(t, None), at=(tile.arange(8, i32),), distinct=True)
    tile.barrier()
    return tile.place(tile.load(s, at=(tile.arange(8, i32),)), t)


@fault("bounds", data(40))
@kernel
def halo_scratch_off_by_one(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    s = tile.alloc((9,))
    tile.store(s, tile.place(tile.load(x, at=(i - 1,), shape=(10,)), None), at=(0,))
    tile.barrier()
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(s, at=(0,), shape=(8,)) + tile.load(s, at=(2,), shape=(8,)), at=(i,))
    return out


@fault("unwritten", data(37))
@kernel
def tail_dropped(x: KTile["N", f32]):
    i = tile.program(x.shape[0] // 8) * 8
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i,), shape=(8,)) * 2, at=(i,))
    return out


@fault("unwritten", data(9, 11))
@kernel
def last_column_dropped(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    for j in tile.range(x.shape[1] - 1):
        tile.store(out, x[i, j], at=(i, j))
    return out


@fault("unwritten", data(10))
@kernel
def only_even(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 1) // 2) * 2
    out = tile.empty(x.shape, f32)
    tile.store(out, x[i], at=(i,))
    return out


@fault("unwritten", data(10, 10))
@kernel
def upper_triangle_only(x: KTile["N", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    for j in tile.range(i, x.shape[0]):
        tile.store(out, x[i, j], at=(i, j))
    return out


@fault("unwritten", data(6, 8))
@kernel
def rotary_half_only(x: KTile["S", "D", f32]):
    i = tile.program((x.shape[0] + 3) // 4) * 4
    h = x.shape[1] // 2
    out = tile.empty(x.shape, f32)
    tile.store(out, -tile.load(x, at=(i, h), shape=(4, h)), at=(i, 0))
    return out


@fault("unwritten", data(19))
@kernel.schedule(block(8))
def mask_cuts_last(x: KTile["N", f32]):
    t = tile.load(x)
    out = tile.empty(x.shape, f32)
    tile.store(out, t, mask=tile.row_index()[:, 0] < x.shape[0] - 1)
    return out


@fault("unwritten", data(20), np.array([0, 3, 7, 7, 20], np.int32))
@kernel
def ragged_stop_short(x: KTile["T", f32], o: KTile["B1", i32]):
    b = tile.program(o.shape[0] - 1)
    out = tile.empty(x.shape, f32)
    for j in tile.range(o[b], o[b + 1] - 1):
        tile.store(out, x[j] * 2, at=(j,), distinct=True)
    return out


@fault(
    "unwritten",
    data(16),
    np.array([0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 13], np.int32),
)
@kernel.schedule(block(4))
def permutation_with_hole(x: KTile["N", f32], p: KTile["N", i32]):
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x), at=(tile.load(p),), distinct=True)
    return out


@fault("twice", data(20))
@kernel
def overlap_tiles(x: KTile["N", f32]):
    tile.program(1)
    out = tile.empty(x.shape, f32)
    for i in tile.range(0, x.shape[0], 7):
        tile.store(out, tile.place(tile.load(x, at=(i,), shape=(8,)), None), at=(i,))
    return out


@fault("twice", data(6, 6))
@kernel
def diagonal_twice(x: KTile["N", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    for j in tile.range(0, i + 1):
        tile.store(out, x[i, j], at=(i, j))
    for j in tile.range(i, x.shape[0]):
        tile.store(out, x[i, j] * 2, at=(i, j))
    return out


@fault("race", data(20), np.array([0, 5, 9, 20], np.int32))
@kernel
def ragged_overlap(x: KTile["T", f32], o: KTile["B1", i32]):
    b = tile.program(o.shape[0] - 1)
    out = tile.empty(x.shape, f32)
    for j in tile.range(o[b], o[b + 1] + 1):
        tile.store(out, x[j] * 2, at=(j,), distinct=True)
    return out


@fault("place", data(20))
@kernel.schedule(block(8))
def stencil_place_left(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    return tile.place(tile.load(x, at=(i,), shape=(8,)), tile.load(x, at=(i - 1,), shape=(8,)))


@fault("place", data(9, 5))
@kernel
def rows_as_columns(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty((x.shape[1], x.shape[0]), f32)
    tile.store(out, tile.load(x, at=(i, 0), shape=(1, 5)), at=(i, 0))
    return out


@fault("place", data(12))
@kernel
def block_number_not_offset(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 3) // 4)
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.place(tile.load(x, at=(i * 4,), shape=(4,)), None), at=(i,))
    return out


@fault("mask", data(13))
@kernel
def min_without_edge(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8)
    t = tile.place(tile.load(x, at=(i * 8,), shape=(8,)), None)
    out = tile.empty(((x.shape[0] + 7) // 8,), f32)
    tile.store(out, tile.min(t), at=(i,))
    return out


@fault("mask", data(5, 13))
@kernel
def softmax_edge_counts(x: KTile["M", 13, f32]):
    i = tile.program(x.shape[0])
    t = tile.place(tile.load(x, at=(i, 0), shape=(1, 16)), None)
    e = tile.exp(t - tile.max(t))
    out = tile.empty(x.shape, f32)
    tile.store(out, e / tile.sum(e), at=(i, 0))
    return out


@fault("mask", data(13))
@kernel
def sorted_edge(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8)
    t = tile.sort(tile.place(tile.load(x, at=(i * 8,), shape=(8,)), None), axis=0)
    out = tile.empty(((x.shape[0] + 7) // 8,), f32)
    tile.store(out, t[0], at=(i,))
    return out


@fault("scratch", data(37))
@kernel.schedule(block(8))
def partial_scratch_read(x: KTile["N", f32]):
    s = tile.alloc((16,))
    t = tile.load(x)
    tile.store(s, tile.place(t, None), at=(0,))
    tile.barrier()
    return t + tile.sum(tile.read(s))


@fault("scratch", data(6, 8))
@kernel
def carry_scratch_uninit(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    s = tile.alloc((1,))
    out = tile.empty(x.shape, f32)
    for j in tile.range(x.shape[1]):
        now = s[0] + x[i, j]
        tile.barrier()
        tile.store(s, now, at=(0,))
        tile.barrier()
        tile.store(out, now, at=(i, j))
    return out


@fault("scratch", data(6, 8))
@kernel
def scratch_written_under_if(x: KTile["M", 8, f32]):
    i = tile.program(x.shape[0])
    s = tile.alloc((8,))
    t = tile.reshape(tile.load(x, at=(i, 0), shape=(1, 8)), (8,))
    if tile.sum(t) > 0:
        tile.store(s, t, at=(0,))
    tile.barrier()
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.read(s)[None], at=(i, 0))
    return out


@fault("overflow", np.full(40, 100, np.int8))
@kernel.schedule(block(8))
def i8_accumulate(x: KTile["N", i8]):
    s = tile.empty((1,), i8)
    tile.accumulate(s, tile.sum(tile.load(x)), at=(0,))
    return s


@fault("overflow", np.arange(300).astype(np.float32))
@kernel.schedule(block(8))
def i8_index(x: KTile["N", f32]):
    tile.load(x)
    return x[tile.cast(tile.row_index()[:, 0], i8)]


@fault("overflow", data(8, 8))
@kernel
def flat_index_i16(x: KTile["M", 8, f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    k = tile.cast(i, i16) * 8192
    tile.store(out, tile.load(x, at=(k // 8192, 0), shape=(1, 8)), at=(i, 0))
    return out


@fault("overflow", np.full(600, 1, np.uint8))
@kernel.schedule(block(8))
def u8_counter(x: KTile["N", u8]):
    s = tile.empty((1,), u8)
    tile.accumulate(s, tile.load(x), at=(tile.zeros((8,), i32),))
    return s


@fault("overflow", np.full((5, 400), 100, np.int16))
@kernel.schedule(block(4))
def i16_row_sum_cast(x: KTile["M", "N", i16]):
    return tile.cast(tile.sum(tile.cast(tile.load(x), i32), axis=1), i16)
