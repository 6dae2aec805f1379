"""write_in_place: a write into a tensor that goes on to the next step touches the part that it writes alone.

    %2 = state_write(%cache, %new, %first, %count)   ->   %2 = write_rows(%cache, %new, %first, %count)

Decomposed, a write is a choice at every place of the whole tensor.  As a primitive it is a copy, which the
memory plan leaves out where nobody reads the old tensor any more, and a store of the part.  A small part of
a tensor that was given or written before, and that is returned, is worth that; elsewhere the choice is
computed with what stands beside it.
"""

from __future__ import annotations

from tessera.core.dims import Size, product
from tessera.core.primitives import is_primitive
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building
from tessera.ir.graph.op import Op

_PART = 4  # of an axis, at most, that a part covers
_LEAST = 1 << 12  # elements of a tensor: a smaller one is chosen from in the time of a launch


def write_in_place(g: Graph) -> Graph:
    """g with writes of parts as primitives, in regions too."""
    if not _has_writes(g):
        return g
    forms = _written(g)
    builder = Builder(input_names=g.input_names)
    env: dict[Value, Value] = {v: builder.input(v.type, v.device) for v in g.inputs}
    with building(builder):
        for n in g.nodes:
            builder.location = n.location
            regions = tuple(map(write_in_place, n.regions))
            operands = [env[v] for v in n.operands]
            out = bind(forms.get(n, n.op), *operands, regions=regions, **n.params)
            env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
    outputs = [env[v] for v in g.outputs]
    return Graph(
        builder.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, g.guards
    )


def _has_writes(g: Graph) -> bool:
    return any(n.op.in_place is not None or any(map(_has_writes, n.regions)) for n in g.nodes)


def _written(g: Graph) -> dict[Node, Op]:
    """The primitive of each node that becomes one."""
    found: dict[Node, Op] = {}
    returned = set(g.outputs)
    for n in reversed(g.nodes):
        form = n.op.in_place
        if form is None or not is_primitive(form.call, n.types, n.params):
            continue
        kept = n.op.effects or (n.results[0] in returned and _is_small(*n.types[:2]))
        if kept and _is_there(n.operands[0]):
            found[n] = form
            returned.add(n.operands[0])  # the write before this one
    return found


def _is_there(x: Value) -> bool:
    """Whether a tensor is in memory anyway: it was given, or something other than a loop nest makes it."""
    n = x.node
    return n is None or n.op.in_place is not None or (n.op.call is not None and bool(n.operands))


def _is_small(whole: TensorType, part: TensorType) -> bool:
    """Whether a part is so small along some axis that the rest is worth leaving alone."""
    size = product(whole.shape)
    if 0 in part.shape or (isinstance(size, int) and size < _LEAST):
        return False
    return any(_is_fraction(n, m) for n, m in zip(whole.shape, part.shape, strict=True))


def _is_fraction(n: Size, m: Size) -> bool:
    return isinstance(m, int) and (not isinstance(n, int) or m * _PART <= n)
