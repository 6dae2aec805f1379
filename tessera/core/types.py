"""Tensor types: the one vocabulary that all IR levels share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.core.dims import Dim, Shape, product, substitute
from tessera.core.dtype import DType


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


_INTERNED: dict[tuple[DType, Shape], TensorType] = {}
