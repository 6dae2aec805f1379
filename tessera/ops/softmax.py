"""Softmax and its relatives, plain and safe.

The plain forms follow the formulas: a row of -inf, or one that holds +inf, gives NaN.  The safe
forms are defined on every row without NaN, with finite derivatives:

    softmax_safe     a row of -inf (everything masked) gives zeros; where +inf occurs, the elements
                     at +inf share the row equally
    logsumexp_safe   a row of -inf gives -inf, a row with +inf gives +inf
    derivatives      y * (t - sum(y * t)) and sum(y * t) with y = softmax_safe(x), so a row of -inf
                     has derivative 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.define import (
    ArrayLike,
    AxisLike,
    as_value,
    axes_of,
    cast_to,
    define,
    floating,
    full_of,
    letters,
    public,
    wide,
)
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    exp,
    isfinite,
    log,
    mul,
    neg,
    sub,
    where,
)
from tessera.ops.reduction import fold_signature, kept, spread
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import sum as sum_of
from tessera.ops.shape import reshape

Tangents = Sequence[Value | None]
_SAMPLES = (
    Sample((3,)), Sample((2, 3)), Sample((2, 3), axis=0), Sample((2, 3, 4), axis=(0, 2)),
    Sample((2, 1)), Sample((0, 3)), Sample((3, 0)),
)  # fmt: skip
_INF = float("inf")


def row_signature(types: Types, p: Params) -> str:
    """'a0 a1! -> a0 a1!' for axes=(1,): whole rows go in, rows of the same size come out."""
    names = [f"{a}!" if i in p["axes"] else a for i, a in enumerate(letters(types[0].rank))]
    return f"{' '.join(names)} -> {' '.join(names)}"


def empty_row(x: Value, axes: Sequence[int]) -> bool:
    """Whether rows along these axes have no elements."""
    return any(x.shape[a] == 0 for a in axes)


def _top(x: Value, axes: tuple[int, ...]) -> Value:
    """The largest element of each row, as wide as the row; 0 for rows without a finite one."""
    top = max_of(x, axes)
    return spread(_finite(top), x, axes)


def _finite(x: Value) -> Value:
    return where(isfinite(x), x, full_of(x.shape, 0, x.dtype))


# Softmax


def _softmax_reference(x: Any, axes: tuple[int, ...]) -> Any:
    e = x - np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    e = np.exp(e)
    return e / np.sum(e, axis=axes, keepdims=True)


def _softmax(x: Value, axes: tuple[int, ...]) -> Value:
    if empty_row(x, axes):
        return x
    (w,) = wide(x)
    e = exp(sub(w, spread(max_of(w, axes), w, axes)))
    return cast_to(_shares(e, sum_of(e, axes), axes), x.dtype)


def _shares(e: Value, total: Value, axes: tuple[int, ...]) -> Value:
    """Weights of rows over their sums, by one division for a row: a sum of weights is never small."""
    return mul(e, spread(div(full_of(total.shape, 1, total.dtype), total), e, axes))


def _softmax_jvp(n: Node, ts: Tangents) -> Value | None:
    """y * (t - sum(y * t)): rows of t lose their mean under the weights y."""
    if ts[0] is None:
        return None
    y, t = wide(n.results[0], ts[0])
    axes = n.params["axes"]
    centred = sub(t, spread(sum_of(mul(y, t), axes), t, axes))
    return cast_to(mul(y, centred), ts[0].dtype)


@define(
    signature=row_signature, infer=lambda types, p: types, kinds="f", decompose=_softmax,
    numpy=_softmax_reference, jvp=_softmax_jvp, onnx="Softmax", samples=_SAMPLES,
)  # fmt: skip
def softmax(x: ArrayLike, axis: AxisLike = -1) -> Value:
    """exp(x) over its sum along axes."""
    v = floating(as_value(x, "softmax"))
    return softmax.bind(v, axes=axes_of("softmax", axis, v.ndim))


@public
def softmin(x: ArrayLike, axis: AxisLike = -1) -> Value:
    """softmax(-x): the smallest elements weigh most."""
    return softmax(neg(floating(as_value(x, "softmin"))), axis)


# Log-softmax


def _log_softmax_reference(x: Any, axes: tuple[int, ...]) -> Any:
    shifted = x - np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    shifted -= np.log(np.sum(np.exp(shifted), axis=axes, keepdims=True))
    return shifted


def _log_softmax(x: Value, axes: tuple[int, ...]) -> Value:
    if empty_row(x, axes):
        return x
    (w,) = wide(x)
    shifted = sub(w, spread(max_of(w, axes), w, axes))
    total = log(sum_of(exp(shifted), axes))
    return cast_to(sub(shifted, spread(total, w, axes)), x.dtype)


def _log_softmax_jvp(n: Node, ts: Tangents) -> Value | None:
    """t - sum(softmax(x) * t)."""
    if ts[0] is None:
        return None
    y, t = wide(n.results[0], ts[0])
    axes = n.params["axes"]
    mean = sum_of(mul(exp(y), t), axes)
    return cast_to(sub(t, spread(mean, t, axes)), ts[0].dtype)


@define(
    signature=row_signature, infer=lambda types, p: types, kinds="f", decompose=_log_softmax,
    numpy=_log_softmax_reference, jvp=_log_softmax_jvp, onnx="LogSoftmax", samples=_SAMPLES,
)  # fmt: skip
def log_softmax(x: ArrayLike, axis: AxisLike = -1) -> Value:
    """Logarithm of softmax(x): x less its logsumexp along axes."""
    v = floating(as_value(x, "log_softmax"))
    return log_softmax.bind(v, axes=axes_of("log_softmax", axis, v.ndim))


# Safe forms


def _safe_weights_reference(x: Any, axes: tuple[int, ...]) -> Any:
    """exp(x - top), where a row at +inf counts its elements at +inf and a row of -inf is 0."""
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    e = np.exp(x - np.where(np.isfinite(top), top, 0))
    return np.where(top == np.inf, (x == np.inf).astype(x.dtype), e)


def _softmax_safe_reference(x: Any, axes: tuple[int, ...]) -> Any:
    e = _safe_weights_reference(x, axes)
    total = np.sum(e, axis=axes, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total != 0)


def _safe_weights(x: Value, axes: tuple[int, ...]) -> Value:
    top = spread(max_of(x, axes), x, axes)
    e = exp(sub(x, _finite(top)))
    return where(eq(top, _INF), cast_to(eq(x, _INF), x.dtype), e)


def _softmax_safe(x: Value, axes: tuple[int, ...]) -> Value:
    if empty_row(x, axes):
        return x
    (w,) = wide(x)
    e = _safe_weights(w, axes)
    total = sum_of(e, axes)
    some = where(eq(total, 0), full_of(total.shape, 1, w.dtype), total)
    return cast_to(_shares(e, some, axes), x.dtype)


@define(
    signature=row_signature, infer=lambda types, p: types, kinds="f", decompose=_softmax_safe,
    numpy=_softmax_safe_reference, jvp=_softmax_jvp,
    samples=(*_SAMPLES, Sample(np.array([[1.0, -np.inf], [-np.inf, -np.inf], [np.inf, 2.0]]))),
)  # fmt: skip
def softmax_safe(x: ArrayLike, axis: AxisLike = -1) -> Value:
    """softmax, but a row of -inf gives zeros and elements at +inf share their row equally."""
    v = floating(as_value(x, "softmax_safe"))
    return softmax_safe.bind(v, axes=axes_of("softmax_safe", axis, v.ndim))


def _logsumexp_safe_reference(x: Any, axes: tuple[int, ...]) -> Any:
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    total = np.log(np.sum(_safe_weights_reference(x, axes), axis=axes))
    return total + top.reshape(total.shape)


def _logsumexp_safe(x: Value, axes: tuple[int, ...]) -> Value:
    shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    if empty_row(x, axes):
        return full_of(shape, -_INF, x.dtype)
    (w,) = wide(x)
    total = sum_of(_safe_weights(w, axes), axes)
    return cast_to(add(log(total), max_of(w, axes)), x.dtype)


def _logsumexp_safe_jvp(n: Node, ts: Tangents) -> Value | None:
    if ts[0] is None:
        return None
    x, t = wide(n.operands[0], ts[0])
    axes = n.params["axes"]
    weights = softmax_safe.bind(x, axes=axes)
    return cast_to(sum_of(mul(weights, t), axes), ts[0].dtype)


@define(
    signature=fold_signature, kinds="f", decompose=_logsumexp_safe, jvp=_logsumexp_safe_jvp,
    numpy=_logsumexp_safe_reference,
    samples=(
        Sample((3,)), Sample((2, 3), axis=1), Sample((2, 3, 4), axis=(0, 2), keepdims=True),
        Sample((0, 3), axis=0), Sample(np.array([[1.0, -np.inf], [-np.inf, -np.inf]]), axis=1),
    ),
)  # fmt: skip
def logsumexp_safe(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """logsumexp, with the derivative softmax_safe(x): zero for a row of -inf."""
    v = floating(as_value(x, "logsumexp_safe"))
    axes = axes_of("logsumexp_safe", axis, v.ndim)
    y = logsumexp_safe.bind(v, axes=axes)
    return reshape(y, kept(v, axes)) if keepdims else y
