"""Shape arithmetic on symbolic sizes, done while tracing in NumPy arrays of sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dims import Dim, larger, smaller
from tessera.interop.onnx.model import Array, OnnxError
from tessera.interop.onnx.rule import NodeCall, Sizes, host, integers, is_known

Fold = Callable[..., Any]


def apply(call: NodeCall, args: Sequence[Any]) -> Any:
    """The sizes that a node makes of sizes; None where only a tensor can say."""
    kind = call.node.op
    f = _FOLDS.get(kind)
    if f is None or call.node.domain or not all(isinstance(x, Sizes) or is_known(x) for x in args):
        return None
    if kind in _MOVES and not _are_sizes(args):
        return None
    found = f(call, *args)
    if found is None or kind in ("Shape", "Equal"):
        return found
    to = next(x.dtype for x in args if isinstance(x, Sizes))
    if kind == "Cast":
        to = np.dtype(np.int32 if call.get("to", 7) == 6 else np.int64)
    return Sizes(found.array, to) if isinstance(found, Sizes) else found.astype(to)


# What moves elements: of sizes it is done here, of a constant by the rule.
_MOVES = {"Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Expand"}


def _are_sizes(args: Sequence[Any]) -> bool:
    """Whether sizes are moved, to places that are numbers."""
    first, *rest = args
    return isinstance(first, Sizes) and not any(isinstance(x, Sizes) for x in rest)


def made(array: Any) -> Any:
    """An array of sizes, a plain one where all are numbers."""
    found = np.asarray(array, dtype=object)
    if any(isinstance(s, Dim) for s in found.flat):
        return Sizes(found)
    return found.astype(np.int64)


def _objects(x: Any) -> Array:
    return x.array if isinstance(x, Sizes) else host(x, "input").astype(object)


def _binary(f: Callable[[Any, Any], Any]) -> Fold:
    each = np.frompyfunc(f, 2, 1)
    return lambda n, a, b: made(each(_objects(a), _objects(b)))


def _several(f: Callable[[Any, Any], Any]) -> Fold:
    each = np.frompyfunc(f, 2, 1)

    def run(n: NodeCall, first: Any, *rest: Any) -> Any:
        out = _objects(first)
        for x in rest:
            out = each(out, _objects(x))
        return made(out)

    return run


def _gather(n: NodeCall, x: Any, i: Any) -> Any:
    return made(np.take(_objects(x), host(i, "indices"), axis=n.get("axis", 0)))


def _concat(n: NodeCall, *xs: Any) -> Any:
    return made(np.concatenate([_objects(x) for x in xs], axis=n.need("axis")))


def _slice(n: NodeCall, x: Any, *rest: Any) -> Any:
    a = _objects(x)
    given = [None if r is None else integers(r, "slice") for r in rest]
    if not rest:
        given = [n.need("starts"), n.need("ends"), n.get("axes")]
    starts, ends, axes, steps = [*given, *[None] * 4][:4]
    if starts is None or ends is None:
        raise OnnxError("a slice has no starts or ends")
    index: list[Any] = [slice(None)] * a.ndim
    for k, axis in enumerate(axes if axes is not None else range(len(starts))):
        index[axis] = slice(starts[k], ends[k], steps[k] if steps is not None else None)
    return made(a[tuple(index)])


def _squeeze(n: NodeCall, x: Any, axes: Any = None) -> Any:
    a = _objects(x)
    given = n.get("axes") if axes is None else integers(axes, "axes")
    return made(np.squeeze(a, None if given is None else tuple(given)))


def _unsqueeze(n: NodeCall, x: Any, axes: Any = None) -> Any:
    given = n.get("axes") if axes is None else integers(axes, "axes")
    return made(np.expand_dims(_objects(x), tuple(given)))


def _reshape(n: NodeCall, x: Any, shape: Any) -> Any:
    return made(_objects(x).reshape(integers(shape, "shape")))


def _cast(n: NodeCall, x: Any, like: Any = None) -> Any:
    return x if n.get("to", 7) in (6, 7) and like is None else None


def _product(n: NodeCall, x: Any, axes: Any = None) -> Any:
    a = _objects(x)
    if a.ndim != 1:
        return None
    out: Any = 1
    for s in a:
        out = out * s
    return made([out] if n.get("keepdims", 1) else out)


def _sum(n: NodeCall, x: Any, axes: Any = None) -> Any:
    a = _objects(x)
    if a.ndim != 1 or (axes is None and n.get("noop_with_empty_axes", 0)):
        return None
    out: Any = 0
    for s in a:
        out = out + s
    return made([out] if n.get("keepdims", 1) else out)


def _shape(n: NodeCall, x: Any) -> Any:
    return np.array(x.shape, np.int64)


def _equal(n: NodeCall, a: Any, b: Any) -> Any:
    """Equality of sizes; a symbolic size, which is at least 1, differs from what is below."""
    left, right = np.broadcast_arrays(_objects(a), _objects(b))
    out = np.empty(left.shape, bool)
    for i in np.ndindex(left.shape):
        x: Any = left[i]
        y: Any = right[i]
        both: tuple[Any, Any] = (x, y) if isinstance(x, Dim) else (y, x)
        if not isinstance(both[0], Dim):
            out[i] = x == y
        elif both[0] == both[1]:
            out[i] = True
        elif isinstance(both[1], Dim) or both[1] >= 1:
            return None
        else:
            out[i] = False
    return out


def _where(n: NodeCall, c: Any, a: Any, b: Any) -> Any:
    if isinstance(c, Sizes):
        return None
    return made(np.where(host(c, "condition"), _objects(a), _objects(b)))


def _divide(a: Any, b: Any) -> Any:
    if not isinstance(b, Dim) and b == 0:
        raise OnnxError("a size is divided by zero")
    return a // b


def _expand(n: NodeCall, x: Any, shape: Any) -> Any:
    want = integers(shape, "shape")
    return made(np.broadcast_to(_objects(x), np.broadcast_shapes(x.shape, tuple(want))))


_FOLDS: dict[str, Fold] = {
    "Add": _binary(operator.add), "Sub": _binary(operator.sub), "Mul": _binary(operator.mul),
    "Div": _binary(_divide), "Mod": _binary(operator.mod), "Max": _several(larger),
    "Min": _several(smaller), "Gather": _gather, "Concat": _concat, "Slice": _slice,
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Reshape": _reshape, "Cast": _cast,
    "ReduceProd": _product, "Shape": _shape, "Equal": _equal, "Where": _where,
    "Identity": lambda n, x: x, "Expand": _expand, "Neg": lambda n, x: made(-_objects(x)),
    "ReduceSum": _sum,
}  # fmt: skip
