"""Which values to keep for a derivative so that they fit a budget of bytes.

Keeping a value saves the nodes that only serve to compute it again.  The best choice is a knapsack
with precedences, so it is searched exactly among a few values and greedily among many: the value
that saves most per byte first, given what is kept already, and among equals the one in the middle.  What a
value saves is the cost of the
nodes that it post-dominates: all their ways to the derivative lead through it.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from tessera.core.dims import Size, substitute, symbols
from tessera.ir.graph.ir import Node, Value

EXACT = 10  # nodes up to which all choices are looked at
UNKNOWN = 64  # what a symbolic size counts for in a cost


@dataclass(frozen=True)
class RecomputeWalk:
    """What is computed again when the results of some nodes are kept."""

    again: list[Node]  # in order
    kept: list[Value]

    @property
    def cost(self) -> float:
        """Scalar operations that are done again."""
        return sum(map(flops, self.again))

    @property
    def bytes(self) -> float:
        """What is kept; infinite when a size is not known."""
        return sum(map(_bytes, self.kept))


def walk(nodes: Sequence[Node], wanted: Iterable[Value], keep: frozenset[Node]) -> RecomputeWalk:
    """Follow the wanted values back to what is kept, or to the inputs."""
    again: set[Node] = set()
    kept: dict[Value, None] = {}
    left = list(wanted)
    while left:
        v = left.pop()
        if v.node is None or v.node in again:
            continue
        if v.node in keep:
            kept[v] = None
            continue
        again.add(v.node)
        left += v.node.operands
    return RecomputeWalk([n for n in nodes if n in again], list(kept))


def plan(
    nodes: Sequence[Node], wanted: Sequence[Value], budget: float, exact: int = EXACT
) -> frozenset[Node]:
    """The nodes whose results to keep, so that the rest costs least and these fit the budget."""
    whole = walk(nodes, wanted, frozenset())
    useful = [n for n in whole.again if all(v.type.static for v in n.results)]
    if len(useful) <= exact:
        return _search(nodes, wanted, budget, useful)
    # A small value may keep out a large one that saves more, so that the large one gets a try.
    saved = _savings(whole.again, wanted)
    fitting = [n for n in useful if _used_bytes(n, whole.again, wanted) <= budget]
    first = frozenset(sorted(fitting, key=lambda n: saved[n])[-1:])
    tries = [_greedy(nodes, wanted, budget, start) for start in (frozenset[Node](), first)]
    return min(tries, key=lambda keep: walk(nodes, wanted, keep).cost)


def _search(
    nodes: Sequence[Node], wanted: Sequence[Value], budget: float, useful: Sequence[Node]
) -> frozenset[Node]:
    best = (walk(nodes, wanted, frozenset()).cost, 0.0, frozenset[Node]())
    for count in range(1, len(useful) + 1):
        for chosen in combinations(useful, count):
            keep = frozenset(chosen)
            w = walk(nodes, wanted, keep)
            if w.bytes <= budget and (w.cost, w.bytes) < best[:2]:
                best = (w.cost, w.bytes, keep)
    return best[2]


def _greedy(
    nodes: Sequence[Node], wanted: Sequence[Value], budget: float, keep: frozenset[Node]
) -> frozenset[Node]:
    while True:
        now = walk(nodes, wanted, keep)
        keep = frozenset(v.node for v in now.kept if v.node is not None)  # the others are of no use
        room = budget - now.bytes
        saved = _savings(now.again, wanted)
        sizes = {n: _used_bytes(n, now.again, wanted) for n in now.again}
        worth = {n: saved[n] / max(sizes[n], 1) for n in now.again if sizes[n] <= room}
        most = max(worth.values(), default=0.0)
        if most == 0:
            return keep
        keep |= {_middle([n for n in worth if worth[n] >= (1 - 1e-9) * most], nodes, keep)}


def _middle(equal: Sequence[Node], nodes: Sequence[Node], keep: frozenset[Node]) -> Node:
    """Of nodes that are worth the same, the middle of the most that follow each other unkept.

    So what lies between kept values, which is computed again at one time, is of about equal size.
    """
    place = {n: i for i, n in enumerate(nodes)}
    marks = sorted(place[n] for n in keep)
    runs: dict[int, list[Node]] = {}
    for n in equal:
        runs.setdefault(bisect(marks, place[n]), []).append(n)
    longest = max(runs.values(), key=len)
    return longest[len(longest) // 2]


def _savings(again: Sequence[Node], wanted: Sequence[Value]) -> dict[Node, float]:
    """For each node, the cost of those that are computed for it alone, and its own."""
    direct = {v.node for v in wanted}
    users: dict[Node, list[Node]] = {n: [] for n in again}
    for n in again:
        for producer in {v.node for v in n.operands if v.node in users}:
            users[producer].append(n)
    parent: dict[Node, Node | None] = {}
    depth: dict[Node | None, int] = {None: 0}
    for n in reversed(again):
        above: Node | None = None
        if n not in direct:
            above = users[n][0]
            for u in users[n][1:]:
                above = _meet(above, u, parent, depth)
        parent[n], depth[n] = above, depth[above] + 1
    saved = {n: flops(n) for n in again}
    for n in again:  # producers come first, so that a sum is whole before it is handed on
        above = parent[n]
        if above is not None:
            saved[above] += saved[n]
    return saved


def _meet(
    a: Node | None, b: Node | None, parent: dict[Node, Node | None], depth: dict[Node | None, int]
) -> Node | None:
    """The nearest node that all ways from a and from b lead through."""
    while a is not b:
        if depth[a] < depth[b]:
            a, b = b, a
        assert a is not None
        a = parent[a]
    return a


def _used_bytes(n: Node, again: Sequence[Node], wanted: Sequence[Value]) -> float:
    if len(n.results) == 1:
        return _bytes(n.results[0])
    used = {v for m in again for v in m.operands} | set(wanted)
    return sum(_bytes(v) for v in n.results if v in used)


def _bytes(v: Value) -> float:
    if not v.type.static:
        return math.inf
    return float(math.prod(v.shape)) * v.dtype.itemsize


def flops(n: Node) -> float:
    """About how many scalar operations a node takes."""
    if n.regions:
        inside = sum(flops(m) for r in n.regions for m in r.nodes)
        return inside * _number(n.params.get("length", 1))
    if n.op.view is not None or not n.operands:
        return 0.0
    touched = sum(count(v.shape) for v in (*n.operands, *n.results))
    if n.op.call is not None and not n.op.moves:  # a factorisation, a transform, a sort
        return touched * max((_number(s) for v in n.operands for s in v.shape), default=1.0)
    sig = n.op.sig(n.types, n.params)
    if sig is None:
        return touched
    return count(tuple(sig.bind(n.op.name, n.types)[1].values()))


def count(shape: Sequence[Size]) -> float:
    """How many elements, symbolic sizes taken for some."""
    return math.prod(map(_number, shape))


def _number(size: Size) -> float:
    return float(substitute(size, dict.fromkeys(symbols(size), UNKNOWN)))
