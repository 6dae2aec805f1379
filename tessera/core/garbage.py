"""Garbage is searched for later, while much is made that stays.

The collector looks at all young objects again and again while they become more.  A compiler makes
hundreds of thousands that stay, so the search would find nothing and take as long as the work.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0  # blocks that run now, in all threads
_resume = False  # whether the last of them turns the collector on


@contextmanager
def collected_later() -> Iterator[None]:
    """While the block runs, in any thread, the collector rests; one that was off stays off."""
    global _inside, _resume
    with _lock:
        if not _inside:
            _resume = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _resume:
                gc.enable()
