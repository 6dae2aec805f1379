"""Statistics as in NumPy: medians and quantiles, covariances, histograms, and folds that leave out NaN."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from tessera.core.dims import larger, product
from tessera.core.dtype import i64
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.ir.graph.ir import Value, host_data
from tessera.lang.names.joining import ravel as ravel_
from tessera.lang.names.together import as_tensor, floats, together
from tessera.ops.accumulate import cumprod, cumsum, diff
from tessera.ops.arrange import linspace
from tessera.ops.contraction import matmul
from tessera.ops.creation import full, full_like, zeros, zeros_like
from tessera.ops.define import ArrayLike, AxisLike, as_value, axes_of, cast_to, floating, public
from tessera.ops.elementwise import (
    add,
    ceil,
    conj,
    div,
    eq,
    floor,
    ge,
    gt,
    isnan,
    logical_and,
    logical_not,
    lt,
    maximum,
    mul,
    real,
    sqrt,
    square,
    sub,
    where,
)
from tessera.ops.elementwise import round as round_
from tessera.ops.gather import scatter_add, take_along_axis
from tessera.ops.matrix import diagonal
from tessera.ops.reduction import all as all_
from tessera.ops.reduction import any as any_
from tessera.ops.reduction import argmax, argmin, mean, prod
from tessera.ops.reduction import max as max_
from tessera.ops.reduction import min as min_
from tessera.ops.reduction import sum as sum_
from tessera.ops.shape import (
    broadcast_to,
    concat,
    expand_dims,
    flip,
    matrix_transpose,
    moveaxis,
    reshape,
    slice_,
    transpose,
)
from tessera.ops.sorting import searchsorted, sort


@public
def ptp(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The range of values: max - min."""
    return sub(max_(x, axis, keepdims), min_(x, axis, keepdims))


@public
def average(
    x: ArrayLike, axis: AxisLike = None, weights: ArrayLike = None, keepdims: bool = False
) -> Value:
    """The mean, weighted where weights are given: of the shape of x, or one for each element of an axis."""
    v = floating(as_value(x))
    if weights is None:
        return mean(v, axis, keepdims)
    w = as_value(weights)
    if w.ndim != v.ndim:
        if w.ndim != 1 or not isinstance(axis, int):
            raise ShapeError(
                f"average: weights are {w.type}, expected the shape of x {v.type}, or a vector and one axis"
            )
        shape = [1] * v.ndim
        shape[axis] = w.shape[0]
        w = reshape(w, tuple(shape))
    w = broadcast_to(cast_to(w, promote(v.dtype, w.dtype)), v.shape)
    return div(sum_(mul(v, w), axis, keepdims), sum_(w, axis, keepdims))


_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


@public
def quantile(
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Value:
    """The numbers that a part q of the elements does not exceed; the axis of a vector q comes first."""
    return _quantile("quantile", x, q, axis, method, keepdims)


@public
def percentile(
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Value:
    """quantile with q in percent."""
    return _quantile("percentile", x, _percent(q), axis, method, keepdims)


def _percent(q: ArrayLike) -> Any:
    return q / 100 if isinstance(q, int | float) else div(floating(as_value(q)), 100)


@public
def median(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The middle of the sorted elements, the mean of the two middle ones of an even number."""
    return _quantile("median", x, 0.5, axis, "linear", keepdims)


@public
def nanquantile(
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Value:
    """quantile of the elements that are numbers."""
    return _quantile("nanquantile", x, q, axis, method, keepdims, skip=True)


@public
def nanpercentile(
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike = None,
    method: str = "linear",
    keepdims: bool = False,
) -> Value:
    """percentile of the elements that are numbers."""
    return _quantile("nanpercentile", x, _percent(q), axis, method, keepdims, skip=True)


@public
def nanmedian(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """median of the elements that are numbers."""
    return _quantile("nanmedian", x, 0.5, axis, "linear", keepdims, skip=True)


def _quantile(
    op: str,
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike,
    method: str,
    keepdims: bool,
    skip: bool = False,
) -> Value:
    v = floating(as_value(x))
    if method not in _METHODS:
        raise OperandError(f"{op}: method is {method!r}, expected one of {', '.join(_METHODS)}")
    axes = axes_of(op, axis, v.ndim)
    kept = [i for i in range(v.ndim) if i not in axes]
    many = product(tuple(v.shape[i] for i in axes))
    rows = reshape(transpose(v, (*kept, *axes)), (*(v.shape[i] for i in kept), many))
    _, part = together(rows, q)
    if part.ndim > 1:
        raise ShapeError(f"{op}: q is {part.type}, expected a number or a vector")
    if part.storage is not None and np.any((host_data(part) < 0) | (host_data(part) > 1)):
        top = 100 if "percent" in op else 1
        given = np.round(np.asarray(host_data(part), float) * top, 5)
        raise OperandError(f"{op}: q is {given}, expected numbers from 0 to {top}")
    line = reshape(part, (-1,))
    n = rows.shape[-1]
    if n == 0:
        raise OperandError(f"{op}: x {v.type} has no elements along axis {axis}")
    ordered, bad = sort(rows, -1), isnan(rows)
    count = (
        sum_(cast_to(logical_not(bad), rows.dtype), -1, True)
        if skip
        else full((*rows.shape[:-1], 1), n, rows.dtype)
    )
    at = mul(line, sub(maximum(count, 1), 1))
    low, high = floor(at), ceil(at)
    below, above = (take_along_axis(ordered, cast_to(i, i64), -1) for i in (low, high))
    share = sub(at, low)
    if method == "lower":
        found = below
    elif method == "higher":
        found = above
    elif method == "nearest":
        found = take_along_axis(ordered, cast_to(round_(at), i64), -1)
    else:
        share = full_like(share, 0.5) if method == "midpoint" else share
        found = where(eq(low, high), below, add(mul(below, sub(1, share)), mul(above, share)))
    if skip:
        found = where(eq(count, 0), float("nan"), found)
    else:
        found = where(any_(bad, -1, True), float("nan"), found)
    out = moveaxis(found, -1, 0)
    if keepdims:
        out = reshape(out, (out.shape[0], *(1 if i in axes else v.shape[i] for i in range(v.ndim))))
    return reshape(out, out.shape[1:]) if part.ndim == 0 else out


@public
def cov(
    x: ArrayLike,
    y: ArrayLike = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayLike = None,
    aweights: ArrayLike = None,
) -> Value:
    """The covariances of the rows of x (with rowvar=False, of its columns), and of y beside them.

    The variance of one row is a number, as in NumPy.
    """
    rows = _variables(x, rowvar)
    if y is not None:
        rows = concat([rows, _variables(y, rowvar)], 0)
    free = (0 if bias else 1) if ddof is None else ddof
    found = _covariances(rows, free, _weights(rows, fweights, aweights), aweights)
    return reshape(found, ()) if rows.shape[0] == 1 else found


def _covariances(rows: Value, free: int, weights: Value | None, aweights: ArrayLike) -> Value:
    if weights is None:
        apart, total = sub(rows, mean(rows, 1, True)), as_value(larger(rows.shape[1] - free, 0))
        return div(matmul(apart, conj(matrix_transpose(apart))), cast_to(total, rows.dtype))
    whole = sum_(weights)
    apart = sub(rows, div(sum_(mul(rows, weights), 1, True), whole))
    lost = (
        mul(free, sum_(mul(weights, cast_to(as_value(aweights), rows.dtype))))
        if aweights is not None
        else None
    )
    total = sub(whole, free if lost is None else div(lost, whole))
    return div(matmul(mul(apart, weights), conj(matrix_transpose(apart))), total)


def _variables(x: ArrayLike, rowvar: bool) -> Value:
    v = floating(as_value(x))
    if v.ndim > 2:
        raise ShapeError(f"cov: got {v.type}, expected a vector or a matrix")
    rows = expand_dims(v, 0) if v.ndim < 2 else v
    return matrix_transpose(rows) if v.ndim == 2 and not rowvar else rows


def _weights(rows: Value, fweights: ArrayLike, aweights: ArrayLike) -> Value | None:
    given = [cast_to(as_value(w), rows.dtype) for w in (fweights, aweights) if w is not None]
    return None if not given else given[0] if len(given) == 1 else mul(*given)


@public
def corrcoef(x: ArrayLike, y: ArrayLike = None, rowvar: bool = True) -> Value:
    """The correlations of the rows of x (with rowvar=False, of its columns), and of y beside them."""
    c = cov(x, y, rowvar)
    if c.ndim == 0:
        return div(c, c)
    size = sqrt(real(diagonal(c)))
    return div(div(c, expand_dims(size, 1)), expand_dims(size, 0))


# Counting ---------------------------------------------------------------------------------------


@public
def bincount(
    x: ArrayLike, weights: ArrayLike = None, minlength: int = 0, length: int | None = None
) -> Value:
    """How often each number 0, 1, 2 ... is in x, or the sum of weights there.

    The result has `length` elements; without it, as many as the largest number of x needs, which only eager
    calls know.
    """
    v = ravel_(as_value(x))
    if v.dtype.kind not in "iub":
        raise DTypeError(f"bincount: x is {v.type}, expected integers")
    if length is None:
        length = _largest("bincount", v, minlength)
    inside = logical_and(ge(v, 0), lt(v, length))
    if weights is None and length:  # what is outside counts behind the last number
        place = where(inside, cast_to(v, i64), length)
        counts = scatter_add(zeros((length + 1,), i64), full(v.shape, 1, i64), place)
        return slice_(counts, (0,), (length,))
    w = full(v.shape, 1, i64) if weights is None else ravel_(as_value(weights))
    kept = where(inside, w, zeros_like(w))
    return (
        scatter_add(zeros((length,), w.dtype), kept, where(inside, cast_to(v, i64), 0))
        if length
        else zeros((0,), w.dtype)
    )


def _largest(op: str, v: Value, least: int) -> int:
    if v.storage is None:
        raise OperandError(
            f"{op}: the size of the result depends on the data; give length= inside jit"
        )
    numbers = host_data(v)
    if numbers.size and numbers.min() < 0:
        raise OperandError(f"{op}: x has the negative number {numbers.min()}")
    return builtins.max(int(numbers.max()) + 1 if numbers.size else 0, least)


@public
def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False) -> Value:
    """The bin of each element: i where bins[i-1] <= x < bins[i]; bins may rise or fall."""
    v, edges = as_value(x), as_tensor(bins)
    falls = gt(edges[0], edges[-1]) if edges.shape[0] != 1 else full((), False)
    rising = where(falls, flip(edges, 0), edges)
    n = edges.shape[0]
    up = searchsorted(rising, v, "left" if right else "right")
    return where(falls, sub(n, up), up)


@public
def histogram_bin_edges(
    x: ArrayLike, bins: Any = 10, range: tuple[float, float] | None = None
) -> Value:
    """The edges of the bins of histogram: as given, or evenly from the least to the largest element."""
    v = floating(as_value(x))
    if not isinstance(bins, int):
        return as_value(bins)
    if bins < 1:
        raise OperandError(f"histogram: bins is {bins}, expected 1 or more, or the edges")
    if range is not None:
        if all(isinstance(r, int | float) for r in range) and not range[0] <= range[1]:
            raise OperandError(f"histogram: range is {range}, expected the smaller number first")
        low, high = (cast_to(as_value(r), v.dtype) for r in range)
    elif 0 in v.shape:
        low, high = (full((), r, v.dtype) for r in (0, 1))
    else:
        low, high = min_(v), max_(v)
    same = eq(low, high)
    low, high = sub(low, where(same, 0.5, 0.0)), add(high, where(same, 0.5, 0.0))
    return linspace(low, high, bins + 1)


@public
def histogram(
    x: ArrayLike,
    bins: Any = 10,
    range: tuple[float, float] | None = None,
    weights: ArrayLike = None,
    density: bool = False,
) -> tuple[Value, Value]:
    """How many elements fall in each bin, and the edges; the last bin has both of its edges."""
    v = ravel_(floating(as_value(x)))
    edges = floats(histogram_bin_edges(v, bins, range))
    n = edges.shape[0] - 1
    place = sub(searchsorted(edges, v, "right"), 1)
    place = where(eq(v, edges[-1]), n - 1, place)
    counts = bincount(place, weights if weights is None else ravel_(as_value(weights)), length=n)
    if density:
        wide = cast_to(counts, edges.dtype)
        return div(div(wide, diff(edges)), sum_(wide)), edges
    return counts, edges


# Without NaN ------------------------------------------------------------------------------------


def _plain(x: ArrayLike, value: float) -> tuple[Value, Value]:
    """x with NaN replaced, and where it is a number."""
    v = as_value(x)
    if v.dtype.kind not in "fc":
        return v, full(v.shape, True)
    good = logical_not(isnan(v))
    return where(good, v, full_like(v, value)), good


@public
def nansum(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The sum, NaN as 0."""
    return sum_(_plain(x, 0.0)[0], axis, keepdims)


@public
def nanprod(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The product, NaN as 1."""
    return prod(_plain(x, 1.0)[0], axis, keepdims)


@public
def nancumsum(x: ArrayLike, axis: int | None = None) -> Value:
    """The running sum, NaN as 0."""
    return cumsum(_plain(x, 0.0)[0], axis)


@public
def nancumprod(x: ArrayLike, axis: int | None = None) -> Value:
    """The running product, NaN as 1."""
    return cumprod(_plain(x, 1.0)[0], axis)


@public
def nanmean(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The mean of the elements that are numbers."""
    v, good = _plain(floating(as_value(x)), 0.0)
    return div(sum_(v, axis, keepdims), cast_to(sum_(cast_to(good, i64), axis, keepdims), v.dtype))


@public
def nanvar(
    x: ArrayLike, axis: AxisLike = None, correction: float = 0.0, keepdims: bool = False
) -> Value:
    """The variance of the elements that are numbers."""
    v, good = _plain(floating(as_value(x)), 0.0)
    count = cast_to(sum_(cast_to(good, i64), axis, True), v.dtype)
    apart = where(good, sub(v, div(sum_(v, axis, True), count)), zeros_like(v))
    squares = real(mul(apart, conj(apart))) if v.dtype.kind == "c" else square(apart)
    left = cast_to(sum_(cast_to(good, i64), axis, keepdims), squares.dtype)
    return div(sum_(squares, axis, keepdims), sub(left, correction))


@public
def nanstd(
    x: ArrayLike, axis: AxisLike = None, correction: float = 0.0, keepdims: bool = False
) -> Value:
    """The standard deviation of the elements that are numbers."""
    return sqrt(nanvar(x, axis, correction, keepdims))


def _least(x: ArrayLike, sign: float) -> Value:
    return _plain(x, sign * float("inf"))[0]


@public
def nanmax(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The largest element that is a number; NaN where there is none."""
    return _or_nan(max_(_least(x, -1), axis, keepdims), x, axis, keepdims)


@public
def nanmin(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The least element that is a number; NaN where there is none."""
    return _or_nan(min_(_least(x, 1), axis, keepdims), x, axis, keepdims)


def _or_nan(found: Value, x: ArrayLike, axis: AxisLike, keepdims: bool) -> Value:
    v = as_value(x)
    if v.dtype.kind != "f":
        return found
    return where(all_(isnan(v), axis, keepdims), float("nan"), found)


@public
def nanargmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Value:
    """Where the largest element that is a number is."""
    return argmax(_least(x, -1), axis, keepdims)


@public
def nanargmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Value:
    """Where the least element that is a number is."""
    return argmin(_least(x, 1), axis, keepdims)
