"""Sorting, by a comparison in which NaN is the largest number, and places in a sorted axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.dtype import i64
from tessera.interop.stablehlo.rules.table import rule, stands_for
from tessera.interop.stablehlo.writer import Ssa, StableHloWriter
from tessera.ir.graph.ir import Node, Value
from tessera.ops.creation import full
from tessera.ops.define import broadcast, cast_to
from tessera.ops.elementwise import eq, isnan, le, logical_and, logical_or, lt
from tessera.ops.reduction import sum
from tessera.ops.shape import expand_dims


def _before(w: StableHloWriter, descending: bool) -> Callable[..., list[Ssa]]:
    """Whether a comes before b."""

    def body(a: Ssa, b: Ssa, *rest: Ssa) -> list[Ssa]:
        test = w.compare("GT" if descending else "LT", a, b)
        if a.dtype.kind != "f":
            return [test]
        nan = [w.compare("NE", x, x) for x in (a, b)]
        first, other = nan if descending else nan[::-1]
        return [w.op("or", test, w.op("and", first, w.op("not", other)))]

    return body


def sorted_with(w: StableHloWriter, xs: list[Ssa], axis: int, descending: bool) -> list[Ssa]:
    """Tensors in the order of the first along an axis; equal elements keep their order."""
    types = [(x.dtype, ()) for x in xs for _ in range(2)]
    body = w.region(types, _before(w, descending))
    held = {"dimension": f"{axis} : i64", "is_stable": "true"}
    return w.many("stablehlo.sort", xs, [(x.dtype, x.shape) for x in xs], held, [body])


@rule("sort")
def _sort(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    if not x.shape:
        return x
    return sorted_with(w, [x], n.params["axis"], n.params["descending"])


def _ordered(w: StableHloWriter, x: Ssa, axis: int, descending: bool) -> list[Ssa]:
    return sorted_with(w, [x, w.iota(x.shape, axis)], axis, descending)


@rule("argsort")
def _argsort(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    return _ordered(w, x, n.params["axis"], n.params["descending"])[1]


@rule("topk")
def _topk(w: StableHloWriter, n: Node, x: Ssa) -> Any:
    axis, k = n.params["axis"], n.params["k"]
    stop = [k if a == axis else m for a, m in enumerate(x.shape)]
    zero, one = [0] * len(stop), [1] * len(stop)
    return [w.slice(y, zero, stop, one) for y in _ordered(w, x, axis, n.params["largest"])]


@stands_for("searchsorted")
def _searchsorted(x: Value, values: Value, side: str) -> Value:
    """How many elements come before; NaN comes after all numbers."""
    if x.shape[0] == 0:
        return full(values.shape, 0, i64)
    wide = expand_dims(values, -1)
    shape = (*values.shape, x.shape[0])
    a, b = broadcast(x, shape), broadcast(wide, shape)
    before = (lt if side == "left" else le)(a, b)
    if x.dtype.kind == "f":
        before = logical_or(
            before, logical_and(isnan(b), isnan(a) if side == "right" else eq(a, a))
        )
        if side == "right":
            before = logical_or(before, isnan(b))
    return sum(cast_to(before, i64), -1)
