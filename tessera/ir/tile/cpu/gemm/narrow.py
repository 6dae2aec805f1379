"""Narrow integers in a contraction: 2 halves or 4 bytes along k in one word, multiplied together.

    i32(a[m, k]) * i32(b[k, n]), a and b of i8   ->   dot_parts(a[m, k:k+4], b[k:k+4, n], acc)

Sums of integers wrap, so that their order is free and every machine has the same bits.  The bytes of
the left word have no sign: where the factor has one, 128 is added to it, and what that makes of each
column, 128 times the sum of the right factor, is subtracted at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tessera.core.dtype import DType
from tessera.ir.schedule.ir import Axis, Cast, Term, reads
from tessera.ir.schedule.nests.nest import Nest
from tessera.ir.tile.ir import Builder, Memory, Tile

_BYTES = ("i4", "i8")
_HALVES = ("i4", "i8", "u8", "i16")
_BIAS = 0x80808080  # 128 in every byte


@dataclass(frozen=True)
class WordParts:
    """How many factors along k are one word, and whether those on the left have 128 added."""

    count: int = 1
    biased: bool = False

    def joined(self, b: Builder, lines: list[Tile], dtype: DType) -> Tile:
        """Words of so many lines of narrow integers, the first in the lowest bits."""
        bits, total = 32 // self.count, None
        low = b.full(dtype, (1, 1), (1 << bits) - 1)
        for i, line in enumerate(lines):
            part = b.cast(line, dtype)
            part = b.apply("and", part, low) if i + 1 < self.count else part
            part = b.apply("shift_left", part, b.full(dtype, (1, 1), i * bits)) if i else part
            total = part if total is None else b.apply("or", total, part)
        assert total is not None
        return total

    def bias(self, b: Builder, dtype: DType) -> Tile:
        """128 in every byte: what `xor` adds to bytes with a sign."""
        return b.full(dtype, (1, 1), _BIAS if dtype.kind == "u" else _BIAS - (1 << 32))


def parts_of(
    left: Term, right: Term, over: Axis, memory: Mapping[str, Memory], nest: Nest
) -> WordParts:
    """The words that two factors make; of one part where they are no narrow integers."""
    if not any(_ends(t, over, memory) for t in (left, right)):
        return WordParts()
    steps = [n for n in nest.steps("k") if n > 1]
    narrow = [t.operand.dtype.name for t in (left, right) if isinstance(t, Cast)]
    wide = left.dtype.name in ("i32", "u32")
    if len(narrow) < 2 or not wide or any(n % 4 for n in steps):
        return WordParts()
    if narrow[0] in ("u8", *_BYTES) and narrow[1] in _BYTES:
        return WordParts(4, narrow[0] != "u8")
    return WordParts(2) if all(n in _HALVES for n in narrow) else WordParts()


def _ends(t: Term, over: Axis, memory: Mapping[str, Memory]) -> bool:
    """Whether a word that reaches beyond the last k finds zeros there: k is an axis of the memory."""
    if isinstance(over.size, int) and over.size % 4 == 0:
        return True
    places = [
        (i, n) for r in reads(t) for i, n in zip(r.index, memory[r.source].type.shape, strict=True)
    ]
    return (over.variable, over.size) in places
