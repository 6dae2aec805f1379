"""Tensor types: the one vocabulary that all IR levels share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tessera.core.dims import Dim, Shape, product, substitute
from tessera.core.dtype import DType
from tessera.core.errors import ShapeError


class TensorType:
    """A dtype and a shape.  Interned: equal types are the same object."""

    __slots__ = ("dtype", "shape", "static")

    dtype: DType
    shape: Shape
    static: bool  # no symbolic size

    def __new__(cls, dtype: DType, shape: Shape) -> TensorType:
        key = (dtype, shape)
        found = _INTERNED.get(key)
        if found is None:
            check_size(str(dtype), shape)
            found = object.__new__(cls)
            found.dtype, found.shape = key
            found.static = not any(isinstance(s, Dim) for s in shape)
            _INTERNED[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorType, (self.dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        """How many elements: an int, or a Dim."""
        return product(self.shape)

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def substitute(self, env: Mapping[str, int]) -> TensorType:
        """This type at the sizes of a call."""
        if self.static:
            return self
        return TensorType(self.dtype, tuple(substitute(s, env) for s in self.shape))


LARGEST_SIZE = (1 << 63) - 1  # of an axis and of all together: what indices of 64 bits reach
LARGEST_RANK = 64  # of NumPy, which holds the data


def check_rank(op: str, shape: Shape) -> Shape:
    """Refuse more axes than a tensor can have."""
    if len(shape) > LARGEST_RANK:
        raise ShapeError(
            f"{op}: {len(shape)} axes are more than the {LARGEST_RANK} that a tensor can have"
        )
    return shape


def check_size(op: str, shape: Shape) -> Shape:
    """Refuse shapes with more axes or elements than any index reaches."""
    check_rank(op, shape)
    total = math.prod([s for s in shape if isinstance(s, int)])
    if total > LARGEST_SIZE:
        raise ShapeError(
            f"{op}: shape {_short(shape)} has {total:.3g} elements, more than the 2**63 - 1 that an index "
            "reaches"
            if total < 1e300
            else f"{op}: a size of {total.bit_length()} bits is more than an index of 64 bits reaches"
        )
    return shape


def _short(shape: Shape) -> str:
    return f"{tuple(shape)!s:.80}"


_INTERNED: dict[tuple[DType, Shape], TensorType] = {}
