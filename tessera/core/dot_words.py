"""Products of matrices of words, whose parts are neighbours along k: what matrix units compute, in NumPy.

Words of four bytes are exact: their sums wrap.  Words of two bf16 are what the instruction TDPBF16PS makes of
them, bit by bit (Intel's manual, volume 2): from zero, the first parts of all words are added up in one
chain of fused multiply-adds, the second parts in another; then acc + (first + second).  Subnormal numbers
count as zeros with their sign, on the way in and after every step.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tessera.core.fma import fma

Array = np.ndarray[Any, np.dtype[Any]]
PARTS = {"i8": 4, "u8": 4, "bf16": 2}  # of a word of 32 bits
_TYPES = {"i8": np.dtype(np.int8), "u8": np.dtype(np.uint8), "bf16": np.dtype(ml_dtypes.bfloat16)}
_LEAST = np.float32(2.0**-126)  # the smallest normal number
_FAR = np.float32(2.0**48)


def words(x: Array, axis: int) -> Array:
    """Neighbours along an axis of a matrix as words of 32 bits, the first in the lowest bits."""
    parts = 4 // x.dtype.itemsize
    if axis == 0:
        x = x.reshape(-1, parts, x.shape[1]).swapaxes(1, 2).reshape(-1, parts * x.shape[1])
    return np.ascontiguousarray(x).view(np.int32)


def dot_words(x: Array, y: Array, acc: Array, left: str, right: str) -> Array:
    """acc (m, n) plus the products of the parts of x (m, words) and y (words, n)."""
    a = np.ascontiguousarray(x).view(_TYPES[left]).reshape(*x.shape, PARTS[left])
    b = np.ascontiguousarray(y).view(_TYPES[right]).reshape(*y.shape, PARTS[right])
    if left == "bf16":
        return dot_pairs(a.astype(np.float32), b.astype(np.float32), acc)
    total: Array = acc + np.einsum("mwp,wnp->mn", a.astype(acc.dtype), b.astype(acc.dtype))
    return total


def dot_pairs(a: Array, b: Array, acc: Array) -> Array:
    """TDPBF16PS on a (m, words, 2) and b (words, n, 2), which hold numbers of bf16."""
    sums = np.zeros((2, *acc.shape), np.float32)
    a, b = flushed(a), flushed(b)
    for w in range(a.shape[1]):
        for part in range(2):
            sums[part] = fused(a[:, w, part, None], b[None, w, :, part], sums[part])
    return added(acc, added(*sums))


def flushed(x: Array) -> Array:
    """Numbers with zeros for those that are subnormal."""
    out: Array = np.where(np.abs(x) < _LEAST, np.copysign(np.float32(0), x), x)
    return out


def fused(x: Array, y: Array, z: Array) -> Array:
    """x y + z, rounded once, and a zero where that lies below the normal numbers.

    One that rounds up to the smallest of them only because subnormal numbers have fewer digits lies below.
    """
    total = fma(x, y, z)
    edge = np.abs(total) == _LEAST
    if edge.any():
        far = fma(x * _FAR, y, z * _FAR)
        below = edge & (np.abs(far) < _LEAST * _FAR)
        total = np.where(below, np.copysign(np.float32(0), total), total)
    return flushed(total)


def added(x: Array, y: Array) -> Array:
    """x + y of numbers that may be subnormal; sums of two normal numbers are exact where they are small."""
    with np.errstate(all="ignore"):
        return flushed(flushed(x) + flushed(y))
