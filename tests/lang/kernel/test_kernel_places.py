"""Places and masks of tiles: where results lie, what folds leave out, what no index can reach."""

import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f32, kernel, tile
from tessera.lang.kernel.values import KernelError


def everywhere(f, *args):
    """What a kernel gives as machine code, by the interpreter and step by step: one result."""
    made = [f(*args)]
    for step in (False, True):
        with ts.interpret(step=step):
            made.append(f(*args))
    arrays = [[x.numpy() for x in (m if isinstance(m, tuple) else (m,))] for m in made]
    for others in zip(*arrays, strict=True):
        for x in others[1:]:
            np.testing.assert_array_equal(x, others[0])
    return arrays[0] if isinstance(made[0], tuple) else arrays[0][0]


def line(n):
    return np.arange(1, n + 1, dtype=np.float32)


def grid(m, n):
    return np.arange(m * n, dtype=np.float32).reshape(m, n)


# Tiles that start at different places


def _pair(x):
    i = tile.program((x.shape[0] + 3) // 4) * 4
    return tile.load(x, at=(i,), shape=(4,)), tile.load(x, at=(i + 1,), shape=(4,))


@kernel
def here_first(x: KTile["N"]):
    a, b = _pair(x)
    return a + b


@kernel
def there_first(x: KTile["N"]):
    a, b = _pair(x)
    return b + a


@kernel
def aligned(x: KTile["N"]):
    a, b = _pair(x)
    return tile.place(b + a, a)


@kernel
def dropped(x: KTile["N"]):
    a, b = _pair(x)
    return tile.place(b, None) + a


@kernel
def stored(x: KTile["N"], y: KTile["N"]):
    i = tile.program((x.shape[0] + 3) // 4) * 4
    left = tile.load(x, at=(i - 1,), shape=(4,))
    tile.store(y, left + tile.load(x, at=(i,), shape=(4,)), at=(i,))


@kernel
def summed(x: KTile["N"]):
    a, b = _pair(x)
    return tile.per_block(tile.sum(a + b))


NO_PLACE = (
    r"tiles that start at 4\*_q0 and at 4\*_q0 \+ 1 of an axis of N have no place together; say where it lies "  # noqa: E501
    r"by tile.place\(x, like\), drop its place by tile.place\(x, None\), or store it with at="
)


@pytest.mark.parametrize("f", [here_first, there_first, summed], ids=lambda f: f.__name__)
def test_tiles_that_start_at_different_places_do_not_combine_by_guess(f):
    with pytest.raises(KernelError, match=NO_PLACE):
        f(line(10))


@pytest.mark.parametrize("n", [1, 4, 10])
def test_a_place_is_aligned_dropped_or_given_by_the_store(n):
    x = line(n)
    after = np.append(x[1:], 0)
    np.testing.assert_array_equal(everywhere(aligned, x), x + after)
    np.testing.assert_array_equal(everywhere(dropped, x), x + after)
    before = np.insert(x[:-1], 0, 0)
    np.testing.assert_array_equal(everywhere(stored, x, np.zeros_like(x)), x + before)


@kernel.schedule(block(4))
def halves(x: KTile["S", 16], gain: KTile["S", 8]):
    """Halves of a row beside a row of half the length, as rotary positions are written."""
    T, y = tile.context(), tile.empty(x.shape, f32)
    for first in (0, 8):
        half = tile.span(16, first, 8)
        tile.store(y, tile.load(x, rows=T.m, cols=half) * tile.load(gain), rows=T.m, cols=half)
    return y


@kernel.schedule(block(4))
def half_returned(x: KTile["S", 16], gain: KTile["S", 8]):
    T = tile.context()
    return tile.load(x, rows=T.m, cols=tile.span(16, 0, 8)) * tile.load(gain)


def test_part_of_a_long_axis_meets_a_short_one_and_has_no_place():
    x, gain = np.arange(80, dtype=np.float32).reshape(5, 16), line(40).reshape(5, 8)
    np.testing.assert_array_equal(everywhere(halves, x, gain), x * np.tile(gain, 2))
    with pytest.raises(
        KernelError, match="tiles of axes of 16 and 8 elements have no place together"
    ):
        half_returned(x, gain)


@kernel.schedule(block(4))
def carried(x: KTile["N"]):
    i = tile.program((x.shape[0] + 3) // 4) * 4
    a = tile.load(x, at=(i,), shape=(4,))
    for _ in tile.range(3):
        a = a + tile.load(x, at=(i + 1,), shape=(4,))
    return a


def test_what_a_loop_carries_has_one_place():
    with pytest.raises(KernelError, match="have no place together"):
        carried(line(9))


@kernel
def correlated(x: KTile["M", "K"], y: KTile["K", "N"]):
    a = tile.load(x, at=(0, 0), shape=(4, 4))
    b = tile.load(y, at=(1, 0), shape=(4, 4))
    out = tile.empty((4, 4), f32)
    tile.store(out, tile.place(tile.dot(a, b), None), at=(0, 0))
    return out


def test_a_product_masks_each_factor_by_its_own_place():
    x, y = grid(3, 3), np.full((3, 3), np.inf, np.float32)
    y[1:] = 2
    want = np.zeros((4, 4), np.float32)
    want[:3, :3] = x[:, :2] @ y[1:]
    np.testing.assert_array_equal(everywhere(correlated, x, y), want)


# Before the start


@kernel
def lowest(x: KTile["N"]):
    return tile.min(tile.load(x, at=(-1,), shape=(4,)))


@kernel
def means(x: KTile["N"]):
    return tile.mean(tile.load(x, at=(-2,), shape=(8,)))


@kernel
def products(x: KTile["N"]):
    return tile.place(tile.scan(tile.load(x, at=(-2,), shape=(5,)), "mul"), None)


@kernel
def last(x: KTile["N"]):
    return x[7], x[0 - 1]


def test_folds_leave_out_what_lies_before_the_start():
    assert everywhere(lowest, line(10)) == 1
    assert everywhere(means, line(3)) == 2
    assert everywhere(means, line(10)) == 3.5
    np.testing.assert_array_equal(everywhere(products, line(3))[2:], [1, 2, 6])


def test_an_element_outside_is_zero():
    assert everywhere(last, line(3)) == [0, 0]
    assert everywhere(last, line(8)) == [8, 0]


# Reshapes


@kernel.schedule(block(8))
def split_min(x: KTile["N"]):
    return tile.per_block(tile.min(tile.reshape(tile.load(x), (2, 4))))


@kernel.schedule(block(4))
def merged_min(x: KTile["M", "N"]):
    t = tile.load(x)
    return tile.per_block(tile.min(tile.reshape(t, (4 * x.shape[1],))))


@kernel.schedule(block(4))
def kept_rows(x: KTile["M", "N"]):
    t = tile.reshape(tile.load(x), (4, 2, -1))
    return tile.per_block(tile.min(t)), tile.max(t, axis=(1, 2))


@kernel.schedule(block(8))
def split_there_and_back(x: KTile["N"], y: KTile["N"]):
    t = tile.reshape(tile.load(x), (2, 4)) * 2
    tile.store(y, tile.reshape(t, (8,)), at=(tile.program_of("m") * 8,))


@kernel
def one_row(x: KTile["M", "N"]):
    i = tile.program(x.shape[0])
    return tile.per_block(tile.min(tile.reshape(tile.load(x, at=(i + 1, 0), shape=(1, 4)), (4,))))


def test_a_reshaped_edge_is_kept_or_refused():
    for f, x in ((split_min, line(10)), (one_row, grid(3, 4))):
        with pytest.raises(
            KernelError, match=r"reshape: .* leaves an edge of its tensor on no axis"
        ):
            f(x)
    x = grid(6, 4) + 1
    np.testing.assert_array_equal(everywhere(merged_min, x), [1, 17])
    low, high = everywhere(kept_rows, x)
    np.testing.assert_array_equal(low, [1, 17])
    np.testing.assert_array_equal(high, x.max(1))
    np.testing.assert_array_equal(
        everywhere(split_there_and_back, line(10), np.zeros(10, np.float32)), line(10) * 2
    )


def test_a_reshape_of_whole_blocks_has_no_edge():
    with pytest.raises(KernelError, match="leaves an edge"):
        split_min(line(8))

    @kernel.schedule(block(8))
    def whole(x: KTile[16]):
        return tile.per_block(tile.min(tile.reshape(tile.load(x), (2, 4))))

    np.testing.assert_array_equal(everywhere(whole, line(16)), [1, 9])


# The grid


@kernel
def two_axes(x: KTile["M", "N"]):
    i, j = tile.program(x.shape[0]), tile.program(x.shape[1])
    return tile.load(x, at=(i, j), shape=(1, 1)) * 2


def _instance(n):
    return tile.program(n)


@kernel
def by_a_function(x: KTile["M", "N"]):
    i = _instance(x.shape[0])
    j = _instance(x.shape[1])
    return tile.load(x, at=(i, j), shape=(1, 1)) * 2


@kernel
def under_an_if(x: KTile["M", "N"]):
    t = tile.load(x, at=(0, 0), shape=(1, 1))
    if tile.max(t) > 0:
        tile.program(3)
    return t


@pytest.mark.parametrize("f", [two_axes, by_a_function])
def test_every_call_of_program_is_an_axis_of_the_grid(f):
    np.testing.assert_array_equal(everywhere(f, grid(2, 3)), grid(2, 3) * 2)
    assert [n for n, _ in f.lower(grid(2, 3)).grid] == ["_q0", "_q1"]


def test_an_axis_of_the_grid_has_a_size_and_no_condition():
    with pytest.raises(
        KernelError, match="program: the grid has its axes before any loop and any if"
    ):
        under_an_if(grid(2, 3))

    @kernel
    def wrong(x: KTile["N"]):
        i = tile.program(2.5)
        return tile.load(x, at=(i,), shape=(1,))

    with pytest.raises(
        KernelError, match=r"program: the number of instances is 2\.5, expected a size"
    ):
        wrong(line(3))


# Tiles of indices


def _ids(ids):
    return tile.load(ids, ids.shape[0])


@kernel.schedule(block(2))
def rows_and_picked(x: KTile["M", "N"], ids: KTile["K"]):
    return tile.load(x, rows=tile.context().m, cols=_ids(ids))


@kernel.schedule(block(2, 2))
def picked_and_columns(x: KTile["M", "N"], ids: KTile["K"]):
    return tile.load(x, rows=_ids(ids), cols=tile.context().n)


@kernel
def both_picked(x: KTile["M", "N"], ids: KTile["K"], others: KTile["L"]):
    return tile.load(x, rows=_ids(ids), cols=_ids(others))


@kernel
def broadcast_picks(x: KTile["M", "N"], ids: KTile["K"], others: KTile["K"]):
    return tile.load(x, rows=_ids(ids)[:, None], cols=_ids(others)[:, None])


@kernel
def rows_of_a_matrix(x: KTile["M", "N"], ids: KTile["K", "L"]):
    return tile.load(x, rows=tile.load(ids, rows=ids.shape[0], cols=ids.shape[1]))


@kernel
def columns_of_a_matrix(x: KTile["M", "N"], ids: KTile["K", "L"]):
    picked = tile.load(ids, rows=ids.shape[0], cols=ids.shape[1])
    return tile.load(x, rows=x.shape[0], cols=picked)


@kernel
def one_picked(x: KTile["M", "N"], ids: KTile["K"]):
    return tile.load(x, rows=ids[0], cols=_ids(ids)), tile.load(x, rows=_ids(ids), cols=ids[1])


@kernel
def from_a_line(x: KTile["N"], ids: KTile["K", "L"]):
    return tile.load(x, rows=tile.load(ids, rows=ids.shape[0], cols=ids.shape[1]))


@kernel.schedule(block(2))
def from_a_batch(x: KTile["B", "M", "N"], ids: KTile["K"]):
    return tile.load(x, rows=tile.context().m, cols=_ids(ids))


def test_rows_come_before_columns_however_they_are_given():
    x, ids, others = grid(5, 7), np.array([4, 0, 2]), np.array([1, 1])
    np.testing.assert_array_equal(everywhere(rows_and_picked, x, ids), x[:, ids])
    np.testing.assert_array_equal(everywhere(picked_and_columns, x, ids), x[ids])
    np.testing.assert_array_equal(everywhere(both_picked, x, ids, others), x[np.ix_(ids, others)])
    np.testing.assert_array_equal(everywhere(broadcast_picks, x, ids, ids), x[ids, ids][:, None])
    table = np.array([[0, 1, 2], [4, 3, 0]])
    np.testing.assert_array_equal(everywhere(rows_of_a_matrix, x, table), x[table])
    np.testing.assert_array_equal(everywhere(columns_of_a_matrix, x, table), x[:, table])
    np.testing.assert_array_equal(everywhere(from_a_line, x[0].copy(), table), x[0][table])
    first, second = everywhere(one_picked, x, ids)
    np.testing.assert_array_equal(first, x[4, ids])
    np.testing.assert_array_equal(second, x[ids, 0])
    batch = np.arange(70, dtype=np.float32).reshape(2, 5, 7)
    np.testing.assert_array_equal(everywhere(from_a_batch, batch, ids), batch[:, :, ids])


FAR = [-(2**63), -(2**40), -8, -1, 7, 8, 2**31, 2**40, 2**62, 2**63 - 1]


def test_an_index_outside_reads_the_fill_on_every_target():
    x, ids = grid(5, 7), np.array([0, 6, 3, *FAR])
    ok = (ids >= 0) & (ids < 7)
    want = np.where(ok, x[:, np.where(ok, ids, 0)], 0)
    np.testing.assert_array_equal(everywhere(rows_and_picked, x, ids), want)
    ok = (ids >= 0) & (ids < 5)
    want = np.where(ok[:, None], x[np.where(ok, ids, 0)], 0)
    np.testing.assert_array_equal(everywhere(picked_and_columns, x, ids), want)


@kernel
def filled(x: KTile["N"], ids: KTile["K"]):
    return tile.load(x, rows=_ids(ids), fill=-1)


@kernel
def trusted(x: KTile["N"], ids: KTile["K"]):
    return tile.load(x, rows=_ids(ids), unchecked=True)


@kernel
def trusted_box(x: KTile["N"]):
    return tile.load(x, unchecked=True)


@kernel
def of_floats(x: KTile["N"], ids: KTile["K"]):
    return tile.load(x, rows=_ids(ids))


def test_an_unchecked_index_is_asked_for_by_name():
    ids = np.array([2, 0])
    np.testing.assert_array_equal(everywhere(filled, line(3), np.array([2, 3, -1])), [3, -1, -1])
    np.testing.assert_array_equal(everywhere(trusted, line(3), ids), [3, 1])
    (checked,) = [op for op in filled.lower(line(3), ids).body.operations if op.name == "gather"]
    (open_,) = [op for op in trusted.lower(line(3), ids).body.operations if op.name == "gather"]
    assert checked.attributes["masked"] == (0,)
    assert open_.attributes["masked"] == ()
    with pytest.raises(KernelError, match="load: unchecked is about tiles of indices"):
        trusted_box(line(3))
    with pytest.raises(KernelError, match=r"x: indices are f32\[3\], expected a tile of integers"):
        of_floats(line(3), line(3))


def test_a_batch_outside_reads_zeros():
    x = np.ones((3, 2, 2), np.float32)

    @kernel.schedule(block(2))
    def shifted(x: KTile["B", "M", "N"]):
        own = tile.load(x)
        return own + tile.load(x, batch=tile.batch_index() + 1)

    np.testing.assert_array_equal(everywhere(shifted, x)[:, 0, 0], [2, 2, 1])


HOSTILE = """
import numpy as np
from tests.lang.kernel.test_kernel_places import filled, picked_and_columns, rows_and_picked
rng = np.random.default_rng(0)
x, v = np.ones((5, 7), np.float32), np.ones(9, np.float32)
for size in (1, 17, 64):
    for _ in range(60):
        ids = rng.integers(-2**63, 2**63 - 1, size) >> rng.integers(0, 63, size)
        assert set(np.unique(filled(v, ids).numpy())) <= {-1.0, 1.0}
        for f in (picked_and_columns, rows_and_picked):
            assert set(np.unique(f(x, ids).numpy())) <= {0.0, 1.0}
"""


def test_ten_thousand_hostile_indices_end_no_process():
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


# Every element of a result


@kernel
def from_one_on(x: KTile["N"]):
    return tile.load(x, at=(1,), shape=(3,))


@kernel
def half_stored(x: KTile["N"]):
    y = tile.empty(x.shape, x.dtype)
    i = tile.program((x.shape[0] + 1) // 2)
    tile.store(y, tile.load(x, at=(2 * i,), shape=(1,)), at=(2 * i,))
    return y


@kernel
def under_a_condition(x: KTile["N"]):
    y = tile.empty(x.shape, x.dtype)
    t = tile.load(x, at=(tile.program(x.shape[0]),), shape=(1,))
    if tile.max(t) > 2:
        tile.store(y, t)
    return y


@pytest.mark.parametrize("call", [lambda f: f, ts.jit], ids=["called", "jitted"])
def test_what_no_instance_writes_is_zero(call):
    x = line(5)
    junk = [np.full(5, np.nan, np.float32) for _ in range(50)]
    del junk
    for f, want in ((from_one_on, [0, 2, 3, 4, 0]), (half_stored, [1, 0, 3, 0, 5]),
                    (under_a_condition, [0, 0, 3, 4, 5])):  # fmt: skip
        np.testing.assert_array_equal(call(lambda v, f=f: f(v))(x).numpy(), want)
        np.testing.assert_array_equal(everywhere(f, x), want)


# Numbers beside tiles of integers


def too_low(t):
    return tile.maximum(t, -20)


def too_high(t):
    return t + 300


def compared(t):
    return t > -1


def a_tile_of_it(t):
    return t + tile.full((64,), 256, ts.u8)


def a_fraction(t):
    return t + tile.full((64,), 0.5, ts.u8)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (too_low, "the integer -20 does not fit u8; cast the tile before"),
        (too_high, "the integer 300 does not fit u8; cast the tile before"),
        (compared, "the integer -1 does not fit u8; cast the tile before"),
        (a_tile_of_it, "the integer 256 does not fit u8"),
        (a_fraction, "the number 0.5 does not fit u8"),
    ],
)
def test_a_number_that_does_not_fit_a_tile_of_integers_is_an_error(use, text):
    """300 beside u8 was 44."""

    @kernel
    def beside(x: KTile["N"]):
        return use(tile.load(x))

    with pytest.raises(ts.core.errors.DTypeError, match=text):
        beside(np.arange(4, dtype=np.uint8))


@pytest.mark.parametrize("fill", [300, -1, 0.5, float("nan")])
def test_a_fill_that_does_not_fit_is_an_error(fill):
    @kernel
    def filled_in(x: KTile["N"]):
        return tile.load(x, fill=fill)

    with pytest.raises(ts.core.errors.DTypeError, match=r"load: as fill the .* does not fit u8"):
        filled_in(np.arange(4, dtype=np.uint8))


@kernel
def one_element(x: KTile["M", "N"]):
    a, b = tile.load(x, at=(1, 2)), tile.load(x, shape=(1, 1))
    return tile.place(a, None) * tile.place(b, None)


def test_a_load_without_a_shape_is_one_element_and_without_a_place_begins_at_zero():
    x = grid(3, 4) + 1
    np.testing.assert_array_equal(everywhere(one_element, x), [[x[1, 2] * x[0, 0]]])


@kernel.schedule(block(8))
def spans_from_data(x: KTile["N", f32], ids: KTile["K"]):
    """The smallest element of a stretch that data begin."""
    p = tile.program(ids.shape[0])
    low = 50.0
    for nb in tile.range_n(x.shape, 4, start=ids[p], stop=x.shape[0]):
        low = tile.minimum(low, tile.min(tile.load(x, nb)))
    y = tile.empty((ids.shape[0],), f32)
    tile.store(y, low, at=(p,))
    return y


def test_data_move_the_elements_of_an_axis_of_one():
    """A GPU read in front of the tensor: elements stood still beside a place that data name."""
    x, ids = np.array([2.75], np.float32), np.array([7, -1, 0])
    np.testing.assert_array_equal(everywhere(spans_from_data, x, ids), [50, 2.75, 2.75])
    loads = [s for s in spans_from_data.lower(x, ids).triton.splitlines() if "tl.load(x" in s]
    assert len(loads) == 1
    assert "* 0" not in loads[0]


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_block_of_one_row_keeps_its_place_in_a_reshape(rows):
    """As blocks of several rows do; a random kernel found that the sums of single rows had no place."""

    @kernel.schedule(block(rows))
    def sums(x: KTile["M", 16]):
        t = tile.load(x)
        parts = tile.reshape(t, (rows, 8, 2))
        total = tile.sum(parts, axis=(1, 2))
        return total, tile.per_block(total), tile.reshape(tile.max(parts, axis=2), (rows, 4, 2))

    x = np.arange(128, dtype=np.float32).reshape(8, 16) % 11
    want = x.sum(1)
    beside = np.zeros((8 // rows, 8), np.float32)
    for i in range(8):
        beside[i // rows, i] = want[i]
    for step in (None, False, True):
        with ts.interpret(step=step) if step is not None else nullcontext():
            total, apart, tops = sums(x)
        np.testing.assert_allclose(total.numpy(), want, rtol=1e-5)
        np.testing.assert_allclose(apart.numpy(), beside, rtol=1e-5)
        np.testing.assert_array_equal(tops.numpy(), x.reshape(8, 8, 2).max(2).reshape(8, 4, 2))


@kernel
def next_rows(x: KTile["M", "N"]):
    t = tile.load(x, at=(0, 0), shape=(4, 4))
    total = tile.zeros((4, 4))
    for i in tile.range(0, 8, 4):
        total = total + tile.place(t, None)
        t = tile.load(x, at=(i, 0), shape=(4, 4))
    return tile.sum(total)


@kernel
def next_columns(x: KTile["M", "N"]):
    t = tile.load(x, at=(0, 0), shape=(4, 4))
    total = tile.zeros((4, 4))
    for i in tile.range(0, 8, 4):
        total = total + tile.place(t, None)
        t = tile.load(x, at=(0, i), shape=(4, 4))
    return tile.sum(total)


@kernel
def next_square(x: KTile["M", "N"]):
    t = tile.load(x, at=(0, 0), shape=(4, 4))
    total = tile.zeros((4, 4))
    for i in tile.range(0, 8, 4):
        total = total + tile.place(t, None)
        t = tile.load(x, at=(i, i), shape=(4, 4))
    return tile.sum(total)


@kernel
def the_same_block(x: KTile["M", "N"]):
    t = tile.load(x, at=(0, 0), shape=(4, 4))
    total = tile.zeros((4, 4))
    for _ in tile.range(0, 8, 4):
        total = total + tile.place(t, None)
        t = tile.load(x, at=(0, 0), shape=(4, 4)) * 2
    return tile.sum(total)


@pytest.mark.parametrize("f", [next_rows, next_columns, next_square], ids=lambda f: f.__name__)
def test_a_block_that_moves_along_any_axis_is_not_carried_to_the_next_round(f):
    text = "t holds a block of this round and is carried to the next; load it where it is used"
    with pytest.raises(KernelError, match=text):
        f(grid(8, 8))


def test_a_block_that_stays_is_carried():
    x = grid(8, 8)
    np.testing.assert_array_equal(everywhere(the_same_block, x), 3 * x[:4, :4].sum())
