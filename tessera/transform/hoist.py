"""hoist: what is the same at every step of a loop is computed once, before it.

    scan(c, xs, a, b) { %p = matmul(a, b); %c = add(%p, c); yield %c }
->  %p = matmul(a, b); scan(c, xs, %p) { %c = add(%p, c); yield %c }

A node moves when its operands are the same at every step, when it has no effects, and when it cannot
fail, since a loop may take no step.  A node that may fail moves out of a loop that takes a step for
certain, if nothing before it in the body may fail or has effects: the program then fails as it did.
The numbers are those that every step computed, so no bit changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import is_

from tessera.core.rewrite import live, replaced
from tessera.ir.graph.ir import Builder, Graph, Node, Value, building
from tessera.ir.graph.op import forbidden
from tessera.ops.control import scan, while_loop
from tessera.ops.region import over_same_inputs
from tessera.transform.budget import count
from tessera.transform.simplify import effects

Env = dict[Value, Value]


def hoist(g: Graph) -> Graph:
    """g with what is invariant in the bodies of its loops, at any depth, in front of them."""
    builder, env = Builder(), Env()
    for n in g.nodes:
        regions = tuple(map(hoist, n.regions))
        for m in _settled(n, replaced(n.operands, env), regions, builder):
            builder.nodes.append(m)
        if builder.nodes[-1] is not n:
            env.update(zip(n.results, builder.nodes[-1].results, strict=True))
    if len(builder.nodes) == len(g.nodes) and all(map(is_, builder.nodes, g.nodes)):
        return g
    outputs = replaced(g.outputs, env)
    return Graph(g.inputs, builder.nodes, outputs, g.name, g.input_names, g.captured, g.guards)


def _settled(
    n: Node, operands: tuple[Value, ...], regions: tuple[Graph, ...], builder: Builder
) -> Iterator[Node]:
    """What left the regions of a node, then the node."""
    if n.op is scan.op or n.op is while_loop.op:
        moving = _moving(n, operands, regions, builder)
        yield from (m for region in moving for m in region.moved)
        if any(region.moved for region in moving):
            yield _loop(n, operands, moving, builder)
            return
    if all(map(is_, operands, n.operands)) and all(map(is_, regions, n.regions)):
        yield n
    else:
        yield _copy(n, operands, builder, regions)


def _copy(
    n: Node, operands: tuple[Value, ...], builder: Builder, regions: tuple[Graph, ...] | None = None
) -> Node:
    types = [v.type for v in n.results]
    inside = n.regions if regions is None else regions
    return builder.node(n.op, operands, n.params, inside, types, n.location)


# What may leave ---------------------------------------------------------------------------------


@dataclass
class LoopRegion:
    """A region of a loop: what stays in it, and what was moved, in order."""

    region: Graph
    outer: Env  # inputs of the region that stay the same -> what they are outside
    moved: list[Node] = field(default_factory=list)
    given: Env = field(default_factory=Env)  # values of the region -> moved results


def _moving(
    n: Node, operands: Sequence[Value], regions: Sequence[Graph], builder: Builder
) -> list[LoopRegion]:
    """For each region of a loop, what is the same at every step."""
    body = regions[-1]
    carry = len(body.outputs) if n.op is while_loop.op else n.params["carry"]
    first = carry + n.params.get("xs", 0)
    kept = [i for i in range(carry) if body.outputs[i] is body.inputs[i]]
    same = [*kept, *range(first, len(operands))]
    runs = n.op is scan.op and isinstance(n.params["length"], int) and n.params["length"] > 0
    out = []
    for r in regions:
        m = LoopRegion(r, {r.inputs[i]: operands[i] for i in same})
        _move(m, certain=runs or r is not body, builder=builder)
        out.append(m)
    return out


def _move(m: LoopRegion, certain: bool, builder: Builder) -> None:
    """Copy the invariant nodes of a region that are worth it, and what they need, to the outside."""
    held = {v: count(v.shape) for v in m.outer}  # numbers in memory for each invariant value
    wanted: list[Node] = []
    for n in m.region.nodes:
        risky = may_fail(n)
        fixed = all(v in held for v in n.operands)
        pinned = forbidden(effects(n), "move")
        if fixed and not pinned and (certain or not risky):
            sources = sum(held[v] for v in n.operands)
            worth = _is_worth_it(n, sources)
            held.update({v: count(v.shape) if worth else sources for v in n.results})
            wanted += [n] * worth
        elif risky or pinned:
            certain = False
    needed = live(m.region.nodes, [v for n in wanted for v in n.results], lambda n: False)
    env = dict(m.outer)
    for n in needed:
        new = _copy(n, replaced(n.operands, env), builder)
        m.moved.append(new)
        env.update(zip(n.results, new.results, strict=True))
        if not _is_free(n):  # the others are made again where they are used
            m.given.update(zip(n.results, new.results, strict=True))


def may_fail(n: Node) -> bool:
    """Whether there may be numbers for which a node gives an error, or no end."""
    if n.op is while_loop.op:
        return True
    if n.regions:
        return any(may_fail(m) for r in n.regions for m in r.nodes)
    if n.op.call is not None:
        return not n.op.total
    return n.op.decompose is not None and any(map(may_fail, _expansion(n)))


def _expansion(n: Node) -> list[Node]:
    """The nodes that a decomposition gives."""
    builder = Builder()
    with building(builder):
        operands = [builder.input(v.type, v.device) for v in n.operands]
        assert n.op.decompose is not None
        n.op.decompose(*operands, **n.params)
    return builder.nodes


def _is_free(n: Node) -> bool:
    """Whether a node is read in place or made from nothing, so that keeping its result saves nothing.

    A constant tensor is an array that the host hands over at every step.
    """
    if n.op.makes == "data":
        return n.results[0].ndim == 0
    return n.op.view is not None or not n.operands


def _is_worth_it(n: Node, sources: float) -> bool:
    """Whether a result is worth memory of its own: it took work, or is no larger than its sources.

    A tensor in more bits is larger, and who reads it widens it in no time.
    """
    if _is_free(n):
        return False
    if n.op.casts and n.results[0].dtype.bits > n.operands[0].dtype.bits:
        return False
    if n.op.makes == "data":
        return True
    if n.op.combine is not None or n.regions or (n.op.call is not None and not n.op.moves):
        return True
    return count(n.results[0].shape) <= sources


# The loop without it ----------------------------------------------------------------------------


def _loop(
    n: Node, operands: Sequence[Value], moving: Sequence[LoopRegion], builder: Builder
) -> Node:
    """The loop over what is left; operands that it no longer uses are gone."""
    first = len(moving[-1].region.outputs)
    if n.op is scan.op:
        first = n.params["carry"] + n.params["xs"]
    made = [_rest(m, first, operands) for m in moving]
    regions, outer = over_same_inputs([g for g, _ in made], [o for _, o in made])
    return _copy(n, (*operands[:first], *outer), builder, regions)


def _rest(m: LoopRegion, first: int, operands: Sequence[Value]) -> tuple[Graph, list[Value]]:
    """A region without what moved, and what its inputs after the first ones are outside."""
    builder = Builder()
    env: Env = {v: builder.input(v.type, v.device) for v in m.region.inputs[:first]}
    left = [n for n in m.region.nodes if n.results[0] not in m.given]
    nodes = live(left, m.region.outputs, _stays)
    used = {v for n in nodes for v in n.operands} | set(m.region.outputs)
    entered: Env = {}  # from outside, each once
    for v, outside in (
        *zip(m.region.inputs[first:], operands[first:], strict=True),
        *m.given.items(),
    ):
        if v in used:
            env[v] = entered.setdefault(outside, builder.input(v.type, v.device))
    for n in nodes:
        new = _copy(n, replaced(n.operands, env), builder)
        builder.nodes.append(new)
        env.update(zip(n.results, new.results, strict=True))
    inputs = [*builder.inputs[:first], *entered.values()]
    outputs = replaced(m.region.outputs, env)
    return Graph(inputs, builder.nodes, outputs, m.region.name), list(entered)


def _stays(n: Node) -> bool:
    """Whether a node is there for what it does."""
    return bool(forbidden(effects(n), "drop"))
