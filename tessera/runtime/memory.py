"""Memory for results: blocks that are used again when nobody holds them.

A fresh page costs a fault and a fill with zeros, which for a memory-bound kernel is as much as the
kernel itself.  So the memory of a large result is kept when its array dies, and given to the next
result of its size.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from tessera.core.errors import OutOfMemoryError

Array = np.ndarray[Any, np.dtype[Any]]

_SMALL = 1 << 16  # bytes below which NumPy's own allocator is as fast
_MOST = 1 << 30  # bytes that are kept for later
_LINE = 64


class _Pool:
    """Free blocks by size."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.free: dict[int, list[Array]] = {}
        self.kept = 0

    def take(self, size: int) -> Array:
        with self.lock:
            blocks = self.free.get(size)
            if blocks:
                self.kept -= size
                return blocks.pop()
        try:
            return np.empty(size + _LINE, np.uint8)
        except MemoryError:
            self.clear()
            raise OutOfMemoryError(f"a result needs {size} bytes, which cannot be had") from None

    def give(self, size: int, block: Array) -> None:
        with self.lock:
            if self.kept + size <= _MOST:
                self.free.setdefault(size, []).append(block)
                self.kept += size

    def clear(self) -> None:
        with self.lock:
            self.free.clear()
            self.kept = 0


_POOL = _Pool()


class _Held:
    """A block in use: the base of the array that a caller gets, and of its views."""

    __slots__ = ("__array_interface__", "block", "size")

    def __init__(self, size: int):
        self.size, self.block = size, _POOL.take(size)
        start = self.block.ctypes.data
        self.__array_interface__ = {
            "version": 3, "shape": (size,), "typestr": "|u1",
            "data": (start + -start % _LINE, False),
        }  # fmt: skip

    def __del__(self) -> None:
        _POOL.give(self.size, self.block)


def empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array whose elements have yet to be written."""
    d = np.dtype(dtype)
    size = d.itemsize
    for n in shape:
        size *= n
    if size < _SMALL:
        return np.empty(shape, d)
    made: Array = np.asarray(_Held(size)).view(d).reshape(shape)
    return made


def clear() -> None:
    """Let go of every block that is kept for later."""
    _POOL.clear()


def kept() -> int:
    """Bytes that are kept for later."""
    return _POOL.kept
