"""Kernels that touch nothing of each other's run side by side, and no result shows it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import tessera as ts
from tessera import op
from tessera.compile.cpu import bound_program
from tessera.compile.cpu.bound_program import Prepared
from tessera.compile.cpu.executable import executable
from tessera.core.flags import override
from tessera.ir.schedule.lower import lower
from tessera.runtime.kernel import cells_of
from tessera.runtime.pool import Job, Pool, Series
from tests.runtime.test_pool import cache, visit  # noqa: F401
from tests.support.cases.random_graphs import LoopSteps, programs, same_bits
from tests.support.cases.random_graphs import Program as RandomProgram
from tests.support.runners import levels


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("futex", [True, False], ids=["futex", "naps"])
def test_every_instance_of_every_job_runs_once(visit: int, n: int, futex: bool) -> None:  # noqa: F811
    rng, pool = np.random.default_rng(n), Pool(futex)
    for _ in range(60):
        phases, arrays, cells = [], [], []
        for length in rng.integers(1, 6, 4):
            phase = []
            for count in map(int, rng.integers(1, 300, length)):
                job = Job(visit, [3], count, n, scratch=64, grain=int(rng.integers(1, 400)))
                arrays.append((np.zeros(count, np.int32), np.zeros(count, np.uint64)))
                phase.append((job, [(len(cells), 0), (len(cells) + 1, 0)]))
                cells += arrays[-1]
            phases.append(phase)
        series = Series(phases, n)
        assert series.phases == [len(p) for p in phases]
        assert series.seats < n
        assert pool.run_series(series, struct.pack(f"{len(cells)}P", *cells_of(cells))) == 0
        for times, seen in arrays:
            assert (times == 1).all()
            assert seen.all(), "two jobs used one scratch at once"
    pool.stop()


def test_jobs_too_small_for_a_thread_share_threads(visit: int) -> None:  # noqa: F811
    small = [(Job(visit, [0], 10, 4, grain=12), [(0, 0), (1, 0)]) for _ in range(4)]
    assert [job.seats for job, _ in small] == [0, 0, 0, 0]
    assert Series([small], 4).seats == 2
    assert Series([[t] for t in small], 4).seats == 0
    assert Series([small], 2).seats == 1


def phases(f: Any, *xs: Any) -> list[int]:
    """How many kernels run side by side in each phase of the first run of kernels."""
    made = ts.jit(f, target="cpu").lower(*xs)._machine("phases")
    return next(s.phases for s in made.at({})._segments if isinstance(s, Series))


X, W = (ts.tensor(np.random.default_rng(0).normal(size=(24, 24)).astype("f")) for _ in range(2))


def test_products_of_one_factor_run_side_by_side() -> None:
    assert phases(lambda x, w: (x @ w, x @ w.T, x.T @ w), X, W) == [3]
    assert phases(lambda x, w: (x @ w) @ w, X, W) == [1, 1]


def test_what_is_written_where_an_argument_was_waits() -> None:
    def f(x: Any, w: Any) -> Any:
        return op.sum(w) + x @ w, op.exp(x)

    want = [y.numpy() for y in ts.jit(f, target="cpu")(X, W)]
    donating = ts.jit(f, target="cpu", donate=("x",))
    for _ in range(3):
        assert same_bits([y.numpy() for y in donating(ts.tensor(X.numpy().copy()), W)], want)


@given(programs(12, LoopSteps))
def test_side_by_side_and_one_by_one_give_the_same_bits(r: RandomProgram) -> None:
    g = levels.prepared(r.graph)
    with override(threads=3), pytest.MonkeyPatch.context() as m:
        m.setattr(bound_program, "_QUANTUM", 1)
        together = executable(g, ()).run(r.inputs)
        m.setattr(bound_program, "_MOST_TOGETHER", 1)
        assert same_bits(executable(g, ()).run(r.inputs), together)
    assert same_bits(levels.by_schedule(lower(g), r.inputs), together)


def test_no_phase_reads_or_writes_what_another_of_its_kernels_writes() -> None:
    seen: list[int] = []
    kept = Prepared._phases

    def checked(self: Prepared, calls: Any) -> Any:
        out = kept(self, calls)
        accesses = iter(calls)
        for phase in out:
            members = [next(accesses)[0] for _ in phase]
            seen.append(len(members))
            for i, a in enumerate(members):
                for b in members[i + 1 :]:
                    for x in a.writes:
                        for y in (*b.reads, *b.writes):
                            assert not overlap(self, x, y)
                    for x in a.reads:
                        for y in b.writes:
                            assert not overlap(self, x, y)
        return out

    def layer(x: Any, w: Any) -> Any:
        h = op.softmax(x @ w) @ w.T
        return op.layernorm(h) + x, op.sum(h, 0), x.T @ h

    with pytest.MonkeyPatch.context() as m:
        m.setattr(Prepared, "_phases", checked)
        ts.jit(ts.grad(lambda x, w: sum(op.sum(op.sin(y)) for y in layer(x, w))), target="cpu")(
            X, W
        )
    assert max(seen) > 1


def overlap(p: Prepared, x: str, y: str) -> bool:
    (cell, begin), (other, start) = p.place(x), p.place(y)
    sizes = [
        int(np.prod(p.types[n].shape)) * np.dtype(p.types[n].dtype.np).itemsize for n in (x, y)
    ]
    inputs = len(p.image.inputs)
    if cell < inputs and other < inputs:
        return True
    return cell == other and begin < start + sizes[1] and start < begin + sizes[0]
