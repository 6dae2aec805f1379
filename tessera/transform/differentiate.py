"""Derivatives of graphs: push tangents forward, pull cotangents back.

`push_forward` runs a graph and its tangent side by side, one rule per node.  The tangent part is
linear, so reverse mode is `linearize` (cut the two apart) and `transpose` (walk the linear part
backwards).  No rule for reverse mode is written unless the mathematics demands it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tessera.core.errors import RuleError
from tessera.core.held import held
from tessera.core.source import mark
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building, current_builder
from tessera.ir.graph.op import Op
from tessera.ops.define import cast_to, full_of, wide
from tessera.ops.elementwise import add, mul
from tessera.transform.simplify import simplify

Tangent = Value | None  # None is zero

# Rules of ops with regions; transform/control.py has them, since they need the transforms.
# jvp: (node without results, tangents) -> results and their tangents, from one joint node
# moves: (node, which operands have tangents) -> which results have, without building anything
# split: (node, linear values) -> results that are known, and the linear node for the others
# transpose: (node, cotangents of the results, linear values) -> cotangents of the operands
# accumulate: as transpose, given the sums so far for the operands, which the results include: a
#     sum then has the same order, and so the same bits, inside of a region as without it
REGION_JVP: dict[
    Op, Callable[[Node, Sequence[Tangent]], tuple[Sequence[Value], Sequence[Tangent]]]
] = {}
REGION_MOVES: dict[Op, Callable[[Node, list[bool]], Sequence[bool]]] = {}
REGION_SPLIT: dict[Op, Callable[[Node, set[Value]], tuple[dict[Value, Value], Node | None]]] = {}
REGION_TRANSPOSE: dict[Op, Callable[..., Sequence[Tangent]]] = {}
REGION_ACCUMULATE: dict[Op, Callable[..., Sequence[Tangent]]] = {}


class _DerivativeState(threading.local):
    linear = False  # whether tangents stand for any, rather than for those at hand
    probing = False  # whether only the presence of tangents is asked for


_STATE = _DerivativeState()


def linearizing() -> bool:
    """Whether rules must be linear in the tangents, since they will be transposed."""
    return _STATE.linear


def _for_any_tangent() -> AbstractContextManager[None]:
    return held(_STATE, "linear", True)


def probing() -> AbstractContextManager[None]:
    """Ask only which tangents there are: regions are not traced while the block runs."""
    return held(_STATE, "probing", True)


# Forward


def push_forward(
    g: Graph, primals: Sequence[Value], tangents: Sequence[Tangent]
) -> tuple[list[Value], list[Tangent]]:
    """The outputs of g and their tangents, emitted into the open builder."""
    env: dict[Value, Value] = dict(zip(g.inputs, primals, strict=True))
    moving: dict[Value, Value] = {
        v: t for v, t in zip(g.inputs, tangents, strict=True) if t is not None
    }
    builder = current_builder()
    assert builder is not None, "push_forward needs an open builder"
    for n in g.nodes:
        builder.location = n.location
        operands = tuple(env[v] for v in n.operands)
        ts = [moving.get(v) for v in n.operands]
        results, new = _push_node(n, operands, ts)
        env.update(zip(n.results, results, strict=True))
        moving.update((v, t) for v, t in zip(n.results, new, strict=True) if t is not None)
    builder.location = None
    return [env[v] for v in g.outputs], [moving.get(v) for v in g.outputs]


def _push_node(
    n: Node, operands: tuple[Value, ...], ts: Sequence[Tangent]
) -> tuple[Sequence[Value], Sequence[Tangent]]:
    moves = any(t is not None for t in ts)
    probed = _STATE.probing and n.op in REGION_MOVES
    if moves and n.op in REGION_JVP and not probed:
        return REGION_JVP[n.op](_with_results(n, operands, ()), ts)
    out = bind(n.op, *operands, regions=n.regions, **n.params)
    results = out if n.op.multiple else (out,)
    if not moves:
        return results, [None] * len(results)
    if probed:
        return results, _stand_ins(results, REGION_MOVES[n.op](n, [t is not None for t in ts]))
    return results, node_jvp(_with_results(n, operands, results), ts)


def _stand_ins(results: Sequence[Value], mask: Sequence[bool]) -> list[Tangent]:
    b = current_builder()
    assert b is not None
    return [b.input(v.type, v.device) if m else None for v, m in zip(results, mask, strict=True)]


def _with_results(n: Node, operands: tuple[Value, ...], results: tuple[Value, ...]) -> Node:
    new = Node(n.op, operands, n.params, n.regions, n.location)
    new.results = results
    return new


def node_jvp(n: Node, ts: Sequence[Tangent]) -> Sequence[Tangent]:
    """Tangents of the results of a node."""
    if all(v.dtype.kind not in "fc" for v in n.results):
        return [None] * len(n.results)
    op = n.op
    out = NotImplemented if op.jvp is None else op.jvp(n, ts)
    if out is not NotImplemented:
        return out if op.multiple and out is not None else [out] * len(n.results)
    if op.partials is not None:
        return [_by_partials(n, op.partials, ts)]
    if op.linear:
        return [_total(_linear_terms(n, ts))]
    if op.decompose is not None:
        sub, outer = decomposition(n)
        return push_forward(sub, [*n.operands, *outer], [*ts, *(None for _ in outer)])[1]
    raise RuleError(
        f"{op.name} has no derivative; wrap its operand in op.stop_gradient if none is wanted"
    ).at(n.location)


def _by_partials(
    n: Node, partials: Callable[..., tuple[Any, ...]], ts: Sequence[Tangent]
) -> Tangent:
    """The sum of partial derivatives times tangents; of narrow floats it is rounded once."""
    y, *xs = wide(n.results[0], *n.operands)
    terms = [
        mul(p, *wide(t))
        for p, t in zip(partials(y, *xs), ts, strict=True)
        if p is not None and t is not None
    ]
    total = _total(terms)
    return None if total is None else cast_to(total, n.results[0].dtype)


def _linear_terms(n: Node, ts: Sequence[Tangent]) -> list[Value]:
    terms = []
    for k, t in enumerate(ts):
        if t is None:
            continue
        if k not in n.op.linear:
            raise RuleError(f"{n.op.name} has no derivative in operand {k}").at(n.location)
        terms.append(bind(n.op, *n.operands[:k], t, *n.operands[k + 1 :], **n.params))
    return terms


def _total(terms: Sequence[Value]) -> Tangent:
    total: Tangent = None
    for t in terms:
        total = t if total is None else add(total, t)
    return total


def decomposition(n: Node) -> tuple[Graph, tuple[Value, ...]]:
    """The graph of an op's decomposition, and what it captured."""
    assert n.op.decompose is not None
    b = Builder(current_builder(), n.location)
    with building(b):
        ins = [b.input(v.type, v.device) for v in n.operands]
        out = n.op.decompose(*ins, **n.params)
        made = out if n.op.multiple else (out,)
        outs = [cast_to(v, r.dtype) for v, r in zip(made, n.results, strict=True)]
    return b.finish(outs, n.op.name)


# Linearize and transpose


@dataclass(frozen=True)
class Linearized:
    """A graph at a point: its outputs there, and its derivative as a list of linear nodes."""

    outputs: list[Value]
    nodes: list[Node]  # linear in the tangents, in order, on operands of this point
    tangents: list[Value]  # inputs of the linear part, one per differentiated input
    results: list[Tangent]  # outputs of the linear part, None where they are zero

    def apply(self, tangents: Sequence[Value]) -> list[Value]:
        """The derivative times a tangent."""
        env: dict[Value, Value] = dict(zip(self.tangents, tangents, strict=True))
        for n in self.nodes:
            out = bind(n.op, *(env.get(v, v) for v in n.operands), regions=n.regions, **n.params)
            env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
        return [
            zeros(y.type) if r is None else env.get(r, r)
            for r, y in zip(self.results, self.outputs, strict=True)
        ]

    def pull_back(
        self, cotangents: Sequence[Tangent], start: Sequence[Tangent] = ()
    ) -> list[Tangent]:
        """The transposed derivative times a cotangent, added to start: one entry per input."""
        pairs = zip(self.tangents, start, strict=False)
        cts: dict[Value, Value] = {t: s for t, s in pairs if s is not None}
        for r, ct in zip(self.results, cotangents, strict=True):
            if r is not None and ct is not None:
                cts[r] = add(cts[r], ct) if r in cts else ct
        linear = {v for n in self.nodes for v in n.results} | set(self.tangents)
        builder = current_builder()
        for n in reversed(self.nodes):
            mine = [cts.pop(v, None) for v in n.results]
            if all(c is None for c in mine):
                continue
            if builder is not None:
                builder.location = mark(n.location, phase="backward")
            if n.op in REGION_ACCUMULATE:
                _accumulate(n, mine, linear, cts)
                continue
            for v, c in transpose_node(n, mine, linear):
                cts[v] = add(cts[v], c) if v in cts else c
        if builder is not None:
            builder.location = None
        return [cts.get(t) for t in self.tangents]


def _accumulate(
    n: Node, mine: Sequence[Tangent], linear: set[Value], cts: dict[Value, Value]
) -> None:
    """Let a node add to the cotangents of its operands, to one that occurs twice only once."""
    places = {v: k for k, v in reversed(list(enumerate(n.operands)))}
    first = [places[v] == k for k, v in enumerate(n.operands)]
    so_far = [cts.get(v) if f else None for v, f in zip(n.operands, first, strict=True)]
    totals = REGION_ACCUMULATE[n.op](n, mine, linear, so_far)
    for v, f, c in zip(n.operands, first, totals, strict=True):
        if c is not None:
            cts[v] = c if f else add(cts[v], c)


def zeros(t: TensorType) -> Value:
    """Zeros of a type."""
    return full_of(t.shape, 0, t.dtype)


def carried(ct: Value) -> Value:
    """A cotangent as it is carried in its dtype, multiplied by the scale that its policy states."""
    return ct if ct.dtype.scale == 1 else mul(ct, ct.dtype.scale)


def uncarried(ct: Value) -> Value:
    """A cotangent without the scale of its dtype."""
    return ct if ct.dtype.scale == 1 else mul(ct, 1 / ct.dtype.scale)


def transpose_node(
    n: Node, cts: Sequence[Tangent], linear: set[Value]
) -> list[tuple[Value, Value]]:
    """(operand, cotangent) for each linear operand of a linear node."""
    if n.op in REGION_TRANSPOSE:
        out = REGION_TRANSPOSE[n.op](n, cts, linear)
        return [(v, c) for v, c in zip(n.operands, out, strict=True) if c is not None]
    if n.op.transpose is None:
        raise RuleError(f"{n.op.name} has no transpose, so reverse mode stops here").at(n.location)
    ct: Any = list(cts) if n.op.multiple else cts[0]
    return [(v, n.op.transpose(n, ct, k)) for k, v in enumerate(n.operands) if v in linear]


def linearize(g: Graph, primals: Sequence[Value], wanted: Sequence[int]) -> Linearized:
    """The outputs of g at primals, and its derivative in the inputs whose numbers are wanted."""
    scratch = Builder(given=primals)  # a rule of the user may decide on values
    with building(scratch), _for_any_tangent():
        ins = [scratch.input(v.type, v.device) for v in g.inputs]
        ts = {k: scratch.input(g.inputs[k].type, g.inputs[k].device) for k in wanted}
        outs, out_ts = push_forward(g, ins, [ts.get(k) for k in range(len(ins))])
    moving = [t for t in out_ts if t is not None]
    captured = [(inner, outer) for outer, inner in scratch.captured()]
    clean = simplify(
        Graph([*scratch.inputs, *(i for i, _ in captured)], scratch.nodes, [*outs, *moving])
    )
    count = len(ins)
    env: dict[Value, Value] = dict(zip(clean.inputs[:count], primals, strict=True))
    env.update(zip(clean.inputs[len(scratch.inputs) :], (o for _, o in captured), strict=True))
    tangents = list(clean.inputs[count : len(scratch.inputs)])
    linear = set(tangents)
    nodes = split(clean, env, linear)
    left = iter(clean.outputs[len(outs) :])
    # A tangent that does not depend on the tangents of the inputs is zero.
    moved = [None if t is None else next(left) for t in out_ts]
    results = [t if t in linear else None for t in moved]
    return Linearized([env[v] for v in clean.outputs[: len(outs)]], nodes, tangents, results)


def split(g: Graph, env: dict[Value, Value], linear: set[Value]) -> list[Node]:
    """Run the nodes that do not depend on tangents; the others, on operands of this point."""
    kept: list[Node] = []
    builder = current_builder()
    for n in g.nodes:
        if builder is not None:
            builder.location = n.location
        if any(v in linear for v in n.operands):
            point = _with_results(n, tuple(env.get(v, v) for v in n.operands), n.results)
            new: Node | None = point
            if n.op in REGION_SPLIT:
                known, new = REGION_SPLIT[n.op](point, linear)
                env.update(known)
            if new is not None:
                linear.update(new.results)
                kept.append(new)
            continue
        out = bind(n.op, *(env[v] for v in n.operands), regions=n.regions, **n.params)
        env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
    if builder is not None:
        builder.location = None
    return kept
