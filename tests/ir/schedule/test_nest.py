"""Nests: what each primitive does, what is refused, and that no nest changes a bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.errors import ScheduleError, VerifyError
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests import choose
from tessera.ir.schedule.nests.choose import default_nest
from tessera.ir.schedule.nests.legality import check_nest, is_legal, row_axes
from tessera.ir.schedule.nests.nest import (
    Nest,
    fuse,
    parallel,
    parse_nest,
    reorder,
    serial,
    split,
    stage,
    unroll,
    vectorize,
    widen,
)
from tessera.ir.schedule.nests.space import nests
from tessera.ir.schedule.verify import verify
from tessera.ir.tile.cpu.lower import lower as to_tile
from tests.support.cases.random_graphs import LoopSteps, programs, same_bits
from tests.support.cases.random_graphs import Program as RandomProgram
from tests.support.runners.levels import by_llvm, by_schedule, by_tile, prepared

GEMM = "parallel m:24, parallel n:64, k:512, m:6, k:1, unroll m:1, vector n:16; stage right at 3"
ROWS = "parallel r0:1, c:64, vector c:16"

# Primitives

Change = Callable[[Nest], Nest]
CHANGES: list[tuple[str, Change, str]] = [
    (GEMM, lambda x: split(x, 0, 6),
     "parallel m:24, parallel n:64, m:6, k:512, m:6, k:1, unroll m:1, vector n:16; stage right at 4"),
    ("k:512, n:64, n:16, vector n:16", lambda x: split(x, 0, 128), "k:512, k:128, n:64, n:16, vector n:16"),
    ("k:512, k:1", lambda x: split(x, 0, 8), "k:512, k:8, k:1"),
    (ROWS, lambda x: widen(x, 0, 8), "parallel r0:8, r0:1, c:64, vector c:16"),
    ("n:64, vector n:16", lambda x: widen(x, 0, 128), "n:128, n:64, vector n:16"),
    ("k:512, k:128, k:1; stage left at 2", lambda x: fuse(x, 0), "k:128, k:1; stage left at 1"),
    ("parallel r0:8, r0:1, c:64, vector c:16", lambda x: fuse(x, 0), ROWS),
    (GEMM, lambda x: reorder(x, [1, 0, 2, 3, 4, 5, 6]),
     "parallel n:64, parallel m:24, k:512, m:6, k:1, unroll m:1, vector n:16; stage right at 3"),
    ("m:24, n:64, vector n:16", lambda x: parallel(x, 0), "parallel m:24, n:64, vector n:16"),
    ("parallel m:24, n:64, vector n:16", lambda x: serial(x, 0), "m:24, n:64, vector n:16"),
    (GEMM, lambda x: unroll(x, "m", 4),
     "parallel m:24, parallel n:64, k:512, m:4, k:1, unroll m:1, vector n:16; stage right at 3"),
    (GEMM, lambda x: unroll(x, "m", 5),
     "parallel m:20, parallel n:64, k:512, m:5, k:1, unroll m:1, vector n:16; stage right at 3"),
    (GEMM, lambda x: vectorize(x, "n", 2),
     "parallel m:24, parallel n:32, k:512, m:6, k:1, unroll m:1, vector n:16; stage right at 3"),
    (GEMM, lambda x: stage(x, "left", 2),
     "parallel m:24, parallel n:64, k:512, m:6, k:1, unroll m:1, vector n:16; stage right at 3; "
     "stage left at 2"),
    (GEMM, lambda x: stage(x, "right", None),
     "parallel m:24, parallel n:64, k:512, m:6, k:1, unroll m:1, vector n:16"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "change", "after"), CHANGES, ids=range(len(CHANGES)))
def test_a_primitive_gives_a_new_nest(before: str, change: Change, after: str) -> None:
    nest = parse_nest(before)
    assert str(change(nest)) == after
    assert str(nest) == before


REFUSED: list[tuple[str, Change, str]] = [
    (GEMM, lambda x: split(x, 9, 2), f"split: there is no loop 9 in {GEMM}"),
    (GEMM, lambda x: split(x, 0, 7), "split: 7 does not divide parallel m:24 into smaller blocks"),
    (GEMM, lambda x: split(x, 0, 24), "split: 24 does not divide parallel m:24 into smaller blocks"),
    (GEMM, lambda x: split(x, 6, 8), "split: vector n:16 is one block of registers already"),
    (GEMM, lambda x: split(x, 0, 4), "nest: m:6 does not divide the blocks of m:4"),
    (GEMM, lambda x: widen(x, 0, 36), "widen: 36 is no multiple of parallel m:24"),
    (GEMM, lambda x: widen(x, 5, 2), "widen: unroll m:1 is one block of registers already"),
    (ROWS, lambda x: widen(x, 1, 96), "widen: 96 is no multiple of c:64"),
    (GEMM, lambda x: fuse(x, 1), "fuse: parallel n:64 has no loop of its axis inside"),
    (GEMM, lambda x: fuse(x, 2), "fuse: other loops stand between k:512 and k:1; reorder first"),
    (GEMM, lambda x: reorder(x, [0, 0]), "reorder: [0, 0] is no order of 7 loops"),
    (GEMM, lambda x: reorder(x, [0, 1, 4, 2, 3, 5, 6]),
     "nest: k:512 does not divide the blocks of k:1"),
    (GEMM, lambda x: reorder(x, [0, 2, 1, 3, 4, 5, 6]),
     "nest: parallel n:64 stands inside k:512; parallel loops come first, then serial ones, then what "
     "is unrolled and vectorised"),
    (GEMM, lambda x: parallel(x, 3),
     "nest: parallel m:6 stands inside k:512; parallel loops come first, then serial ones, then what "
     "is unrolled and vectorised"),
    (GEMM, lambda x: serial(x, 0),
     "nest: parallel n:64 stands inside m:24; parallel loops come first, then serial ones, then what "
     "is unrolled and vectorised"),
    (GEMM, lambda x: parallel(x, 6), "parallel: vector n:16 is one block of registers"),
    (GEMM, lambda x: unroll(x, "r0", 2), "unroll: there is no loop over r0 to unroll"),
    (GEMM, lambda x: unroll(x, "k", 3),
    "nest: k:510 cuts leaves of the fold; use a divisor or multiple of 512"),
    (GEMM, lambda x: vectorize(x, "m", 2), f"vectorize: m does not lie along vectors in {GEMM}"),
    (GEMM, lambda x: stage(x, "middle", 2),
     "stage: 'middle' is no factor, expected 'left' or 'right'"),
    (GEMM, lambda x: stage(x, "left", 12), "nest: left is staged at 12, expected 0 to 7"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "change", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_primitive_refuses(before: str, change: Change, message: str) -> None:
    with pytest.raises(ScheduleError) as e:
        change(parse_nest(before))
    assert e.value.message == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("for m:2", "nest: 'for m:2' is no loop, expected one like 'parallel m:64'"),
        ("m:2; pack left", "nest: 'pack left' is no stage, expected one like 'stage right at 3'"),
        ("m:0", "nest: loop 0 is m:0, expected a step of at least 1 and a kind of serial, parallel, "
         "unroll, vector"),
        ("vector n:8", "nest: vector n:8: vectors have 16 elements"),
        ("unroll k:1", "nest: unroll k:1: a fold runs in its own order, so its loop is serial"),
        ("m:2; stage left at 0; stage left at 1", "nest: left is staged twice; stage it once"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_nest_is_refused(text: str, message: str) -> None:
    with pytest.raises(ScheduleError) as e:
        parse_nest(text)
    assert e.value.message == message


# What a kernel allows


@cache
def program(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    return lower(prepared(ts.trace(f, *(Tensor[(*s, f32)] for s in shapes))))


def gemm(a: Any, b: Any) -> Any:
    return a @ b


def columns(x: Any) -> Any:
    return op.sum(x, 0)


def several(x: Any) -> Any:
    return op.exp(op.max(x, 1)[:, None] - x) * op.sum(x, 1)[:, None]


def norm(x: Any) -> Any:
    return x * op.rsqrt(op.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def scores(x: Any) -> Any:
    return op.logsumexp(x, axis=-1), op.max(x, axis=-1)


SHAPES: dict[Callable[..., Any], tuple[tuple[int, ...], ...]] = {
    gemm: ((3, 20, 70), (3, 70, 40)),
    op.softmax: ((7, 33),),
    norm: ((8, 1100),),
    columns: ((1100, 20),),
    op.exp: ((40,),),
}
END = "k:1, unroll m:1, vector n:16"


@pytest.mark.parametrize(
    ("f", "nest", "message"),
    [
        (gemm, f"r0:1, m:6, n:64, {END}", "r0:1: there is no axis r0 to loop over; the kernel has b0, "
         "m, n, k"),
        (op.softmax, "parallel r1:1", "parallel r1:1: there is no axis r1 to loop over; the kernel has "
         "r0, c, l"),
        (gemm, f"parallel m:12, parallel m:6, n:64, {END}",
         "parallel m:12: instances share m once; make one of its loops serial"),
        (gemm, f"parallel k:512, m:6, n:64, {END}",
         "parallel k:512: k is folded, so instances cannot share it; make the loop serial"),
        (gemm, f"k:1024, m:6, n:64, {END}", "k:1024: k is folded leaf by leaf; use k:512"),
        (gemm, f"k:512, k:64, k:8, m:6, n:64, {END}", "k:512, k:64, k:8, m:6, n:64, k:1, unroll m:1, "
         "vector n:16: a leaf is cut into strips once; fuse the loops over k"),
        (gemm, "m:6, n:64, vector n:16",
         "m:6, n:64, vector n:16: there is no loop over k; add k:1"),
        (gemm, f"n:64, {END}", f"n:64, {END}: there is no loop over m; add one"),
        (gemm, "m:6, n:64, k:1", "m:6, n:64, k:1: columns lie along vectors; end with vector n:16"),
        (gemm, "m:6, n:64, k:1, unroll m:2, vector n:16",
         "unroll m:2: only m is unrolled, by single rows; use unroll m:1"),
        (gemm, "m:16, n:64, k:1, vector m:16, vector n:16",
         "vector m:16: the columns lie along vectors; use vector n:16"),
        (gemm, f"m:64, n:64, {END}", f"m:64, n:64, {END}: a block of 64 by 64 has more than 1024 "
         "elements; split m or n"),
        (gemm, f"parallel m:6, n:64, {END}; stage left at 0",
         "stage left at 0: a factor is staged inside the shared loops; stage it at 1 to 3"),
        (gemm, f"parallel b0:2, m:6, n:64, {END}", "parallel b0:2: b0:1 is missing; split the loop"),
        (gemm, f"m:6, b0:1, n:64, {END}", "b0:1: a loop over rows stands outside of m:6; reorder"),
        (gemm, "m:6, n:64, k:1, unroll b0:1, vector n:16",
         "unroll b0:1: rows are computed one by one; use a serial loop"),
        (op.softmax, "parallel r0:4, r0:2, c:64, vector c:16",
         "r0:2: rows are computed one by one; use r0:1"),
        (norm, "parallel r0:3, c:64, unroll r0:1, vector c:16",
         "unroll r0:1: 8 rows are not a multiple of 3; use a serial loop"),
        (norm, "parallel r0:16, c:64, unroll r0:1, vector c:16",
         "unroll r0:1: 2 to 8 rows of an instance go together; use parallel r0:2, unroll r0:1"),
        (norm, "c:64, unroll r0:1, vector c:16",
         "unroll r0:1: 2 to 8 rows of an instance go together; use parallel r0:2, unroll r0:1"),
        (norm, "parallel r0:2, parallel c:512, c:64, unroll r0:1, vector c:16",
         "unroll r0:1: rows that go together are not shared; use a serial loop"),
        (norm, "parallel r0:16, c:16, vector r0:16",
         "vector r0:16: rows do not lie along vectors; use a serial loop"),
        (op.softmax, "c:64, vector c:16; stage left at 0",
         "c:64, vector c:16; stage left at 0: only the factors of a contraction are staged"),
        (op.softmax, "c:64", "c:64: columns lie along vectors; end with vector c:16"),
        (op.softmax, "c:8", "c:8: columns lie along vectors; use a multiple of 16"),
        (op.softmax, "c:2048, vector c:16",
         "c:2048: a block of registers has at most 1024 elements; split the loop"),
        (op.softmax, "c:64, c:32, c:16, vector c:16",
         "c:64, c:32, c:16, vector c:16: columns have at most two serial loops; fuse some"),
        (op.softmax, "c:64, unroll c:32, vector c:16",
         "unroll c:32: columns lie along vectors; use a serial loop of a larger step"),
        (op.softmax, "unroll l:9, vector c:16",
         "unroll l:9: leaves are folded side by side; use unroll l:1 to unroll l:8"),
        (op.softmax, "parallel c:1536, c:64, vector c:16",
         "parallel c:1536: a fold is shared by subtrees of leaves; use 512 times a power of two"),
        (columns, "k:512, c:64, vector c:16",
         "k:512: columns are folded leaf by leaf; leave this loop out or share it"),
        (op.exp, "parallel r0:1", "parallel r0:1: there is no axis r0 to loop over; the kernel has c"),
    ],
)  # fmt: skip
def test_a_nest_that_a_kernel_cannot_have_is_refused(
    f: Callable[..., Any], nest: str, message: str
) -> None:
    p = program(f, *SHAPES[f])
    (kernel,) = p.steps
    assert isinstance(kernel, Kernel)
    with pytest.raises(ScheduleError) as e:
        check_nest(kernel, parse_nest(nest))
    assert e.value.message == f"kernel {kernel.name}: {message}"
    with pytest.raises(VerifyError):
        verify(replace(p, steps=(replace(kernel, nest=parse_nest(nest)),)))
    with pytest.raises(ScheduleError):
        to_tile(kernel, {n: b.type for n, b in p.buffers.items()}, parse_nest(nest))


@pytest.mark.parametrize("f", SHAPES)
def test_the_text_of_a_kernel_names_its_nest_and_reads_back(f: Callable[..., Any]) -> None:
    p = program(f, *SHAPES[f])
    (kernel,) = p.steps
    assert isinstance(kernel, Kernel)
    assert "nest" not in p.text
    hashes = {p.hash}
    for nest in list(nests(kernel))[:20]:
        q = replace(p, steps=(replace(kernel, nest=nest),))
        verify(q)
        parsed = ts.ir.parse(q.text)
        assert isinstance(parsed, Program)
        assert parsed.text == q.text
        assert parsed.steps == q.steps
        assert f"nest {nest}" in q.readable
        hashes.add(q.hash)
    assert len(hashes) == 1 + min(20, len(list(nests(kernel))))


def test_a_broken_nest_in_a_text_is_refused() -> None:
    p = program(op.exp, (40,))
    (kernel,) = p.steps
    text = replace(p, steps=(replace(kernel, nest=parse_nest(ROWS[15:])),)).text
    with pytest.raises(ts.TesseraError, match="nest: 'c:0x' is no loop"):
        ts.ir.parse(text.replace("c:64", "c:0x"))


# Bits


def drawn(p: Program) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=p.buffers[n].type.shape).astype(np.float32) for n in p.inputs]


STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(1, 9)), min_size=1, max_size=8
)
STARTS = [*SHAPES, several]


def changed(kernel: Kernel, nest: Nest, change: tuple[int, int, int]) -> Nest:
    """A nest after a primitive, or before it where it is refused."""
    which, loop, n = change
    axes = sorted({x.axis for x in nest.loops})
    axis = axes[loop % len(axes)]
    other = [*range(len(nest.loops))]
    if other:
        other.insert(n % len(other), other.pop(loop % len(other)))
    try:
        made = [
            lambda: split(nest, loop, n),
            lambda: split(nest, loop, 16 * n),
            lambda: fuse(nest, loop),
            lambda: reorder(nest, other),
            lambda: parallel(nest, loop),
            lambda: serial(nest, loop),
            lambda: unroll(nest, axis, n),
            lambda: vectorize(nest, axis, n),
            lambda: stage(nest, ("left", "right")[n % 2], None if n > 7 else loop),
        ][which]()
    except ScheduleError:
        return nest
    return made if is_legal(kernel, made) else nest


@given(st.sampled_from(STARTS), STEPS)
def test_random_primitives_keep_every_bit(
    f: Callable[..., Any], steps: list[tuple[int, int, int]]
) -> None:
    p = program(f, *SHAPES.get(f, ((9, 600),)))
    kernel = p.steps[-1]
    assert isinstance(kernel, Kernel)
    nest = default_nest(kernel)
    for s in steps:
        nest = changed(kernel, nest, s)
    q = replace(p, steps=(*p.steps[:-1], replace(kernel, nest=nest)))
    verify(q)
    inputs = drawn(p)
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        assert same_bits(run(q, inputs), want), f"{run.__name__} {nest}"


@settings(max_examples=100)
@given(programs(12, LoopSteps), st.integers(0, 1 << 20))
def test_random_programs_have_the_same_bits_by_random_nests(r: RandomProgram, seed: int) -> None:
    p = lower(prepared(r.graph))
    steps = []
    for i, s in enumerate(p.steps):
        if isinstance(s, Kernel):
            found = list(nests(s))
            s = replace(s, nest=found[(seed + 7 * i) % len(found)])
        steps.append(s)
    q = replace(p, steps=tuple(steps))
    verify(q)
    want = by_schedule(p, r.inputs)
    for run in (by_tile, by_llvm):
        got = run(q, r.inputs)
        assert same_bits(got, want), f"{run.__name__}\n{q}\n{r.inputs}\n{got}\n{want}"


# Folds of one leaf and of several, with and without a rest of columns; a batch, and what a row
# leaves for others.
@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (norm, (8, 32)),
        (norm, (2, 4, 100)),
        (norm, (8, 1100)),
        (scores, (4, 70)),
        (scores, (8, 530)),
    ],
)
@pytest.mark.parametrize("height", [2, 4])
def test_rows_that_go_together_have_the_bits_of_rows_alone(f: Any, shape: Any, height: int) -> None:
    p = program(f, shape)
    (kernel,) = p.steps
    assert isinstance(kernel, Kernel)
    *front, last = row_axes(kernel)
    outer = "".join(f"parallel {r}:1, " for r in front)
    nest = parse_nest(f"{outer}parallel {last}:{height}, c:64, unroll {last}:1, vector c:16")
    q = replace(p, steps=(replace(kernel, nest=nest),))
    verify(q)
    inputs = drawn(p)
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        assert same_bits(run(q, inputs), want), run.__name__


def test_short_rows_go_together_if_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "expected_threads", lambda: 2)

    def rows(*shape: int) -> list[int]:
        (kernel,) = program(norm, shape).steps
        assert isinstance(kernel, Kernel)
        return default_nest(kernel).steps(f"r{len(shape) - 2}")

    assert rows(64, 256) == rows(8, 8, 256) == [2, 1]
    assert rows(63, 256) == rows(8, 9, 256) == rows(64, 513) == [1]  # odd numbers, long rows
    assert rows(14, 256) == [1]  # so few that instances are what counts


@pytest.mark.parametrize("f", STARTS)
def test_nests_of_the_space_are_legal_distinct_and_begin_with_the_default(f: Any) -> None:
    kernel = program(f, *SHAPES.get(f, ((9, 600),))).steps[-1]
    assert isinstance(kernel, Kernel)
    found = list(nests(kernel))
    assert found[0] == default_nest(kernel)
    assert len(set(found)) == len(found)
    assert found == list(nests(kernel))
    for nest in found:
        check_nest(kernel, nest)
        assert parse_nest(str(nest)) == nest
