"""Mixtures of experts: tokens go to the shards that hold their experts and come back, and none is dropped.

Along the axis of experts each shard holds some experts and some tokens.  It sorts its choices by expert, sends every shard
the rows that are for experts there (one all_to_all), runs its experts on blocks of rows of one expert each, and sends the
results back (another one).  Sizes are known while tracing, so that there is room for the worst case: a shard may get every
token of every shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tessera.core import tree
from tessera.core.blame import demand_function
from tessera.core.errors import ShapeError
from tessera.core.mesh import mesh_of
from tessera.core.shardspec import ShardSpec
from tessera.ir.graph.ir import Value, bind
from tessera.lang.dist.shard_map import shard_map
from tessera.lang.transforms import guarded
from tessera.lang.vmap import vmap
from tessera.ops.accumulate import cumsum
from tessera.ops.collective import ALL_TO_ALL
from tessera.ops.creation import iota
from tessera.ops.define import as_value, cast_to, full_of
from tessera.ops.elementwise import add, eq, floor_divide, ge, logical_and, lt, minimum, mul, remainder, sub, where
from tessera.ops.gather import take
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import reshape
from tessera.ops.sorting import argsort

Tree = Any


@guarded
def experts(
    f: Callable[[Any, Any], Any], params: Tree, x: Any, weights: Any, index: Any, axis: str = "ep",
    batch: Sequence[str] = ("dp",),
) -> Value:  # fmt: skip
    """The sum over k of weights[t, k] * f(params of expert index[t, k], x[t]) for tokens t.

    The parameters of experts are stacked along axis 0, which mesh axis `axis` cuts; it cuts the tokens too, and so do the axes
    of `batch` that the mesh has.  f runs on several rows of one expert.  Without that axis the experts are all here.
    """
    demand_function("experts", f)
    tokens, gates, which = (as_value(v, "experts") for v in (x, weights, index))
    if tokens.ndim != 2 or gates.ndim != 2 or which.shape != gates.shape or which.shape[0] != tokens.shape[0]:
        raise ShapeError(
            f"experts: got x {tokens.type}, weights {gates.type} and index {which.type}, expected (tokens, width), (tokens, k) "
            "and (tokens, k)"
        )
    count = tree.leaves(params)[0].shape[0]
    mesh = next((mesh_of(v.device) for v in (tokens, *tree.leaves(params)) if v.device.kind == "mesh"), None)  # fmt: skip
    if mesh is None or axis not in mesh.axes:
        return _Here(f, count, 1, axis).run(params, tokens, gates, which)
    shards = mesh.size(axis)
    if count % shards:
        raise ShapeError(
            f"experts: {count} experts do not divide over the {shards} shards of mesh axis {axis!r}"
        )
    cut = (axis, *(a for a in batch if a in mesh.axes))
    rows, own = ShardSpec((0,), (cut,)), ShardSpec((0,), (axis,))
    here = _Here(f, count // shards, shards, axis)
    run = shard_map(here.run, mesh, (own, rows, rows, rows), rows, axes=cut)
    made: Value = run(params, tokens, gates, which)
    return made


class _Groups(NamedTuple):
    """Rows in groups: how many each has, where it begins once rows are sorted, and which row is where."""

    counts: Value
    starts: Value
    order: Value  # sorted place -> row
    places: Value  # row -> sorted place


def _groups(group: Value, count: int) -> _Groups:
    """Rows by the group that each is in; those of group -1 come first."""
    order = argsort(group)
    places = argsort(order)
    own = eq(reshape(group, (-1, 1)), iota((1, count), 1))
    counts = sum_of(cast_to(own, order.dtype), 0)
    none = sum_of(cast_to(lt(group, 0), order.dtype))
    return _Groups(counts, add(_before(counts), none), order, places)


def _before(counts: Value) -> Value:
    """How many elements all groups before each have."""
    return sub(cumsum(counts, 0), counts)


def _rows(x: Value, index: Value, is_there: Value) -> Value:
    """Rows of x, and zeros where there is none."""
    got = take(x, where(is_there, index, 0), axis=0)
    return where(reshape(is_there, (*is_there.shape, *(1 for _ in x.shape[1:]))), got, full_of((), 0, x.dtype))


class _Here:
    """The program of one shard with `count` experts."""

    def __init__(self, f: Callable[[Any, Any], Any], count: int, shards: int, axis: str):
        self.f, self.count, self.shards, self.axis = f, count, shards, axis

    def run(self, params: Tree, x: Value, weights: Value, index: Value) -> Value:
        """Send tokens to their experts, run these, and add up what comes back."""
        (tokens, k), n = index.shape, self.shards
        room = tokens * min(k, self.count)  # a token chooses an expert at most once
        choice = reshape(index, (tokens * k,))
        shard = floor_divide(choice, self.count)
        by_shard = _groups(choice, n * self.count)
        counts = sum_of(reshape(by_shard.counts, (n, self.count)), 1)
        starts = reshape(_before(counts), (n, 1))
        place = add(starts, iota((1, room), 1))
        is_sent = lt(iota((n, room), 1), reshape(counts, (n, 1)))
        source = take(by_shard.order, minimum(place, tokens * k - 1), axis=0)
        rows = _rows(x, floor_divide(source, k), is_sent)
        local = remainder(take(choice, source, axis=0), self.count)
        ids = where(is_sent, local, full_of((), -1, local.dtype))
        rows, ids = self._exchanged(rows), self._exchanged(ids)
        flat = reshape(rows, (n * room, *rows.shape[2:]))
        out = self._run_experts(params, flat, reshape(ids, (n * room,)))
        back = self._exchanged(reshape(out, (n, room, *out.shape[1:])))
        slot = add(mul(shard, room), sub(by_shard.places, take(reshape(starts, (n,)), shard, axis=0)))
        mine = take(reshape(back, (n * room, *back.shape[2:])), slot, axis=0)
        parts = reshape(mine, (tokens, k, *mine.shape[1:]))
        scale = reshape(cast_to(weights, parts.dtype), (tokens, k, *(1 for _ in parts.shape[2:])))
        return sum_of(mul(parts, scale), 1)

    def _exchanged(self, x: Value) -> Value:
        """[shard, ...] for each shard becomes [shard, ...] from each shard."""
        if self.shards == 1:
            return x
        made: Value = bind(ALL_TO_ALL, x, axis=self.axis, size=self.shards)
        return made

    def _run_experts(self, params: Tree, rows: Value, ids: Value) -> Value:
        """f on every row with the parameters of its expert; zeros for rows of none."""
        if self.count == 1:
            out = self.f(tree.map(lambda p: take(p, 0, axis=0), params), rows)
            seen = reshape(ge(ids, 0), (-1, *(1 for _ in out.shape[1:])))
            return where(seen, out, full_of((), 0, out.dtype))
        size = -(-rows.shape[0] // self.count)  # rows of a block: at most twice as many rows as there are
        blocks = 2 * self.count
        by = _groups(ids, self.count)
        each = floor_divide(add(by.counts, size - 1), size)  # blocks of an expert
        first = _before(each)
        whose = sub(sum_of(cast_to(ge(iota((blocks, 1)), reshape(first, (1, -1))), first.dtype), 1), 1)
        row = add(reshape(mul(sub(iota((blocks,)), take(first, whose, axis=0)), size), (-1, 1)), iota((1, size), 1))
        is_there = logical_and(ge(row, 0), lt(row, reshape(take(by.counts, whose, axis=0), (-1, 1))))
        place = add(row, reshape(take(by.starts, whose, axis=0), (-1, 1)))
        source = take(by.order, where(is_there, place, 0), axis=0)
        own = tree.map(lambda p: take(p, whose, axis=0), params)
        out = vmap(self.f)(own, _rows(rows, source, is_there))
        flat = reshape(out, (blocks * size, *out.shape[2:]))
        expert = where(ge(ids, 0), ids, 0)
        where_ = sub(by.places, take(by.starts, expert, axis=0))
        return _rows(flat, add(mul(take(first, expert, axis=0), size), where_), ge(ids, 0))
