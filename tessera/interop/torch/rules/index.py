"""Reading and writing at indices that are data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dtype import DType, bool_, i64
from tessera.interop.torch.rule import AtenCall, NoRuleError, as_dtype, axis_of, number, rule
from tessera.lang import op


def _wrapped(index: Any, size: Any) -> Any:
    """Indices counted from the front."""
    index = op.cast(index, i64) if index.dtype is not i64 else index
    return op.where(op.lt(index, 0), op.add(index, size), index)


def _key(x: Any, indices: Any) -> tuple[Any, ...]:
    key = []
    for i in indices:
        if i is not None and i.dtype is bool_:
            raise NoRuleError("a mask as an index gives a shape that data decides")
        key.append(slice(None) if i is None else op.cast(i, i64))
    return tuple(key)


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(n: AtenCall, x: Any, indices: Any) -> Any:
    key = _key(x, indices)
    return op.index(x, key) if any(not isinstance(k, slice) for k in key) else x


@rule("index_put", "_unsafe_index_put", "_index_put_impl")
def _index_put(
    n: AtenCall, x: Any, indices: Any, value: Any, accumulate: bool = False, *_: Any
) -> Any:
    mask = indices[0] if len(indices) == 1 else None
    if mask is not None and mask.dtype is bool_:
        return _masked_put(x, mask, as_dtype(value, x.dtype), accumulate)
    return op.update(x, _key(x, indices), as_dtype(value, x.dtype), "add" if accumulate else "set")


def _masked_put(x: Any, mask: Any, value: Any, accumulate: bool) -> Any:
    """Values in order where a mask holds: the place of each among them is a running count."""
    rest = tuple(x.shape[mask.ndim :])
    if value.ndim > len(rest) and value.shape[0] == 0:
        return x
    if value.ndim > len(rest) and value.shape[0] != 1:
        place = op.sub(op.cumsum(op.cast(op.reshape(mask, (-1,)), i64), 0), 1)
        value = op.take(value, op.clip(place, 0, value.shape[0] - 1), 0)
        value = op.reshape(value, (*mask.shape, *value.shape[1:]))
    elif value.ndim > len(rest):
        value = op.reshape(value, tuple(value.shape[1:]))
    value = op.broadcast_to(value, x.shape)
    mask = op.reshape(mask, tuple(mask.shape) + (1,) * len(rest))
    return op.where(mask, op.add(x, value) if accumulate else value, x)


@rule("index_select")
def _index_select(n: AtenCall, x: Any, dim: int, index: Any) -> Any:
    if not x.ndim:
        return op.take(op.reshape(x, (1,)), op.reshape(index, ()), 0)
    return op.take(x, op.reshape(index, (-1,)), axis_of(dim, x.ndim))


@rule("embedding")
def _embedding(n: AtenCall, table: Any, index: Any, *_: Any, **__: Any) -> Any:
    return op.take(table, op.cast(index, i64), 0)


@rule("embedding_dense_backward")
def _embedding_backward(
    n: AtenCall, ct: Any, index: Any, rows: Any, padding: int, scale: bool
) -> Any:
    if scale:
        raise NoRuleError("scale_grad_by_freq")
    flat = op.reshape(op.cast(index, i64), (-1,))
    cts = op.reshape(ct, (-1, ct.shape[-1]))
    if padding >= 0:
        kept = op.ne(flat, padding)
        cts = op.where(op.expand_dims(kept, -1), cts, number(0, ct.dtype))
    return op.scatter_add(op.zeros((rows, ct.shape[-1]), ct.dtype), cts, flat, axes=(0,))


def _places(x: Any, index: Any, dim: int) -> list[Any]:
    """One index tensor for each axis of x, for indices along one of them."""
    shape = tuple(index.shape)
    index = _wrapped(index, x.shape[dim])
    return [index if k == dim else op.iota(shape, k) for k in range(x.ndim)]


@rule("gather")
def _gather(n: AtenCall, x: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    if not x.ndim:
        return op.broadcast_to(x, index.shape)
    if not index.ndim:
        return op.reshape(_gather(n, x, dim, op.reshape(index, (1,))), ())
    dim = axis_of(dim, x.ndim)
    if all(a == b for k, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if k != dim):
        return op.take_along_axis(x, _wrapped(index, x.shape[dim]), dim)
    return op.gather(x, *_places(x, index, dim))


_HOW = {
    "sum": op.scatter_add, "add": op.scatter_add, "prod": op.scatter_mul, "multiply": op.scatter_mul,
    "amax": op.scatter_max, "amin": op.scatter_min, None: op.scatter,
}  # fmt: skip


def _scattered(x: Any, dim: int, index: Any, src: Any, how: str | None) -> Any:
    if not index.ndim and x.ndim:
        index, src = op.reshape(index, (1,)), op.reshape(src, (1,)) if not src.ndim else src
    if not x.ndim:
        y = _scattered(
            op.reshape(x, (1,)), 0, op.reshape(index, (-1,)), op.reshape(src, (-1,)), how
        )
        return op.reshape(y, ())
    cut = tuple(slice(0, s) for s in index.shape)
    part = op.index(src, cut) if src.ndim and tuple(src.shape) != tuple(index.shape) else src
    part = op.broadcast_to(as_dtype(part, x.dtype), index.shape)
    return _HOW[how](x, part, *_places(x, index, axis_of(dim, x.ndim)))


@rule("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")
def _scatter(n: AtenCall, x: Any, dim: int, index: Any, src: Any, reduce: str | None = None) -> Any:
    return _scattered(x, dim, index, as_dtype(src, x.dtype), reduce)


@rule("scatter_add")
def _scatter_add(n: AtenCall, x: Any, dim: int, index: Any, src: Any) -> Any:
    return _scattered(x, dim, index, src, "sum")


@rule("scatter_reduce.two")
def _scatter_reduce(
    n: AtenCall, x: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    if x.dtype.kind not in "fiu":
        raise NoRuleError(f"reduce={reduce!r} of {x.dtype}")
    if reduce == "mean":
        return _scattered_mean(x, dim, index, src, include_self)
    if not include_self:
        x = _scattered(x, dim, index, number(_identity(reduce, x.dtype), x.dtype), None)
    return _scattered(x, dim, index, src, reduce)


def _scattered_mean(x: Any, dim: int, index: Any, src: Any, include_self: bool) -> Any:
    """Sums over how many there are; a place that nothing goes to stays as it is."""
    one, zero = number(1, x.dtype), number(0, x.dtype)
    ones = op.broadcast_to(one, index.shape)
    count = _scattered(op.broadcast_to(zero, x.shape), dim, index, ones, "sum")
    own = x if include_self else op.where(op.eq(count, zero), x, zero)
    total = _scattered(own, dim, index, src, "sum")
    count = op.add(count, one) if include_self else op.maximum(count, one)
    return op.div(total, count) if x.dtype.kind == "f" else op.floor_divide(total, count)


def _identity(reduce: str, dtype: DType) -> Any:
    """What a reduction starts from."""
    if reduce in ("sum", "prod"):
        return int(reduce == "prod")
    if dtype.kind == "f":
        return math.inf if reduce == "amin" else -math.inf
    info = np.iinfo(dtype.np)
    return int(info.max if reduce == "amin" else info.min)


@rule("index_add")
def _index_add(n: AtenCall, x: Any, dim: int, index: Any, src: Any, alpha: Any = 1) -> Any:
    src = op.mul(as_dtype(src, x.dtype), as_dtype(alpha, x.dtype)) if alpha != 1 else src
    return _along(x, dim, index, src, op.scatter_add)


@rule("index_copy")
def _index_copy(n: AtenCall, x: Any, dim: int, index: Any, src: Any) -> Any:
    return _along(x, dim, index, src, op.scatter)


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(n: AtenCall, x: Any, dim: int, index: Any, value: Any) -> Any:
    if not x.ndim:
        return as_dtype(value, x.dtype)
    dim, index = axis_of(dim, x.ndim), op.reshape(index, (-1,))
    shape = tuple(index.shape[0] if k == dim else s for k, s in enumerate(x.shape))
    return _along(x, dim, index, op.broadcast_to(as_dtype(value, x.dtype), shape), op.scatter)


def _along(x: Any, dim: int, index: Any, src: Any, how: Any) -> Any:
    """Whole slices written at indices along an axis."""
    if not x.ndim:
        y = _along(op.reshape(x, (1,)), 0, index, op.reshape(src, (-1,)), how)
        return op.reshape(y, ())
    dim = axis_of(dim, x.ndim)
    at = _wrapped(op.reshape(index, (-1,)), x.shape[dim])
    rows = op.moveaxis(src, dim, 0) if src.ndim else op.reshape(src, (1,))
    return op.moveaxis(how(op.moveaxis(x, dim, 0), as_dtype(rows, x.dtype), at, axes=(0,)), 0, dim)


@rule("take")
def _take(n: AtenCall, x: Any, index: Any) -> Any:
    flat = op.reshape(x, (-1,))
    return op.take(flat, _wrapped(index, flat.shape[0]), 0)


@rule("searchsorted.Tensor", "bucketize.Tensor")
def _searchsorted(n: AtenCall, edges: Any, x: Any, **named: Any) -> Any:
    if n.target.startswith("aten.bucketize"):
        edges, x = x, edges
    side, sorter = named.get("side"), named.get("sorter")
    if edges.ndim != 1 or sorter is not None:
        raise NoRuleError("rows of edges")
    right = bool(named.get("right", False)) or side == "right"
    return as_dtype(op.searchsorted(edges, x, side="right" if right else "left"), n.dtype)


@rule("masked_scatter")
def _masked_scatter(n: AtenCall, x: Any, mask: Any, src: Any) -> Any:
    """The elements of src, in order, where a mask holds."""
    x, mask = op.broadcast_arrays(x, mask)
    flat = op.reshape(mask, (-1,))
    at = op.sub(op.cumsum(op.cast(flat, i64), 0), 1)
    taken = op.take(op.reshape(src, (-1,)), op.maximum(at, 0), 0)
    return op.where(mask, op.reshape(taken, x.shape), x)


@rule("isin.Tensor_Tensor")
def _isin(
    n: AtenCall, x: Any, among: Any, *, assume_unique: bool = False, invert: bool = False
) -> Any:
    return op.isin(x, among, invert=invert)
