"""Which pass an exception comes from."""

from __future__ import annotations

from types import TracebackType
from typing import Any


class During:
    """While the block runs, an exception is one of this pass, unless it is of one inside of it."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, e: BaseException | None, trace: TracebackType | None) -> None:
        if e is not None and not hasattr(e, "tessera_pass"):
            e.tessera_pass = self.name  # type: ignore[attr-defined]


def pass_of(e: BaseException) -> str:
    """The pass that an exception comes from."""
    return getattr(e, "tessera_pass", "compile")
