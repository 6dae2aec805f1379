"""Slices that start where data says.  A part of given sizes is moved to fit inside, also in eager code."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require
from tessera.core.dims import Size
from tessera.core.dtype import bool_, i64
from tessera.core.errors import DTypeError, ShapeError
from tessera.core.flags import flags
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, concrete
from tessera.ir.graph.op import Element, Params, Sample, Types
from tessera.ops.batching import Mask, batch_size, in_front
from tessera.ops.creation import iota
from tessera.ops.cutting import window
from tessera.ops.define import (
    ArrayLike,
    as_value,
    broadcast,
    cast_to,
    define,
    full_of,
    shape_of,
)
from tessera.ops.elementwise import (
    add,
    ge,
    logical_and,
    lt,
    maximum,
    minimum,
    sub,
    where,
)
from tessera.ops.gather import _gather_batch, _zeros_for, fitting, gather, scatter
from tessera.ops.places import check_places
from tessera.ops.shape import reshape
from tessera.ops.whole import whole_tensor
from tessera.ops.write import WRITE_SLICE

Tangents = Sequence[Value | None]
INDEX_KINDS = ("buifc", "iu")


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
    """Indices of parts that start elsewhere for each element of a batch, moved to fit inside x."""
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
        v = whole_tensor(op, "start", start)
        if v.ndim != 1 or v.shape[0] != x.ndim:
            raise ShapeError(f"{op}: start is {v.type}, expected [{x.ndim}], one for each axis")
        return [gather.bind(v, concrete(i, i64, v.device), axes=(0,)) for i in range(x.ndim)]
    return [whole_tensor(op, "start", s) for s in start]


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
    ), kinds=INDEX_KINDS, linear=(0,),
    batch=_dynamic_slice_batch, factors=window,
    resize=lambda p, types, outs: {**p, "sizes": outs[0].shape},
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
    """The part of x of these sizes from start on, moved to fit inside x."""
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
    infer=_dynamic_update_types, decompose=_update_by_parts, in_place=WRITE_SLICE, moves=True,
    kernel="update",
    kinds=("buifc", "buifc", "iu"), numpy=_dynamic_update, jvp=_dynamic_update_jvp,
    transpose=_dynamic_update_transpose, batch=_dynamic_update_batch, factors=window,
    samples=(
        Sample((5,), (2,), start=(1,)), Sample((3, 4), (2, 1), start=(0, 9)),
        Sample((3,), (0,), start=(1,)), Sample((), (), start=()),
    ),
)  # fmt: skip
def dynamic_update_slice(x: ArrayLike, value: ArrayLike, start: Any) -> Value:
    """x with the part from start on replaced, the part moved to fit inside x."""
    v, part = as_value(x, "dynamic_update_slice"), as_value(value, "dynamic_update_slice")
    starts = starts_of("dynamic_update_slice", v, start)
    inner = _starting("dynamic_update_slice", v, starts, part.shape)
    return dynamic_update_slice.bind(
        v, fitting("dynamic_update_slice", v, part, part.shape), *inner
    )
