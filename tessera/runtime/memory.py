"""Memory for results: blocks that are used again when nothing holds them.

A fresh page costs a fault and a fill with zeros, which for a memory-bound kernel is as much as the
kernel itself.  So the memory of a large result is kept when its array dies, and given to the next
result of its size.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from tessera.core.errors import OutOfMemoryError
from tessera.core.flags import flags

Array = np.ndarray[Any, np.dtype[Any]]

# Windows has no limits of this kind.
_resource: Any = (
    importlib.import_module("resource") if importlib.util.find_spec("resource") else None
)

SMALL = 1 << 16  # bytes below which NumPy's own allocator is as fast
NOTABLE = (
    1 << 26
)  # bytes from which a run first asks whether they can be had, where no limit is set
_LINE = 64  # bytes of a cache line


class KeptBlocks(Protocol):
    """An allocator of blocks that are kept when their arrays die."""

    @property
    def kept(self) -> int:
        """Bytes that are kept for later."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An array in a block."""

    def clear(self) -> None:
        """Let go of what is kept."""


_blocks: KeptBlocks | None = None  # from when there is machine code


def use(blocks: KeptBlocks) -> None:
    """From now on large arrays lie in these blocks."""
    global _blocks
    _blocks = blocks


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An array whose elements have yet to be written; a large one begins where a line of the caches does."""
    d = np.dtype(dtype)
    size = d.itemsize
    for n in shape:
        size *= n
    if size < SMALL:
        return np.empty(shape, d)
    try:
        return _aligned(shape, d, size) if _blocks is None else _blocks.empty(shape, d)
    except MemoryError:
        raise OutOfMemoryError(f"a result needs {size} bytes, which cannot be had") from None


def _aligned(shape: tuple[int, ...], dtype: DTypeLike, size: int) -> Array:
    whole = np.empty(size + _LINE, np.uint8)
    start = -whole.ctypes.data % _LINE
    made: Array = whole[start : start + size].view(dtype).reshape(shape)
    return made


def maker(size: int) -> Callable[[tuple[Any, ...], np.dtype[Any]], Array]:
    """The function (shape, dtype) -> array that is best for arrays of so many bytes."""
    return np.empty if size < SMALL else empty


def clear() -> None:
    """Let go of every block that is kept for later."""
    if _blocks is not None:
        _blocks.clear()


def kept() -> int:
    """Bytes that are kept for later."""
    return 0 if _blocks is None else _blocks.kept


def notable() -> int:
    """Bytes from which a run asks whether they can be had: all beyond the flag `memory`, where it is set."""
    limit = flags().memory
    return min(NOTABLE, limit) if limit else NOTABLE


def demand(user: str, size: int) -> None:
    """Raise when so many bytes cannot be had."""
    if size <= available():
        return
    clear()
    free = available()
    if size > free:
        raise OutOfMemoryError(
            f"{user}: a run needs {size / 2**30:.1f} GiB of memory but {free / 2**30:.1f} GiB are free; use "
            "smaller tensors or a loop over pieces"
        )


# What the machine has --------------------------------------------------------------------------

_GROUP = Path("/sys/fs/cgroup")  # control groups of Linux, version 2 and then version 1
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat",
     "total_inactive_file"),
)  # fmt: skip


def available() -> int:
    """Bytes that can be had: what the flag `memory` or the machine and its limits leave, and what is kept."""
    limit = flags().memory
    if limit:
        return limit
    free = [_free_memory(), _free_address_space(), *(_free_in_group(*names) for names in _LIMITS)]
    return min(n for n in free if n is not None) + kept()


def _free_memory() -> int:
    """Bytes that the system could give."""
    found = _numbers(Path("/proc/meminfo")).get("MemAvailable:")
    if found is not None:
        return found * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return sys.maxsize


def _free_address_space() -> int | None:
    """Bytes below the limit of this process, if it has one."""
    if _resource is None:
        return None
    limit = _resource.getrlimit(_resource.RLIMIT_AS)[0]
    if limit == _resource.RLIM_INFINITY:
        return None
    used = _numbers(Path("/proc/self/status")).get("VmSize:", 0)
    return max(0, int(limit) - used * 1024)


def _free_in_group(most: str, used: str, statistics: str, file: str) -> int | None:
    """Bytes below the limit of the control group, if it has one; cached files can go."""
    try:
        limit, now = (_GROUP / most).read_text().strip(), int((_GROUP / used).read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdecimal():
        return None
    return max(0, int(limit) - now + _numbers(_GROUP / statistics).get(file, 0))


def _numbers(path: Path) -> dict[str, int]:
    """The lines `name number` of a file of the system; none where there is no such file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    words = (line.split() for line in lines)
    return {w[0]: int(w[1]) for w in words if len(w) > 1 and w[1].isdecimal()}
