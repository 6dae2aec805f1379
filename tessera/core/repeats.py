"""Operands that a host holds as one number repeated, which alone need travel to a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def without_repeats(inputs: Sequence[Any]) -> tuple[Sequence[Any], tuple[int, ...]]:
    """Operands of which those that are one number repeated are that number, as an array without axes; and
    which those are.
    """
    given, repeated = list(inputs), []
    for i, x in enumerate(inputs):
        if isinstance(x, np.ndarray) and x.size > 1 and not any(x.strides):
            given[i] = x[(slice(1),) * x.ndim].reshape(())
            repeated.append(i)
    return given, tuple(repeated)
