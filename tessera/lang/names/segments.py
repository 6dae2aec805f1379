"""Folds by segment, as in jax.ops: row i of x belongs to segment ids[i]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.dtype import i64
from tessera.core.errors import DTypeError, OperandError
from tessera.ir.graph.ir import Value
from tessera.ops.define import ArrayLike, as_value, cast_to, floating, full_of, public
from tessera.ops.elementwise import div, lt, where
from tessera.ops.gather import scatter_add, scatter_max, scatter_min, scatter_mul
from tessera.ops.shape import reshape


def _segments(
    op: str, write: Any, start: Callable[[Value], Any], x: ArrayLike, ids: ArrayLike, count: int
) -> Value:
    v, k = as_value(x, op), as_value(ids, op)
    if k.dtype.kind not in "iu" or k.ndim != 1:
        raise OperandError(f"{op}: the segments are {k.type}, expected a vector of integers")
    at = cast_to(k, i64)
    at = where(lt(at, 0), count, at)  # left out
    empty = full_of((count, *v.shape[1:]), start(v), v.dtype)
    made: Value = write.bind(empty, v, at, axes=(0,))
    return made


def _edge(low: bool) -> Callable[[Value], Any]:
    def of(v: Value) -> Any:
        if v.dtype.kind == "c":
            name = "segment_max" if low else "segment_min"
            raise DTypeError(f"{name}: x is {v.type}, expected real numbers")
        if v.dtype.kind == "f":
            return float("-inf") if low else float("inf")
        if v.dtype.kind == "b":
            return not low
        least = -(1 << (v.dtype.bits - 1)) if v.dtype.kind == "i" else 0
        return least if low else least + (1 << v.dtype.bits) - 1

    return of


@public
def segment_sum(x: ArrayLike, ids: ArrayLike, *, count: int) -> Value:
    """The sums of the rows of x by segment: row i belongs to segment ids[i] of count."""
    return _segments("segment_sum", scatter_add, lambda v: 0, x, ids, count)


@public
def segment_prod(x: ArrayLike, ids: ArrayLike, *, count: int) -> Value:
    """The products of the rows of x by segment."""
    return _segments("segment_prod", scatter_mul, lambda v: 1, x, ids, count)


@public
def segment_max(x: ArrayLike, ids: ArrayLike, *, count: int) -> Value:
    """The largest elements of the rows of x by segment; the least number where a segment is empty."""
    return _segments("segment_max", scatter_max, _edge(True), x, ids, count)


@public
def segment_min(x: ArrayLike, ids: ArrayLike, *, count: int) -> Value:
    """The smallest elements of the rows of x by segment; the largest number where a segment is empty."""
    return _segments("segment_min", scatter_min, _edge(False), x, ids, count)


_FOLDS = {"sum": segment_sum, "prod": segment_prod, "max": segment_max, "min": segment_min}


@public
def segment_reduce(x: ArrayLike, ids: ArrayLike, *, count: int, reduction: str = "sum") -> Value:
    """Fold the rows of x by segment: sum, prod, max, min, or mean, which is 0 where a segment is empty."""
    if reduction in _FOLDS:
        return _FOLDS[reduction](x, ids, count=count)
    if reduction != "mean":
        known = ", ".join([*_FOLDS, "mean"])
        raise OperandError(f"segment_reduce: reduction is {reduction!r}, expected one of {known}")
    v = floating(as_value(x, "segment_reduce"))
    k = as_value(ids, "segment_reduce")
    total = segment_sum(v, k, count=count)
    rows = segment_sum(full_of((v.shape[0],), 1, v.dtype), k, count=count)
    rows = where(lt(rows, 1), full_of((), 1, v.dtype), rows)
    return div(total, reshape(rows, (count, *(1 for _ in v.shape[1:]))))
