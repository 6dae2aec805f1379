"""What a compiled call asks before it skips Python: is everything as it was when the call was prepared?

Two words in memory.  `CONFIGURATION` is a number for the flags in force, another for each change.  `BUSY`
counts what a compiled call knows nothing of: traces, streams, checks, profiles, in any thread.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_WORDS = (ctypes.c_int64 * 2)()
CONFIGURATION, BUSY = ctypes.addressof(_WORDS), ctypes.addressof(_WORDS) + 8
_NUMBERS = itertools.count(1)
_COUNTING = threading.Lock()
# A number counts forks that led to this process above this, and changes of flags below.
_PROCESS = 1 << 40


def configuration() -> int:
    """The number of the flags in force."""
    return _WORDS[0]


def is_busy() -> bool:
    """Whether calls go through Python now."""
    return _WORDS[1] != 0


@contextmanager
def other_configuration() -> Iterator[None]:
    """While the block runs, calls that were prepared before it do not hold."""
    before = _WORDS[0] % _PROCESS
    _WORDS[0] += next(_NUMBERS) - before
    try:
        yield
    finally:
        _WORDS[0] += before - _WORDS[0] % _PROCESS


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
