"""Functions and objects of CPython and NumPy as machine code sees them: by address."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

CPYTHON = sys.implementation.name == "cpython"  # elsewhere there is nothing of this
API: Any = ctypes.pythonapi if CPYTHON else None
Object = ctypes.py_object
# Numbers in NumPy's table of functions, which stay what they are.
EMPTY, SET_HANDLER, DEFAULT_HANDLER = 184, 304, 306  # 306 is the address of an object


def words(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """Numbers side by side in memory, which has an address even if there are none."""
    return (ctypes.c_int64 * max(1, len(numbers)))(*numbers)


def address(function: Any) -> int:
    """Where a C function begins."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def numpy_entry(number: int) -> int:
    """An entry of NumPy's table: the address of a function, or of where an object is held."""
    table = pointer_of(np._core._multiarray_umath._ARRAY_API)  # type: ignore[attr-defined]
    return ctypes.c_size_t.from_address(table + number * ctypes.sizeof(ctypes.c_void_p)).value


def capsule(at: int, name: bytes | None = None) -> Any:
    """An object that holds an address; neither the memory there nor the name may go before it."""
    new = API.PyCapsule_New
    new.restype, new.argtypes = Object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(at, name, None)


def pointer_of(held: Any, name: bytes | None = None) -> int:
    """The address in a capsule."""
    get = API.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (Object, ctypes.c_char_p)
    found: int = get(held, name)
    return found


def keep(*things: Any) -> None:
    """Let objects live as long as the process, past the end of the interpreter."""
    for x in things:
        API.Py_IncRef(Object(x))
