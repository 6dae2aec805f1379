"""batch: a graph with a new leading axis on some of its inputs, node by node.

    %1 = matmul(%0, %w) : f32[3,4], f32[4,5]      with %0 batched by 8
->  %1 = matmul(%0, %w) : f32[8,3,4], f32[4,5]    in as few nodes

A node none of whose operands is batched stays as it is, unless it is a collective over the new axis
(ops/collective.py) or holds one.  For the others the rule is, in this order:
the op's own; the op on all operands in front, when its signature says that '...' may be any axes;
`axis` or `axes` counted past the new axis; the op's decomposition; a scan along the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tessera.core.dims import Size
from tessera.core.held import held
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building, current_builder
from tessera.ir.graph.op import Op
from tessera.ops.batching import NEW_AXIS, Mask, along, batch_size, leading
from tessera.ops.collective import ALONG, mentions
from tessera.ops.control import scan
from tessera.transform.differentiate import decomposition

# Rules of ops with regions: (node, operands, batched) -> results and which are batched.
REGION_BATCH: dict[
    Op, Callable[[Node, Sequence[Value], Mask], tuple[Sequence[Value], Sequence[bool]]]
] = {}


# Which results are batched, without building anything: (node, batched, size) -> mask.
REGION_SPREAD: dict[Op, Callable[[Node, list[bool], Size], list[bool]]] = {}


class _State(threading.local):
    probing = False  # whether only the presence of the new axis is asked for


_STATE = _State()


def probing() -> AbstractContextManager[None]:
    """Ask only which results have the new axis: regions are not traced while the block runs."""
    return held(_STATE, "probing", True)


def batch_graph(
    g: Graph, operands: Sequence[Value], batched: Mask
) -> tuple[list[Value], list[bool]]:
    """The outputs of g, and which of them have the new axis in front."""
    env: dict[Value, tuple[Value, bool]] = {
        v: (x, b) for v, x, b in zip(g.inputs, operands, batched, strict=True)
    }
    builder = current_builder()
    for n in g.nodes:
        if builder is not None:
            builder.location = n.location
        pairs = [env[v] for v in n.operands]
        results, mask = batch_node(n, [v for v, _ in pairs], [b for _, b in pairs])
        env.update(zip(n.results, zip(results, mask, strict=True), strict=True))
    if builder is not None:
        builder.location = None
    return [env[v][0] for v in g.outputs], [env[v][1] for v in g.outputs]


def batch_node(
    n: Node, operands: Sequence[Value], batched: Mask
) -> tuple[Sequence[Value], Sequence[bool]]:
    """The results of a node on these operands, and which of them are batched."""
    name = NEW_AXIS.name
    named = name is not None and mentions(n, name)
    if named and n.op in ALONG:
        made, spread = ALONG[n.op](n, operands, batched, batch_size(operands, batched))
        return [made], [spread]
    if not any(batched) and not named:
        out = bind(n.op, *operands, regions=n.regions, **n.params)
        return _results(n, out), [False] * len(n.results)
    if _STATE.probing and n.op in REGION_SPREAD:
        return _stand_ins(n, list(batched), batch_size(operands, batched))
    if n.op in REGION_BATCH:
        return REGION_BATCH[n.op](n, operands, batched)
    if n.op.decompose is not None and n.op.batch is None and not _stacks(n):
        sub, outer = decomposition(n)
        return batch_graph(sub, [*operands, *outer], [*batched, *(False for _ in outer)])
    rule = n.op.batch or _stacks(n) or one_by_one
    return _results(n, rule(n, operands, batched)), [True] * len(n.results)


def _stand_ins(n: Node, batched: list[bool], size: Size) -> tuple[list[Value], list[bool]]:
    builder, mask = current_builder(), REGION_SPREAD[n.op](n, batched, size)
    assert builder is not None
    shapes = [(size, *v.shape) if m else v.shape for v, m in zip(n.results, mask, strict=True)]
    pairs = zip(n.results, shapes, strict=True)
    return [builder.input(v.type.with_shape(s), v.device) for v, s in pairs], mask


def _results(n: Node, out: Any) -> Sequence[Value]:
    return out if n.op.multiple else (out,)


def _stacks(n: Node) -> Callable[..., Any] | None:
    """The rule that the record implies, if it does."""
    if isinstance(n.op.signature, str) and not n.op.multiple:
        sig = n.op.sig(n.types, n.params)
        assert sig is not None
        return leading if all(axes[:1] == ("...",) for axes in (*sig.ins, sig.out)) else None
    same_rank = all(v.ndim == n.operands[0].ndim for v in n.operands)
    return along if same_rank and ("axis" in n.params or "axes" in n.params) else None


def one_by_one(n: Node, operands: Sequence[Value], batched: Mask) -> Any:
    """A scan whose step applies the op to one element of the batch."""
    moving = [v for v, b in zip(operands, batched, strict=True) if b]
    fixed = [v for v, b in zip(operands, batched, strict=True) if not b]
    body = Builder(current_builder(), n.location)
    with building(body):
        rows = iter([body.input(v.type.with_shape(v.shape[1:]), v.device) for v in moving])
        rest = iter([body.input(v.type, v.device) for v in fixed])
        inputs = [next(rows) if b else next(rest) for b in batched]
        outs = _results(n, bind(n.op, *inputs, regions=n.regions, **n.params))
    g, _ = body.finish(outs, n.op.name)
    region = Graph(g.inputs, g.nodes, g.outputs, g.name)
    out = scan.bind_many(
        *moving, *fixed, regions=(region,),
        carry=0, xs=len(moving), length=batch_size(operands, batched), reverse=False,
    )  # fmt: skip
    return out if n.op.multiple else out[0]
