"""Whether stores reach every element of a memory: counters that number blocks together, in any order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tessera.core.dims import symbol
from tessera.core.dtype import f32
from tessera.core.types import TensorType
from tessera.ir.tile.coverage import is_covered
from tessera.ir.tile.ir import Builder

RUNS_ON = "numpy"


def covered(size: Any, extent: int, at: Any, *grid: int) -> bool:
    """Of a row, by a grid whose counters give the place of a box."""
    b = Builder("k")
    y = b.parameter("y", TensorType(f32, (size,)), writable=True)
    counters = [b.program(n) for n in grid]
    b.store(y, b.full(f32, (extent,), 0), (at(*counters),), (extent,))
    return is_covered(b.finish(), y)


@pytest.mark.parametrize("block", [1, 2, 8])
@pytest.mark.parametrize("grid", [(4,), (3, 4), (4, 1, 3), (2, 3, 2, 2)], ids=str)
def test_boxes_beside_each_other_cover_a_row(grid: Any, block: int) -> None:
    total = 1
    for n in grid:
        total *= n
    for order in itertools.permutations(range(len(grid))):

        def place(*counters: Any, order: Any = order) -> Any:
            out: Any = 0
            for k in order:
                out = out * grid[k] + counters[k]
            return out

        whole = total * block
        assert covered(whole, block, lambda *c: place(*c) * block, *grid)
        assert covered(whole - block + 1, block, lambda *c: place(*c) * block, *grid)
        assert covered(whole, block + 1, lambda *c: place(*c) * block, *grid), "boxes may overlap"
        assert not covered(whole + 1, block, lambda *c: place(*c) * block, *grid)
        assert not covered(whole + block, block, lambda *c: place(*c) * block + 1, *grid)
        if block > 1 and total > 1:
            assert not covered(whole, block - 1, lambda *c: place(*c) * block, *grid)
    if len(grid) == 2:
        assert not covered(
            total * block, block, lambda p, q: (p * (grid[1] + 1) + q) * block, *grid
        )


def test_sizes_that_are_not_known_are_covered_by_as_many_boxes() -> None:
    n = symbol("N")
    for size, blocks, sure in (
        (n, n, True),
        (n, n + 1, True),
        (n + 1, n, False),
        (4 * n, n, False),
    ):
        b = Builder("k")
        y = b.parameter("y", TensorType(f32, (size,)), writable=True)
        p = b.program(blocks)
        b.store(y, b.full(f32, (1,), 0), (p,), (1,))
        assert is_covered(b.finish(), y) == sure
