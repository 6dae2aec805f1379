"""How many threads a kernel runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tessera.core.blame import blames_arguments
from tessera.core.errors import FlagError
from tessera.core.flags import threads_wanted, with_threads
from tessera.core.processor import cores

MOST = 1023  # what the gate of the pool can count


@blames_arguments
@contextmanager
def threads(n: int) -> Iterator[int]:
    """Run kernels on n threads while the block runs; 1 runs them on the calling thread alone."""
    if n not in range(1, MOST + 1):
        raise FlagError(f"threads: got {n!r}, expected a whole number from 1 to {MOST}")
    with with_threads(int(n)):
        yield n


def thread_count() -> int:
    """The number of threads in force here."""
    return min(threads_wanted() or cores(), MOST)
