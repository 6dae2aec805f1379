"""Normalisation of rows: layernorm and rmsnorm, plain and safe.

The safe forms scale a row by its largest magnitude before they square it, so no finite row
overflows or underflows, and a row whose spread is below the rounding of its largest element counts
as constant: it gives zeros (then gain and bias), with finite derivatives even for eps=0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.promotion import promote_all
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.batching import Mask, all_in_front, shifted
from tessera.ops.define import (
    FUNCTIONS,
    ArrayLike,
    AxisLike,
    as_value,
    axes_of,
    broadcast,
    cast_to,
    define,
    floating,
    full_of,
    letters,
    wide,
)
from tessera.ops.elementwise import abs as absolute
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    hypot,
    isfinite,
    le,
    maximum,
    mul,
    reciprocal,
    rsqrt,
    sqrt,
    square,
    sub,
    where,
)
from tessera.ops.reduction import max as max_of
from tessera.ops.reduction import mean, spread
from tessera.ops.shape import reshape
from tessera.ops.softmax import empty_row

Tangents = Sequence[Value | None]
Axes = tuple[int, ...]


# Rows with a gain and a bias


def _affine_signature(types: Types, p: Params) -> str:
    """'a0 a1!, a1!, a1! -> a0 a1!' for axes=(1,): gain and bias have the axes of a row."""
    names = letters(types[0].rank)
    rows = " ".join(f"{a}!" if i in p["axes"] else a for i, a in enumerate(names))
    row = " ".join(f"{names[a]}!" for a in p["axes"])
    return f"{rows}{f', {row}' * (len(types) - 1)} -> {rows}"


def _rows(
    op: str, x: ArrayLike, axis: AxisLike, gain: ArrayLike, bias: ArrayLike
) -> tuple[list[Value], Axes]:
    """Operands of one dtype: x, then gain, then bias, as far as they are given."""
    v = floating(as_value(x, op))
    axes = tuple(sorted(axes_of(op, axis, v.ndim)))
    if gain is None and bias is not None:
        gain = full_of(tuple(v.shape[a] for a in axes), 1, v.dtype)
    values = [v, *(floating(as_value(p, op)) for p in (gain, bias) if p is not None)]
    dtype = promote_all([p.dtype for p in values])
    return [cast_to(p, dtype) for p in values], axes


def _along(p: Value, x: Value, axes: Axes) -> Value:
    """A parameter of one row, spread over all rows of x."""
    shape = tuple(n if i in axes else 1 for i, n in enumerate(x.shape))
    return broadcast(reshape(p, shape), x.shape)


def _affine(y: Value, params: Sequence[Value], axes: Axes) -> Value:
    """y * gain + bias, as far as they are given."""
    if params:
        y = mul(y, _along(params[0], y, axes))
    return add(y, _along(params[1], y, axes)) if len(params) > 1 else y


def _affine_reference(y: Any, params: Sequence[Any], axes: Axes) -> Any:
    shape = [n if i in axes else 1 for i, n in enumerate(y.shape)]
    if params:
        y = y * params[0].reshape(shape)
    return y + params[1].reshape(shape) if len(params) > 1 else y


def _mean(x: Any, axes: Axes) -> Any:
    count = int(np.prod([x.shape[a] for a in axes]))
    return np.sum(x, axis=axes, keepdims=True) / x.dtype.type(max(count, 1))


def _row_mean(x: Value, axes: Axes) -> Value:
    return spread(mean(x, axes), x, axes)


def _row_jvp(n: Node, ts: Tangents, unit: Value, scale: Value, centre: bool) -> Value | None:
    """The tangent of unit * gain + bias, where unit = scale * (x less its mean if centred).

    d unit = scale * (t - mean(t) - unit * mean(unit * t)).
    """
    axes, params = n.params["axes"], wide(*n.operands[1:])
    terms = []
    if ts[0] is not None:
        (t,) = wide(ts[0])
        moved = sub(t, mul(unit, _row_mean(mul(unit, t), axes)))
        moved = sub(moved, _row_mean(t, axes)) if centre else moved
        terms.append(_affine(mul(scale, moved), params[:1], axes))
    if len(ts) > 1 and ts[1] is not None:
        terms.append(mul(unit, _along(wide(ts[1])[0], unit, axes)))
    if len(ts) > 2 and ts[2] is not None:
        terms.append(_along(wide(ts[2])[0], unit, axes))
    if not terms:
        return None
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return cast_to(total, n.results[0].dtype)


def _row_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """A gain or bias for each element of the batch is applied outside of the op."""
    x, *params = operands
    rule = shifted(n.params)
    if not any(batched[1:]):
        return FUNCTIONS[n.op.name].bind(x, *params, **rule)
    x, *params = wide(*all_in_front(operands, batched))
    y = FUNCTIONS[n.op.name].bind(x, **rule)
    return cast_to(_affine(y, params, (0, *rule["axes"])), n.results[0].dtype)


_ROW_SAMPLES = (
    Sample((3,)), Sample((2, 3)), Sample((2, 3), (3,)), Sample((2, 3), (3,), (3,)),
    Sample((2, 3), axis=0), Sample((2, 3, 4), (3, 4), axis=(1, 2)), Sample((0, 3)), Sample((3, 0)),
)  # fmt: skip
_RMS_SAMPLES = tuple(s for s in _ROW_SAMPLES if len(s.operands) < 3)


# Layernorm


def _layernorm_reference(x: Any, *params: Any, axes: Axes, eps: float) -> Any:
    c = x - _mean(x, axes)
    y = c / np.sqrt(_mean(c * c, axes) + x.dtype.type(eps))
    return _affine_reference(y, params, axes)


def _unit_row(x: Value, axes: Axes, eps: float) -> tuple[Value, Value]:
    """(x - mean) / sqrt(var + eps), and 1 / sqrt(var + eps)."""
    centred = sub(x, _row_mean(x, axes))
    scale = rsqrt(add(_row_mean(square(centred), axes), eps))
    return mul(centred, scale), scale


def _layernorm(x: Value, *params: Value, axes: Axes, eps: float) -> Value:
    w, *ps = wide(x, *params)
    if empty_row(x, axes):
        return x
    return cast_to(_affine(_unit_row(w, axes, eps)[0], ps, axes), x.dtype)


def _layernorm_jvp(n: Node, ts: Tangents) -> Value | None:
    if empty_row(n.operands[0], n.params["axes"]):
        return ts[0]
    return _row_jvp(n, ts, *_unit_row(wide(n.operands[0])[0], **n.params), centre=True)


@define(
    signature=_affine_signature, kinds="f", decompose=_layernorm, numpy=_layernorm_reference,
    jvp=_layernorm_jvp, onnx="LayerNormalization", samples=_ROW_SAMPLES, batch=_row_batch,
)  # fmt: skip
def layernorm(
    x: ArrayLike,
    gain: ArrayLike = None,
    bias: ArrayLike = None,
    axis: AxisLike = -1,
    eps: float = 1e-5,
) -> Value:
    """(x - mean) / sqrt(var + eps) along axes, times gain plus bias, which have those axes."""
    operands, axes = _rows("layernorm", x, axis, gain, bias)
    return layernorm.bind(*operands, axes=axes, eps=float(eps))


# Rmsnorm


def _rmsnorm_reference(x: Any, *params: Any, axes: Axes, eps: float) -> Any:
    return _affine_reference(x / np.sqrt(_mean(x * x, axes) + x.dtype.type(eps)), params, axes)


def _unit_length(x: Value, axes: Axes, eps: float) -> tuple[Value, Value]:
    """x / sqrt(mean(x * x) + eps), and the factor."""
    scale = rsqrt(add(_row_mean(square(x), axes), eps))
    return mul(x, scale), scale


def _rmsnorm(x: Value, *params: Value, axes: Axes, eps: float) -> Value:
    w, *ps = wide(x, *params)
    if empty_row(x, axes):
        return x
    return cast_to(_affine(_unit_length(w, axes, eps)[0], ps, axes), x.dtype)


def _rmsnorm_jvp(n: Node, ts: Tangents) -> Value | None:
    if empty_row(n.operands[0], n.params["axes"]):
        return ts[0]
    return _row_jvp(n, ts, *_unit_length(wide(n.operands[0])[0], **n.params), centre=False)


@define(
    signature=_affine_signature, kinds="f", decompose=_rmsnorm, numpy=_rmsnorm_reference,
    jvp=_rmsnorm_jvp, onnx="RMSNormalization", samples=_RMS_SAMPLES, batch=_row_batch,
)  # fmt: skip
def rmsnorm(x: ArrayLike, gain: ArrayLike = None, axis: AxisLike = -1, eps: float = 1e-6) -> Value:
    """x / sqrt(mean(x * x) + eps) along axes, times gain, which has those axes."""
    operands, axes = _rows("rmsnorm", x, axis, gain, None)
    return rmsnorm.bind(*operands, axes=axes, eps=float(eps))


# Safe forms


def _safe_unit(x: Value, axes: Axes, eps: float, centre: bool) -> tuple[Value, Value]:
    """The row over its spread (or its rms), and one over the spread: 0 where that is 0."""
    zero, one = (full_of(x.shape, v, x.dtype) for v in (0, 1))
    info = np.finfo(x.dtype.np)
    size = spread(max_of(absolute(x), axes), x, axes)
    s = where(isfinite(size), maximum(size, math.sqrt(eps)), one)
    s = where(eq(s, 0), one, s)
    z = div(x, s)
    c = sub(z, _row_mean(z, axes)) if centre else z
    length = sqrt(_row_mean(square(c), axes))
    flat = le(mul(length, s), mul(size, _ROUNDING * float(info.eps))) if centre else eq(size, 0)
    root = full_of(x.shape, math.sqrt(eps), x.dtype)
    whole = hypot(where(flat, zero, mul(length, s)), root)
    safe = where(eq(whole, 0), one, whole)
    unit = where(flat, zero, div(c, div(safe, s)))
    # One over a subnormal number is infinite, so the slope stops growing there.
    return unit, where(eq(whole, 0), zero, reciprocal(maximum(safe, float(info.tiny) * 4)))


_ROUNDING = 4  # a spread of so many units in the last place of the largest element is none


def _safe_unit_reference(x: Any, axes: Axes, eps: float, centre: bool) -> Any:
    info, root = np.finfo(x.dtype), x.dtype.type(math.sqrt(eps))
    size = np.max(np.abs(x), axis=axes, keepdims=True, initial=0)
    s = np.where(np.isfinite(size), np.maximum(size, root), 1)
    s = np.where(s == 0, 1, s).astype(x.dtype)
    z = x / s
    c = z - _mean(z, axes) if centre else z
    length = np.sqrt(_mean(c * c, axes))
    flat = length * s <= size * x.dtype.type(_ROUNDING * info.eps) if centre else size == 0
    whole = np.hypot(np.where(flat, 0, length * s), root)
    safe = np.where(whole == 0, 1, whole)
    return np.where(flat, 0, c / (safe / s)).astype(x.dtype)


def _safe_norm(centre: bool) -> dict[str, Any]:
    """The record of a safe form."""

    def reference(x: Any, *params: Any, axes: Axes, eps: float) -> Any:
        return _affine_reference(_safe_unit_reference(x, axes, eps, centre), params, axes)

    def decompose(x: Value, *params: Value, axes: Axes, eps: float) -> Value:
        w, *ps = wide(x, *params)
        if empty_row(x, axes):
            return x
        return cast_to(_affine(_safe_unit(w, axes, eps, centre)[0], ps, axes), x.dtype)

    def jvp(n: Node, ts: Tangents) -> Value | None:
        if empty_row(n.operands[0], n.params["axes"]):
            return ts[0]
        (x,) = wide(n.operands[0])
        return _row_jvp(n, ts, *_safe_unit(x, centre=centre, **n.params), centre=centre)

    record = {"numpy": reference, "decompose": decompose, "jvp": jvp}
    return {"kinds": "f", "batch": _row_batch, **record}


@define(signature=_affine_signature, samples=_ROW_SAMPLES, **_safe_norm(centre=True))
def layernorm_safe(
    x: ArrayLike,
    gain: ArrayLike = None,
    bias: ArrayLike = None,
    axis: AxisLike = -1,
    eps: float = 1e-5,
) -> Value:
    """layernorm that no finite row overflows; a constant row gives the bias, even for eps=0."""
    operands, axes = _rows("layernorm_safe", x, axis, gain, bias)
    return layernorm_safe.bind(*operands, axes=axes, eps=float(eps))


@define(signature=_affine_signature, samples=_RMS_SAMPLES, **_safe_norm(centre=False))
def rmsnorm_safe(
    x: ArrayLike, gain: ArrayLike = None, axis: AxisLike = -1, eps: float = 1e-6
) -> Value:
    """rmsnorm that no finite row overflows; a row of zeros gives zeros, even for eps=0."""
    operands, axes = _rows("rmsnorm_safe", x, axis, gain, None)
    return rmsnorm_safe.bind(*operands, axes=axes, eps=float(eps))
