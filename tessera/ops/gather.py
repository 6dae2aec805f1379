"""Reading and writing elements whose place is data: gather, scatter, dynamic slices.

An index outside its axis reads the nearest element and writes nothing, on every target; the derivatives are those of
that.  The functions that users call with data at hand (x[i], take, ...) raise instead (ops/places.py).  A part of
given sizes is moved to lie inside, also in eager code: that is what dynamic_slice is.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.arrays import check_number
from tessera.core.constraints import require, unify
from tessera.core.dims import Size
from tessera.core.dtype import bool_, i64
from tessera.core.errors import AxisError, DTypeError, ShapeError
from tessera.core.flags import flags
from tessera.core.scalar import is_winner, with_zeros
from tessera.core.signature import broadcast_shapes
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, concrete
from tessera.ir.graph.op import Element, Index, Op, Params, Sample, Types, register
from tessera.ops.batching import Mask, all_in_front, batch_size, in_front, to_front
from tessera.ops.creation import iota
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
    shape_of,
)
from tessera.ops.elementwise import (
    add,
    div,
    eq,
    ge,
    logical_and,
    lt,
    maximum,
    minimum,
    mul,
    sub,
    where,
)
from tessera.ops.places import check_places, in_bounds, inside, nearest
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
    pick=_gather_places, moves=True, kinds=INDEX_KINDS, places=1, numpy=_gather, linear=(0,), onnx="GatherND",
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
            name, doc, call=name, infer=_scatter_types(name), numpy=reference, onnx="ScatterND",
            kinds=(kinds, kinds, "iu"), places=2, samples=_SAMPLES, batch=_scatter_batch, **record,
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
    _fold(np.add), kinds="uifc", jvp=_joint_jvp, transpose=_add_transpose,
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


# Slices that start where data says


def _inside(op: str, x: TensorType, sizes: Sequence[Size], starts: Types) -> None:
    if len(starts) != x.rank or len(sizes) != x.rank:
        raise ShapeError(f"{op}: needs one start and one size for each axis of {x}")
    for t in starts:
        if t.rank:
            raise ShapeError(f"{op}: a start is {t}, expected a scalar")
    for a, (n, m) in enumerate(zip(x.shape, sizes, strict=True)):
        if not require("at_least", n, m, f"{op}: axis {a} of {x}"):
            raise ShapeError(f"{op}: a part of size {m} does not fit axis {a} of {x}")


def _window(x: Any, starts: Sequence[Any], sizes: Sequence[int]) -> tuple[builtins.slice, ...]:
    out = []
    for n, s, m in zip(x.shape, starts, sizes, strict=True):
        at = builtins.min(builtins.max(int(s), 0), n - m)
        out.append(builtins.slice(at, at + m))
    return tuple(out)


def _dynamic_slice_types(types: Types, p: Params) -> list[TensorType]:
    _inside("dynamic_slice", types[0], p["sizes"], types[1:])
    return [types[0].with_shape(p["sizes"])]


def _moved_places(x: Value, sizes: Sequence[Size], starts: Sequence[Value], batched: Mask) -> Any:
    """Indices of parts that start elsewhere for each element of a batch, moved to lie inside x."""
    shape = (batch_size(starts, batched), *sizes)
    places = []
    for a, (s, b) in enumerate(zip(starts, batched, strict=True)):
        held = minimum(maximum(cast_to(s, i64), 0), x.shape[a] - sizes[a])
        at = reshape(held, (shape[0], *(1,) * len(sizes))) if b else held
        places.append(add(broadcast(at, shape), iota(shape, a + 1)))
    return places


def _dynamic_slice_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    (x, *starts), sizes, axes = operands, n.params["sizes"], range(n.operands[0].ndim)
    if not any(batched[1:]):
        first = full_of((), 0, starts[0].dtype if starts else i64)
        return dynamic_slice.bind(x, first, *starts, sizes=(x.shape[0], *sizes))
    places = _moved_places(n.operands[0], sizes, starts, batched[1:])
    own = Node(gather.op, n.operands, {"axes": tuple(axes)}, (), n.location)
    return _gather_batch(own, [x, *places], [batched[0], *(True for _ in places)])


def _dynamic_update_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    size = batch_size(operands, batched)
    x, value = (in_front(v, b, size) for v, b in zip(operands[:2], batched[:2], strict=True))
    starts = operands[2:]
    if not any(batched[2:]):
        first = full_of((), 0, starts[0].dtype if starts else i64)
        return dynamic_update_slice.bind(x, value, first, *starts)
    places = _moved_places(n.operands[0], n.operands[1].shape, starts, batched[2:])
    axes = tuple(range(x.ndim))
    return scatter.bind(x, value, iota(value.shape, 0), *places, axes=axes)


def starts_of(op: str, x: Value, start: Any) -> list[Value]:
    """One i64 scalar per axis from a sequence of them or a tensor of one axis."""
    if isinstance(start, Value | np.ndarray):
        v = as_value(start, op)
        if v.ndim != 1 or v.shape[0] != x.ndim:
            raise ShapeError(f"{op}: start is {v.type}, expected [{x.ndim}], one for each axis")
        return [
            cast_to(gather.bind(v, concrete(i, i64, v.device), axes=(0,)), i64)
            for i in range(x.ndim)
        ]
    return [cast_to(as_value(s, op), i64) for s in start]


def _starting(op: str, x: Value, starts: Sequence[Value], sizes: Sequence[Size]) -> Sequence[Value]:
    """Starts at which a part lies inside x, as ts.checked() demands."""
    if not flags().checked or len(starts) != x.ndim or len(sizes) != x.ndim:
        return starts
    return [
        check_places(f"{op}: start", s, 0, n - m, f"a part of size {m} on axis {a} of {x.type}")
        for a, (s, n, m) in enumerate(zip(starts, x.shape, sizes, strict=True))
    ]


@define(
    infer=_dynamic_slice_types, moves=True,
    pick=lambda index, types, p: tuple(
        Element(1 + a, (), n - m, i)
        for a, (i, n, m) in enumerate(zip(index, types[0].shape, p["sizes"], strict=True))
    ), kinds=INDEX_KINDS, places=1, linear=(0,),
    batch=_dynamic_slice_batch,
    numpy=lambda x, *starts, sizes: x[_window(x, starts, sizes)],
    transpose=lambda n, ct, k: dynamic_update_slice.bind(
        full_of(n.operands[0].shape, 0, ct.dtype), ct, *n.operands[1:]
    ),
    samples=(
        Sample((5,), start=(3,), sizes=(2,)), Sample((3, 4), start=(1, 7), sizes=(2, 1)),
        Sample((3,), start=(-2,), sizes=(3,)), Sample((0, 2), start=(0, 1), sizes=(0, 1)),
        Sample((), start=(), sizes=()),
    ),
)  # fmt: skip
def dynamic_slice(x: ArrayLike, start: Any, sizes: Any) -> Value:
    """The part of x of these sizes from start on, moved to lie inside x."""
    v = as_value(x, "dynamic_slice")
    starts = starts_of("dynamic_slice", v, start)
    part = shape_of("dynamic_slice", sizes)
    return dynamic_slice.bind(v, *_starting("dynamic_slice", v, starts, part), sizes=part)


def _dynamic_update_types(types: Types, p: Params) -> list[TensorType]:
    x, value, *starts = types
    if value.dtype is not x.dtype:
        raise DTypeError(f"dynamic_update_slice: the part is {value}, expected the dtype of {x}")
    _inside("dynamic_update_slice", x, value.shape, starts)
    return [x]


def _dynamic_update(x: Any, value: Any, *starts: Any) -> Any:
    out = x.copy()
    out[_window(x, starts, value.shape)] = value
    return out


def _update_by_parts(x: Value, value: Value, *starts: Value) -> Value:
    """At each place the element of the part that belongs there, or of x where there is none."""
    here, places = full_of(x.shape, True, bool_), []
    for a, (s, n, m) in enumerate(zip(starts, x.shape, value.shape, strict=True)):
        start = minimum(maximum(cast_to(s, i64), 0), n - m)
        place = iota(x.shape, a) if n == m else sub(iota(x.shape, a), broadcast(start, x.shape))
        here = logical_and(here, logical_and(ge(place, 0), lt(place, m)))
        places.append(place)
    if value.type.size == 0:
        return x
    return (
        where(here, gather.bind(value, *places, axes=tuple(range(x.ndim))), x) if places else value
    )


def _dynamic_update_jvp(n: Node, ts: Tangents) -> Value | None:
    if ts[0] is None and ts[1] is None:
        return None
    x, value, *starts = n.operands
    return dynamic_update_slice.bind(_zeros_for(x, ts[0]), _zeros_for(value, ts[1]), *starts)


def _dynamic_update_transpose(n: Node, ct: Value, k: int) -> Value:
    _, value, *starts = n.operands
    if k == 0:
        return dynamic_update_slice.bind(ct, full_of(value.shape, 0, ct.dtype), *starts)
    return dynamic_slice.bind(ct, *starts, sizes=value.shape)


@define(
    infer=_dynamic_update_types, decompose=_update_by_parts, moves=True,
    kinds=("buifc", "buifc", "iu"), places=2, numpy=_dynamic_update, jvp=_dynamic_update_jvp,
    transpose=_dynamic_update_transpose, batch=_dynamic_update_batch,
    samples=(
        Sample((5,), (2,), start=(1,)), Sample((3, 4), (2, 1), start=(0, 9)),
        Sample((3,), (0,), start=(1,)), Sample((), (), start=()),
    ),
)  # fmt: skip
def dynamic_update_slice(x: ArrayLike, value: ArrayLike, start: Any) -> Value:
    """x with the part from start on replaced, the part moved to lie inside x."""
    v, part = as_value(x, "dynamic_update_slice"), as_value(value, "dynamic_update_slice")
    starts = starts_of("dynamic_update_slice", v, start)
    inner = _starting("dynamic_update_slice", v, starts, part.shape)
    return dynamic_update_slice.bind(
        v, fitting("dynamic_update_slice", v, part, part.shape), *inner
    )
