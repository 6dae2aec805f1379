"""Known values: what a traced value is where the inputs of its trace stand for concrete tensors.

A derivative that is taken outside of jit traces a function at a point.  A decision on a value inside (`if x
> 0`) asks for its number: the nodes that it depends on are run once, as eager code runs them, and
remembered for the next decision.  Traces without such decisions pay nothing.
"""

from __future__ import annotations

from tessera.core.errors import TesseraError
from tessera.ir.graph.ir import Builder, Node, Value, bind, eagerly


def known(v: Value) -> Value | None:
    """The concrete value that a traced one has in this call; None where the trace holds for many."""
    if v.storage is not None:
        return v
    b = v.builder
    if b is None:
        return None
    found = b.known.get(v)
    if found is None:
        found = _input(b, v) if v.node is None else _computed(b, v)
    return found


def _input(b: Builder, v: Value) -> Value | None:
    """What an input stands for: an argument of the call, or a value from outside."""
    if b.given and 0 <= v.index < len(b.given) and b.inputs[v.index] is v:
        outer: Value | None = b.given[v.index]
    else:
        outer = next((o for o, inner in b.captures.values() if inner is v), None)
    found = None if outer is None or outer is v else known(outer)
    if found is not None:
        b.known[v] = found
    return found


def _computed(b: Builder, v: Value) -> Value | None:
    """The result of a node, once the nodes before it that it needs have run."""
    nodes = _needed(b, v)
    if nodes is None:
        return None
    with eagerly():
        for n in nodes:
            _run(b, n)
    return b.known[v]


def _needed(b: Builder, v: Value) -> list[Node] | None:
    """The nodes that have not run and that v depends on, in order; None where an input is not known."""
    wanted: set[Node] = set()
    stack = [v]
    while stack:
        x = stack.pop()
        if x in b.known or x.node in wanted:
            continue
        if x.node is None:
            if known(x) is None:
                return None
            continue
        if x.node.op.effects:
            return None  # it would happen twice
        wanted.add(x.node)
        stack += x.node.operands
    return [n for n in b.nodes if n in wanted]


def _run(b: Builder, n: Node) -> None:
    operands = [b.known.get(x, x) for x in n.operands]
    try:
        out = bind(n.op, *operands, regions=n.regions, **n.params)
    except TesseraError as e:
        raise e.at(n.location) from None
    for x, y in zip(n.results, out if n.op.multiple else (out,), strict=True):
        b.known[x] = y
