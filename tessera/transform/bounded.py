"""A while_loop of at most n steps as a scan, which reverse mode can run backwards.

    while_loop(carry) {test, body} bound = n
->  scan(carry) {checkpoint {scan {cond(test) {body} {carry}}}}     about sqrt(n) times sqrt(n) steps

Only the carries between the blocks of the outer scan are kept; those inside of one block are computed
again when the derivative gets there.  A step after the last one hands the carry on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tessera.core.dims import Size
from tessera.ir.graph.ir import Graph, Node, Value, bind
from tessera.ops.control import cond, scan
from tessera.ops.remat import checkpoint
from tessera.transform.batch_control import traced
from tessera.transform.inline import copy_into


def bounded(n: Node) -> Node:
    """The scan that has the results of a while_loop with a bound."""
    (test, body), bound = n.regions, n.params["bound"]
    carry = len(body.outputs)
    inner, outer = blocks(bound)
    ends = Graph(test.inputs, (), test.inputs[:carry], body.name)

    def step(*xs: Value) -> Sequence[Value]:
        (on,) = copy_into(test, xs)
        done: Sequence[Value] = bind(cond.op, on, *xs, regions=(body, ends))
        return done

    def block(*xs: Value) -> Sequence[Value]:
        region = _region(n, step)
        done: Sequence[Value] = bind(scan.op, *xs, regions=(region,), **_loop(carry, inner))
        return done

    def kept(*xs: Value) -> Sequence[Value]:
        return checkpoint(_region(n, block), *xs, name=body.name, policy="nothing")

    made = Node(scan.op, n.operands, _loop(carry, outer), (_region(n, kept),), n.location)
    made.results = n.results
    return made


def blocks(bound: Size) -> tuple[Size, Size]:
    """Steps in a block and blocks, about equal; a symbolic bound has one step in each block."""
    if not isinstance(bound, int):
        return 1, bound
    inner = max(math.isqrt(bound), 1)
    return inner, -(-bound // inner)


def _loop(carry: int, length: Size) -> dict[str, Size | bool]:
    return {"carry": carry, "xs": 0, "length": length, "reverse": False}


def _region(n: Node, body: Callable[..., Sequence[Value]]) -> Graph:
    g, captured = traced(n.operands, body, n.op.name)
    assert not captured, n
    return g
