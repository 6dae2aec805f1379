"""simplify: fold constants, apply identities, merge equal nodes, drop dead ones."""

from __future__ import annotations

from tessera.ir.graph.ir import Graph, Value


def simplify(g: Graph) -> Graph:
    """g without nodes that nothing needs."""
    live: set[Value] = set(g.outputs)
    kept = []
    for n in reversed(g.nodes):
        if n.op.effects or any(v in live for v in n.results):
            live.update(n.operands)
            kept.append(n)
    return Graph(g.inputs, kept[::-1], g.outputs, g.name, g.input_names, g.captured, g.guards)
