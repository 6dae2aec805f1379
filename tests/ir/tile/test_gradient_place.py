"""Where instances put the gradient of what they load: what the plan says holds at every element."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

from tessera.core.dims import smaller, substitute, symbol
from tessera.core.dtype import f32
from tessera.core.types import TensorType
from tessera.ir.tile.autodiff.plan import GradientPlace, place_of
from tessera.ir.tile.ir import Builder

N = symbol("N")


def planned(size: Any, grid: tuple[Any, ...], loads: Any) -> GradientPlace:
    """The plan for loads (position, extent, loop) along one axis; a loop is (start, stop, step) or None."""
    b = Builder("loads")
    x = b.parameter("x", TensorType(f32, (size,)))
    names = [b.program(n) for n in grid]
    for at, extent, loop in loads:
        if loop is None:
            b.load(x, (at(0, *names),), (extent,), masked=(0,))
            continue
        start, stop = (n(*names) for n in loop[:2])
        with b.loop(start, stop, loop[2]) as over:
            b.load(x, (at(over.variable, *names),), (extent,), masked=(0,))
    return place_of(b.finish(), x)


def met(size: int, loads: Any, point: tuple[int, ...]) -> Counter[int]:
    """How often an instance meets each element."""
    found: Counter[int] = Counter()
    for at, extent, loop in loads:
        rounds = [0] if loop is None else range(loop[0](*point), loop[1](*point), loop[2])
        for i in rounds:
            found.update(k for k in range(at(i, *point), at(i, *point) + extent) if 0 <= k < size)
    return found


def random_load(rng: np.random.Generator) -> Any:
    extent, step, end = (
        int(n) for n in (rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.integers(0, 17))
    )
    a, b, c = (int(rng.choice(n)) for n in ((4, 8, 16, extent), (0, 0, 0, 2, 16), (0, 0, 1, 4)))
    end = int(rng.choice((end, a)))
    kind = rng.integers(5)
    if kind == 4:
        return (lambda i, p, q: extent * p), extent, None
    if kind == 0:
        return (lambda i, p, q: a * p + b * q + c), extent, None
    if kind == 1:  # from 0 to a number, or to the least of two
        least = int(rng.integers(1, 20))
        return (
            (lambda i, p, q: a * p + b * q + i), extent,
            (lambda p, q: 0, lambda p, q: smaller(a * p + end, least), step),
        )  # fmt: skip
    if kind == 2:  # a block of the instance
        return (
            (lambda i, p, q: i), extent,
            (lambda p, q: a * p + b * q, lambda p, q: smaller(a * p + b * q + end, 40), step),
        )  # fmt: skip
    return (
        (lambda i, p, q: a * p + 2 * i + b * q),
        extent,
        (lambda p, q: c, lambda p, q: c + end, step),
    )


def test_what_a_plan_says_holds_at_every_element() -> None:
    rng, seen = np.random.default_rng(7), Counter[Any]()
    for _ in range(250):
        size = int(rng.choice([16, 40]))
        grid = tuple(int(rng.choice(n)) for n in ((1, 2, 4, size // 4), (1, 1, 2)))
        loads = [random_load(rng) for _ in range(int(rng.choice([1, 1, 1, 2])))]
        found = planned(size, grid, loads)
        axes = {name: i for i, name in enumerate(("_p0", "_p1"))}
        own = [axes[name] for name, _ in found.own]
        alone: dict[tuple[int, ...], list[Counter[int]]] = {}
        for point in product(*map(range, grid)):
            alone.setdefault(tuple(point[i] for i in own), []).append(met(size, loads, point))
        for one in alone.values():
            shared = Counter[int]()
            for elements in one:
                shared.update(elements.keys())
                assert found.adds or not elements or max(elements.values()) == 1
            assert not shared or max(shared.values()) == 1, "instances of one gradient meet"
            assert found.partial or len(shared) == size
        seen[len(own) < sum(n > 1 for n in grid), found.adds, found.partial] += 1
    assert sum(n for k, n in seen.items() if k[0]) > 30, seen
    assert sum(n for k, n in seen.items() if not k[1]) > 60, seen
    assert sum(n for k, n in seen.items() if not k[2]) > 4, seen


@pytest.mark.parametrize(
    ("start", "stop", "apart"),
    [
        (lambda p: 0, lambda p: 16, True), (lambda p: 0, lambda p: 17, False),
        (lambda p: 0, lambda p: smaller(16, N), True), (lambda p: 0, lambda p: smaller(N, 16), True),
        (lambda p: 0, lambda p: smaller(17, N), False), (lambda p: 0, lambda p: N, False),
        (lambda p: 0, lambda p: smaller(smaller(N, 30), 16), True),
        (lambda p: 2, lambda p: smaller(N, 18), True),
        (lambda p: 2, lambda p: smaller(N, 19), False),
    ],
)  # fmt: skip
def test_instances_whose_loops_end_within_their_blocks_share_a_gradient(start, stop, apart) -> None:
    """Of two ends the nearer one counts, whichever it is."""
    count = (N + 15) // 16
    load = (lambda i, p: 16 * p + i, 1, (start, stop, 1))
    assert (planned(N, (count,), [load]).own == ()) == apart


@pytest.mark.parametrize(("block", "apart"), [(15, True), (16, True), (17, False)])
def test_blocks_that_begin_where_their_instance_does(block: int, apart: bool) -> None:
    loop = (lambda p: 16 * p, lambda p: smaller(16 * p + block, N), 1)
    found = planned(N, ((N + 15) // 16,), [(lambda i, p: i, 1, loop)])
    assert (found.own == ()) == apart
    assert substitute(found.own[0][1], {"N": 33}) == 3 if found.own else True
