"""Slopes of samples by differences of neighbours, as numpy.gradient takes them."""

from __future__ import annotations

from typing import Any

from tessera.core.errors import AxisError, OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.define import ArrayLike, AxisLike, as_value, axes_of, cast_to, floating, public
from tessera.ops.elementwise import add, div, mul, neg, sub
from tessera.ops.shape import concat, moveaxis


@public
def gradient(f: ArrayLike, *spacing: Any, axis: AxisLike = None, edge_order: int = 1) -> Any:
    """The slope of samples along each axis, or along one, by differences of neighbours.

    Differences are central inside and one-sided at the ends.  A spacing is a step or the places of the
    samples; one serves all axes, else there is one for each.
    """
    v = floating(as_value(f, "gradient"))
    if v.ndim == 0:
        raise AxisError(f"gradient: {v.type} has no axis along which there is a slope")
    axes = axes_of("gradient", axis, v.ndim)
    steps = spacing * len(axes) if len(spacing) == 1 else spacing or (1.0,) * len(axes)
    if len(steps) != len(axes):
        raise OperandError(
            f"gradient: got {len(spacing)} spacings for {len(axes)} axes, expected one or all"
        )
    if edge_order not in (1, 2):
        raise OperandError(f"gradient: edge_order is {edge_order!r}, expected 1 or 2")
    found = tuple(_along(v, a, h, edge_order) for a, h in zip(axes, steps, strict=True))
    return found[0] if len(found) == 1 else found


def _along(v: Value, axis: int, spacing: Any, order: int) -> Value:
    n = v.shape[axis]
    if isinstance(n, int) and n <= order:
        raise ShapeError(
            f"gradient: axis {axis} of {v.type} has {n} elements, expected {order + 1} or more"
        )
    y: Any = moveaxis(v, axis, -1)
    h = cast_to(as_value(spacing, "gradient"), v.dtype.real)
    if h.ndim > 1 or (h.ndim == 1 and h.shape[0] != n):
        raise ShapeError(
            f"gradient: the spacing of axis {axis} is {h.type}, expected a step or {n} places"
        )
    before, after = _steps(h)
    slopes = div(sub(y[..., 1:], y[..., :-1]), sub(h[1:], h[:-1]) if h.ndim else h)  # type: ignore[index]
    if h.ndim == 0:
        inside = div(sub(y[..., 2:], y[..., :-2]), mul(h, 2))
    else:
        total = add(before, after)
        inside = add(
            mul(slopes[..., :-1], div(after, total)),  # type: ignore[index]
            mul(slopes[..., 1:], div(before, total)),  # type: ignore[index]
        )
    first, last = slopes[..., :1], slopes[..., -1:]  # type: ignore[index]
    if order == 2:
        first = _end(slopes[..., :1], slopes[..., 1:2], _at(before, 0), _at(after, 0))  # type: ignore[index]
        last = _end(slopes[..., -1:], slopes[..., -2:-1], _at(after, -1), _at(before, -1))  # type: ignore[index]
    return moveaxis(concat([first, inside, last], -1), -1, axis)


def _steps(h: Value) -> tuple[Any, Any]:
    """The steps before and after each inner sample."""
    if h.ndim == 0:
        return h, h
    steps: Any = sub(h[1:], h[:-1])  # type: ignore[index]
    return steps[:-1], steps[1:]


def _at(h: Any, i: int) -> Any:
    return h if h.ndim == 0 else h[i]


def _end(near: Any, far: Any, close: Any, wide: Any) -> Value:
    """The slope at an end of the parabola through three samples."""
    weight = div(close, add(close, wide))
    return add(mul(near, add(1, weight)), mul(far, neg(weight)))
