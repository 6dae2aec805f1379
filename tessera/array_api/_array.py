"""Arrays that can be written to, as the standard wants: x[key] = value.

A tensor is a value and never changes.  What this namespace creates is an Array, whose name stands for another
tensor after a write; results of functions are plain tensors, and `asarray` makes an Array of them.
"""

from __future__ import annotations

from typing import Any

from tessera.core.errors import TraceError, located
from tessera.ir.graph.ir import Value, current_builder
from tessera.lang.tensor import Tensor
from tessera.ops import indexing


class Array(Tensor):
    """A tensor whose elements can be replaced."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.storage is None or current_builder() is not None:
            raise located(
                TraceError("a traced tensor cannot be written to; use x = x.at[index].set(value)")
            )
        new = indexing.update(self, key, value, "set")
        self.storage = new.storage


def writable(x: Tensor) -> Tensor:
    """x as an array that can be written to; x itself never changes.  A traced tensor stays what it is."""
    if isinstance(x, Array) or x.storage is None:
        return x
    made = object.__new__(Array)
    for name in Value.__slots__:
        setattr(made, name, getattr(x, name))
    return made
