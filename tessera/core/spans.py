"""Spans: long work such as tracing, compiling and tuning, told to those who listen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str, str, int, int], None]  # kind, name, begin and end in nanoseconds
LISTENERS: list[Listener] = []


@contextmanager
def span(kind: str, name: str) -> Iterator[None]:
    """Tell how long the block took, by the clock of time.perf_counter_ns."""
    if not LISTENERS:
        yield
        return
    begin = time.perf_counter_ns()
    try:
        yield
    finally:
        end = time.perf_counter_ns()
        for tell in tuple(LISTENERS):
            tell(kind, name, begin, end)
