"""inline: calls of graphs become their bodies, in regions too.

Transforms inline calls alone; compiling also inlines the ops that only mean something to a
transform, such as functions with derivatives of their own.

    %1 = call(%0) {name = "block"} ({ ^bb(%a): %b = exp(%a); return %b })
->  %1 = exp(%0)

A node keeps the user's line where it was written, not that of the call.
"""

from __future__ import annotations

from operator import is_

from tessera.core.rewrite import replaced
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind
from tessera.ir.graph.op import Op
from tessera.ops.control import call
from tessera.ops.custom import custom
from tessera.ops.remat import barrier, checkpoint, checkpoint_name

Env = dict[Value, Value]


CALLS = frozenset((call.op,))
WRAPPERS = frozenset((call.op, custom.op, checkpoint.op, checkpoint_name.op))


def inline(g: Graph, ops: frozenset[Op] = CALLS) -> Graph:
    """g without nodes of these ops, whose one region is what they compute."""
    if not _has(g, ops):
        return g
    builder, env = Builder(), Env()
    for n in g.nodes:
        _inline_node(n, env, builder, ops, fresh=False)
    outputs = replaced(g.outputs, env)
    return Graph(g.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, g.guards)


def copy_into(g: Graph, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """The outputs of g on these inputs: its nodes are bound one by one."""
    env: Env = dict(zip(g.inputs, inputs, strict=True))
    for n in g.nodes:
        out = bind(n.op, *replaced(n.operands, env), regions=n.regions, **n.params)
        env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
    return replaced(g.outputs, env)


def inline_all(g: Graph) -> Graph:
    """g without nodes that stand for their region."""
    return inline(g, WRAPPERS)


def _has(g: Graph, ops: frozenset[Op]) -> bool:
    return any(n.op in ops or any(_has(r, ops) for r in n.regions) for n in g.nodes)


def _inline_node(n: Node, env: Env, builder: Builder, ops: frozenset[Op], fresh: bool) -> None:
    """Append n, or the body that it calls; `fresh` makes a copy even if no operand changed."""
    operands = replaced(n.operands, env)
    if n.op is checkpoint_name.op and n.op in ops:  # a name is for derivatives, all taken by now
        env[n.results[0]] = operands[0]
        return
    if n.op in ops:
        (body,) = n.regions
        if n.params.get("again"):  # else equal nodes would merge with those of the first time
            types = [v.type for v in operands]
            wall = builder.node(barrier.op, operands, {}, (), types, n.location)
            builder.nodes.append(wall)
            operands = wall.results
        inner = dict(zip(body.inputs, operands, strict=True))
        for m in body.nodes:
            _inline_node(m, inner, builder, ops, fresh=True)
        env.update(zip(n.results, replaced(body.outputs, inner), strict=True))
        return
    regions = tuple(inline(r, ops) for r in n.regions)
    kept = all(map(is_, operands, n.operands)) and all(map(is_, regions, n.regions))
    if fresh or not kept:
        types = [v.type for v in n.results]
        new = builder.node(n.op, operands, n.params, regions, types, n.location)
        env.update(zip(n.results, new.results, strict=True))
        n = new
    builder.nodes.append(n)
