"""inline: calls of graphs become their bodies.

    %1 = call(%0) {name = "block"} ({ ^bb(%a): %b = exp(%a); return %b })
->  %1 = exp(%0)
"""

from __future__ import annotations

from collections.abc import Callable

from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building
from tessera.ops.control import call


def inline(g: Graph) -> Graph:
    """g without call nodes."""
    if not any(n.op is call.op for n in g.nodes):
        return g
    return rebuild(g, _inlined)


def _inlined(n: Node, operands: tuple[Value, ...]) -> tuple[Value, ...] | None:
    if n.op is not call.op:
        return None
    (region,) = n.regions
    return copy_into(inline(region), operands)


def copy_into(g: Graph, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """Append the nodes of g to the open builder, on these inputs; the outputs."""
    env: dict[Value, Value] = dict(zip(g.inputs, inputs, strict=True))
    for n in g.nodes:
        _append(n, env)
    return tuple(env[v] for v in g.outputs)


def _append(n: Node, env: dict[Value, Value]) -> None:
    out = bind(n.op, *(env[v] for v in n.operands), regions=n.regions, **n.params)
    env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))


def rebuild(
    g: Graph, visit: Callable[[Node, tuple[Value, ...]], tuple[Value, ...] | None]
) -> Graph:
    """g node by node: visit gives the results of a node on new operands, or None to copy it."""
    builder = Builder()
    env: dict[Value, Value] = {}
    with building(builder):
        for v in g.inputs:
            env[v] = builder.input(v.type, v.device)
        for n in g.nodes:
            builder.location = n.location
            results = visit(n, tuple(env[v] for v in n.operands))
            if results is None:
                _append(n, env)
            else:
                env.update(zip(n.results, results, strict=True))
        outputs = [env[v] for v in g.outputs]
    return Graph(
        builder.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, g.guards
    )
