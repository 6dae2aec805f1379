"""Results whose size is data: places of nonzero elements, distinct elements; and membership.

How many there are is known only to a value that holds data, so these run at once and refuse traced
values; `nonzero` takes a size to work on those too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.errors import OperandError, TraceError
from tessera.ir.graph.ir import Value, host_data
from tessera.ir.graph.place import on_device
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, broadcast, full_of, meet, public, shape_of
from tessera.ops.elementwise import (
    bitwise_xor,
    eq,
    floor_divide,
    logical_and,
    logical_not,
    lt,
    ne,
    remainder,
    where,
)
from tessera.ops.gather import gather
from tessera.ops.reduction import sum as total
from tessera.ops.shape import pad, reshape, slice_
from tessera.ops.sorting import argsort, searchsorted, sort


def _data(op: str, x: Value, instead: str) -> Any:
    if x.storage is None:
        raise TraceError(
            f"{op}: {x.type} is traced, so the size of the result is not known; {instead}"
        )
    return host_data(x)


@public
def nonzero(x: ArrayLike, size: Any = None, fill: int = 0) -> tuple[Value, ...]:
    """Indices of the nonzero elements, a tensor per axis; cut or filled up to `size` when given."""
    v = as_value(x, "nonzero")
    if v.ndim == 0:
        raise OperandError(f"nonzero: {v.type} is a scalar and has no axes")
    if size is not None:
        return _nonzero_of_size(v, shape_of("nonzero", size)[0], fill)
    data = _data("nonzero", v, "give it with op.nonzero(x, size=...)")
    return tuple(on_device(i, i64, v.device) for i in np.nonzero(data))


def _nonzero_of_size(x: Value, size: Size, fill: int) -> tuple[Value, ...]:
    """Nonzero elements first, in order, by a stable sort."""
    n = x.type.size
    hit = reshape(x if x.dtype.kind == "b" else ne(x, 0), (n,))
    longer = pad(argsort(logical_not(hit)), ((0, size),))
    flat = slice_(longer, (0,), (size,))
    known = lt(iota((size,)), total(hit))
    out: list[Value] = []
    for m in x.shape[::-1]:
        at = full_of((size,), 0, i64) if m == 0 else remainder(flat, m)
        out.append(where(known, at, fill))
        flat = flat if m == 0 else floor_divide(flat, m)
    return tuple(out[::-1])


class UniqueAll(NamedTuple):
    """Distinct elements in ascending order, and how they lie in x."""

    values: Value
    indices: Value  # of the first occurrence in the flat x
    inverse_indices: Value  # values[inverse_indices] is x
    counts: Value


class UniqueCounts(NamedTuple):
    """Distinct elements in ascending order, and how often each occurs."""

    values: Value
    counts: Value


class UniqueInverse(NamedTuple):
    """Distinct elements in ascending order, and the place of each element of x among them."""

    values: Value
    inverse_indices: Value


@public
def unique_all(x: ArrayLike) -> UniqueAll:
    """Distinct elements, their first places, the way back to x, and counts; each NaN is distinct."""
    v = as_value(x, "unique_all")
    data = _data("unique_all", v, "call it outside jit")
    values, first, inverse, counts = np.unique(
        data.astype(v.dtype.compute.np).reshape(-1),
        return_index=True, return_inverse=True, return_counts=True, equal_nan=False,
    )  # fmt: skip
    places = [on_device(a, i64, v.device) for a in (first, inverse.reshape(data.shape), counts)]
    return UniqueAll(on_device(values, v.dtype, v.device), *places)


@public
def unique_counts(x: ArrayLike) -> UniqueCounts:
    """Distinct elements and how often each occurs; each NaN is distinct."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


@public
def unique_inverse(x: ArrayLike) -> UniqueInverse:
    """Distinct elements and the place of each element of x among them; each NaN is distinct."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


@public
def unique_values(x: ArrayLike) -> Value:
    """Distinct elements in ascending order; each NaN is distinct."""
    return unique_all(x).values


@public
def unique(x: ArrayLike) -> Value:
    """Distinct elements in ascending order; each NaN is distinct."""
    return unique_all(x).values


@public
def isin(x: ArrayLike, among: ArrayLike, *, invert: bool = False) -> Value:
    """Whether each element of x equals one of the others."""
    v, w = as_value(x, "isin"), as_value(among, "isin")
    if w.type.size == 0:
        return full_of(v.shape, bool(invert), eq(v, v).dtype)
    ordered = sort(reshape(w, (w.type.size,)))
    place = searchsorted(ordered, v)
    found, v = meet("isin", (gather.bind(ordered, place, axes=(0,)), v))
    inside = logical_and(lt(place, w.type.size), eq(found, v))
    return bitwise_xor(inside, broadcast(as_value(True), v.shape)) if invert else inside
