"""Kernels with one seeded fault each, by kind, and arguments to look at them with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera import KTile, block, f32, i8, i16, i32, i64, kernel, tile


@dataclass(frozen=True)
class Fault:
    """A kernel with a fault, its kind, and its arguments."""

    kind: str
    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


FAULTS: dict[str, Fault] = {}


def data(*shape: int) -> Any:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def ints(*values: int, dtype: Any = np.int32) -> Any:
    return np.array(values, dtype)


def fault(kind: str, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    def keep(k: Any) -> Any:
        name = f"{kind}_{k.signature.name}"
        assert name not in FAULTS, name
        FAULTS[name] = Fault(kind, k, args, kwargs)
        return k

    return keep


# Races: two instances write one element --------------------------------------------------------------


@fault("race", data(37))
@kernel.schedule(block(8))
def total_in_one_place(x: KTile["N", f32]):
    out = tile.empty((1,), f32)
    tile.store(out, tile.sum(tile.load(x)), at=(0,))
    return out


@fault("race", data(37))
@kernel
def steps_shorter_than_blocks(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 3) // 4) * 4
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i,), shape=(8,)), at=(i,))
    return out


@fault("race", data(9, 20))
@kernel
def columns_share_a_row_sum(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    j = tile.program((x.shape[1] + 7) // 8) * 8
    out = tile.empty((x.shape[0],), f32)
    tile.store(out, tile.sum(tile.load(x, at=(i, j), shape=(1, 8))), at=(i,))
    return out


@fault("race", data(40))
@kernel
def halo_is_written_too(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    t = tile.load(x, at=(i - 1,), shape=(10,))
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.place(t, None) * 2, at=(i - 1,))
    return out


@fault("race", data(40))
@kernel
def neighbour_in_place(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    t = tile.load(x, at=(i + 1,), shape=(8,))
    tile.store(x, tile.place(t, None), at=(i,))


@fault("race", data(12), ints(0, 3, 3, 7, 7, 7, 1, 2, 4, 5, 6, 8))
@kernel.schedule(block(4))
def scatter_said_distinct(x: KTile["N", f32], ids: KTile["N", i32]):
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x), at=(tile.load(ids),), distinct=True)
    return out


@fault("race", data(6, 8), ints(0, 1, 1, 2, 4, 5))
@kernel
def rows_sent_to_one_row(x: KTile["M", 8, f32], to: KTile["M", i32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i, 0), shape=(1, 8)), at=(to[i], 0), distinct=True)
    return out


@fault("race", data(33))
@kernel
def quotient_of_the_instance(x: KTile["N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(((x.shape[0] + 1) // 2,), f32)
    tile.store(out, x[i], at=(i // 2,))
    return out


@fault("race", data(33))
@kernel
def remainder_of_the_instance(x: KTile["N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty((8,), f32)
    tile.store(out, x[i], at=(i % 8,))
    return out


@fault("race", data(5, 5))
@kernel
def both_triangles(x: KTile["N", "N", f32]):
    i, j = tile.program(x.shape[0]), tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    tile.store(out, x[i, j], at=(i, j))
    tile.store(out, x[i, j], at=(j, i))
    return out


@fault("race", data(4, 9))
@kernel
def heads_forgotten(x: KTile["H", "N", f32]):
    h = tile.program(x.shape[0])
    i = tile.program((x.shape[1] + 3) // 4) * 4
    out = tile.empty((x.shape[1],), f32)
    tile.store(out, tile.load(x, at=(h, i), shape=(1, 4))[0], at=(i,))
    return out


@fault("race", data(40))
@kernel
def prefix_by_neighbours(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    before = tile.load(x, at=(i - 8,), shape=(8,))
    here = tile.load(x, at=(i,), shape=(8,))
    tile.store(x, tile.place(before, None) + tile.place(here, None), at=(i,))


# Barriers ----------------------------------------------------------------------------------------------


@fault("barrier", data(40))
@kernel.schedule(block(8))
def no_barrier_after_a_store(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.load(x), at=(0,))
    return tile.place(tile.read(s) + 1, tile.load(x))


@fault("barrier", data(40))
@kernel.schedule(block(8))
def no_barrier_before_the_next_round(x: KTile["N", f32]):
    s = tile.alloc((8,))
    total = tile.zeros((8,), f32)
    for k in tile.range(4):
        tile.store(s, tile.place(tile.load(x), None) * k, at=(0,))
        tile.barrier()
        total = total + tile.read(s)
    return tile.place(total, tile.load(x))


@fault("barrier", data(40))
@kernel.schedule(block(8))
def no_wait_for_a_copy(x: KTile["N", f32]):
    T = tile.context()
    s = tile.alloc((T.m,))
    tile.copy_async(s, x, T.m)
    tile.barrier()
    return tile.place(tile.read(s), tile.load(x))


@fault("barrier", data(40))
@kernel.schedule(block(8))
def wait_leaves_one_pending(x: KTile["N", f32]):
    T = tile.context()
    s = tile.alloc((T.m,))
    tile.copy_async(s, x, T.m)
    tile.wait(1)
    tile.barrier()
    return tile.place(tile.read(s), tile.load(x))


@fault("barrier", data(40))
@kernel.schedule(block(8))
def no_barrier_after_the_wait(x: KTile["N", f32]):
    T = tile.context()
    s = tile.alloc((T.m,))
    tile.copy_async(s, x, T.m)
    tile.wait(0)
    return tile.place(tile.read(s), tile.load(x))


@fault("barrier", data(40))
@kernel.schedule(block(8))
def barrier_in_front_of_the_store(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.barrier()
    tile.store(s, tile.load(x), at=(0,))
    return tile.place(tile.read(s), tile.load(x))


@fault("barrier", data(40))
@kernel.schedule(block(8))
def reversed_by_indices(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.load(x), at=(0,))
    turned = tile.load(s, at=(7 - tile.arange(8),))
    return tile.place(turned, tile.load(x))


@fault("barrier", data(40))
@kernel.schedule(block(8))
def scattered_then_read(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.place(tile.load(x), None), at=(7 - tile.arange(8),), distinct=True)
    return tile.place(tile.read(s), tile.load(x))


@fault("barrier", data(64))
@kernel.schedule(block(8))
def tree_without_barriers(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.load(x), at=(0,))
    tile.barrier()
    for half in (4, 2, 1):
        low = tile.load(s, at=(0,), shape=(half,))
        high = tile.load(s, at=(half,), shape=(half,))
        tile.store(s, tile.place(low, None) + tile.place(high, None), at=(0,))
    tile.barrier()
    out = tile.empty(((x.shape[0] + 7) // 8,), f32)
    tile.store(out, tile.load(s, at=(0,), shape=(1,)), at=(tile.program_of("m"),))
    return out


@fault("barrier", data(40))
@kernel.schedule(block(8))
def overwritten_before_it_is_read(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.load(x), at=(0,))
    tile.barrier()
    first = tile.read(s)
    tile.store(s, first * 2, at=(0,))
    tile.barrier()
    return tile.place(tile.read(s) + first, tile.load(x))


# Bounds ------------------------------------------------------------------------------------------------


@fault("bounds", data(10), ints(0, 3, 10))
@kernel
def unchecked_index_at_the_size(x: KTile["N", f32], ids: KTile["K", i32]):
    at = tile.load(ids)
    return tile.place(tile.load(x, at=(at,), unchecked=True), at)


@fault("bounds", data(10), ints(-1, 3, 9))
@kernel
def unchecked_negative_index(x: KTile["N", f32], ids: KTile["K", i32]):
    at = tile.load(ids)
    return tile.place(tile.load(x, at=(at,), unchecked=True), at)


@fault("bounds", data(6, 4), ints(0, 9))
@kernel
def unchecked_rows(x: KTile["N", 4, f32], ids: KTile["K", i32]):
    return tile.load(x, rows=tile.load(ids), cols=4, unchecked=True)


@fault("bounds", data(20))
@kernel.schedule(block(8))
def unchecked_after_arithmetic(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    at = i + tile.arange(8) + 1
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(at,), unchecked=True), at=(i,))
    return out


@fault("bounds", data(16))
@kernel.schedule(block(8))
def scratch_read_past_its_end(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.load(x), at=(0,))
    tile.barrier()
    return tile.place(tile.load(s, at=(1,), shape=(8,)), tile.load(x))


@fault("bounds", data(16))
@kernel.schedule(block(8))
def scratch_written_past_its_end(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.zeros((8,)), at=(0,))
    tile.barrier()
    tile.store(s, tile.load(x), at=(4,))
    tile.barrier()
    return tile.place(tile.read(s), tile.load(x))


@fault("bounds", data(16))
@kernel.schedule(block(8))
def ring_without_a_remainder(x: KTile["N", f32]):
    s = tile.alloc((2, 8))
    tile.store(s, tile.zeros((2, 8)), at=(0, 0))
    total = tile.zeros((8,))
    for k in tile.range(4):
        tile.barrier()
        tile.store(s, tile.place(tile.load(x), None)[None, :], at=(k, 0))
        tile.barrier()
        total = total + tile.load(s, at=(k, 0), shape=(1, 8))[0]
    return tile.place(total, tile.load(x))


@fault("bounds", data(16))
@kernel.schedule(block(8))
def negative_place_of_scratch(x: KTile["N", f32]):
    s = tile.alloc((8,))
    tile.store(s, tile.load(x), at=(0,))
    tile.barrier()
    return tile.place(tile.load(s, at=(-1,), shape=(8,)), tile.load(x))


# Results that are not written, or written twice ----------------------------------------------------------


@fault("unwritten", data(37))
@kernel
def tail_is_left_out(x: KTile["N", f32]):
    i = tile.program(x.shape[0] // 8) * 8
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i,), shape=(8,)), at=(i,))
    return out


@fault("unwritten", data(9, 20))
@kernel
def only_the_first_columns(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i, 0), shape=(1, 16)), at=(i, 0))
    return out


@fault("unwritten", data(37))
@kernel
def steps_longer_than_blocks(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 15) // 16) * 16
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i,), shape=(8,)), at=(i,))
    return out


@fault("unwritten", data(9))
@kernel
def never_stored(x: KTile["N", f32]):
    i = tile.program(x.shape[0])
    out, other = tile.empty(x.shape, f32), tile.empty(x.shape, f32)
    tile.store(out, x[i] * 2, at=(i,))
    return out, other


@fault("unwritten", data(9, 5))
@kernel
def loop_stops_one_early(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    for j in tile.range(x.shape[1] - 1):
        tile.store(out, x[i, j], at=(i, j))
    return out


@fault("unwritten", data(9, 5))
@kernel
def loop_begins_at_one(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    for j in tile.range(1, x.shape[1]):
        tile.store(out, x[i, j], at=(i, j))
    return out


@fault("unwritten", data(9, 5))
@kernel
def only_the_diagonal(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    tile.store(out, x[i, i], at=(i, i))
    return out


@fault("unwritten", data(30))
@kernel.schedule(block(8))
def stored_where_positive(x: KTile["N", f32]):
    t = tile.load(x)
    out = tile.empty(x.shape, f32)
    tile.store(out, t, mask=t > 0)
    return out


@fault("unwritten", data(30))
@kernel.schedule(block(8))
def stored_under_a_condition(x: KTile["N", f32]):
    t = tile.load(x)
    out = tile.empty(x.shape, f32)
    if tile.max(t) > 0:
        tile.store(out, t)
    return out


@fault("unwritten", data(30))
@kernel.schedule(block(8))
def early_return_before_the_store(x: KTile["N", f32]):
    t = tile.load(x)
    out = tile.empty(x.shape, f32)
    if tile.max(t) < 0.5:
        return out
    tile.store(out, t)
    return out


@fault("unwritten", data(12), ints(0, 3, 3, 7, 7, 7, 1, 2, 4, 5, 6, 8))
@kernel.schedule(block(4))
def indices_leave_holes(x: KTile["N", f32], ids: KTile["N", i32]):
    out = tile.empty(x.shape, f32)
    i = tile.program((x.shape[0] + 3) // 4) * 4
    at = tile.load(ids, at=(i,), shape=(4,))
    tile.store(out, tile.place(tile.load(x, at=(i,), shape=(4,)), at), at=(at * 2,), distinct=True)
    return out


@fault("twice", data(37))
@kernel.schedule(block(8))
def stored_twice(x: KTile["N", f32]):
    t = tile.load(x)
    out = tile.empty(x.shape, f32)
    tile.store(out, t)
    tile.store(out, t * 2)
    return out


@fault("twice", data(9, 20))
@kernel
def every_round_stores_one_place(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty((x.shape[0],), f32)
    for nb in tile.range(0, x.shape[1], 8):
        tile.store(out, tile.sum(tile.load(x, at=(i, nb), shape=(1, 8))), at=(i,))
    return out


@fault("twice", data(9, 24))
@kernel
def overlapping_columns_of_a_loop(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    out = tile.empty(x.shape, f32)
    for j in tile.range(0, x.shape[1], 4):
        tile.store(out, tile.load(x, at=(i, j), shape=(1, 8)) * 2, at=(i, j))
    return out


# Places and axes -----------------------------------------------------------------------------------------


@fault("place", data(40))
@kernel
def neighbours_without_a_place(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    return tile.load(x, at=(i - 1,), shape=(8,)) + tile.load(x, at=(i,), shape=(8,))


@fault("place", data(9, 9))
@kernel
def rows_and_columns_exchanged(x: KTile["M", "N", f32]):
    i = tile.program((x.shape[0] + 3) // 4) * 4
    j = tile.program((x.shape[1] + 7) // 8) * 8
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.place(tile.load(x, at=(i, j), shape=(4, 8)), None), at=(j, i))
    return out


@fault("place", data(9, 20))
@kernel
def counts_of_the_other_axis(x: KTile["M", "N", f32]):
    i = tile.program((x.shape[1] + 3) // 4) * 4
    j = tile.program((x.shape[0] + 3) // 4) * 4
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i, j), shape=(4, 4)), at=(i, j))
    return out


@fault("place", data(40))
@kernel
def one_block_too_far(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i,), shape=(8,)), at=(i + 8,))
    return out


@fault("place", data(40))
@kernel
def instance_number_instead_of_its_place(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8)
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.load(x, at=(i * 8,), shape=(8,)), at=(i,))
    return out


@fault("place", data(6, 8), data(8, 6))
@kernel.schedule(block(4, 4))
def tile_of_the_other_tensor(x: KTile["M", "N", f32], y: KTile["N", "M", f32]):
    T = tile.context()
    return tile.load(x, rows=T.m, cols=T.n) + tile.load(y, rows=T.m, cols=T.n)


@fault("place", data(9, 20))
@kernel
def fold_along_the_wrong_axis(x: KTile["M", "N", f32]):
    i = tile.program((x.shape[0] + 3) // 4) * 4
    out = tile.empty((x.shape[0],), f32)
    t = tile.load(x, at=(i, 0), shape=(4, 20))
    tile.store(out, tile.sum(t, axis=0), at=(i,))
    return out


@fault("place", data(40))
@kernel
def flipped_block_in_place(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    return tile.flip(tile.load(x, at=(i,), shape=(8,)), 0)


# Masks ----------------------------------------------------------------------------------------------------


@fault("mask", data(37))
@kernel.schedule(block(8))
def fold_of_a_reshaped_edge(x: KTile["N", f32]):
    t = tile.reshape(tile.load(x), (2, 4))
    return tile.per_block(tile.min(t))


@fault("mask", data(37))
@kernel.schedule(block(8))
def dropped_place_before_a_fold(x: KTile["N", f32]):
    t = tile.place(tile.load(x), None)
    return tile.per_block(tile.min(t))


@fault("mask", data(37))
@kernel.schedule(block(8))
def mean_divides_by_the_block(x: KTile["N", f32]):
    t = tile.place(tile.exp(tile.load(x)), None)
    return tile.per_block(tile.sum(t) / 8)


@fault("mask", data(5, 13))
@kernel
def exponentials_past_the_end(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    total = tile.zeros((8,))
    for j in tile.range(0, x.shape[1], 8):
        total = total + tile.place(tile.exp(tile.load(x, at=(i, j), shape=(1, 8))), None)[0]
    out = tile.empty((x.shape[0],), f32)
    tile.store(out, tile.sum(total), at=(i,))
    return out


@fault("mask", data(5, 13))
@kernel
def sorted_with_its_edge(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    t = tile.place(tile.load(x, at=(i, 0), shape=(1, 16)), None)
    out = tile.empty((x.shape[0],), f32)
    tile.store(out, tile.sort(t, axis=1)[0, 0], at=(i,))
    return out


@fault("mask", data(5, 13))
@kernel
def transposed_edge(x: KTile["M", "N", f32]):
    i = tile.program(x.shape[0])
    t = tile.place(tile.load(x, at=(i, 0), shape=(1, 16)), None)
    out = tile.empty((x.shape[0],), f32)
    tile.store(out, tile.argmin(tile.abs(t.T), axis=0)[0] * 1.0, at=(i,))
    return out


# Scratch that nothing has written ---------------------------------------------------------------------------


@fault("scratch", data(40))
@kernel.schedule(block(8))
def sum_in_fresh_scratch(x: KTile["N", f32]):
    s = tile.alloc((8,), f32, "register")
    t = tile.load(x)
    tile.store(s, tile.read(s) + tile.place(t, None), at=(0,))
    return tile.place(tile.read(s), t)


@fault("scratch", data(40))
@kernel.schedule(block(8))
def half_of_scratch_is_filled(x: KTile["N", f32]):
    s = tile.alloc((8,), f32, "register")
    t = tile.load(x)
    tile.store(s, tile.place(t, None)[:4], at=(0,))
    return tile.place(tile.read(s), t)


@fault("scratch", data(40))
@kernel.schedule(block(8))
def scratch_of_a_condition(x: KTile["N", f32]):
    s = tile.alloc((8,), f32, "register")
    t = tile.load(x)
    if tile.max(t) > 0:
        tile.store(s, tile.place(t, None), at=(0,))
    return tile.place(tile.read(s), t)


@fault("scratch", data(40))
@kernel.schedule(block(8))
def scratch_of_a_mask(x: KTile["N", f32]):
    s = tile.alloc((8,), f32, "register")
    t = tile.load(x)
    tile.store(s, tile.place(t, None), at=(0,), mask=tile.place(t > 0, None))
    return tile.place(tile.read(s), t)


@fault("scratch", data(40), ints(0, 1, 2, 2, 4, 5, 6, 7))
@kernel.schedule(block(8))
def scratch_by_indices(x: KTile["N", f32], ids: KTile[8, i32]):
    s = tile.alloc((8,), f32, "register")
    t = tile.load(x)
    at = tile.load(ids, at=(0,), shape=(8,))
    tile.store(s, tile.place(t, None), at=(tile.place(at, None),), distinct=True)
    return tile.place(tile.read(s), t)


@fault("scratch", data(9, 5))
@kernel
def line_filled_from_one_on(x: KTile["M", 5, f32]):
    i = tile.program(x.shape[0])
    s = tile.alloc((5,), f32, "register")
    for j in tile.range(1, 5):
        tile.store(s, x[i, j], at=(j,))
    out = tile.empty(x.shape, f32)
    tile.store(out, tile.read(s)[None, :], at=(i, 0))
    return out


@fault("scratch", data(40))
@kernel.schedule(block(8))
def buffers_in_the_wrong_turn(x: KTile["N", f32]):
    s = tile.alloc((2, 8), f32, "register")
    t = tile.load(x)
    total = tile.zeros((8,))
    for k in tile.range(4):
        tile.store(s, tile.place(t, None)[None, :] * k, at=(k % 2, 0))
        total = total + tile.load(s, at=((k + 1) % 2, 0), shape=(1, 8))[0]
    return tile.place(total, t)


# Whole numbers that overflow in places
# -------------------------------------------------------------------------


@fault("overflow", data(1000))
@kernel.schedule(block(8))
def places_in_i8(x: KTile["N", f32]):
    i = tile.program((x.shape[0] + 7) // 8) * 8
    at = tile.cast(i + tile.arange(8), i8)
    out = tile.empty(x.shape, f32)
    tile.store(out, x[at], at=(i,))
    return out


@fault("overflow", data(8))
@kernel
def arange_of_a_narrow_dtype(x: KTile["N", f32]):
    at = tile.arange(300, i8)
    out = tile.empty((300,), f32)
    tile.store(out, x[at % 8], at=(0,))
    return out


@fault("overflow", data(1000), ints(*range(100), dtype=np.int16))
@kernel.schedule(block(8))
def product_of_narrow_places(x: KTile["N", f32], ids: KTile["K", i16]):
    at = tile.load(ids)
    return tile.place(x[at * 1000], at)


@fault("overflow", data(50), ints(*range(40)))
@kernel.schedule(block(8))
def stride_in_i32(x: KTile["N", f32], ids: KTile["K", i32]):
    at = tile.load(ids)
    return tile.place(x[at * 100_000_000], at)


@fault("overflow", data(600))
@kernel
def place_cast_to_i8(x: KTile["N", f32]):
    i = tile.program(x.shape[0])
    at = tile.cast(tile.full((), i, i64), i8)
    out = tile.empty(x.shape, f32)
    tile.store(out, x[at], at=(i,))
    return out


@fault("overflow", ints(*range(200), dtype=np.uint8))
@kernel.schedule(block(8))
def counts_in_i8(x: KTile["N"]):
    ids = tile.load(x)
    counts = tile.empty((4,), i8)
    tile.accumulate(counts, tile.ones(ids.shape, i8), at=(tile.cast(ids, i32) % 1,))
    return counts
