"""Moving elements: shapes, slices, gathers, padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.core.dims import Dim, product
from tessera.core.dtype import i64
from tessera.interop.onnx import assume
from tessera.interop.onnx import sizes as arithmetic
from tessera.interop.onnx.model import DTYPES, DataDependentError, OnnxError
from tessera.interop.onnx.rule import (
    NodeCall,
    Sizes,
    axes_of,
    axis_of,
    host,
    integers,
    is_known,
    numpy_dtype,
    one,
    rule,
    scalar_like,
    shape_of,
    tensor,
)
from tessera.lang import op
from tessera.ops.define import as_value


@rule("Identity", fold=False, moves=True, sizes=True)
def _identity(n: NodeCall, x: Any = None) -> Any:
    return x


@rule("Constant", fold=False)
def _constant(n: NodeCall) -> Any:
    for name in ("value", "sparse_value"):
        if name in n.node.attributes:
            return n.need(name)
    if "value_string" in n.node.attributes:
        return _text([n.need("value_string")]).reshape(())
    if "value_strings" in n.node.attributes:
        return _text(n.need("value_strings"))
    for name, kind in (
        ("value_float", np.float32), ("value_floats", np.float32),
        ("value_int", np.int64), ("value_ints", np.int64),
    ):  # fmt: skip
        if name in n.node.attributes:
            return np.array(n.need(name), kind)
    raise OnnxError("has no value")


def _text(strings: list[str]) -> Any:
    out = np.empty(len(strings), object)
    out[:] = strings
    return out


@rule("Shape", fold=False, sizes=True)
def _shape(n: NodeCall, x: Any) -> Any:
    sizes = shape_of(x)[slice(n.get("start", 0), n.get("end"))]
    return arithmetic.made(sizes) if sizes else np.zeros(0, np.int64)


@rule("Size", fold=False)
def _size(n: NodeCall, x: Any) -> Any:
    return arithmetic.made(product(shape_of(x)))


@rule("Reshape", moves=True, sizes=True)
def _reshape(n: NodeCall, x: Any, shape: Any = None) -> Any:
    want = n.need("shape") if shape is None else integers(shape, "shape")
    x, kept = tensor(x), shape_of(x)
    if not n.get("allowzero", 0):
        want = [kept[i] if isinstance(s, int) and s == 0 else s for i, s in enumerate(want)]
    return op.reshape(x, tuple(want))


@rule("Flatten", moves=True)
def _flatten(n: NodeCall, x: Any) -> Any:
    shape = shape_of(x)
    axis = n.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return op.reshape(x, (product(shape[:axis]), product(shape[axis:])))


@rule("Squeeze", moves=True)
def _squeeze(n: NodeCall, x: Any, axes: Any = None) -> Any:
    given = n.get("axes") if axes is None else integers(axes, "axes")
    shape = shape_of(x)
    chosen = (
        [i for i, s in enumerate(shape) if s == 1] if given is None else axes_of(given, len(shape))
    )
    return op.reshape(x, tuple(s for i, s in enumerate(shape) if i not in chosen))


@rule("Unsqueeze", moves=True)
def _unsqueeze(n: NodeCall, x: Any, axes: Any = None) -> Any:
    given = n.need("axes") if axes is None else integers(axes, "axes")
    shape = list(shape_of(x))
    for a in sorted(axes_of(given, len(shape) + len(given))):
        shape.insert(a, 1)
    return op.reshape(x, tuple(shape))


@rule("Transpose", moves=True)
def _transpose(n: NodeCall, x: Any) -> Any:
    perm = n.get("perm")
    return op.transpose(x, tuple(perm) if perm is not None else None)


@rule("Concat", moves=True)
def _concat(n: NodeCall, *xs: Any) -> Any:
    return op.concat(xs, n.get("axis", 1) if n.version < 4 else n.need("axis"))


@rule("Split", moves=True, sizes=True)
def _split(n: NodeCall, x: Any, parts: Any = None) -> Any:
    x = tensor(x)
    axis = axis_of(n.get("axis", 0), len(x.shape))
    given = n.get("split") if parts is None else integers(parts, "split")
    if given is None:
        count = n.get("num_outputs", n.outputs)
        size = x.shape[axis]
        each = -(-size // count)
        given = [each] * (count - 1)
        given.append(size - each * (count - 1))
    return tuple(op.split(x, given, axis))


@rule("Slice", moves=True, sizes=True)
def _slice(
    n: NodeCall, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Any:
    x = tensor(x)
    if n.version >= 10 and assume.allowed() and not (_is_size(starts) and _is_size(ends)):
        return _moving_slice(x, starts, ends, axes, steps)
    if n.version < 10:
        start, stop, along = n.need("starts"), n.need("ends"), n.get("axes")
    else:
        start, stop = integers(starts, "starts"), integers(ends, "ends")
        along = None if axes is None else integers(axes, "axes")
    step = [1] * len(start) if steps is None else integers(steps, "steps")
    where = range(len(start)) if along is None else axes_of(along, len(x.shape))
    key: list[Any] = [slice(None)] * len(x.shape)
    for k, axis in enumerate(where):
        key[axis] = _range(start[k], stop[k], step[k], x.shape[axis])
    return op.index(x, tuple(key))


def _is_size(x: Any) -> bool:
    return is_known(x) or isinstance(x, Sizes)


def _moving_slice(x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    """A slice whose ends are data, of the length that they are apart."""
    count = int(starts.shape[0])
    along = range(count) if axes is None else axes_of(integers(axes, "axes"), len(x.shape))
    at: list[Any] = [0] * len(x.shape)
    sizes = list(x.shape)
    plain = steps is None or all(s == 1 for s in integers(steps, "steps"))
    for k, axis in enumerate(along):
        start, stop = (op.reshape(op.index(tensor(v), slice(k, k + 1)), ()) for v in (starts, ends))
        size = assume.distance(starts if count == 1 else start, ends if count == 1 else stop)
        if size is None or not plain or not isinstance(sizes[axis], int):
            raise DataDependentError("starts and ends are computed from the inputs of the model")
        whole = op.logical_and(op.ge(start, 0), op.le(stop, sizes[axis]))
        assume.assume(op.logical_and(op.eq(op.sub(stop, start), size), whole))
        at[axis], sizes[axis] = start, size
    return op.dynamic_slice(x, tuple(at), tuple(sizes))


def _range(start: Any, stop: Any, step: Any, size: Any) -> slice:
    """A slice that stops before the first element where an ONNX slice does."""
    if step == 0:
        raise OnnxError("steps has a zero")
    if isinstance(stop, int) and stop > 1 << 30 and step > 0:  # "to the end", whatever the size is
        stop = None
    if step < 0 and isinstance(stop, int) and isinstance(size, int) and stop < -size:
        stop = None
    if step < 0 and isinstance(start, int) and isinstance(size, int):
        start = min(start, size - 1)
    return slice(start, stop, step)


@rule("Expand", moves=True, sizes=True)
def _expand(n: NodeCall, x: Any, shape: Any) -> Any:
    x, want = tensor(x), integers(shape, "shape")
    have = (1,) * (len(want) - len(x.shape)) + shape_of(x)
    want = [1] * (len(have) - len(want)) + want
    out = tuple(h if w == 1 else w for h, w in zip(have, want, strict=True))
    return op.broadcast_to(op.reshape(x, have), out)


@rule("Tile", moves=True, sizes=True)
def _tile(n: NodeCall, x: Any, repeats: Any, axis: Any = None) -> Any:
    return op.tile(tensor(x), tuple(integers(repeats, "repeats")))


@rule("ConstantOfShape", sizes=True, fold=False)
def _constant_of_shape(n: NodeCall, shape: Any) -> Any:
    value = n.get("value", np.zeros(1, np.float32)).reshape(-1)
    sizes = tuple(integers(shape, "shape"))
    if any(isinstance(s, Dim) for s in sizes):
        return op.full(sizes, value[0].item(), numpy_dtype(value))
    return _filled(sizes, value[0], value.dtype)


def _filled(sizes: tuple[int, ...], value: Any, kind: np.dtype[Any]) -> Any:
    if any(s < 0 for s in sizes):
        raise OnnxError(f"the shape is {sizes}")
    return np.broadcast_to(np.asarray(value, kind), sizes)


@rule("EyeLike")
def _eye_like(n: NodeCall, x: Any) -> Any:
    kind = DTYPES[n.need("dtype")] if "dtype" in n.node.attributes else numpy_dtype(x)
    rows, columns = shape_of(x)
    return np.eye(int(rows), int(columns), n.get("k", 0)).astype(kind)


@rule("Range", sizes=True)
def _range_of(n: NodeCall, start: Any, limit: Any, delta: Any) -> Any:
    if any(isinstance(x, Sizes) for x in (start, limit, delta)):
        a, b, s = (one(x, "a bound") for x in (start, limit, delta))
        return op.arange(a, b, s, i64)
    if assume.allowed() and not (is_known(start) and is_known(limit)) and is_known(delta):
        size = assume.distance(start, limit) if one(delta, "delta") == 1 else None
        if size is not None:
            assume.assume(op.eq(op.sub(limit, start), size))
            return op.add(start, op.arange(0, size, 1, as_value(start).dtype))
    a, b, s = (host(x, "a bound").reshape(()) for x in (start, limit, delta))
    wide = np.float64 if a.dtype.kind == "f" else np.int64
    count = max(math.ceil((b.astype(wide) - a.astype(wide)) / s.astype(wide)), 0)
    if count > 1 << 40:
        raise OnnxError(f"a range of {count} numbers is too long")
    if a.dtype.kind != "f":
        return (np.arange(count) * s + a).astype(a.dtype)
    return (np.arange(count).astype(a.dtype) * s + a).astype(a.dtype)


@rule("Gather", moves=True)
def _gather(n: NodeCall, x: Any, indices: Any) -> Any:
    return op.take(x, indices, axis_of(n.get("axis", 0), len(x.shape)))


@rule("GatherElements", moves=True)
def _gather_elements(n: NodeCall, x: Any, indices: Any) -> Any:
    """For each place of indices its element along an axis; other axes of x may be longer."""
    axis = axis_of(n.get("axis", 0), len(x.shape))
    return op.gather(x, *_places(x, indices, axis))


def _places(x: Any, indices: Any, axis: int) -> list[Any]:
    """One index tensor for each axis of x."""
    index, shape = op.cast(indices, i64), shape_of(indices)
    index = op.where(op.lt(index, 0), op.add(index, x.shape[axis]), index)
    return [index if k == axis else op.iota(shape, k) for k in range(len(x.shape))]


@rule("GatherND", moves=True)
def _gather_nd(n: NodeCall, x: Any, indices: Any) -> Any:
    batch = n.get("batch_dims", 0)
    return op.gather(x, *_tuples(x, indices, batch), axes=_first(indices, batch))


def _tuples(x: Any, indices: Any, batch: int) -> list[Any]:
    """The index tensors that the last axis of indices holds."""
    index, shape = op.cast(indices, i64), shape_of(indices)[:-1]
    depth = int(indices.shape[-1])
    parts = []
    for k in range(depth):
        i = op.index(index, (..., k))
        parts.append(op.where(op.lt(i, 0), op.add(i, x.shape[batch + k]), i))
    return [op.iota(shape, k) for k in range(batch)] + parts


def _first(indices: Any, batch: int) -> tuple[int, ...]:
    return tuple(range(batch + int(indices.shape[-1])))


_HOW = {
    "none": op.scatter, "add": op.scatter_add, "mul": op.scatter_mul, "max": op.scatter_max,
    "min": op.scatter_min,
}  # fmt: skip


@rule("ScatterElements", "Scatter", moves=True)
def _scatter_elements(n: NodeCall, x: Any, indices: Any, updates: Any) -> Any:
    axis = axis_of(n.get("axis", 0), len(x.shape))
    return _HOW[n.get("reduction", "none")](x, updates, *_places(x, indices, axis))


@rule("ScatterND", moves=True)
def _scatter_nd(n: NodeCall, x: Any, indices: Any, updates: Any) -> Any:
    how = _HOW[n.get("reduction", "none")]
    return how(x, updates, *_tuples(x, indices, 0), axes=_first(indices, 0))


@rule("TensorScatter")
def _tensor_scatter(n: NodeCall, past: Any, update: Any, at: Any = None) -> Any:
    """Write rows of update along an axis of a cache, from a place for each element of the batch."""
    axis = axis_of(n.get("axis", -2), len(past.shape))
    past, update = as_value(past), as_value(update)
    start = op.zeros((past.shape[0],), i64) if at is None else op.cast(at, i64)
    shape = shape_of(update)
    place = op.add(op.iota(shape, axis), op.reshape(start, (-1, *(1,) * (len(shape) - 1))))
    if n.get("mode", "linear") == "circular":
        place = op.remainder(place, past.shape[axis])
    index = [place if k == axis else op.iota(shape, k) for k in range(len(shape))]
    return op.scatter(past, update, *index)


@rule("OneHot", sizes=True)
def _one_hot(n: NodeCall, indices: Any, depth: Any, values: Any) -> Any:
    size = one(depth, "depth")
    size = size if isinstance(size, Dim) else int(size)
    index = op.cast(tensor(indices), i64)
    index = op.where(op.lt(index, 0), op.add(index, size), index)
    rank = len(index.shape) + 1
    axis = axis_of(n.get("axis", -1), rank)
    at = op.reshape(op.arange(size), tuple(size if k == axis else 1 for k in range(rank)))
    hot = op.eq(op.expand_dims(index, axis), at)
    return op.where(hot, op.index(values, 1), op.index(values, 0))


@rule("Pad", moves=True, sizes=True)
def _pad(n: NodeCall, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    x = tensor(x)
    rank = len(x.shape)
    if n.version < 11:
        given, fill = n.get("pads", n.get("paddings")), n.get("value", 0.0)
    else:
        given, fill = integers(pads, "pads"), value
    along = list(range(rank)) if axes is None else axes_of(integers(axes, "axes"), rank)
    width: list[tuple[Any, Any]] = [(0, 0)] * rank
    for k, axis in enumerate(along):
        width[axis] = (given[k], given[k + len(along)])
    mode = n.get("mode", "constant")
    if mode == "constant":
        number = scalar_like(x, 0) if fill is None else fill
        fit = number if hasattr(number, "dtype") else scalar_like(x, number)
        return _padded(x, width, op.reshape(fit, ()))
    for axis, (low, high) in enumerate(width):
        if low or high:
            x = op.take(x, _reflected(int(x.shape[axis]), low, high, mode), axis)
    return x


def _padded(x: Any, width: list[tuple[Any, Any]], fill: Any) -> Any:
    """x with a fill around it; a negative width cuts."""
    negative = any(isinstance(w, int) and w < 0 for pair in width for w in pair)
    if negative:
        cut = tuple(
            slice(max(-low, 0), s - max(-high, 0))
            for s, (low, high) in zip(x.shape, width, strict=True)
        )
        x = op.index(x, cut)
        width = [(max(low, 0), max(high, 0)) for low, high in width]
    return op.pad(x, width, fill)


def _reflected(size: int, low: int, high: int, mode: str) -> Any:
    """The places along an axis that padding by this mode reads."""
    at = np.arange(-low, size + high)
    if mode == "edge":
        return np.clip(at, 0, size - 1)
    if mode == "wrap":
        return at % size
    if mode != "reflect":
        raise OnnxError(f"mode is '{mode}', expected constant, reflect, edge or wrap")
    turn = 2 * (size - 1)
    at = np.abs(at) % turn if turn else np.zeros_like(at)
    return np.where(at >= size, turn - at, at)


@rule("CenterCropPad", moves=True, sizes=True)
def _center_crop_pad(n: NodeCall, x: Any, shape: Any) -> Any:
    x, want = tensor(x), integers(shape, "shape")
    rank = len(x.shape)
    axes = axes_of(n.get("axes", range(rank)), rank)
    key: list[Any] = [slice(None)] * rank
    width: list[tuple[Any, Any]] = [(0, 0)] * rank
    for axis, size in zip(axes, want, strict=True):
        have = int(x.shape[axis])
        if have > size:
            start = (have - size) // 2
            key[axis] = slice(start, start + size)
        else:
            low = (size - have) // 2
            width[axis] = (low, size - have - low)
    return op.pad(op.index(x, tuple(key)), width, scalar_like(x, 0))


@rule("DepthToSpace")
def _depth_to_space(n: NodeCall, x: Any) -> Any:
    b, c, h, w = shape_of(x)
    k = n.need("blocksize")
    if n.get("mode", "DCR") == "DCR":
        split = op.transpose(op.reshape(x, (b, k, k, c // (k * k), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        split = op.transpose(op.reshape(x, (b, c // (k * k), k, k, h, w)), (0, 1, 4, 2, 5, 3))
    return op.reshape(split, (b, c // (k * k), h * k, w * k))


@rule("SpaceToDepth")
def _space_to_depth(n: NodeCall, x: Any) -> Any:
    b, c, h, w = shape_of(x)
    k = n.need("blocksize")
    split = op.reshape(x, (b, c, h // k, k, w // k, k))
    if n.get("mode", "DCR") == "DCR":
        moved = op.transpose(split, (0, 3, 5, 1, 2, 4))
    else:
        moved = op.transpose(split, (0, 1, 3, 5, 2, 4))
    return op.reshape(moved, (b, c * k * k, h // k, w // k))


@rule("Trilu", sizes=True)
def _trilu(n: NodeCall, x: Any, k: Any = None) -> Any:
    offset = 0 if k is None else int(one(k, "k"))
    return (op.triu if n.get("upper", 1) else op.tril)(tensor(x), offset)


@rule("ReverseSequence")
def _reverse_sequence(n: NodeCall, x: Any, lengths: Any) -> Any:
    """Elements before each length in reverse order, along the axis of time."""
    time, batch = n.get("time_axis", 0), n.get("batch_axis", 1)
    shape = shape_of(x)
    t = op.iota(shape, time)
    view = tuple(s if k == batch else 1 for k, s in enumerate(shape))
    last = op.broadcast_to(op.reshape(op.cast(lengths, i64), view), shape)
    at = op.where(op.lt(t, last), op.sub(op.sub(last, t), 1), t)
    return op.take_along_axis(x, at, time)


@rule("Compress", host=True, moves=True)
def _compress(n: NodeCall, x: Any, condition: Any) -> Any:
    axis = n.get("axis")
    return np.compress(condition, x, axis)


@rule("NonZero", host=True)
def _nonzero(n: NodeCall, x: Any) -> Any:
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)


@rule("Unique", host=True)
def _unique(n: NodeCall, x: Any) -> Any:
    axis = n.get("axis")
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not n.get("sorted", 1):
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        y = np.take(y, order, axis=axis or 0)
        first, inverse, counts = first[order], place[inverse], counts[order]
    return (y, *(v.astype(np.int64) for v in (first, inverse, counts)))


@rule("Col2Im")
def _col2im(n: NodeCall, x: Any, image: Any, block: Any) -> Any:
    """Blocks of columns added up where they came from in the image."""
    size, window = integers(image, "image_shape"), integers(block, "block_shape")
    rank = len(size)
    stride, dilation = n.get("strides", [1] * rank), n.get("dilations", [1] * rank)
    pads = n.get("pads", [0] * 2 * rank)
    padded = [s + pads[k] + pads[k + rank] for k, s in enumerate(size)]
    places = [
        (p - d * (w - 1) - 1) // s + 1
        for p, w, s, d in zip(padded, window, stride, dilation, strict=True)
    ]
    batch, columns = x.shape[0], x.shape[1]
    channels = columns // math.prod(window)
    split = op.reshape(x, (batch, channels, *window, *places))
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    y = op.fold_windows(
        op.transpose(split, order), tuple(padded), stride=tuple(stride), dilation=tuple(dilation)
    )
    cut = tuple(slice(pads[k], pads[k] + size[k]) for k in range(rank))
    return op.index(y, (slice(None), slice(None), *cut))
