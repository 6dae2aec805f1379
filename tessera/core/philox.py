"""Philox4x32-10: 128 random bits as a function of a counter and a key.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).  There is no
state: element i of a random tensor reads the block of counter i, however the tensor is cut up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # what the two words of the key grow by each round
ROUNDS = 10  # of Philox4x32-10 (Salmon et al., 2011)
_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_CHUNK = 1 << 13  # elements whose words stay in cache through all rounds; no result depends on it


def philox(counter: Sequence[Any], key: Sequence[Any]) -> list[Array]:
    """The four words of the block, each 32 bits in a u64 array; words of counter and key broadcast."""
    words = [np.asarray(c, np.uint64) for c in counter]
    k0, k1 = (np.asarray(k, np.uint64) for k in key)
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    for i in range(ROUNDS):
        c0, c1, c2, c3 = words
        p0, p1 = c0 * m0, c2 * m1
        e0, e1 = ((k + np.uint64(i * w)) & _MASK for k, w in ((k0, WEYL[0]), (k1, WEYL[1])))
        words = [(p1 >> _HALF) ^ c1 ^ e0, p1 & _MASK, (p0 >> _HALF) ^ c3 ^ e1, p0 & _MASK]
    return words


def random_words(
    k0: Array, k1: Array, counter: Array, words: int, draw: int, purpose: int
) -> Array:
    """One (u32) or two (u64) words for each element of a u64 counter; keys broadcast against it.

    Draw d of w words reads words d*w, d*w + 1... of the sequence of blocks of an element.
    """
    shape = np.broadcast_shapes(k0.shape, k1.shape, counter.shape)
    out = np.empty(int(np.prod(shape)), np.uint64 if words == 2 else np.uint32)
    block, first = divmod(draw * words, 4)
    columns = [_column(x, shape) for x in (k0, k1, counter)]
    for start in range(0, out.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        a, b, c = (x[part] if x.size > 1 else x for x in columns)
        made = philox((c & _MASK, c >> _HALF, block, purpose), (a, b))[first : first + words]
        out[part] = made[0] | made[1] << _HALF if words == 2 else made[0]
    return out.reshape(shape)


def philox_words(k0: Any, k1: Any, counter: Any, rest: Any, high: bool) -> Array:
    """Words 0 and 1 of a block, or 2 and 3 if `high`, as a u64; `rest` is the counter's second half."""
    given = [np.asarray(x, np.uint64) for x in (counter, rest)]
    made = philox([w for x in given for w in (x & _MASK, x >> _HALF)], (k0, k1))
    low, above = made[2:] if high else made[:2]
    return np.asarray(low | above << _HALF)


def _column(x: Array, shape: tuple[int, ...]) -> Array:
    """x as a flat u64 array over the shape; one element when x repeats a single one."""
    if x.size and not any(s for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        return np.full(1, x[(0,) * x.ndim], np.uint64)
    return np.broadcast_to(x, shape).reshape(-1).astype(np.uint64)
