"""A notice on the terminal while something takes longer than a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

AFTER = 1.0  # seconds: what takes less is not worth a line


@contextmanager
def notice(what: str) -> Iterator[None]:
    """Say what goes on when the block takes longer than a second, and how long it took;
    only on a terminal.
    """
    if not _is_watched():
        yield
        return
    begin, told = time.perf_counter(), threading.Event()

    def tell() -> None:
        told.set()
        sys.stderr.write(f"tessera: {what} ...")
        sys.stderr.flush()

    timer = threading.Timer(AFTER, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if told.is_set():
            sys.stderr.write(f" {time.perf_counter() - begin:.1f} s\n")


def _is_watched() -> bool:
    """Whether somebody sees what is written."""
    return sys.stderr is not None and sys.stderr.isatty()
