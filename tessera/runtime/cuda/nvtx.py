"""Named ranges in the profilers of NVIDIA, where one of its libraries is; nothing elsewhere.

The library comes with CUDA, or with a package of PyPI (`nvidia-nvtx`), which PyTorch brings along.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

# Of NVTX 2, and of NVTX 3, which is otherwise a header of C.
LIBRARIES = ("libnvToolsExt.so.1", "libnvtx3interop.so.1", "nvToolsExt64_1.dll")


def folders() -> list[Path]:
    """Where packages of PyPI keep NVIDIA's libraries."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else spec.submodule_search_locations or []
    return sorted(p for root in roots for p in Path(root).glob("*/lib"))


@cache
def _library() -> Any:
    places = [*LIBRARIES, *(str(f / name) for f in folders() for name in LIBRARIES)]
    for place in places:
        try:
            found = ctypes.CDLL(place)
            found.nvtxRangePushA.argtypes = (ctypes.c_char_p,)
            found.nvtxRangePop.argtypes = ()
        except (OSError, AttributeError):  # not there, or another library of that name
            continue
        return found
    return None


@contextmanager
def named(name: str) -> Iterator[None]:
    """Name what this thread does in the block."""
    library = _library()
    if library is None:
        yield
        return
    library.nvtxRangePushA(name.encode())
    try:
        yield
    finally:
        library.nvtxRangePop()
