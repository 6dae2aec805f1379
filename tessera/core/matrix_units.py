"""The matrix units of this processor (AMX of x86-64), and whether the system lets this process use them.

Their registers are large, so Linux saves them only for processes that have asked: once for all threads, and
for children that are forked.  A process that is refused computes with vectors, and has the same bits.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache

from tessera.core.flags import flags
from tessera.core.processor import words

UNITS = {"int8": "amx_int8", "bf16": "amx_bf16"}  # and the words by which a processor says so
_ARCH_PRCTL, _SUPPORTED, _REQUEST = 158, 0x1021, 0x1023
_TILE_DATA = 18  # the number of the state that holds the registers


def matrix_units() -> frozenset[str]:
    """The units that kernels may use."""
    return found_units() if flags().matrix_units and may_use_tiles() else frozenset()


def found_units() -> frozenset[str]:
    """The units that the processor has."""
    return _units_in(words())


@cache
def _units_in(said: frozenset[str]) -> frozenset[str]:
    has_tiles = "amx_tile" in said
    return frozenset(n for n, word in UNITS.items() if has_tiles and word in said)


@cache
def may_use_tiles() -> bool:
    """Whether this process may use the registers; the system is asked once."""
    return refusal() is None


@cache
def refusal() -> str | None:
    """Why this process may not use matrix registers; None: it may."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "there are none"
    supported = ctypes.c_uint64()
    if (
        _system_call(_SUPPORTED, ctypes.addressof(supported))
        or not supported.value >> _TILE_DATA & 1
    ):
        return "there are none"
    error = _system_call(_REQUEST, _TILE_DATA)
    return f"the system refuses them ({os.strerror(error)})" if error else None


def _system_call(request: int, value: int) -> int:
    """arch_prctl: 0, or the number of an error."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes, call.restype = [ctypes.c_long, ctypes.c_long, ctypes.c_ulong], ctypes.c_long
    return ctypes.get_errno() if call(_ARCH_PRCTL, request, value) else 0
