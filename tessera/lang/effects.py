"""Declared data movement: where a block wants its data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tessera.core.errors import OperandError, located

_SPACES = ("smem", "shared", "register", "l2", "device", "host")
_OVERLAPS = ("compute", "none")


@contextmanager
def prefetch(obj: Any, into: str = "smem", overlap: str = "compute") -> Iterator[Any]:
    """Ask for obj to be near while the block runs.  On the CPU the caches do this by themselves."""
    if into not in _SPACES:
        raise located(
            OperandError(f"prefetch: into is {into!r}, expected one of {', '.join(_SPACES)}")
        )
    if overlap not in _OVERLAPS:
        raise located(
            OperandError(
                f"prefetch: overlap is {overlap!r}, expected one of {', '.join(_OVERLAPS)}"
            )
        )
    yield obj
