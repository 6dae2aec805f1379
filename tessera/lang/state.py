"""State objects: values that a program carries from step to step, updated functionally.

A cache whose parameter is annotated, as in KVCache["B", "H", "S", "D", f32], is linear in a traced
function: once a new one is made of it, it is stale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments, constructor_blames_arguments
from tessera.core.constraints import require
from tessera.core.dims import substitute
from tessera.core.dtype import f32, i32
from tessera.core.errors import AnnotationError, OperandError, ShapeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import concrete, host_data
from tessera.lang import op
from tessera.lang.annotation import StateSpec, spec_of
from tessera.lang.caches import (
    APPEND,
    Cache,
    PagedCache,
    RollingCache,
    checked,
    lengths_of,
    paged,
    quantized_cache,
    rolling,
    written,
)
from tessera.lang.device import as_device, device
from tessera.lang.state_marks import Mark, marked, rolling_window, shown
from tessera.lang.state_marks import paged as paged_mark
from tessera.ops.places import looked_at

_FIELDS = ("K", "V")


@dataclass(frozen=True)
class CacheSpec(StateSpec):
    """What an annotation says of a cache: sizes, a dtype, its kind and where it lies."""

    marks: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return super().__str__() + shown(self.marks)

    __repr__ = __str__

    def __matmul__(self, mark: Any) -> CacheSpec:
        return replace(self, marks=marked(self, mark, (rolling_window, paged_mark)))

    def check(self, name: str, state: Any, given: dict[str, Any]) -> None:
        """The cache is of the kind that the marks name."""
        for mark in self.marks:
            kind = _KINDS.get(mark.name) if isinstance(mark, Mark) else None
            if kind is not None and not isinstance(state, kind[0]):
                raise AnnotationError(
                    f"argument '{name}' is a {type(state).__name__}, expected a {kind[0].__name__} as in "
                    f"{self}; make it "
                    f"with KVCache.empty(..., {kind[1]})"
                )
            if kind is not None and mark.number is not None and state.window != mark.number:
                raise AnnotationError(
                    f"argument '{name}' has a window of {state.window}, expected {mark.number} as in {self}"
                )

    def stand_in(self, made: Callable[[TensorType], Any]) -> Any:
        """A cache of the types that the annotation says, to be traced with."""
        assert self.spec is not None
        shape = self.spec.shape
        kinds = [m for m in self.marks if isinstance(m, Mark)]
        window = kinds[0].number if kinds else None
        if len(shape) != 4 or (kinds and window is None):
            raise OperandError(
                f"{self} does not say all of a cache; pass one that {self}.empty(...) gives, or write "
                'KVCache["B", "H", "S", "D", f32], with rolling_window(n) for a window'
            )
        t = TensorType(self.spec.dtype or f32, shape)
        held = made(t), made(t), made(TensorType(i32, ()))
        return KVCache(*held) if window is None else RollingCache(*held, window)

    @blames_arguments
    def empty(self, *, per_sequence: bool = False, **sizes: int) -> Any:
        """An empty cache as the annotation says: empty(B=2, H=4, S_max=64, D_h=8), and page=, pages= of a
        paged one.
        """
        assert self.spec is not None
        options: dict[str, Any] = {
            n: sizes.pop(n) for n in ("page", "pages", "window") if n in sizes
        }
        missing = self.spec.symbols - sizes.keys()
        if missing or sizes.keys() - self.spec.symbols or len(self.spec.shape) != 4:
            wanted = ", ".join(f"{n}=" for n in sorted(self.spec.symbols))
            raise OperandError(
                f"{self}.empty: got the sizes {', '.join(sizes) or 'none'}, expected {wanted}"
            )
        for mark in self.marks:
            if isinstance(mark, Mark) and mark.number is not None:
                options["window"] = mark.number
        batch, heads, size, dim = (substitute(n, sizes) for n in self.spec.shape)
        made = KVCache.empty(
            batch, heads, size, dim, self.spec.dtype or "f32", per_sequence=per_sequence, **options
        )
        self.check("cache", made, {})
        placed = [m for m in self.marks if isinstance(m, device)]
        return made.prefetch(as_device(placed[0].wanted)) if placed else made


@tree.node
@constructor_blames_arguments
@dataclass(frozen=True)
class KVCache(Cache):
    """Keys and values of the positions seen so far: two tensors (batch, heads, max, dim), a count.

    `cache = cache.append(k, v)` returns a new cache; the old one is unchanged.
    """

    K: Any
    V: Any
    length: Any  # i32 scalar, or one for each sequence: how many positions are filled

    def __class_getitem__(cls, items: Any) -> CacheSpec:
        return CacheSpec(spec_of(items if isinstance(items, tuple) else (items,)), _FIELDS)

    @staticmethod
    @blames_arguments
    def empty(
        batch: Any, heads: Any, size: Any, dim: Any, dtype: Any = "f32", *, per_sequence: bool = False,
        window: int | None = None, quantized: Any = None, page: int | None = None, pages: int | None = None,
    ) -> Any:  # fmt: skip
        """A cache with room for `size` positions of `heads` heads, which may be fewer than those of the
        queries.

        per_sequence: a length for each sequence.  window: a ring of `size` slots, of whose positions the
        last `window` are seen.  quantized: stored as i8, f8e4m3 or f8e5m2.  page: `pages` pages of so many
        positions, shared by all.
        """
        if sum(x is not None for x in (window, quantized, page)) > 1:
            raise OperandError(
                "KVCache.empty: window, quantized and page are kinds of caches; give one of them"
            )
        if window is not None:
            return rolling(batch, heads, size, dim, dtype, per_sequence, window)
        if quantized is not None:
            return quantized_cache(batch, heads, size, dim, dtype, per_sequence, quantized)
        if page is not None or pages is not None:
            return paged(batch, heads, size, dim, dtype, page, pages)
        blank = op.zeros((batch, heads, size, dim), dtype)
        lengths = lengths_of(batch, per_sequence)
        if blank.storage is None:
            return KVCache(blank, blank, lengths)
        # Memory of their own, which a step that the cache is donated to writes in place.
        keys, values = (
            concrete(np.zeros(blank.shape, blank.dtype.np), blank.dtype) for _ in range(2)
        )
        return KVCache(keys, values, lengths)

    def _appended(self, k: Any, v: Any, count: Any) -> Any:
        room, more = checked(self, k, v)
        if not require("at_least", room, more, f"{APPEND}: the room of the cache"):
            raise ShapeError(
                f"{APPEND}: got {more} positions for a cache of {room}; make a larger one"
            )
        what = f"{more} more positions in a cache of {room}"
        length = looked_at(f"{APPEND}: length", self.length, 0, room - more, what)
        known = length.storage is not None and length.device.kind == "cpu" and isinstance(more, int)
        if known and length.ndim == 0 and count is None:
            start = (0, 0, length, 0)
            keys, values = (
                op.dynamic_update_slice(x, y, start) for x, y in ((self.K, k), (self.V, v))
            )
            return KVCache(keys, values, concrete(host_data(length) + more, "i32"))
        n = more if count is None else count
        filled = op.cast(op.minimum(length + n, room), "i32")
        return self._with(written((self.K, k), (self.V, v), length, n), length=filled)


_KINDS: dict[str, tuple[type[Cache], str]] = {
    "rolling_window": (RollingCache, "window=..."),
    "paged": (PagedCache, "page=..., pages=..."),
}
