"""Statistics along axes: order statistics, folds that pass over NaN, histograms, covariances, interpolation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes

from tessera.core.dims import product
from tessera.core.dtype import bool_, i64
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.contraction import matmul
from tessera.ops.creation import full_like, iota
from tessera.ops.define import (
    ArrayLike,
    AxisLike,
    as_value,
    as_value_of,
    axes_of,
    broadcast,
    cast_to,
    floating,
    full_of,
    meet,
    public,
)
from tessera.ops.elementwise import (
    abs,
    add,
    clip,
    conj,
    div,
    eq,
    floor,
    ge,
    gt,
    isfinite,
    isinf,
    isnan,
    le,
    logical_and,
    logical_or,
    lt,
    maximum,
    mul,
    ne,
    real,
    sqrt,
    sub,
    where,
)
from tessera.ops.gather import scatter_add, take, take_along_axis
from tessera.ops.reduction import all, any, argmax, argmin, max, mean, min, prod, sum
from tessera.ops.shape import concat, expand_dims, matrix_transpose, moveaxis, reshape, slice_
from tessera.ops.sorting import searchsorted, sort

# Order statistics

_METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def _last(op: str, x: ArrayLike, axis: AxisLike) -> tuple[Value, tuple[int, ...], int]:
    """x with the axes that are folded joined as the last one; these axes, and the rank of x."""
    v = floating(as_value(x, op))
    axes = axes_of(op, axis, v.ndim)
    kept = tuple(a for a in range(v.ndim) if a not in axes)
    moved = moveaxis(v, axes, tuple(range(v.ndim - len(axes), v.ndim))) if axes else v
    size = product(tuple(v.shape[a] for a in axes))
    if size == 0:
        raise ShapeError(f"{op}: {v.type} has no elements along axes {axes}")
    return reshape(moved, (*(v.shape[a] for a in kept), size)), axes, v.ndim


def _kept(y: Value, axes: tuple[int, ...], rank: int, keepdims: bool, front: int = 0) -> Value:
    if not keepdims:
        return y
    left = iter(y.shape[front:])
    shape = [1 if a in axes else next(left) for a in range(rank)]
    return reshape(y, (*y.shape[:front], *shape))


def _between(op: str, ordered: Value, place: Value, method: str) -> Value:
    """The elements of a sorted last axis at places that may lie between two of them."""
    if method not in _METHODS:
        raise OperandError(f"{op}: method is {method!r:.40}, expected one of {', '.join(_METHODS)}")
    low = floor(place)
    part = sub(place, low)
    if method == "nearest":
        up = logical_or(gt(part, 0.5), logical_and(eq(part, 0.5), ne(low % 2, 0)))  # type: ignore[operator]
        part = cast_to(up, place.dtype)
    elif method != "linear":
        share = {"lower": 0.0, "higher": 1.0, "midpoint": 0.5}[method]
        part = where(eq(part, 0), 0, full_like(part, share))
    last = ordered.shape[-1] - 1
    at = cast_to(low, i64)
    first = take_along_axis(ordered, clip(at, 0, last), -1)
    second = take_along_axis(ordered, clip(add(at, 1), 0, last), -1)
    mixed = add(first, mul(sub(second, first), cast_to(part, ordered.dtype)))
    return where(eq(part, 0), first, mixed)  # no 0 * inf


def _quantiles(op: str, x: ArrayLike, q: ArrayLike, axis: AxisLike, keepdims: bool, method: str,
               skip: bool) -> Value:  # fmt: skip
    v, axes, rank = _last(op, x, axis)
    share = cast_to(as_value_of(v.dtype, q, op), v.dtype)
    share = div(share, 100) if "percentile" in op else share
    ordered = sort(v, -1)
    bad = isnan(v)
    count = sum(cast_to(~bad if skip else full_like(bad, True), i64), -1, keepdims=True)  # type: ignore[operator]
    flat = reshape(share, (1,) * (v.ndim - 1) + (share.type.size,))
    place = mul(cast_to(maximum(sub(count, 1), 0), v.dtype), flat)
    shape = (*v.shape[:-1], share.type.size)
    y = _between(op, ordered, broadcast(place, shape), method)
    nan = full_like(y, float("nan"))
    y = where(broadcast(eq(count, 0) if skip else any(bad, -1, keepdims=True), shape), nan, y)
    y = reshape(moveaxis(y, -1, 0), (*share.shape, *v.shape[:-1]))
    return _kept(y, axes, rank, keepdims, share.ndim)


@public
def quantile(
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    method: str = "linear",
) -> Value:
    """The element that a share q of the elements over axes is below, between two by the method; NaN where one is."""
    return _quantiles("quantile", x, q, axis, keepdims, method, False)


@public
def nanquantile(
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    method: str = "linear",
) -> Value:
    """quantile of the elements that are not NaN."""
    return _quantiles("nanquantile", x, q, axis, keepdims, method, True)


@public
def percentile(
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    method: str = "linear",
) -> Value:
    """quantile with q in percent."""
    return _quantiles("percentile", x, q, axis, keepdims, method, False)


@public
def nanpercentile(
    x: ArrayLike,
    q: ArrayLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    method: str = "linear",
) -> Value:
    """percentile of the elements that are not NaN."""
    return _quantiles("nanpercentile", x, q, axis, keepdims, method, True)


@public
def median(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The middle element over axes, or the mean of the two in the middle."""
    return _quantiles("median", x, 0.5, axis, keepdims, "linear", False)


@public
def nanmedian(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The median of the elements that are not NaN."""
    return _quantiles("nanmedian", x, 0.5, axis, keepdims, "linear", True)


@public
def ptp(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The largest minus the smallest element over axes."""
    v = as_value(x, "ptp")
    return sub(max(v, axis, keepdims), min(v, axis, keepdims))


# Folds that pass over NaN


def _bad(v: Value) -> Value:
    return isnan(v) if v.dtype.kind in "fc" else full_of(v.shape, False, bool_)


def _skipping(
    fold: Callable[..., Value], x: ArrayLike, fill: Any, axis: AxisLike, keepdims: bool
) -> tuple[Value, Value]:
    """A fold with a number for NaN, and how many elements are not NaN."""
    v = as_value(x, "nan")
    bad = _bad(v)
    count = sum(cast_to(eq(bad, False), i64), axis, keepdims)
    return fold(where(bad, fill, v) if v.dtype.kind in "fc" else v, axis, keepdims), count


@public
def nansum(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The sum over axes of the elements that are not NaN."""
    return _skipping(sum, x, 0, axis, keepdims)[0]


@public
def nanprod(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The product over axes of the elements that are not NaN."""
    return _skipping(prod, x, 1, axis, keepdims)[0]


@public
def nanmean(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The mean over axes of the elements that are not NaN."""
    total, count = _skipping(sum, floating(as_value(x, "nanmean")), 0, axis, keepdims)
    return div(total, cast_to(count, total.dtype))


@public
def nanvar(
    x: ArrayLike, axis: AxisLike = None, correction: float = 0, keepdims: bool = False
) -> Value:
    """The variance over axes of the elements that are not NaN."""
    v = floating(as_value(x, "nanvar"))
    apart = sub(v, nanmean(v, axis, True))
    total, count = _skipping(sum, real(mul(apart, conj(apart))), 0, axis, keepdims)
    return div(total, sub(cast_to(count, total.dtype), float(correction)))


@public
def nanstd(
    x: ArrayLike, axis: AxisLike = None, correction: float = 0, keepdims: bool = False
) -> Value:
    """The standard deviation over axes of the elements that are not NaN."""
    return sqrt(nanvar(x, axis, correction, keepdims))


def _extreme(fold: Any, x: ArrayLike, edge: float, axis: AxisLike, keepdims: bool) -> Value:
    v = as_value(x, "nanmax")
    y, count = _skipping(fold, v, edge, axis, keepdims)
    return where(eq(count, 0), float("nan"), y) if v.dtype.kind == "f" else y


@public
def nanmax(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The largest element over axes that is not NaN."""
    return _extreme(max, x, float("-inf"), axis, keepdims)


@public
def nanmin(x: ArrayLike, axis: AxisLike = None, keepdims: bool = False) -> Value:
    """The smallest element over axes that is not NaN."""
    return _extreme(min, x, float("inf"), axis, keepdims)


@public
def nanargmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Value:
    """Index of the first largest element that is not NaN."""
    v = as_value(x, "nanargmax")
    return argmax(where(_bad(v), float("-inf"), v) if v.dtype.kind == "f" else v, axis, keepdims)


@public
def nanargmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Value:
    """Index of the first smallest element that is not NaN."""
    v = as_value(x, "nanargmin")
    return argmin(where(_bad(v), float("inf"), v) if v.dtype.kind == "f" else v, axis, keepdims)


@public
def nan_to_num(
    x: ArrayLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Value:
    """x with numbers for NaN and infinities: the largest finite ones unless given."""
    v = as_value(x, "nan_to_num")
    if v.dtype.kind != "f":
        return v
    big = full_like(v, float(_largest(v)))
    high = big if posinf is None else full_like(v, posinf)
    low = -big if neginf is None else full_like(v, neginf)
    ends = where(isinf(v), where(gt(v, 0), high, low), v)
    return where(isnan(v), nan, ends)


def _largest(v: Value) -> Any:
    finfo: Any = ml_dtypes.finfo
    return finfo(v.dtype.np).max


# Comparisons


@public
def isclose(
    x: ArrayLike, y: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """Whether |x - y| <= atol + rtol |y|, element by element; infinities are close to themselves."""
    a, b = meet("isclose", (x, y))
    if a.dtype.kind not in "fc":
        a, b = (cast_to(v, floating(v).dtype) for v in (a, b))
    near = le(abs(sub(a, b)), add(mul(abs(b), rtol), atol))
    close = where(logical_and(isfinite(a), isfinite(b)), near, eq(a, b))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


@public
def allclose(
    x: ArrayLike, y: ArrayLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Value:
    """Whether all elements are close, as isclose has it."""
    return all(isclose(x, y, rtol, atol, equal_nan))


# Weights, covariances


@public
def average(
    x: ArrayLike, axis: AxisLike = None, weights: ArrayLike | None = None, keepdims: bool = False
) -> Value:
    """The mean over axes, weighted where weights are given, which broadcast against x."""
    v = floating(as_value(x, "average"))
    if weights is None:
        return mean(v, axis, keepdims)
    a, w = meet("average", (v, weights))
    return div(sum(mul(a, w), axis, keepdims), sum(w, axis, keepdims))


def cov(
    x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, bias: bool = False,
    ddof: int | None = None,
) -> Value:  # fmt: skip
    """The covariances of variables: the rows of x, or its columns without rowvar, and those of y."""
    parts = [_variables("cov", v, rowvar) for v in ((x,) if y is None else (x, y))]
    rows = concat(parts, 0) if len(parts) > 1 else parts[0]
    apart = sub(rows, mean(rows, 1, True))
    less = (0 if bias else 1) if ddof is None else ddof
    total = matmul(apart, conj(matrix_transpose(apart)))
    out = div(total, float(rows.shape[1] - less)) if isinstance(rows.shape[1], int) else total
    return reshape(out, ()) if rows.shape[0] == 1 else out


def _variables(op: str, x: ArrayLike, rowvar: bool) -> Value:
    v = floating(as_value(x, op))
    if v.ndim > 2:
        raise ShapeError(f"{op}: {v.type} has {v.ndim} axes, expected variables and observations")
    if v.ndim < 2:
        return reshape(v, (1, v.type.size))
    return v if rowvar else matrix_transpose(v)


def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True) -> Value:
    """The correlations of variables, as cov takes them."""
    c = cov(x, y, rowvar)
    if c.ndim == 0:
        return div(c, c)
    n = c.shape[0]
    spread = sqrt(real(sum(where(_diagonal(n), c, 0), 1)))
    return div(
        c, mul(expand_dims(cast_to(spread, c.dtype), 1), expand_dims(cast_to(spread, c.dtype), 0))
    )


def _diagonal(n: Any) -> Value:
    return eq(iota((n, n), 0), iota((n, n), 1))


# Counting


@public
def bincount(x: ArrayLike, weights: ArrayLike | None = None, *, length: int) -> Value:
    """How often each of 0, 1, ..., length - 1 occurs, or the sums of the weights; other numbers are left out."""
    v = reshape(as_value(x, "bincount"), (-1,))
    if v.dtype.kind not in "iub":
        raise OperandError(f"bincount: x is {v.type}, expected integers")
    at = cast_to(v, i64)
    w = (
        full_of(v.shape, 1, i64)
        if weights is None
        else reshape(as_value(weights, "bincount"), (-1,))
    )
    at = where(lt(at, 0), length, at)
    return scatter_add.bind(full_of((length,), 0, w.dtype), w, at, axes=(0,))


@public
def digitize(x: ArrayLike, bins: ArrayLike, right: bool = False) -> Value:
    """The number of the bin of each element; bins are edges in ascending order."""
    return searchsorted(bins, x, "left" if right else "right")


@public
def histogram(
    x: ArrayLike, bins: Any = 10, range: tuple[float, float] | None = None,
    weights: ArrayLike | None = None, density: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """(counts, edges) of bins of equal width, or between given edges; the last bin has both of its edges."""
    v = reshape(floating(as_value(x, "histogram")), (-1,))
    edges = _edges(v, bins, range)
    count = edges.shape[0] - 1
    at = sub(searchsorted(edges, v, "right"), 1)
    at = where(eq(v, take(edges, count, 0)), count - 1, at)
    w = (
        full_of(v.shape, 1, i64)
        if weights is None
        else reshape(as_value(weights, "histogram"), (-1,))
    )
    inside = logical_and(ge(at, 0), lt(at, count))
    total = scatter_add.bind(full_of((count,), 0, w.dtype), w, where(inside, at, -1), axes=(0,))
    if not density:
        return total, edges
    mass = cast_to(total, edges.dtype)
    return div(mass, mul(sum(mass), _steps(edges))), edges


def _steps(edges: Value) -> Value:
    n = edges.shape[0]
    return sub(slice_(edges, (1,), (n,)), slice_(edges, (0,), (n - 1,)))


def _edges(v: Value, bins: Any, range: tuple[float, float] | None) -> Value:
    if not isinstance(bins, int):
        return cast_to(as_value(bins, "histogram"), v.dtype)
    if range is not None:
        low, high = (full_of((), float(e), v.dtype) for e in range)
    else:
        low, high = min(v), max(v)
        flat = eq(low, high)
        low, high = where(flat, sub(low, 0.5), low), where(flat, add(high, 0.5), high)
    share = div(cast_to(iota((bins + 1,), 0), v.dtype), float(bins))
    return add(low, mul(share, sub(high, low)))
