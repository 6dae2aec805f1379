"""DLPack on the host: the layout of a capsule, and formats that NumPy does not exchange.

NumPy gives and takes memory of its own formats.  For 16- and 8-bit floats the same capsule says unsigned
integers to NumPy and floats to the other library: one field of it is written over, and nothing is copied.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
_UNSIGNED = 1  # kDLUInt
# The codes of formats that NumPy does not know.
NARROW: dict[np.dtype[Any], tuple[int, int]] = {
    np.dtype(ml_dtypes.bfloat16): (4, 16),
    np.dtype(ml_dtypes.float8_e4m3fn): (10, 8),
    np.dtype(ml_dtypes.float8_e5m2): (12, 8),
}
CODES: dict[np.dtype[Any], tuple[int, int]] = {
    np.dtype(bool): (6, 8),
    **{np.dtype(f"i{n}"): (0, 8 * n) for n in (1, 2, 4, 8)},
    **{np.dtype(f"u{n}"): (_UNSIGNED, 8 * n) for n in (1, 2, 4, 8)},
    **{np.dtype(f"f{n}"): (2, 8 * n) for n in (2, 4, 8)},
    **{np.dtype(f"c{n}"): (5, 8 * n) for n in (8, 16)},
    **NARROW,
}


class TensorLayout(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class ManagedLayout(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (
        ("tensor", TensorLayout), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class VersionedLayout(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", TensorLayout),
    )  # fmt: skip


def python_function(name: str, result: Any, *types: Any) -> Any:
    """A function of Python's C API."""
    return ctypes.PYFUNCTYPE(result, *types)((name, ctypes.pythonapi))


pointer_of = python_function(
    "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p
)
is_named = python_function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


def _tensor_in(capsule: Any) -> Any:
    """The DLTensor of a fresh capsule."""
    if is_named(capsule, VERSIONED):
        return VersionedLayout.from_address(pointer_of(capsule, VERSIONED)).tensor
    return ManagedLayout.from_address(pointer_of(capsule, PLAIN)).tensor


def give(array: Array, **how: Any) -> Any:
    """A capsule with the memory of an array of any dtype that DLPack has a code for."""
    code = NARROW.get(array.dtype)
    if code is None:
        return array.__dlpack__(**how)
    capsule = array.view(f"u{array.dtype.itemsize}").__dlpack__(**how)
    _tensor_in(capsule).code = code[0]
    return capsule


class _Relabelled:
    """A capsule of narrow floats that says unsigned integers."""

    def __init__(self, x: Any):
        self._x = x
        self.dtype: np.dtype[Any] | None = None

    def __dlpack_device__(self) -> Any:
        return self._x.__dlpack_device__()

    def __dlpack__(self, **how: Any) -> Any:
        try:
            capsule = self._x.__dlpack__(**how)
        except TypeError:  # from before DLPack 1.0
            capsule = self._x.__dlpack__()
        t = _tensor_in(capsule)
        narrow = {code: d for d, code in NARROW.items()}
        self.dtype = narrow.get((t.code, t.bits))
        if self.dtype is not None:
            t.code = _UNSIGNED
        return capsule


def take(x: Any) -> Array:
    """The memory of an object that speaks DLPack on the host, as an array."""
    source = _Relabelled(x)
    array: Array = np.from_dlpack(source)
    return array if source.dtype is None else array.view(source.dtype)
