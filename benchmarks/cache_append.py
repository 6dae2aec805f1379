"""Appending to a cache: a step that the cache is donated to against one that keeps the old cache, which
copies it.

python benchmarks/cache_append.py [--positions 4096] [--steps 50]
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np

import tessera as ts
from tessera import KVCache

KINDS: dict[str, dict[str, Any]] = {
    "plain": {}, "lengths": {"per_sequence": True}, "window": {"window": 1024}, "i8": {"quantized": "i8"},
    "pages": {"page": 16},
}  # fmt: skip


def append(cache: Any, k: Any, v: Any) -> Any:
    """One step."""
    return cache.append(k, v)


def timed(f: Any, cache: Any, k: Any, steps: int) -> float:
    """The median seconds of a step."""
    found = []
    for i in range(steps + 5):
        begin = time.perf_counter()
        cache = f(cache, k, k)
        if i >= 5:
            found.append(time.perf_counter() - begin)
    return median(found)


def main() -> None:
    """Print a table: kind, size of the cache, microseconds of both steps, their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=50)
    a = parser.parse_args()
    heads, size = 8, 64
    k = ts.tensor(np.random.default_rng(0).standard_normal((1, heads, 1, size)).astype(np.float32))
    print(f"{'kind':10}{'MB':>8}{'kept us':>12}{'donated us':>12}{'ratio':>8}")
    for name, given in KINDS.items():
        kind = {**given, "pages": a.positions // given["page"]} if "page" in given else given
        both = []
        for donate in ((), ("cache",)):
            cache = KVCache.empty(1, heads, a.positions, size, **kind)
            moved = sum(x.numpy().nbytes for x in ts.tree.leaves(cache) if x.ndim == 4) / 1e6
            both.append(timed(ts.jit(append, donate=donate, target="cpu"), cache, k, a.steps))
        kept, donated = (x * 1e6 for x in both)
        print(f"{name:10}{moved:8.1f}{kept:12.0f}{donated:12.0f}{kept / donated:8.0f}")


if __name__ == "__main__":
    main()
