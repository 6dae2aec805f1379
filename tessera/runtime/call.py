"""Calls from Python that skip the interpreter when nothing has changed since the last one.

A `Caller` is a builtin function made of call_ir.py.  What it calls is a Python function, which may leave
records: for arguments of exactly these types, run these kernels and return one tensor.
"""

from __future__ import annotations

import ctypes
import math
import platform
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tessera.core import call_guard
from tessera.runtime import memory
from tessera.runtime.allocator import blocks
from tessera.runtime.call_ir import SLOTS, call_ir, slot_of
from tessera.runtime.capi import (
    API,
    EMPTY,
    SET_HANDLER,
    Object,
    address,
    capsule,
    numpy_entry,
    words,
)
from tessera.runtime.code import LlvmSource, load
from tessera.runtime.kernel import FAST
from tessera.runtime.pool import Series, pool
from tessera.runtime.pool_ir import HEAD

_FASTCALL_WITH_KEYWORDS = 0x82  # METH_FASTCALL | METH_KEYWORDS (CPython's methodobject.h)


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )  # fmt: skip


class Direct(NamedTuple):
    """A run of kernels that makes one array: all that a program does."""

    shape: Sequence[int]
    dtype: np.dtype[Any]
    series: Series
    between: int  # bytes of the arena
    short: bool  # so short that nobody minds if it holds the lock of the interpreter


class CallRecord:
    """A call that needs no Python: what it expects, runs and returns.

    A tensor among the arguments is expected by its type, anything else is expected to be that very object.
    """

    def __init__(self, expected: Expected, out: object, run: Direct):
        self.configuration = call_guard.configuration()
        here, series = pool(), run.series
        here.prepare(series)
        self._kept = (expected, out, run, here)  # so that no other object gets their addresses
        known, names = [id(x) for x in expected.arguments], expected.names
        by_position = len(known) - len(names)
        self.slot = slot_of([len(names), *known[:by_position]])
        self._known, self._shape = words(known), words(run.shape)
        self._names = words([id(n) for n in names])
        self._scratch = np.empty(series.scratch + 64 if run.short else 0, np.uint8)
        scratch = -(-self._scratch.ctypes.data // 64) * 64 if run.short else 0
        own = 0 if series.seats else series.scratch
        in_block = math.prod(run.shape) * run.dtype.itemsize >= memory.SMALL
        gate = (id(here.enter), id(here.leave)) if series.seats else (0, 0)
        self._memory = words([
            by_position, ctypes.addressof(self._names), len(known), ctypes.addressof(self._known),
            self.configuration,
            id(out), id(run.dtype), len(run.shape), ctypes.addressof(self._shape), series.address, here.block,
            expected.tensors, scratch, own, run.between, in_block, *gate, id(self),
        ])  # fmt: skip
        self.address = ctypes.addressof(self._memory)


class Expected(NamedTuple):
    """The arguments of a call: types for tensors, else the objects; those by keyword last."""

    arguments: tuple[object, ...]
    tensors: int
    names: tuple[str, ...]  # of keywords


class Caller:
    """A builtin function, and the records that it follows."""

    def __init__(self, slow: Callable[..., Any], name: str, tensors: type, others: dict[str, Any]):
        self._slow, self._name = slow, name.encode()
        self._records: dict[int, CallRecord] = {}  # by slot; each lives as long as it is followed
        self._api = _api(tensors, tuple(others.items()))
        self._table = words([0] * SLOTS)
        api, table = ctypes.addressof(self._api.memory), ctypes.addressof(self._table)
        self._cell = words([table, id(slow), api])
        cell = capsule(ctypes.addressof(self._cell))
        self._method = _Method(self._name, self._api.function, _FASTCALL_WITH_KEYWORDS, None)
        make = API.PyCMethod_New
        make.restype = Object
        make.argtypes = (ctypes.c_void_p, Object, Object, ctypes.c_void_p)
        # The function holds this object, in the place of a module, and lives no longer than its memory.
        self.function: Any = make(ctypes.addressof(self._method), cell, self, None)

    def follows(self, record: CallRecord) -> bool:
        """Whether calls follow this record."""
        return self._records.get(record.slot) is record

    def follow(self, record: CallRecord) -> None:
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
        code = load(LlvmSource("call", call_ir(), ("call",)))
        self.function = code.addresses["call"]
        places = _places(tensors, ("type", "storage", *(n for n, _ in others)))
        self._kept = (code, tensors, others)
        self._fields = words([n for name, x in others for n in (places[name], id(x))])
        b = blocks()
        assert b is not None, "a call without CPython"
        self.memory = words([
            address(API.PyType_GenericAlloc), numpy_entry(EMPTY), address(API.Py_IncRef),
            address(API.Py_DecRef), address(API.PyObject_Vectorcall), id(tensors),
            places["type"], places["storage"], ctypes.addressof(self._fields), len(others),
            call_guard.FORKS, call_guard.BUSY, pool().series_code, places["device"],
            id(dict(others)["device"]),
            address(API.PyErr_Clear), address(API.PyEval_SaveThread), address(API.PyEval_RestoreThread),
            numpy_entry(SET_HANDLER), id(b.capsule), b.address, b.take, b.give, id(False), id(True),
            address(API.PyContextVar_Get), id(call_guard.SETTINGS),
        ])  # fmt: skip


_APIS: dict[type, _Api] = {}


def _api(tensors: type, others: Sequence[tuple[str, Any]]) -> _Api:
    if tensors not in _APIS:
        _APIS[tensors] = _Api(tensors, others)
    return _APIS[tensors]


def _places(tensors: type, names: Sequence[str]) -> dict[str, int]:
    """Where the fields of a class with slots lie, found by looking for what was put there."""
    sample: Any = object.__new__(tensors)
    marks = [object() for _ in names]
    for name, mark in zip(names, marks, strict=True):
        setattr(sample, name, mark)
    offsets = range(HEAD, tensors.__basicsize__, 8)
    held = {ctypes.c_size_t.from_address(id(sample) + w).value: w for w in offsets}
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
