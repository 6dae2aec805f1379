"""Collectives between ranks as stages, for devices: a graph packs, an engine exchanges, a graph unpacks.

    ranks_sum(x), one of three ranks  ->  pack:      the three thirds of x's elements, one after the other
                                          exchange:  one third to each rank, one third of each here
                                          unpack:    the tree of sums over what came
                                          exchange:  the sum of a third to all, in the order of ranks

The graphs are compiled like any other, so that sums have the device's own additions, in the order of
ops/ranks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from tessera.core.constraints import Scope, scope
from tessera.core.dtype import u8
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Value, building
from tessera.ir.graph.op import Op, Params
from tessera.ops import ranks
from tessera.ops.creation import zeros
from tessera.ops.elementwise import add, maximum
from tessera.ops.shape import concat, reshape, slice_, swapaxes

Parts = tuple[tuple[int, int], ...]  # begin and count, in elements
Make = Callable[[Value], Value]


@dataclass(frozen=True)
class RankStage:
    """One exchange of the ranks of a group."""

    # From the operand to what is sent; None: it is sent as it lies.  Elements of a byte are integers to it,
    # and to an unpack that does not add.
    pack: Graph | None
    parts: Parts  # of what is sent, for each rank
    counts: tuple[int, ...]  # elements that each rank sends here; they lie in the order of ranks
    unpack: Graph | None  # from these, in a row, to the result; None: they are it


@dataclass(frozen=True)
class RankStages:
    """A collective as exchanges one after the other."""

    what: str
    group: tuple[int, ...]
    stages: tuple[RankStage, ...]
    loose: bool  # whether the library may add up instead


def stages_of(op: Op, t: TensorType, params: Params) -> RankStages:
    """The stages of a collective between ranks on an operand of this type, whose sizes are known."""
    made: RankStages = STAGES[op](TensorType(t.dtype.base, t.shape), params)  # policies are of ops
    return made


def _counts(t: TensorType) -> tuple[int, ...]:
    return tuple(int(n) for n in t.shape)


def _graph(t: TensorType, count: int | None, make: Make) -> Graph | None:
    """The graph of a function of a tensor, or of so many elements of it in a row; None where there are
    none.
    """
    of = t if count is None else t.with_shape((count,))
    if 0 in of.shape:
        return None
    with scope(Scope()), building(Builder()) as b:
        g, _ = b.finish((make(b.input(of)),), "collective")
    return g


def _moved(t: TensorType) -> TensorType:
    """A tensor as what only moves it sees it: any element of a byte is an integer, which devices can move."""
    return TensorType(u8, t.shape) if t.dtype.np.itemsize == 1 else t


def _packed(t: TensorType, pieces: Callable[[Value], Sequence[Value]]) -> Graph | None:
    """What is sent: pieces one after the other."""

    def make(x: Value) -> Value:
        flat = [reshape(p, (prod(p.shape),)) for p in pieces(x)]
        return concat([p for p in flat if p.shape[0]])

    return _graph(_moved(t), None, make)


def _in_a_row(counts: Sequence[int]) -> Parts:
    """Parts of these sizes, one after the other."""
    return tuple((a, b - a) for a, b in pairwise(accumulate(counts, initial=0)))


def _tree(row: Value, p: Params, shape: tuple[int, ...], join: Any) -> Value:
    """The fold of the nodes that lie in a row, each of this shape."""
    ranges, size = p["ranges"], prod(shape)
    total = ranges[-1][1]
    every = [n for low, high in ranges for n in ranks.nodes(low, high, total)]
    parts = {
        node: reshape(slice_(row, (i * size,), ((i + 1) * size,)), shape)
        for i, node in enumerate(every)
    }
    made: Value = ranks.tree_of(parts, total, join)
    return made


def _held(p: Params) -> list[int]:
    """How many nodes of the tree each rank holds."""
    ranges = p["ranges"]
    return [len(ranks.nodes(low, high, ranges[-1][1])) for low, high in ranges]


def _fold(kind: str, join: Any) -> Callable[[TensorType, Params], RankStages]:

    def stages(t: TensorType, p: Params) -> RankStages:
        (mine, *rest), group, held = _counts(t), p["group"], _held(p)
        size = prod(rest)
        what = ranks.words(f"all_reduce {kind}", t.dtype.np, tuple(rest))
        loose = bool(p.get("loose"))
        if ranks.is_one_round(group, size * t.dtype.np.itemsize):
            row = sum(held) * size
            unpack = _graph(t, row, lambda x: _tree(x, p, tuple(rest), join))
            whole = ((0, mine * size),) * len(group)
            stage = RankStage(None, whole, tuple(n * size for n in held), unpack)
            return RankStages(what, group, (stage,), loose)
        cuts = ranks.parts_of(size, len(group))
        own = cuts[p["mine"]].stop - cuts[p["mine"]].start

        def pieces(x: Value) -> list[Value]:
            flat = reshape(x, (mine, size))
            return [slice_(flat, (0, c.start), (mine, c.stop)) for c in cuts]

        first = RankStage(
            _packed(t, pieces) if mine > 1 else None,
            _in_a_row([mine * (c.stop - c.start) for c in cuts]),
            tuple(n * own for n in held),
            _graph(t, sum(held) * own, lambda x: _tree(x, p, (own,), join)),
        )
        all_own = ((0, own),) * len(group)
        second = RankStage(None, all_own, tuple(c.stop - c.start for c in cuts), None)
        return RankStages(what, group, (first, second), loose)

    return stages


def _gather(t: TensorType, p: Params) -> RankStages:
    mine, *rest = _counts(t)
    size, group = prod(rest), p["group"]
    counts = tuple((high - low) * size for low, high in p["ranges"])
    stage = RankStage(None, ((0, mine * size),) * len(group), counts, None)
    return RankStages(ranks.words("all_gather", t.dtype.np, tuple(rest)), group, (stage,), False)


def _columns(t: TensorType, p: Params) -> tuple[Graph | None, Parts]:
    """What a stack of rows sends where each rank gets some of the columns."""
    mine, _, *rest = _counts(t)
    parts = _in_a_row([mine * (high - low) * prod(rest) for low, high in p["ranges"]])

    def pieces(x: Value) -> list[Value]:
        rest_of = (0,) * len(rest)
        return [slice_(x, (0, low, *rest_of), (mine, high, *rest)) for low, high in p["ranges"]]

    return (_packed(t, pieces) if mine > 1 else None), parts


def _scatter(t: TensorType, p: Params) -> RankStages:
    _, _, *rest = _counts(t)
    low, high = p["ranges"][p["mine"]]
    pack, parts = _columns(t, p)
    shape, held = (high - low, *rest), _held(p)
    counts = tuple(n * prod(shape) for n in held)
    unpack = _graph(t, sum(counts), lambda x: _tree(x, p, shape, add))
    what = ranks.words("reduce_scatter", t.dtype.np, tuple(rest))
    return RankStages(what, p["group"], (RankStage(pack, parts, counts, unpack),), False)


def _all_to_all(t: TensorType, p: Params) -> RankStages:
    mine, total, *rest = _counts(t)
    pack, parts = _columns(t, p)
    counts = tuple((high - low) * mine * prod(rest) for low, high in p["ranges"])

    def unpack(row: Value) -> Value:
        return swapaxes(reshape(row, (total, mine, *rest)), 0, 1)

    stage = RankStage(
        pack, parts, counts, _graph(_moved(t), sum(counts), unpack) if mine > 1 else None
    )
    what = ranks.words("all_to_all", t.dtype.np, tuple(rest))
    return RankStages(what, p["group"], (stage,), False)


def _permute(t: TensorType, p: Params) -> RankStages:
    mine, *rest = _counts(t)
    size, ranges, me, perm = prod(rest), p["ranges"], p["mine"], p["perm"]
    every = range(len(ranges))
    out = [s - ranges[me][0] for k in every for _, s in ranks.moved(perm, ranges, me, k)]
    sent = [len(ranks.moved(perm, ranges, me, k)) for k in every]
    come = [c for k in every for c, _ in ranks.moved(perm, ranges, k, me)]
    counts = [len(ranks.moved(perm, ranges, k, me)) for k in every]

    def unpack(row: Value) -> Value:
        rows = {t - ranges[me][0]: i for i, t in enumerate(come)}
        nothing = zeros((size,), dtype=_moved(t).dtype)
        made = [
            slice_(row, (rows[i] * size,), ((rows[i] + 1) * size,)) if i in rows else nothing
            for i in range(mine)
        ]
        return reshape(concat(made), (mine, *rest))

    def pieces(x: Value) -> list[Value]:
        return [slice_(x, (i, *(0,) * len(rest)), (i + 1, *rest)) for i in out]

    as_it_comes = [c - ranges[me][0] for c in come] == list(range(mine))
    stage = RankStage(
        None if out == list(range(len(out))) else _packed(t, pieces),
        _in_a_row([n * size for n in sent]),
        tuple(n * size for n in counts),
        None if as_it_comes else _graph(_moved(t), len(come) * size, unpack),
    )
    what = ranks.words("permute", t.dtype.np, tuple(rest))
    return RankStages(what, p["group"], (stage,), False)


STAGES: dict[Op, Callable[[TensorType, Params], RankStages]] = {
    ranks.SUM: _fold("sum", add),
    ranks.MAX: _fold("max", maximum),
    ranks.GATHER: _gather,
    ranks.SCATTER: _scatter,
    ranks.ALL_TO_ALL: _all_to_all,
    ranks.PERMUTE: _permute,
}
