"""Reductions, running folds, windows and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.core.dtype import as_dtype
from tessera.interop.jax.rules.table import RULES, Params, rule
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.ops.shape import pad

_FOLDS = {"reduce_sum": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min",
          "reduce_and": "all", "reduce_or": "any"}  # fmt: skip


def _fold(name: str) -> Callable[..., Any]:
    def run(p: Params, x: Value) -> Value:
        axes = tuple(map(int, p["axes"]))
        return op.cast(getattr(op, name)(x, axes), x.dtype) if axes else x

    return run


for _name, _ours in _FOLDS.items():
    RULES[_name] = _fold(_ours)


def _arg(name: str) -> Callable[..., Any]:
    return lambda p, x: op.cast(getattr(op, name)(x, int(p["axes"][0])), as_dtype(p["index_dtype"]))


RULES["argmax"], RULES["argmin"] = _arg("argmax"), _arg("argmin")


def _running(name: str) -> Callable[..., Any]:
    def run(p: Params, x: Value) -> Value:
        return op.cast(getattr(op, name)(x, p["axis"], reverse=p["reverse"]), x.dtype)

    return run


for _name in ("cumsum", "cumprod", "cummax", "cummin"):
    RULES[_name] = _running(_name)
RULES["cumlogsumexp"] = _running("logcumsumexp")


# Windows

_STARTS = {
    "reduce_window_max": ("max", -np.inf), "reduce_window_min": ("min", np.inf),
    "reduce_window_sum": ("sum", 0),
}  # fmt: skip


def _least(x: Value, start: float) -> Any:
    if x.dtype.kind in "iu" and np.isinf(start):
        held = np.iinfo(np.dtype(x.dtype.np))
        return held.min if start < 0 else held.max
    return start


def _windows(fold: str, start: float) -> Callable[..., Any]:
    """One axis after the other, since these folds do not mind."""

    def run(p: Params, x: Value) -> Value:
        low, high = zip(*p["padding"], strict=True) if x.ndim else ((), ())
        inner = tuple(d - 1 for d in p["base_dilation"])
        fill = op.full((), _least(x, start), x.dtype)
        y: Value = pad.bind(x, fill, low=tuple(low), high=tuple(high), inner=inner)
        each = zip(p["window_dimensions"], p["window_strides"], p["window_dilation"], strict=True)
        for axis, (size, stride, gap) in enumerate(each):
            count = (y.shape[axis] - (size - 1) * gap - 1) // stride + 1
            if size == 1 and stride == 1:
                continue
            at = np.arange(count)[:, None] * stride + np.arange(size) * gap
            y = op.cast(getattr(op, fold)(op.take(y, at, axis), axis + 1), x.dtype)
        return y

    return run


for _name, (_fold_name, _start) in _STARTS.items():
    RULES[_name] = _windows(_fold_name, _start)


# Order


@rule("sort")
def _sort(p: Params, *xs: Value) -> Any:
    axis, keys = p["dimension"], p["num_keys"]
    if len(xs) == 1:
        return op.sort(xs[0], axis)
    order = op.argsort(xs[keys - 1], axis)
    for k in reversed(range(keys - 1)):
        now = op.take_along_axis(xs[k], order, axis)
        order = op.take_along_axis(order, op.argsort(now, axis), axis)
    return [op.take_along_axis(x, order, axis) for x in xs]


@rule("top_k")
def _top_k(p: Params, x: Value) -> Any:
    values, at = op.topk(x, p["k"], p.get("axis", -1))
    return [values, op.cast(at, as_dtype("i32"))]
