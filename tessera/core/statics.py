"""Keys of static values: what Python calls equal but a program can tell apart has keys of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


def static_key(x: Any) -> Any:
    """A key for a static value: 1, 1.0 and True have three, 0.0 and -0.0 two.

    Also inside of tuples, named ones too, and of the fields that a dataclass compares.
    """
    kind = type(x)
    if kind is int or kind is str:
        return kind, x
    if isinstance(x, float | complex | np.inexact):
        return kind, repr(x)  # with the sign of a zero; a NaN equals itself
    if kind is frozenset:
        return kind, frozenset(map(static_key, x))
    equality: object = kind.__eq__
    if isinstance(x, tuple) and equality is tuple.__eq__:
        return kind, tuple(map(static_key, x))
    if dataclasses.is_dataclass(x) and kind is not x:
        compared = [f for f in dataclasses.fields(x) if (f.compare if f.hash is None else f.hash)]
        return kind, x, tuple([static_key(getattr(x, f.name)) for f in compared])
    return kind, x
