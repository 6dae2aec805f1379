"""Arrays of other libraries: which objects are arrays, and their data as NumPy's."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tessera.core import dlpack
from tessera.core.dtype import DType
from tessera.core.errors import DTypeError, OperandError
from tessera.core.promotion import embeds, holds

Array = np.ndarray[Any, np.dtype[Any]]

_PROTOCOLS = ("__dlpack__", "__array__", "__cuda_array_interface__")
# What libraries raise when they refuse to hand over their memory.
_REFUSALS = (TypeError, ValueError, RuntimeError, BufferError)


def is_foreign(x: Any) -> bool:
    """Whether x is an array of another library than NumPy."""
    cls = type(x)
    return not issubclass(cls, type) and any(hasattr(cls, p) for p in _PROTOCOLS)


def as_numpy(x: Any, op: str) -> Array:
    """The data of an array of any library as a plain NumPy array, without a copy where it is on the host."""
    if isinstance(x, np.ndarray | np.generic):
        array: Array = np.asarray(x)
    else:
        array = _from_library(x, op)
    if _is_masked(x):
        raise OperandError(
            f"{op}: a masked array has elements without a value, and a tensor has no mask; pass "
            "x.filled(value), or x.data and the mask x.mask as tensors of their own"
        )
    if array.dtype.kind in "OUSTMmV" and array.dtype.names is None and array.dtype.isbuiltin != 2:
        raise DTypeError(
            f"{op}: cannot take an array of {_elements(array)} as a tensor; convert it to numbers "
            "first, as in x.astype(numpy.float32)"
        )
    if array.dtype.names is not None:
        raise DTypeError(
            f"{op}: cannot take a structured array of {array.dtype} as a tensor; pass its fields one by "
            f"one, as in x[{array.dtype.names[0]!r}]"
        )
    return array


def _is_masked(x: Any) -> bool:
    masked = sys.modules.get("numpy.ma")  # nobody has a masked array before it is imported
    return masked is not None and isinstance(x, masked.MaskedArray)


def _elements(array: Array) -> str:
    kinds = {"O": "Python objects", "M": "dates", "m": "time spans", "V": "raw bytes"}
    return kinds.get(array.dtype.kind, "text")


def _from_library(x: Any, op: str) -> Array:
    try:
        if hasattr(x, "__array__"):
            return _asked(x)
        if hasattr(x, "__dlpack__"):
            return dlpack.take(x)
    except _REFUSALS as e:
        raise OperandError(
            f"{op}: cannot read the data of {type(x).__name__}: {_first_line(e)}; "
            "take an array on a GPU with ts.from_dlpack(x)"
        ) from None
    raise OperandError(
        f"{op}: the data of {type(x).__name__} is on a GPU; take it with ts.from_dlpack(x)"
    )


def _asked(x: Any) -> Array:
    """What __array__ gives; a library that lacks NumPy's narrow floats gives them by DLPack."""
    try:
        return np.asarray(x)
    except TypeError:
        if not hasattr(x, "__dlpack__"):
            raise
    return dlpack.take(x)


def _first_line(e: Exception) -> str:
    return str(e).strip().partition("\n")[0].rstrip(".")


def check_fits(array: Array, dtype: DType, op: str) -> None:
    """Refuse numbers that an integer dtype cannot hold: too large, fractions, NaN and infinities."""
    if dtype.kind not in "iu" or array.size == 0 or array.dtype.kind not in "iufO":
        return
    if array.dtype.kind == "f":
        _check_whole(array, dtype, op)
    low, high = array.min(), array.max()
    for x in (low, high):
        if not holds(dtype, int(x)):
            raise DTypeError(
                f"{op}: {int(x)} does not fit {dtype}; take a wider dtype, or wrap around with "
                f"ts.tensor(x).astype({dtype})"
            )


def check_number(x: complex, dtype: DType, op: str) -> None:
    """Refuse a number that an integer dtype cannot hold."""
    if isinstance(x, int) and not holds(dtype, x):
        raise DTypeError(f"{op}: {x} does not fit {dtype}; take a wider dtype")
    if isinstance(x, float) and dtype.kind in "iu":
        _check_whole(np.asarray(x), dtype, op)


def _check_whole(array: Array, dtype: DType, op: str) -> None:
    bad = ~np.isfinite(array)
    if bad.any():
        raise DTypeError(
            f"{op}: {array[bad].flat[0]} is no integer and does not fit {dtype}; replace it first, or keep a "
            "floating-point dtype"
        )
    parts = array != np.trunc(array)
    if parts.any():
        raise DTypeError(
            f"{op}: {array[parts].flat[0]} is no integer and would lose its fraction in {dtype}; round it "
            "with "
            f"op.round, or cut it off with ts.tensor(x).astype({dtype})"
        )


def needs_check(given: DType, dtype: DType) -> bool:
    """Whether numbers of a dtype may not fit an integer dtype."""
    return dtype.kind in "iu" and not embeds(given, dtype)
