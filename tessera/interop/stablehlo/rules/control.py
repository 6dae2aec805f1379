"""Control flow: case and while; calls are inlined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import DType, i32, i64
from tessera.interop.stablehlo.rules.table import Inside, region_rule
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter, ints
from tessera.ir.graph.ir import Graph, Node

Types = list[tuple[DType, Sequence[int]]]


def _types(xs: Sequence[Ssa]) -> Types:
    return [(x.dtype, x.shape) for x in xs]


def _run(w: StableHloWriter, g: Graph, xs: Sequence[Ssa], inside: Inside) -> list[Ssa]:
    """The outputs of a region on values."""
    w.values.update(zip(g.inputs, xs, strict=True))
    inside(w, g.nodes)
    return [w.values[v] for v in g.outputs]


@region_rule("call", "checkpoint", "custom")
def _inline(w: StableHloWriter, n: Node, xs: list[Ssa], inside: Inside) -> Any:
    g = n.regions[0]
    return _run(w, g, xs[: len(g.inputs)], inside)


@region_rule("cond")
def _cond(w: StableHloWriter, n: Node, xs: list[Ssa], inside: Inside) -> Any:
    """The first branch of a case is the one of an index of 0."""
    if not n.results:
        return []
    yes, no = n.regions
    branches = [w.region([], lambda g=g: _run(w, g, xs[1:], inside)) for g in (yes, no)]
    index = w.op("select", xs[0], w.constant(np.int32(0)), w.constant(np.int32(1)), dtype=i32)
    types = [(v.dtype, v.shape) for v in n.results]
    return w.many("stablehlo.case", [index], types, {}, branches)


@region_rule("while_loop")
def _while(w: StableHloWriter, n: Node, xs: list[Ssa], inside: Inside) -> Any:
    test, body = n.regions
    carry, outer = xs[: len(n.results)], xs[len(n.results) :]
    if not carry:
        return []
    types = _types(carry)
    regions = [
        w.region(types, lambda *c, g=g: _run(w, g, [*c, *outer], inside)) for g in (test, body)
    ]
    return w.many("stablehlo.while", carry, types, {}, regions)


def _row(w: StableHloWriter, x: Ssa, i: Ssa) -> Ssa:
    """Row i of a tensor."""
    sizes = (1, *x.shape[1:])
    starts = [i, *(w.constant(np.int64(0)) for _ in sizes[1:])]
    row = w.op("dynamic_slice", x, *starts, shape=sizes, properties={"slice_sizes": ints(sizes)})
    return w.reshape(row, sizes[1:])


def _put(w: StableHloWriter, x: Ssa, row: Ssa, i: Ssa) -> Ssa:
    """A tensor with row i replaced."""
    starts = [i, *(w.constant(np.int64(0)) for _ in row.shape)]
    return w.op("dynamic_update_slice", x, w.reshape(row, (1, *row.shape)), *starts)


@region_rule("scan")
def _scan(w: StableHloWriter, n: Node, xs: list[Ssa], inside: Inside) -> Any:
    """A while with a counter, in which rows are read and written."""
    (g,), p = n.regions, n.params
    k, length = p["carry"], p["length"]
    carry, rows, outer = xs[:k], xs[k : k + p["xs"]], xs[k + p["xs"] :]
    made = [w.full(0, v.dtype, v.shape) for v in n.results[k:]]
    if length == 0:
        return [*carry, *made]
    state = [w.constant(np.int64(0)), *carry, *made]

    def test(i: Ssa, *rest: Ssa) -> list[Ssa]:
        return [w.compare("LT", i, w.constant(np.int64(length)))]

    def body(i: Ssa, *rest: Ssa) -> list[Ssa]:
        at = w.op("subtract", w.constant(np.int64(length - 1)), i) if p["reverse"] else i
        out = _run(w, g, [*rest[:k], *(_row(w, x, at) for x in rows), *outer], inside)
        ys = [_put(w, y, row, at) for y, row in zip(rest[k:], out[k:], strict=True)]
        return [w.op("add", i, w.constant(np.array(1), i64)), *out[:k], *ys]

    types = _types(state)
    regions = [w.region(types, f) for f in (test, body)]
    return w.many("stablehlo.while", state, types, {}, regions)[1:]
