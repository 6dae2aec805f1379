"""inline: calls of graphs become their bodies, in regions too.

    %1 = call(%0) {name = "block"} ({ ^bb(%a): %b = exp(%a); return %b })
->  %1 = exp(%0)

A node keeps the user's line where it was written, not that of the call.
"""

from __future__ import annotations

from operator import is_

from tessera.core.rewrite import replaced
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind
from tessera.ops.control import call

Env = dict[Value, Value]


def inline(g: Graph) -> Graph:
    """g without call nodes."""
    if not _calls(g):
        return g
    builder, env = Builder(), Env()
    for n in g.nodes:
        _inline_node(n, env, builder, fresh=False)
    outputs = replaced(g.outputs, env)
    return Graph(g.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, g.guards)


def copy_into(g: Graph, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """The outputs of g on these inputs: its nodes are bound one by one."""
    env: Env = dict(zip(g.inputs, inputs, strict=True))
    for n in g.nodes:
        out = bind(n.op, *replaced(n.operands, env), regions=n.regions, **n.params)
        env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
    return replaced(g.outputs, env)


def _calls(g: Graph) -> bool:
    return any(n.op is call.op or any(map(_calls, n.regions)) for n in g.nodes)


def _inline_node(n: Node, env: Env, builder: Builder, fresh: bool) -> None:
    """Append n, or the body that it calls; `fresh` makes a copy even if no operand changed."""
    operands = replaced(n.operands, env)
    if n.op is call.op:
        (body,) = n.regions
        inner = dict(zip(body.inputs, operands, strict=True))
        for m in body.nodes:
            _inline_node(m, inner, builder, fresh=True)
        env.update(zip(n.results, replaced(body.outputs, inner), strict=True))
        return
    regions = tuple(map(inline, n.regions))
    kept = all(map(is_, operands, n.operands)) and all(map(is_, regions, n.regions))
    if fresh or not kept:
        types = [v.type for v in n.results]
        new = builder.node(n.op, operands, n.params, regions, types, n.location)
        env.update(zip(n.results, new.results, strict=True))
        n = new
    builder.nodes.append(n)
