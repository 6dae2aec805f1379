"""Epilogues of convolutions: one step, with the bits of the steps alone, at every level."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, bf16, f16, f32, op
from tessera.core.errors import VerifyError
from tessera.ir.schedule.ir import Kernel, Primitive, Program, Read
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.passes.fuse_epilogues import fuse_epilogues
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels


def draw(*shape: int, dtype: Any = f32) -> Any:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype.np)


def programs(f: Callable[..., Any], *xs: Any) -> tuple[Program, Program]:
    """The program of f with every step alone, and with epilogues."""
    p = lower(levels.prepared(ts.trace(f, *map(ts.tensor, xs))))
    return p, fuse_epilogues(p)


def column(b: Any) -> Any:
    return op.reshape(b, (1, -1, 1, 1))


def both(y: Any) -> Any:
    return op.exp(y), op.sum(y, (2, 3))


# What follows, the shapes of operands, and how many steps are left.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "bias": (lambda x, w, b: op.conv(x, w, b), [(1, 5, 9, 9), (20, 5, 3, 3), (20,)], 1),
    "silu": (
        lambda x, w, b: op.silu(op.conv(x, w, b, padding=1)),
        [(2, 3, 7, 21), (33, 3, 3, 3), (33,)], 1,
    ),
    "residual": (
        lambda x, w, b: op.relu(op.conv(x, w, b, padding=1) + x),
        [(1, 24, 6, 11), (24, 24, 3, 3), (24,)], 1,
    ),
    "depthwise": (
        lambda x, w, b: op.clip(op.conv(x, w, b, stride=2, padding=2, groups=9), 0, 6),
        [(2, 9, 13, 15), (9, 1, 5, 5), (9,)], 1,
    ),
    "groups": (
        lambda x, w, b: op.tanh(op.conv(x, w, groups=2) * column(b)),
        [(1, 6, 8, 8), (36, 3, 3, 3), (36,)], 1,
    ),
    "a number of the batch": (
        lambda x, w, b: op.conv(x, w, stride=2) * op.reshape(b, (3, 1, 1, 1)),
        [(3, 4, 9, 35), (17, 4, 2, 2), (3,)], 1,
    ),
    "a number of the batch and channel": (
        lambda x, w, s: op.conv(x, w, padding=1) * s,
        [(2, 4, 5, 70), (18, 4, 3, 3), (2, 18, 1, 1)], 1,
    ),
    "two leaves": (
        lambda x, w, b: op.relu(op.conv(x, w, b)), [(1, 70, 6, 6), (40, 70, 3, 3), (40,)], 1,
    ),
    "one axis": (
        lambda x, w, b: op.silu(op.conv(x, w) + op.reshape(b, (1, -1, 1))),
        [(2, 4, 50), (20, 4, 5), (20,)], 1,
    ),
    "wanted twice": (
        lambda x, w: both(op.conv(x, w)),
        [(1, 3, 8, 8), (16, 3, 3, 3)], 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_steps_with_epilogues_have_the_bits_of_steps_alone(name: str) -> None:
    f, shapes, count = CASES[name]
    xs = [draw(*s) for s in shapes]
    alone, joined = programs(f, *xs)
    assert len(joined.steps) <= count < len(alone.steps) or count > 1, str(joined)
    verify(joined)
    assert parse_program(joined.text).text == joined.text
    want = levels.by_schedule(alone, xs)
    for run in (levels.by_schedule, levels.by_tile, levels.by_llvm):
        assert same_bits(run(joined, xs), want), run.__name__


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_narrow_results_are_rounded_before_the_epilogue(dtype: Any) -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return op.relu(op.conv(x, w, b, padding=1) + x)

    xs = [draw(1, 17, 6, 18, dtype=dtype), draw(17, 17, 3, 3, dtype=dtype), draw(17, dtype=dtype)]
    alone, joined = programs(f, *xs)
    assert any(isinstance(s, Primitive) and s.epilogue for s in joined.steps)
    want = levels.by_schedule(alone, xs)
    for run in (levels.by_schedule, levels.by_tile, levels.by_llvm):
        assert same_bits(run(joined, xs), want), run.__name__


def test_open_sizes() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return op.silu(op.conv(x, w, b, padding=1) + x)

    g = ts.trace(f, Tensor["B", 18, "H", "W", f32], Tensor[18, 18, 3, 3, f32], Tensor[18, f32])
    alone = lower(levels.prepared(g))
    joined = fuse_epilogues(alone)
    verify(joined)
    assert [type(s) for s in joined.steps] == [Primitive]
    for batch, height, width in ((1, 5, 7), (2, 1, 80), (3, 20, 20)):
        xs = [draw(batch, 18, height, width), draw(18, 18, 3, 3), draw(18)]
        want = levels.by_schedule(alone, xs)
        for run in (levels.by_schedule, levels.by_llvm):
            assert same_bits(run(joined, xs), want), run.__name__


def test_what_is_computed_from_other_points_stays_alone() -> None:
    def f(x: Any, w: Any) -> Any:
        return op.exp(op.flip(op.conv(x, w), 3))

    def g(x: Any, w: Any, v: Any) -> Any:
        return op.exp(op.conv(x, w) + v)  # a row of numbers is no line of channels

    xs = [draw(1, 3, 8, 8), draw(16, 3, 3, 3)]
    for p in (programs(f, *xs)[1], programs(g, *xs, draw(6))[1]):
        assert not any(isinstance(s, Primitive) and s.epilogue for s in p.steps)


def test_jitted_programs_are_joined() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return op.silu(op.conv(x, w, b, padding=1))

    xs = [ts.tensor(draw(1, 8, 12, 12)), ts.tensor(draw(32, 8, 3, 3)), ts.tensor(draw(32))]
    low = ts.jit(f).lower(*xs)
    assert [type(s) for s in low.schedule.steps] == [Primitive]
    want = ts.jit(f, target="numpy")(*xs).numpy()
    np.testing.assert_allclose(ts.jit(f)(*xs).numpy(), want, rtol=2e-5, atol=2e-5)


def test_the_verifier_wants_points() -> None:
    _, p = programs(CASES["bias"][0], *(draw(*s) for s in CASES["bias"][1]))
    (s,) = p.steps
    assert isinstance(s, Primitive)
    assert isinstance(s.epilogue, Kernel)
    stage = s.epilogue.stages[-1]
    turned = replace(stage, term=Read(f32, s.made, tuple(a.variable for a in stage.axes[::-1])))
    kernel = replace(s.epilogue, stages=(*s.epilogue.stages[:-1], turned))
    wrong = replace(p, steps=(replace(s, operands=s.own, epilogue=kernel),))
    with pytest.raises(VerifyError, match="is not computed point by point"):
        verify(wrong)
    with pytest.raises(VerifyError, match="but the epilogue reads"):
        verify(replace(p, steps=(replace(s, operands=(*s.operands[:2], "x0")),)))
    with pytest.raises(VerifyError, match="the results are not those"):
        verify(replace(p, steps=(replace(s, results=()),)))
