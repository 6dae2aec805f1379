"""Keys of static values: what Python calls equal but a program can tell apart has keys of its own."""

from __future__ import annotations

from typing import Any


def static_key(x: Any) -> Any:
    """A key for a static value: 1, 1.0 and True have three, 0.0 and -0.0 two, also inside of tuples."""
    kind = type(x)
    if kind is tuple or kind is frozenset:
        return kind, kind(map(static_key, x))
    if kind is float or kind is complex:
        return kind, repr(x)  # with the sign of a zero; a NaN equals itself
    return kind, x
