"""factor_small: factorisations and solutions of matrices of a few rows become primitives with kernels.

    %1 = cholesky(%0) : f32[k,4,4]   ->   %a = small_cholesky(%s); %ok = all(eq(%d, %d)); %1 = sound(%a, %ok)

The record of an op says how (`small`); how many rows are few is known in core/small_matrices.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.constraints import Scope, current_scope, scope
from tessera.core.small_matrices import is_small
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building


def factor_small(g: Graph) -> Graph:
    """g with primitives for small matrices; the same graph where it has none."""
    if not _has_small(g):
        return g
    with scope(Scope.of(g.guards, around=current_scope())) as facts:
        return _factored(g, facts.guards)


def _is_small(n: Node) -> bool:
    return n.op.small is not None and is_small(n.types[0]) and 0 not in n.types[-1].shape


def _has_small(g: Graph) -> bool:
    return any(_is_small(n) or any(map(_has_small, n.regions)) for n in g.nodes)


def _factored(g: Graph, guards: Sequence[Any] = ()) -> Graph:
    builder = Builder(input_names=g.input_names)
    env: dict[Value, Value] = {v: builder.input(v.type, v.device) for v in g.inputs}
    with building(builder):
        for n in g.nodes:
            builder.location = n.location
            out = _results(n, [env[v] for v in n.operands])
            env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
        outputs = [env[v] for v in g.outputs]
    return Graph(builder.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, guards)


def _results(n: Node, xs: list[Value]) -> Any:
    if _is_small(n):
        assert n.op.small is not None
        return n.op.small(*xs, **n.params)
    return bind(n.op, *xs, regions=tuple(map(_factored, n.regions)), **n.params)
