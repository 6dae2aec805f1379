"""Slices, paddings, flips, rolls, joins and reshapes along a cut axis: shards send what others lack, and nothing is gathered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import dist, op
from tessera.core.flags import override
from tessera.transform.partition_moves import Ends, Move, rounds, runs

SPEC = dist.ShardSpec


@pytest.fixture(autouse=True)
def _interpreted():
    with override(target="numpy"):
        yield


@given(
    st.integers(1, 5), st.integers(1, 14), st.integers(1, 14), st.integers(1, 3), st.integers(-5, 5),
    st.integers(1, 3), st.booleans(),
)  # fmt: skip
def test_runs_have_what_every_shard_needs(count, size, new, scale, offset, every, turned):
    move = Move(-scale if turned else scale, offset + (size if turned else 0), every)
    ends = Ends(size, -(-size // count), new, -(-new // count))
    found = list(runs(move, ends, count))
    have = {(r.receiver, r.sender * ends.part + k) for r in found for k in range(r.start, r.stop)}
    for j in range(new):
        at, rest = divmod(move.scale * j + move.offset, every)
        if not rest and 0 <= at < size:
            assert (j // ends.new_part, at) in have
    for many in rounds(found):
        assert len({r.sender for r in many}) == len({r.receiver for r in many}) == len(many)


def slope(v):
    return ts.grad(lambda v: op.sum(op.square(v[1:] - v[:-1])))(v)


CASES = {
    "slice": (lambda v: v[1:], (16, 2), 4, 8),
    "steps": (lambda v: v[2:9:2, 1:], (11, 3), 3, 8),
    "flip": (lambda v: op.flip(v, (0, 1)), (10, 6), 3, 96),
    "pad": (lambda v: op.pad(v, ((1, 2), (0, 1)), 1.5), (10, 6), 3, 28),
    "join": (lambda v: op.concat([v, v * 2, op.ones((3, 2))], 0), (10, 2), 4, 64),
    "roll": (lambda v: op.roll(v, (-8, 1), (0, 1)), (10, 2), 4, 40),
    "merge": (lambda v: op.reshape(v, (30,)), (10, 3), 4, 12),
    "split": (lambda v: op.reshape(v, (4, 5, 2)), (20, 2), 3, 48),
    "differences": (lambda v: v[1:] - v[:-1], (16, 1), 4, 4),
    "their derivative": (slope, (16, 1), 4, 8),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_elements_move_by_permutes(name):
    f, shape, count, most = CASES[name]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    mesh = dist.Mesh(["x"], shape=(count,))
    laid = dist.tensor(x, SPEC((0,), ("x",)), mesh)
    report = dist.explain(f, laid)
    assert set(report.counts) == {"permute"}
    assert report.bytes <= most
    assert f"{f(ts.tensor(x)).shape[0]}@x" in report.results[0]
    assert np.array_equal(ts.jit(f)(laid).numpy(), f(ts.tensor(x)).numpy())


def test_tokens_and_labels_may_be_slices_of_a_cut_sequence():
    """One element of each row crosses the edge of a shard, forward and backward."""
    mesh = dist.Mesh(["dp", "sp"], shape=(2, 4))
    tokens = dist.tensor(np.arange(4 * 33).reshape(4, 33), SPEC((0, 1), ("dp", "sp")), mesh)
    report = dist.explain(lambda t: (t[:, :-1], t[:, 1:]), tokens)
    assert report.results == ("i64[4@dp, 32@sp]", "i64[4@dp, 32@sp]")
    assert set(report.counts) == {"permute"}


def test_a_mask_that_the_axis_of_a_partial_sum_cuts():
    """Sums that shards along y still have to add do not pass a mask that y cuts."""
    mesh = dist.Mesh(["y"], shape=(2,))
    x = np.arange(12.0).reshape(4, 3)
    mask = np.array([True, False, True, True])

    def f(x, mask):
        return op.where(mask, op.sum(x, axis=1), 0.0)

    rows = dist.tensor(mask, SPEC((0,), ("y",)), mesh)
    found = ts.jit(f)(dist.tensor(x, SPEC((1,), ("y",)), mesh), rows)
    assert np.array_equal(found.numpy(), np.where(mask, x.sum(1), 0))


def test_a_part_that_starts_where_data_says_keeps_the_cuts_of_other_axes():
    mesh = dist.Mesh(["tp"], shape=(2,))
    cache = np.arange(24.0).reshape(6, 4)
    laid = dist.tensor(cache, SPEC((1,), ("tp",)), mesh)

    def step(cache, at):
        rows = op.dynamic_slice(cache, (at, 0), (2, 4))
        return op.dynamic_update_slice(cache, rows * 10, (at, 0))

    report = dist.explain(step, laid, np.int64(3))
    assert (len(report), report.results) == (0, ("f64[6, 4@tp]",))
    wanted = cache.copy()
    wanted[3:5] *= 10
    assert np.array_equal(ts.jit(step)(laid, np.int64(3)).numpy(), wanted)
