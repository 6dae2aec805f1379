"""Machine code in memory."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

from tessera.ir.target.cpu import machine
from tessera.ir.target.cpu.link import Linked

KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
_X86 = platform.machine() in ("x86_64", "AMD64")


def is_crowded() -> bool:
    """Whether a GPU's driver has its hands on the address space of this process.

    It leaves small holes far from each other, in which a linker may put code and its constants further
    apart than an instruction reaches.
    """
    try:
        with open("/proc/self/maps") as file:
            return any("libcuda" in line for line in file)
    except OSError:
        return False


class Loaded:
    """Machine code in memory: the addresses of the functions that it was asked for."""

    def __init__(self, code: bytes, *names: str):
        link = _linked_together if _X86 and is_crowded() else machine.link
        self._library, self.addresses = link(code, names)
        self.address = self.addresses[names[0]]
        self.call = KERNEL(self.address)


def _linked_together(code: bytes, names: tuple[str, ...]) -> tuple[Any, dict[str, int]]:
    """All sections in one piece of memory."""
    made = Linked(code, names, _outside)
    return made, made.addresses


def _outside(name: str) -> int:
    """The address of a function of this process, such as fmodf."""
    found = getattr(ctypes.CDLL(None), name, None)
    if found is None:
        raise RuntimeError(f"there is no function {name!r} to link with")
    address = ctypes.cast(found, ctypes.c_void_p).value
    assert address is not None, name
    return address
