"""Ops of the Graph IR as ONNX nodes: what is not elementwise."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Dim
from tessera.core.dtype import DType, u64
from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.writer import OnnxWriter
from tessera.ir.graph.ir import Node, host_data

Emit = Callable[..., Any]
EMITTERS: dict[str, Emit] = {}


def emits(*names: str) -> Callable[[Emit], Emit]:
    """Decorator: how ops of these names are written."""

    def enter(f: Emit) -> Emit:
        for name in names:
            EMITTERS[name] = f
        return f

    return enter


@emits("stop_gradient", "positive", "checkpoint_name", "ensure", "watch")
def _identity(w: OnnxWriter, n: Node, x: str, *rest: str) -> Any:
    return w.emit("Identity", x)


@emits("barrier")
def _barrier(w: OnnxWriter, n: Node, *xs: str) -> Any:
    return tuple(w.emit("Identity", x) for x in xs)


@emits("state_prefetch")
def _prefetch(w: OnnxWriter, n: Node, x: str) -> Any:
    """A wish that a runtime of ONNX has no word for: the number that it returns."""
    return w.emit("Identity", w.constant(np.zeros((), n.results[0].dtype.np)))


@emits("cast")
def _cast(w: OnnxWriter, n: Node, x: str) -> Any:
    return w.cast(x, n.params["dtype"].np)


@emits("constant")
def _constant(w: OnnxWriter, n: Node) -> Any:
    value = n.params["value"]
    return w.constant(value.array if hasattr(value, "array") else host_data(value))


@emits("full")
def _full(w: OnnxWriter, n: Node) -> Any:
    number = w.constant(np.asarray(n.params["value"]).astype(n.params["dtype"].np))
    shape = n.params["shape"]
    if n.params["dtype"].kind == "c":
        shape = (*shape, 2)
    return w.emit("Expand", number, w.shape(shape)) if shape else w.emit("Identity", number)


@emits("iota")
def _iota(w: OnnxWriter, n: Node) -> Any:
    shape, axis = n.params["shape"], n.params["axis"]
    count = w.emit("Squeeze", w.size(shape[axis]))
    steps = w.emit("Range", w.constant(np.array(0)), count, w.constant(np.array(1)))
    view = w.emit("Reshape", steps, w.ints([-1 if k == axis else 1 for k in range(len(shape))]))
    return w.cast(w.emit("Expand", view, w.shape(shape)), n.params["dtype"].np)


@emits("dim")
def _dim(w: OnnxWriter, n: Node) -> Any:
    return w.emit("Squeeze", w.size(n.params["size"]))


@emits("reshape")
def _reshape(w: OnnxWriter, n: Node, x: str) -> Any:
    return w.emit("Reshape", x, w.shape(n.params["shape"]), allowzero=1)


@emits("broadcast_to")
def _broadcast(w: OnnxWriter, n: Node, x: str) -> Any:
    return w.emit("Expand", x, w.shape(n.params["shape"]))


@emits("transpose")
def _transpose(w: OnnxWriter, n: Node, x: str) -> Any:
    return w.emit("Transpose", x, perm=list(n.params["axes"]))


@emits("slice")
def _slice(w: OnnxWriter, n: Node, x: str) -> Any:
    p = n.params
    axes = w.ints(range(len(p["start"])))
    return w.emit("Slice", x, w.shape(p["start"]), w.shape(p["stop"]), axes, w.shape(p["step"]))


@emits("concat")
def _concat(w: OnnxWriter, n: Node, *xs: str) -> Any:
    return w.emit("Concat", *xs, axis=n.params["axis"])


@emits("tile")
def _tile(w: OnnxWriter, n: Node, x: str) -> Any:
    return w.emit("Tile", x, w.shape(n.params["reps"]))


@emits("pad")
def _pad(w: OnnxWriter, n: Node, x: str, value: str) -> Any:
    p = n.params
    if any(p["inner"]):
        return by_places(w, n, x, value)
    return w.emit("Pad", x, w.shape((*p["low"], *p["high"])), value)


@emits("flip")
def _flip(w: OnnxWriter, n: Node, x: str) -> Any:
    axes = n.params["axes"]
    ends = [w.ints([k] * len(axes)) for k in (-1, -(1 << 62), -1)]
    return w.emit("Slice", x, ends[0], ends[1], w.ints(axes), ends[2])


def by_places(w: OnnxWriter, n: Node, x: str, *rest: str) -> Any:
    """A view of static shape: each element is gathered from the flat operand."""
    shape = n.operands[0].shape
    if any(isinstance(s, Dim) for s in (*shape, *n.results[0].shape)):
        raise OnnxError(f"onnx: {n.op.name} with symbolic sizes has no ONNX form")
    assert n.op.numpy is not None
    at = np.arange(math.prod(shape)).reshape(shape)
    if rest:  # what fills the gaps stands after the elements
        at = n.op.numpy(at, np.array(math.prod(shape)), **n.params)
        flat = w.emit(
            "Concat",
            w.emit("Reshape", x, w.ints([-1])),
            w.emit("Reshape", rest[0], w.ints([1])),
            axis=0,
        )
    else:
        at = n.op.numpy(at, **n.params)
        flat = w.emit("Reshape", x, w.ints([-1]))
    return w.emit("Gather", flat, w.constant(np.asarray(at, order="C")), axis=0)


# Folds ----------------------------------------------------------------------------------------


def _reduced(w: OnnxWriter, op: str, x: str, axes: Sequence[int], keep: int = 0) -> Any:
    return w.emit(op, x, w.ints(axes), keepdims=keep, noop_with_empty_axes=1)


@emits("sum", "prod", "max", "min", "mean")
def _fold(w: OnnxWriter, n: Node, x: str) -> Any:
    ops = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "mean": "Mean"}
    return _reduced(w, f"Reduce{ops[n.op.name]}", x, n.params["axes"])


@emits("any")
def _any(w: OnnxWriter, n: Node, x: str) -> Any:
    """Whether some element holds."""
    return w.cast(_reduced(w, "ReduceSum", w.cast(x, np.int32), n.params["axes"]), np.bool_)


@emits("all")
def _all(w: OnnxWriter, n: Node, x: str) -> Any:
    """All hold when there is none that does not."""
    return w.emit("Not", _any(w, n, w.emit("Not", x)))


@emits("argmax")
def _argmax(w: OnnxWriter, n: Node, x: str) -> Any:
    return w.emit("ArgMax", x, axis=n.params["axis"], keepdims=0)


@emits("argmin")
def _argmin(w: OnnxWriter, n: Node, x: str) -> Any:
    return w.emit("ArgMin", x, axis=n.params["axis"], keepdims=0)


@emits("cumsum")
def _cumsum(w: OnnxWriter, n: Node, x: str) -> Any:
    axis = w.constant(np.array(n.params["axis"]))
    return w.emit("CumSum", x, axis, reverse=int(n.params["reverse"]))


_ORDERED = ("f32", "f64", "i32", "i64")  # what run-times put in order
_TOP = 1 << 63  # the bit that is the sign in i64


def _ordered(w: OnnxWriter, x: str, dtype: DType) -> str:
    """x in a dtype that run-times put in order, in the same order."""
    if dtype.name in _ORDERED:
        return x
    if dtype.kind == "f":
        return w.cast(x, dtype.compute.np)
    if dtype is u64:
        x = w.emit("BitwiseXor", x, w.constant(np.array(_TOP, np.uint64)))
    return w.cast(x, np.int64)


def _restored(w: OnnxWriter, x: str, dtype: DType) -> str:
    """The numbers that `_ordered` was given."""
    if dtype.name in _ORDERED:
        return x
    x = w.cast(x, dtype.np)
    return w.emit("BitwiseXor", x, w.constant(np.array(_TOP, np.uint64))) if dtype is u64 else x


def _top(w: OnnxWriter, n: Node, x: str, count: str, largest: bool) -> tuple[str, str]:
    dtype, axis = n.operands[0].dtype, n.params["axis"]
    values, at = w.emit(
        "TopK", _ordered(w, x, dtype), count, outputs=2, axis=axis, largest=int(largest)
    )
    return _restored(w, values, dtype), at


@emits("topk")
def _topk(w: OnnxWriter, n: Node, x: str) -> Any:
    return _top(w, n, x, w.size(n.params["k"]), n.params["largest"])


def _sorted(w: OnnxWriter, n: Node, x: str) -> tuple[str, str]:
    """The sorted lines and their places."""
    size = w.size(n.operands[0].shape[n.params["axis"]])
    return _top(w, n, x, size, n.params["descending"])


@emits("sort")
def _sort(w: OnnxWriter, n: Node, x: str) -> Any:
    return _sorted(w, n, x)[0]


@emits("argsort")
def _argsort(w: OnnxWriter, n: Node, x: str) -> Any:
    return _sorted(w, n, x)[1]


def _over_one_axis(w: OnnxWriter, op: str, n: Node, x: str) -> Any:
    axes = n.params["axes"]
    return w.emit(op, x, axis=axes[0]) if len(axes) == 1 else None


@emits("softmax")
def _softmax(w: OnnxWriter, n: Node, x: str) -> Any:
    return _over_one_axis(w, "Softmax", n, x)


@emits("log_softmax")
def _log_softmax(w: OnnxWriter, n: Node, x: str) -> Any:
    return _over_one_axis(w, "LogSoftmax", n, x)


# Products -------------------------------------------------------------------------------------


@emits("matmul")
def _matmul(w: OnnxWriter, n: Node, a: str, b: str) -> Any:
    return w.emit("MatMul", a, b)


@emits("contract")
def _contract(w: OnnxWriter, n: Node, *xs: str) -> Any:
    given, _, out = n.params["spec"].partition("->")
    words = list(dict.fromkeys(given.replace(",", " ").split()))
    letters = dict(zip(words, string.ascii_letters, strict=False))
    sides = ["".join(letters[a] for a in part.split()) for part in given.split(",")]
    result = "".join(letters[a] for a in out.split())
    return w.emit("Einsum", *xs, equation=f"{','.join(sides)}->{result}")


def _window(p: Any) -> dict[str, Any]:
    pads = [a for a, _ in p["padding"]] + [b for _, b in p["padding"]]
    return {"strides": list(p["stride"]), "dilations": list(p["dilation"]), "pads": pads}


@emits("conv")
def _conv(w: OnnxWriter, n: Node, x: str, k: str) -> Any:
    p = n.params
    if any(i != 1 for i in p["inner"]) or any(min(pair) < 0 for pair in p["padding"]):
        return None
    kernel = list(n.operands[1].shape[2:])
    return w.emit("Conv", x, k, group=p["groups"], kernel_shape=kernel, **_window(p))


@emits("conv_input")
def _conv_input(w: OnnxWriter, n: Node, ct: str, k: str) -> Any:
    p = n.params
    extra = []
    for i, size in enumerate(p["size"]):
        span = (n.operands[1].shape[2 + i] - 1) * p["dilation"][i] + 1
        made = (n.operands[0].shape[2 + i] - 1) * p["stride"][i] + span - sum(p["padding"][i])
        extra.append(size - made)
    if any(e < 0 or e >= s for e, s in zip(extra, p["stride"], strict=True)):
        return None
    if any(min(pair) < 0 for pair in p["padding"]):
        return None
    kernel = list(n.operands[1].shape[2:])
    return w.emit(
        "ConvTranspose", ct, k, group=p["groups"], kernel_shape=kernel, output_padding=extra, **_window(p)
    )  # fmt: skip


@emits("max_pool")
def _max_pool(w: OnnxWriter, n: Node, x: str) -> Any:
    p = n.params
    if n.operands[0].dtype.kind != "f":
        return None
    pairs = tuple((a, b + e) for (a, b), e in zip(p["padding"], p["overhang"], strict=True))
    given = _window({**p, "padding": pairs})
    return w.emit("MaxPool", x, kernel_shape=list(p["size"]), **given)


@emits("avg_pool")
def _avg_pool(w: OnnxWriter, n: Node, x: str) -> Any:
    p = n.params
    if any(p["overhang"]):
        return None
    include = int(p["include_pad"])
    return w.emit(
        "AveragePool", x, kernel_shape=list(p["size"]), count_include_pad=include, **_window(p)
    )


# Places ---------------------------------------------------------------------------------------


def _tuples(w: OnnxWriter, indices: Sequence[str]) -> str:
    """Index tensors side by side along a last axis."""
    parts = [w.emit("Unsqueeze", i, w.ints([-1])) for i in indices]
    found: str = parts[0] if len(parts) == 1 else w.emit("Concat", *parts, axis=-1)
    return found


def _in_front(w: OnnxWriter, x: str, axes: Sequence[int], rank: int) -> str:
    """x with these axes first."""
    order = [*axes, *(k for k in range(rank) if k not in axes)]
    found: str = x if order == list(range(rank)) else w.emit("Transpose", x, perm=order)
    return found


@emits("gather")
def _gather(w: OnnxWriter, n: Node, x: str, *indices: str) -> Any:
    axes = n.params["axes"]
    if len(axes) == 1:
        front = _in_front(w, x, axes, n.operands[0].ndim)
        return w.emit("Gather", front, indices[0], axis=0)
    front = _in_front(w, x, axes, n.operands[0].ndim)
    return w.emit("GatherND", front, _tuples(w, indices))


@emits("scatter", "scatter_add", "scatter_mul", "scatter_max", "scatter_min")
def _scatter(w: OnnxWriter, n: Node, x: str, value: str, *indices: str) -> Any:
    axes, rank = n.params["axes"], n.operands[0].ndim
    how = n.op.name.removeprefix("scatter").removeprefix("_") or "none"
    front = _in_front(w, x, axes, rank)
    y = w.emit("ScatterND", front, _tuples(w, indices), value, reduction=how)
    order = [*axes, *(k for k in range(rank) if k not in axes)]
    back = [order.index(k) for k in range(rank)]
    return y if back == list(range(rank)) else w.emit("Transpose", y, perm=back)


def _starts(w: OnnxWriter, n: Node, given: Sequence[str], sizes: Sequence[Any]) -> str:
    """The first place of a slice, moved so that all of it lies inside."""
    whole = [w.emit("Unsqueeze", w.cast(s, np.int64), w.ints([0])) for s in given]
    start = whole[0] if len(whole) == 1 else w.emit("Concat", *whole, axis=0)
    long = n.operands[0].shape
    start = w.emit(
        "Where", w.emit("Less", start, w.ints([0])), w.emit("Add", start, w.shape(long)), start
    )
    room = w.shape([a - b for a, b in zip(long, sizes, strict=True)])
    found: str = w.emit("Max", w.emit("Min", start, room), w.ints([0] * len(long)))
    return found


@emits("dynamic_slice")
def _dynamic_slice(w: OnnxWriter, n: Node, x: str, *given: str) -> Any:
    sizes = n.params["sizes"]
    start = _starts(w, n, given, sizes)
    stop = w.emit("Add", start, w.shape(sizes))
    return w.emit("Slice", x, start, stop, w.ints(range(len(sizes))))


@emits("dynamic_update_slice")
def _dynamic_update_slice(w: OnnxWriter, n: Node, x: str, value: str, *given: str) -> Any:
    sizes = n.operands[1].shape
    if not sizes or any(isinstance(s, Dim) for s in sizes):
        return None
    start = _starts(w, n, given, sizes)
    grid = np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), -1)
    return w.emit("ScatterND", x, w.emit("Add", w.constant(grid), start), value)


@emits("det")
def _det(w: OnnxWriter, n: Node, x: str) -> Any:
    return w.emit("Det", x)
