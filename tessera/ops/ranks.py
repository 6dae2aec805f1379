"""Collectives between ranks: host calls that an engine carries (core/ranks.py).

Batching along a mesh axis that several ranks share makes them of the collectives of ops/collective.py.
Each rank holds the shards of a range of coordinates along a first axis.  Sums are balanced binary trees
over coordinates, so that their bits do not depend on how many ranks share the axis: a node of the tree
covers the coordinates [i 2^k, (i + 1) 2^k), and a rank sends the sums of the largest nodes that fall in its
range.  Their derivatives are those of the collectives that they are made of, so that they are not in the
catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tessera.core.ranks import INLINE, engine
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Node, Value, bind
from tessera.ir.graph.op import UNLISTED, Op, Params, Types
from tessera.ops.batching import Mask, Spread, to_front
from tessera.ops.shape import moveaxis

Array = np.ndarray[Any, Any]
Ranges = tuple[tuple[int, int], ...]
# Bytes up to which two ranks send all of a sum in one round: the second takes longer than adding these twice.
_ONE_ROUND = 1 << 22


# Trees --------------------------------------------------------------------------------------------


def nodes(low: int, high: int, total: int) -> list[tuple[int, int]]:
    """The largest nodes of the tree over `total` coordinates that lie in a range, as (begin, end)."""
    found = []
    while low < high:
        size = low & -low or _root(total)
        while min(low + size, total) > high:
            size //= 2
        found.append((low, min(low + size, total)))
        low = found[-1][1]
    return found


def _root(total: int) -> int:
    """The size of the tree's root: the least power of two that holds all coordinates."""
    return 1 << max(total - 1, 0).bit_length()


def tree_of(parts: dict[tuple[int, int], Any], total: int, add: Callable[[Any, Any], Any]) -> Any:
    """The sum over all coordinates, from the sums of nodes of the tree."""

    def total_of(begin: int, size: int) -> Any:
        end = min(begin + size, total)
        if (begin, end) in parts:
            return parts[begin, end]
        half = size // 2
        left = total_of(begin, half)
        return left if begin + half >= total else add(left, total_of(begin + half, half))

    return total_of(0, _root(total))


# What runs on the host ----------------------------------------------------------------------------


def parts_of(n: int, count: int) -> list[slice]:
    """The parts of n elements that so many ranks add up."""
    return [slice(i * n // count, (i + 1) * n // count) for i in range(count)]


def _node_parts(got: Sequence[Array], ranges: Ranges, total: int) -> dict[tuple[int, int], Array]:
    """The sums that ranks sent, by the nodes of the tree."""
    parts: dict[tuple[int, int], Array] = {}
    for (low, high), x in zip(ranges, got, strict=True):
        parts.update(zip(nodes(low, high, total), x, strict=True))
    return parts


def _folded(
    x: Array, group: tuple[int, ...], ranges: Ranges, what: str, add: Callable[..., Any]
) -> Array:
    """All-reduce of the nodes that each rank holds: each adds up a chunk of the elements, then all of them
    gather the chunks.  Of two ranks each adds up all, if few: as many bytes in one round.
    """
    total = ranges[-1][1]
    if is_one_round(group, x[0].nbytes):
        got = engine().exchange(what, group, [x, x])
        made: Array = tree_of(_node_parts(got, ranges, total), total, add)
        return made
    flat = np.ascontiguousarray(x).reshape(len(x), -1)
    cuts = parts_of(flat.shape[1], len(group))
    got = engine().exchange(what, group, [flat[:, c] for c in cuts])
    mine = tree_of(_node_parts(got, ranges, total), total, add)
    out: Array = engine().empty(x.shape[1:], x.dtype)
    chunks = engine().exchange(what, group, [mine] * len(group))
    np.concatenate(chunks, out=out.reshape(-1))
    return out


def is_one_round(group: Sequence[int], nbytes: int) -> bool:
    """Whether ranks send each other all that they hold of a sum of so many bytes."""
    return len(group) == 2 and nbytes <= _ONE_ROUND


def _sum(x: Array, group: tuple[int, ...], ranges: Ranges, mine: int, loose: bool = False) -> Array:
    return _summed(x, group, ranges, words("all_reduce sum", x.dtype, x.shape[1:]), loose)


@cache
def words(what: str, dtype: Any, shape: tuple[int, ...]) -> str:
    """What ranks that meet compare."""
    return f"{what} {dtype}{list(shape)}"


def _summed(
    x: Array, group: tuple[int, ...], ranges: Ranges, what: str, loose: bool = False
) -> Array:
    """The library adds up where the order is free, as under `fast`, or the only one, as of two nodes."""
    if loose or (len(group) == 2 and _are_nodes(ranges)):
        made: Array | None = engine().sum(what, group, x[0])
        if made is not None:
            return made
    return _folded(x, group, ranges, what, np.add)


@cache
def _are_nodes(ranges: tuple[tuple[int, int], ...]) -> bool:
    """Whether each rank holds a single node of the tree."""
    return all(len(nodes(low, high, ranges[-1][1])) == 1 for low, high in ranges)


def fold_over_ranks(x: Array, kind: str, add: Callable[..., Any]) -> Array:
    """The fold of what each rank of the run holds, in the order of a tree over ranks."""
    size = engine().size
    group, ranges = tuple(range(size)), tuple((r, r + 1) for r in range(size))
    what = words(f"all_reduce {kind}", x.dtype, x.shape)
    if add is np.add:
        return _summed(x[None], group, ranges, what)
    return _folded(x[None], group, ranges, what, add)


def _max(x: Array, group: tuple[int, ...], ranges: Ranges, mine: int) -> Array:
    what = f"all_reduce max {x.dtype}{list(x.shape[1:])}"
    return _folded(x, group, ranges, what, np.maximum)


def _gather(x: Array, group: tuple[int, ...], ranges: Ranges, mine: int) -> Array:
    what = f"all_gather {x.dtype}{list(x.shape[1:])}"
    return np.concatenate(engine().exchange(what, group, [np.ascontiguousarray(x)] * len(group)))


def _scatter(x: Array, group: tuple[int, ...], ranges: Ranges, mine: int) -> Array:
    what = f"reduce_scatter {x.dtype}{list(x.shape[2:])}"
    got = engine().exchange(what, group, [x[:, low:high] for low, high in ranges])
    made: Array = tree_of(_node_parts(got, ranges, ranges[-1][1]), ranges[-1][1], np.add)
    return made


def _all_to_all(x: Array, group: tuple[int, ...], ranges: Ranges, mine: int) -> Array:
    what = f"all_to_all {x.dtype}{list(x.shape[2:])}"
    got = engine().exchange(what, group, [x[:, low:high] for low, high in ranges])
    return np.ascontiguousarray(np.concatenate(got).swapaxes(0, 1))


def moved(
    perm: Sequence[tuple[int, int]], ranges: Ranges, source: int, target: int
) -> list[tuple[int, int]]:
    """The shards that go from one rank to another, as (to, from) in the order of their targets."""
    (a, b), (c, d) = ranges[source], ranges[target]
    return sorted((t, s) for s, t in perm if a <= s < b and c <= t < d)


def _permute(
    x: Array, group: tuple[int, ...], ranges: Ranges, mine: int, perm: tuple[tuple[int, int], ...]
) -> Array:
    """Each rank sends every other the shards that go there, in the order of their targets."""

    first, out = ranges[mine][0], np.zeros_like(x)
    sent = [x[[s - first for _, s in moved(perm, ranges, mine, k)]] for k in range(len(group))]
    what = f"permute {x.dtype}{list(x.shape[1:])}"
    for k, got in enumerate(engine().exchange(what, group, sent)):
        out[[t - first for t, _ in moved(perm, ranges, k, mine)]] = got
    return out


# Records ------------------------------------------------------------------------------------------


def _ranks(name: str, doc: str, run: Callable[..., Array], rest: int, lead: int, out: Any) -> Op:
    """A record: `rest` axes of the operand and `lead` of the result come before those of a shard."""

    def batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
        made: Value = bind(n.op, moveaxis(operands[0], 0, rest), **n.params)
        return to_front(made, lead)

    effects = frozenset(("collective",))
    made = Op(
        name, doc, call=name, numpy=run, infer=out, moves=True, batch=batch, effects=effects
    )  # fmt: skip
    UNLISTED[name] = made
    return made


def _without_first(types: Types, p: Params) -> list[TensorType]:
    return [types[0].with_shape(types[0].shape[1:])]


def _all_first(types: Types, p: Params) -> list[TensorType]:
    return [types[0].with_shape((p["ranges"][-1][1], *types[0].shape[1:]))]


def _own_first(types: Types, p: Params) -> list[TensorType]:
    low, high = p["ranges"][p["mine"]]
    return [types[0].with_shape((high - low, *types[0].shape[2:]))]


SUM = _ranks("ranks_sum", "The sum of what ranks hold.", _sum, 1, 0, _without_first)
MAX = _ranks("ranks_max", "The largest of what ranks hold.", _max, 1, 0, _without_first)
GATHER = _ranks("ranks_gather", "What all ranks hold.", _gather, 1, 1, _all_first)
SCATTER = _ranks("ranks_scatter", "This rank's part of a sum.", _scatter, 2, 1, _own_first)
ALL_TO_ALL = _ranks(
    "ranks_all_to_all", "What all ranks hold for this one.", _all_to_all, 2, 2, lambda types, p: types
)  # fmt: skip
PERMUTE = _ranks("ranks_permute", "What other ranks send.", _permute, 1, 1, lambda types, p: types)


def between(op: Op, x: Value, spread: Spread, **params: Any) -> Value:
    """A collective between the ranks that share an axis."""
    made: Value = bind(op, x, group=spread.group, ranges=spread.ranges, mine=spread.mine, **params)
    return made


def sum_between(x: Value, spread: Spread) -> Value:
    """The sum of what ranks hold along axis 0: one array each where the order is free, else nodes."""
    if not spread.loose:
        return between(SUM, x, spread)
    ones = tuple((k, k + 1) for k in range(len(spread.group)))
    return between(SUM, x, replace(spread, ranges=ones), loose=True)


# Memory -------------------------------------------------------------------------------------------


def shared(g: Graph) -> int:
    """Bytes that a rank shares with the others to send them what the collectives of g ask for.

    The local engine has room for two of the longest messages to each of them; short ones need none.
    """
    longest: dict[int, int] = {}
    for n in g.nodes:
        if n.op not in (SUM, MAX, GATHER, SCATTER, ALL_TO_ALL, PERMUTE):
            continue
        group, t = n.params["group"], n.operands[0].type
        nbytes = int(t.size) * t.dtype.bits // 8
        once = n.op in (SUM, MAX) and is_one_round(group, nbytes // int(t.shape[0]))
        size = nbytes if once or n.op in (GATHER, PERMUTE) else -(-nbytes // len(group))
        for k, r in enumerate(group):
            if k != n.params["mine"] and size > INLINE:
                longest[r] = max(longest.get(r, 0), size)
    return 2 * sum(longest.values())
