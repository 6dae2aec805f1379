"""drop_unit_axes: collectives over mesh axes of one shard become what they are there, without a new axis.

    %1 = psum(%0) {axis = "dp"} : f32[8, 16]        dp = 1
->  %1 = %0

A program for such a mesh is then that of no mesh: batching would put an axis of size 1 in front of every
tensor, which later passes do not fuse over.
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building
from tessera.ops.batching import adding
from tessera.ops.collective import ALONG, mentions
from tessera.ops.shape import reshape


def drop_unit_axes(g: Graph, axes: Sequence[str]) -> Graph:
    """g without collectives over these axes, which have one element."""
    if not any(mentions(n, a) for n in g.nodes for a in axes):
        return g
    builder = Builder(input_names=g.input_names)
    env: dict[Value, Value] = {v: builder.input(v.type, v.device) for v in g.inputs}
    with building(builder):
        for n in g.nodes:
            builder.location = n.location
            operands = [env[v] for v in n.operands]
            if n.op in ALONG and n.params["axis"] in axes:
                env[n.results[0]] = _of_one(n, operands)
                continue
            regions = tuple(drop_unit_axes(r, axes) for r in n.regions)
            out = bind(n.op, *operands, regions=regions, **n.params)
            env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
        outputs = [env[v] for v in g.outputs]
    return Graph(
        builder.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, g.guards
    )


def _of_one(n: Node, operands: Sequence[Value]) -> Value:
    """A collective over an axis of one element: batched along it, and the new axis taken away."""
    stacked = [reshape(x, (1, *x.shape)) for x in operands]
    with adding(n.params["axis"], 1):
        made, batched = ALONG[n.op](n, stacked, [True] * len(stacked), 1)
    return reshape(made, made.shape[1:]) if batched else made
