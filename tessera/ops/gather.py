"""Reading and writing elements whose place is data: gather and scatter.

An index outside its axis reads the nearest element and writes nothing, on every target; the derivatives are
those of that.  The functions that users call with data at hand (x[i], take, ...) raise instead
(ops/places.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.arrays import check_number
from tessera.core.constraints import unify
from tessera.core.dims import Size
from tessera.core.dtype import i64
from tessera.core.errors import AxisError, DTypeError, ShapeError
from tessera.core.scalar import is_winner, with_zeros
from tessera.core.signature import broadcast_shapes
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Element, Index, Op, Params, Sample, Types, register
from tessera.ops.batching import Mask, all_in_front, batch_size, in_front, to_front
from tessera.ops.creation import iota
from tessera.ops.cutting import scattered
from tessera.ops.define import (
    ArrayLike,
    OpFunction,
    as_value,
    as_value_of,
    axes_of,
    axis_of,
    broadcast,
    cast_to,
    define,
    full_of,
    public,
    publish,
)
from tessera.ops.elementwise import (
    div,
    eq,
    mul,
    where,
)
from tessera.ops.places import in_bounds, inside, nearest
from tessera.ops.shape import reshape, transpose

Tangents = Sequence[Value | None]
INDEX_KINDS = ("buifc", "iu")


def together(op: str, indices: Sequence[Value]) -> list[Value]:
    """Index tensors broadcast to one shape."""
    if len(indices) == 1:
        return list(indices)
    shape = broadcast_shapes(op, [v.type for v in indices])
    return [broadcast(v, shape) for v in indices]


def _settle(
    op: str, x: Value, indices: Sequence[ArrayLike], axes: Sequence[int] | None
) -> tuple[list[Value], tuple[int, ...]]:
    where_ = axes_of(op, tuple(range(len(indices))) if axes is None else tuple(axes), x.ndim)
    if not indices or len(indices) != len(where_):
        raise ShapeError(f"{op}: {len(indices)} indices for axes {where_}, expected one for each")
    found = [in_bounds(op, as_value(i, op), x, a) for i, a in zip(indices, where_, strict=True)]
    return together(op, found), where_


def _picked(op: str, x: TensorType, indices: Types, axes: Sequence[int]) -> tuple[Size, ...]:
    """The shape of x's elements at the indices: the shape of the indices, then the other axes."""
    first = indices[0]
    for i, t in enumerate(indices):
        if t.rank != first.rank or not all(
            unify(m, n, f"{op}: the shapes of the indices")
            for m, n in zip(first.shape, t.shape, strict=True)
        ):
            raise ShapeError(f"{op}: index {i} is {t}, expected the shape of index 0 {first}")
    for a in axes:
        if x.shape[a] == 0 and first.size != 0:
            raise AxisError(f"{op}: axis {a} of {x} is empty, so no index {first} fits it")
    return (*first.shape, *(n for i, n in enumerate(x.shape) if i not in axes))


def _written(x: Any, value: Any, indices: Sequence[Any], axes: Sequence[int]) -> Any:
    """x with the indexed axes in front; the indices that are in them, and the values for these."""
    front = np.moveaxis(x, axes, range(len(axes)))
    ok = np.ones(np.shape(indices[0]), bool)
    for i, n in zip(indices, front.shape, strict=False):
        ok &= (i >= 0) & (i < n)
    if ok.all():
        return front, tuple(indices), value
    return front, tuple(np.asarray(i)[ok] for i in indices), np.asarray(value)[ok]


def _batch_places(
    x: Value, indices: Sequence[Value], batched: Mask, axes: Sequence[int]
) -> tuple[list[Value], tuple[int, ...]]:
    """Indices into a batched x: those given, after the element of the batch itself."""
    found = [in_front(i, b, x.shape[0]) for i, b in zip(indices, batched, strict=True)]
    return [iota(found[0].shape, 0), *found], (0, *(a + 1 for a in axes))


def _gather_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    (x, *indices), axes = operands, n.params["axes"]
    if not any(batched[1:]):
        y = gather.bind(x, *indices, axes=tuple(a + 1 for a in axes))
        return to_front(y, indices[0].ndim)
    if not batched[0]:
        return gather.bind(x, *all_in_front(indices, batched[1:]), axes=axes)
    places, where_ = _batch_places(x, indices, batched[1:], axes)
    return gather.bind(x, *places, axes=where_)


def _gather(x: Any, *indices: Any, axes: tuple[int, ...]) -> Any:
    if axes == (0,):
        return x.take(indices[0], axis=0, mode="clip")
    front = np.moveaxis(x, axes, range(len(axes)))
    near = zip(indices, front.shape, strict=False)
    return front[tuple(np.maximum(np.minimum(i, n - 1), 0) for i, n in near)]


def _gather_places(index: Index, types: Types, p: Params) -> Index:
    """The axes of the indices come first, then those of x that are left."""
    axes, x = p["axes"], types[0]
    here, rest = index[: types[1].rank], iter(index[types[1].rank :])
    return tuple(
        Element(1 + axes.index(a), here, n - 1) if a in axes else next(rest)
        for a, n in enumerate(x.shape)
    )


@define(
    infer=lambda types, p: [
        types[0].with_shape(_picked("gather", types[0], types[1:], p["axes"]))
    ],
    pick=_gather_places, moves=True, kinds=INDEX_KINDS, numpy=_gather, linear=(0,), onnx="GatherND",
    batch=_gather_batch,
    transpose=lambda n, ct, k: scatter_add.bind(
        full_of(n.operands[0].shape, 0, ct.dtype), ct,
        *nearest(n.operands[1:], n.operands[0], n.params["axes"]), axes=n.params["axes"],
    ),
    samples=(
        Sample((5,), np.array([4, 0, 4])), Sample((3, 4), np.array([[2, -1], [0, 0]])),
        Sample((3, 4, 2), np.array([1, 2]), np.array([[0], [3]]), axes=(0, 1)),
        Sample((2, 4), np.array(3), axes=(1,)), Sample((0, 2), np.zeros((0,), int)),
        Sample((1,), np.array([0, 0])),
    ),
)  # fmt: skip
def gather(x: ArrayLike, *indices: ArrayLike, axes: Sequence[int] | None = None) -> Value:
    """The elements of x at indices along axes: axes of the indices first, then the others of x."""
    v = as_value(x, "gather")
    found, where_ = _settle("gather", v, indices, axes)
    return gather.bind(v, *found, axes=where_)


@public
def take(x: ArrayLike, indices: ArrayLike, axis: int | None = None) -> Value:
    """The elements of x at indices along an axis, or of the flat x when no axis is given."""
    v, i = as_value(x, "take"), as_value(indices, "take")
    if axis is None:
        v = reshape(v, (v.type.size,))
    a = axis_of("take", 0 if axis is None else axis, v.ndim)
    out = gather.bind(v, in_bounds("take", i, v, a), axes=(a,))
    if a == 0:
        return out
    rest = range(i.ndim, out.ndim)
    return transpose(out, (*rest[:a], *range(i.ndim), *rest[a:]))


@public
def take_along_axis(x: ArrayLike, indices: ArrayLike, axis: int = -1) -> Value:
    """For each place of `indices` the element of x at that index along an axis."""
    v, i = as_value(x, "take_along_axis"), as_value(indices, "take_along_axis")
    v, places, _ = _along("take_along_axis", v, i, axis)
    return gather.bind(v, *places, axes=tuple(range(v.ndim)))


def along_axis(x: Value, index: Value, axis: int) -> Value:
    """take_along_axis for i64 indices of the shape of the result that lie inside the axis."""
    places = [index if k == axis else iota(index.shape, k) for k in range(x.ndim)]
    return gather.bind(x, *places, axes=tuple(range(x.ndim)))


@public
def put_along_axis(x: ArrayLike, indices: ArrayLike, value: ArrayLike, axis: int = -1) -> Value:
    """x with values written, for each place of `indices`, at that index along an axis."""
    v, i = as_value(x, "put_along_axis"), as_value(indices, "put_along_axis")
    wide, places, a = _along("put_along_axis", v, i, axis)
    if wide.shape != v.shape:
        raise ShapeError(f"put_along_axis: indices {i.type} do not fit the other axes of {v.type}")
    values = fitting("put_along_axis", v, value, places[a].shape)
    return scatter.bind(v, values, *places, axes=tuple(range(v.ndim)))


def _along(op: str, x: Value, index: Value, axis: int) -> tuple[Value, list[Value], int]:
    """x and one index tensor per axis of it, after broadcasting the axes other than `axis`."""
    a = axis_of(op, axis, x.ndim)
    if index.ndim != x.ndim:
        raise ShapeError(f"{op}: indices {index.type} must have the rank of {x.type}")
    index = in_bounds(op, index, x, a)

    def others(v: Value) -> tuple[Size, ...]:
        return (*v.shape[:a], *v.shape[a + 1 :])

    met = broadcast_shapes(op, [v.type.with_shape(others(v)) for v in (x, index)])
    shape = (*met[:a], index.shape[a], *met[a:])
    wide = broadcast(x, (*met[:a], x.shape[a], *met[a:]))
    places = [broadcast(index, shape) if k == a else iota(shape, k) for k in range(x.ndim)]
    return wide, places, a


# Scatter


def _scatter_types(name: str) -> Callable[[Types, Params], list[TensorType]]:
    def infer(types: Types, p: Params) -> list[TensorType]:
        x, value, *indices = types
        wanted = _picked(name, x, indices, p["axes"])
        if value.dtype is not x.dtype:
            raise DTypeError(f"{name}: the values are {value}, expected the dtype of {x}")
        if value.rank != len(wanted) or not all(
            unify(m, n, f"{name}: the shape of the values")
            for m, n in zip(value.shape, wanted, strict=True)
        ):
            raise ShapeError(f"{name}: the values are {value}, expected shape {list(wanted)}")
        return [x]

    return infer


def _write(x: Any, value: Any, *indices: Any, axes: tuple[int, ...]) -> Any:
    out = x.copy()
    front, key, kept = _written(out, value, indices, axes)
    front[key] = kept
    return out


def _fold(ufunc: Any) -> Callable[..., Any]:
    def run(x: Any, value: Any, *indices: Any, axes: tuple[int, ...]) -> Any:
        out = x.copy()
        front, key, kept = _written(out, value, indices, axes)
        ufunc.at(front, key, kept)  # in ascending order of the indices' own index
        return out

    return run


def _extreme(name: str, ufunc: Any) -> Callable[..., Any]:
    fold = _fold(ufunc)

    def run(x: Any, value: Any, *indices: Any, axes: tuple[int, ...]) -> Any:
        m = fold(x, value, *indices, axes=axes)
        if m.dtype.kind in "biu" or np.all(m):
            return m
        won = _fold(np.logical_or)(is_winner(name, x), is_winner(name, value), *indices, axes=axes)
        return with_zeros(name, m, won)

    return run


def _zeros_for(x: Value, t: Value | None) -> Value:
    return full_of(x.shape, 0, x.dtype) if t is None else t


def _joint_jvp(n: Node, ts: Tangents) -> Value | None:
    """The op itself on the tangents: it is linear in x and the values together."""
    if ts[0] is None and ts[1] is None:
        return None
    x, value, *indices = n.operands
    return OPS[n.op.name].bind(_zeros_for(x, ts[0]), _zeros_for(value, ts[1]), *indices, **n.params)


def _add_transpose(n: Node, ct: Value, k: int) -> Value:
    return ct if k == 0 else _where_written(n, gather.bind(ct, *n.operands[2:], **n.params))


def _where_written(n: Node, y: Value) -> Value:
    """y, of the shape of the values, and 0 for those that are dropped."""
    x, value, *indices = n.operands
    ok = inside(indices, x, n.params["axes"])
    if ok is None:
        return y
    rest = (1,) * (value.ndim - indices[0].ndim)
    return where(reshape(ok, (*ok.shape, *rest)), y, 0)


def _set_transpose(n: Node, ct: Value, k: int) -> Value:
    """What was overwritten gets nothing; of several values for one place the last gets all."""
    x, value, *indices = n.operands
    if k == 0:
        return scatter.bind(ct, full_of(value.shape, 0, ct.dtype), *indices, **n.params)
    mine = reshape(iota((value.type.size,)), value.shape)
    # Nobody wins where nothing is written, which is where the index of what is dropped may read.
    winner = scatter.bind(full_of(x.shape, -1, i64), mine, *indices, **n.params)
    won = eq(gather.bind(winner, *indices, **n.params), mine)
    return where(won, gather.bind(ct, *indices, **n.params), 0)


def _extreme_jvp(n: Node, ts: Tangents) -> Value | None:
    """The tangents of the winners, averaged over ties."""
    x, value, *indices = n.operands
    if ts[0] is None and ts[1] is None:
        return None
    y = n.results[0]
    won = cast_to(eq(x, y), x.dtype)
    value_won = cast_to(eq(value, gather.bind(y, *indices, **n.params)), x.dtype)
    total = scatter_add.bind(
        mul(won, _zeros_for(x, ts[0])), mul(value_won, _zeros_for(value, ts[1])),
        *indices, **n.params,
    )  # fmt: skip
    return div(total, scatter_add.bind(won, value_won, *indices, **n.params))


def _product_jvp(n: Node, ts: Tangents) -> Value | None:
    """Each value's tangent times what it was multiplied with: all else that came to its place."""
    x, value, *indices = n.operands
    if ts[0] is None and ts[1] is None:
        return None
    out = full_of(x.shape, 0, x.dtype)
    if ts[0] is not None:
        out = scatter_mul.bind(ts[0], value, *indices, **n.params)
    if ts[1] is None:
        return out
    # Zeros are counted apart, so that the product of the others is a quotient without 0 / 0.
    is_zero, value_is_zero = eq(x, 0), eq(value, 0)
    rest = scatter_mul.bind(
        where(is_zero, 1, x), where(value_is_zero, 1, value), *indices, **n.params
    )
    zeros = scatter_add.bind(
        cast_to(is_zero, x.dtype), cast_to(value_is_zero, x.dtype), *indices, **n.params
    )
    here, count = (gather.bind(v, *indices, **n.params) for v in (rest, zeros))
    alone = where(eq(count, 0), div(here, where(value_is_zero, 1, value)), 0)
    others = where(value_is_zero, where(eq(count, 1), here, 0), alone)
    return scatter_add.bind(out, mul(ts[1], others), *indices, **n.params)


def _product_transpose(n: Node, ct: Value, k: int) -> Value:
    """The cotangent of x; a tangent never comes in by the values, which _product_jvp holds."""
    assert k == 0, n
    return scatter_mul.bind(ct, *n.operands[1:], **n.params)


def _scatter_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    size = batch_size(operands, batched)
    x, value = (in_front(v, b, size) for v, b in zip(operands[:2], batched[:2], strict=True))
    indices, axes = operands[2:], n.params["axes"]
    if any(batched[2:]):
        places, where_ = _batch_places(x, indices, batched[2:], axes)
        return OPS[n.op.name].bind(x, value, *places, axes=where_)
    # The axes of the indices come first in the values, then the batch.
    k = indices[0].ndim
    moved = transpose(value, (*range(1, k + 1), 0, *range(k + 1, value.ndim)))
    return OPS[n.op.name].bind(x, moved, *indices, axes=tuple(a + 1 for a in axes))


_SAMPLES = (
    Sample((5,), (3,), np.array([4, 0, 2])),
    Sample((5,), (3,), np.array([1, 1, 3])),
    Sample((3, 4), (2, 4), np.array([-1, 0])),
    Sample((3, 4), (2, 2), np.array([[1], [2]]), np.array([0, 3]), axes=(0, 1)),
    Sample((3, 4), (), np.array(1), axes=(1,)),
    Sample((0, 2), (0, 2), np.zeros((0,), int)),
    Sample((3,), (0,), np.zeros((0,), int)),
    Sample((1,), (1,), np.array([0])),
)
OPS: dict[str, OpFunction[..., Value]] = {}


def _scatter(name: str, doc: str, reference: Any, **record: Any) -> OpFunction[..., Value]:
    kinds = record.pop("kinds", "buifc")
    op = register(
        Op(
            name, doc, call=name, total=True, infer=_scatter_types(name), numpy=reference, onnx="ScatterND",
            kinds=(kinds, kinds, "iu"), samples=_SAMPLES, batch=_scatter_batch,
            factors=scattered(name == "scatter_add"), **record,
        )
    )  # fmt: skip

    def front(
        x: ArrayLike, value: ArrayLike, *indices: ArrayLike, axes: Sequence[int] | None = None
    ) -> Value:
        v = as_value(x, name)
        found, where_ = _settle(name, v, indices, axes)
        shape = _picked(name, v.type, [i.type for i in found], where_)
        return made.bind(v, fitting(name, v, value, shape), *found, axes=where_)

    front.__name__ = name
    made = OPS[name] = OpFunction(op, front)
    publish(made, name)
    return made


_LADDER = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def fitting(op: str, x: Value, value: ArrayLike, shape: tuple[Size, ...]) -> Value:
    """A value in the dtype of x, broadcast to a shape."""
    if type(value) is int:
        check_number(value, x.dtype, op)
    v = as_value_of(x.dtype, value, op)
    if _LADDER[v.dtype.kind] > _LADDER[x.dtype.kind]:
        raise DTypeError(
            f"{op}: the value is {v.type}, which {x.type} cannot hold; cast one of them with astype"
        )
    while v.ndim > len(shape) and v.shape[0] == 1:
        v = reshape(v, v.shape[1:])
    return broadcast(cast_to(v, x.dtype), shape)


scatter = _scatter(
    "scatter", "x with values written at indices along axes; the last one for a place stays.",
    _write, moves=True, jvp=_joint_jvp, transpose=_set_transpose,
)  # fmt: skip
scatter_add = _scatter(
    "scatter_add", "x with values added at indices along axes, in the order of the indices.",
    _fold(np.add), kinds="uifc", by_parts=True, jvp=_joint_jvp, transpose=_add_transpose,
)  # fmt: skip
scatter_mul = _scatter(
    "scatter_mul", "x with elements at indices along axes multiplied by values, in the order of the indices.",
    _fold(np.multiply), kinds="uif", jvp=_product_jvp, transpose=_product_transpose,
)  # fmt: skip
scatter_max = _scatter(
    "scatter_max", "x with elements at indices along axes raised to at least the values.",
    _extreme("max", np.maximum), kinds="buif", jvp=_extreme_jvp,
)  # fmt: skip
scatter_min = _scatter(
    "scatter_min", "x with elements at indices along axes lowered to at most the values.",
    _extreme("min", np.minimum), kinds="buif", jvp=_extreme_jvp,
)  # fmt: skip
