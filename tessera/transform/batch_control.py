"""Batches of control flow: calls, cond, scan and while_loop with a new leading axis.

A branch or a loop that all elements of the batch share stays one, as does a branch of a batch of one.
Where each element has a condition of its own, cond runs both branches and picks, and while_loop goes on
until all are done, elements that are done keeping what they have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.core.dims import Shape, Size
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building, current_builder
from tessera.ops.batching import NEW_AXIS, Mask, batch_size, in_front, spread_behind, to_front
from tessera.ops.collective import mentions
from tessera.ops.control import call, cond, scan, while_loop
from tessera.ops.elementwise import where
from tessera.ops.reduction import any as any_of
from tessera.ops.region import over_same_inputs
from tessera.ops.shape import reshape, transpose
from tessera.transform.batch import REGION_BATCH, REGION_SPREAD, batch_graph, probing
from tessera.transform.moving import either, fixed_point, remembered

Results = tuple[Sequence[Value], Sequence[bool]]
Traced = tuple[Graph, tuple[Value, ...]]


def traced(
    inputs: Sequence[Value], body: Callable[..., Sequence[Value]], name: str
) -> tuple[Graph, tuple[Value, ...]]:
    """The graph of a function of values like these, and what it captured."""
    b = Builder(current_builder())
    with building(b):
        outs = body(*(b.input(v.type, v.device) for v in inputs))
        g, outer = b.finish(outs, name)
    return Graph(g.inputs, g.nodes, g.outputs, name), outer


def like(v: Value, shape: Shape) -> Value:
    """A stand-in for a value like v of this shape, to trace with."""
    return Builder().input(v.type.with_shape(shape), v.device)


def inside(v: Value, batched: bool, size: Size) -> Value:
    """A stand-in for an input of a region with the new axis in front."""
    return like(v, (size, *v.shape) if batched else v.shape)


@remembered
def batched_outputs(g: Graph, batched: list[bool], size: Size) -> list[bool]:
    """Which outputs are batched when these inputs are."""
    b = Builder(current_builder())
    with building(b), probing():
        shaped = [inside(v, m, size) for v, m in zip(g.inputs, batched, strict=True)]
        return batch_graph(g, [b.input(v.type, v.device) for v in shaped], batched)[1]


def batched_region(g: Graph, batched: Mask, wanted: Mask, size: Size) -> Traced:
    """g with the new axis on these inputs and, at least, on the wanted outputs."""

    def run(*xs: Value) -> list[Value]:
        outs, mask = batch_graph(g, xs, batched)
        return filled(outs, mask, wanted, size)

    inputs = [inside(v, b, size) for v, b in zip(g.inputs, batched, strict=True)]
    return traced(inputs, run, g.name)


def filled(outs: Sequence[Value], mask: Mask, wanted: Mask, size: Size) -> list[Value]:
    """Values with the new axis where it is wanted."""
    return [
        in_front(v, False, size) if w and not b else v
        for v, b, w in zip(outs, mask, wanted, strict=True)
    ]


def _call(n: Node, operands: Sequence[Value], batched: Mask) -> Results:
    return batch_graph(n.regions[0], operands, batched)


# cond -------------------------------------------------------------------------------------------


def _cond(n: Node, operands: Sequence[Value], batched: Mask) -> Results:
    size = batch_size(operands, batched)
    if batched[0] and size == 1 and not _mentions_axis(n):
        operands, batched = (reshape(operands[0], ()), *operands[1:]), (False, *batched[1:])
    if batched[0]:
        return _both(n, operands, batched, size)
    mask = list(batched[1:])
    wanted = either([batched_outputs(g, mask, size) for g in n.regions])
    made = [batched_region(g, mask, wanted, size) for g in n.regions]
    regions, outer = over_same_inputs([g for g, _ in made], [o for _, o in made])
    return bind(n.op, *operands, *outer, regions=regions, **n.params), wanted


def _mentions_axis(n: Node) -> bool:
    return NEW_AXIS.name is not None and mentions(n, NEW_AXIS.name)


def _both(n: Node, operands: Sequence[Value], batched: Mask, size: Size) -> Results:
    pred, *rest = operands
    every = [True] * len(n.results)
    sides = [filled(*batch_graph(g, rest, batched[1:]), every, size) for g in n.regions]
    picked = [where(spread_behind(pred, a.ndim), a, b) for a, b in zip(*sides, strict=True)]
    return picked, every


# scan -------------------------------------------------------------------------------------------


def _scan(n: Node, operands: Sequence[Value], batched: Mask) -> Results:
    """The body works on the whole batch; rows run along axis 1 and go in with axis 0 moved inside."""
    (body,), c = n.regions, n.params["carry"]
    stop, size = c + n.params["xs"], batch_size(operands, batched)
    mask, wanted = fixed_point(list(batched), c, lambda m: batched_outputs(body, m, size))
    values = [
        in_front(v, b, size) if m else v for v, b, m in zip(operands, batched, mask, strict=True)
    ]
    rows = [to_front(v, 1) if m else v for v, m in zip(values[c:stop], mask[c:stop], strict=True)]
    region, outer = batched_region(body, mask, wanted, size)
    out = bind(n.op, *values[:c], *rows, *values[stop:], *outer, regions=(region,), **n.params)
    ys = [_batch_first(v) if w else v for v, w in zip(out[c:], wanted[c:], strict=True)]
    return [*out[:c], *ys], wanted


def _batch_first(y: Value) -> Value:
    return transpose(y, (1, 0, *range(2, y.ndim)))


# while_loop -------------------------------------------------------------------------------------


def _while(n: Node, operands: Sequence[Value], batched: Mask) -> Results:
    (test, body), size = n.regions, batch_size(operands, batched)
    c = len(body.outputs)
    mask, _ = fixed_point(list(batched), c, lambda m: batched_outputs(body, m, size))
    alone = batched_outputs(test, mask, size)[0]
    if alone:
        mask = [*(True for _ in range(c)), *mask[c:]]
    values = [
        in_front(v, b, size) if m else v for v, b, m in zip(operands, batched, mask, strict=True)
    ]

    def goes_on(*xs: Value) -> Value:
        return batch_graph(test, xs, mask)[0][0]

    def step(*xs: Value) -> list[Value]:
        new = filled(*batch_graph(body, xs, mask), mask[:c], size)
        if not alone:
            return new
        on = goes_on(*xs)
        return [where(spread_behind(on, x.ndim), y, x) for x, y in zip(xs[:c], new, strict=True)]

    def still(*xs: Value) -> list[Value]:
        on = goes_on(*xs)
        return [any_of(on) if alone else on]

    made = [traced(values, still, test.name), traced(values, step, body.name)]
    regions, outer = over_same_inputs([g for g, _ in made], [o for _, o in made])
    return bind(n.op, *values, *outer, regions=regions, **n.params), mask[:c]


# Which results are batched ----------------------------------------------------------------------


def _cond_spread(n: Node, batched: list[bool], size: Size) -> list[bool]:
    if batched[0] and (size != 1 or _mentions_axis(n)):
        return [True] * len(n.results)
    return either([batched_outputs(g, batched[1:], size) for g in n.regions])


def _scan_spread(n: Node, batched: list[bool], size: Size) -> list[bool]:
    body, c = n.regions[0], n.params["carry"]
    return fixed_point(batched, c, lambda m: batched_outputs(body, m, size))[1]


def _while_spread(n: Node, batched: list[bool], size: Size) -> list[bool]:
    test, body = n.regions
    grow = lambda m: batched_outputs(body, m, size)  # noqa: E731
    mask, wanted = fixed_point(batched, len(body.outputs), grow)
    return [True] * len(wanted) if batched_outputs(test, mask, size)[0] else wanted


REGION_SPREAD[cond.op] = _cond_spread
REGION_SPREAD[scan.op] = _scan_spread
REGION_SPREAD[while_loop.op] = _while_spread
for _op, _rule in ((call.op, _call), (cond.op, _cond), (scan.op, _scan), (while_loop.op, _while)):
    REGION_BATCH[_op] = _rule
