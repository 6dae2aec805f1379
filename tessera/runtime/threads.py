"""How many threads a kernel runs on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tessera.core.errors import FlagError
from tessera.core.flags import flags
from tessera.core.processor import cores
from tessera.core.usual import other_configuration

MOST = 1023  # what the gate of the pool can count


class _State(threading.local):
    wanted: int = 0  # 0: as the flags say


_STATE = _State()


@contextmanager
def threads(n: int) -> Iterator[int]:
    """Run kernels on n threads while the block runs; 1 runs them on the calling thread alone."""
    if n not in range(1, MOST + 1):
        raise FlagError(f"threads: got {n!r}, expected a whole number from 1 to {MOST}")
    with other_configuration():
        before, _STATE.wanted = _STATE.wanted, int(n)
        try:
            yield n
        finally:
            _STATE.wanted = before


def thread_count() -> int:
    """The number of threads in force here."""
    return _STATE.wanted or min(flags().threads or cores(), MOST)
