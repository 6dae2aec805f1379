"""Machine code in memory."""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

from tessera.ir.target.cpu import machine
from tessera.ir.target.cpu.link import Linked, MalformedError, Unknown

KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
_X86 = platform.machine() == "x86_64" and sys.platform == "linux"  # object files are ELF


class Loaded:
    """Machine code in memory: the addresses of the functions that it was asked for."""

    def __init__(self, code: bytes, *names: str):
        self._library, self.addresses = _linked(code, names)
        self.address = self.addresses[names[0]]
        self.call = KERNEL(self.address)


def _linked(code: bytes, names: tuple[str, ...]) -> tuple[Any, dict[str, int]]:
    """By our linker, which keeps sections together, or by LLVM's where ours does not know its way."""
    if not _X86:
        try:
            return machine.link(code, names)
        except RuntimeError as e:  # of LLVM
            raise MalformedError(str(e)) from e
    try:
        made = Linked(code, names, _outside)
    except (Unknown, OSError):  # a kind of reference it does not know, or memory that may not run
        return machine.link(code, names)
    return made, made.addresses


def _outside(name: str) -> int:
    """The address of a function of this process, such as fmodf."""
    found = getattr(ctypes.CDLL(None), name, None)
    if found is None:
        raise RuntimeError(f"there is no function {name!r} to link with")
    address = ctypes.cast(found, ctypes.c_void_p).value
    assert address is not None, name
    return address


__all__ = ["KERNEL", "Loaded", "MalformedError"]
