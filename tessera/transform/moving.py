"""Find which outputs of a region move with which inputs, without building its derivative.

The rules of cond, scan, while_loop and checkpoint ask this before they trace a region.  A probe runs the
rules of plain ops, whose answer only they know, and asks the tables below about nested regions: nothing is
traced twice, so that the cost of a derivative grows with the depth of nesting, not with two to its power.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec

from tessera.ir.graph.ir import Builder, Graph, Node, Value, building, current_builder
from tessera.ir.graph.op import Op
from tessera.ops.control import cond, scan, while_loop
from tessera.transform.differentiate import REGION_MOVES, REGION_SPLIT, probing, push_forward
from tessera.transform.inline import inline

Mask = list[bool]
Outputs = Callable[[Graph, Mask], Mask]
P = ParamSpec("P")


class _Memo(threading.local):
    """Answers of the outermost question, which keeps its graphs alive."""

    found: dict[tuple[object, ...], Mask] | None = None


_MEMO = _Memo()


def remembered(
    ask: Callable[Concatenate[Graph, Mask, P], Mask],
) -> Callable[Concatenate[Graph, Mask, P], Mask]:
    """`ask`, answered once for each region and mask while an outer question is open."""

    def run(g: Graph, mask: Mask, /, *rest: P.args, **named: P.kwargs) -> Mask:
        if _MEMO.found is None:
            _MEMO.found = {}
            try:
                return ask(g, mask, *rest, **named)
            finally:
                _MEMO.found = None
        key = (ask, g, tuple(mask), *rest)
        if key not in _MEMO.found:
            _MEMO.found[key] = ask(g, mask, *rest, **named)
        return _MEMO.found[key]

    return run


def fixed_point(mask: Mask, carry: int, grow: Callable[[Mask], Mask]) -> tuple[Mask, Mask]:
    """The mask whose first entries no longer grow by going round the loop, and the outputs that move with
    it.
    """
    while True:
        outs = grow(mask)
        more = [m or g for m, g in zip(mask[:carry], outs[:carry], strict=True)]
        if more == mask[:carry]:
            return mask, [*more, *outs[carry:]]
        mask = [*more, *mask[carry:]]


def either(masks: Sequence[Mask]) -> Mask:
    """Where any of the masks holds."""
    return [any(column) for column in zip(*masks, strict=True)]


# Tangents


@remembered
def moving_outputs(g: Graph, mask: Mask) -> Mask:
    """Which outputs have tangents when these inputs have."""
    whole = inline(g)
    b = Builder(current_builder())
    with building(b), probing():
        ins = [b.input(v.type, v.device) for v in whole.inputs]
        ts = [b.input(v.type, v.device) if m else None for v, m in zip(ins, mask, strict=True)]
        return [t is not None for t in push_forward(whole, ins, ts)[1]]


# Linear values


@remembered
def linear_outputs(g: Graph, mask: Mask) -> Mask:
    """Which outputs depend on the inputs of the mask."""
    linear: set[Value] = {v for v, m in zip(g.inputs, mask, strict=True) if m}
    for n in g.nodes:
        mine = [v in linear for v in n.operands]
        if not any(mine):
            continue
        rule = _REACH.get(n.op) if n.op in REGION_SPLIT else None
        found = rule(n, mine, linear_outputs) if rule else [True] * len(n.results)
        linear.update(v for v, m in zip(n.results, found, strict=True) if m)
    return [v in linear for v in g.outputs]


# Regions: which results move with which operands


def _cond(n: Node, mask: Mask, ask: Outputs) -> Mask:
    return either([ask(g, mask[1:]) for g in n.regions])


def _scan(n: Node, mask: Mask, ask: Outputs) -> Mask:
    return fixed_point(mask, n.params["carry"], lambda m: ask(n.regions[0], m))[1]


def _while(n: Node, mask: Mask, ask: Outputs) -> Mask:
    body = n.regions[1]
    return fixed_point(mask, len(body.outputs), lambda m: ask(body, m))[1]


def body_reach(n: Node, mask: Mask, ask: Outputs) -> Mask:
    """Of an op that runs its one region."""
    return ask(n.regions[0], mask)


_REACH: dict[Op, Callable[[Node, Mask, Outputs], Mask]] = {}


def add_reach(op: Op, rule: Callable[[Node, Mask, Outputs], Mask]) -> None:
    """Say which results of an op with regions move with which operands."""
    _REACH[op] = rule
    REGION_MOVES[op] = lambda n, mask: rule(n, mask, moving_outputs)


for _op, _rule in ((cond.op, _cond), (scan.op, _scan), (while_loop.op, _while)):
    add_reach(_op, _rule)
