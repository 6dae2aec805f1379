"""decompose: ops that are defined by other ops become those.

    %1 = softmax(%0)   ->   %m = max(%0); %e = exp(sub(%0, %m)); %1 = div(%e, sum(%e))

A narrow dtype is widened before and rounded once after, as the op's own reference does.
"""

from __future__ import annotations

from tessera.core.constraints import Scope, current_scope, scope
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building
from tessera.ops.define import cast_to


def decompose(g: Graph) -> Graph:
    """g with every op that has a decomposition replaced by it, until none has."""
    with scope(Scope.of(g.guards, around=current_scope())) as facts:
        while any(n.op.decompose is not None for n in g.nodes):
            g = _once(g, facts)
    return g


def _once(g: Graph, facts: Scope) -> Graph:
    builder = Builder(input_names=g.input_names)
    env: dict[Value, Value] = {v: builder.input(v.type, v.device) for v in g.inputs}
    with building(builder):
        for n in g.nodes:
            builder.location = n.location
            env.update(zip(n.results, _results(n, [env[v] for v in n.operands]), strict=True))
        outputs = [env[v] for v in g.outputs]
    captured = [(inner, outer) for outer, inner in builder.captured()]
    inputs = [*builder.inputs, *(inner for inner, _ in captured)]
    data = [*g.captured, *(outer for _, outer in captured)]
    return Graph(inputs, builder.nodes, outputs, g.name, g.input_names, data, facts.guards)


def _results(n: Node, operands: list[Value]) -> tuple[Value, ...]:
    if n.op.decompose is None:
        out = bind(n.op, *operands, regions=n.regions, **n.params)
        return out if n.op.multiple else (out,)
    wide = [cast_to(v, v.dtype.compute) if v.dtype.kind == "f" else v for v in operands]
    out = n.op.decompose(*wide, **n.params)
    results = out if n.op.multiple else (out,)
    return tuple(cast_to(v, r.dtype) for v, r in zip(results, n.results, strict=True))
