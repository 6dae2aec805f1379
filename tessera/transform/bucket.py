"""bucket: merge sums between ranks that do not depend on each other into one exchange.

    %2 = ranks_sum(%0) : f32[1, 32];  %3 = ranks_sum(%1) : f32[1, 8, 4]
->  %4 = concat(%0, reshape(%1)) : f32[1, 64];  %5 = ranks_sum(%4);  %2, %3 = slices of %5

A sum is of the level of how many sums its operands wait for.  All of a level wait together, so that a step of
training has one exchange of gradients.  Elements are added as before: no bits change.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building
from tessera.ops.ranks import SUM
from tessera.ops.shape import concat, reshape, slice_

# Larger ones go alone: an exchange of 4 MiB takes far longer than the 0.1 ms of starting one.
_LARGE = 1 << 22


def bucket(g: Graph) -> Graph:
    """g with the sums of each level in one exchange."""
    if sum(n.op is SUM for n in g.nodes) < 2:
        return g
    levels = _levels(g)
    builder = Builder(input_names=g.input_names)
    env: dict[Value, Value] = {v: builder.input(v.type, v.device) for v in g.inputs}
    with building(builder):
        for level in range(max(levels.values()) + 1):
            mine = [n for n in g.nodes if levels[n] == level]
            for n in mine:
                if n.op is not SUM:
                    _copy(n, env, builder)
            for alike in _alike([n for n in mine if n.op is SUM]):
                _merged(alike, env, builder)
        outputs = [env[v] for v in g.outputs]
    return Graph(
        builder.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, g.guards
    )


def _levels(g: Graph) -> dict[Node, int]:
    """How many sums, one after the other, come before each node."""
    found: dict[Node, int] = {}
    for n in g.nodes:
        sources = [v.node for v in n.operands if v.node is not None]
        found[n] = max((found[m] + (m.op is SUM) for m in sources), default=0)
    return found


def _copy(n: Node, env: dict[Value, Value], builder: Builder) -> None:
    builder.location = n.location
    out = bind(n.op, *(env[v] for v in n.operands), regions=n.regions, **n.params)
    env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))


def _alike(sums: Sequence[Node]) -> list[list[Node]]:
    """Sums that one exchange can carry; a large one goes alone."""
    found: dict[object, list[Node]] = {}
    for n in sums:
        t = n.operands[0].type
        large = int(t.size) * t.dtype.bits // 8 > _LARGE
        key = n if large else (tuple(n.params.items()), t.dtype, t.shape[0])
        found.setdefault(key, []).append(n)
    return list(found.values())


def _merged(sums: Sequence[Node], env: dict[Value, Value], builder: Builder) -> None:
    if len(sums) == 1:
        _copy(sums[0], env, builder)
        return
    builder.location = sums[0].location
    flat = [_flat(env[n.operands[0]]) for n in sums]
    total: Value = bind(SUM, concat(flat, 1), **sums[0].params)
    begin = 0
    for n, x in zip(sums, flat, strict=True):
        part = slice_(total, (begin,), (begin + x.shape[1],))
        env[n.results[0]] = reshape(part, n.results[0].shape)
        begin += x.shape[1]


def _flat(x: Value) -> Value:
    count = 1
    for n in x.shape[1:]:
        count *= n
    return reshape(x, (x.shape[0], count))
