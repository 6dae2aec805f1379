"""State objects: values that a program carries from step to step, updated functionally."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.core import tree
from tessera.core.blame import checked
from tessera.core.errors import ShapeError, TesseraError, located
from tessera.lang import op
from tessera.lang.annotation import TensorSpec, spec_of


@tree.node
@dataclass(frozen=True)
class KVCache:
    """Keys and values of the positions seen so far: two tensors (batch, heads, max, dim), a count.

    `cache = cache.append(k, v)` returns a new cache; the old one is unchanged.
    """

    K: Any
    V: Any
    length: Any  # i32 scalar: how many positions are filled

    def __class_getitem__(cls, items: Any) -> TensorSpec:
        return spec_of(items if isinstance(items, tuple) else (items,))

    @staticmethod
    @checked
    def empty(batch: Any, heads: Any, size: Any, dim: Any, dtype: Any = "f32") -> KVCache:
        """A cache with room for `size` positions."""
        blank = op.zeros((batch, heads, size, dim), dtype)
        return KVCache(blank, blank, op.full((), 0, "i32"))

    @checked
    def append(self, k: Any, v: Any) -> KVCache:
        """The cache with the positions of k and v, both (batch, heads, seq, dim), after its own."""
        try:
            _check("K", self.K, k)
            _check("V", self.V, v)
        except TesseraError as e:
            raise located(e) from None
        start = (0, 0, self.length, 0)
        return KVCache(
            op.dynamic_update_slice(self.K, k, start),
            op.dynamic_update_slice(self.V, v, start),
            self.length + k.shape[2],
        )


def _check(name: str, held: Any, new: Any) -> None:
    if new.ndim != 4 or held.dtype is not new.dtype:
        raise ShapeError(
            f"KVCache.append: got {new.type} for {name}, expected {held.dtype} of rank 4 as "
            f"{held.type}"
        )
