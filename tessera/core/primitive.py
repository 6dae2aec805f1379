"""What a primitive is: a computation on whole tensors other than a loop nest, defined in NumPy.

Its definition states the order of every operation, as core/folds.py does for folds, so that all levels
below Graph IR give the same bits.  core/primitives.py lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]
Params = Mapping[str, Any]
Types = Sequence[TensorType]


# What machines compute on.
FORMATS = frozenset(
    ["bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64"]
)


def are_plain(types: Types, p: Params) -> bool:
    """Whether all dtypes are of machines: no policy of their own, no odd width."""
    return all(t.dtype.name in FORMATS and t.dtype is t.dtype.base for t in types)


@dataclass(frozen=True)
class Definition:
    """A primitive: an op is one when its record's `call` is the name of it and it supports the types."""

    name: str
    supports: Callable[[Types, Params], bool]  # of the operands
    infer: Callable[[Types, Params], Sequence[TensorType]]  # the types of the results
    evaluate: Callable[[Sequence[Array], Params], Sequence[Array]]  # at known sizes
    # Operands of one whose kernels on CPUs can compute an epilogue point by point; 0: they cannot.
    arity: int = 0
