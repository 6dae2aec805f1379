"""Turns: a row of a packed factor is read while the row before it is used, with the same bits."""

import re
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, f64, op
from tessera.core.dtype import DType
from tessera.core.processor import assume
from tessera.core.types import TensorType
from tessera.deploy.targets import PROCESSORS
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.target.cpu.emit import emit
from tessera.ir.tile.cpu.lower import lower as to_tile
from tessera.ir.tile.ir import Builder
from tessera.ir.tile.ir import Kernel as TileKernel
from tests.support.cases.random_graphs import same_bits
from tests.support.runners.levels import by_llvm, by_schedule, by_tile, prepared

FEATURES = frozenset({"avx512f"})


def steps(count: int, dtype: DType = f32, space: str = "private", rows: int = 6) -> TileKernel:
    """Steps of a product whose sums are stored: rows of a times a packed row of b."""
    b = Builder("k")
    columns = 64 * 32 // dtype.bits
    x = b.parameter("x", TensorType(dtype, (rows, count)))
    y = b.parameter("y", TensorType(dtype, (rows, columns)), writable=True)
    packed = b.alloc(dtype, (count, columns), space)
    total = b.full(dtype, (rows, columns), 0)
    for k in range(count):
        left = b.reshape(b.load(x, (0, k), (rows, 1), axes=(0,)), (rows, 1))
        total = b.apply("fma", left, b.load(packed, (k, 0), (1, columns)), total)
    b.store(y, total, (0, 0), (rows, columns))
    return b.finish()


def early(text: str) -> list[int]:
    """How many multiply-adds stand between the load of each vector of a row and its first use."""
    lines = [x for x in text.split("\n") if "load volatile" in x or "@llvm.fma" in x]
    lines = [x for x in lines if not x.startswith("declare")]
    found = []
    for i, x in enumerate(lines):
        if made := re.match(r"\s*(%v\d+) = load volatile", x):
            uses = [j for j in range(i, len(lines)) if re.search(made[1] + r"\b", lines[j][8:])]
            between = lines[i + 1 : next(j for j in uses if "@llvm.fma" in lines[j])]
            found.append(sum("@llvm.fma" in y for y in between))
    return found


def test_two_vectors_of_the_next_row_are_read_early_and_two_when_their_registers_are_free() -> None:
    first, *others = (early(emit(steps(4), FEATURES))[i : i + 4] for i in range(0, 16, 4))
    assert first == [0, 1, 2, 3]
    assert sorted(others[0]) == [5, 5, 13, 24]
    assert others[1:] == others[:1] * 2


def test_blocks_of_f64_have_as_many_registers() -> None:
    first, *others = (early(emit(steps(3, f64), FEATURES))[i : i + 2] for i in range(0, 6, 2))
    assert first == [0, 1]
    assert others == [[12, 2], [12, 2]]


@pytest.mark.parametrize("kernel", [steps(1), steps(4, space="shared"), steps(4, rows=7)])
def test_one_step_other_memory_and_full_registers_make_no_turn(kernel: TileKernel) -> None:
    assert "volatile" not in emit(kernel, FEATURES)


def test_without_vectors_of_512_bits_there_is_no_turn() -> None:
    assert "volatile" not in emit(steps(4), frozenset({"avx2"}))


def test_sums_that_are_used_twice_are_made() -> None:
    b = Builder("k")
    x, y, z = (b.parameter(n, TensorType(f32, (6, 64)), writable=True) for n in "xyz")
    packed = b.alloc(f32, (2, 64))
    totals = [b.full(f32, (6, 64), 0)]
    for k in range(2):
        left = b.reshape(b.load(x, (0, k), (6, 1), axes=(0,)), (6, 1))
        totals.append(b.apply("fma", left, b.load(packed, (k, 0), (1, 64)), totals[-1]))
    b.store(y, totals[1], (0, 0), (6, 64))
    b.store(z, totals[2], (0, 0), (6, 64))
    assert "volatile" not in emit(b.finish(), FEATURES)


def product(dtype: DType, m: int, k: int, n: int) -> tuple[Program, list[Any]]:
    shapes = (m, k), (k, n), (m, n)
    types = [Tensor[*s, dtype] for s in shapes]
    p = lower(prepared(ts.trace(lambda a, b, c: op.tanh(a @ b) + c, *types)))
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=s).astype(f"f{dtype.bits // 8}") for s in shapes]
    return p, inputs


# Whole turns, turns and single steps, several leaves, low blocks at the end.
@pytest.mark.parametrize("sizes", [(12, 16, 64), (23, 44, 128), (31, 530, 70)], ids=str)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_a_product_with_turns_has_the_bits_of_the_levels_before(dtype: DType, sizes: Any) -> None:
    p, inputs = product(dtype, *sizes)
    (step,) = p.steps
    assert isinstance(step, Kernel)
    types = {n: b.type for n, b in p.buffers.items()}
    if sizes[2] % 64 == 0:
        with assume(PROCESSORS["x86-64-v4"]):
            assert "volatile" in emit(to_tile(step, types), FEATURES)
    assert "volatile" not in emit(to_tile(step, types), frozenset())
    want = by_schedule(p, inputs)
    for run in (by_tile, by_llvm):
        assert same_bits(run(p, inputs), want), run.__name__
