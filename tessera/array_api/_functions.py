"""Functions whose arguments or dtypes in the standard differ from those of the op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import CopyError
from tessera.ir.graph.ir import Value, concrete
from tessera.lang import op
from tessera.ops.define import cast_to, public

Axes = int | tuple[int, ...] | None


def _to(x: Value, dtype: DType | None) -> Value:
    return x if dtype is None else cast_to(x, as_dtype(dtype))


@public
def sum(
    x: Value, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Value:
    """Sum over axes, in 64 bits for integers unless a dtype is given."""
    return _to(op.sum(_to(x, dtype), axis, keepdims), dtype)


@public
def prod(
    x: Value, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Value:
    """Product over axes, in 64 bits for integers unless a dtype is given."""
    return _to(op.prod(_to(x, dtype), axis, keepdims), dtype)


@public
def concat(arrays: Sequence[Value], /, *, axis: int | None = 0) -> Value:
    """Arrays joined along an axis; flattened first when the axis is None."""
    if axis is None:
        return op.concat([op.flatten(x) for x in arrays], 0)
    return op.concat(arrays, axis)


@public
def reshape(x: Value, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Value:
    """x in another shape.  Arrays are values: a write to one is never seen through another."""
    y = op.reshape(x, shape)
    if x.storage is None or y.storage is None:
        return y
    shared = np.may_share_memory(x.storage, y.storage)
    if copy is False and not shared and y.storage.size:
        raise CopyError(f"reshape: {x.type} to {list(shape)} needs a copy; pass copy=None")
    return concrete(y.storage.copy(), y.dtype, y.device) if copy and shared else y
