"""Ops that move elements without changing them: views, joins, pads."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require, same, unify
from tessera.core.dims import Dim, Size, product
from tessera.core.dtype import bool_
from tessera.core.errors import AxisError, OperandError, ShapeError
from tessera.core.factors import reshaped
from tessera.core.promotion import promote_all
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Index, Params, Sample, Types
from tessera.ops.batching import Mask, batch_size, per_axis, spread_behind
from tessera.ops.cutting import padded
from tessera.ops.define import (
    FUNCTIONS,
    ArrayLike,
    AxisLike,
    as_value,
    as_value_of,
    axes_of,
    axis_of,
    cast_to,
    define,
    full_of,
    iterable,
    public,
    shape_of,
)
from tessera.ops.pad_widths import check_mode, extended, pairs_of
from tessera.ops.whole import whole, wholes


def _sum(x: Value, axes: Sequence[int]) -> Value:
    return FUNCTIONS["sum"].bind(x, axes=tuple(axes))


# Broadcasting and reshaping


def _broadcast_types(types: Types, p: Params) -> list[TensorType]:
    (t,), shape = types, p["shape"]
    if t.rank > len(shape):
        raise ShapeError(f"broadcast_to: {t} has more axes than the shape {list(shape)}")
    for a, b in zip(t.shape[::-1], shape[::-1], strict=False):
        if a != 1 and not unify(a, b, "broadcast_to"):
            raise ShapeError(
                f"broadcast_to: {t} does not broadcast to {list(shape)}: {a} is neither 1 nor {b}"
            )
    return [t.with_shape(shape)]


def _broadcast_view(index: Index, types: Types, p: Params) -> Index:
    tail = index[len(index) - types[0].rank :]
    return tuple(0 if n == 1 else i for i, n in zip(tail, types[0].shape, strict=True))


def _broadcast_transpose(n: Node, ct: Value, k: int) -> Value:
    x = n.operands[0]
    extra = ct.ndim - x.ndim
    axes = [
        i
        for i in builtins.range(ct.ndim)
        if i < extra or (x.shape[i - extra] == 1 and ct.shape[i] != 1)
    ]
    return reshape(_sum(ct, axes), x.shape) if axes else ct


def _broadcast_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    (x,), shape = operands, n.params["shape"]
    return broadcast_to.bind(spread_behind(x, len(shape) + 1), shape=(x.shape[0], *shape))


@define(
    infer=_broadcast_types, view=_broadcast_view, spreads=True, linear=(0,), transpose=_broadcast_transpose,
    numpy=np.broadcast_to, onnx="Expand", batch=_broadcast_batch,
    samples=(Sample((3,), (2, 3)), Sample((2, 1), (2, 4)), Sample((), (0, 2)), Sample((1,), (1,))),
)  # fmt: skip
def broadcast_to(x: ArrayLike, shape: Any) -> Value:
    """x repeated along new axes and along axes of size 1."""
    v, sizes = as_value(x, "broadcast_to"), shape_of("broadcast_to", shape)
    return v if v.shape == sizes else broadcast_to.bind(v, shape=sizes)


def _reshape_types(types: Types, p: Params) -> list[TensorType]:
    old, new = types[0].size, product(p["shape"])
    if not unify(old, new, "reshape"):
        raise ShapeError(
            f"reshape: {types[0]} has {old} elements but shape {list(p['shape'])} has {new}"
        )
    return [types[0].with_shape(p["shape"])]


def _reshape_view(index: Index, types: Types, p: Params) -> Index:
    flat: Any = 0
    for i, n in zip(index, p["shape"], strict=True):
        flat = flat * n + i
    out = []
    for n in types[0].shape[::-1]:
        out.append(flat % n)
        flat = flat // n
    return tuple(out[::-1])


@define(
    infer=_reshape_types, view=_reshape_view, reshapes=True, linear=(0,), onnx="Reshape",
    numpy=np.reshape,
    transpose=lambda n, ct, k: reshape(ct, n.operands[0].shape),
    batch=lambda n, xs, batched: reshape.bind(xs[0], shape=(xs[0].shape[0], *n.params["shape"])),
    factors=lambda types, outs, p: reshaped(types[0].shape, outs[0].shape),
    samples=(Sample((2, 6), (3, 4)), Sample((4,), (2, -1)), Sample((), (1, 1)), Sample((0, 3), (3, 0))),
)  # fmt: skip
def reshape(x: ArrayLike, shape: Any) -> Value:
    """x with its elements in the same order and another shape; -1 stands for what remains."""
    v = as_value(x, "reshape")
    if isinstance(shape, Dim) or hasattr(shape, "__index__"):
        shape = (shape,)
    sizes = _fill_minus_one(v, tuple(iterable("reshape", shape)))
    sizes = shape_of("reshape", sizes)
    return v if v.shape == sizes else reshape.bind(v, shape=sizes)


def _fill_minus_one(v: Value, sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    holes = [i for i, s in enumerate(sizes) if isinstance(s, int) and s == -1]
    if not holes:
        return sizes
    if len(holes) > 1:
        raise ShapeError(f"reshape: shape {list(sizes)} has more than one -1")
    known = product(tuple(s for i, s in enumerate(sizes) if i != holes[0]))
    total = v.type.size
    if known == 0 or not require("divisible", total, known, "reshape: the size for -1"):
        raise ShapeError(
            f"reshape: {v.type} has {total} elements, which shape {list(sizes)} cannot hold"
        )
    return (*sizes[: holes[0]], total // known, *sizes[holes[0] + 1 :])


@public
def expand_dims(x: ArrayLike, axis: int | Sequence[int] = 0) -> Value:
    """x with new axes of size 1 at these places of the result."""
    v = as_value(x, "expand_dims")
    given: list[Any] = list(axis) if isinstance(axis, tuple | list) else [axis]
    rank = v.ndim + len(given)
    axes = axes_of("expand_dims", given, rank)
    old = iter(v.shape)
    return reshape(v, tuple(1 if i in axes else next(old) for i in builtins.range(rank)))


@public
def squeeze(x: ArrayLike, axis: AxisLike = None) -> Value:
    """x without axes of size 1: those named, or all that are 1 whatever a symbolic size is."""
    v = as_value(x, "squeeze")
    axes = (
        tuple(i for i, s in enumerate(v.shape) if s == 1)
        if axis is None
        else axes_of("squeeze", axis, v.ndim)
    )
    for a in axes:
        if same(v.shape[a], 1) is not True:
            raise ShapeError(f"squeeze: axis {a} of {v.type} is {v.shape[a]}, expected 1")
    return reshape(v, tuple(s for i, s in enumerate(v.shape) if i not in axes))


@public
def flatten(x: ArrayLike, start: int = 0, stop: int = -1) -> Value:
    """x with the axes from start to stop joined into one."""
    v = as_value(x, "flatten")
    if v.ndim == 0:
        return reshape(v, (1,))
    a, b = axis_of("flatten", start, v.ndim), axis_of("flatten", stop, v.ndim)
    if a > b:
        raise AxisError(
            f"flatten: axis {a} is after axis {b} of {v.type}; name the first before the last"
        )
    return reshape(v, (*v.shape[:a], product(v.shape[a : b + 1]), *v.shape[b + 1 :]))


# Permuting


def _transpose_view(index: Index, types: Types, p: Params) -> Index:
    out: list[Any] = [None] * len(index)
    for i, a in enumerate(p["axes"]):
        out[a] = index[i]
    return tuple(out)


@define(
    infer=lambda types, p: [types[0].with_shape(tuple(types[0].shape[a] for a in p["axes"]))],
    view=_transpose_view, linear=(0,), numpy=np.transpose, onnx="Transpose",
    transpose=lambda n, ct, k: transpose(ct, tuple(np.argsort(n.params["axes"]).tolist())),
    batch=lambda n, xs, batched: transpose.bind(
        xs[0], axes=(0, *(a + 1 for a in n.params["axes"]))
    ),
    samples=(Sample((2, 3)), Sample((2, 3, 4), (1, 2, 0)), Sample(())),
)  # fmt: skip
def transpose(x: ArrayLike, axes: Sequence[int] | None = None) -> Value:
    """x with its axes in another order; reversed when none is given."""
    v = as_value(x, "transpose")
    order = (
        tuple(builtins.range(v.ndim))[::-1] if axes is None else axes_of("transpose", axes, v.ndim)
    )
    if len(order) != v.ndim:
        raise AxisError(f"transpose: axes {order} leave out axes of {v.type}")
    return v if order == tuple(builtins.range(v.ndim)) else transpose.bind(v, axes=order)


@public
def matrix_transpose(x: ArrayLike) -> Value:
    """x with its last two axes swapped."""
    v = as_value(x, "matrix_transpose")
    if v.ndim < 2:
        raise ShapeError(f"matrix_transpose: {v.type} has fewer than 2 axes")
    return swapaxes(v, -1, -2)


@public
def swapaxes(x: ArrayLike, a: int, b: int) -> Value:
    """x with two axes swapped."""
    v = as_value(x, "swapaxes")
    order = list(builtins.range(v.ndim))
    i, j = axis_of("swapaxes", a, v.ndim), axis_of("swapaxes", b, v.ndim)
    order[i], order[j] = order[j], order[i]
    return transpose(v, order)


@public
def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Value:
    """x with axes moved to other places."""
    v = as_value(x, "moveaxis")
    src = axes_of("moveaxis", source, v.ndim)
    dst = axes_of("moveaxis", destination, v.ndim)
    if len(src) != len(dst):
        raise AxisError(f"moveaxis: {len(src)} source axes but {len(dst)} destinations")
    rest = iter(i for i in builtins.range(v.ndim) if i not in src)
    place = dict(zip(dst, src, strict=True))
    return transpose(v, [place[i] if i in place else next(rest) for i in builtins.range(v.ndim)])


@define(
    infer=lambda types, p: types, linear=(0,), numpy=lambda x, axes: np.flip(x, axes),
    view=lambda index, types, p: tuple(
        n - 1 - i if a in p["axes"] else i
        for a, (i, n) in enumerate(zip(index, types[0].shape, strict=True))
    ),
    transpose=lambda n, ct, k: flip(ct, n.params["axes"]),
    samples=(Sample((3,)), Sample((2, 3), 0), Sample((2, 3), (0, 1)), Sample((0,), 0)),
)  # fmt: skip
def flip(x: ArrayLike, axis: AxisLike = None) -> Value:
    """x with the elements in reverse order along axes."""
    v = as_value(x, "flip")
    axes = axes_of("flip", axis, v.ndim)
    return flip.bind(v, axes=axes) if axes else v


# Cutting


def _slice_types(types: Types, p: Params) -> list[TensorType]:
    return [
        types[0].with_shape(
            tuple(_count(a, b, s) for a, b, s in zip(p["start"], p["stop"], p["step"], strict=True))
        )
    ]


def _count(start: Size, stop: Size, step: int) -> Size:
    return (stop - start + step - 1) // step


def _slice_transpose(n: Node, ct: Value, k: int) -> Value:
    x, p = n.operands[0], n.params
    low, high, inner = [], [], []
    for size, m, a, s in zip(x.shape, ct.shape, p["start"], p["step"], strict=True):
        low.append(a)
        inner.append(s - 1)
        covered = (m - 1) * s + 1 if m != 0 else 0
        high.append(size - a - covered)
    return pad.bind(
        ct, full_of((), 0, ct.dtype), low=tuple(low), high=tuple(high), inner=tuple(inner)
    )


def _slice_part(p: Params, types: Types, outs: Types) -> Params:
    """The parameters for a shard: only axes that are taken whole are cut."""
    ends = zip(p["start"], p["step"], outs[0].shape, strict=True)
    return {**p, "stop": tuple(a + (n - 1) * s + 1 if n else a for a, s, n in ends)}


@define(
    name="slice", infer=_slice_types, linear=(0,), transpose=_slice_transpose, onnx="Slice",
    resize=_slice_part,
    batch=lambda n, xs, batched: per_axis(start=0, stop=xs[0].shape[0], step=1)(n, xs, batched),
    view=lambda index, types, p: tuple(
        a + i * s for i, a, s in zip(index, p["start"], p["step"], strict=True)
    ),
    numpy=lambda x, start, stop, step: x[tuple(map(builtins.slice, start, stop, step))],
    samples=(
        Sample((5,), (1,), (4,)), Sample((4, 6), (0, 1), (4, 6), (2, 3)), Sample((3,), (2,), (2,)),
        Sample((0,), (0,), (0,)),
    ),
)  # fmt: skip
def slice_(
    x: ArrayLike, start: Sequence[Any], stop: Sequence[Any], step: Sequence[int] | None = None
) -> Value:
    """The part of x from start up to stop on each axis, every step-th element."""
    v = as_value(x, "slice")
    steps = tuple(step) if step is not None else (1,) * v.ndim
    if not len(start) == len(stop) == len(steps) == v.ndim:
        raise ShapeError(f"slice: needs one start, stop and step for each axis of {v.type}")
    for axis, (n, a, b, s) in enumerate(zip(v.shape, start, stop, steps, strict=True)):
        if s < 1 or not (require("at_least", b, a, "slice") and require("at_least", n, b, "slice")):
            raise ShapeError(f"slice: {a}:{b}:{s} does not lie in axis {axis} of {v.type}")
    if all(same(a, 0) and same(b, n) for n, a, b in zip(v.shape, start, stop, strict=True)):
        if all(s == 1 for s in steps):
            return v
    return slice_.bind(v, start=tuple(start), stop=tuple(stop), step=steps)


@public
def split(x: ArrayLike, parts: int | Sequence[int], axis: int = 0) -> tuple[Value, ...]:
    """x cut along an axis into this many equal parts, or into parts of these sizes."""
    v = as_value(x, "split")
    a = axis_of("split", axis, v.ndim)
    n = v.shape[a]
    if not isinstance(parts, tuple | list | range) and getattr(parts, "ndim", 0) == 0:
        count = whole("split", "parts", parts)
        if count < 1 or not require("divisible", n, count, "split"):
            raise ShapeError(f"split: axis {a} of {v.type} is {n}, which {count} does not divide")
        sizes: list[Size] = [n // count] * count
    else:
        sizes = wholes("split", "parts", parts)
        if not unify(builtins.sum(sizes), n, "split: the sizes of the parts"):
            raise ShapeError(f"split: parts {sizes} add up to {builtins.sum(sizes)}, not to {n}")
    out: list[Value] = []
    at: Size = 0
    for s in sizes:
        start = tuple(at if i == a else 0 for i in builtins.range(v.ndim))
        stop = tuple(at + s if i == a else m for i, m in enumerate(v.shape))
        out.append(slice_(v, start, stop))
        at = at + s
    return tuple(out)


# Joining and padding


def _concat_types(types: Types, p: Params) -> list[TensorType]:
    axis, first = p["axis"], types[0]
    total: Size = 0
    for i, t in enumerate(types):
        if t.rank != first.rank:
            raise ShapeError(f"concat: operand {i} is {t}, expected rank {first.rank} as {first}")
        for a, (m, n) in enumerate(zip(first.shape, t.shape, strict=True)):
            if a != axis and not unify(m, n, f"concat: axis {a} of operands 0 and {i}"):
                raise ShapeError(
                    f"concat: axis {a} is {m} in operand 0 {first} but {n} in operand {i} {t}"
                )
        total = total + t.shape[axis]
    return [first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))]


def _concat_transpose(n: Node, ct: Value, k: int) -> Value:
    axis = n.params["axis"]
    at: Size = 0
    for v in n.operands[:k]:
        at = at + v.shape[axis]
    start = tuple(at if i == axis else 0 for i in builtins.range(ct.ndim))
    return slice_(ct, start, tuple(a + m for a, m in zip(start, n.operands[k].shape, strict=True)))


def _concat_jvp(n: Node, ts: Sequence[Value | None]) -> Value | None:
    if all(t is None for t in ts):
        return None
    parts = [
        full_of(x.shape, 0, x.dtype) if t is None else t
        for x, t in zip(n.operands, ts, strict=True)
    ]
    return concat(parts, n.params["axis"])


@define(
    infer=_concat_types, call="concat", total=True, moves=True, jvp=_concat_jvp, transpose=_concat_transpose,
    numpy=lambda *xs, axis: np.concatenate(xs, axis), onnx="Concat",
    samples=(
        Sample([(2, 3), (1, 3)]), Sample([(2, 1), (2, 0), (2, 4)], axis=-1), Sample([(0,), (0,)]),
    ),
)  # fmt: skip
def concat(xs: Sequence[ArrayLike], axis: int = 0) -> Value:
    """Tensors joined end to end along an axis."""
    vs = [as_value(x, "concat") for x in xs]
    if not vs:
        raise ShapeError("concat: got no tensors")
    a = axis_of("concat", axis, vs[0].ndim)
    dtype = promote_all([v.dtype for v in vs])
    vs = [cast_to(v, dtype) for v in vs]
    if len(vs) > MOST_JOINED:  # errors name the operands as they were given
        _concat_types([v.type for v in vs], {"axis": a})
    while len(vs) > MOST_JOINED:
        groups = [vs[i : i + MOST_JOINED] for i in builtins.range(0, len(vs), MOST_JOINED)]
        vs = [concat.bind(*g, axis=a) if len(g) > 1 else g[0] for g in groups]
    return concat.bind(*vs, axis=a) if len(vs) > 1 else vs[0]


# Operands of one concat: each is a loop in its kernel, and LLVM takes far more than twice as long for twice
# as many (3 s for 400, 9 s for 800, 69 s for 1,600).
MOST_JOINED = 64


@public
def stack(xs: Sequence[ArrayLike], axis: int = 0) -> Value:
    """Tensors of one shape joined along a new axis."""
    vs = [as_value(x, "stack") for x in xs]
    if not vs:
        raise ShapeError("stack: got no tensors")
    for i, v in enumerate(vs):
        if len(v.shape) != len(vs[0].shape):
            raise ShapeError(f"stack: operand {i} is {v.type}, expected the shape of {vs[0].type}")
    a = axis_of("stack", axis, vs[0].ndim + 1)
    return concat([expand_dims(v, a) for v in vs], a)


def _pad(x: Any, value: Any, low: Any, high: Any, inner: Any) -> Any:
    shape = [n + max(n - 1, 0) * i for n, i in zip(x.shape, inner, strict=True)]
    out = np.full([a + n + b for n, a, b in zip(shape, low, high, strict=True)], value, x.dtype)
    spread = np.full(shape, value, x.dtype)
    spread[tuple(builtins.slice(None, None, i + 1) for i in inner)] = x
    ends = list(zip(shape, low, high, strict=True))
    into = tuple(builtins.slice(max(a, 0), a + n + min(b, 0)) for n, a, b in ends)
    out[into] = spread[tuple(builtins.slice(max(-a, 0), n + min(b, 0)) for n, a, b in ends)]
    return out


def _pad_types(types: Types, p: Params) -> list[TensorType]:
    shape = []
    for n, a, b, i in zip(types[0].shape, p["low"], p["high"], p["inner"], strict=True):
        size = a + n + (n - 1) * i + b if n != 0 else a + b
        if not require("at_least", size, 0, "pad"):
            raise ShapeError(f"pad: {a} before and {b} after leave nothing of axis size {n}")
        shape.append(size)
    return [types[0].with_shape(tuple(shape))]


def _pad_transpose(n: Node, ct: Value, k: int) -> Value:
    p, x = n.params, n.operands[0]
    if k == 0:
        back = pad.bind(
            ct, full_of((), 0, ct.dtype),
            low=tuple(-a for a in p["low"]), high=tuple(-b for b in p["high"]), inner=(0,) * x.ndim,
        )  # fmt: skip
        return slice_(back, (0,) * x.ndim, back.shape, tuple(i + 1 for i in p["inner"]))
    return FUNCTIONS["sub"](_sum(ct, range(ct.ndim)), _sum(_pad_transpose(n, ct, 0), range(x.ndim)))


def _pad_jvp(n: Node, ts: Sequence[Value | None]) -> Value | None:
    if all(t is None for t in ts):
        return None
    x, value = (
        full_of(v.shape, 0, v.dtype) if t is None else t
        for v, t in zip(n.operands, ts, strict=True)
    )
    return pad.bind(x, value, **n.params)


def _pad_batch(n: Node, operands: Sequence[Value], batched: Mask) -> Value:
    """A value for each element of the batch is put where a mask, padded alike, says so."""
    x, value = operands
    ends = {k: (0, *n.params[k]) for k in ("low", "high", "inner")}
    if not batched[1]:
        return pad.bind(x, value, **ends)
    if not batched[0]:
        x = broadcast_to(x, (batch_size(operands, batched), *x.shape))
    inside = pad.bind(full_of(x.shape, True, bool_), full_of((), False, bool_), **ends)
    y = pad.bind(x, full_of((), 0, x.dtype), **ends)
    return FUNCTIONS["where"](inside, y, spread_behind(value, x.ndim))


@define(
    infer=_pad_types, call="pad", total=True, moves=True, numpy=_pad, linear=(0,), onnx="Pad", factors=padded,
    jvp=_pad_jvp, transpose=_pad_transpose, batch=_pad_batch,
    samples=(Sample((3,), 2), Sample((2, 3), ((1, 0), (0, 2)), value=1.5), Sample((0,), 1)),
)  # fmt: skip
def pad(x: ArrayLike, width: Any, value: ArrayLike = 0, mode: str = "constant") -> Value:
    """x with `width` elements (before, after) around each axis, of a value or by a mode its own.

    The modes are those of NumPy: constant, edge, reflect, symmetric and wrap.
    """
    v = as_value(x, "pad")
    if isinstance(value, str):
        raise OperandError(f"pad: the value is {value!r}, expected a number; write mode={value!r}")
    check_mode(mode)
    pairs = pairs_of(v, width)
    if mode != "constant":
        return extended(v, pairs, mode)
    fill = cast_to(as_value_of(v.dtype, value, "pad"), v.dtype)
    if fill.ndim:
        raise ShapeError(f"pad: the value is {fill.type}, expected a scalar")
    low, high = (tuple(p[i] for p in pairs) for i in (0, 1))
    return pad.bind(v, fill, low=low, high=high, inner=(0,) * v.ndim)
