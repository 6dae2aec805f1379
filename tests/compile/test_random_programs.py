"""Random whole programs: graph, schedule, tile and machine code agree, on any number of threads.

2,000 programs run in `make test-deep`, 200 of them (those that seeded faults need) in `make test`;
TESSERA_RANDOM_PROGRAMS=20000 makes it that many.  A seed that once failed
stays in random_programs.txt; seeds mean other programs when the generator changes, so what was wrong then
has a test of its own below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, op
from tessera.compile.cpu import bound_program
from tessera.compile.cpu import executable as machine
from tessera.core.dtype import f32
from tessera.ir.schedule.lower import lower
from tests.support.breadth import examples
from tests.support.cases.random_programs import KINDS, program
from tests.support.runners import levels
from tests.support.runners.laws import Broken, check_all

COUNT = int(os.environ.get("TESSERA_RANDOM_PROGRAMS", "2000"))
BATCH = 50
SEEDS = [int(line.split()[0]) for line in
         (Path(__file__).parent / "random_programs.txt").read_text().splitlines()
         if line and not line.startswith("#")]  # fmt: skip


@pytest.fixture(autouse=True)
def small_work_is_shared() -> Iterator[None]:
    """Programs are too small to wake a thread; here they do."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(bound_program, "_QUANTUM", 1)
        yield


@pytest.mark.parametrize("first", range(0, COUNT, BATCH))
def test_all_levels_agree(first: int) -> None:
    check_all([program(seed) for seed in range(first, min(first + BATCH, COUNT))])


def test_seeds_that_failed_once() -> None:
    check_all([program(seed) for seed in SEEDS])


@examples(30)
@given(st.randoms(use_true_random=False))
def test_all_levels_agree_on_what_hypothesis_draws(source: Any) -> None:
    check_all([program(1, source)])


def test_programs_are_many_and_of_every_kind() -> None:
    """What is drawn differs from seed to seed, and repeats for a seed."""
    cases = [program(seed) for seed in range(400)]
    assert len({c.graph.hash for c in cases}) > 390
    assert {c.kind.removeprefix("gradient of ") for c in cases} == set(KINDS)
    assert sum(c.kind.startswith("gradient") for c in cases) > 5
    dtypes = {x.dtype.name for c in cases for x in c.inputs[0]}
    assert dtypes >= {"float32", "float64", "float16", "bfloat16", "bool", "int8", "complex64"}
    sizes = {n for c in cases for x in c.inputs[0] for n in x.shape}
    assert sizes >= {0, 1, 2, 3, 5, 7, 11, 13}
    assert any(len(c.inputs) == 2 for c in cases)
    strides = [s for c in cases for x in c.inputs[0] for s in x.strides]
    assert min(strides) < 0
    assert any(not x.flags.c_contiguous for c in cases for x in c.inputs[0])
    again = program(7)
    assert again.graph.hash == cases[7].graph.hash
    assert all(map(np.array_equal, again.inputs[0], cases[7].inputs[0]))


def test_a_law_that_does_not_hold_is_seen() -> None:
    """Checking is no formality: a result that is off by one unit is refused."""
    c = program(3)
    with pytest.MonkeyPatch.context() as m:
        run = machine.MachineExecutable.run
        m.setattr(machine.MachineExecutable, "run", lambda e, xs: [_moved(y) for y in run(e, xs)])
        with pytest.raises(Broken, match="machine code, 1 threads differs from schedule"):
            check_all([c])


def _moved(y: Any) -> Any:
    return np.nextafter(y, np.inf).astype(y.dtype) if y.dtype.kind == "f" else y ^ 1


# What was found --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes", [((11, 5), (5, 0)), ((2, 11, 5), (2, 5, 0)), ((0, 5), (5, 4))], ids=str
)
def test_products_without_columns_or_rows_touch_no_memory(shapes: Any) -> None:
    g = levels.prepared(ts.trace(lambda a, b: op.tanh(a @ b), *(Tensor[(*s, f32)] for s in shapes)))
    xs = [np.ones(s, np.float32) for s in shapes]
    (got,) = levels.by_tile(lower(g), xs)
    assert got.shape == (xs[0] @ xs[1]).shape


# More than 2^31 bytes in one tensor ------------------------------------------------------------

LARGE = (1 << 31) + 4097


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


needs_memory = pytest.mark.skipif(
    _free_bytes() < 8 << 30,
    reason=f"needs 8 GiB of free memory, there are {_free_bytes() >> 20} MiB",
)


@needs_memory
def test_more_than_2_to_the_31_elements() -> None:
    """Sums, sums of pairs and gathers at the far end, where 32-bit indices would have wrapped."""
    x = np.zeros(LARGE, np.uint8)
    x[[0, 5, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, LARGE - 1]] = (1, 2, 3, 4, 5, 6)
    places = np.array([0, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, LARGE - 1, LARGE - 2])

    def f(x: Any, places: Any) -> Any:
        return op.sum(op.cast(x, ts.i64)), op.take(x, places), x[LARGE - 5 :] + 1

    total, picked, end = ts.jit(f, target="cpu")(ts.tensor(x), ts.tensor(places))
    assert int(total.numpy()) == 21
    np.testing.assert_array_equal(picked.numpy(), [1, 3, 4, 5, 6, 0])
    np.testing.assert_array_equal(end.numpy(), [1, 1, 1, 1, 7])


@pytest.mark.deep
@needs_memory
def test_a_result_of_more_than_2_to_the_31_bytes() -> None:
    """f32 in two axes: rows beyond 2^31 bytes are read and written where they belong."""
    rows, columns = (1 << 18) + 3, 2049
    x = np.zeros((rows, columns), np.float32)
    x[-1], x[-2, 7], x[0, 0] = np.arange(columns), 3.0, 9.0
    y = ts.jit(lambda v: v + 1.0, target="cpu")(ts.tensor(x)).numpy()
    np.testing.assert_array_equal(y[-1], x[-1] + 1)
    np.testing.assert_array_equal(y[[0, -2], [0, 7]], [10.0, 4.0])
    del y
    sums = ts.jit(lambda v: op.sum(v, 1), target="cpu")(ts.tensor(x)).numpy()
    assert sums[-1] == x[-1].sum(dtype=np.float64)
    np.testing.assert_array_equal(sums[[0, 1, -2]], [9.0, 0.0, 3.0])
