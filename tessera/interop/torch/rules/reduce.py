"""Reductions over axes, and running ones along an axis."""

from __future__ import annotations

import math
from typing import Any

from tessera.core.dims import product
from tessera.core.dtype import bool_, i64
from tessera.interop.torch.rule import (
    AtenCall,
    NoRuleError,
    as_dtype,
    axes_of,
    axis_of,
    number,
    rule,
    wide,
)
from tessera.lang import op


def _reduced(f: Any, x: Any, dims: Any, keep: bool) -> Any:
    """f over dims; a tensor without axes has one for this."""
    return (
        f(x, axis=axes_of(dims, x.ndim), keepdims=keep)
        if x.ndim
        else op.reshape(f(op.reshape(x, (1,))), ())
    )


@rule("sum", "sum.dim_IntList", "nansum")
def _sum(n: AtenCall, x: Any, dims: Any = None, keep: bool = False, dtype: Any = None) -> Any:
    x = as_dtype(x, wide(n.dtype))
    if n.target.startswith("aten.nansum") and x.dtype.kind == "f":
        x = op.where(op.isnan(x), number(0, x.dtype), x)
    return as_dtype(_reduced(op.sum, x, dims, keep), n.dtype)


@rule("mean", "mean.dim")
def _mean(n: AtenCall, x: Any, dims: Any = None, keep: bool = False, dtype: Any = None) -> Any:
    return as_dtype(_reduced(op.mean, as_dtype(x, wide(n.dtype)), dims, keep), n.dtype)


@rule("prod", "prod.dim_int")
def _prod(n: AtenCall, x: Any, dims: Any = None, keep: bool = False, dtype: Any = None) -> Any:
    return as_dtype(_reduced(op.prod, as_dtype(x, wide(n.dtype)), dims, keep), n.dtype)


@rule("any", "any.dim", "any.dims")
def _any(n: AtenCall, x: Any, dims: Any = None, keep: bool = False) -> Any:
    return as_dtype(_reduced(op.any, as_dtype(x, bool_), dims, keep), n.dtype)


@rule("all", "all.dim", "all.dims")
def _all(n: AtenCall, x: Any, dims: Any = None, keep: bool = False) -> Any:
    return as_dtype(_reduced(op.all, as_dtype(x, bool_), dims, keep), n.dtype)


@rule("amax", "max")
def _amax(n: AtenCall, x: Any, dims: Any = None, keep: bool = False) -> Any:
    return _extreme(op.max, op.any, x, dims, keep)


@rule("amin", "min")
def _amin(n: AtenCall, x: Any, dims: Any = None, keep: bool = False) -> Any:
    return _extreme(op.min, op.all, x, dims, keep)


def _extreme(f: Any, logic: Any, x: Any, dims: Any, keep: bool) -> Any:
    return _reduced(logic if x.dtype is bool_ else f, x, dims, keep)


@rule("max.dim")
def _max_dim(n: AtenCall, x: Any, dim: int, keep: bool = False) -> Any:
    return _with_place(op.argmax, x, dim, keep)


@rule("min.dim")
def _min_dim(n: AtenCall, x: Any, dim: int, keep: bool = False) -> Any:
    return _with_place(op.argmin, x, dim, keep)


def _with_place(f: Any, x: Any, dim: int, keep: bool) -> Any:
    """The extreme along a dim and where it is."""
    if not x.ndim:
        return x, op.zeros((), i64)
    at = _place(f, x, dim, True)
    best = op.take_along_axis(x, at, axis_of(dim, x.ndim))
    if keep:
        return best, at
    return op.squeeze(best, axis_of(dim, x.ndim)), op.squeeze(at, axis_of(dim, x.ndim))


def _place(f: Any, x: Any, dim: int | None, keep: bool) -> Any:
    x = op.cast(x, i64) if x.dtype is bool_ else x
    return f(x, axis=None if dim is None else axis_of(dim, x.ndim), keepdims=keep)


@rule("argmax")
def _argmax(n: AtenCall, x: Any, dim: int | None = None, keep: bool = False) -> Any:
    return _place(op.argmax, x, dim, keep) if x.ndim else op.zeros((), i64)


@rule("argmin")
def _argmin(n: AtenCall, x: Any, dim: int | None = None, keep: bool = False) -> Any:
    return _place(op.argmin, x, dim, keep) if x.ndim else op.zeros((), i64)


def _moments(n: AtenCall, x: Any, dims: Any, correction: Any, keep: bool) -> tuple[Any, Any]:
    if x.dtype.kind == "c":
        raise NoRuleError("variances of complex numbers")
    correction = 1 if correction is None else correction
    x = as_dtype(x, wide(n.dtype)) if x.ndim else op.reshape(x, (1,))
    axes = axes_of(dims, x.ndim) if n.shapes[0] or keep or x.ndim else (0,)
    mean = op.mean(x, axis=axes, keepdims=True)
    squares = op.sum(op.square(op.sub(x, mean)), axis=axes, keepdims=True)
    count = product(tuple(x.shape[a] for a in axes))
    left = count - correction
    divisor = max(left, 0) if isinstance(left, int | float) else left
    var = op.div(
        squares, as_dtype(divisor if not isinstance(divisor, int) else float(divisor), x.dtype)
    )
    return (var, mean) if keep else (op.squeeze(var, axes), op.squeeze(mean, axes))


@rule("var", "var.dim", "var.correction", "std.correction", "std", "std.dim")
def _var(
    n: AtenCall,
    x: Any,
    dims: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    correction: Any = 1,
) -> Any:
    if isinstance(dims, bool):
        dims, unbiased = None, dims
    correction = correction if unbiased is None else int(unbiased)
    var, _ = _moments(n, x, dims, correction, keepdim)
    return as_dtype(op.sqrt(var) if "std" in n.target else var, n.dtype)


@rule("var_mean.correction")
def _var_mean(
    n: AtenCall, x: Any, dims: Any = None, correction: Any = 1, keepdim: bool = False
) -> Any:
    var, mean = _moments(n, x, dims, correction, keepdim)
    return as_dtype(var, n.dtype), as_dtype(mean, n.dtype)


@rule("logsumexp")
def _logsumexp(n: AtenCall, x: Any, dims: Any, keep: bool = False) -> Any:
    return as_dtype(_reduced(op.logsumexp, as_dtype(x, n.dtype), dims, keep), n.dtype)


@rule("linalg_vector_norm")
def _vector_norm(
    n: AtenCall, x: Any, order: Any = 2, dims: Any = None, keep: bool = False, dtype: Any = None
) -> Any:
    if x.dtype.kind == "c":
        x = op.abs(x)
    x = as_dtype(x, wide(n.dtype))
    if not x.ndim:
        return as_dtype(op.abs(x) if order else op.cast(op.ne(x, 0), n.dtype), n.dtype)
    axes = axes_of(dims, x.ndim)
    return as_dtype(_norm(op.abs(x), order, axes, keep), n.dtype)


def _norm(x: Any, order: Any, axes: Any, keep: bool) -> Any:
    if order == 0:
        return op.sum(op.cast(op.ne(x, 0), x.dtype), axis=axes, keepdims=keep)
    if abs(order) == math.inf:
        return (op.max if order > 0 else op.min)(x, axis=axes, keepdims=keep)
    if order == 1:
        return op.sum(x, axis=axes, keepdims=keep)
    if order == 2:
        return op.sqrt(op.sum(op.square(x), axis=axes, keepdims=keep))
    power = op.sum(op.pow(x, number(order, x.dtype)), axis=axes, keepdims=keep)
    return op.pow(power, number(1 / order, x.dtype))


@rule("cumsum")
def _cumsum(n: AtenCall, x: Any, dim: int, dtype: Any = None) -> Any:
    return _running(op.cumsum, n, x, dim)


@rule("cumprod")
def _cumprod(n: AtenCall, x: Any, dim: int, dtype: Any = None) -> Any:
    return _running(op.cumprod, n, x, dim)


@rule("logcumsumexp")
def _logcumsumexp(n: AtenCall, x: Any, dim: int) -> Any:
    return _running(op.logcumsumexp, n, x, dim)


@rule("cummax")
def _cummax(n: AtenCall, x: Any, dim: int) -> Any:
    return _running_extreme(op.cummax, x, dim)


@rule("cummin")
def _cummin(n: AtenCall, x: Any, dim: int) -> Any:
    return _running_extreme(op.cummin, x, dim)


def _running_extreme(f: Any, x: Any, dim: int) -> Any:
    """The running extreme, and the last place so far that is equal to it."""
    if not x.ndim:
        return x, op.zeros((), i64)
    dim = axis_of(dim, x.ndim)
    best = op.cast(f(op.cast(x, i64), axis=dim), bool_) if x.dtype is bool_ else f(x, axis=dim)
    is_new = op.eq(x, best)
    if x.dtype.kind == "f":
        is_new = op.logical_or(is_new, op.isnan(x))
    places = op.where(is_new, op.iota(tuple(x.shape), dim), number(0, i64))
    return best, op.cummax(places, axis=dim)


def _running(f: Any, n: AtenCall, x: Any, dim: int) -> Any:
    x = as_dtype(x, wide(n.dtype))
    return as_dtype(
        f(x, axis=axis_of(dim, x.ndim)) if x.ndim else op.reshape(f(op.reshape(x, (1,)), 0), ()),
        n.dtype,
    )


@rule("sort", "sort.stable")
def _sort(
    n: AtenCall, x: Any, *given: Any, stable: Any = None, dim: int = -1, descending: bool = False
) -> Any:
    numbers = [g for g in given if g is not None]
    if (
        n.target == "aten.sort.stable"
        and given
        and (given[0] is None or isinstance(given[0], bool))
    ):
        numbers = list(given[1:])
    dim = numbers[0] if numbers else dim
    descending = numbers[1] if len(numbers) > 1 else descending
    if not x.ndim:
        return x, op.zeros((), i64)
    whole = op.cast(x, i64) if x.dtype is bool_ else x
    at = op.argsort(whole, axis=axis_of(dim, x.ndim), descending=bool(descending))
    return op.take_along_axis(x, at, axis_of(dim, x.ndim)), at


@rule("topk")
def _topk(
    n: AtenCall, x: Any, k: Any, dim: int = -1, largest: bool = True, in_order: bool = True
) -> Any:
    if not x.ndim:
        return x, op.zeros((), i64)
    values, at = op.topk(x, k, axis=axis_of(dim, x.ndim), largest=largest)
    return values, op.cast(at, i64)
