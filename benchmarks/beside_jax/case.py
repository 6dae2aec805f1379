"""One computation written once for two libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Function = Callable[..., Any]


class Case(NamedTuple):
    """What Tessera and JAX compute of the same arrays."""

    name: str
    ours: Function
    theirs: Function
    operands: tuple[Any, ...]


def normal(seed: int, *shape: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Normal numbers in f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
