"""A field of a state that has a value while a block runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held(state: Any, name: str, value: Any) -> Iterator[None]:
    """Give a field a value while the block runs, then the one it had."""
    before = getattr(state, name)
    setattr(state, name, value)
    try:
        yield
    finally:
        setattr(state, name, before)
