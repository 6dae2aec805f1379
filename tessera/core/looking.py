"""Whether a function is traced only to be looked at: for no target, so that none refuses its schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LOOKING: ContextVar[bool] = ContextVar("tessera looking", default=False)


@contextmanager
def looking() -> Iterator[None]:
    """While the block runs, functions are traced to be looked at."""
    before = _LOOKING.set(True)
    try:
        yield
    finally:
        _LOOKING.reset(before)


def is_looking() -> bool:
    """Whether functions are traced to be looked at."""
    return _LOOKING.get()
