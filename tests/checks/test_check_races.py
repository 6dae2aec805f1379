"""races and barriers: instances and threads that get in each other's way are found, others are not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.checks.barriers import check_barriers
from tessera.checks.concrete import arrays_for, instances, run_instance
from tessera.checks.races import check_races, touched_places
from tessera.core.dims import symbol
from tessera.core.dtype import f32, i64
from tessera.core.source import Location
from tessera.ir.tile.interp import Instance, interpret, sizes_of
from tessera.ir.tile.ir import Builder, Kernel, Operation, walk
from tests.support.breadth import examples
from tests.support.cases.check_kernels import (
    GLOBAL,
    SHARED,
    M,
    N,
    changed,
    doubled,
    pipelined,
    race_mutants,
    staged,
    start,
    tensor,
)
from tests.support.cases.tile_kernels import Program, programs

# Instances ----------------------------------------------------------------------------------------


def truth(kernel: Kernel) -> bool:
    """Whether no two instances share an element that one of them writes, at some sizes."""
    return all(apart(kernel, dict.fromkeys(kernel.sizes, n)) for n in (1, 3, 9, 17))


def apart(kernel: Kernel, sizes: dict[str, int]) -> bool:
    log = _Log(kernel)
    for log.number, instance in enumerate(instances(kernel, sizes, 1000)):
        arrays = arrays_for(kernel, sizes)
        assert arrays is not None
        run_instance(kernel, sizes, instance, arrays, log)
    return not any(w == -1 or log.read.get(k, {w}) != {w} for k, w in log.wrote.items())


class _Log:
    """Who wrote and read each element."""

    def __init__(self, kernel: Kernel):
        self.kernel, self.number = kernel, 0
        self.wrote: dict[Any, int] = {}
        self.read: dict[Any, set[int]] = {}

    def __call__(self, op: Operation, i: Instance, _: Any) -> None:
        if op.memory not in self.kernel.parameters or not (op.traits.reads or op.traits.writes):
            return
        for place in zip(*(p.reshape(-1).tolist() for p in touched_places(op, i)), strict=True):
            key = (op.memory, place)
            if op.traits.reads:
                self.read.setdefault(key, set()).add(self.number)
            elif self.wrote.setdefault(key, self.number) != self.number:
                self.wrote[key] = -1


@pytest.mark.parametrize("make", GLOBAL, ids=lambda f: f.__name__)
def test_correct_kernels_are_proved(make: Callable[[], Kernel]) -> None:
    v = check_races(make())
    assert v.is_proof, v
    assert v.proved


def test_every_mutant_whose_instances_meet_is_found() -> None:
    faulty = harmless = 0
    for make in GLOBAL:
        for name, mutant in race_mutants(make()):
            v, fine = check_races(mutant), truth(mutant)
            if fine:
                harmless += 1
                assert v.ok, (make.__name__, name, v)
            else:
                faulty += 1
                assert v.findings, (make.__name__, name, v)
                assert all(f.confirmed for f in v.findings), v
    assert faulty >= 50
    assert harmless >= 10


def test_a_race_names_both_instances_and_the_element() -> None:
    b = Builder("total", Location("user.py", 9))
    x, y = b.parameter("x", tensor(N)), b.parameter("y", tensor(1), writable=True)
    p = b.program(N)
    b.store(y, b.load(x, (p,), (1,)), (0,), (1,))
    (found,) = check_races(b.finish()).findings
    assert found.message == "two instances write element [0] of global y: f32[1] (store, store)"
    assert found.witness == {"N": 2, "instances": [(0,), (1,)], "element": [0]}
    assert found.location == Location("user.py", 9)
    assert "a second kernel that joins them" in found.suggestion
    assert found.confirmed


def test_reading_what_another_instance_writes_is_a_race() -> None:
    b, y = start("shift", y=tensor(N + 1))
    p = b.program(N)
    b.store(y, b.load(y, (p + 1,), (1,)), (p,), (1,))
    (found,) = check_races(b.finish()).findings
    assert "write and read element" in found.message


def test_scattered_stores_are_run() -> None:
    b, i, y = start("scatter", i=tensor(N, dtype=i64), y=tensor(4))
    p = b.program(N)
    place = b.apply("mod", b.load(i, (p,), (1,)), b.full(i64, (1,), 4))
    b.scatter(y, b.full(f32, (1,), 1), {0: place}, (0,), (1,), (), (0,))
    kernel = b.finish()
    assert not check_races(kernel, {"N": 9}).ok
    apart = [np.arange(4), np.zeros(4, np.float32)]
    v = check_races(kernel, {"N": 4}, apart)
    assert v.ok
    assert not v.is_proof


@examples(60)
@given(programs(), st.integers(0, 1 << 16))
def test_a_proof_holds_on_random_kernels(p: Program, seed: int) -> None:
    """Kernels as they are, and with stores that forget a grid variable or reach back."""
    sizes = sizes_of(p.kernel, p.arrays)
    mutants = [k for _, k in race_mutants(p.kernel)]
    for kernel in [p.kernel, *Random(seed).sample(mutants, min(2, len(mutants)))]:
        v = check_races(kernel)
        assert apart(kernel, sizes) or not v.is_proof
        if kernel is p.kernel:
            assert v.ok


# Threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARED)
def test_kernels_with_their_barriers_are_proved(name: str) -> None:
    v = check_barriers(SHARED[name][0]())
    assert v.is_proof, v


def test_asynchronous_stores_that_are_waited_for_are_right() -> None:
    assert check_barriers(pipelined(pending=0)).is_proof
    v = check_barriers(pipelined(pending=1))
    assert v.ok, v
    assert check_barriers(pipelined(stages=4)).ok


def faults() -> dict[str, Kernel]:
    """Kernels with one thing missing or changed."""
    out = {
        f"{name} without barrier {i}": make(i)
        for name, (make, count) in SHARED.items()
        for i in range(count)
    }
    out |= {
        "no wait": pipelined("wait"),
        "no barrier": pipelined("barrier"),
        "waits for too few": pipelined(pending=2),
        "waits for none": pipelined(pending=9),
        "two stages": pipelined(stages=2),
        "two stages, waits for all": pipelined(stages=2, pending=0),
    }
    v = symbol("_i2")
    for what, slot in (("one buffer", 0), ("the other buffer", (v + 1) % 2), ("half", v // 2 % 2)):
        k = doubled()
        load = [op for op in walk(k.body) if op.name == "load"][-1]
        out[f"reads {what}"] = changed(k, load, at=(slot, 0, 0))
    for what, slot in (("one buffer", 0), ("the same buffer", v % 2), ("three ahead", (v + 2) % 2)):
        k = doubled()
        store = [op for op in walk(k.body) if op.name == "store"][1]
        out[f"fills {what}"] = changed(k, store, at=(slot, 0, 0))
    return out


FAULTS = faults()


@pytest.mark.parametrize("name", FAULTS)
def test_a_missing_barrier_is_found(name: str) -> None:
    v = check_barriers(FAULTS[name])
    assert v.findings, v
    assert all(f.confirmed for f in v.findings)
    assert all("barrier()" in f.suggestion for f in v.findings)


def test_there_are_many_faults() -> None:
    assert len(FAULTS) >= 25


def test_a_missing_barrier_has_its_place_and_element() -> None:
    found = check_barriers(staged(0)).findings[0]
    assert found.message == (
        "store and then load of element [0, 0] of shared s1: f32[8,4] with no barrier between"
    )
    assert found.suggestion == "barrier() before the load"
    assert found.witness == {"K": 1, "M": 1, "N": 1, "instance": (0, 0), "element": [0, 0]}
    waits = check_barriers(pipelined("wait")).findings[0]
    assert "before a wait" in waits.message
    assert waits.suggestion == "wait() and then barrier() before the load"


def test_private_memory_needs_no_barrier() -> None:
    b, x, y = start("private", x=tensor(M, 8), y=tensor(M, 8))
    p = b.program(M)
    s = b.alloc(f32, (8,))
    b.store(s, b.load(x, (p, 0), (1, 8), axes=(1,)), (0,), (8,))
    b.store(y, b.load(s, (0,), (8,)), (p, 0), (1, 8), axes=(1,))
    v = check_barriers(b.finish())
    assert v.note == "no shared memory"
    assert v.is_proof


def test_the_interpreter_delays_asynchronous_stores() -> None:
    """A tile is there after the wait that covers it, not before."""
    b, x, y = start("delay", x=tensor(8), y=tensor(2, 8))
    s = b.alloc(f32, (8,), "shared")
    b.store(s, b.full(f32, (8,), 7), (0,), (8,))
    b.store_async(s, b.load(x, (0,), (8,)), (0,), (8,))
    b.store(y, b.load(s, (0,), (8,)), (0, 0), (1, 8), axes=(1,))
    b.wait()
    b.store(y, b.load(s, (0,), (8,)), (1, 0), (1, 8), axes=(1,))
    out = np.zeros((2, 8), np.float32)
    interpret(b.finish(), [np.arange(8, dtype=np.float32), out])
    np.testing.assert_array_equal(out, [[7] * 8, range(8)])
