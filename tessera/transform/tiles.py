"""Derivatives of kernels.

Each mode has a kernel.  Forward mode has a node whose transpose is the kernel of reverse mode; where it is
computed, and not transposed, it is the kernel that pushes tangents forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype
from tessera.core.errors import TesseraError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, bind, concrete, host_data
from tessera.ir.graph.op import OWN, UNLISTED, Op, Params, Types
from tessera.ops.define import cast_to, full_of
from tessera.ops.reduction import sum as sum_of
from tessera.ops.tiles import engine, kernel
from tessera.transform.differentiate import (
    REGION_JVP,
    REGION_TRANSPOSE,
    Tangent,
    carried,
    uncarried,
    zeros,
)


def _push(*xs: Value, program: str, moving: Any, smooth: Any, types: Any) -> list[Value]:
    """The tangents of the results, by the kernel that pushes tangents forward."""
    operands, given = xs[: len(moving)], iter(xs[len(moving) :])
    ts = {k: next(given) for k, m in enumerate(moving) if m}
    p = engine().forward(program, len(operands), moving)
    start = [
        cast_to(ts[k], operands[k].dtype) if k in ts else zeros(operands[k].type)
        for k in p.tangents
    ]
    out = kernel(*operands, *start, program=p.program)
    found = [r for r, s in zip(p.results, smooth, strict=True) if s]
    return [
        zeros(t) if r is None else cast_to(out[r], t.dtype)
        for r, t in zip(found, types, strict=True)
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
REGION_JVP[kernel.op] = _jvp
REGION_TRANSPOSE[PULL_BACK] = _transpose
