"""Lines of a tensor that are put in order: their places in memory, and whole numbers ordered as elements are.

NaN comes after all others and zeros are equal (core/sorts.py); descending order is that of the inverted bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tessera.core.dtype import DType, bool_, i8, i16, i32, i64
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Builder, Memory, Tile

LONGEST = 1 << 28  # elements of an axis; longer ones are left to the host
BITS = {8: i8, 16: i16, 32: i32, 64: i64}
_INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}


def is_sortable(t: TensorType, axis: int) -> bool:
    """Whether there are kernels that sort such a tensor along an axis."""
    d = t.dtype
    known = d is bool_ or d.name in _INFINITY or (d.kind in "iu" and d.bits in BITS)
    return d is d.base and known and 0 not in t.shape and int(t.shape[axis]) <= LONGEST


class SortedLines:
    """A tensor that is sorted along the middle of three axes."""

    def __init__(self, x: TensorType, axis: int, down: bool):
        self.dtype, self.down = x.dtype, down
        self.outer, self.inner = (
            prod(int(s) for s in part) for part in (x.shape[:axis], x.shape[axis + 1 :])
        )
        self.n = int(x.shape[axis])
        self.bits = bool_ if x.dtype is bool_ else BITS[x.dtype.bits]

    def given(self, b: Builder) -> Memory:
        """The elements as the bits that they are."""
        return b.parameter("x", TensorType(self.bits, (self.outer, self.n, self.inner)))

    def made(self, b: Builder, counts: Mapping[str, int], number: DType = i64) -> dict[str, Memory]:
        """What is written; values are copied as the bits that they are."""
        kinds = {"values": self.bits, "indices": number}
        return {
            name: b.parameter(name, TensorType(kinds[name], (self.outer, n, self.inner)), True)
            for name, n in counts.items()
        }

    def ordered(self, b: Builder, raw: Tile) -> Tile:
        """A whole number with a sign for each element, in the order of the elements."""
        wide = i64 if self.dtype.bits == 64 else i32
        x, one = b.cast(raw, wide), (1,) * len(raw.shape)
        sign = 1 << self.dtype.bits - 1
        if self.dtype.kind == "u":
            x = b.apply("xor", x, b.full(wide, one, -sign))
        elif self.dtype.kind == "f":
            most, zero = b.full(wide, one, sign - 1), b.full(wide, one, 0)
            turned = b.apply("where", b.apply("lt", x, zero), b.apply("xor", x, most), x)
            key = b.apply("where", b.apply("eq", x, b.full(wide, one, -sign)), zero, turned)
            size = b.apply("and", x, most)
            nan = b.apply("gt", size, b.full(wide, one, _INFINITY[self.dtype.name]))
            x = b.apply("where", nan, most, key)
        return b.apply("invert", x) if self.down else x
