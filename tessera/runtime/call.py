"""Calls from Python that skip the interpreter when nothing has changed since the last one.

A `Caller` is a builtin function made of call_ir.py.  What it calls is a Python function, which may leave
records: for arguments of exactly these types, run these kernels and return one tensor.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tessera.core import usual
from tessera.runtime.call_ir import SLOTS, call_ir, slot_of
from tessera.runtime.code import Source, load
from tessera.runtime.kernel import FAST
from tessera.runtime.pool import Series, pool
from tessera.runtime.pool_ir import HEAD

_EMPTY = 184  # the number of PyArray_Empty in NumPy's table of functions, the same since 1.7
_FASTCALL_WITH_KEYWORDS = 0x82
_API = ctypes.pythonapi
_Object = ctypes.py_object


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


def _words(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


class Record:
    """A call that needs no Python: what it expects, runs and returns.

    A tensor among the arguments is expected by its type, anything else is expected to be that very object.
    """

    def __init__(
        self, expected: Expected, out: Any, shape: Sequence[int], dtype: Any, series: Series
    ):
        self.configuration = usual.configuration()
        self._kept = (expected, out, dtype, series)  # so that no other object gets their addresses
        known, names = [id(x) for x in expected.arguments], expected.names
        by_position = len(known) - len(names)
        self.slot = slot_of([len(names), *known[:by_position]])
        self._known, self._shape = _words(known), _words(shape)
        self._names = _words([id(n) for n in names])
        self._scratch = np.empty(series.scratch + 64, np.uint8)
        at = -(-self._scratch.ctypes.data // 64) * 64
        self._memory = _words([
            by_position, ctypes.addressof(self._names), len(known), ctypes.addressof(self._known), self.configuration,
            id(out), id(dtype), len(shape), ctypes.addressof(self._shape), series.address, at,
            expected.tensors,
        ])  # fmt: skip
        self.address = ctypes.addressof(self._memory)


class Expected(NamedTuple):
    """The arguments of a call: types for tensors, else the objects; those by keyword last."""

    arguments: tuple[Any, ...]
    tensors: int
    names: tuple[str, ...]  # of keywords


class Caller:
    """A builtin function, and the records that it follows."""

    def __init__(self, slow: Callable[..., Any], name: str, tensors: type, others: dict[str, Any]):
        self._slow, self._name = slow, name.encode()
        self._records: dict[int, Record] = {}  # by slot; each lives as long as it is followed
        self._api = _api(tensors, tuple(others.items()))
        self._table = _words([0] * SLOTS)
        api, table = ctypes.addressof(self._api.memory), ctypes.addressof(self._table)
        self._cell = _words([table, id(slow), api])
        new = _API.PyCapsule_New
        new.restype, new.argtypes = _Object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        capsule = new(ctypes.addressof(self._cell), None, None)
        self._method = _Method(self._name, self._api.function, _FASTCALL_WITH_KEYWORDS, None)
        make = _API.PyCMethod_New
        make.restype = _Object
        make.argtypes = (ctypes.c_void_p, _Object, _Object, ctypes.c_void_p)
        # The function holds this object, in the place of a module, and lives no longer than its memory.
        self.function: Any = make(ctypes.addressof(self._method), capsule, self, None)

    def follows(self, record: Record) -> bool:
        """Whether calls follow this record."""
        return self._records.get(record.slot) is record

    def follow(self, record: Record) -> None:
        """From now on calls follow this record; one of the same slot is forgotten."""
        self._table[record.slot] = record.address
        self._records[record.slot] = record

    def forget(self) -> None:
        """From now on all calls go to Python."""
        ctypes.memset(self._table, 0, ctypes.sizeof(self._table))
        self._records.clear()


class _Api:
    """What the machine code must know of Python, NumPy and the class of tensors."""

    def __init__(self, tensors: type, others: Sequence[tuple[str, Any]]):
        code = load(Source("call", call_ir(), ("call",)))
        self.function = code.addresses["call"]
        places = _places(tensors, ("type", "data", *(n for n, _ in others)))
        self._kept = (code, tensors, others)
        self._fields = _words([n for name, x in others for n in (places[name], id(x))])
        self.memory = _words([
            _address(_API.PyType_GenericAlloc), _numpy_function(_EMPTY), _address(_API.Py_IncRef),
            _address(_API.Py_DecRef), _address(_API.PyObject_Vectorcall), id(tensors),
            places["type"], places["data"], ctypes.addressof(self._fields), len(others),
            usual.CONFIGURATION, usual.BUSY, *pool().places, places["device"], id(dict(others)["device"]),
        ])  # fmt: skip


_APIS: dict[Any, _Api] = {}


def _api(tensors: type, others: Sequence[tuple[str, Any]]) -> _Api:
    here = pool()
    key = (tensors, here)
    if key not in _APIS:
        _APIS[key] = _Api(tensors, others)
    return _APIS[key]


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _numpy_function(number: int) -> int:
    get = _API.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (_Object, ctypes.c_char_p)
    table = get(np._core._multiarray_umath._ARRAY_API, None)  # type: ignore[attr-defined]
    return ctypes.c_size_t.from_address(table + number * ctypes.sizeof(ctypes.c_void_p)).value


def _places(tensors: type, names: Sequence[str]) -> dict[str, int]:
    """Where the fields of a class with slots lie, found by looking for what was put there."""
    sample: Any = object.__new__(tensors)
    marks = [object() for _ in names]
    for name, mark in zip(names, marks, strict=True):
        setattr(sample, name, mark)
    words = range(HEAD, tensors.__basicsize__, 8)
    held = {ctypes.c_size_t.from_address(id(sample) + w).value: w for w in words}
    return {name: held[id(mark)] for name, mark in zip(names, marks, strict=True)}


@cache
def has_calls() -> bool:
    """Whether this Python and this NumPy are laid out as call_ir.py expects."""
    return (
        FAST
        and sys.implementation.name == "cpython"
        and sys.version_info[:2] >= (3, 11)
        and getattr(sys, "_is_gil_enabled", lambda: True)()
        and np.lib.NumpyVersion(np.__version__) >= "1.26.0"
        and platform.architecture()[0] == "64bit"
        and HEAD == 16
    )
