"""Holders: whether anything but the one who asks sees an array's memory."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import numpy as np


def is_held_once(x: np.ndarray[Any, Any]) -> bool:
    """Whether the memory of an array that one holder has may be written over: no other array shows it."""
    base = x.base
    if not x.flags.writeable:
        return False
    while type(base) is np.ndarray:
        if getrefcount(base) > 3:  # the array on it, this name, and the count
            return False
        base = base.base
    return base is None
