"""Blocks for results, by the allocator of blocks_ir.py, which NumPy knows as a handler of memory (NEP 49)."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from tessera.runtime import memory
from tessera.runtime.allocator_ir import BELOW, BYTES, FUNCTIONS, KEPT, MOST, blocks_ir
from tessera.runtime.capi import (
    CPYTHON,
    DEFAULT_HANDLER,
    SET_HANDLER,
    Object,
    capsule,
    keep,
    numpy_entry,
    pointer_of,
)
from tessera.runtime.code import LlvmSource, load

_MOST = 1 << 30  # bytes that are kept for later
_NAME = b"mem_handler"  # of capsules that NumPy takes for such


class _NumpyHandler(ctypes.Structure):
    """NumPy's PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("malloc", "calloc", "realloc", "free")),
    )  # fmt: skip


class NumpyBlocks:
    """The allocator of a process, on top of NumPy's own, which knows of huge pages."""

    def __init__(self) -> None:
        code = load(blocks_source())
        self.take, zeroed, resized, self.give, clear = (code.addresses[f] for f in FUNCTIONS)
        self._memory = ctypes.create_string_buffer(BYTES)
        self.address = ctypes.addressof(self._memory)
        own = Object.from_address(numpy_entry(DEFAULT_HANDLER)).value
        below = pointer_of(own, _NAME) + _NumpyHandler.context.offset
        ctypes.memmove(self.address + BELOW, below, 5 * ctypes.sizeof(ctypes.c_void_p))
        ctypes.c_int64.from_address(self.address + MOST).value = _MOST
        self._handler = _NumpyHandler(
            b"tessera", 1, self.address, self.take, zeroed, resized, self.give
        )  # fmt: skip
        self.capsule = capsule(ctypes.addressof(self._handler), _NAME)
        self._set = ctypes.PYFUNCTYPE(Object, Object)(numpy_entry(SET_HANDLER))
        self._clear = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(clear)
        keep(code, self)  # an array may be the last thing that goes

    def empty(self, shape: tuple[int, ...], dtype: Any) -> memory.Array:
        """An array in a block."""
        before = self._set(self.capsule)
        try:
            return np.empty(shape, dtype)
        finally:
            self._set(before)

    @property
    def kept(self) -> int:
        """Bytes that are kept for later."""
        return ctypes.c_int64.from_address(self.address + KEPT).value

    def clear(self) -> None:
        """Let go of what is kept."""
        self._clear(self.address)


def blocks_source() -> LlvmSource:
    """The code of the allocator."""
    return LlvmSource("memory of results", blocks_ir(), FUNCTIONS)


_BLOCKS: NumpyBlocks | None = None
_MAKING = threading.Lock()


def blocks() -> NumpyBlocks | None:
    """The allocator of this process, which is in use from now on; there is none but on CPython."""
    global _BLOCKS
    if _BLOCKS is None and CPYTHON:
        with _MAKING:
            if _BLOCKS is None:
                _BLOCKS = NumpyBlocks()
                memory.use(_BLOCKS)
    return _BLOCKS
