"""What a compiled call asks before it skips Python: is everything as it was when the call was prepared?

`SETTINGS` is the context variable of what a `with` sets, so threads and asyncio tasks do not disturb each
other; equal settings are one object, and machine code compares its address.  `FORKS` and `BUSY` are words
in memory: the second counts what a compiled call knows nothing of (traces, streams, checks, profiles) in
any thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextvars import ContextVar
from typing import Any

# None: as the environment says.
SETTINGS: ContextVar[Any] = ContextVar("tessera settings", default=None)
_WORDS = (ctypes.c_int64 * 2)()
FORKS, BUSY = ctypes.addressof(_WORDS), ctypes.addressof(_WORDS) + 8
_COUNTING = threading.Lock()
_PROCESS = 1 << 56  # what a fork adds: more than any address


def configuration() -> int:
    """A number for the settings in force here, in this process."""
    return id(SETTINGS.get()) + _WORDS[0]


def is_busy() -> bool:
    """Whether calls go through Python now."""
    return _WORDS[1] != 0


def begin() -> None:
    """From here on calls go through Python, until as many ends."""
    with _COUNTING:
        _WORDS[1] += 1


def end() -> None:
    """What `begin` began is over."""
    with _COUNTING:
        _WORDS[1] -= 1


def _after_fork() -> None:
    """A child has none of the threads that calls were prepared for."""
    global _COUNTING
    _COUNTING = threading.Lock()
    _WORDS[0] += _PROCESS


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
