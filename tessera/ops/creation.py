"""Ops that make tensors from nothing: constants, fills, ranges."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.arrays import check_number
from tessera.core.dims import Dim, Size
from tessera.core.dtype import as_dtype, f32, i64
from tessera.core.errors import OperandError
from tessera.core.rounding import round_to
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value
from tessera.ir.graph.op import Sample
from tessera.ops.constrain import like
from tessera.ops.define import (
    ArrayLike,
    as_value,
    axis_of,
    broadcast,
    cast_to,
    define,
    public,
    shape_of,
)


@define(
    infer=lambda types, p: [TensorType(p["value"].dtype, p["value"].array.shape)],
    numpy=lambda value: value.array,
    moves=True,
    call="constant",
    makes="data",
    total=True,
    onnx="Constant",
)
def constant(x: ArrayLike) -> Value:
    """The given data."""
    return as_value(x)


@define(
    infer=lambda types, p: [TensorType(i64, ())],
    numpy=lambda size: np.asarray(size, np.int64),
    moves=True,
    call="dim",
    makes="size",
    total=True,
    samples=(Sample(size=3),),
)
def dim(size: Size) -> Value:
    """A size, possibly symbolic, as an i64 scalar."""
    return dim.bind(size=size)


def _full(shape: Any, value: Any, dtype: Any) -> Any:
    return np.broadcast_to(round_to(np.asarray(value), dtype), shape)


@define(
    infer=lambda types, p: [TensorType(p["dtype"], p["shape"])],
    numpy=_full,
    moves=True,
    call="full",
    makes="number",
    total=True,
    onnx="Expand",
    samples=(Sample((2, 3), 1.5), Sample((), 2), Sample((0, 2), True)),
)
def full(shape: Any, value: ArrayLike, dtype: Any = None) -> Value:
    """A tensor of this shape filled with one number, or with an array that is repeated along its axes."""
    sizes = shape_of("full", shape)
    if isinstance(value, Value | Dim) or (isinstance(value, np.ndarray) and value.size != 1):
        v = as_value(value)
        return broadcast(cast_to(v, as_dtype(dtype or v.dtype)), sizes)
    if isinstance(value, np.generic | np.ndarray):
        value = value.item()
    if not isinstance(value, bool | int | float | complex):
        raise OperandError(f"full: the value is {type(value).__name__}, expected one number")
    to = as_dtype(type(value) if dtype is None else dtype)
    check_number(value, to, "full")
    return full.bind(shape=sizes, value=value, dtype=to)


@define(
    infer=lambda types, p: [TensorType(p["dtype"], p["shape"])],
    numpy=lambda shape, axis, dtype: np.broadcast_to(
        np.arange(shape[axis]).astype(dtype.np).reshape([-1] + [1] * (len(shape) - axis - 1)), shape
    ),
    moves=True,
    call="iota",
    makes="index",
    total=True,
    samples=(Sample((2, 3), 1), Sample((0,), 0), Sample((4, 1), 0, dtype=f32)),
)
def iota(shape: Any, axis: int = 0, dtype: Any = i64) -> Value:
    """Each element's own index along an axis."""
    sizes = shape_of("iota", shape)
    return iota.bind(shape=sizes, axis=axis_of("iota", axis, len(sizes)), dtype=as_dtype(dtype))


def _sizes(op: str, shape: Any, dtype: Any) -> Any:
    """The shape; a number in the place of the dtype is a size that stands apart from the others."""
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        raise OperandError(
            f"{op}: the dtype is {dtype}, a number; write the sizes as one tuple, {op}(({shape}, {dtype}))"
        )
    return shape_of(op, shape)


@public
def zeros(shape: Any, dtype: Any = f32) -> Value:
    """A tensor of zeros."""
    return full(_sizes("zeros", shape, dtype), 0, dtype)


@public
def ones(shape: Any, dtype: Any = f32) -> Value:
    """A tensor of ones."""
    return full(_sizes("ones", shape, dtype), 1, dtype)


@public
def empty(shape: Any, dtype: Any = f32) -> Value:
    """A tensor whose elements carry no meaning (zeros, so that results stay reproducible)."""
    return full(_sizes("empty", shape, dtype), 0, dtype)


@public
def full_like(x: ArrayLike, value: ArrayLike, dtype: Any = None) -> Value:
    """A tensor of x's shape, and dtype unless given, filled with one number; on a mesh, in x's layout."""
    v = as_value(x)
    return like(full(v.shape, value, v.dtype if dtype is None else dtype), v)


@public
def zeros_like(x: ArrayLike, dtype: Any = None) -> Value:
    """A tensor of zeros of x's shape, and dtype unless given."""
    return full_like(x, 0, dtype)


@public
def ones_like(x: ArrayLike, dtype: Any = None) -> Value:
    """A tensor of ones of x's shape, and dtype unless given."""
    return full_like(x, 1, dtype)


@public
def empty_like(x: ArrayLike, dtype: Any = None) -> Value:
    """A tensor of x's shape whose elements carry no meaning."""
    return full_like(x, 0, dtype)
