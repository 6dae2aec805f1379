"""Tensors arranged from others by repeating, rolling and masking, and ranges of numbers."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.arrays import check_number
from tessera.core.blame import blames_arguments
from tessera.core.constraints import require, unify
from tessera.core.dims import Dim, Size
from tessera.core.dtype import DType, as_dtype, c128, f32, f64, i64
from tessera.core.errors import AxisError, DTypeError, OperandError, ShapeError, TraceError
from tessera.core.promotion import promote
from tessera.core.signature import broadcast_shapes
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value, concrete, host_data
from tessera.ir.graph.op import Index, Params, Sample, Types
from tessera.ops.batching import leading, per_axis
from tessera.ops.creation import iota
from tessera.ops.define import (
    ArrayLike,
    AxisLike,
    as_value,
    axes_of,
    axis_of,
    broadcast,
    cast_to,
    define,
    floating,
    meet,
    public,
    shape_of,
)
from tessera.ops.elementwise import add, div, eq, ge, mul, sub, where
from tessera.ops.gather import take
from tessera.ops.indexing import index
from tessera.ops.places import check_places
from tessera.ops.reduction import sum as total
from tessera.ops.shape import expand_dims, flip, reshape, swapaxes
from tessera.ops.whole import whole, wholes

# Moving and repeating


def _roll_view(index: Index, types: Types, p: Params) -> Index:
    out = list(index)
    for s, a in zip(p["shift"], p["axis"], strict=True):
        size = types[0].shape[a]
        # Never negative, so that one comparison tells on which side of the end an element lies.
        out[a] = (out[a] + (-s) % size) % size if size != 0 else out[a]
    return tuple(out)


@define(
    infer=lambda types, p: types, view=_roll_view, linear=(0,),
    numpy=np.roll,
    transpose=lambda n, ct, k: roll.bind(
        ct, shift=tuple(-s for s in n.params["shift"]), axis=n.params["axis"]
    ),
    samples=(
        Sample((5,), shift=2), Sample((2, 3), shift=-1, axis=1), Sample((2, 3), shift=4),
        Sample((2, 3), shift=(1, -7), axis=(0, 1)), Sample((0,), shift=1, axis=0), Sample((1,), shift=3),
    ),
)  # fmt: skip
def roll(x: ArrayLike, shift: int | Sequence[int], axis: AxisLike = None) -> Value:
    """x with elements moved along axes, those that leave one end entering at the other."""
    v = as_value(x, "roll")
    if axis is None:
        return reshape(roll(reshape(v, (v.type.size,)), shift, 0), v.shape)
    axes = axes_of("roll", axis, v.ndim)
    shifts = tuple(wholes("roll", "shift", shift))
    shifts = shifts * len(axes) if len(shifts) == 1 else shifts
    if len(shifts) != len(axes):
        raise AxisError(f"roll: {len(shifts)} shifts for axes {axes}, expected one for each")
    return roll.bind(v, shift=shifts, axis=axes) if axes else v


def _tile_types(types: Types, p: Params) -> list[TensorType]:
    return [
        types[0].with_shape(tuple(r * n for r, n in zip(p["reps"], types[0].shape, strict=True)))
    ]


def _tile_transpose(n: Node, ct: Value, k: int) -> Value:
    shape = n.operands[0].shape
    pairs = tuple(s for r, m in zip(n.params["reps"], shape, strict=True) for s in (r, m))
    return total(reshape(ct, pairs), tuple(range(0, len(pairs), 2)))


@define(
    infer=_tile_types, linear=(0,), numpy=np.tile, transpose=_tile_transpose, onnx="Tile",
    batch=per_axis(reps=1),
    view=lambda index, types, p: tuple(
        i if r == 1 else i % n for i, n, r in zip(index, types[0].shape, p["reps"], strict=True)
    ),
    samples=(
        Sample((3,), reps=2), Sample((2, 3), reps=(2, 1)), Sample((2,), reps=(3, 2)),
        Sample((2, 1), reps=3), Sample((), reps=2), Sample((0, 2), reps=(2, 2)), Sample((2,), reps=0),
    ),
)  # fmt: skip
def tile(x: ArrayLike, reps: Any) -> Value:
    """x laid side by side, so many times along each axis."""
    v, times = as_value(x, "tile"), shape_of("tile", reps)
    v = reshape(v, (1,) * (len(times) - v.ndim) + v.shape)
    times = (1,) * (v.ndim - len(times)) + times
    return tile.bind(v, reps=times) if builtins.any(t != 1 for t in times) else v


@public
def repeat(x: ArrayLike, repeats: ArrayLike, axis: int | None = None) -> Value:
    """Each element along an axis (of the flat x when none is given) so many times in a row."""
    v = as_value(x, "repeat")
    v = reshape(v, (v.type.size,)) if axis is None else v
    a = axis_of("repeat", 0 if axis is None else axis, v.ndim)
    n = v.shape[a]
    counts = repeats if isinstance(repeats, Dim | int) else _counts(as_value(repeats, "repeat"))
    if not isinstance(counts, Dim | int):
        if not unify(n, len(counts), "repeat: one count for each element"):
            raise ShapeError(f"repeat: {len(counts)} counts for axis {a} of {v.type}")
        return take(v, np.repeat(np.arange(len(counts)), counts), a)
    (r,) = shape_of("repeat", counts)
    wide = broadcast(expand_dims(v, a + 1), (*v.shape[: a + 1], r, *v.shape[a + 1 :]))
    return reshape(wide, (*v.shape[:a], n * r, *v.shape[a + 1 :]))


def _counts(counts: Value) -> Any:
    """One number for all elements, or an array of one for each."""
    if counts.storage is None:
        raise TraceError(
            f"repeat: the counts {counts.type} are traced, so the size of the result is not known; "
            "pass an int or call it outside jit"
        )
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (host_data(counts) < 0).any():
        raise OperandError(f"repeat: the counts are {counts.type}, expected integers of 0 or more")
    data = host_data(counts)
    return int(data.reshape(())) if counts.type.size == 1 else data


@public
def broadcast_arrays(*xs: ArrayLike) -> list[Value]:
    """Tensors broadcast to the shape that they meet in."""
    vs = [as_value(x, "broadcast_arrays") for x in xs]
    if not vs:
        return []
    shape = broadcast_shapes("broadcast_arrays", [v.type for v in vs])
    return [broadcast(v, shape) for v in vs]


@public
def meshgrid(*xs: ArrayLike, indexing: str = "xy") -> list[Value]:
    """Coordinates of a grid: one tensor per axis given; 'xy' swaps the first two axes, 'ij' not."""
    vs = [as_value(x, "meshgrid") for x in xs]
    if indexing not in ("xy", "ij"):
        raise OperandError(f"meshgrid: indexing is {indexing!r}, expected 'xy' or 'ij'")
    for v in vs:
        if v.ndim > 1:
            raise ShapeError(f"meshgrid: got {v.type}, expected tensors of one axis")
    sizes = tuple(v.type.size for v in vs)
    spread = [
        broadcast(reshape(v, tuple(v.type.size if j == i else 1 for j in range(len(vs)))), sizes)
        for i, v in enumerate(vs)
    ]
    return [swapaxes(v, 0, 1) for v in spread] if indexing == "xy" and len(vs) > 1 else spread


@public
def unstack(x: ArrayLike, axis: int = 0) -> tuple[Value, ...]:
    """The parts of x along an axis, without that axis."""
    v = as_value(x, "unstack")
    a = axis_of("unstack", axis, v.ndim)
    front = (builtins.slice(None),) * a
    return tuple(index(v, (*front, i)) for i in range(int(v.shape[a])))


@public
def rot90(x: ArrayLike, k: int = 1, axes: Sequence[int] = (0, 1)) -> Value:
    """x turned by 90 degrees k times, from the first of two axes towards the second."""
    v = as_value(x, "rot90")
    pair = axes_of("rot90", tuple(axes), v.ndim)
    if len(pair) != 2:
        raise AxisError(f"rot90: axes are {tuple(axes)}, expected two")
    a, b = pair
    turns = whole("rot90", "k", k) % 4
    if turns == 2:
        return flip(v, (a, b))
    if turns == 1:
        return swapaxes(flip(v, b), a, b)
    return flip(swapaxes(v, a, b), b) if turns == 3 else v


# Masks by place


def _triangle(x: Value, k: int, upper: bool) -> Value:
    rows, columns = iota(x.shape[-2:], 0), iota(x.shape[-2:], 1)
    keep = ge(columns, add(rows, k)) if upper else ge(add(rows, k), columns)
    return where(keep, x, 0)


_TRIANGLE_SAMPLES = (
    Sample((3, 3)), Sample((2, 3, 4), k=1), Sample((4, 2), k=-2), Sample((0, 3)), Sample((1, 1)),
)  # fmt: skip


@define(
    infer=lambda types, p: types, linear=(0,), moves=True, onnx="Trilu", samples=_TRIANGLE_SAMPLES,
    decompose=lambda x, k: _triangle(x, k, False), numpy=np.tril, batch=leading,
    transpose=lambda n, ct, k: tril.bind(ct, **n.params),
)  # fmt: skip
def tril(x: ArrayLike, k: int = 0) -> Value:
    """The elements of matrices on and below the k-th diagonal, zeros elsewhere."""
    return tril.bind(_matrices("tril", x), k=whole("tril", "k", k))


@define(
    infer=lambda types, p: types, linear=(0,), moves=True, onnx="Trilu", samples=_TRIANGLE_SAMPLES,
    decompose=lambda x, k: _triangle(x, k, True), numpy=np.triu, batch=leading,
    transpose=lambda n, ct, k: triu.bind(ct, **n.params),
)  # fmt: skip
def triu(x: ArrayLike, k: int = 0) -> Value:
    """The elements of matrices on and above the k-th diagonal, zeros elsewhere."""
    return triu.bind(_matrices("triu", x), k=whole("triu", "k", k))


def _matrices(op: str, x: ArrayLike) -> Value:
    v = as_value(x, op)
    if v.ndim < 2:
        raise ShapeError(f"{op}: {v.type} has fewer than 2 axes")
    return v


def _one_hot_types(types: Types, p: Params) -> list[TensorType]:
    shape = list(types[0].shape)
    shape.insert(p["axis"], p["size"])
    return [TensorType(p["dtype"], tuple(shape))]


def _one_hot(i: Any, size: int, axis: int, dtype: Any) -> Any:
    return (np.expand_dims(i, axis) == np.expand_dims(
        np.arange(size), [a for a in range(i.ndim + 1) if a != axis]
    )).astype(dtype.np)  # fmt: skip


def _one_hot_by_iota(i: Value, size: Size, axis: int, dtype: Any) -> Value:
    (t,) = _one_hot_types([i.type], {"size": size, "axis": axis, "dtype": dtype})
    return cast_to(eq(expand_dims(i, axis), iota(t.shape, axis, i64)), dtype)


@define(
    infer=_one_hot_types, kinds="iu", decompose=_one_hot_by_iota, numpy=_one_hot, moves=True,
    onnx="OneHot", jvp=lambda n, ts: None,
    samples=(
        Sample(np.array([0, 2, 1]), size=3), Sample(np.array([[1], [5]]), size=2, axis=0),
        Sample(np.array(1), size=4, dtype="i32"), Sample(np.array([-1, 0]), size=1),
        Sample(np.zeros((0,), int), size=3), Sample(np.array([0]), size=0),
    ),
)  # fmt: skip
def one_hot(indices: ArrayLike, size: Any, dtype: Any = f32, axis: int = -1) -> Value:
    """1 at each index along a new axis and 0 elsewhere; all 0 for an index outside the axis."""
    given = as_value(indices, "one_hot")
    if given.dtype.kind not in "biu":
        raise DTypeError(
            f"one_hot: the indices are {given.type}, expected integers; cast them with astype"
        )
    (n,) = shape_of("one_hot", size)
    i = check_places("one_hot: index", given, 0, n - 1, f"an axis of {n}")
    i = cast_to(i, i64)
    a = axis_of("one_hot", axis, i.ndim + 1)
    return one_hot.bind(i, size=n, axis=a, dtype=as_dtype(dtype))


# Ranges


@public
def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Value:
    """Numbers from start (0 when only stop is given) up to stop, by step."""
    first, end = (0, start) if stop is None else (start, stop)
    for s in (first, end, step):
        if not isinstance(s, int | float | Dim | np.number) or isinstance(s, bool):
            raise OperandError(f"arange: {s!r:.60} is not a number")
        if isinstance(s, float) and not math.isfinite(s):
            raise OperandError(f"arange: {s!r:.60} is not a finite number")
    if not isinstance(step, Dim) and step == 0:
        raise OperandError("arange: the step is 0")
    size = _steps(first, end, step)
    whole = builtins.all(isinstance(s, int | Dim | np.integer) for s in (first, end, step))
    out = as_dtype(dtype) if dtype is not None else i64 if whole else f32
    if whole and isinstance(size, int) and size > 0:
        _check_ends(first, step, size, out)
    y = cast_to(iota((size,)), i64 if whole else f64)
    y = y if not isinstance(step, Dim) and step == 1 else mul(y, _number(step))
    y = y if not isinstance(first, Dim) and first == 0 else add(y, _number(first))
    return cast_to(y, out)


def _check_ends(first: Any, step: Any, size: int, out: DType) -> None:
    """Refuse integers that the dtype of a range cannot hold."""
    for end in (first, first + step * (size - 1)):
        if not isinstance(end, Dim):
            check_number(int(end), out, "arange")


def _number(x: Any) -> Any:
    return x.item() if isinstance(x, np.generic) else x


def _steps(start: Any, stop: Any, step: Any) -> Size:
    if not builtins.any(isinstance(s, Dim) for s in (start, stop, step)):
        return int(builtins.max(math.ceil((stop - start) / step), 0))
    if not builtins.all(isinstance(s, int | Dim) for s in (start, stop, step)):
        raise OperandError(
            f"arange: {start}, {stop}, {step} mix a symbolic size with a float; use whole numbers"
        )
    count: Size = 0 - (start - stop) // step
    return count if require("at_least", count, 0, "arange") else 0


@public
def linspace(
    start: ArrayLike, stop: ArrayLike, num: Any, dtype: Any = None, endpoint: bool = True
) -> Value:
    """So many numbers evenly spaced from start to stop, along a new first axis."""
    given = [as_value(x, "linspace") for x in (start, stop)]
    out = promote(*(floating(v).dtype for v in given)) if dtype is None else as_dtype(dtype)
    work = c128 if out.kind == "c" else f64
    # A number is taken in full: as a tensor of its own it would be rounded to f32.
    ends = [concrete(x, work) if isinstance(x, int | float | complex) else x for x in (start, stop)]
    a, b = (cast_to(v, work) for v in meet("linspace", ends))
    (n,) = shape_of("linspace", num)
    gaps = n - 1 if endpoint else n
    shape = (n, *a.shape)
    i = iota(shape)
    y = broadcast(a, shape)
    if gaps != 0:
        y = add(y, mul(cast_to(i, work), broadcast(div(sub(b, a), gaps), shape)))
    if endpoint and n != 1:
        y = where(eq(i, n - 1), broadcast(b, shape), y)
    if endpoint and isinstance(n, Dim):  # of one number, which has no gap, there is the start alone
        y = where(eq(i, 0), broadcast(a, shape), y)
    return cast_to(y, out)


@blames_arguments
def eye(rows: Any, columns: Any = None, k: int = 0, dtype: Any = f32) -> Value:
    """A matrix with ones on the k-th diagonal and zeros elsewhere."""
    shape = shape_of("eye", (rows, rows if columns is None else columns))
    return cast_to(eq(add(iota(shape, 0), int(k)), iota(shape, 1)), as_dtype(dtype))
