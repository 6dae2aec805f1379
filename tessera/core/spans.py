"""Spans: long work such as tracing, compiling and tuning, reported to those who listen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tessera.core.observe import Observed

Told = Callable[[str, str, int, int], None]  # kind, name, begin and end in nanoseconds
SPANS: Observed[Told] = Observed("spans", "long work: tracing, compiling, tuning")


@contextmanager
def span(kind: str, name: str) -> Iterator[None]:
    """Tell how long the block took, by the clock of time.perf_counter_ns."""
    if not SPANS.observers:
        yield
        return
    begin = time.perf_counter_ns()
    try:
        yield
    finally:
        SPANS.tell(kind, name, begin, time.perf_counter_ns())
