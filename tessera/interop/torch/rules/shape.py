"""Moving elements: views, slices, joins, padding; a view is a value like any other here."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dims import Dim, product
from tessera.core.dtype import i64
from tessera.interop.torch.rule import (
    AtenCall,
    NoRuleError,
    as_dtype,
    axes_of,
    axis_of,
    number,
    rule,
)
from tessera.lang import op


@rule("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy", "prims.view_of.default")
def _view(n: AtenCall, x: Any, size: Any = None, *_: Any) -> Any:
    return x if size is None else op.reshape(x, _settled(tuple(size), x.shape))


def _settled(size: tuple[Any, ...], shape: Any) -> tuple[Any, ...]:
    """Sizes with the one that is -1 computed; an empty tensor says nothing about it."""
    if -1 not in [s for s in size if isinstance(s, int)]:
        return size
    rest = product(tuple(s for s in size if not (isinstance(s, int) and s == -1)))
    made = product(tuple(shape)) // rest if rest != 0 else 0
    return tuple(made if isinstance(s, int) and s == -1 else s for s in size)


@rule("view.dtype")
def _view_dtype(n: AtenCall, x: Any, dtype: Any) -> Any:
    if x.dtype.bits != dtype.bits or dtype.bits not in (32, 64) or "c" in x.dtype.kind + dtype.kind:
        raise NoRuleError(f"the bits of {x.dtype} as {dtype}")
    return x if x.dtype is dtype else op.bitcast(x, dtype)


@rule("expand", "expand_copy")
def _expand(n: AtenCall, x: Any, size: Any, implicit: bool = False) -> Any:
    have = (1,) * (len(size) - x.ndim) + tuple(x.shape)
    want = tuple(
        h if isinstance(s, int) and s == -1 else s for s, h in zip(size, have, strict=True)
    )
    return op.broadcast_to(op.reshape(x, have) if len(have) != x.ndim else x, want)


@rule("permute", "permute_copy")
def _permute(n: AtenCall, x: Any, dims: Any) -> Any:
    return op.transpose(x, tuple(axis_of(d, x.ndim) for d in dims)) if x.ndim else x


@rule("t", "t_copy")
def _t(n: AtenCall, x: Any) -> Any:
    return op.transpose(x, (1, 0)) if x.ndim == 2 else x


@rule("transpose.int", "transpose_copy.int")
def _transpose(n: AtenCall, x: Any, a: int, b: int) -> Any:
    return op.swapaxes(x, axis_of(a, x.ndim), axis_of(b, x.ndim)) if x.ndim else x


@rule(
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "squeeze_copy.dim",
    "squeeze_copy.dims",
    "squeeze_copy",
)
def _squeeze(n: AtenCall, x: Any, dims: Any = None) -> Any:
    if not x.ndim:
        return x
    given = dims if isinstance(dims, list | tuple) else [dims]
    chosen = axes_of(dims, x.ndim) if dims is None else [axis_of(d, x.ndim) for d in given]
    gone = tuple(a for a in chosen if isinstance(x.shape[a], int) and x.shape[a] == 1)
    return op.squeeze(x, gone) if gone else x


@rule("unsqueeze", "unsqueeze_copy")
def _unsqueeze(n: AtenCall, x: Any, dim: int) -> Any:
    return op.expand_dims(x, dim % (x.ndim + 1))


@rule("select.int", "select_copy.int")
def _select(n: AtenCall, x: Any, dim: int, index: Any) -> Any:
    key = [slice(None)] * axis_of(dim, x.ndim)
    return op.index(x, (*key, index))


def _cut(x: Any, dim: int, start: Any, end: Any, step: Any) -> tuple[Any, ...]:
    """The key of a slice, whose ends PyTorch moves to lie inside."""
    axis, size = axis_of(dim, x.ndim), x.shape[axis_of(dim, x.ndim)]
    start = 0 if start is None else _inside(start, size)
    end = size if end is None else _inside(end, size)
    if isinstance(start, int) and isinstance(end, int):
        end = max(start, end)
    return (*[slice(None)] * axis, slice(start, end, step))


def _inside(i: Any, size: Any) -> Any:
    if isinstance(i, Dim):
        return i
    if isinstance(size, Dim):
        return size if i > 1 << 40 else i if i >= 0 else size + i
    i = i + size if i < 0 else i
    return min(max(i, 0), size)


@rule("slice.Tensor", "slice_copy.Tensor")
def _slice(
    n: AtenCall, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    return op.index(x, _cut(x, dim, start, end, step))


@rule("slice_scatter")
def _slice_scatter(
    n: AtenCall, x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    key = _cut(x, dim, start, end, step)
    whole = key[-1].step == 1 and key[-1].start == 0 and key[-1].stop is x.shape[len(key) - 1]
    src = as_dtype(src, x.dtype)
    return src if whole else op.update(x, key, src, "set")


@rule("select_scatter")
def _select_scatter(n: AtenCall, x: Any, src: Any, dim: int, index: Any) -> Any:
    key = [slice(None)] * axis_of(dim, x.ndim)
    return op.update(x, (*key, index), as_dtype(src, x.dtype), "set")


@rule("diagonal", "diagonal_copy")
def _diagonal(n: AtenCall, x: Any, offset: int = 0, a: int = 0, b: int = 1) -> Any:
    a, b = axis_of(a, x.ndim), axis_of(b, x.ndim)
    rest = [i for i in range(x.ndim) if i not in (a, b)]
    return op.diagonal(op.transpose(x, (*rest, a, b)), offset)


@rule("cat", "concat")
def _cat(n: AtenCall, xs: Any, dim: int = 0) -> Any:
    kept = [as_dtype(x, n.dtype) for x in xs if tuple(x.shape) != (0,)]
    if not kept:
        return as_dtype(xs[0], n.dtype)
    return op.concat(kept, axis_of(dim, kept[0].ndim)) if len(kept) > 1 else kept[0]


@rule("stack")
def _stack(n: AtenCall, xs: Any, dim: int = 0) -> Any:
    return op.stack([as_dtype(x, n.dtype) for x in xs], dim % (xs[0].ndim + 1))


@rule("split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(n: AtenCall, x: Any, sizes: Any, dim: int = 0) -> Any:
    return tuple(op.split(x, list(sizes), axis_of(dim, x.ndim)))


@rule("split.Tensor", "split_copy.Tensor")
def _split(n: AtenCall, x: Any, size: Any, dim: int = 0) -> Any:
    whole = x.shape[axis_of(dim, x.ndim)]
    if size == 0:
        return (x,)
    parts = max(-(-whole // size), 1)
    sizes = [size] * (parts - 1)
    return tuple(op.split(x, [*sizes, whole - size * (parts - 1)], axis_of(dim, x.ndim)))


@rule("unbind.int", "unbind_copy.int")
def _unbind(n: AtenCall, x: Any, dim: int = 0) -> Any:
    return tuple(op.unstack(x, axis=axis_of(dim, x.ndim)))


@rule("repeat")
def _repeat(n: AtenCall, x: Any, repeats: Any) -> Any:
    return (
        op.tile(op.reshape(x, (1,) * (len(repeats) - x.ndim) + tuple(x.shape)), tuple(repeats))
        if repeats
        else x
    )


@rule("flip")
def _flip(n: AtenCall, x: Any, dims: Any) -> Any:
    return op.flip(x, tuple(axis_of(d, x.ndim) for d in dims)) if dims and x.ndim else x


@rule("roll")
def _roll(n: AtenCall, x: Any, shifts: Any, dims: Any = ()) -> Any:
    if not x.ndim:
        return x
    if not dims:
        return op.reshape(op.roll(op.reshape(x, (-1,)), shifts[0], 0), x.shape)
    for s, d in zip(shifts, dims, strict=True):
        x = op.roll(x, s, axis_of(d, x.ndim))
    return x


@rule("tril")
def _tril(n: AtenCall, x: Any, k: int = 0) -> Any:
    return op.tril(x, k)


@rule("triu")
def _triu(n: AtenCall, x: Any, k: int = 0) -> Any:
    return op.triu(x, k)


@rule("constant_pad_nd")
def _constant_pad(n: AtenCall, x: Any, pad: Any, value: Any = 0) -> Any:
    width = _widths(x.ndim, pad)
    if any(isinstance(w, int) and w < 0 for pair in width for w in pair):
        cut = tuple(
            slice(max(-low, 0), s - max(-high, 0))
            for s, (low, high) in zip(x.shape, width, strict=True)
        )
        x, width = op.index(x, cut), [(max(low, 0), max(high, 0)) for low, high in width]
    return op.pad(x, width, as_dtype(value, x.dtype))


def _widths(rank: int, pad: Any) -> list[tuple[Any, Any]]:
    """PyTorch's widths, which start with the last axis, in the order of axes."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(pairs)) + pairs[::-1]


def _mirrored(x: Any, pad: Any, edge: bool) -> Any:
    for axis, (low, high) in enumerate(_widths(x.ndim, pad)):
        if low or high:
            size = int(x.shape[axis])
            at = np.arange(-low, size + high)
            turn = max(2 * (size - 1), 1)
            folded = np.abs(at) % turn
            inside = (
                np.clip(at, 0, size - 1)
                if edge
                else np.where(folded >= size, turn - folded, folded)
            )
            x = op.take(x, inside, axis)
    return x


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection_pad(n: AtenCall, x: Any, pad: Any) -> Any:
    return _mirrored(x, pad, False)


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(n: AtenCall, x: Any, pad: Any) -> Any:
    return _mirrored(x, pad, True)


@rule("as_strided", "as_strided_copy")
def _as_strided(n: AtenCall, x: Any, size: Any, stride: Any, offset: Any = 0) -> Any:
    """Elements of the memory of a dense tensor: a view where the strides nest, else by their places."""
    flat, start = _memory(n, x), 0 if offset is None else offset
    inner = _nested(size, stride)
    if inner is None:
        return op.take(flat, _memory_places(size, stride, start), 0)
    count = product(tuple(size[a] for a in inner))
    if not (start == 0 and count == flat.shape[0]):
        flat = op.index(flat, (slice(start, start + count),))
    y = op.reshape(flat, tuple(size[a] for a in inner))
    y = op.transpose(y, _inverse(inner)) if len(inner) > 1 else y
    y = op.reshape(y, tuple(s if a in inner else 1 for a, s in enumerate(size)))
    return op.broadcast_to(y, tuple(size))


def _nested(size: Any, stride: Any) -> tuple[int, ...] | None:
    """The axes that move, from the one of the largest stride on, where they fill their memory in that order;
    None where they skip or repeat some of it.  An axis of one element, or of stride 0, does not move.
    """
    left = [a for a, (s, k) in enumerate(zip(size, stride, strict=True)) if s != 1 and k != 0]
    order: list[int] = []
    filled: Any = 1
    while left:
        found = next((a for a in left if stride[a] == filled), None)
        if found is None:
            return None
        order.insert(0, found)
        left.remove(found)
        filled = filled * size[found]
    return tuple(order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that puts axes in this order, the k-th smallest of them at k, back in theirs."""
    return tuple(sorted(range(len(order)), key=lambda i: order[i]))


def _memory(n: AtenCall, x: Any) -> Any:
    """The elements of x as they lie in PyTorch's memory."""
    if n.memory is None:
        raise NoRuleError("strides of a tensor that is not dense")
    return op.reshape(op.transpose(x, n.memory) if x.ndim > 1 else x, (-1,))


def _memory_places(size: Any, stride: Any, offset: Any) -> Any:
    """Where in memory each element is."""
    places = op.broadcast_to(as_dtype(offset, i64), tuple(size))
    for axis, k in enumerate(stride):
        step = op.mul(op.iota(tuple(size), axis, i64), as_dtype(k, i64))
        places = op.add(places, step)
    return places


@rule("sym_size.int")
def _sym_size(n: AtenCall, x: Any, dim: int) -> Any:
    return x.shape[axis_of(dim, x.ndim)]


@rule("sym_numel")
def _sym_numel(n: AtenCall, x: Any) -> Any:
    return product(tuple(x.shape))


@rule("unfold", "unfold_copy")
def _unfold(n: AtenCall, x: Any, dim: int, size: Any, step: Any) -> Any:
    axis = axis_of(dim, x.ndim)
    if not x.ndim:
        raise NoRuleError("windows of a scalar")
    return op.moveaxis(op.windows(op.moveaxis(x, axis, -1), size, stride=step), -2, axis)


@rule("im2col")
def _im2col(n: AtenCall, x: Any, size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    batched = x if x.ndim == 4 else op.expand_dims(x, 0)
    width = [(0, 0), (0, 0), *((p, p) for p in padding)]
    seen = op.windows(
        op.pad(batched, width), tuple(size), stride=tuple(stride), dilation=tuple(dilation)
    )
    b, c, h, w, kh, kw = seen.shape
    y = op.reshape(op.transpose(seen, (0, 1, 4, 5, 2, 3)), (b, c * kh * kw, h * w))
    return y if x.ndim == 4 else op.squeeze(y, 0)


@rule("col2im")
def _col2im(
    n: AtenCall, x: Any, image: Any, size: Any, dilation: Any, padding: Any, stride: Any
) -> Any:
    batched = x if x.ndim == 3 else op.expand_dims(x, 0)
    full = [s + 2 * p for s, p in zip(image, padding, strict=True)]
    places = [
        (f - d * (k - 1) - 1) // s + 1
        for f, k, s, d in zip(full, size, stride, dilation, strict=True)
    ]
    b, c = batched.shape[0], batched.shape[1] // (size[0] * size[1])
    split = op.transpose(op.reshape(batched, (b, c, *size, *places)), (0, 1, 4, 5, 2, 3))
    y = op.fold_windows(split, tuple(full), stride=tuple(stride), dilation=tuple(dilation))
    cut = tuple(slice(p, p + s) for p, s in zip(padding, image, strict=True))
    y = op.index(y, (slice(None), slice(None), *cut))
    return y if x.ndim == 3 else op.squeeze(y, 0)


@rule("view_as_real", "view_as_real_copy")
def _view_as_real(n: AtenCall, x: Any) -> Any:
    return op.stack([op.real(x), op.imag(x)], -1)


@rule("view_as_complex", "view_as_complex_copy")
def _view_as_complex(n: AtenCall, x: Any) -> Any:
    return op.complex(op.index(x, (..., 0)), op.index(x, (..., 1)))


@rule("repeat_interleave.self_int")
def _repeat_interleave(
    n: AtenCall, x: Any, repeats: Any, dim: Any = None, output_size: Any = None
) -> Any:
    return op.repeat(x, repeats, axis=None if dim is None else axis_of(dim, x.ndim))


@rule("arange.start_step", "arange.start", "arange")
def _arange(n: AtenCall, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Any:
    if end is None:
        start, end = 0, start
    if n.dtype.kind != "f":
        return as_dtype(op.arange(start, end, step, i64), n.dtype)
    if any(isinstance(x, Dim) for x in (start, end, step)):
        raise NoRuleError("floats by symbolic sizes")
    count = max(int(np.ceil((end - start) / step)), 0)
    return number(np.arange(count) * float(step) + start, n.dtype)


@rule("linspace")
def _linspace(n: AtenCall, start: Any, end: Any, steps: Any, **_: Any) -> Any:
    if n.dtype.kind != "f" or isinstance(steps, Dim):
        raise NoRuleError(f"evenly spaced numbers of {n.dtype}")
    return number(np.linspace(start, end, steps), n.dtype)


@rule("full", "new_full", "full_like", "fill.Scalar", "fill.Tensor")
def _full(n: AtenCall, *args: Any, **_: Any) -> Any:
    like = n.target.split(".")[1]
    if like in ("full_like", "fill"):
        return op.broadcast_to(as_dtype(args[1], n.dtype), args[0].shape)
    size, value = args[-2:]
    return op.broadcast_to(as_dtype(value, n.dtype), tuple(size))


@rule(
    "zeros", "ones", "new_zeros", "new_ones", "zeros_like", "ones_like", "empty_like", "new_empty"
)
def _filled(n: AtenCall, x: Any, size: Any = None, **_: Any) -> Any:
    name = n.target.split(".")[1]
    shape = tuple(x.shape) if name.endswith("like") else tuple(x if size is None else size)
    return op.full(shape, number(1 if "ones" in name else 0, n.dtype), n.dtype)


@rule("empty.memory_format", "empty_strided", "empty_permuted", "new_empty_strided")
def _empty(n: AtenCall, x: Any, *args: Any, **_: Any) -> Any:
    size = args[0] if n.target.startswith("aten.new") else x
    return op.full(tuple(size), number(0, n.dtype), n.dtype)


@rule("scalar_tensor")
def _scalar_tensor(n: AtenCall, x: Any, **_: Any) -> Any:
    return as_dtype(x, n.dtype)


@rule("eye", "eye.m")
def _eye(n: AtenCall, rows: int, columns: int | None = None, **_: Any) -> Any:
    return number(np.eye(rows, columns), n.dtype)


@rule("as_strided_scatter")
def _as_strided_scatter(
    n: AtenCall, x: Any, src: Any, size: Any, stride: Any, offset: Any = 0
) -> Any:
    """x, a dense tensor, with elements of its memory replaced."""
    places, src = _memory_places(size, stride, offset or 0), as_dtype(src, x.dtype)
    flat, at = op.reshape(src, (-1,)), op.reshape(places, (-1,))
    written = op.scatter(_memory(n, x), flat, at, axes=(0,))
    order = n.memory or ()
    moved = op.reshape(written, tuple(x.shape[i] for i in order))
    return op.transpose(moved, _inverse(order)) if x.ndim > 1 else moved


@rule("narrow_copy")
def _narrow(n: AtenCall, x: Any, dim: int, start: Any, length: Any) -> Any:
    return _slice(n, x, dim, start, start + length)


@rule("_assert_tensor_metadata")
def _settled_metadata(n: AtenCall, *_: Any, **__: Any) -> None:
    """Nothing: types are known while tracing."""


@rule("diagonal_scatter")
def _diagonal_scatter(
    n: AtenCall, x: Any, src: Any, offset: int = 0, a: int = 0, b: int = 1
) -> Any:
    a, b = axis_of(a, x.ndim), axis_of(b, x.ndim)
    order = (*(i for i in range(x.ndim) if i not in (a, b)), a, b)
    moved, i = op.transpose(x, order), op.arange(src.shape[-1])
    key = (..., op.add(i, max(-offset, 0)), op.add(i, max(offset, 0)))
    written = op.update(moved, key, as_dtype(src, x.dtype), "set")
    return op.transpose(written, tuple(sorted(range(x.ndim), key=order.__getitem__)))
