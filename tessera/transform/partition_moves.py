"""Partition slices, paddings, flips, joins and reshapes along a cut axis: shards send what others lack.

    %1 = slice(%0) {start = (1,), stop = (64,)} : f32[64@x]        four shards of 16
->  the first element of the shard after (permute), then fifteen of one's own and that one : f32[63@x]

Along the axis each of these ops is a move: element j of the result is element (scale * j + offset) / every
of the operand, or a filler.  What a shard needs of another one is a run of elements; runs that do not meet
in a sender or a receiver travel in one permute.  No element is computed, so that no bits change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tessera.core.constant import Constant
from tessera.core.dtype import i64
from tessera.core.factors import reshaped
from tessera.core.layout import Layout, replicated
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, bind
from tessera.ir.graph.op import Op, Params
from tessera.ops.arrange import roll
from tessera.ops.collective import AXIS_INDEX, PART, PPERMUTE
from tessera.ops.creation import constant, iota
from tessera.ops.elementwise import (
    add,
    eq,
    floor_divide,
    ge,
    logical_and,
    lt,
    maximum,
    minimum,
    mul,
    sub,
    where,
)
from tessera.ops.gather import take
from tessera.ops.shape import concat, flip, pad, reshape, slice_
from tessera.transform.shards import Shard, ShardWalk, as_graph

Rule = Callable[[ShardWalk, Node, Sequence[Shard], Params], list[Shard] | None]


class Move(NamedTuple):
    """Element j of the result is element (scale * j + offset) / every of the operand, where there is one."""

    scale: int = 1
    offset: int = 0
    every: int = 1


class ElementRun(NamedTuple):
    """Elements [start, stop) of a shard that another one needs."""

    sender: int
    receiver: int
    start: int
    stop: int


class Ends(NamedTuple):
    """The sizes of an axis before and after a move, and those of a shard."""

    size: int
    part: int
    new_size: int
    new_part: int


def runs(move: Move, ends: Ends, count: int) -> Iterator[ElementRun]:
    """What each of `count` shards of the result needs of which shard of the operand."""
    for k in range(count):
        first, last = k * ends.new_part, min((k + 1) * ends.new_part, ends.new_size) - 1
        if first > last:
            continue
        a, b = sorted((move.scale * first + move.offset, move.scale * last + move.offset))
        low, high = max(-(-a // move.every), 0), min(b // move.every, ends.size - 1)
        for q in range(low // ends.part, high // ends.part + 1) if low <= high else ():
            begin = q * ends.part
            yield ElementRun(q, k, max(low - begin, 0), min(high + 1 - begin, ends.part))


def rounds(found: Sequence[ElementRun]) -> list[list[ElementRun]]:
    """Runs in rounds, in each of which a shard sends once and receives once at most."""
    made: list[list[ElementRun]] = []
    for r in found:
        free = (
            m for m in made if all(r.sender != s.sender and r.receiver != s.receiver for s in m)
        )
        at = next(free, None)
        if at is None:
            made.append([r])
        else:
            at.append(r)
    return made


def _row(numbers: Sequence[int], axis: str) -> Value:
    """The number of this shard in a table with one for each."""
    table = bind(constant.op, value=Constant(np.array(numbers, np.int64), i64))
    made: Value = bind(PART, table, axis=axis, size=len(numbers))
    return made


def _span(many: Sequence[ElementRun]) -> int:
    return max(r.stop - r.start for r in many)


class _Mover:
    """Moves along one axis of a tensor, which one mesh axis cuts."""

    def __init__(self, walk: ShardWalk, n: Node, s: Shard, dim: int):
        self.walk, self.node, self.shard, self.dim = walk, n, s, dim
        (self.axis,) = s.layout.cuts[dim]
        self.count = walk.mesh.size(self.axis)

    def planned(self, move: Move, ends: Ends) -> list[list[ElementRun]] | None:
        """The permutes of a move; None where gathering moves fewer elements."""
        found = rounds([r for r in runs(move, ends, self.count) if r.sender != r.receiver])
        return found if sum(map(_span, found)) <= (self.count - 1) * ends.part else None

    def moved(
        self, x: Value, move: Move, ends: Ends, plan: Sequence[Sequence[ElementRun]]
    ) -> Value:
        """The shard of the result; where the operand has no element, any."""
        element = self.source(move, ends)
        owner = floor_divide(element, ends.part)
        inside = sub(element, mul(owner, ends.part))
        mine = bind(AXIS_INDEX, axis=self.axis)
        place, buffers, begin = where(eq(owner, mine), inside, 0), [x], ends.part
        for many in plan:
            span = _span(many)
            sends, senders, starts = [0] * self.count, [-1] * self.count, [0] * self.count
            for r in many:  # where the shard ends, the span of others begins before
                start = min(r.start, ends.part - span)
                sends[r.sender], senders[r.receiver], starts[r.receiver] = start, r.sender, start
            sent = take(x, add(iota((span,)), _row(sends, self.axis)), axis=self.dim)
            perm = tuple((r.sender, r.receiver) for r in many)
            self.walk.note_permute(sent, self.axis, self.shard, self.node)
            buffers.append(bind(PPERMUTE, sent, axis=self.axis, perm=perm))
            there = add(sub(inside, _row(starts, self.axis)), begin)
            place = where(eq(owner, _row(senders, self.axis)), there, place)
            begin += span
        place = minimum(maximum(place, 0), begin - 1)
        return take(concat(buffers, self.dim) if len(buffers) > 1 else x, place, axis=self.dim)

    def source(self, move: Move, ends: Ends) -> Value:
        """The element of the operand for each one of this shard of the result."""
        j = self.index(ends.new_part)
        return floor_divide(add(mul(j, move.scale), move.offset), move.every)

    def index(self, part: int) -> Value:
        """The index in the whole result of each element of this shard."""
        return add(iota((part,)), mul(bind(AXIS_INDEX, axis=self.axis), part))

    def along(self, mask: Value, rank: int) -> Value:
        """A mask of elements along the axis, to be broadcast with a tensor of this rank."""
        return reshape(mask, tuple(mask.shape[0] if k == self.dim else 1 for k in range(rank)))

    def ends(self, size: Any, new_size: Any) -> Ends:
        """The ends of a move between axes of these sizes."""
        return Ends(int(size), -(-size // self.count), int(new_size), -(-new_size // self.count))


def _out(walk: ShardWalk, n: Node) -> TensorType:
    return n.results[0].type.substitute(walk.sizes)


def _one_each(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], axes: Sequence[int],
    params: Callable[[int, tuple[Any, ...]], dict[str, Any]],
) -> list[Shard]:  # fmt: skip
    """A node that changes several axes, as one for each: those that are whole come first."""
    cuts = operands[0].layout.cuts

    def each(x: Value, *rest: Value) -> Value:
        for a in sorted(axes, key=lambda a: bool(cuts[a])):
            x = bind(n.op, x, *rest, **params(a, x.shape))
        return x

    return as_graph(walk, n, operands, each)


def _single_cut(s: Shard, axes: Sequence[int]) -> bool:
    """Whether exactly one mesh axis cuts each of these axes that is cut, and some are; none is empty."""
    cuts = [s.layout.cuts[a] for a in axes]
    return any(cuts) and all(len(c) <= 1 for c in cuts) and 0 not in s.type.shape


def _moved_along(
    walk: ShardWalk, n: Node, s: Shard, dim: int, move: Move, filler: Shard | None = None
) -> list[Shard] | None:
    """A node that moves elements along one axis, which one mesh axis cuts."""
    out = _out(walk, n)
    mover = _Mover(walk, n, s, dim)
    ends = mover.ends(s.type.shape[dim], out.shape[dim])
    plan = mover.planned(move, ends)
    if plan is None or 0 in out.shape:
        return None
    layout = s.layout if filler is None else replace(s.layout, partial=())
    y = mover.moved(walk.asked(s, layout, n.op.name, n), move, ends, plan)
    if filler is not None:
        place = add(mul(mover.index(ends.new_part), move.scale), move.offset)
        found = logical_and(ge(place, 0), lt(place, (ends.size - 1) * move.every + 1))
        if move.every > 1:
            found = logical_and(
                found, eq(sub(place, mul(floor_divide(place, move.every), move.every)), 0)
            )
        value = walk.asked(filler, replicated(0), n.op.name, n)
        y = where(mover.along(found, y.ndim), y, value)
    return [Shard(y, out, layout)]


def _slice(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params
) -> list[Shard] | None:
    (s,), start, stop, step = operands, params["start"], params["stop"], params["step"]
    shape = s.type.shape
    axes = [a for a, k in enumerate(shape) if (start[a], stop[a], step[a]) != (0, k, 1)]
    if not _single_cut(s, axes):
        return None
    if len(axes) == 1:
        return _moved_along(walk, n, s, axes[0], Move(step[axes[0]], start[axes[0]]))

    def one(axis: int, now: tuple[Any, ...]) -> dict[str, Any]:
        ends = {"start": (start, 0), "step": (step, 1), "stop": (stop, None)}
        return {
            k: tuple(
                x[a] if a == axis else (m if other is None else other) for a, m in enumerate(now)
            )
            for k, (x, other) in ends.items()
        }

    return _one_each(walk, n, operands, axes, one)


def _flip(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params
) -> list[Shard] | None:
    (s,), axes = operands, params["axes"]
    if not _single_cut(s, axes):
        return None
    if len(axes) == 1:
        return _moved_along(walk, n, s, axes[0], Move(-1, int(s.type.shape[axes[0]]) - 1))
    return _one_each(walk, n, operands, axes, lambda axis, now: {"axes": (axis,)})


def _pad(walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params) -> list[Shard] | None:
    s, value = operands
    low, high, inner = params["low"], params["high"], params["inner"]
    axes = [a for a in range(s.type.rank) if (low[a], high[a], inner[a]) != (0, 0, 0)]
    if not _single_cut(s, axes):
        return None
    if len(axes) == 1:
        move = Move(1, -low[axes[0]], inner[axes[0]] + 1)
        return _moved_along(walk, n, s, axes[0], move, value)

    def one(axis: int, now: tuple[Any, ...]) -> dict[str, Any]:
        return {k: tuple(x if a == axis else 0 for a, x in enumerate(params[k])) for k in params}

    return _one_each(walk, n, operands, axes, one)


def _concat(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params
) -> list[Shard] | None:
    dim, out = params["axis"], _out(walk, n)
    full = [k for k, s in enumerate(operands) if 0 not in s.type.shape]
    if 0 < len(full) < len(operands):  # an empty part may be laid out in any way
        return as_graph(walk, n, operands, lambda *xs: concat([xs[k] for k in full], dim))
    cut = [s for s in operands if len(s.layout.cuts[dim]) == 1]
    if not cut or any(0 in s.type.shape or len(s.layout.cuts[dim]) > 1 for s in operands):
        return None
    layout = replace(cut[0].layout, partial=())
    whole = replace(layout, cuts=tuple(() if k == dim else c for k, c in enumerate(layout.cuts)))
    first, parts = 0, []
    for s in operands:
        size, is_cut = int(s.type.shape[dim]), bool(s.layout.cuts[dim])
        laid = replace(s, layout=layout if is_cut else whole)
        mover = _Mover(walk, n, replace(s, layout=layout), dim)
        move, ends = Move(1, -first), mover.ends(size, out.shape[dim])
        plan = mover.planned(move, ends) if is_cut else []
        if plan is None:
            return None
        parts.append((s, laid.layout, mover, move, ends, plan if is_cut else None, first))
        first += size
    made: Value | None = None
    for s, want, mover, move, ends, plan, begin in parts:
        x = walk.asked(s, want, n.op.name, n)
        if plan is None:
            place = minimum(maximum(mover.source(move, ends), 0), ends.size - 1)
            y = take(x, place, axis=dim)
        else:
            y = mover.moved(x, move, ends, plan)
        later = ge(mover.index(ends.new_part), begin)
        made = y if made is None else where(mover.along(later, y.ndim), y, made)
    assert made is not None
    return [Shard(made, out, layout)]


def _roll(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params
) -> list[Shard] | None:
    """A roll along a cut axis joins two slices."""
    (s,), pairs = operands, list(zip(params["axis"], params["shift"], strict=True))
    if not _single_cut(s, [a for a, _ in pairs]):
        return None

    def each(x: Value) -> Value:
        for a, shift in pairs:
            size = int(x.shape[a])
            at = -shift % size
            if not s.layout.cuts[a]:
                x = bind(n.op, x, axis=(a,), shift=(shift,))
            elif at:
                none = (0,) * x.ndim
                begin = tuple(at if k == a else 0 for k in range(x.ndim))
                end = tuple(at if k == a else m for k, m in enumerate(x.shape))
                x = concat([slice_(x, begin, x.shape), slice_(x, none, end)], a)
        return x

    return as_graph(walk, n, operands, each)


class _Group(NamedTuple):
    """Axes of a reshape that hold the same elements: [first, last) of the operand, and of the result."""

    first: int
    last: int
    new_first: int
    new_last: int


def _group(old: Sequence[int], new: Sequence[int], dim: int) -> _Group | None:
    """The smallest group of axes with `dim` in it; None where it does not come first there."""
    i = j = 0
    while i < len(old):
        first, new_first, a, b = i, j, old[i], 1
        i += 1
        while a != b or (i == first and a == 1):
            if a > b and j < len(new):
                b, j = b * new[j], j + 1
            elif a < b and i < len(old):
                a, i = a * old[i], i + 1
            else:
                return None
        if first <= dim < i:
            return _Group(first, i, new_first, j) if first == dim else None
    return None


def _reshape(
    walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params
) -> list[Shard] | None:
    (s,), out = operands, _out(walk, n)
    old, new = [int(k) for k in s.type.shape], [int(k) for k in out.shape]
    f = reshaped(old, new)
    for dim, names in enumerate(s.layout.cuts):
        if len(names) != 1 or 0 in old:
            continue
        count = walk.mesh.size(names[0])
        major = next((g for g in f.ins[0][dim] if f.sizes[g] > 1), None)
        if major is None or f.is_cuttable(major, count):
            continue
        g = _group(old, new, dim)
        if g is None or new[g.new_first] < count or any(s.layout.cuts[dim + 1 : g.last]):
            continue
        return _regrouped(walk, n, s, out, g)
    return None


def _regrouped(
    walk: ShardWalk, n: Node, s: Shard, out: TensorType, g: _Group
) -> list[Shard] | None:
    """A reshape within a group whose first axis is cut: flat elements move between shards."""
    before, behind = s.layout.cuts[: g.first], s.layout.cuts[g.last :]
    old, new = s.type.shape, out.shape
    if tuple(old[: g.first]) != tuple(new[: g.new_first]) or tuple(old[g.last :]) != tuple(
        new[g.new_last :]
    ):
        return None  # other axes change too
    rows, new_rows = (
        math.prod(old[g.first + 1 : g.last]),
        math.prod(new[g.new_first + 1 : g.new_last]),
    )
    mover = _Mover(walk, n, s, g.first)
    e = mover.ends(old[g.first], new[g.new_first])
    ends = Ends(e.size * rows, e.part * rows, e.new_size * new_rows, e.new_part * new_rows)
    plan = mover.planned(Move(), ends)
    if plan is None:
        return None
    local = s.value.shape
    flat = reshape(s.value, (*local[: g.first], ends.part, *local[g.last :]))
    y = mover.moved(flat, Move(), ends, plan)
    inner = tuple(new[g.new_first + 1 : g.new_last])
    y = reshape(y, (*local[: g.first], e.new_part, *inner, *local[g.last :]))
    cuts = (*before, s.layout.cuts[g.first], *((),) * len(inner), *behind)
    return [Shard(y, out, Layout(cuts, s.layout.partial))]


MOVES: dict[Op, Rule] = {
    slice_.op: _slice, flip.op: _flip, pad.op: _pad, concat.op: _concat, reshape.op: _reshape,
    roll.op: _roll,
}  # fmt: skip
