"""marks: what the elements of tiles and memories are made of, beside their values.

A mark is a bit of every element: it comes from scratch that nothing has written, from past the edge of a
tensor, from whole numbers that did not fit their dtype, or it is a sum of whole numbers.  Marks go where
values go; a `where` takes those of the side that it chooses, so that a mask removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera.core.dtype import DType
from tessera.core.rounding import round_to
from tessera.core.scalar import SCALARS
from tessera.ir.tile.interp import tree_fold
from tessera.ir.tile.ir import Operation

Array = np.ndarray[Any, np.dtype[Any]]

GARBAGE, EDGE, WRAPPED, SUM = 1, 2, 4, 8
_WRAPS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
}
_KEEPS_WRAPPED = {*_WRAPS, "floor_div", "abs", "max", "min", "maximum", "minimum", "where"}
# A clean operand of this value decides the result alone.
_DECIDES = {"mul": 0, "logical_and": False, "and": 0, "bitwise_and": 0, "logical_or": True}


def none(x: Array) -> Array:
    """No marks for the elements of an array."""
    return np.zeros(x.shape, np.uint8)


def may_wrap(op: Operation) -> bool:
    """Whether an operation may give whole numbers that do not fit, or sums of them."""
    if not op.results or op.results[0].dtype.kind not in "iu":
        return False
    if op.name == "apply":
        return op.attributes["scalar"] in _WRAPS
    return op.name in ("cast", "fold", "scan", "dot")


def _counts(name: str, dtype: DType) -> bool:
    """Whether numbers of an operation wrap around only by mistake; hashes wrap in wide unsigned ones."""
    if dtype.kind == "i":
        return name in _WRAPS
    return dtype.kind == "u" and name == "add" and dtype.bits <= 16


def _sums(op: Operation) -> int:
    """The mark of what a fold, a running fold or a product of whole numbers gives."""
    added = op.attributes.get("scalar", "add") in ("add", "mul")
    return SUM if added and op.results[0].dtype.kind in "iu" else 0


def of_apply(op: Operation, xs: Sequence[Array], marks: Sequence[Array], out: Array) -> Array:
    """The marks of an elementwise result."""
    name = op.attributes["scalar"]
    shape = out.shape
    if name == "where":
        chosen = np.where(np.broadcast_to(xs[0], shape).astype(bool), marks[1], marks[2])
        return np.asarray(np.broadcast_to(marks[0], shape) | chosen, np.uint8)
    found = np.zeros(shape, np.uint8)
    for m in marks:
        found = found | m
    if name in _DECIDES:
        for x, m in zip(xs, marks, strict=True):
            found = np.where(np.broadcast_to((x == _DECIDES[name]) & (m == 0), shape), 0, found)
    if name not in _KEEPS_WRAPPED:
        found = found & ~np.uint8(WRAPPED | SUM)
    if _counts(name, op.results[0].dtype):
        found = found | np.where(_overflows(name, xs, out), WRAPPED, 0)
    return np.asarray(found, np.uint8)


def _overflows(name: str, xs: Sequence[Array], out: Array) -> Array:
    """Where whole numbers wrapped around."""
    if out.dtype.itemsize < 8:
        exact = _WRAPS[name](*(x.astype(np.int64) for x in xs))
        return np.asarray(exact != out)
    about = _WRAPS[name](*(x.astype(np.float64) for x in xs))
    return np.asarray(np.abs(about) > 2.0**63)


def of_cast(op: Operation, x: Array, mark: Array, out: Array) -> Array:
    """The marks of a cast: a whole number that does not fit has wrapped."""
    if op.results[0].dtype.kind != "i" or x.dtype.kind not in "iu":
        return mark & ~np.uint8(WRAPPED | SUM)
    return np.asarray(mark | np.where(out.astype(np.int64) != x, WRAPPED, 0), np.uint8)


def of_fold(op: Operation, x: Array, mark: Array, out: Array) -> tuple[Array, Array]:
    """The marks of a fold, and where it counts elements from past an edge beside real ones.

    A place along the folded axis is past the edge if it is in every line: lines that are outside themselves
    may have elements without marks.
    """
    axis, name = op.attributes["axis"], op.attributes["scalar"]
    own = (mark & EDGE) > 0
    every = own.all(axis=axis, keepdims=True)
    others = tuple(i for i in range(x.ndim) if i != axis)
    edge = np.broadcast_to(own.all(axis=others, keepdims=True), x.shape)
    marks = np.where((mark & GARBAGE).any(axis=axis, keepdims=True), GARBAGE, 0)
    marks = np.asarray(marks | np.where(every, EDGE, 0) | _sums(op), np.uint8)
    counted = np.zeros(marks.shape, bool)
    some = (
        edge.any(axis=axis, keepdims=True)
        & ~every
        & ((mark & GARBAGE) == 0).all(axis=axis, keepdims=True)
    )
    if some.any():
        left_out = _without(name, x, edge, axis, op)
        if left_out is not None:
            counted = some & _differ(left_out, out)
    return marks, counted


def _without(name: str, x: Array, edge: Array, axis: int, op: Operation) -> Array | None:
    """The fold with neutral elements where there are marks; None if it has none."""
    neutral = _neutral(name, x)
    if neutral is None:
        return None
    dtype = op.results[0].dtype
    kept = np.where(edge, round_to(np.asarray(neutral, x.dtype), dtype), x)
    return tree_fold(name, kept, axis, dtype)


def _neutral(name: str, x: Array) -> Any:
    if name in ("max", "maximum", "min", "minimum"):
        low = name in ("max", "maximum")
        if x.dtype.kind in "iu":
            return np.iinfo(x.dtype).min if low else np.iinfo(x.dtype).max
        return (not low) if x.dtype.kind == "b" else -np.inf if low else np.inf
    known = SCALARS.get(name)
    return None if known is None else known.identity


def _differ(a: Array, b: Array) -> Array:
    """Where results are not the same but for rounding."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "iub":
        return np.asarray(a != b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    return np.asarray(
        ~((x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= 1e-3 * np.abs(x)))
    )


def of_dot(op: Operation, a: Array, b: Array, marks: Sequence[Array]) -> tuple[Array, Array]:
    """The marks of a product, and where it counts elements from past an edge."""
    ga, gb = (np.asarray(m & GARBAGE, bool) for m in marks[:2])
    ea, eb = (np.asarray(m & EDGE, bool) for m in marks[:2])
    garbage = (
        ga.any(axis=1, keepdims=True) | gb.any(axis=0, keepdims=True) | ((marks[2] & GARBAGE) > 0)
    )
    outside = ea.all(axis=1, keepdims=True) | eb.all(axis=0, keepdims=True)
    real, there = np.asarray(a != 0, np.float32), np.asarray(b != 0, np.float32)
    past = ea.all(axis=0) | eb.all(axis=1)  # places along k that no tensor has
    added = (real * past) @ there > 0
    found = (
        np.where(garbage, GARBAGE, 0) | np.where(outside, EDGE, 0) | (marks[2] & EDGE) | _sums(op)
    )
    return np.asarray(found, np.uint8), added & ~outside & ~garbage


def of_scan(op: Operation, mark: Array) -> Array:
    """The marks of a running fold."""
    garbage = np.logical_or.accumulate((mark & GARBAGE) > 0, axis=op.attributes["axis"])
    return np.asarray((mark & EDGE) | np.where(garbage, GARBAGE, 0) | _sums(op), np.uint8)


def shaped(op: Operation, mark: Array) -> Array:
    """The marks of a tile in another shape."""
    shape = op.results[0].shape
    if op.name == "reshape":
        return mark.reshape(shape)
    return np.asarray(np.broadcast_to(mark, shape)) if op.name == "broadcast" else mark.T
