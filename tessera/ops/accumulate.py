"""Running folds along an axis: cumulative sums, products and extremes, linear recurrences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype, i64, u64
from tessera.core.errors import AxisError, ShapeError
from tessera.core.scalar import is_winner, with_zeros
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Op, Params, Sample, Types, register
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    OpFunction,
    as_value,
    axis_of,
    cast_to,
    define,
    floating,
    full_of,
    meet,
    public,
    publish,
    wide,
)
from tessera.ops.elementwise import add, eq, exp, isfinite, mul, ne, sub, where
from tessera.ops.gather import along_axis
from tessera.ops.shape import concat, pad, reshape, slice_
from tessera.ops.whole import whole

Tangents = Sequence[Value | None]


def shifted(x: Value, axis: int, by: int, fill: Any) -> Value:
    """x moved by one place up or down an axis, the free place filled with a number."""
    zeros = (0,) * x.ndim
    low, high = (tuple(k * (i == axis) for i in range(x.ndim)) for k in (by, -by))
    return pad.bind(x, full_of((), fill, x.dtype), low=low, high=high, inner=zeros)


def _before(y: Value, p: Any, fill: Any) -> Value:
    """At each place what y was at the one before, in the direction of the fold."""
    return shifted(y, p["axis"], -1 if p["reverse"] else 1, fill)


# Linear recurrences


def _recur(a: Any, b: Any, axis: int, reverse: bool) -> Any:
    a, b = np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0)
    out = np.empty(b.shape, b.dtype)
    y = np.zeros(b.shape[1:], b.dtype)
    for i in range(len(b))[:: -1 if reverse else 1]:
        y = a[i] * y + b[i]
        out[i] = y
    return np.moveaxis(out, 0, axis)


def _recur_types(types: Types, p: Params) -> list[TensorType]:
    a, b = types
    if a is not b:
        raise ShapeError(f"linear_recurrence: operands {a} and {b} must be of one type")
    return [b]


def _recur_jvp(n: Node, ts: Tangents) -> Value | None:
    """t[i] = a[i] t[i-1] + (a'[i] y[i-1] + b'[i])."""
    (a, _), (p, q), y = n.operands, ts, n.results[0]
    if p is None:
        return None if q is None else linear_recurrence.bind(a, q, **n.params)
    grown = mul(p, _before(y, n.params, 0))
    return linear_recurrence.bind(a, grown if q is None else add(grown, q), **n.params)


def _recur_transpose(n: Node, ct: Value, k: int) -> Value:
    """The recurrence run the other way: c[i] = a[i+1] c[i+1] + ct[i]."""
    axis, reverse = n.params["axis"], n.params["reverse"]
    after = shifted(n.operands[0], axis, 1 if reverse else -1, 0)
    return linear_recurrence.bind(after, ct, axis=axis, reverse=not reverse)


@define(
    infer=_recur_types, call="linear_recurrence", total=True, kinds="uifc", numpy=_recur, linear=(1,),
    jvp=_recur_jvp, transpose=_recur_transpose,
    samples=(
        Sample((4,), (4,)), Sample((2, 3), (2, 3), axis=0), Sample((3, 2), (3, 2), reverse=True),
        Sample((0, 2), (0, 2), axis=0), Sample((1,), (1,)), Sample((3,), (2, 3)),
    ),
)  # fmt: skip
def linear_recurrence(a: ArrayLike, b: ArrayLike, axis: int = -1, reverse: bool = False) -> Value:
    """y[i] = a[i] * y[i-1] + b[i] along an axis, starting from 0."""
    x, y = meet("linear_recurrence", (a, b))
    k = axis_of("linear_recurrence", axis, y.ndim)
    return linear_recurrence.bind(x, y, axis=k, reverse=bool(reverse))


# Cumulative folds

_SAMPLES = (
    Sample((4,)), Sample((2, 3), axis=0), Sample((2, 3), axis=-1, reverse=True), Sample((2, 3)),
    Sample((0,)), Sample((2, 0), axis=1), Sample((0, 2), axis=1), Sample((1,)), Sample(()),
)  # fmt: skip


def cumulative(
    name: str,
    doc: str,
    accumulate: Callable[[Any, int], Any],
    *,
    prepare: Callable[[Value], Value] = lambda x: x,
    **record: Any,
) -> OpFunction[..., Value]:
    """y[i] = fold of x[0..i] along an axis, from the end when reversed; flat without an axis."""

    def reference(x: Any, axis: int, reverse: bool) -> Any:
        if not reverse:
            return accumulate(x, axis)
        return np.flip(accumulate(np.flip(x, axis), axis), axis)

    op = register(
        Op(name, doc, call=name, total=True, numpy=reference, infer=lambda types, p: types,
           samples=_SAMPLES, **record)
    )  # fmt: skip

    def front(x: ArrayLike, axis: int | None = None, reverse: bool = False) -> Value:
        v = prepare(as_value(x, name))
        v = reshape(v, (v.type.size,)) if axis is None else v
        k = axis_of(name, 0 if axis is None else axis, v.ndim)
        return made.bind(v, axis=k, reverse=bool(reverse))

    front.__name__ = name
    made = OpFunction(op, front)
    publish(made, name)
    return made


def _wide_integer(x: Value) -> Value:
    """Integers and bools in 64 bits, as NumPy sums them."""
    return x if x.dtype.kind in "fc" else cast_to(x, u64 if x.dtype.kind == "u" else i64)


cumsum = cumulative(
    "cumsum", "Running sum along an axis; integers are summed in 64 bits.", np.add.accumulate,
    prepare=_wide_integer, kinds="uifc", linear=(0,), by_parts=True, onnx="CumSum",
    transpose=lambda n, ct, k: cumsum.bind(
        ct, axis=n.params["axis"], reverse=not n.params["reverse"]
    ),
)  # fmt: skip


def _cumprod_jvp(n: Node, ts: Tangents) -> Value | None:
    """y[i] = x[i] y[i-1], so t[i] = x[i] t[i-1] + x'[i] y[i-1]: no quotient, so zeros do no harm."""
    (x,), (t,), y = n.operands, ts, n.results[0]
    if t is None:
        return None
    return linear_recurrence.bind(x, mul(t, _before(y, n.params, 1)), **n.params)


cumprod = cumulative(
    "cumprod", "Running product along an axis; integers are multiplied in 64 bits.", np.multiply.accumulate,
    prepare=_wide_integer, kinds="uifc", jvp=_cumprod_jvp,
)  # fmt: skip


def _extreme_jvp(n: Node, ts: Tangents) -> Value | None:
    """The tangent of the winner, the latest of several."""
    (x,), (t,), y = n.operands, ts, n.results[0]
    if t is None:
        return None
    axis, reverse = n.params["axis"], n.params["reverse"]
    here = iota(x.shape, axis)
    wins = where(eq(x, y), here, x.shape[axis] - 1 if reverse else 0)
    latest = (cummin if reverse else cummax).bind(wins, axis=axis, reverse=reverse)
    return along_axis(t, latest, axis)


def _extreme(name: str, ufunc: Any) -> Callable[[Any, int], Any]:
    def accumulate(x: Any, axis: int) -> Any:
        m = ufunc.accumulate(x, axis)
        if m.dtype.kind in "biu" or np.all(m):
            return m
        return with_zeros(name, m, np.logical_or.accumulate(is_winner(name, x), axis))

    return accumulate


cummax = cumulative("cummax", "Running maximum along an axis; NaN from the first NaN on.",
                    _extreme("max", np.maximum), kinds="buif", moves=True, jvp=_extreme_jvp)  # fmt: skip
cummin = cumulative("cummin", "Running minimum along an axis; NaN from the first NaN on.",
                    _extreme("min", np.minimum), kinds="buif", moves=True, jvp=_extreme_jvp)  # fmt: skip


def _logcumsumexp_jvp(n: Node, ts: Tangents) -> Value | None:
    """t[i] = exp(y[i-1] - y[i]) t[i-1] + exp(x[i] - y[i]) x'[i]: no factor above 1."""
    (x,), (t,), y = n.operands, ts, n.results[0]
    if t is None:
        return None
    (x, t), d = wide(x, t), t.dtype
    if y.dtype != x.dtype:  # as in logsumexp
        y = logcumsumexp.bind(x, **n.params)
    safe = where(isfinite(y), y, 0)
    keeps = exp(sub(_before(y, n.params, float("-inf")), safe))
    return cast_to(linear_recurrence.bind(keeps, mul(exp(sub(x, safe)), t), **n.params), d)


logcumsumexp = cumulative(
    "logcumsumexp", "log of the running sum of exp(x) along an axis, without overflow.",
    np.logaddexp.accumulate, prepare=floating, kinds="f", jvp=_logcumsumexp_jvp,
)  # fmt: skip


def _cumulative_standard(
    fold: OpFunction[..., Value], x: ArrayLike, axis: int | None, dtype: Any, initial: int | None
) -> Value:
    """A running fold by the rules of the array API standard."""
    v = as_value(x, fold.__name__)
    if axis is None and v.ndim != 1:
        raise AxisError(f"{fold.__name__}: {v.type} has {v.ndim} axes; name one with axis=")
    k = 0 if axis is None else axis_of(fold.__name__, axis, v.ndim)
    v = _wide_integer(v) if dtype is None else cast_to(v, as_dtype(dtype))
    y = cast_to(fold(v, k), v.dtype)
    if initial is None:
        return y
    first = tuple(1 if i == k else n for i, n in enumerate(y.shape))
    return concat([full_of(first, initial, y.dtype), y], k)


@public
def cumulative_sum(
    x: ArrayLike, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Value:
    """Running sum along an axis, after a leading 0 when the initial value is included."""
    return _cumulative_standard(cumsum, x, axis, dtype, 0 if include_initial else None)


@public
def cumulative_prod(
    x: ArrayLike, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Value:
    """Running product along an axis, after a leading 1 when the initial value is included."""
    return _cumulative_standard(cumprod, x, axis, dtype, 1 if include_initial else None)


@public
def diff(
    x: ArrayLike,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayLike | None = None,
    append: ArrayLike | None = None,
) -> Value:
    """Differences of neighbours along an axis, n times; for bools, whether they differ."""
    v = as_value(x, "diff")
    k = axis_of("diff", axis, v.ndim)
    n = whole("diff", "n", n)
    if n < 0:
        raise ShapeError(f"diff: n is {n}, expected 0 or more")
    ends = [as_value(e, "diff") for e in (prepend, v, append) if e is not None]
    v = concat(ends, k) if len(ends) > 1 else v
    for _ in range(n):
        if v.shape[k] == 0:
            return v
        zeros = (0,) * v.ndim
        later = slice_(v, tuple(int(i == k) for i in range(v.ndim)), v.shape)
        earlier = slice_(v, zeros, tuple(m - (i == k) for i, m in enumerate(v.shape)))
        v = ne(later, earlier) if v.dtype.kind == "b" else sub(later, earlier)
    return v
