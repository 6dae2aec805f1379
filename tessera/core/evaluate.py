"""What a scalar op, a cast and the identity of a fold are on NumPy arrays, for every interpreter.

Scalar ops that Tessera approximates itself have the bits of every target; NumPy's are not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.approximate import FUNCTIONS, evaluate
from tessera.core.dtype import DType, bf16, f16
from tessera.core.rounding import round_to
from tessera.core.scalar import SCALARS, Number

Array = np.ndarray[Any, np.dtype[Any]]

_NARROW = (f16.np, bf16.np)
_MOVES = ("where", "nextafter")  # which look at the elements as they are


def portable(name: str, dtype: DType) -> bool:
    """Whether a scalar op has the same bits on every target: exactly rounded, or our own function."""
    exact = SCALARS[name].ulp <= 0.5 or name == "rsqrt"
    return exact or (name in FUNCTIONS and dtype.kind == "f")


def scalar(name: str, xs: Sequence[Array], dtype: DType) -> Array:
    """A scalar op on arrays; narrow floats compute in f32 and are rounded once."""
    if name not in _MOVES:
        xs = [x.astype(np.float32) if x.dtype in _NARROW else x for x in xs]
    if name in FUNCTIONS and xs[0].dtype.kind == "f":
        y = evaluate(name, *xs)
    else:
        y = np.asarray(SCALARS[name].numpy(*xs))
    return y if y.dtype == dtype.np else round_to(y, dtype)


def cast(x: Array, dtype: DType) -> Array:
    """x in another dtype: rounded to nearest even, integers clamped, NaN to 0, bools by x != 0."""
    return np.asarray(x != 0) if dtype.kind == "b" else round_to(x, dtype)


def identity(name: str, dtype: DType) -> Number:
    """The number of a dtype that a fold starts from: the least one for max, the largest for min."""
    value = SCALARS[name].identity
    assert isinstance(value, int | float), name
    if dtype.kind == "b":
        return bool(value) and value != -math.inf
    number: Number = round_to(np.asarray(value), dtype).item()
    return number
