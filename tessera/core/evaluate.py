"""What a scalar op, a cast and the identity of a fold are on NumPy arrays, for every interpreter.

Scalar ops that Tessera approximates itself have the bits of every target; NumPy's are not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core import assembly
from tessera.core.approximate import FUNCTIONS, evaluate
from tessera.core.dtype import FORMATS, DType
from tessera.core.rounding import round_to
from tessera.core.scalar import SCALARS, Expr, Number

Array = np.ndarray[Any, np.dtype[Any]]

_NARROW = frozenset(np.dtype(d.np) for d in FORMATS.values() if d.is_narrow and d.kind == "f")
_MOVES = ("where", "nextafter")  # which look at the elements as they are


def is_portable(e: Expr, dtype: DType) -> bool:
    """Whether an expression has the same bits on every target: exactly rounded, or of our own functions."""
    if e.op in ("arg", "const"):
        return True
    if e.op == "nextafter" and dtype.bits == 8:
        return False  # kernels hold 8-bit floats as f32, whose neighbours are others
    exact = SCALARS[e.op].ulp <= 0.5 or e.op == "rsqrt"
    own = exact or (e.op in FUNCTIONS and dtype.kind == "f")
    return own and all(is_portable(o, dtype) for o in e.operands)


def scalar(name: str, xs: Sequence[Array], dtype: DType) -> Array:
    """A scalar op on arrays; narrow floats compute in f32 and are rounded once."""
    if name.startswith(assembly.PREFIX):
        return np.asarray(assembly.found(name).evaluate(xs))
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


def neutral(name: str, dtype: DType) -> Number:
    """The number that changes nothing in a fold: x + -0 is x, also where x is -0."""
    return -0.0 if name == "add" and dtype.kind == "f" else identity(name, dtype)
