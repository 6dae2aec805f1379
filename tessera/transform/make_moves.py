"""make_moves: what a program moves to the host and back leaves the memory of the GPU in between.

    %1 = state_move(%0) {to = "host"}; ...; %2 = state_move(%1) {to = "device"}
->  %1 = offload_put(%0) {to = "host"}; ...; %2 = offload_get(%1)

The copies run beside the kernels, through pinned memory.  A number or two stays where it is.  A value that is
computed with or returned while it is on the host stays as well: refuse_moves, which follows, warns of it.
"""

from __future__ import annotations

from tessera.core.dims import product
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building
from tessera.ops.offload import PUT, get
from tessera.ops.state import state_move

_LEAST = 1 << 12  # bytes that are worth a copy: below, its start takes longer than all of it


def make_moves(g: Graph) -> Graph:
    """g with puts and gets for moves to the host and back."""
    pairs = _pairs(g)
    if not pairs:
        return g
    builder = Builder(input_names=g.input_names)
    env: dict[Value, Value] = {v: builder.input(v.type, v.device) for v in g.inputs}
    with building(builder):
        for n in g.nodes:
            builder.location = n.location
            operands = [env[v] for v in n.operands]
            if n in pairs:
                env[n.results[0]] = _moved(n, operands[0])
                continue
            out = bind(n.op, *operands, regions=n.regions, **n.params)
            env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
    outputs = [env[v] for v in g.outputs]
    return Graph(
        builder.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, g.guards
    )


def _moved(n: Node, x: Value) -> Value:
    if not _is_worth_it(n.types[0]):
        return x
    if n.params["to"] == "device":
        return get(x, n.types[0])
    made: Value = bind(PUT, x, to="host")
    return made


def _is_worth_it(t: TensorType) -> bool:
    size = product(t.shape)
    return not isinstance(size, int) or size * t.dtype.bits >= 8 * _LEAST


def _pairs(g: Graph) -> set[Node]:
    """The moves to the host whose one reader is a move to the device, and these."""
    readers: dict[Value, list[Node | None]] = {}
    for n in g.nodes:
        for v in n.operands:
            readers.setdefault(v, []).append(n)
    for v in g.outputs:
        readers.setdefault(v, []).append(None)
    found: set[Node] = set()
    for n in g.nodes:
        if n.op is not state_move.op or n.params["to"] != "host":
            continue
        behind = readers.get(n.results[0], [])
        reader = behind[0] if len(behind) == 1 else None
        if reader is not None and reader.op is state_move.op and reader.params["to"] == "device":
            found |= {n, reader}
    return found
