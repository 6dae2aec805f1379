"""Sequences, which are lists, and optionals, which are None when empty."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interop.onnx.model import OnnxError, OnnxGraph
from tessera.interop.onnx.rule import NodeCall, axis_of, integers, is_foreign, one, rule
from tessera.lang import op


@rule("SequenceEmpty", fold=False)
def _empty(n: NodeCall) -> Any:
    return []


@rule("SequenceConstruct", fold=False)
def _construct(n: NodeCall, *xs: Any) -> Any:
    return list(xs)


@rule("SequenceAt", fold=False)
def _at(n: NodeCall, xs: Any, i: Any) -> Any:
    return xs[_place(i, len(xs), len(xs) - 1)]


@rule("SequenceLength", fold=False)
def _length(n: NodeCall, xs: Any) -> Any:
    return np.array(len(xs), np.int64)


@rule("SequenceInsert", fold=False)
def _insert(n: NodeCall, xs: Any, x: Any, i: Any = None) -> Any:
    k = len(xs) if i is None else _place(i, len(xs), len(xs))
    return [*xs[:k], x, *xs[k:]]


@rule("SequenceErase", fold=False)
def _erase(n: NodeCall, xs: Any, i: Any = None) -> Any:
    k = len(xs) - 1 if i is None else _place(i, len(xs), len(xs) - 1)
    return [*xs[:k], *xs[k + 1 :]]


def _place(i: Any, length: int, last: int) -> int:
    k = int(one(i, "position"))
    if not -length <= k <= last:
        raise OnnxError(f"position {k} is outside of a sequence of {length}")
    return k + length if k < 0 else k


@rule("ConcatFromSequence", fold=False)
def _concat(n: NodeCall, xs: Any) -> Any:
    axis = n.need("axis")
    if any(map(is_foreign, xs)):
        return np.stack(xs, axis) if n.get("new_axis", 0) else np.concatenate(xs, axis)
    return op.stack(xs, axis) if n.get("new_axis", 0) else op.concat(xs, axis)


@rule("SplitToSequence", fold=False)
def _split(n: NodeCall, x: Any, parts: Any = None) -> Any:
    axis = axis_of(n.get("axis", 0), len(x.shape))
    size = int(x.shape[axis])
    if parts is None:
        pieces = list(op.split(x, [1] * size, axis))
        return pieces if n.get("keepdims", 1) else [op.squeeze(p, axis) for p in pieces]
    given = integers(parts, "split")
    if len(parts.shape) == 0:
        each = given[0]
        given = [each] * (size // each) + ([size % each] if size % each else [])
    return list(op.split(x, given, axis))


@rule("SequenceMap", fold=False)
def _map(n: NodeCall, xs: Any, *more: Any) -> Any:
    body: OnnxGraph = n.need("body")
    columns: list[list[Any]] = [[] for _ in body.outputs]
    for i, x in enumerate(xs):
        out = n.run(body, [x, *(m[i] if isinstance(m, list) else m for m in more)])
        for column, y in zip(columns, out, strict=True):
            column.append(y)
    return tuple(columns)


@rule("Optional", fold=False)
def _optional(n: NodeCall, x: Any = None) -> Any:
    return x


@rule("OptionalHasElement", fold=False)
def _has(n: NodeCall, x: Any = None) -> Any:
    return np.array(x is not None)


@rule("OptionalGetElement", fold=False)
def _get(n: NodeCall, x: Any) -> Any:
    if x is None:
        raise OnnxError("the optional is empty")
    return x
