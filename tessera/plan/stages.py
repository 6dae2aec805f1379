"""Cut a chain of layers into stages: dynamic programming over the last cut, least longest stage first."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def cut_stages(
    times: Sequence[float], parts: int, fits: Callable[[int, int, int], bool] | None = None
) -> tuple[int, ...] | None:
    """The number of layers of each stage, so that the longest stage is shortest; None where nothing fits.

    `fits(stage, first, last)` says whether the layers first to last - 1 fit on the device of a stage.
    """
    n = len(times)
    if parts > n:
        return None
    prefix = np.concatenate([[0.0], np.cumsum(times)])
    best: Array = np.where(np.arange(n + 1) == 0, 0.0, np.inf)  # of the first j layers in k stages
    back: list[list[int]] = []
    for k in range(parts):
        new, where = np.full(n + 1, np.inf), [0] * (n + 1)
        for j in range(k + 1, n - (parts - k - 1) + 1):
            longest = np.maximum(best[:j], prefix[j] - prefix[:j])
            i = _first(longest, j, k, fits)
            if i is not None:
                new[j], where[j] = longest[i], i
        best = new
        back.append(where)
    if not np.isfinite(best[n]):
        return None
    ends = [n]
    for where in reversed(back):
        ends.append(where[ends[-1]])
    ends.reverse()
    return tuple(b - a for a, b in pairwise(ends))


def quick_cut(times: Sequence[float], parts: int) -> list[float]:
    """The seconds of each stage, cut so that the longest is shortest: bisection on its length."""
    prefix = [0.0, *accumulate(times)]
    low, high = max(*times, prefix[-1] / parts), prefix[-1]
    best = _filled(prefix, high, parts)
    assert best is not None
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        found = _filled(prefix, middle, parts)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _filled(prefix: Sequence[float], most: float, parts: int) -> list[float] | None:
    """Stages of at most a length, each as long as can be; None where more than `parts` are needed."""
    made: list[float] = []
    at, last = 0, len(prefix) - 1
    while at < last:
        if len(made) == parts:
            return None
        end = bisect(prefix, prefix[at] + most * (1 + 1e-9)) - 1
        made.append(prefix[end] - prefix[at])
        at = end
    return made + [0.0] * (parts - len(made))


def _first(
    longest: Array, j: int, k: int, fits: Callable[[int, int, int], bool] | None
) -> int | None:
    """The cut with the least longest stage that fits."""
    if fits is None:
        i = int(np.argmin(longest))
        return i if np.isfinite(longest[i]) else None
    for i in np.argsort(longest, kind="stable"):
        if not np.isfinite(longest[i]):
            return None
        if fits(k, int(i), j):
            return int(i)
    return None
