"""Whole numbers among arguments: counts, shifts and places that are known while tracing."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tessera.core.dims import Dim
from tessera.core.dtype import DType, i64
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value
from tessera.ops.define import ArrayLike, as_value, cast_to


def whole(op: str, what: str, n: Any) -> Any:
    """A whole number, or a symbolic size; a number with a fraction is refused, never cut."""
    if isinstance(n, Dim):
        return n
    if isinstance(n, bool | np.bool_) or not hasattr(n, "__index__"):
        raise OperandError(f"{op}: {what} is {type(n).__name__} {n!r:.40}, expected a whole number")
    if isinstance(n, Value) and n.dtype.kind not in "iu":
        raise OperandError(f"{op}: {what} is {n.type}, expected a whole number")
    if isinstance(n, np.ndarray) and (n.ndim or n.dtype.kind not in "iu"):
        raise OperandError(
            f"{op}: {what} is an array {n.dtype}{list(n.shape)}, expected a whole number"
        )
    return operator.index(n)


def whole_tensor(op: str, what: str, given: ArrayLike, dtype: DType = i64) -> Value:
    """A tensor of whole numbers; fractions would be cut, and a mask is no list of numbers."""
    v = as_value(given, op)
    if v.dtype.kind not in "iu" and 0 not in v.shape:
        more = "; the places of a mask are op.nonzero(mask)[0]" if v.dtype.kind == "b" else ""
        raise OperandError(f"{op}: {what} is {v.type}, expected whole numbers{more}")
    return cast_to(v, dtype)


def wholes(op: str, what: str, given: Any) -> list[Any]:
    """Whole numbers from one of them, a sequence, an array or a tensor."""
    if isinstance(given, Value | np.ndarray):
        array: Any = np.asarray(given)
        if array.dtype.kind not in "iu" and array.size:
            raise OperandError(f"{op}: {what} are {array.dtype}, expected whole numbers")
        given = array.reshape(-1).tolist()
    if isinstance(given, tuple | list | range):
        return [whole(op, what, n) for n in given]
    return [whole(op, what, given)]
