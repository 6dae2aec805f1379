"""Every access of a kernel is proved to lie in its memory, and one that does not is noticed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.dims import smaller, substitute, symbol, symbols
from tessera.core.dtype import f32, i64
from tessera.core.errors import VerifyError
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Apply as Applied
from tessera.ir.schedule.ir import Axis, Buffer, Kernel, Literal, Program, Read, Stage, Term
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.verify import verify
from tessera.ir.tile.inside import is_inside, loose_accesses, verify_inside
from tessera.ir.tile.ir import Builder
from tessera.ir.tile.scope import LoopContext
from tests.support.cases.random_programs import program
from tests.support.runners.levels import kernels, prepared

N = symbol("N")


def copy_at(at, extent=16, n=N, count=None, masked=()):
    """A kernel that copies a box which begins at a place of its instance."""
    b = Builder("copy")
    x = b.parameter("x", TensorType(f32, (n,)))
    y = b.parameter("y", TensorType(f32, (n,)), writable=True)
    p = b.program(n // extent if count is None else count)
    tile = b.load(x, (at(p),), (extent,), masked=masked)
    b.store(y, tile, (at(p),), (extent,), masked=masked)
    return b.finish()


@pytest.mark.parametrize(
    "kernel",
    [
        copy_at(lambda p: 16 * p),
        copy_at(lambda p: 16 * p, count=(N + 15) // 16, masked=(0,)),
        copy_at(lambda p: smaller(16 * p, 84), n=100, count=7),
        copy_at(lambda p: 7 - p, extent=1, n=8),
        copy_at(lambda p: (7 * p + 7) % 8, extent=1, n=8),
    ],
)
def test_boxes_inside_are_proved(kernel) -> None:
    verify_inside(kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        copy_at(lambda p: 16 * p, count=(N + 15) // 16),  # the last one reaches out
        copy_at(lambda p: 16 * p + 1),
        copy_at(lambda p: 16 * p - 1),
        copy_at(lambda p: smaller(16 * p, 85), n=100, count=7),
        copy_at(lambda p: 7 * ((7 * p + 7) % 8) + 7, extent=1, n=8),  # 7 at both ends
        copy_at(lambda p: 16 * p, n=100, count=7),
    ],
)
def test_boxes_that_reach_out_are_noticed(kernel) -> None:
    assert len(loose_accesses(kernel)) == 2
    with pytest.raises(VerifyError, match="copy: load of x is not proved to lie inside: axis 0"):
        verify_inside(kernel)


def test_what_is_proved_of_few_points_is_what_holds_at_all_of_them() -> None:
    """Random boxes of two counters, of which either may run never; facts leave out some points."""
    rng = np.random.default_rng(25)
    i, j = symbol("i"), symbol("j")
    seen = Counter()
    for _ in range(600):
        counts = {"i": int(rng.integers(-1, 5)), "j": int(rng.integers(-1, 5))}
        a, b = (int(x) for x in rng.choice([-2, -1, 1, 2], 2))
        c, d, m = (int(x) for x in rng.integers(-3, 4, 3))
        low = a * i + b * j + c
        if m > 0:
            low = low % m if rng.random() < 0.5 else smaller(low, m * i)
        if symbols(low) != {"i", "j"}:
            continue  # a counter on which nothing depends is not looked at
        high = low + int(rng.integers(0, 3))
        n = int(rng.integers(1, 9))
        facts = (d + j - i,) if rng.random() < 0.5 else ()

        def at(x, p, q):
            return substitute(x, {"i": p, "j": q})

        points = [
            (p, q)
            for p in range(counts["i"]) for q in range(counts["j"])
            if all(at(f, p, q) >= 0 for f in facts)
        ]  # fmt: skip
        want = all(at(low, p, q) >= 0 and at(high, p, q) < n for p, q in points)
        found = is_inside(LoopContext({}, (), facts, counts), low, high, n)
        assert found == want, (counts, low, high, n, facts)
        seen[want, bool(points)] += 1
    assert min(seen[k] for k in ((True, True), (True, False), (False, True))) > 30


def test_a_fact_about_sizes_helps() -> None:
    kernel = copy_at(lambda p: p + 4, extent=1, count=N - 4)
    verify_inside(kernel, [N - 5])
    b = Builder("five")
    x = b.parameter("x", TensorType(f32, (N,)))
    b.load(x, (4,), (1,))
    with pytest.raises(VerifyError, match="from 4 to 4"):
        verify_inside(b.finish())
    verify_inside(b.finish(), [N - 5])


def test_places_that_are_data_must_be_held() -> None:
    b = Builder("pick")
    x = b.parameter("x", TensorType(f32, (9,)))
    at = b.load(b.parameter("i", TensorType(i64, (1,))), (0,), (1,))
    b.gather(x, {0: at}, (0,), (1,))
    with pytest.raises(VerifyError, match="axis 0 of size 9 is reached anywhere"):
        verify_inside(b.finish())
    held = b.apply("max", at, b.full(i64, (), 0))
    b2 = Builder("pick")
    x = b2.parameter("x", TensorType(f32, (9,)))
    at = b2.load(b2.parameter("i", TensorType(i64, (1,))), (0,), (1,))
    held = b2.apply("max", at, b2.full(i64, (), 0))
    b2.gather(x, {0: b2.apply("min", held, b2.full(i64, (), 8))}, (0,), (1,))
    verify_inside(b2.finish())


def read_at(i: Term | object) -> Program:
    """A program that reads x at an index."""
    axis = Axis("_r0", 8)
    stage = Stage("t", (axis,), (), None, Read(f32, "x", (i,)))
    types = {"x": TensorType(f32, (8,)), "i": TensorType(i64, (8,)), "t": TensorType(f32, (8,))}
    buffers = {n: Buffer(n, t) for n, t in types.items()}
    return Program("p", buffers, (Kernel("k", 0, (stage,), ("t",)),), ("x", "i"), ("t",))


def test_the_schedule_demands_proofs_too() -> None:
    r = symbol("_r0")
    data = Read(i64, "i", (r,))
    held = Applied(i64, "max", (data, Literal(i64, 0)))
    for i in (r, 7 - r, (7 * r + 7) % 8, Applied(i64, "min", (held, Literal(i64, 7)))):
        verify(read_at(i))
    for i in (r + 1, r - 1, 7 * ((7 * r + 7) % 8) + 7, data, held):
        with pytest.raises(VerifyError, match=r"reads x\[.*\]: elements .* of axis 0 of size 8"):
            verify(read_at(i))


def test_random_kernels_are_proved() -> None:
    for seed in range(60):
        for _, kernel in kernels(lower(prepared(program(seed).graph))):
            verify_inside(kernel)


@pytest.mark.parametrize("columns", [1, 3, 17, 33])
def test_a_slice_that_data_places_stays_inside_where_vectors_end(columns: int) -> None:
    """Lanes behind the last column counted on and read behind the tensor."""

    def f(x, w, s):
        part = op.dynamic_slice(x, (0, s), (10, columns))
        return part * 2.0, w @ part, op.sum(part, 0)

    types = Tensor[10, 40, f32], Tensor[4, 10, f32], Tensor[i64]
    for _, kernel in kernels(lower(prepared(ts.trace(f, *types)))):
        verify_inside(kernel)
