"""A program against JAX: each statement on the same operands, and the gradient of the whole, in f64."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from ml_dtypes import finfo

import tessera as ts
from tessera.core.errors import RuleError
from tests.fuzz import checks, jax_ops
from tests.fuzz.program import SCOPE, Program

# Slopes that JAX and Tessera take at different places: of what is not continuous or not one to one.
NO_SLOPE = {"sort", "argsort", "while_loop"}


def check(p: Program) -> None:
    """Values and gradients are those of JAX."""
    with warnings.catch_warnings(), suppress(jax_ops.Absent):
        warnings.simplefilter("ignore")
        values(p)
        if not set(p.ops) & NO_SLOPE and not p.may_cut:
            compared(p.source, p.tensors)


def values(p: Program) -> None:
    """Each statement gives what it gives in JAX, on the same operands."""
    env: dict[str, Any] = {x.name: x.tensor for x in p.inputs}
    for line in p.lines:
        got = ts.tree.leaves(eval(line.text, {**SCOPE, **env}))
        operands = {n: np.asarray(env[n]) for n in line.uses}
        want = jax_ops.evaluated(line.text, operands)
        peak = checks.peak_of([*operands.values(), *want])
        for a, b in zip(map(np.asarray, got), want, strict=True):
            same_kind = b.astype(a.dtype) if a.dtype.kind == b.dtype.kind else b
            checks.near(f"Tessera and JAX, {line.op}", a, same_kind, peak, units=64)
        env |= dict(zip(line.targets, got, strict=True))


def compared(source: str, xs: Sequence[Any]) -> None:
    """The gradient of a program's text in its floating-point arguments is that of JAX."""
    f, g = function(source, SCOPE), function(source, jax_ops.SCOPE)
    where = [i for i, x in enumerate(xs) if x.dtype.kind == "f"]
    if not where or not checks.floats_of(f, xs):
        return
    point = [xs[i] for i in where]
    try:
        got = ts.grad(checks.loss_of(f, xs, where), tuple(range(len(where))))(*point)
    except RuleError:
        return
    arrays = [np.asarray(x) for x in xs]
    loss = jax_ops.loss_of(g, arrays, where, checks.weights)
    try:
        want = jax_ops.gradients(loss, [np.asarray(x) for x in point])
    except NotImplementedError:  # a derivative that JAX does not have, as of pools with dilation
        return
    peak = checks.peak_of([*arrays, *want])
    coarse = rounding(f, xs)
    for i, (a, b) in enumerate(zip(map(np.asarray, got), want, strict=True)):
        known = np.isfinite(b)  # Tessera's slopes are defined where some of JAX are not
        checks.near(
            f"gradients of Tessera and JAX in argument {where[i]}",
            a[known],
            b[known],
            peak,
            units=max(4096, coarse / checks.unit(a)),
        )


def rounding(f: Any, xs: Sequence[Any]) -> float:
    """How far gradients may lie apart where a program has narrow floats: cotangents are rounded, too, one
    by one or summed.
    """
    narrow = [v.dtype.base for n in ts.trace(f, *xs).nodes for v in n.results if v.dtype.is_narrow]
    return max((8 * float(finfo(d.np).eps) for d in narrow if d.kind == "f"), default=0.0)


def function(source: str, scope: dict[str, Any]) -> Any:
    """The function f of a text."""
    made = dict(scope)
    exec(source, made)
    return made["f"]
