"""Blocks of contractions: packed factors, lower blocks at the end, lines asked for and stored past the
caches.
"""

from collections import defaultdict
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core import processor
from tessera.core.dims import symbol
from tessera.core.flags import override
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests import choose
from tessera.ir.schedule.nests.blocks import has_room
from tessera.ir.schedule.nests.choose import default_nest
from tessera.ir.schedule.nests.nest import NestLoop, parse_nest
from tessera.ir.tile.cpu.gemm import prefetch
from tessera.ir.tile.cpu.gemm.nest_cursor import copied, copies_rows
from tessera.ir.tile.cpu.lower import lower as to_tile
from tessera.ir.tile.cpu.passes.nontemporal_stores import bypass_several
from tessera.ir.tile.interp import Instance, interpret
from tessera.ir.tile.ir import Operation, walk
from tests.support.cases.random_graphs import same_bits
from tests.support.runners.levels import by_llvm, by_schedule, by_tile, prepared


def turned(a: Any, b: Any) -> Any:
    return op.transpose(a) @ b


def two(a: Any, b: Any) -> Any:
    c = op.transpose(a) @ b
    return op.exp(c), c + 1.0


def program(f: Any, m: int, n: int, k: int) -> Program:
    return lower(prepared(ts.trace(f, Tensor[k, m, f32], Tensor[k, n, f32])))


def drawn(p: Program) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=p.buffers[n].type.shape).astype(np.float32) for n in p.inputs]


# Rows that end with blocks of 4, 2 and 1; packed as they lie (few panels, or short sums) and in blocks.
SIZES = [(64, 64, 40), (10, 30, 20), (97, 50, 140), (101, 200, 130), (63, 200, 513)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_left_factor_across_k_gives_the_same_bits_however_it_is_packed(sizes: Any) -> None:
    p = program(turned, *sizes)
    inputs = drawn(p)
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        assert same_bits(run(p, inputs), want), run.__name__


# Sums of 2 to 4 leaves, the last of them short or whole, which a block finishes one after another.
@pytest.mark.parametrize("sizes", [(50, 64, 513), (55, 70, 1024), (49, 20, 1540)], ids=str)
def test_a_block_that_finishes_all_leaves_of_its_sums_gives_the_same_bits(sizes: Any) -> None:
    m, n, k = sizes
    f = lambda a, b, c: op.exp(a @ b * 0.01) + c  # noqa: E731
    p = lower(prepared(ts.trace(f, Tensor[m, k, f32], Tensor[k, n, f32], Tensor[m, n, f32])))
    (step,) = p.steps
    assert isinstance(step, Kernel)
    if has_room():  # leaves stand inside the rows of a block
        assert [x.step for x in default_nest(step).loops if x.axis == "k"] == [512, 1]
        assert default_nest(step).loops[-4] == NestLoop("k", 512)
    inputs = drawn(p)
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        assert same_bits(run(p, inputs), want), run.__name__


# A sum of one leaf, and more panels than instances want: rows and columns end with parts of a block.
@pytest.mark.parametrize("sizes", [(101, 600, 40), (55, 530, 512)], ids=str)
def test_a_few_rows_go_through_all_panels_of_an_instance(
    sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "expected_threads", lambda: 1)
    m, n, k = sizes
    p = lower(prepared(ts.trace(lambda a, b: op.exp(a @ b), Tensor[m, k, f32], Tensor[k, n, f32])))
    (step,) = (s for s in p.steps if isinstance(s, Kernel))
    nest = default_nest(step)
    assert [x.axis for x in nest.loops] == list("mnkmnkmn"), nest
    assert nest.staged == (("right", 3),)
    (wide,), (_, panel, _) = nest.steps("n", "parallel"), nest.steps("n")
    assert wide > panel
    inputs = drawn(p)
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        assert same_bits(run(p, inputs), want), run.__name__


# Sums of two leaves: panels are two if the second cache has room, and if there are instances enough.
@pytest.mark.parametrize(
    ("near", "threads", "panels"), [(2 << 20, 1, 2), (1 << 20, 1, 1), (2 << 20, 4, 1)]
)
def test_a_few_rows_go_through_two_panels_of_longer_sums(
    near: int, threads: int, panels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "near_bytes", lambda: near)
    monkeypatch.setattr(choose, "expected_threads", lambda: threads)
    monkeypatch.setattr(choose, "block", lambda _: (6, 64))
    monkeypatch.setattr(choose, "first_bytes", lambda: 3 << 14)
    monkeypatch.setattr(choose, "has_room", lambda: True)
    nest = default_nest(kernel_of_product(100, 1024, 8 * 64))
    assert nest.steps("n", "parallel") == [panels * 64]
    assert [x.axis for x in nest.loops] == list("mnmnkkmn" if panels > 1 else "mnnmkkmn"), nest
    assert nest.staged == (("right", 2 if panels > 1 else 3),)


@pytest.mark.parametrize("sizes", [(50, 130, 1024), (55, 130, 700)], ids=str)
def test_two_panels_give_the_same_bits(sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "near_bytes", lambda: 64 << 20)
    monkeypatch.setattr(choose, "expected_threads", lambda: 1)
    monkeypatch.setattr(choose, "_EACH", 1)
    m, n, k = sizes
    f = lambda a, b, c: op.exp(a @ b * 0.01) + c  # noqa: E731
    p = lower(prepared(ts.trace(f, Tensor[m, k, f32], Tensor[k, n, f32], Tensor[m, n, f32])))
    (step,) = (s for s in p.steps if isinstance(s, Kernel))
    if has_room():
        assert default_nest(step).staged == (("right", 2),)
    inputs = drawn(p)
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        assert same_bits(run(p, inputs), want), run.__name__


# A block of 8 by 48 reads less of a panel for each row; 1024 columns would be 1056 of its own.
@pytest.mark.parametrize(
    ("first", "n", "block"),
    [(1 << 15, 2048, (8, 48)), (1 << 15, 1024, (6, 64)), (3 << 14, 2048, (6, 64)), (3 << 14, 96, (8, 48))],
)  # fmt: skip
def test_a_small_first_cache_has_blocks_that_read_less(
    first: int, n: int, block: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "first_bytes", lambda: first)
    monkeypatch.setattr(choose, "block", lambda _: (6, 64))
    nest = default_nest(kernel_of_product(1000, 512, n))
    assert (nest.steps("m")[-2], nest.steps("n")[-2]) == block


def test_packed_rows_are_whole_vectors_of_whole_blocks_or_hold_all_points() -> None:
    assert [copied(w, 500) for w in (4, 6, 8, 12, 16, 64)] == [4, 48, 8, 48, 16, 64]
    assert [copied(6, n) for n in (1, 60, 64, 96, 97)] == [16, 64, 64, 96, 48]
    assert copies_rows(512, 1)
    assert copies_rows(128, 8)
    assert not copies_rows(512, 8)


def test_every_element_of_a_block_is_asked_for_while_its_sum_goes_on() -> None:
    for height in range(1, 15):
        for turns in (1, 3, 8, 64, symbol("K")):
            p = prefetch.pieces(height, 64, turns)
            known = turns if isinstance(turns, int) else height
            asked = {p.number(t) for t in range(known)}
            assert asked == set(range(p.count))
            assert p.rows * p.across * p.columns * p.count // p.across >= height * 64
    assert [prefetch.pieces(6, 64, t) for t in (64, 8, 2)] == [
        prefetch.Pieces(1, 16, 4, 24, 2),
        prefetch.Pieces(1, 64, 1, 6, 1),
        prefetch.Pieces(3, 64, 1, 2, 1),
    ]


def test_turns_are_shared_out_evenly_and_leave_some_for_every_row() -> None:
    for height in range(1, 15):
        for turns in (1, 3, 8, 12, 64, 512):
            across = prefetch.turns_of_row(height, 64, [turns])
            assert turns % across == 0
            assert 64 % across == 0
            assert across == 1 or turns // across >= height
    assert [prefetch.turns_of_row(6, 64, [t]) for t in (512, 64, 32, 16, 8, 24, 48)] == [
        64, 8, 4, 2, 1, 4, 8,
    ]  # fmt: skip
    assert prefetch.turns_of_row(6, 64, []) == 1
    assert prefetch.turns_of_row(6, 64, [64, 32]) == 4


@pytest.mark.skipif(not has_room(), reason="blocks of 6 by 64 need 32 vector registers")
@pytest.mark.parametrize(
    ("k", "loops"),
    [(512, "k:512, n:64, m:6"), (1024, "n:64, m:6, k:512"), (768, "n:64, m:6, k:512")],
)
def test_a_product_asks_for_its_result_and_for_the_first_lines_of_the_rows_that_follow(
    k: int, loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    m, asked = 30, defaultdict[str, set[tuple[int, int]]](set)

    def note(self: Instance, x: Operation) -> list[Any]:
        assert x.memory is not None
        row, column = (self.number(i) for i in x.attributes["at"])
        asked[x.memory.name] |= {
            (row, c // 16) for c in (column, column + x.attributes["extent"][1] - 1)
        }
        return []

    monkeypatch.setattr(Instance, "_prefetch", note)
    p = lower(prepared(ts.trace(lambda a, b: a @ b, Tensor[m, k, f32], Tensor[k, 64, f32])))
    (step,) = p.steps
    assert isinstance(step, Kernel)
    staged = loops.split(", ").index("m:6") + 2
    nest = f"parallel m:30, parallel n:64, {loops}, k:1, unroll m:1, vector n:16; stage right at {staged}"
    kernel = to_tile(step, {n: b.type for n, b in p.buffers.items()}, parse_nest(nest))
    interpret(kernel, [*drawn(p), np.zeros((m, 64), np.float32)])
    lines = range(4)
    assert asked[p.outputs[0]] == {(i, j) for i in range(m) for j in lines}
    # The first block packs the right factor, and asks for that; the last one for what lies past the end.
    assert asked[p.inputs[0]] == {(i, j) for i in range(12, m + 6) for j in lines}


def test_several_large_results_of_a_product_go_past_the_caches_and_are_not_asked_for() -> None:
    p = program(two, 12, 64, 200)
    (step,) = p.steps
    assert isinstance(step, Kernel)
    types = {n: b.type for n, b in p.buffers.items()}
    kernel = to_tile(step, types)
    large = bypass_several(kernel, step.outputs, least=0)
    assert bypass_several(kernel, step.outputs[:1], least=0) is kernel  # one alone stays
    assert bypass_several(kernel, step.outputs, least=1 << 20) is kernel  # they are small
    marks = [x.attributes["bypass"] for x in walk(large.body) if "bypass" in x.attributes]
    asked = {x.memory.name for x in walk(large.body) if x.name == "prefetch" and x.memory}
    before = {x.memory.name for x in walk(kernel.body) if x.name == "prefetch" and x.memory}
    assert marks
    assert before - asked == set(step.outputs)
    arrays = [drawn(p), drawn(p)]
    for made, k in zip(arrays, (kernel, large), strict=True):
        made += [np.zeros((12, 64), np.float32) for _ in step.outputs]
        interpret(k, made)
    assert same_bits(arrays[0], arrays[1])


def test_results_that_may_take_the_place_of_operands_stay_in_the_caches() -> None:
    f = lambda a, b, c, d: (a @ b + c, a @ b * 2.0 + d)  # noqa: E731
    square = Tensor[64, 64, f32]
    p = lower(prepared(ts.trace(f, square, square, square, square)))
    (step,) = p.steps
    assert isinstance(step, Kernel)
    kernel = to_tile(step, {n: b.type for n, b in p.buffers.items()})
    assert bypass_several(kernel, step.outputs, least=0) is kernel


def kernel_of_product(m: int, k: int, n: int) -> Kernel:
    (step,) = lower(
        prepared(ts.trace(lambda a, b: a @ b, Tensor[m, k, f32], Tensor[k, n, f32]))
    ).steps
    assert isinstance(step, Kernel)
    return step


@pytest.mark.parametrize(
    ("cores", "n", "run"),
    [(1, 4096, 1024), (2, 4096, 1024), (16, 4096, 256), (64, 4096, 64), (2, 1024, 256)],
)
def test_a_row_reads_long_runs_also_where_cores_are_many(
    cores: int, n: int, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "expected_threads", lambda: cores)
    assert default_nest(kernel_of_product(1, 4096, n)).steps("n", "parallel") == [run]


@pytest.mark.parametrize(("threads", "run"), [(0, 256), (1, 1024), (100, 256)])
def test_loops_are_chosen_for_the_threads_that_flags_ask_for(
    threads: int, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "cores", lambda: 16)
    with override(threads=threads):
        nest = default_nest(kernel_of_product(1, 4096, 4096))
    assert nest.steps("n", "parallel") == [run]


# Rows of an instance: half of what they were if there were fewer than six instances for each core,
# down to 516;
# less only if there were fewer than four.
@pytest.mark.parametrize(
    ("cores", "m", "rows"), [(2, 2048, 1026), (16, 2048, 516), (16, 1024, 258), (16, 8192, 1026)]
)
def test_tall_instances_are_halved_where_cores_would_wait(
    cores: int, m: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "expected_threads", lambda: cores)
    monkeypatch.setattr(choose, "block", lambda _: (6, 64))
    monkeypatch.setattr(choose, "first_bytes", lambda: 3 << 14)
    monkeypatch.setattr(choose, "has_room", lambda: True)
    kernel = kernel_of_product(m, 1024, min(m, 2048))
    assert default_nest(kernel).steps("m", "parallel") == [rows]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_a_factor_may_be_the_same_in_every_column(dtype: str) -> None:
    d = getattr(ts, dtype)

    def f(x: Any, y: Any, z: Any) -> Any:
        return op.matmul(y, op.broadcast_to(x[:, None], (x.shape[0], z.shape[0])))

    r = np.random.default_rng(0)
    x, y, z = (ts.tensor(r.integers(-3, 4, s), dtype=d) for s in ((33,), (7, 33), (40,)))
    want = np.broadcast_to(np.asarray(y, np.float64) @ np.asarray(x, np.float64)[:, None], (7, 40))
    typed = {"x": Tensor["K", d], "y": Tensor["M", "K", d], "z": Tensor["N", d]}
    for annotations in ({}, typed):
        g = FunctionType(f.__code__, f.__globals__)
        g.__annotations__ = annotations
        np.testing.assert_array_equal(ts.jit(g)(x, y, z).numpy().astype(np.float64), want)
