"""Running folds along an axis."""

from __future__ import annotations

from typing import Any

from tessera.interop.stablehlo.rules.convolution import window_fold
from tessera.interop.stablehlo.rules.table import rule, stands_for
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter
from tessera.ir.graph.interp import wide
from tessera.ir.graph.ir import Node, Value
from tessera.ops.control import scan
from tessera.ops.creation import full
from tessera.ops.elementwise import add, logaddexp, mul
from tessera.ops.shape import moveaxis

_FOLDS = {
    "cumsum": ("add", "add"), "cumprod": ("multiply", "mul"), "cummax": ("maximum", "max"),
    "cummin": ("minimum", "min"),
}  # fmt: skip


@rule(*_FOLDS)
def _cumulative(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    """A window over all that came before."""
    axis, reverse = n.params["axis"], n.params["reverse"]
    size = x.shape[axis]
    if 0 in x.shape:
        return x
    x = w.cast(x, wide(n.op, n.operands[0].dtype))
    window = [size if a == axis else 1 for a in range(len(x.shape))]
    ends = (0, size - 1) if reverse else (size - 1, 0)
    padding = [ends if a == axis else (0, 0) for a in range(len(x.shape))]
    y = window_fold(w, x, *_FOLDS[n.op.name], window, padding)
    return w.cast(y, n.results[0].dtype)


@stands_for("linear_recurrence")
def _recurrence(a: Value, b: Value, axis: int, reverse: bool) -> Value:
    rows = moveaxis(a, axis, 0), moveaxis(b, axis, 0)
    start = full(rows[1].shape[1:], 0, b.dtype)

    def step(y: Value, ab: tuple[Value, Value]) -> tuple[Value, Value]:
        out = add(mul(ab[0], y), ab[1])
        return out, out

    return moveaxis(scan(step, start, rows, reverse=reverse)[1], 0, axis)


@stands_for("logcumsumexp")
def _logcumsumexp(x: Value, axis: int, reverse: bool) -> Value:
    rows = moveaxis(x, axis, 0)
    start = full(rows.shape[1:], float("-inf"), x.dtype)

    def step(y: Value, row: Value) -> tuple[Value, Value]:
        out = logaddexp(y, row)
        return out, out

    return moveaxis(scan(step, start, rows, reverse=reverse)[1], 0, axis)
