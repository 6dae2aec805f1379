"""Derivatives of control flow: the rules of cond, scan and while_loop.

Forward mode carries tangents beside the primals, in one node.  Linearize cuts such a node in two:
what does not depend on tangents runs first and hands on what the linear part needs (residuals; a
scan stacks them), and the linear part alone is transposed, a scan by a scan in the other direction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.core.errors import RuleError
from tessera.ir.graph.ir import Builder, Graph, Node, Value, bind, building, current_builder
from tessera.ops.control import cond, scan, while_loop
from tessera.ops.elementwise import add
from tessera.ops.region import over_same_inputs
from tessera.transform.bounded import bounded
from tessera.transform.differentiate import (
    REGION_JVP,
    REGION_SPLIT,
    REGION_TRANSPOSE,
    Linearized,
    Tangent,
    push_forward,
    split,
    zeros,
)
from tessera.transform.inline import inline
from tessera.transform.moving import either, fixed_point, linear_outputs, moving_outputs
from tessera.transform.simplify import simplify

Mask = list[bool]


def chosen(xs: Sequence[Any], mask: Sequence[bool]) -> list[Any]:
    """Those of xs for which the mask holds."""
    return [x for x, m in zip(xs, mask, strict=True) if m]


def negated(mask: Sequence[bool]) -> Mask:
    """The mask of the others."""
    return [not m for m in mask]


def present(xs: Sequence[Tangent]) -> Mask:
    """Which are not zero."""
    return [x is not None for x in xs]


def filled(ts: Sequence[Tangent], values: Sequence[Value], mask: Sequence[bool]) -> list[Value]:
    """Tangents where the mask holds, zeros where none is given."""
    return [
        zeros(v.type) if t is None else t
        for t, v in zip(chosen(ts, mask), chosen(values, mask), strict=True)
    ]


def region_of(
    inputs: Sequence[Value], body: Callable[..., Sequence[Value]], name: str
) -> tuple[Graph, tuple[Value, ...]]:
    """The graph of a function of values like these, and what it captured."""
    b = Builder(current_builder())
    with building(b):
        outs = body(*(b.input(v.type, v.device) for v in inputs))
    g, outer = b.finish(outs, name)
    return simplify(Graph(g.inputs, g.nodes, g.outputs, name)), outer


def _bind(n: Node, operands: Sequence[Value], regions: Sequence[Graph], **params: Any) -> Any:
    if not regions[-1].outputs:
        return ()
    return bind(n.op, *operands, regions=tuple(regions), **{**n.params, **params})


def _node(
    n: Node,
    operands: Sequence[Value],
    regions: Sequence[Graph],
    results: Sequence[Value],
    **params: Any,
) -> Node:
    new = Node(n.op, tuple(operands), {**n.params, **params}, tuple(regions), n.location)
    new.results = tuple(results)
    return new


def _parts(n: Node) -> tuple[slice, slice, slice]:
    """Which operands of a scan are carry, which run along it, which are the same at every step."""
    c, stop = n.params["carry"], n.params["carry"] + n.params["xs"]
    return slice(0, c), slice(c, stop), slice(stop, len(n.operands))


# Forward ----------------------------------------------------------------------------------------


def pushed(g: Graph, mask: Mask, values: Sequence[Value], wanted: Mask) -> list[Value]:
    """Outputs, then wanted tangents, from the inputs followed by their tangents where the mask holds."""
    left = iter(values[len(mask) :])
    ts = [next(left) if m else None for m in mask]
    outs, out_ts = push_forward(g, values[: len(mask)], ts)
    return [*outs, *filled(out_ts, outs, wanted)]


def spread(ts: Sequence[Value], mask: Mask) -> list[Tangent]:
    """Values at the places where the mask holds, None at the others."""
    left = iter(ts)
    return [next(left) if m else None for m in mask]


def _cond_jvp(n: Node, ts: Sequence[Tangent]) -> tuple[list[Value], list[Tangent]]:
    branches = [inline(g) for g in n.regions]
    operands, mask = n.operands[1:], present(ts[1:])
    wanted = either([moving_outputs(g, mask) for g in n.regions])
    inputs = [*operands, *chosen(ts[1:], mask)]

    def joint(g: Graph) -> tuple[Graph, tuple[Value, ...]]:
        return region_of(inputs, lambda *xs: pushed(g, mask, xs, wanted), g.name)

    made = [joint(g) for g in branches]
    regions, outer = over_same_inputs([g for g, _ in made], [o for _, o in made])
    out = _bind(n, [n.operands[0], *inputs, *outer], regions)
    return list(out[: len(wanted)]), spread(out[len(wanted) :], wanted)


def _while_jvp(n: Node, ts: Sequence[Tangent]) -> tuple[list[Value], list[Tangent]]:
    test, body = (inline(g) for g in n.regions)
    c = len(body.outputs)
    mask, _ = fixed_point(present(ts), c, lambda m: moving_outputs(n.regions[1], m))
    inside, outside = mask[:c], mask[c:]
    tangents = filled(ts, n.operands, mask)
    count = sum(inside)
    inputs = [*n.operands[:c], *tangents[:count], *n.operands[c:], *tangents[count:]]

    def primal(xs: Sequence[Value]) -> list[Value]:
        rest = xs[c + count :]
        return [*xs[:c], *rest[: len(outside)]]

    def step(*xs: Value) -> list[Value]:
        moving = [*xs[c : c + count], *xs[c + count + len(outside) :]]
        return pushed(body, mask, [*primal(xs), *moving], inside)

    def still(*xs: Value) -> list[Value]:
        return push_forward(test, primal(xs), [None] * len(mask))[0]

    made = [region_of(inputs, still, test.name), region_of(inputs, step, body.name)]
    regions, outer = over_same_inputs([g for g, _ in made], [o for _, o in made])
    out = _bind(n, [*inputs, *outer], regions)
    return list(out[:c]), spread(out[c:], inside)


def _scan_jvp(n: Node, ts: Sequence[Tangent]) -> tuple[list[Value], list[Tangent]]:
    body = inline(n.regions[0])
    parts, c = _parts(n), n.params["carry"]
    mask, wanted = fixed_point(present(ts), c, lambda m: moving_outputs(n.regions[0], m))
    counts = [sum(mask[p]) for p in parts]
    operands = [v for p in parts for v in (*n.operands[p], *filled(ts[p], n.operands[p], mask[p]))]
    slices = [v for p in parts for v in (*body.inputs[p], *chosen(body.inputs[p], mask[p]))]

    def step(*xs: Value) -> list[Value]:
        values, tangents, rest = [], [], iter(xs)
        for p, k in zip(parts, counts, strict=True):
            values += [next(rest) for _ in body.inputs[p]]
            tangents += [next(rest) for _ in range(k)]
        both = pushed(body, mask, [*values, *tangents], wanted)
        outs, moved = both[: len(wanted)], both[len(wanted) :]
        return [*outs[:c], *moved[: counts[0]], *outs[c:], *moved[counts[0] :]]

    region, outer = region_of(slices, step, body.name)
    out = _bind(
        n, [*operands, *outer], (region,), carry=c + counts[0], xs=n.params["xs"] + counts[1]
    )
    carry, ys = out[: c + counts[0]], out[c + counts[0] :]
    count = len(body.outputs) - c
    results = [*carry[:c], *ys[:count]]
    return results, spread([*carry[c:], *ys[count:]], wanted)


# Linearize --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """A region in two: the part that is known, still open, and the linear nodes that follow it."""

    graph: Graph
    known: Builder
    env: dict[Value, Value]  # values of the graph in the known part
    linear: set[Value]
    nodes: list[Node]

    @property
    def outputs(self) -> Mask:
        """Which outputs are linear."""
        return [v in self.linear for v in self.graph.outputs]

    def residuals(self, wanted: Mask) -> list[Value]:
        """What the linear part needs from the known part, apart from nodes without operands."""
        used = [v for n in self.nodes for v in n.operands if v not in self.linear]
        used += [self.env[v] for v in chosen(self.graph.outputs, wanted) if v in self.env]
        found = {id(v): v for v in used if v.node is None or v.node.operands or v.node.regions}
        return list(found.values())

    def linear_part(
        self, inputs: Sequence[Value], residuals: Sequence[Value], wanted: Mask
    ) -> Callable[..., list[Value]]:
        """The function from linear inputs and residuals to the wanted outputs."""

        def run(*xs: Value) -> list[Value]:
            env = dict(zip((*inputs, *residuals), xs, strict=True))
            for n in self.nodes:
                operands = [_value(v, env) for v in n.operands]
                out = bind(n.op, *operands, regions=n.regions, **n.params)
                env.update(zip(n.results, out if n.op.multiple else (out,), strict=True))
            return [_value(self.env.get(v, v), env) for v in chosen(self.graph.outputs, wanted)]

        return run


def _value(v: Value, env: dict[Value, Value]) -> Value:
    """v in the linear part; a node without operands is made again rather than handed on."""
    if v not in env:
        assert v.node is not None, v.type
        env[v] = bind(v.node.op, **v.node.params)
    return env[v]


def cut_region(g: Graph, mask: Mask) -> Cut:
    """A region in two, when the inputs of the mask are linear."""
    known = Builder(current_builder())
    env: dict[Value, Value] = {}
    linear = set(chosen(g.inputs, mask))
    with building(known):
        for v in chosen(g.inputs, negated(mask)):
            env[v] = known.input(v.type, v.device)
        nodes = split(g, env, linear)
    return Cut(g, known, env, linear, nodes)


def _known_results(n: Node, mask: Mask, values: Iterator[Value]) -> dict[Value, Value]:
    return {v: next(values) for v in chosen(n.results, negated(mask))}


def _cond_split(n: Node, linear: set[Value]) -> tuple[dict[Value, Value], Node | None]:
    operands = n.operands[1:]
    mask = [v in linear for v in operands]
    cuts = [cut_region(g, mask) for g in n.regions]
    wanted = [a or b for a, b in zip(*(c.outputs for c in cuts), strict=True)]
    # An operand serves both branches as it is; what a branch computed comes out of the known cond.
    passed = chosen(operands, negated(mask))
    made = [[v for v in c.residuals(wanted) if v not in set(c.known.inputs)] for c in cuts]

    graphs, outers = [], []
    for i, c in enumerate(cuts):
        with building(c.known):
            outs = [c.env[v] for v in chosen(c.graph.outputs, negated(wanted))]
            for j, others in enumerate(made):
                outs += others if i == j else [zeros(v.type) for v in others]
        g, outer = c.known.finish(outs, c.graph.name)
        graphs.append(simplify(Graph(g.inputs, g.nodes, g.outputs, g.name)))
        outers.append(outer)
    regions, captured = over_same_inputs(graphs, outers)
    out = iter(_bind(n, [n.operands[0], *passed, *captured], regions))
    known = _known_results(n, wanted, out)
    stored = list(out)
    return known, _linear_cond(n, cuts, wanted, made, [*chosen(operands, mask), *passed, *stored])


def _linear_cond(
    n: Node, cuts: list[Cut], wanted: Mask, made: list[list[Value]], operands: list[Value]
) -> Node | None:
    graphs, outers = [], []
    start = len(operands) - sum(map(len, made))
    for i, c in enumerate(cuts):
        own = [v for v in c.graph.inputs if v in c.linear]
        first = start + sum(map(len, made[:i]))
        run = c.linear_part(own, [*c.known.inputs, *made[i]], wanted)
        at = slice(first, first + len(made[i]))
        g, outer = region_of(
            operands, lambda *xs, run=run, at=at: run(*xs[:start], *xs[at]), c.graph.name
        )
        graphs.append(g)
        outers.append(outer)
    regions, captured = over_same_inputs(graphs, outers)
    results = chosen(n.results, wanted)
    return _node(n, [n.operands[0], *operands, *captured], regions, results) if results else None


def _while_split(n: Node, linear: set[Value]) -> tuple[dict[Value, Value], Node | None]:
    if "bound" not in n.params:
        raise RuleError(
            "while_loop: reverse mode needs to know the most steps that it takes; pass bound=n, or use "
            "op.scan or op.fori_loop"
        ).at(n.location)
    return _scan_split(bounded(n), linear)


def _scan_split(n: Node, linear: set[Value]) -> tuple[dict[Value, Value], Node | None]:
    (body,), parts, c = n.regions, _parts(n), n.params["carry"]
    mask, _ = fixed_point([v in linear for v in n.operands], c, lambda m: linear_outputs(body, m))
    cut = cut_region(body, mask)
    wanted = [*mask[:c], *cut.outputs[c:]]
    # What runs along the loop or stays the same is handed on as it is; the rest is stacked.
    held = dict(zip(cut.known.inputs, chosen(range(len(mask)), negated(mask)), strict=True))
    residuals = cut.residuals(wanted)
    stacked = [v for v in residuals if v not in held or held[v] < c]
    along = [v for v in residuals if c <= held.get(v, -1) < parts[1].stop]
    same = [v for v in residuals if held.get(v, -1) >= parts[2].start]

    outs = [cut.env[v] for v in chosen(body.outputs, negated(wanted))]
    g, captured = cut.known.finish([*outs, *stacked], body.name)
    kept = chosen(n.operands, negated(mask))
    out = iter(
        _bind(
            n, [*kept, *captured], (simplify(Graph(g.inputs, g.nodes, g.outputs, g.name)),),
            carry=c - sum(mask[:c]), xs=n.params["xs"] - sum(mask[parts[1]]),
        )
    )  # fmt: skip
    known = _known_results(n, wanted, out)
    stored = list(out)

    inputs = [chosen(body.inputs[p], mask[p]) for p in parts]
    handed = [[], [*stacked, *along], same]
    order = [v for a, b in zip(inputs, handed, strict=True) for v in (*a, *b)]
    region, outer = region_of(order, cut.linear_part(order, (), wanted), body.name)
    operands = [
        *chosen(n.operands[parts[0]], mask[parts[0]]),
        *chosen(n.operands[parts[1]], mask[parts[1]]),
        *stored,
        *(n.operands[held[v]] for v in along),
        *chosen(n.operands[parts[2]], mask[parts[2]]),
        *(n.operands[held[v]] for v in same),
        *outer,
    ]
    results = chosen(n.results, wanted)
    sizes = {"carry": sum(mask[:c]), "xs": sum(mask[parts[1]]) + len(handed[1])}
    return known, _node(n, operands, (region,), results, **sizes) if results else None


# Transpose --------------------------------------------------------------------------------------


def pull_back_region(
    g: Graph,
    mask: Mask,
    known: Sequence[Value],
    cts: Sequence[Tangent],
    start: Sequence[Tangent] = (),
) -> list[Value]:
    """Cotangents of the linear inputs of a region, added to start, zeros where there are none."""
    inputs = chosen(g.inputs, mask)
    linear = set(inputs)
    env = dict(zip(chosen(g.inputs, negated(mask)), known, strict=True))
    nodes = split(g, env, linear)
    results = [v if v in linear else None for v in g.outputs]
    found = Linearized([], nodes, inputs, results).pull_back(cts, start)
    return filled(found, inputs, [True] * len(inputs))


def _cond_transpose(n: Node, cts: Sequence[Tangent], linear: set[Value]) -> list[Tangent]:
    operands = n.operands[1:]
    mask = [v in linear for v in operands]
    given = present(cts)
    inputs = [*chosen(cts, given), *chosen(operands, negated(mask))]
    made = [
        region_of(
            inputs,
            lambda *xs, g=g: pull_back_region(
                g, mask, xs[sum(given) :], spread(xs[: sum(given)], given)
            ),
            g.name,
        )
        for g in n.regions
    ]
    regions, outer = over_same_inputs([g for g, _ in made], [o for _, o in made])
    out = _bind(n, [n.operands[0], *inputs, *outer], regions)
    return [None, *spread(out, mask)]


def _scan_transpose(n: Node, cts: Sequence[Tangent], linear: set[Value]) -> list[Tangent]:
    """The carry's cotangent goes back along the loop, and with it the sums for what stays the same."""
    (body,), parts, c = n.regions, _parts(n), n.params["carry"]
    mask = [i < c or v in linear for i, v in enumerate(n.operands)]
    sums = chosen(n.operands[parts[2]], mask[parts[2]])
    carry = [*filled(cts[:c], n.results[:c], [True] * c), *(zeros(v.type) for v in sums)]
    given = present(cts[c:])
    along = [*chosen(cts[c:], given), *chosen(n.operands[parts[1]], negated(mask[parts[1]]))]
    same = chosen(n.operands[parts[2]], negated(mask[parts[2]]))
    rows = [
        *chosen(body.outputs[c:], given),
        *chosen(body.inputs[parts[1]], negated(mask[parts[1]])),
    ]
    count = sum(given)

    def step(*xs: Value) -> list[Value]:
        state, row, rest = (
            xs[: len(carry)],
            xs[len(carry) :][: len(rows)],
            xs[len(carry) + len(rows) :],
        )
        ys = spread(row[:count], given)
        found = pull_back_region(body, mask, [*row[count:], *rest], [*state[:c], *ys])
        moving = sum(mask[parts[1]])
        total = [add(a, b) for a, b in zip(state[c:], found[c + moving :], strict=True)]
        return [*found[:c], *total, *found[c : c + moving]]

    region, outer = region_of([*carry, *rows, *same], step, body.name)
    out = _bind(
        n, [*carry, *along, *same, *outer], (region,),
        carry=len(carry), xs=len(along), reverse=not n.params["reverse"],
    )  # fmt: skip
    moved = spread(out[len(carry) :], mask[parts[1]])
    summed = spread(out[c : len(carry)], mask[parts[2]])
    found = [*out[:c], *moved, *summed]
    return [t if v in linear else None for v, t in zip(n.operands, found, strict=True)]


for _op, _jvp, _split in (
    (cond.op, _cond_jvp, _cond_split),
    (scan.op, _scan_jvp, _scan_split),
    (while_loop.op, _while_jvp, _while_split),
):
    REGION_JVP[_op], REGION_SPLIT[_op] = _jvp, _split
REGION_TRANSPOSE[cond.op] = _cond_transpose
REGION_TRANSPOSE[scan.op] = _scan_transpose
