"""Reductions, scans and orders along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.core.dtype import bool_
from tessera.interop.onnx.rule import NodeCall, axes_of, axis_of, integers, one, rule, tensor
from tessera.lang import op
from tessera.ops.define import as_value

Fold = Callable[[Any, Any, bool], Any]


def _log_sum_exp(x: Any, axes: Any, keep: bool) -> Any:
    return op.logsumexp(x, axes, keep)


_FOLDS: dict[str, Fold] = {
    "ReduceSum": op.sum, "ReduceMean": op.mean, "ReduceProd": op.prod, "ReduceMax": op.max,
    "ReduceMin": op.min, "ReduceL1": lambda x, a, k: op.sum(op.abs(x), a, k),
    "ReduceL2": lambda x, a, k: op.sqrt(op.sum(op.square(x), a, k)),
    "ReduceSumSquare": lambda x, a, k: op.sum(op.square(x), a, k),
    "ReduceLogSum": lambda x, a, k: op.log(op.sum(x, a, k)), "ReduceLogSumExp": _log_sum_exp,
}  # fmt: skip


def _enter(name: str, fold: Fold) -> None:
    def run(n: NodeCall, x: Any, axes: Any = None) -> Any:
        x = as_value(x)
        given = n.get("axes") if axes is None else integers(axes, "axes")
        if not given and n.get("noop_with_empty_axes", 0):
            return _unfolded(name, x)
        chosen = axes_of(given, x.ndim) if given else tuple(range(x.ndim))
        keep = bool(n.get("keepdims", 1))
        if name in ("ReduceMax", "ReduceMin"):
            return _extreme_of(name, x, chosen, keep)
        return op.cast(fold(x, chosen, keep), x.dtype)

    rule(name)(run)


def _extreme_of(name: str, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    """The largest or smallest elements; of none, the number that all others beat."""
    most = name == "ReduceMax"
    if x.dtype is bool_:
        return (op.any if most else op.all)(x, axes, keep)
    if all(x.shape[a] != 0 for a in axes):
        return (op.max if most else op.min)(x, axes, keep)
    low, high = (-np.inf, np.inf)
    if x.dtype.kind != "f":
        low, high = np.iinfo(x.dtype.np).min, np.iinfo(x.dtype.np).max
    sizes = [(1 if keep else None) if k in axes else s for k, s in enumerate(x.shape)]
    return op.full(tuple(s for s in sizes if s is not None), low if most else high, x.dtype)


def _unfolded(name: str, x: Any) -> Any:
    """A reduction over no axes: each element by itself."""
    alone: dict[str, Callable[[Any], Any]] = {
        "ReduceL1": op.abs, "ReduceL2": op.abs, "ReduceSumSquare": op.square, "ReduceLogSum": op.log,
    }  # fmt: skip
    return alone[name](x) if name in alone else x


for _name, _fold in _FOLDS.items():
    _enter(_name, _fold)


def _extreme(n: NodeCall, x: Any, find: Callable[..., Any]) -> Any:
    x = as_value(x)
    axis = axis_of(n.get("axis", 0), x.ndim)
    keep = bool(n.get("keepdims", 1))
    if not n.get("select_last_index", 0):
        return find(x, axis, keep)
    return op.sub(int(x.shape[axis]) - 1, find(op.flip(x, axis), axis, keep))


@rule("ArgMax")
def _argmax(n: NodeCall, x: Any) -> Any:
    return _extreme(n, x, op.argmax)


@rule("ArgMin")
def _argmin(n: NodeCall, x: Any) -> Any:
    return _extreme(n, x, op.argmin)


def _running(n: NodeCall, x: Any, axis: Any, scan: Callable[..., Any], start: int) -> Any:
    """A scan along an axis; exclusive ones leave the element itself out."""
    x = as_value(x)
    a = axis_of(int(one(axis, "axis")), x.ndim)
    reverse = bool(n.get("reverse", 0))
    if n.get("exclusive", 0):
        size = x.shape[a]
        key = slice(1, None) if reverse else slice(0, size - 1)
        inner = op.index(x, (*[slice(None)] * a, key))
        ends = (0, 1) if reverse else (1, 0)
        x = op.pad(inner, [ends if k == a else (0, 0) for k in range(x.ndim)], start)
    return op.cast(scan(x, a, reverse), x.dtype)


@rule("CumSum")
def _cumsum(n: NodeCall, x: Any, axis: Any) -> Any:
    return _running(n, x, axis, op.cumsum, 0)


@rule("CumProd")
def _cumprod(n: NodeCall, x: Any, axis: Any) -> Any:
    return _running(n, x, axis, op.cumprod, 1)


@rule("TopK", sizes=True)
def _topk(n: NodeCall, x: Any, k: Any = None) -> Any:
    size = n.need("k") if k is None else one(k, "k")
    x = as_value(tensor(x))
    return tuple(op.topk(x, size, axis_of(n.get("axis", -1), x.ndim), bool(n.get("largest", 1))))


@rule("Det")
def _det(n: NodeCall, x: Any) -> Any:
    return op.det(x)


@rule("LpNormalization")
def _lp_normalization(n: NodeCall, x: Any) -> Any:
    x = as_value(x)
    axis = axis_of(n.get("axis", -1), x.ndim)
    norm = (
        op.sum(op.abs(x), axis, True)
        if n.get("p", 2) == 1
        else op.sqrt(op.sum(op.square(x), axis, True))
    )
    return op.where(op.eq(norm, 0), op.zeros_like(x), op.div(x, norm))
