"""Widths and modes of `pad`: NumPy's forms of a width, and what is beyond the ends of an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dims import Dim, Size
from tessera.core.errors import OperandError, ShapeError
from tessera.ir.graph.ir import Value
from tessera.ops.define import FUNCTIONS

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
Pairs = list[tuple[Size, Size]]


def pairs_of(v: Value, width: Any) -> Pairs:
    """(before, after) of each axis, from a number, one pair for all axes, or a pair for each axis."""
    given = width.tolist() if isinstance(width, np.ndarray | np.generic) else width
    if _is_size(given):
        return [(given, given)] * v.ndim
    if isinstance(given, tuple | list):
        if all(map(_is_size, given)) and len(given) in (1, 2):
            return [(given[0], given[-1])] * v.ndim
        pairs = [_pair(w) for w in given]
        if None not in pairs and len(pairs) in (1, v.ndim):
            return (pairs * v.ndim if len(pairs) == 1 else pairs)[: v.ndim]  # type: ignore[return-value]
    raise ShapeError(
        f"pad: width {width} needs a (before, after) for each axis of {v.type}, or one for all axes"
    )


def _is_size(n: Any) -> bool:
    return isinstance(n, int | np.integer | Dim) and not isinstance(n, bool)


def _pair(w: Any) -> tuple[Size, Size] | None:
    ends = (w, w) if _is_size(w) else tuple(w) if isinstance(w, tuple | list) else ()
    return ends if len(ends) == 2 and all(map(_is_size, ends)) else None


def check_mode(mode: Any) -> None:
    """Refuse a mode that there is not."""
    if mode not in MODES:
        raise OperandError(f"pad: mode is {mode!r}, expected one of {', '.join(MODES)}")


def extended(v: Value, pairs: Pairs, mode: str) -> Value:
    """v with its own elements beyond its ends: the last ones, mirrored ones, or those of the other end."""
    for axis, (low, high) in enumerate(pairs):
        if any(isinstance(n, int) and n < 0 for n in (low, high)):
            raise ShapeError(
                f"pad: width ({low}, {high}) of axis {axis} is negative with mode={mode!r}"
            )
        if not (isinstance(low, int) and isinstance(high, int) and low == high == 0):
            found = FUNCTIONS["gather"].bind(v, _places(v, axis, low, high, mode), axes=(axis,))
            order = (*range(1, axis + 1), 0, *range(axis + 1, v.ndim))
            v = FUNCTIONS["transpose"](found, order)
    return v


def _places(v: Value, axis: int, low: Size, high: Size, mode: str) -> Value:
    """Which element of an axis each element of the result is."""
    n = v.shape[axis]
    if isinstance(n, int) and n == 0:
        raise ShapeError(
            f"pad: axis {axis} of {v.type} is empty and has no element for mode={mode!r}"
        )
    f = FUNCTIONS
    at = f["sub"](f["iota"]((low + n + high,)), low)
    if mode == "edge":
        return f["clip"](at, 0, n - 1)
    if mode == "wrap":
        return f["remainder"](at, n)
    turn = 2 * n if mode == "symmetric" else f["maximum"](2 * n - 2, 1)
    last = 2 * n - 1 if mode == "symmetric" else 2 * n - 2
    inside = f["remainder"](at, turn)
    return f["minimum"](inside, f["sub"](last, inside))
