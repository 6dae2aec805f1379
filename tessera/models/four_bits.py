"""Codes of four bits, two in a byte: which numbers they are, and how a product takes them apart.

u4     0 to 15                            Q4_1, Q4_K, Q2_K
i4     -8 to 7                            Q4_0, Q3_K
e2m1   0, 1, 2, 3, 4, 6, 8, 12 and minus  MXFP4: twice the numbers of the OCP format
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.lang import op
from tessera.models.blocks import E2M1_TWICE, Array

_SIZES = 0xC8643210 - (1 << 32)  # of e2m1, four bits each


def kind_of(codes: Array) -> str | None:
    """What codes in pairs along the last axis can be, in four bits; None where they need more."""
    if codes.shape[-1] % 2 or not codes.size:
        return None
    low, high = codes.min(), codes.max()
    if low >= 0 and high <= 15:
        return "u4"
    if low >= -8 and high <= 7:
        return "i4"
    return "e2m1" if np.isin(codes, E2M1_TWICE).all() else None


def in_pairs(codes: Array, axis: int, kind: str) -> Array:
    """Bytes of two codes that are neighbours along an axis, the first in the lower half."""
    if kind == "e2m1":
        bits = np.zeros(256, np.uint8)
        bits[E2M1_TWICE[::-1].view(np.uint8)] = np.arange(16, dtype=np.uint8)[::-1]
        codes = bits[codes.view(np.uint8)]
    first, second = (
        np.take(codes, range(i, codes.shape[axis], 2), axis).astype(np.uint8) for i in (0, 1)
    )
    return np.asarray(first & 15 | second << 4, np.uint8)


def numbers_of(codes: Any, axis: int, kind: str) -> Any:
    """The numbers of bytes that hold two each, as i32, one after the other along an axis."""
    n: Any = op.unpack_ints(codes, 4, axis, signed=kind == "i4")
    if kind != "e2m1":
        return n
    place = op.bitwise_left_shift(op.bitwise_and(n, 7), 2)
    size = op.bitwise_and(op.bitwise_right_shift(op.full(n.shape, _SIZES, "i32"), place), 15)
    minus = op.bitwise_right_shift(op.bitwise_left_shift(n, 28), 31)  # every bit, or none
    return size - op.bitwise_left_shift(op.bitwise_and(size, minus), 1)
