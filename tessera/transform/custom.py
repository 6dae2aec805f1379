"""Derivatives and batches of functions with rules of their own.

Forward mode calls a ForwardRule on the operands and tangents at hand.  For a ReverseRule it emits
what the forward half computes, and one linear node that only its transpose, the backward half, can
make sense of.  A batched node has a batched rule: the rule traced for one element, then batched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.core.dims import Size
from tessera.core.errors import RuleError
from tessera.core.reference import Reference
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Node, Value, bind
from tessera.ir.graph.op import Op, Params, Types
from tessera.ops.batching import Mask, batch_size
from tessera.ops.custom import (
    Cotangents,
    ForwardRule,
    LinearRule,
    ReverseRule,
    Rule,
    Values,
    custom,
    rule_of,
)
from tessera.ops.reduction import sum as sum_of
from tessera.transform.batch import REGION_BATCH, batch_graph
from tessera.transform.batch_control import batched_region, filled, like, traced
from tessera.transform.differentiate import (
    REGION_JVP,
    REGION_TRANSPOSE,
    Tangent,
    carried,
    uncarried,
    zeros,
)

# Derivatives ------------------------------------------------------------------------------------


def _refuse(*xs: Any, rule: Reference, types: tuple[TensorType, ...]) -> Any:
    raise RuleError(
        f"jvp: {rule.target[0].name} has a derivative for reverse mode only (custom_vjp); use vjp or "
        "grad, or give it one for both modes with custom_jvp"
    )


def _linear_types(types: Types, p: Params) -> Sequence[TensorType]:
    found: Sequence[TensorType] = p["types"]
    return found


# (*residuals, *tangents) -> tangents of the results.  It lives between linearize and transpose, so
# that no program holds it and it is not registered.
PULL_BACK = Op(
    "custom_pull_back", "What a backward rule is the transpose of.", call="custom_pull_back",
    infer=_linear_types, multiple=True, numpy=_refuse,
)  # fmt: skip


def _jvp(n: Node, ts: Sequence[Tangent]) -> tuple[Sequence[Value], Sequence[Tangent]]:
    rule = rule_of(n)
    if any(t is not None for t in ts[rule.count :]):
        raise RuleError(
            f"{rule.name} uses a value from outside of it that is differentiated; pass it as an "
            "argument"
        ).at(n.location)
    operands = n.operands[: rule.count]
    mine = [t if v.dtype.kind in "fc" else None for v, t in zip(operands, ts, strict=False)]
    if isinstance(rule, ForwardRule):
        tangents = [zeros(v.type) if t is None else t for v, t in zip(operands, mine, strict=True)]
        results, moved = rule.push(operands, tangents)
        return results, [
            t if y.dtype.kind in "fc" else None for y, t in zip(results, moved, strict=True)
        ]
    return _reverse_jvp(rule, operands, mine)


def _reverse_jvp(
    rule: ReverseRule, operands: Values, ts: Sequence[Tangent]
) -> tuple[Sequence[Value], Sequence[Tangent]]:
    results, residuals = rule.forward(operands)
    moving = tuple(t is not None for t in ts)
    smooth = [y.dtype.kind in "fc" for y in results]
    types = tuple(y.type for y, s in zip(results, smooth, strict=True) if s)
    known = Reference(rule.name, (rule, len(residuals), moving, tuple(y.type for y in results)))
    out = iter(
        bind(PULL_BACK, *residuals, *(t for t in ts if t is not None), rule=known, types=types)
    )
    return results, [next(out) if s else None for s in smooth]


def _transpose(n: Node, cts: Cotangents, linear: set[Value]) -> list[Tangent]:
    rule, count, moving, types = n.params["rule"].target
    given = iter(cts)
    whole = [
        zeros(t) if t.dtype.kind not in "fc" or (c := next(given)) is None else c for t in types
    ]
    # A rule that changes dtypes knows nothing of the scales in which cotangents are carried.
    mixed = len({v.dtype.scale for v in (*whole, *n.operands[count:])}) > 1
    found = rule.backward(n.operands[:count], [uncarried(c) for c in whole] if mixed else whole)
    if mixed:
        found = [None if c is None else carried(c) for c in found]
    return [*(None for _ in range(count)), *(c for c, m in zip(found, moving, strict=True) if m)]


def _linear_transpose(n: Node, cts: Cotangents, linear: set[Value]) -> list[Tangent]:
    """A custom node in a derivative: its rule knows the transpose in the first operand."""
    rule, rest = rule_of(n), (None,) * (len(n.operands) - 1)
    if not isinstance(rule, LinearRule) or any(v in linear for v in n.operands[1:]):
        raise RuleError(f"{rule.name} has no transpose, so reverse mode stops here").at(n.location)
    return [None if cts[0] is None else rule.transposed(n.operands, cts[0]), *rest]


# Batches ----------------------------------------------------------------------------------------


def _batch(n: Node, operands: Sequence[Value], batched: Mask) -> tuple[Sequence[Value], list[bool]]:
    size, rule = batch_size(operands, batched), rule_of(n)
    every = [True] * len(n.results)
    region, outer = batched_region(n.regions[0], batched, every, size)
    made = batched_rule(rule, list(batched[: rule.count]), size)
    return custom(region, *operands, *outer, rule=made), every


def batched_rule(rule: Rule, batched: Sequence[bool], size: Size) -> Rule:
    """The rule of a function with a new axis in front of these operands and of all results."""
    if isinstance(rule, LinearRule):
        push = _batched_push(rule, batched, size)
        return LinearRule(rule.name, rule.count, push, _batched_transposed(rule, batched, size))
    if isinstance(rule, ForwardRule):
        return ForwardRule(rule.name, rule.count, _batched_push(rule, batched, size))
    forward, backward = _batched_halves(rule, batched, size)
    return ReverseRule(rule.name, rule.count, forward, backward)


def _of_one(values: Values, batched: Sequence[bool], f: Any, name: str) -> tuple[Graph, Any]:
    """The graph of f for one element of a batch, and what it captured."""
    ones = [like(v, v.shape[1:] if b else v.shape) for v, b in zip(values, batched, strict=True)]
    return traced(ones, f, name)


def _run(
    g: Graph, outer: Values, values: Values, batched: Sequence[bool], size: Size
) -> list[Value]:
    """The outputs of a graph for one element, on a batch; all with the new axis."""
    mask = [*batched, *(False for _ in outer)]
    outs, found = batch_graph(g, [*values, *outer], mask)
    return filled(outs, found, [True] * len(outs), size)


def _batched_push(rule: ForwardRule, batched: Sequence[bool], size: Size) -> Any:
    both = [*batched, *batched]

    def push(operands: Values, tangents: Values) -> tuple[Values, Values]:
        def f(*xs: Value) -> list[Value]:
            results, moved = rule.push(xs[: rule.count], xs[rule.count :])
            return [*results, *moved]

        values = [*operands, *tangents]
        g, outer = _of_one(values, both, f, rule.name)
        outs = _run(g, outer, values, both, size)
        return outs[: len(outs) // 2], outs[len(outs) // 2 :]

    return push


def _batched_transposed(rule: LinearRule, batched: Sequence[bool], size: Size) -> Any:
    def transposed(operands: Values, ct: Value) -> Value:
        values, mask = [*operands, ct], [*batched, True]
        g, outer = _of_one(values, mask, lambda *xs: [rule.transposed(xs[:-1], xs[-1])], rule.name)
        (out,) = _run(g, outer, values, mask, size)
        # What all elements share gets the cotangents of all.
        return out if batched[0] else sum_of(out, 0)

    return transposed


def _batched_halves(rule: ReverseRule, batched: Sequence[bool], size: Size) -> tuple[Any, Any]:
    def forward(operands: Values) -> tuple[Values, Values]:
        counts = []

        def f(*xs: Value) -> list[Value]:
            results, residuals = rule.forward(xs)
            counts.append(len(results))
            return [*results, *residuals]

        g, outer = _of_one(operands, batched, f, rule.name)
        outs = _run(g, outer, operands, batched, size)
        return outs[: counts[0]], outs[counts[0] :]

    def backward(residuals: Values, cts: Values) -> Cotangents:
        given: list[bool] = []

        def f(*xs: Value) -> list[Value]:
            found = rule.backward(xs[: len(residuals)], xs[len(residuals) :])
            given.extend(c is not None for c in found)
            return [c for c in found if c is not None]

        values = [*residuals, *cts]
        every = [True] * len(values)
        g, outer = _of_one(values, every, f, rule.name)
        outs = iter(_run(g, outer, values, every, size))
        # What all elements share gets the cotangents of all.
        return [
            None if not g_ else next(outs) if b else sum_of(next(outs), 0)
            for g_, b in zip(given, batched, strict=True)
        ]

    return forward, backward


REGION_JVP[custom.op] = _jvp
REGION_TRANSPOSE[PULL_BACK] = _transpose
REGION_TRANSPOSE[custom.op] = _linear_transpose
REGION_BATCH[custom.op] = _batch
