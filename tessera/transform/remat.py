"""Derivatives and batches of checkpoint: the linear part computes again what was not kept.

    y = checkpoint(x) { h = sin(x); y = h * h }
->  y = sin(x)**2                                           the known part keeps nothing of its own
    dx = checkpoint(dy, x) { h = sin(x); dx = 2 h cos(x) dy }      again = true
"""

from __future__ import annotations

from collections.abc import Sequence

from tessera.ir.graph.ir import Graph, Node, Value, bind, building
from tessera.ops import offload
from tessera.ops.batching import Mask, batch_size
from tessera.ops.remat import barrier, checkpoint, keeps, offloads
from tessera.transform.batch import REGION_BATCH, REGION_SPREAD
from tessera.transform.batch_control import batched_outputs, batched_region
from tessera.transform.budget import Walk, plan, walk
from tessera.transform.control import (
    Cut,
    chosen,
    cut_region,
    negated,
    present,
    pull_back_region,
    pushed,
    region_of,
    spread,
)
from tessera.transform.differentiate import (
    REGION_ACCUMULATE,
    REGION_JVP,
    REGION_SPLIT,
    REGION_TRANSPOSE,
    Tangent,
)
from tessera.transform.inline import inline
from tessera.transform.moving import add_reach, body_reach, moving_outputs
from tessera.transform.simplify import simplify

# Checkpoint -------------------------------------------------------------------------------------


def _jvp(n: Node, ts: Sequence[Tangent]) -> tuple[Sequence[Value], Sequence[Tangent]]:
    body, mask = inline(n.regions[0]), present(ts)
    wanted = moving_outputs(n.regions[0], mask)
    inputs = [*n.operands, *chosen(ts, mask)]
    region, outer = region_of(inputs, lambda *xs: pushed(body, mask, xs, wanted), body.name)
    out = bind(n.op, *inputs, *outer, regions=(region,), **n.params)
    return out[: len(wanted)], spread(out[len(wanted) :], wanted)


def _needed(cut: Cut, wanted: list[bool], n: Node) -> Walk:
    """The known nodes that the linear part runs again, and what it is given instead."""
    policy, nodes, residuals = n.params["policy"], cut.known.nodes, cut.residuals(wanted)
    if isinstance(policy, int):
        return walk(nodes, residuals, plan(nodes, residuals, policy))
    return walk(nodes, residuals, frozenset(m for m in nodes if keeps(policy, m)))


def _split(n: Node, linear: set[Value]) -> tuple[dict[Value, Value], Node | None]:
    mask = [v in linear for v in n.operands]
    cut = cut_region(n.regions[0], mask)
    wanted = cut.outputs
    needed = _needed(cut, wanted, n)
    again, kept = needed.again, needed.kept
    outs = [cut.env[v] for v in chosen(cut.graph.outputs, negated(wanted))]
    elsewhere = offloads(n.params["policy"])
    with building(cut.known):
        carried = [offload.put(v) for v in kept] if elsewhere else kept
    g, captured = cut.known.finish([*outs, *carried], cut.graph.name)
    known_operands = [*chosen(n.operands, negated(mask)), *captured]
    region = simplify(Graph(g.inputs, early(g.nodes), g.outputs, g.name))
    made = bind(n.op, *known_operands, regions=(region,), **n.params) if g.outputs else ()
    known = dict(zip(chosen(n.results, negated(wanted)), made, strict=False))

    inputs = chosen(cut.graph.inputs, mask)
    order = [*inputs, *g.inputs, *carried]

    def run(*xs: Value) -> list[Value]:
        env = dict(zip(order, xs, strict=True))
        if elsewhere:
            env |= {v: offload.get(env.pop(c), v.type) for v, c in zip(kept, carried, strict=True)}
        for m in again:
            out = bind(m.op, *(env[v] for v in m.operands), regions=m.regions, **m.params)
            env.update(zip(m.results, out if m.op.multiple else (out,), strict=True))
        return cut.linear_part(list(env), (), wanted)(*env.values())

    body, outer = region_of(order, run, cut.graph.name)
    operands = [*chosen(n.operands, mask), *known_operands, *made[len(outs) :], *outer]
    results = chosen(n.results, wanted)
    if not results:
        return known, None
    node = Node(n.op, tuple(operands), n.params, (body,), n.location)
    node.results = tuple(results)
    return known, node


def _accumulate(
    n: Node, cts: Sequence[Tangent], linear: set[Value], so_far: Sequence[Tangent]
) -> list[Tangent]:
    mask = [v in linear for v in n.operands]
    have, start = present(cts), chosen(so_far, mask)
    begun = present(start)
    parts = [chosen(cts, have), chosen(start, begun), chosen(n.operands, negated(mask))]
    c, s = len(parts[0]), len(parts[0]) + len(parts[1])

    def back(*xs: Value) -> list[Value]:
        given = spread(xs[:c], have), spread(xs[c:s], begun)
        return pull_back_region(n.regions[0], mask, xs[s:], *given)

    inputs = [v for p in parts for v in p]
    region, outer = region_of(inputs, back, n.regions[0].name)
    region = late(region, set(region.inputs[:s]))
    out = bind(n.op, *inputs, *outer, regions=(region,), **{**n.params, "again": True})
    return spread(out, mask)


def early(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with everything that writes a value out right behind what makes the value.

    h1 h2 put(h1) put(h2) -> h1 put(h1) h2 put(h2)
    """
    here = set(nodes)
    puts: dict[Node | None, list[Node]] = {}
    for n in nodes:
        if n.op is offload.PUT:
            made = n.operands[0].node
            puts.setdefault(made if made in here else None, []).append(n)
    out = list(puts.pop(None, ()))
    for n in nodes:
        if n.op is not offload.PUT:
            out += (n, *puts.get(n, ()))
    return out


def late(g: Graph, moving: set[Value]) -> Graph:
    """g with every node that does not depend on the moving inputs right before what first needs it.

    h1 h2 h3 ct2 ct1 -> h1 h2 h3 ct2 ct1 when nothing is kept, but h3 ct2 h1 h2 ct1 when h2 is: of what
    lies between kept values only one part is computed again at a time.
    """
    moving = set(moving)
    done: dict[Node, None] = {}

    def emit(n: Node) -> None:
        left = [n]
        while left:
            m = left[-1]
            waits = [v.node for v in m.operands if v.node is not None and v.node not in done]
            if waits:
                left += waits
            else:
                done[left.pop()] = None

    for n in g.nodes:
        if any(v in moving for v in n.operands):
            moving.update(n.results)
            emit(n)
    for v in g.outputs:
        if v.node is not None:
            emit(v.node)
    return Graph(g.inputs, list(done), g.outputs, g.name)


def _batch(n: Node, operands: Sequence[Value], batched: Mask) -> tuple[Sequence[Value], list[bool]]:
    size = batch_size(operands, batched)
    wanted = batched_outputs(n.regions[0], list(batched), size)
    region, outer = batched_region(n.regions[0], batched, wanted, size)
    return bind(n.op, *operands, *outer, regions=(region,), **n.params), wanted


# Barrier ----------------------------------------------------------------------------------------


def _barrier_transpose(n: Node, cts: Sequence[Tangent], linear: set[Value]) -> list[Tangent]:
    return [c if v in linear else None for v, c in zip(n.operands, cts, strict=True)]


def _barrier_batch(
    n: Node, operands: Sequence[Value], batched: Mask
) -> tuple[Sequence[Value], list[bool]]:
    return bind(n.op, *operands), list(batched)


REGION_JVP[checkpoint.op] = _jvp
REGION_SPLIT[checkpoint.op] = _split
add_reach(checkpoint.op, body_reach)
REGION_ACCUMULATE[checkpoint.op] = _accumulate
REGION_BATCH[checkpoint.op] = _batch
REGION_SPREAD[checkpoint.op] = lambda n, mask, size: batched_outputs(n.regions[0], mask, size)
REGION_TRANSPOSE[barrier.op] = _barrier_transpose
REGION_BATCH[barrier.op] = _barrier_batch
