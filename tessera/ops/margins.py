"""Losses of margins, rankings and likelihoods; reduction is "mean", "sum" or "none"."""

from __future__ import annotations

import math

from tessera.core.dtype import i64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.activation import softplus
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    floating,
    full_of,
    meet,
    public,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    exp,
    gt,
    log,
    maximum,
    mul,
    neg,
    pow,
    square,
    sub,
    where,
)
from tessera.ops.gather import along_axis
from tessera.ops.loss import cosine_similarity, reduced
from tessera.ops.places import labels_of
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import expand_dims


@public
def cosine_embedding(
    x: ArrayLike, y: ArrayLike, targets: ArrayLike, margin: float = 0.0, reduction: str = "mean"
) -> Value:
    """1 - cosine of rows of x and y where the target is 1, max(0, cosine - margin) where it is -1."""
    near = cosine_similarity(x, y)
    cos, t = meet("cosine_embedding", (near, targets), floats=True)
    losses = where(gt(t, 0), sub(1.0, cos), maximum(sub(cos, margin), 0.0))
    return reduced("cosine_embedding", losses, reduction)


@public
def margin_ranking(
    x: ArrayLike, y: ArrayLike, targets: ArrayLike, margin: float = 0.0, reduction: str = "mean"
) -> Value:
    """max(0, margin - targets * (x - y)): x ranks above y where the target is 1, below where -1."""
    a, b, t = meet("margin_ranking", (x, y, targets), floats=True)
    return reduced("margin_ranking", maximum(sub(margin, mul(t, sub(a, b))), 0.0), reduction)


@public
def triplet_margin(
    anchor: ArrayLike,
    positive: ArrayLike,
    negative: ArrayLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Value:
    """max(0, |anchor - positive| - |anchor - negative| + margin), norms along the last axis."""
    a, b, c = meet("triplet_margin", (anchor, positive, negative), floats=True)

    def far(u: Value, v: Value) -> Value:
        size = absolute(add(sub(u, v), eps))
        return pow(sum_of(pow(size, p), -1), 1 / p)

    return reduced(
        "triplet_margin", maximum(add(sub(far(a, b), far(a, c)), margin), 0.0), reduction
    )


@public
def soft_margin(x: ArrayLike, targets: ArrayLike, reduction: str = "mean") -> Value:
    """log(1 + exp(-targets * x)) with targets -1 or 1."""
    v, t = meet("soft_margin", (x, targets), floats=True)
    return reduced("soft_margin", softplus(neg(mul(t, v))), reduction)


@public
def hinge_embedding(
    x: ArrayLike, targets: ArrayLike, margin: float = 1.0, reduction: str = "mean"
) -> Value:
    """x where the target is 1, max(0, margin - x) where it is -1: x is a distance."""
    v, t = meet("hinge_embedding", (x, targets), floats=True)
    return reduced("hinge_embedding", where(gt(t, 0), v, maximum(sub(margin, v), 0.0)), reduction)


@public
def multi_margin(
    x: ArrayLike, labels: ArrayLike, p: int = 1, margin: float = 1.0, reduction: str = "mean"
) -> Value:
    """The sum over wrong classes of max(0, margin - x[label] + x[class]) ** p, over the number of classes."""
    v, y = floating(as_value(x, "multi_margin")), as_value(labels, "multi_margin")
    if y.dtype.kind not in "iu":
        raise DTypeError(f"multi_margin: labels are {y.type}, expected class numbers")
    if v.ndim != y.ndim + 1:
        raise ShapeError(
            f"multi_margin: labels {y.type} do not fit scores {v.type}; expected one number for each row"
        )
    y = labels_of("multi_margin", y, v.shape[-1], None, f"the classes, the last axis of {v.type}")
    ids = cast_to(expand_dims(y, -1), i64)
    over = maximum(add(sub(margin, broadcast(along_axis(v, ids, v.ndim - 1), v.shape)), v), 0.0)
    own = eq(broadcast(ids, v.shape), iota(v.shape, v.ndim - 1, i64))
    terms = where(own, full_of(v.shape, 0, v.dtype), pow(over, p) if p != 1 else over)
    return reduced("multi_margin", div(sum_of(terms, -1), v.shape[-1]), reduction)


@public
def poisson_nll(
    x: ArrayLike,
    targets: ArrayLike,
    log_input: bool = True,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Value:
    """-log of a Poisson likelihood less log(targets!): exp(x) - targets * x, or of rates."""
    v, t = meet("poisson_nll", (x, targets), floats=True)
    losses = sub(exp(v), mul(t, v)) if log_input else sub(v, mul(t, log(add(v, eps))))
    return reduced("poisson_nll", losses, reduction)


@public
def gaussian_nll(
    mean: ArrayLike,
    targets: ArrayLike,
    var: ArrayLike,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Value:
    """(log var + (targets - mean)**2 / var) / 2, with variances of at least eps; full adds log(2 pi) / 2."""
    if eps <= 0:
        raise OperandError(f"gaussian_nll: eps is {eps}, expected a positive number")
    m, t, s = meet("gaussian_nll", (mean, targets, var), floats=True)
    safe = maximum(s, eps)
    losses = mul(add(log(safe), div(square(sub(t, m)), safe)), 0.5)
    losses = add(losses, 0.5 * math.log(2 * math.pi)) if full else losses
    return reduced("gaussian_nll", losses, reduction)
