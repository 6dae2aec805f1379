"""Order along an axis: sort, argsort, the k largest, and places in a sorted axis.

Sorting is stable.  NaN counts as the largest number, so it comes last in ascending order and first
in descending order; -0.0 and 0.0 are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.constraints import require, unify
from tessera.core.dims import Dim, Size
from tessera.core.dtype import i64
from tessera.core.errors import OperandError, ShapeError
from tessera.core.promotion import promote
from tessera.core.sorts import order
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Params, Sample, Types
from tessera.ops.cutting import looked_up
from tessera.ops.define import ArrayLike, as_value, axis_of, cast_to, define
from tessera.ops.gather import along_axis, take

Tangents = Sequence[Value | None]
_SAMPLES = (
    Sample((4,)), Sample((2, 3), axis=0), Sample((2, 5), axis=1, descending=True), Sample((1,)),
    Sample((0,)), Sample((2, 0), axis=0), Sample(np.array([2, 1, 2, 1, 2])),
    Sample(np.array([2, 1, 2, 1, 2]), descending=True), Sample((1, 1, 3)),
)  # fmt: skip


@define(
    infer=lambda types, p: [types[0].with_dtype(i64)], call="argsort", total=True, kinds="buif", numpy=order,
    jvp=lambda n, ts: None, samples=_SAMPLES,
)  # fmt: skip
def argsort(x: ArrayLike, axis: int = -1, descending: bool = False, stable: bool = True) -> Value:
    """The indices that sort x along an axis; equal elements keep their order."""
    v = as_value(x, "argsort")
    return argsort.bind(v, axis=axis_of("argsort", axis, v.ndim), descending=bool(descending))


def _sort_jvp(n: Node, ts: Tangents) -> Value | None:
    if ts[0] is None:
        return None
    return along_axis(ts[0], argsort.bind(n.operands[0], **n.params), n.params["axis"])


@define(
    infer=lambda types, p: types, call="sort", total=True, kinds="buif", jvp=_sort_jvp, samples=_SAMPLES,
    numpy=lambda x, axis, descending: np.take_along_axis(x, order(x, axis, descending), axis),
)  # fmt: skip
def sort(x: ArrayLike, axis: int = -1, descending: bool = False, stable: bool = True) -> Value:
    """x sorted along an axis."""
    v = as_value(x, "sort")
    return sort.bind(v, axis=axis_of("sort", axis, v.ndim), descending=bool(descending))


def _topk_types(types: Types, p: Params) -> list[TensorType]:
    (t,), axis, k = types, p["axis"], p["k"]
    if not require("at_least", t.shape[axis], k, "topk"):
        raise ShapeError(
            f"topk: k is {k}, but axis {axis} of {t} has only {t.shape[axis]} elements"
        )
    out = t.with_shape((*t.shape[:axis], k, *t.shape[axis + 1 :]))
    return [out, out.with_dtype(i64)]


def _topk(x: Any, k: int, axis: int, largest: bool) -> tuple[Any, Any]:
    where = np.take(order(x, axis, largest), np.arange(k), axis)
    return np.take_along_axis(x, where, axis), where


def _topk_jvp(n: Node, ts: Tangents) -> tuple[Value | None, None]:
    if ts[0] is None:
        return None, None
    return along_axis(ts[0], n.results[1], n.params["axis"]), None


@define(
    infer=_topk_types, call="topk", total=True, multiple=True, kinds="buif", numpy=_topk, jvp=_topk_jvp,
    onnx="TopK",
    samples=(
        Sample((5,), k=2), Sample((3, 4), k=1, axis=0), Sample((2, 4), k=3, largest=False),
        Sample((3,), k=0), Sample((1,), k=1), Sample((0, 2), k=2), Sample(np.array([1, 3, 3, 2]), k=3),
    ),
)  # fmt: skip
def topk(x: ArrayLike, k: Size, axis: int = -1, largest: bool = True) -> tuple[Value, ...]:
    """The k largest (or smallest) elements along an axis, in order, and their indices."""
    v = as_value(x, "topk")
    if not isinstance(k, Dim) and (not hasattr(k, "__index__") or int(k) < 0):
        raise OperandError(f"topk: k is {k!r:.40}, expected a size of 0 or more")
    size = k if isinstance(k, Dim) else int(k)
    return topk.bind_many(v, k=size, axis=axis_of("topk", axis, v.ndim), largest=bool(largest))


@define(
    infer=lambda types, p: [types[1].with_dtype(i64)], call="searchsorted", total=True, kinds="buif",
    numpy=np.searchsorted, jvp=lambda n, ts: None, factors=looked_up,
    samples=(
        Sample(np.array([-1.0, 0.0, 0.0, 2.0]), (3,)), Sample(np.array([1, 2, 2]), np.array([[2], [0]])),
        Sample(np.array([1, 2, 2]), np.array(2), side="right"), Sample((0,), (2,)), Sample((1,), (0, 2)),
    ),
)  # fmt: skip
def searchsorted(
    x: ArrayLike, values: ArrayLike, side: str = "left", sorter: ArrayLike | None = None
) -> Value:
    """Where values would be put into the sorted x: before equal elements (left) or after (right)."""
    v, w = as_value(x, "searchsorted"), as_value(values, "searchsorted")
    if v.ndim != 1:
        raise ShapeError(f"searchsorted: {v.type} has {v.ndim} axes, expected one sorted axis")
    if side not in ("left", "right"):
        raise OperandError(f"searchsorted: side is {side!r}, expected 'left' or 'right'")
    if sorter is not None:
        order = as_value(sorter, "searchsorted")
        if order.ndim != 1 or not unify(order.shape[0], v.shape[0], "searchsorted: sorter and x"):
            raise ShapeError(
                f"searchsorted: sorter is {order.type}, expected an index for each of {v.type}"
            )
        v = take(v, order, 0)
    dtype = promote(v.dtype, w.dtype)
    return searchsorted.bind(cast_to(v, dtype), cast_to(w, dtype), side=side)
