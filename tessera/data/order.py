"""The order of samples: a permutation for each epoch that is a function of a key, read at any position.

Up to 2**20 samples it is the order of Philox words, so that all permutations are equally likely.  Beyond,
it is a Feistel network over the bits of a position (Luby and Rackoff 1988), walked until it ends below the
count: it takes no memory, and any position in the time of one.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tessera.core.blame import brief, constructor_blames_arguments, methods_blame_arguments
from tessera.core.errors import OperandError
from tessera.core.philox import philox, random_words
from tessera.core.public import public
from tessera.ir.graph.ir import Value, host_data

Array = np.ndarray[Any, np.dtype[Any]]

SORTED = 1 << 20  # samples up to which words are sorted: 0.1 s and 8 MiB an epoch
_SHUFFLE, _NETWORK, _SAMPLE = 3, 4, 5  # purposes of blocks of Philox, apart from those of op.random
_ROUNDS = 6  # of a Feistel network, which permutes at random from four on (Luby and Rackoff, 1988)
_EPOCH = 32  # bits that a position may have in a counter


def words_of(key: Any) -> tuple[int, int]:
    """The two words of a key."""
    data = host_data(key) if isinstance(key, Value) and key.storage is not None else np.asarray(key)
    if data.shape != (2,) or data.dtype != np.uint32:
        raise OperandError(
            f"data: the key is {type(key).__name__} {brief(key, 40)}, expected u32[2]; make one with "
            "ts.key(seed)"
        )
    return int(data[0]), int(data[1])


@methods_blame_arguments
@constructor_blames_arguments
@public(
    "an order",
    {"__iter__": "order.at(epoch, range(count))", "__getitem__": "order.at(epoch, positions)"},
)
class Order:
    """Permutations of 0 to count - 1, one for each epoch; without a key, the order as it is."""

    def __init__(self, count: int, key: Any = None):
        if not 0 < count < 2**_EPOCH:
            raise OperandError(
                f"Order: count is {count}, expected a number from 1 to {2**_EPOCH - 1}"
            )
        self.count = count
        self.words = None if key is None else words_of(key)

    def at(self, epoch: int, positions: Any) -> Array:
        """The indices of the samples at some positions of an epoch."""
        where = np.asarray(positions, np.int64)
        if where.size and not 0 <= where.min() <= where.max() < self.count:
            raise OperandError(
                f"Order: positions reach from {where.min()} to {where.max()}, expected 0 to {self.count - 1}"
            )
        if self.words is None:
            return where
        if self.count <= SORTED:
            return _sorted(self.count, self.words, epoch)[where]
        return _walked(self.count, self.words, epoch, where)

    def keys(self, epoch: int, positions: Any) -> Array:
        """A key u32[2] for the sample at each position, whatever batch it is in."""
        words, where = self.words or (0, 0), np.asarray(positions, np.uint64)
        if self.count <= SORTED and (not where.size or where.max() < self.count):
            return _keys_of_epoch(self.count, words, epoch)[where.astype(np.int64)]
        return _keys(words, epoch, where)


def _counter(epoch: int, positions: Array) -> Array:
    return positions | np.uint64(epoch << _EPOCH)


def _keys(words: tuple[int, int], epoch: int, positions: Array) -> Array:
    k0, k1 = (np.array(w, np.uint32) for w in words)
    made = random_words(k0, k1, _counter(epoch, positions), 2, 0, _SAMPLE)
    return made.view(np.uint32).reshape(-1, 2)


@functools.lru_cache(maxsize=4)
def _keys_of_epoch(count: int, words: tuple[int, int], epoch: int) -> Array:
    """The keys of all samples at once: 64 at a time, calls of NumPy would take half of a loader's time."""
    return _keys(words, epoch, np.arange(count, dtype=np.uint64))


@functools.lru_cache(maxsize=4)
def _sorted(count: int, words: tuple[int, int], epoch: int) -> Array:
    k0, k1 = (np.array(w, np.uint32) for w in words)
    counter = _counter(epoch, np.arange(count, dtype=np.uint64))
    return np.argsort(random_words(k0, k1, counter, 2, 0, _SHUFFLE), kind="stable")


def _walked(count: int, words: tuple[int, int], epoch: int, positions: Array) -> Array:
    half = ((count - 1).bit_length() + 1) // 2
    x = _network(positions.astype(np.uint64), half, words, epoch)
    while (out := x >= count).any():
        x[out] = _network(x[out], half, words, epoch)
    return x.astype(np.int64)


def _network(x: Array, half: int, words: tuple[int, int], epoch: int) -> Array:
    """A permutation of the numbers below 2**(2 * half)."""
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = x >> shift, x & mask
    for i in range(_ROUNDS):
        left, right = right, left ^ (philox((right, i, epoch, _NETWORK), words)[0] & mask)
    return left << shift | right
