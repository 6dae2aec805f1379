"""Derivatives of kernels.

Reverse mode has a kernel.  Forward mode has a node whose transpose is that kernel; where it is computed, and
not transposed, it is the derivative of that kernel in the cotangents: it is linear in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype
from tessera.core.errors import RuleError, TesseraError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, bind, concrete, host_data
from tessera.ir.graph.op import OWN, UNLISTED, Op, Params, Types
from tessera.ops.define import broadcast, cast_to, full_of
from tessera.ops.reduction import sum as sum_of
from tessera.ops.tiles import Backward, engine, kernel
from tessera.transform.differentiate import (
    REGION_JVP,
    REGION_TRANSPOSE,
    Tangent,
    carried,
    uncarried,
    zeros,
)


@dataclass(frozen=True)
class Push:
    """The kernel that pushes tangents forward, and what it is called with after operands and zeros."""

    first: Backward  # the backward kernel
    second: Backward  # its derivative in the cotangents
    zeros: tuple[
        TensorType, ...
    ]  # cotangents and results of the first one, which is linear in them
    given: tuple[TensorType | None, ...]  # the results of the first that have a cotangent
    tangent: dict[int, int]  # which tangent that is, by the number of the result
    parts: dict[int, int]  # and over how many axes of instances it is spread


def _push_plan(
    program: str, operands: Sequence[TensorType], moving: Sequence[bool], smooth: Sequence[bool],
    types: Sequence[TensorType],
) -> Push:  # fmt: skip
    first = engine().backward(program, operands, moving, smooth)
    zeros_of = (*types, *first.zeros)
    inner = [*operands, *zeros_of]
    made = engine().types(first.program, inner)
    order = [k for k, m in enumerate(moving) if m]
    tangent = {result: order.index(operand) for operand, result, _ in first.gradients}
    parts = {result: n for _, result, n in first.gradients}
    stored = len(engine().updated(first.program, len(inner)))
    given = tuple(t if i in tangent or i < stored else None for i, t in enumerate(made))
    wanted = [len(operands) <= i < len(operands) + len(types) for i in range(len(inner))]
    try:
        second = engine().backward(first.program, inner, wanted, [t is not None for t in given])
    except RuleError as e:
        why = e.message.removeprefix("grad: ").partition(" has no derivative")[0]
        raise RuleError(
            f"jvp: forward mode goes through the backward kernel of a kernel, and {why}, which is in it, has "
            "no derivative; use vjp or grad, or give the kernel one for both modes with custom_jvp"
        ) from None
    return Push(first, second, zeros_of, given, tangent, parts)


def _push(*xs: Value, program: str, moving: Any, smooth: Any, types: Any) -> list[Value]:
    """The tangents of the results: J t as the derivative of ct -> J^T ct."""
    operands, ts = xs[: len(moving)], xs[len(moving) :]
    p = _push_plan(program, [v.type for v in operands], moving, smooth, types)
    start = [full_of(t.shape, 0, t.dtype) for t in p.zeros]
    cts = []
    for i, t in enumerate(p.given):
        if t is not None and i in p.tangent:
            cts.append(broadcast(cast_to(ts[p.tangent[i]], t.dtype), t.shape))
        elif t is not None:
            cts.append(full_of(t.shape, 0, t.dtype))
    found = _gradients(p.second, [*operands, *start], cts)
    first = len(operands)
    return [
        cast_to(uncarried(found[first + j]), t.dtype) if first + j in found else zeros(t)
        for j, t in enumerate(types)
    ]


def _push_reference(
    *xs: Any, program: str, moving: Any, smooth: Any, types: Any
) -> tuple[Any, ...]:
    values = [concrete(x, as_dtype(x.dtype)) for x in map(np.asarray, xs)]
    made = _push(*values, program=program, moving=moving, smooth=smooth, types=types)
    return tuple(np.asarray(host_data(v)) for v in made)


def _linear_types(types: Types, p: Params) -> Sequence[TensorType]:
    found: Sequence[TensorType] = p["types"]
    return found


# (*operands, *tangents) -> tangents of the results.  It lives between linearize and transpose.
PULL_BACK = Op(
    "kernel_pull_back", "What the backward pass of a kernel is the transpose of.",
    infer=_linear_types, multiple=True, decompose=_push, numpy=_push_reference,
)  # fmt: skip


def _jvp(n: Node, ts: Sequence[Tangent]) -> tuple[Sequence[Value], Sequence[Tangent]]:
    results = bind(kernel.op, *n.operands, **n.params)
    moving = tuple(
        t is not None and v.dtype.kind == "f" for v, t in zip(n.operands, ts, strict=True)
    )
    smooth = [y.dtype.kind == "f" for y in results]
    if not any(moving) or not any(smooth):
        return results, [None] * len(results)
    types = tuple(y.type for y, s in zip(results, smooth, strict=True) if s)
    given = [t for t, m in zip(ts, moving, strict=True) if m and t is not None]
    out = iter(bind(
        PULL_BACK, *n.operands, *given, program=n.params["program"], moving=moving,
        smooth=tuple(smooth), types=types,
    ))  # fmt: skip
    return results, [next(out) if s else None for s in smooth]


def _transpose(n: Node, cts: Sequence[Tangent], linear: set[Value]) -> list[Tangent]:
    moving, program = n.params["moving"], n.params["program"]
    operands = n.operands[: len(moving)]
    updated = range(len(engine().updated(program, len(operands))))
    given = _given(n, cts, {*updated, *engine().loaded(program, len(operands))})
    try:
        back = engine().backward(
            program, [v.type for v in operands], moving, [c is not None for c in given]
        )
    except TesseraError as e:
        error = e if e.location is not None else e.at(n.location)
    else:
        found = _gradients(back, operands, [c for c in given if c is not None])
        wanted = [found.get(k) for k, m in enumerate(moving) if m]
        return [*(None for _ in operands), *wanted]
    raise error


def _given(n: Node, cts: Sequence[Tangent], needed: set[int]) -> list[Tangent]:
    """Cotangents of all results; those that the kernel goes through have one even when it is 0."""
    left = iter(zip(n.params["types"], cts, strict=True))
    found: list[Tangent] = []
    for k, s in enumerate(n.params["smooth"]):
        t, ct = next(left) if s else (None, None)
        if ct is None and t is not None and k in needed:
            ct = zeros(t)
        found.append(None if ct is None else uncarried(ct))
    return found


def _gradients(back: Any, operands: Sequence[Value], cts: Sequence[Value]) -> dict[int, Value]:
    """The cotangents of the operands by their numbers."""
    start = [full_of(t.shape, 0, t.dtype) for t in back.zeros]
    out = kernel(*operands, *cts, *start, program=back.program)
    found = {}
    for operand, result, parts in back.gradients:
        whole = sum_of(out[result], tuple(range(parts))) if parts else out[result]
        found[operand] = carried(cast_to(whole, operands[operand].dtype))
    return found


UNLISTED[PULL_BACK.name] = PULL_BACK
OWN.add(PULL_BACK)
REGION_JVP[kernel.op.name] = _jvp
REGION_TRANSPOSE[PULL_BACK.name] = _transpose
