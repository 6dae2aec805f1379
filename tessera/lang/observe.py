"""Observers of calls: what stands around every call of a jitted function, for profiles and records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tessera.core import call_guard
from tessera.ir.graph.ir import current_builder
from tessera.lang.jit import Jitted

# (the function, what calls it, arguments, keywords) -> the result
Around = Callable[[Jitted, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_OBSERVERS: list[Around] = []
_usual = Jitted.__call__


def _observed(self: Jitted, *args: Any, **kwargs: Any) -> Any:
    """A call, inside of every observer."""
    if current_builder() is not None:
        return _usual(self, *args, **kwargs)
    call: Callable[..., Any] = _usual
    for around in tuple(_OBSERVERS):
        call = _inside(around, call)
    return call(self, *args, **kwargs)


def _inside(around: Around, call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: around(self, call, args, kwargs)


@contextmanager
def observed(around: Around) -> Iterator[None]:
    """Have every call go through an observer while the block runs; calls that nothing
    observes pay nothing.
    """
    call_guard.begin()  # compiled calls come through Python
    _OBSERVERS.append(around)
    Jitted.__call__ = _observed  # type: ignore[method-assign]
    try:
        yield
    finally:
        _OBSERVERS.remove(around)
        if not _OBSERVERS:
            Jitted.__call__ = _usual  # type: ignore[method-assign]
        call_guard.end()


_WATCHING: list[Any] = []  # the observer of a profile, entered


def watch(tell: Callable[[str, int, int], None] | None) -> None:
    """Tell of every call through Python, with its begin and end in nanoseconds; None ends it."""
    if tell is None:
        while _WATCHING:
            _WATCHING.pop().__exit__(None, None, None)
        return

    def timed(f: Jitted, call: Any, args: Any, kwargs: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return call(f, *args, **kwargs)
        finally:
            tell(f.name, begin, time.perf_counter_ns())

    _WATCHING.append(observed(timed))
    _WATCHING[-1].__enter__()
