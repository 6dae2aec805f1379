"""The view of one shard along a mesh axis: what `dist.shard_map` is made of.

    %1 = to_local(%0) {axis = "sp", dim = 0, size = 8} : f32[64] -> f32[8]     what this shard along sp holds
    %2 = to_global(%1) {axis = "sp", dim = 0, size = 8} : f32[8] -> f32[64]

Between the two a value is one of each shard along the axis, and collectives may name it; other mesh axes
propagate as ever.  `dim` is the axis that is cut, WHOLE where every shard holds the same, and SUM where
they hold what adds up. Each is the adjoint of the other.  The partitioner takes them away.
"""

from __future__ import annotations

from typing import Any

from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Node, Value, bind
from tessera.ir.graph.op import Op, Params, Types
from tessera.ops.elementwise import div

WHOLE, SUM = -1, -2  # values of `dim` that name no axis


def _sized(times: bool) -> Any:
    def infer(types: Types, p: Params) -> list[TensorType]:
        (t,), dim, size = types, p["dim"], p["size"]
        if dim < 0:
            return [t]
        shape = list(t.shape)
        shape[dim] = shape[dim] * size if times else shape[dim] // size
        return [t.with_shape(tuple(shape))]

    return infer


def _nowhere(*xs: Any, **params: Any) -> Any:
    raise AssertionError(f"a view of one shard along {params['axis']!r} was not partitioned")


def _batch(n: Node, xs: Any, batched: Any) -> Value:
    dim = n.params["dim"]
    made: Value = bind(n.op, *xs, **{**n.params, "dim": dim + 1 if dim >= 0 else dim})
    return made


def _out_of_local(n: Node, ct: Value, k: int) -> Value:
    dim = n.params["dim"]
    made: Value = bind(TO_GLOBAL, ct, **{**n.params, "dim": SUM if dim == WHOLE else dim})
    return made


def _out_of_global(n: Node, ct: Value, k: int) -> Value:
    """What shards hold alike is one value: each has its share of the cotangent."""
    dim, size = n.params["dim"], n.params["size"]
    made: Value = bind(TO_LOCAL, ct, **{**n.params, "dim": max(dim, WHOLE)})
    return div(made, size) if dim == WHOLE else made


def _view(name: str, doc: str, times: bool, transpose: Any) -> Op:
    effects = frozenset(("collective",))
    return Op(
        name, doc, call=name, numpy=_nowhere, infer=_sized(times), moves=True, linear=(0,),
        transpose=transpose, batch=_batch, effects=effects,
    )  # fmt: skip


TO_LOCAL = _view("to_local", "What one shard along a mesh axis holds.", False, _out_of_local)
TO_GLOBAL = _view("to_global", "The tensor of which shards hold parts.", True, _out_of_global)


def has_views(g: Graph) -> bool:
    """Whether a graph looks at single shards; it then runs as a whole, never node by node."""
    return any(n.op in (TO_LOCAL, TO_GLOBAL) or any(map(has_views, n.regions)) for n in g.nodes)


def escaping(g: Graph) -> bool:
    """Whether what is one of each shard along an axis leaves a graph as if it were a whole tensor."""
    inside: dict[Value, frozenset[str]] = {}
    for n in g.nodes:
        axes = frozenset[str]().union(*(inside.get(v, ()) for v in n.operands))
        if n.op is TO_LOCAL:
            axes |= {n.params["axis"]}
        if n.op is TO_GLOBAL:
            axes -= {n.params["axis"]}
        inside.update(dict.fromkeys(n.results, axes))
    return any(inside.get(v) for v in g.outputs)
