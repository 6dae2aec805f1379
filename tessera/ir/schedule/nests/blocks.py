"""Blocks of a contraction that fit the vector registers."""

from __future__ import annotations

from tessera.core.dtype import DType
from tessera.core.folds import LANES
from tessera.core.processor import Registers, registers

_MANY = 16  # registers for sums: half as many more are left for factors


def has_room() -> bool:
    """Whether other values can stay in registers beside the sums and factors of a block."""
    return registers().sums >= _MANY


def block(dtype: DType, of: Registers | None = None) -> tuple[int, int]:
    """Rows and columns of a block of sums, beside which registers hold a row of a factor and an element of
    the other.
    """
    r = of or registers()
    size = max(dtype.bits // 8, 1)
    columns = max(r.across * r.bytes // size // LANES, 1) * LANES
    across = -(-columns * size // r.bytes)
    return max(min(r.sums, r.total - across - 1) // across, 1), columns
