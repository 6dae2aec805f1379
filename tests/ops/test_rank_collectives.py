"""Collectives between ranks have the bits of the definition, on any number of ranks and uneven ranges."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tessera.core import ranks as engines
from tessera.ops import ranks

RUNS_ON = "numpy"
RNG = np.random.default_rng(0)


class Threads(engines.RankEngine):
    """Ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size, self.mine = size, threading.local()
        self.all = threading.Barrier(size, timeout=20)
        self.sent: list[Any] = [None] * size

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Any]) -> list[Any]:
        me = self.mine.rank
        self.sent[me] = (what, [np.array(x) for x in sent])
        self.all.wait()
        words, got = zip(*((w, parts[me]) for w, parts in self.sent), strict=True)
        assert set(words) == {what}
        self.all.wait()
        return list(got)


def on_ranks(ranges: Sequence[tuple[int, int]], f: Callable[[int], Any]) -> list[Any]:
    """What each rank gets."""
    made, before = Threads(len(ranges)), engines.engine()

    def run(rank: int) -> Any:
        made.mine.rank = rank
        return f(rank)

    engines.start_on(made)
    try:
        with ThreadPoolExecutor(len(ranges)) as pool:
            return list(pool.map(run, range(len(ranges))))
    finally:
        engines.start_on(before)


def node(x: Any, low: int, high: int, add: Any) -> Any:
    """The sum of x[low:high], by halves: the left one holds a power of two."""
    if high - low == 1:
        return x[low]
    half = 1 << (high - low - 1).bit_length() - 1
    return add(node(x, low, low + half, add), node(x, low + half, high, add))


def held(x: Any, low: int, high: int, add: Any) -> Any:
    """What a rank has of the sum: of the largest nodes in its range."""
    return np.stack([node(x, b, e, add) for b, e in ranks.nodes(low, high, len(x))])


def cuts() -> Iterator[tuple[tuple[int, int], ...]]:
    for total, count in itertools.product((1, 2, 3, 4, 6, 7, 9), (1, 2, 3, 4)):
        every = list(itertools.combinations(range(1, total), count - 1))
        for inner in every[:: max(1, len(every) // 4)]:
            yield tuple(itertools.pairwise((0, *inner, total)))


@pytest.mark.parametrize("ranges", list(cuts()), ids=str)
def test_every_rank_has_the_bits_of_the_definition(ranges: Any) -> None:
    total, group = ranges[-1][1], tuple(range(len(ranges)))
    x = RNG.standard_normal((total, 3, 5)).astype(np.float32)
    each = RNG.standard_normal((total, total, 4)).astype(np.float32)  # of i for j
    targets = RNG.permutation(total)
    perm = tuple((i, int(targets[i])) for i in range(total) if i % 3 != 1)
    moved = np.zeros_like(x)
    for s, t in perm:
        moved[t] = x[s]

    def on(op: Any, mine: int, given: Any, **more: Any) -> Any:
        return op.numpy(given, group=group, ranges=ranges, mine=mine, **more)

    def every(mine: int) -> list[Any]:
        low, high = ranges[mine]
        return [
            on(ranks.SUM, mine, held(x, low, high, np.add)),
            on(ranks.MAX, mine, held(x, low, high, np.maximum)),
            on(ranks.GATHER, mine, x[low:high]),
            on(ranks.SCATTER, mine, held(each, low, high, np.add)),
            on(ranks.ALL_TO_ALL, mine, each[low:high]),
            on(ranks.PERMUTE, mine, x[low:high], perm=perm),
        ]

    for (low, high), found in zip(ranges, on_ranks(ranges, every), strict=True):
        want = [
            node(x, 0, total, np.add), x.max(0), x, node(each, 0, total, np.add)[low:high],
            each.swapaxes(0, 1)[low:high], moved[low:high],
        ]  # fmt: skip
        for got, w in zip(found, want, strict=True):
            assert got.dtype == w.dtype
            np.testing.assert_array_equal(got, w)
