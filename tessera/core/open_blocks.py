"""What open `with` blocks have set, in one thread or task, innermost last.

Blocks usually close in the reverse of the order in which they open.  Those inside of generators close when
the generator is closed, in any order, and may close in another thread: each takes away what it set itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class OpenBlock(Generic[T]):
    """A block that is open, and what it set."""

    __slots__ = ("value",)

    def __init__(self, value: T):
        self.value = value


class OpenBlocks(Generic[T]):
    """The open blocks of one kind."""

    def __init__(self, name: str):
        self._open: ContextVar[tuple[OpenBlock[T], ...]] = ContextVar(name, default=())

    def __iter__(self) -> Iterator[T]:
        return iter([b.value for b in self._open.get()])

    def innermost(self) -> T | None:
        """What the innermost block set, None where none is open."""
        found = self._open.get()
        return found[-1].value if found else None

    def open(self, value: T) -> OpenBlock[T]:
        """Begin a block."""
        made = OpenBlock(value)
        self._open.set((*self._open.get(), made))
        return made

    def close_last(self, is_mine: Callable[[T], bool]) -> None:
        """End the innermost block of a kind."""
        mine = [b for b in self._open.get() if is_mine(b.value)]
        if mine:
            self.close(mine[-1])

    def close(self, block: OpenBlock[T]) -> None:
        """End a block; those that began after it stay open."""
        self._open.set(tuple(b for b in self._open.get() if b is not block))
