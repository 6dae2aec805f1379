"""Observers: functions around what runs, for profiles, records and checks.

A kind of work (calls, launches, passes) has one `Observed`.  Where the work is done the code asks whether
anything observes it, so what nothing observes pays one look at an empty tuple.  An observer is either
called after the work (`tell`), or is put around it (`around`): it gets the worker, then the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from tessera.core import call_guard

Observer = TypeVar("Observer", bound=Callable[..., Any])


class Observed(Generic[Observer]):
    """A kind of work that can be observed, and who observes it now."""

    kinds: ClassVar[dict[str, Observed[Any]]] = {}

    def __init__(
        self, name: str, doc: str, skips: bool = False, changed: Callable[[], None] | None = None
    ):
        assert name not in self.kinds, name
        self.name, self.doc = name, doc
        self.observers: tuple[Observer, ...] = ()
        self._skips = skips  # whether compiled calls would go past the observers
        self._changed = changed  # called when observers come or go
        self.kinds[name] = self

    def add(self, observer: Observer) -> None:
        """Have it observe the work from here on, inside of all that observe it already."""
        if self._skips:
            call_guard.begin()
        self._set((*self.observers, observer))

    def remove(self, observer: Observer) -> None:
        """Let the work run without it again."""
        left = list(self.observers)
        left.remove(observer)
        self._set(tuple(left))
        if self._skips:
            call_guard.end()

    def _set(self, observers: tuple[Observer, ...]) -> None:
        self.observers = observers
        if self._changed is not None:
            self._changed()

    @contextmanager
    def by(self, observer: Observer) -> Iterator[None]:
        """Have it observe the work while the block runs."""
        self.add(observer)
        try:
            yield
        finally:
            self.remove(observer)

    def tell(self, *what: Any) -> None:
        """Tell every observer."""
        for observer in self.observers:
            observer(*what)

    def around(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """What does the work, inside of every observer."""
        for observer in reversed(self.observers):
            own = _inside(observer, own)
        return own


def _inside(observer: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: observer(own, *args)
