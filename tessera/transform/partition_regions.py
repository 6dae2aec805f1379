"""Partition branches and loops: their regions become programs of one shard, with collectives inside.

    %1 = scan(%c, %xs) : f32[8@dp], f32[10, 8@dp]      the carry keeps the layout that goes round the loop
    unchanged
->  %1 = scan(%c, %xs) : f32[1], f32[10, 1]

A condition is the same on every shard.  What a loop carries has the layout that its body gives back; where
that is not the one it got, the body is tried again with it, and after a few rounds it changes the layout at
its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tessera.core.layout import Layout, cost, replicated
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building, current_builder
from tessera.ir.graph.op import Op, Params
from tessera.ops.control import cond, scan, while_loop
from tessera.ops.elementwise import add
from tessera.ops.region import over_same_inputs
from tessera.transform.shards import Shard, ShardWalk

_ROUNDS = 4  # trials of a loop's body: layouts of what it carries lose or gain a cut in each
Rule = Callable[[ShardWalk, Node, Sequence[Shard], Params], list[Shard]]
Layouts = Sequence[Layout]


def _settled(s: Shard) -> Layout:
    return replace(s.layout, partial=())


def _asked(walk: ShardWalk, n: Node, operands: Sequence[Shard], layouts: Layouts) -> list[Value]:
    pairs = zip(operands, layouts, strict=True)
    return [walk.asked(s, layout, n.op.name, n) for s, layout in pairs]


def _env(walk: ShardWalk, g: Graph, layouts: Layouts, builder: Builder) -> dict[Value, Shard]:
    env = {}
    for v, layout in zip(g.inputs, layouts, strict=True):
        t = v.type.substitute(walk.sizes)
        env[v] = Shard(
            builder.input(t.with_shape(layout.local(t.shape, walk.mesh)), v.device), t, layout
        )
    return env


def _tried(walk: ShardWalk, g: Graph, layouts: Layouts) -> dict[Value, Shard]:
    """The values of a region in the layouts that they have of themselves."""
    builder = Builder(current_builder())
    with building(builder):
        env = _env(walk, g, layouts, builder)
        walk.trial().graph(g, env)
        return env


def _region(
    walk: ShardWalk, g: Graph, layouts: Layouts, wanted: Layouts, n: Node, times: int
) -> tuple[Graph, tuple[Value, ...]]:
    """A region as the program of one shard, and what it uses from outside."""
    builder = Builder(current_builder())
    with building(builder):
        env, inner = _env(walk, g, layouts, builder), walk.inside(times)
        inner.graph(g, env)
        builder.location = n.location
        outs = _asked(inner, n, [env[v] for v in g.outputs], wanted)
        made, outer = builder.finish(outs, g.name)
    return Graph(made.inputs, made.nodes, made.outputs, g.name), outer


def _carried(
    walk: ShardWalk, body: Graph, operands: Sequence[Shard], layouts: Sequence[Layout], count: int
) -> tuple[list[Layout], list[Layout]]:
    """The layouts of a body's inputs, whose first `count` it gives back, and those of its outputs.

    What starts at zero and is added to in each round keeps partial sums, which are then added up once,
    after the loop.
    """
    now = list(layouts)
    for _ in range(_ROUNDS):
        env = _tried(walk, body, now)
        outs = [
            env[v].layout if k >= count else _settled(env[v]) for k, v in enumerate(body.outputs)
        ]
        for k in range(count):
            more = _added(body, k, env) if operands[k].is_zero else None
            if more is not None and more.layout.partial:
                outs[k] = more.layout
        if outs[:count] == now[:count]:
            break
        now[:count] = outs[:count]
    return now, [*now[:count], *outs[count:]]


def _added(body: Graph, k: int, env: dict[Value, Shard]) -> Shard | None:
    """What a body adds to what it carries, if that is all that it does with it."""
    carry, n = body.inputs[k], body.outputs[k].node
    uses = sum(v is carry for m in body.nodes for v in m.operands)  # == would be an op on values
    if n is None or n.op is not add.op or uses != 1:
        return None
    rest = [v for v in n.operands if v is not carry]
    return env[rest[0]] if len(rest) == 1 else None


def _made(n: Node, walk: ShardWalk, out: Sequence[Value], layouts: Layouts) -> list[Shard]:
    types = [v.type.substitute(walk.sizes) for v in n.results]
    return [Shard(v, t, w) for v, t, w in zip(out, types, layouts, strict=True)]


def _of_row(layout: Layout) -> Layout:
    return Layout(layout.cuts[1:])


def _of_stack(layout: Layout) -> Layout:
    return Layout(((), *layout.cuts), layout.partial)


def _scan(walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params) -> list[Shard]:
    (body,), c = n.regions, params["carry"]
    stop = c + params["xs"]
    rows = [_of_row(_settled(s)) for s in operands[c:stop]]
    rest = [_settled(s) for s in operands[stop:]]
    first = [_settled(s) for s in operands[:c]]
    inner, outs = _carried(walk, body, operands, [*first, *rows, *rest], c)
    region, outer = _region(walk, body, inner, outs, n, int(params["length"]))
    wanted = [*inner[:c], *map(_of_stack, rows), *rest]
    values = _asked(walk, n, operands, wanted)
    out: Any = bind(n.op, *values, *outer, regions=(region,), **params)
    return _made(n, walk, out, [*outs[:c], *map(_of_stack, outs[c:])])


def _while(walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params) -> list[Shard]:
    test, body = n.regions
    first = [_settled(s) for s in operands]
    inner, outs = _carried(walk, body, operands, first, len(body.outputs))
    made = [
        _region(walk, test, inner, [replicated(0)], n, 1),
        _region(walk, body, inner, outs, n, 1),
    ]
    regions, outer = over_same_inputs([g for g, _ in made], [o for _, o in made])
    out: Any = bind(n.op, *_asked(walk, n, operands, inner), *outer, regions=regions, **params)
    return _made(n, walk, out, outs)


def _cond(walk: ShardWalk, n: Node, operands: Sequence[Shard], params: Params) -> list[Shard]:
    inner = [_settled(s) for s in operands[1:]]
    sides = []
    for g in n.regions:
        env = _tried(walk, g, inner)
        sides.append([env[v] for v in g.outputs])
    outs = [_common(walk, a, b) for a, b in zip(*sides, strict=True)]
    made = [_region(walk, g, inner, outs, n, 1) for g in n.regions]
    regions, outer = over_same_inputs([g for g, _ in made], [o for _, o in made])
    values = _asked(walk, n, operands, [replicated(0), *inner])
    out: Any = bind(n.op, *values, *outer, regions=regions, **params)
    return _made(n, walk, out, outs)


def _common(walk: ShardWalk, a: Shard, b: Shard) -> Layout:
    """The layout of what two branches give: partial sums stay where both have them, or one is zero."""
    if a.is_zero or b.is_zero:
        return a.layout if b.is_zero else b.layout
    if a.layout == b.layout:
        return a.layout
    nbytes, (x, y) = int(a.type.size) * a.type.dtype.bits // 8, (_settled(a), _settled(b))
    return y if cost(x, y, nbytes, walk.mesh) < cost(y, x, nbytes, walk.mesh) else x


REGIONS: dict[Op, Rule] = {scan.op: _scan, while_loop.op: _while, cond.op: _cond}
