"""Blocks of a contraction that fit the vector registers."""

from __future__ import annotations

from tessera.core.dtype import DType
from tessera.core.folds import LANES
from tessera.core.processor import Registers, registers


def block(dtype: DType, packed: bool = False, of: Registers | None = None) -> tuple[int, int]:
    """Rows and columns of a block of sums.

    When the left factor is packed, its rows are a power of two: whole vectors are then cut into blocks.
    """
    r = of or registers()
    size = max(dtype.bits // 8, 1)
    across = max(r.across // 2, 1) if packed else r.across
    columns = max(across * r.bytes // size // LANES, 1) * LANES
    rows = max(r.sums // -(-columns * size // r.bytes), 1)
    return (1 << rows.bit_length() - 1 if packed else rows), columns
