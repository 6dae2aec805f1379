"""Results whose size is data: places of nonzero elements, distinct elements; and membership.

How many there are is known only to a value that holds data, so these run at once and refuse traced
values; `nonzero` takes a size to work on those too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tessera.core.device import GPUS
from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.errors import OperandError, TraceError
from tessera.ir.graph.ir import Value, eagerly, host_data
from tessera.ir.graph.place import on_device
from tessera.ops.accumulate import cumsum
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    full_of,
    meet,
    public,
    shape_of,
)
from tessera.ops.elementwise import (
    add,
    bitwise_xor,
    eq,
    floor_divide,
    logical_and,
    logical_not,
    logical_or,
    lt,
    maximum,
    minimum,
    ne,
    remainder,
    sub,
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
    if _is_far(v):
        with eagerly():  # also of what a trace closes over
            return _nonzero_far(v)
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
    if _is_far(v):
        with eagerly():
            return _unique_far(v)
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
    v = as_value(x, "unique_values")
    if _is_far(v):
        with eagerly():
            ordered = sort(reshape(v, (v.type.size,)))
            runs = _Runs(ordered)
            return runs.cut(gather.bind(ordered, runs.first, axes=(0,)))
    return unique_all(v).values


@public
def unique(x: ArrayLike) -> Value:
    """Distinct elements in ascending order; each NaN is distinct."""
    return unique_values(x)


# Where x lies on a GPU, kernels find what there is, as if all elements were distinct: no size of theirs is
# data, and the host reads one number, by which the results are cut.


def _is_far(x: Value) -> bool:
    """Whether a tensor with data and elements that have an order lies on a GPU."""
    return (
        x.storage is not None and x.device.kind in GPUS and x.dtype.kind != "c" and x.type.size != 0
    )


def _places(x: Value) -> Value:
    """The number of each element of a line, made where the line lies."""
    return sub(cumsum(cast_to(logical_or(eq(x, x), True), i64)), 1)


class _Runs:
    """The runs of equal elements of an ordered line."""

    def __init__(self, ordered: Value):
        here = self.here = _places(ordered)
        before = gather.bind(ordered, maximum(sub(here, 1), 0), axes=(0,))
        fresh = logical_or(eq(here, 0), ne(ordered, before))
        self.run = sub(cumsum(cast_to(fresh, i64)), 1)  # of each element
        self.first = minimum(searchsorted(self.run, here), ordered.type.size - 1)
        n = ordered.type.size
        self.count = int(host_data(slice_(self.run, (n - 1,), (n,)))[0]) + 1

    def cut(self, x: Value) -> Value:
        """What a line has for each run."""
        return slice_(x, (0,), (self.count,))


def _unique_far(x: Value) -> UniqueAll:
    flat = reshape(x, (x.type.size,))
    order = argsort(flat)
    runs = _Runs(gather.bind(flat, order, axes=(0,)))
    first = gather.bind(order, runs.first, axes=(0,))
    lengths = sub(searchsorted(runs.run, runs.here, side="right"), runs.first)
    back = gather.bind(runs.run, argsort(order), axes=(0,))
    return UniqueAll(
        runs.cut(gather.bind(flat, first, axes=(0,))), runs.cut(first), reshape(back, x.shape),
        runs.cut(lengths),
    )  # fmt: skip


def _nonzero_far(x: Value) -> tuple[Value, ...]:
    n = x.type.size
    hit = reshape(x if x.dtype.kind == "b" else ne(x, 0), (n,))
    known = cumsum(cast_to(hit, i64))  # of the elements up to each one
    count = int(host_data(slice_(known, (n - 1,), (n,)))[0])
    flat = searchsorted(known, add(_places(hit), 1))
    out: list[Value] = []
    for m in x.shape[:0:-1]:
        out.append(remainder(flat, m))
        flat = floor_divide(flat, m)
    # Cut last: a kernel for each number of elements would have to be built.
    return tuple(slice_(i, (0,), (count,)) for i in (flat, *out[::-1]))


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
