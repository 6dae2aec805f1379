"""Losses, and the similarities that they are made of.

reduction is "mean", "sum" or "none"; the mean of cross_entropy and nll_loss is over the labels that
are not ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import unify
from tessera.core.dtype import i32, i64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.activation import log_sigmoid
from tessera.ops.batching import along
from tessera.ops.creation import iota
from tessera.ops.cutting import classes
from tessera.ops.define import (
    ArrayLike,
    as_value,
    axis_of,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    meet,
    public,
    wide,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    exp,
    le,
    log,
    maximum,
    mul,
    ne,
    neg,
    sqrt,
    square,
    sub,
    where,
)
from tessera.ops.gather import along_axis
from tessera.ops.places import labels_of, nearest
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import mean, spread
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import expand_dims, reshape
from tessera.ops.softmax import log_softmax, softmax

Tangents = Sequence[Value | None]
_REDUCTIONS = ("mean", "sum", "none")


def reduced(op: str, losses: Value, reduction: str) -> Value:
    if reduction not in _REDUCTIONS:
        raise OperandError(f"{op}: reduction is {reduction!r}, expected 'mean', 'sum' or 'none'")
    if reduction == "none":
        return losses
    return mean(losses) if reduction == "mean" else sum_of(losses)


# Cross entropy with numbers of classes: one loss per row


def _label_types(types: Types, p: Params) -> list[TensorType]:
    x, labels = types
    axis = p["axis"]
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    if labels.rank != len(rest):
        raise ShapeError(
            f"cross_entropy: labels {labels} of rank {labels.rank} do not fit logits {x} with classes "
            f"on axis {axis}; expected ids of shape [{','.join(map(str, rest))}] or probabilities"
        )
    for i, (m, n) in enumerate(zip(rest, labels.shape, strict=True)):
        if not unify(m, n, f"cross_entropy: axis {i} of the labels"):
            raise ShapeError(
                f"cross_entropy: axis {i} of the labels {labels} is {n}, expected {m} as in logits {x}"
            )
    return [x.with_shape(rest)]


def _class_loss_reference(
    x: Any, labels: Any, axis: int, smoothing: float, ignore: int | None
) -> Any:
    top = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    logs = x - top
    logs = logs - np.log(np.sum(np.exp(logs), axis=axis, keepdims=True))
    classes = x.shape[axis]
    safe = np.expand_dims(np.clip(labels.astype(np.int64), 0, max(classes - 1, 0)), axis)
    if classes == 0:
        return np.full(labels.shape, np.nan, x.dtype)
    loss = -np.take_along_axis(logs, safe, axis).squeeze(axis)
    if smoothing:
        loss = (1 - smoothing) * loss - smoothing / classes * logs.sum(axis=axis)
    return loss if ignore is None else np.where(labels == ignore, 0, loss).astype(x.dtype)


def _targets(x: Value, labels: Value, axis: int, smoothing: float, ignore: int | None) -> Value:
    """The probabilities that labels stand for, the nearest class for what is none; zeros where they are
    ignored.
    """
    n = x.shape[axis]
    d = i32 if isinstance(n, int) and n < 1 << 31 else i64
    (near,) = nearest([cast_to(labels, i64)], x, (axis,))
    ids = broadcast(expand_dims(cast_to(near, d), axis), x.shape)
    hot = cast_to(eq(ids, iota(x.shape, axis, d)), x.dtype)
    if smoothing:
        share = div(full_of((), smoothing, x.dtype), x.shape[axis])
        hot = add(mul(hot, 1 - smoothing), share)
    if ignore is None:
        return hot
    ignored = broadcast(expand_dims(eq(labels, ignore), axis), x.shape)
    return where(ignored, full_of(x.shape, 0, x.dtype), hot)


def _class_loss(x: Value, labels: Value, axis: int, smoothing: float, ignore: int | None) -> Value:
    (w,) = wide(x)
    if not smoothing and x.shape[axis] != 0:
        return cast_to(_picked_loss(w, labels, axis, ignore), x.dtype)
    targets = _targets(w, labels, axis, smoothing, ignore)
    logs = log_softmax(w, axis)
    # A class of probability 0 contributes nothing, even where its logarithm is -inf.
    terms = where(eq(targets, 0), full_of(w.shape, 0, w.dtype), mul(targets, logs))
    return cast_to(neg(sum_of(terms, axis)), x.dtype)


def _picked_loss(x: Value, labels: Value, axis: int, ignore: int | None) -> Value:
    """-log_softmax(x)[label]: one element of each row is read, whatever its others are."""
    ids = cast_to(expand_dims(labels, axis), i64)
    top = max_of(x, (axis,))
    total = log(sum_of(exp(sub(x, spread(top, x, (axis,)))), axis))
    picked = reshape(along_axis(x, ids, axis), top.shape)
    loss = neg(sub(sub(picked, top), total))
    return (
        loss if ignore is None else where(eq(labels, ignore), full_of(top.shape, 0, x.dtype), loss)
    )


def _class_loss_jvp(n: Node, ts: Tangents) -> Value | None:
    """sum((softmax(x) - targets) * t), and nothing for ignored rows."""
    if ts[0] is None:
        return None
    x, t = wide(n.operands[0], ts[0])
    labels, axis, ignore = n.operands[1], n.params["axis"], n.params["ignore"]
    slope = sub(softmax(x, axis), _targets(x, labels, axis, n.params["smoothing"], None))
    if ignore is not None:
        ignored = broadcast(expand_dims(eq(labels, ignore), axis), x.shape)
        slope = where(ignored, full_of(x.shape, 0, x.dtype), slope)
    return cast_to(sum_of(mul(slope, t), axis), n.results[0].dtype)


@define(
    infer=_label_types, kinds=("f", "iu"), decompose=_class_loss, numpy=_class_loss_reference,
    jvp=_class_loss_jvp, onnx="SoftmaxCrossEntropyLoss", batch=along, factors=classes,
    samples=(
        Sample((3, 4), np.array([0, 3, 1])), Sample((4,), np.array(2), reduction="none"),
        Sample((2, 3, 2), np.array([[0, 1], [2, 2]]), axis=1, label_smoothing=0.1),
        Sample((3, 4), np.array([0, -1, 1]), ignore_index=-1, reduction="sum"),
        Sample((0, 4), np.zeros((0,), int), reduction="none"),
    ),
)  # fmt: skip
def cross_entropy(
    logits: ArrayLike,
    labels: ArrayLike,
    axis: int = -1,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Value:
    """Cross entropy of softmax(logits) with labels: class numbers, or probabilities along axis.

    Smoothing by s mixes the labels with the uniform distribution: (1 - s) * labels + s / classes.
    """
    x, y = floating(as_value(logits, "cross_entropy")), as_value(labels, "cross_entropy")
    k = axis_of("cross_entropy", axis, x.ndim)
    if not 0 <= label_smoothing <= 1:
        raise OperandError(f"cross_entropy: label_smoothing is {label_smoothing}, expected 0 to 1")
    if y.dtype.kind in "iu":
        y = _labels("cross_entropy", x, y, k, ignore_index)
        losses = cross_entropy.bind(
            x, y, axis=k, smoothing=float(label_smoothing), ignore=ignore_index
        )
        return _over_labels("cross_entropy", losses, y, reduction, ignore_index)
    if y.dtype.kind != "f":
        raise DTypeError(
            f"cross_entropy: labels are {y.type}, expected class numbers or probabilities"
        )
    if ignore_index is not None:
        raise OperandError("cross_entropy: ignore_index needs labels that are class numbers")
    losses = _distribution_loss(x, y, k, label_smoothing)
    return reduced("cross_entropy", losses, reduction)


def _labels(op: str, x: Value, labels: Value, axis: int, ignore: int | None) -> Value:
    what = f"the classes, axis {axis} of {x.type}"
    return labels_of(op, labels, x.shape[axis], ignore, what)


def _distribution_loss(x: Value, y: Value, axis: int, smoothing: float) -> Value:
    if x.ndim != y.ndim:
        raise ShapeError(
            f"cross_entropy: probabilities {y.type} do not fit logits {x.type}; expected one shape"
        )
    x, y = meet("cross_entropy", (x, y))
    if smoothing:
        share = div(full_of((), smoothing, y.dtype), x.shape[axis])
        y = add(mul(y, 1 - smoothing), share)
    return neg(sum_of(_weighted(y, log_softmax(x, axis)), axis))


def _weighted(p: Value, x: Value) -> Value:
    """p * x, and 0 where p is, whatever x is there."""
    nothing = eq(p, 0)
    zero = full_of(x.shape, 0, x.dtype)
    return where(nothing, zero, mul(p, where(nothing, zero, x)))


def _over_labels(
    op: str, losses: Value, labels: Value, reduction: str, ignore: int | None
) -> Value:
    if reduction != "mean" or ignore is None:
        return reduced(op, losses, reduction)
    return div(sum_of(losses), sum_of(cast_to(ne(labels, ignore), losses.dtype)))


@public
def nll_loss(
    log_probabilities: ArrayLike,
    labels: ArrayLike,
    axis: int = -1,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Value:
    """-log_probabilities at the labelled class."""
    x, y = floating(as_value(log_probabilities, "nll_loss")), as_value(labels, "nll_loss")
    if y.dtype.kind not in "iu":
        raise DTypeError(f"nll_loss: labels are {y.type}, expected class numbers")
    k = axis_of("nll_loss", axis, x.ndim)
    y = _labels("nll_loss", x, y, k, ignore_index)
    targets = _targets(x, y, k, 0.0, ignore_index)
    losses = neg(sum_of(_weighted(targets, x), k))
    return _over_labels("nll_loss", losses, y, reduction, ignore_index)


@public
def binary_cross_entropy(
    x: ArrayLike, targets: ArrayLike, logits: bool = True, reduction: str = "mean"
) -> Value:
    """-(y log p + (1 - y) log(1 - p)) with p = sigmoid(x), or p = x when logits is False."""
    v, y = meet("binary_cross_entropy", (x, targets), floats=True)
    if logits:
        # log(1 - sigmoid(x)) = log sigmoid(x) - x
        losses = sub(mul(sub(1.0, y), v), log_sigmoid(v))
    else:
        losses = neg(add(_weighted(y, log(v)), _weighted(sub(1.0, y), log(sub(1.0, v)))))
    return reduced("binary_cross_entropy", losses, reduction)


# Distances


def _distance(
    name: str, x: ArrayLike, y: ArrayLike, reduction: str, f: Callable[[Value], Value]
) -> Value:
    return reduced(name, f(sub(*meet(name, (x, y), floats=True))), reduction)


@public
def mse(x: ArrayLike, y: ArrayLike, reduction: str = "mean") -> Value:
    """Square of the difference."""
    return _distance("mse", x, y, reduction, square)


@public
def mae(x: ArrayLike, y: ArrayLike, reduction: str = "mean") -> Value:
    """Absolute value of the difference."""
    return _distance("mae", x, y, reduction, absolute)


@public
def l1_loss(x: ArrayLike, y: ArrayLike, reduction: str = "mean") -> Value:
    """Absolute value of the difference: mae under its other name."""
    return _distance("l1_loss", x, y, reduction, absolute)


def _bend(d: Value, delta: float) -> Value:
    """d*d/2 within delta of 0, a line of slope delta outside."""
    size = absolute(d)
    return where(le(size, delta), mul(square(d), 0.5), mul(sub(size, 0.5 * delta), delta))


@public
def huber(x: ArrayLike, y: ArrayLike, delta: float = 1.0, reduction: str = "mean") -> Value:
    """Half the squared difference up to delta, and delta times the absolute one beyond."""
    if not delta > 0:
        raise OperandError(f"huber: delta is {delta}, expected a positive number")
    return _distance("huber", x, y, reduction, lambda d: _bend(d, delta))


@public
def smooth_l1(x: ArrayLike, y: ArrayLike, beta: float = 1.0, reduction: str = "mean") -> Value:
    """huber with delta = beta, over beta: slope 1 outside; the absolute difference for beta=0."""
    if beta < 0:
        raise OperandError(f"smooth_l1: beta is {beta}, expected at least 0")
    if beta == 0:
        return _distance("smooth_l1", x, y, reduction, absolute)
    return _distance("smooth_l1", x, y, reduction, lambda d: div(_bend(d, beta), beta))


@public
def hinge(
    scores: ArrayLike, targets: ArrayLike, margin: float = 1.0, reduction: str = "mean"
) -> Value:
    """max(0, margin - targets * scores) with targets -1 or 1."""
    s, y = meet("hinge", (scores, targets), floats=True)
    return reduced("hinge", maximum(sub(margin, mul(s, y)), 0.0), reduction)


@public
def kl_div(
    log_q: ArrayLike, p: ArrayLike, log_target: bool = False, reduction: str = "mean"
) -> Value:
    """p * (log p - log q), element by element before the reduction; log_target: p is log p."""
    q, target = meet("kl_div", (log_q, p), floats=True)
    if log_target:
        terms = mul(exp(target), sub(target, q))
    else:
        some = where(eq(target, 0), full_of(target.shape, 1, target.dtype), target)
        terms = mul(target, sub(log(some), q))
        terms = where(eq(target, 0), full_of(target.shape, 0, target.dtype), terms)
    return reduced("kl_div", terms, reduction)


@public
def cosine_similarity(x: ArrayLike, y: ArrayLike, axis: int = -1, eps: float = 1e-8) -> Value:
    """Cosine of the angle between x and y along an axis; lengths count as at least eps."""
    a, b = meet("cosine_similarity", (x, y), floats=True)
    k = axis_of("cosine_similarity", axis, a.ndim)
    return sum_of(mul(_unit(a, k, eps), _unit(b, k, eps)), k)


def _unit(x: Value, axis: int, eps: float) -> Value:
    length = sqrt(maximum(sum_of(square(x), axis), eps * eps))
    return div(x, spread(length, x, (axis,)))
