"""Table: an array of integers that is part of an operator's structure, not of its data.

Indices have no derivative and must not be traced, so they stand beside the sizes: immutable, compared and
hashed by content.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np

from tessera.ir.graph.ir import Value
from tessera.ops.creation import constant


class IndexTable:
    """An immutable array of integers that can be a key."""

    __slots__ = ("_digest", "array")

    array: np.ndarray[Any, Any]

    def __init__(self, array: Any):
        self.array = np.array(array, np.int64)
        self.array.flags.writeable = False
        self._digest = blake2b(self.array.tobytes(), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, IndexTable)
            and self._digest == other._digest
            and self.array.shape == other.array.shape
        )

    def __hash__(self) -> int:
        return hash(self._digest)

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self) -> str:
        return np.array2string(self.array, threshold=8, separator=",").replace("\n", "")

    @property
    def value(self) -> Value:
        """The integers as a tensor."""
        return constant(self.array)
