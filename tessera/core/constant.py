"""Data inside a program: an array with its dtype, compared by its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.dtype import DType

Array = np.ndarray[Any, np.dtype[Any]]


class Constant:
    """Data inside a program, compared by its bytes."""

    __slots__ = ("_hash", "array", "dtype")

    def __init__(self, array: Array, dtype: DType):
        self.array, self.dtype = array, dtype
        self._hash = hash((dtype, array.shape, array.tobytes()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Constant)
            and self.dtype is other.dtype
            and self.array.shape == other.array.shape
            and self.array.tobytes() == other.array.tobytes()
        )

    def __repr__(self) -> str:
        return f"Constant({self.dtype}{list(self.array.shape)})"
