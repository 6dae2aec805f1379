"""decompose: ops that are defined by other ops become those, unless they are primitives here.

    %1 = softmax(%0)   ->   %m = max(%0); %e = exp(sub(%0, %m)); %1 = mul(%e, div(1, sum(%e)))

A narrow dtype is widened before and rounded once after, as the op's own reference does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tessera.core.constant import Constant
from tessera.core.constraints import Guard, Scope, current_scope, scope
from tessera.core.primitives import is_open, is_primitive
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building, host_data
from tessera.ops.creation import constant
from tessera.ops.define import cast_to
from tessera.transform.argmax_in_parts import in_parts
from tessera.transform.inline import copy_into
from tessera.transform.kept_on_gpu import is_kept

Kept = Callable[[Node], bool]
Form = Callable[
    [Node], Callable[..., Value] | None
]  # another decomposition of a node, if there is one


def _none(n: Node) -> bool:
    return False


def _usual(n: Node) -> None:
    return None


def decompose(g: Graph, kept: Kept = _none, form: Form = _usual) -> Graph:
    """g with every op that has a decomposition replaced by it, until none has, in regions too.

    Nodes that the target has kernels for are kept, and those for which it has another form have that, but
    for those in regions.
    """
    with scope(Scope.of(g.guards, around=current_scope())) as facts:
        while _any_left(g, kept):
            g = _once(g, facts.guards, kept, form)
    return g


def decompose_on_cpu(g: Graph) -> Graph:
    """The same, but for the largest of windows, for which a CPU has a kernel."""
    return decompose(g, _is_pool)


def decompose_on_gpu(g: Graph) -> Graph:
    """The same, but for what a GPU has kernels for; large tensors are looked through once for an extreme."""
    return decompose(g, is_kept, in_parts)


def _is_pool(n: Node) -> bool:
    return n.op.kernel == "pool" and is_primitive(n.op.name, n.types, n.params)


def _any_left(g: Graph, kept: Kept = _none) -> bool:
    return any(_decomposes(n, kept) or any(map(_any_left, n.regions)) for n in g.nodes)


def _decomposes(n: Node, kept: Kept = _none) -> bool:
    """Whether a node has a decomposition and is no primitive, which has kernels of its own.

    Where sizes that are still symbols decide it, the node stays whole: at the sizes of a call it runs as a
    program of its own, with the bits that it has in a program of these sizes.
    """
    if n.op.decompose is None or is_primitive(n.op.call, n.types, n.params):
        return False
    return not is_open(n.op.call, n.types, n.params) and not kept(n)


def _once(g: Graph, guards: Sequence[Guard], kept: Kept = _none, form: Form = _usual) -> Graph:
    builder = Builder(input_names=g.input_names)
    env: dict[Value, Value] = {v: builder.input(v.type, v.device) for v in g.inputs}
    with building(builder):
        for n in g.nodes:
            builder.location = n.location
            results = _results(n, [env[v] for v in n.operands], kept, form)
            env.update(zip(n.results, results, strict=True))
        outputs = [env[v] for v in g.outputs]
    captured = [(inner, outer) for outer, inner in builder.captured()]
    inputs = [*builder.inputs, *(inner for inner, _ in captured)]
    data = [*g.captured, *(outer for _, outer in captured)]
    return Graph(inputs, builder.nodes, outputs, g.name, g.input_names, data, guards)


def _region(g: Graph) -> Graph:
    """A region after one round; what its decompositions captured becomes constants in it."""
    if not _any_left(g):
        return g
    g = _once(g, ())
    if not g.captured:
        return g
    own = len(g.inputs) - len(g.captured)
    builder = Builder()
    with building(builder):
        inputs = [builder.input(v.type, v.device) for v in g.inputs[:own]]
        constants = [
            bind(constant.op, value=Constant(np.asarray(host_data(v), order="C"), v.dtype))
            for v in g.captured
        ]
        outputs = copy_into(g, (*inputs, *constants))
    return Graph(inputs, builder.nodes, outputs, g.name)


def _results(n: Node, operands: list[Value], kept: Kept, form: Form) -> tuple[Value, ...]:
    if not _decomposes(n, kept):
        regions = tuple(map(_region, n.regions))
        out = bind(n.op, *operands, regions=regions, **n.params)
        return out if n.op.multiple else (out,)
    special = form(n)
    if special is not None:
        return (special(*operands, **n.params),)
    assert n.op.decompose is not None
    wide = [cast_to(v, v.dtype.compute) if v.dtype.kind == "f" else v for v in operands]
    out = n.op.decompose(*wide, **n.params)
    results = out if n.op.multiple else (out,)
    return tuple(cast_to(v, r.dtype) for v, r in zip(results, n.results, strict=True))
