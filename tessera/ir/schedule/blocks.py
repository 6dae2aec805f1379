"""Blocks of a contraction that fit the vector registers."""

from __future__ import annotations

from tessera.core.dtype import DType
from tessera.core.folds import LANES
from tessera.core.processor import Registers, registers


def block(dtype: DType, of: Registers | None = None) -> tuple[int, int]:
    """Rows and columns of a block of sums."""
    r = of or registers()
    size = max(dtype.bits // 8, 1)
    columns = max(r.across * r.bytes // size // LANES, 1) * LANES
    return max(r.sums // -(-columns * size // r.bytes), 1), columns
