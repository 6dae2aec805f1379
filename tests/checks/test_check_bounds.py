"""bounds: a proof is never wrong, every fault is found, and nothing is said of correct kernels."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.checks import concrete
from tessera.checks.bounds import check_bounds
from tessera.checks.concrete import arrays_for
from tessera.core.dims import Size, larger, smaller, substitute, symbol
from tessera.core.dtype import f32, i64
from tessera.core.errors import VerifyError
from tessera.core.prove import prove, refute
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, Kernel
from tests.support.breadth import examples
from tests.support.cases.check_kernels import (
    GLOBAL,
    SHARED,
    N,
    bound_mutants,
    copy,
    pipelined,
    tensor,
)
from tests.support.cases.tile_kernels import Program, programs

SIZES = (1, 4, 8, 9, 17)

# Proofs -----------------------------------------------------------------------------------------

A, B, P, Q = symbol("A"), symbol("B"), symbol("_p"), symbol("_q")


def expressions(random: Random, depth: int) -> Size:
    """A random size."""
    if depth == 0:
        return random.choice([A, B, P, Q, P, Q, random.randint(-3, 5)])
    a, b = expressions(random, depth - 1), expressions(random, depth - 1)
    k = random.randint(1, 4)
    return random.choice(
        [a + b, a - b, a * k, a // k, a % k, smaller(a, b), larger(a, b), a * A, a + k * b]
    )


def test_what_is_proved_holds_everywhere() -> None:
    """Random facts: no numbers satisfy what is refuted."""
    random, refuted = Random(0), 0
    values = product((1, 2, 3, 5), (1, 2, 4), (0, 1, 2, 5), (0, 1, 3))
    points = [dict(zip(("A", "B", "_p", "_q"), v, strict=True)) for v in values]
    for _ in range(3000):
        facts = [expressions(random, random.randint(0, 2)) for _ in range(random.randint(1, 4))]
        if refute(facts):
            refuted += 1
            for env in points:
                assert not all(int(substitute(f, env)) >= 0 for f in facts), (facts, env)
    assert refuted > 200


@pytest.mark.parametrize(
    ("facts", "e"),
    [
        ([(A + 3) // 4 - 1 - P], A - 1 - 4 * P),
        ([A // 4 - 1 - P], A - 4 - 4 * P),
        ([A * B - 1 - P], A - 1 - P // B),
        ([A * B - 1 - P], B - 1 - P % B),
        ([smaller(A, 512) - 1 - P], A - 1 - P),
        ([A - 1 - 512 * P], smaller(A - 512 * P, 512) - 1),
        ([A // 16 * 16 - 1 - 16 * P], A - 16 - 16 * P),
        ([larger(A - 3, 0) - 1 - P], A - 4 - P),
        ([A - 1 - P, B - 1 - Q], A * B - 1 - (P * B + Q)),
    ],
    ids=map(str, range(9)),
)
def test_positions_of_kernels_are_proved(facts: list[Size], e: Size) -> None:
    assert prove(facts, e)
    assert not prove(facts, e - 1000)


# Kernels ----------------------------------------------------------------------------------------


def truth(kernel: Kernel) -> bool:
    """Whether the interpreter accepts every access, at some sizes."""
    for n in SIZES:
        for other in (n, 4):
            sizes = dict.fromkeys(kernel.sizes, n) | dict.fromkeys(kernel.sizes[:1], other)
            arrays = arrays_for(kernel, sizes)
            assert arrays is not None
            try:
                interpret(kernel, arrays, sizes)
            except VerifyError:
                return False
    return True


@pytest.mark.parametrize("make", GLOBAL, ids=lambda f: f.__name__)
def test_correct_kernels_are_proved(make) -> None:
    v = check_bounds(make())
    assert v.is_proof, v
    assert v.proved >= 2


@pytest.mark.parametrize("name", SHARED)
def test_kernels_with_shared_memory_are_proved(name: str) -> None:
    assert check_bounds(SHARED[name][0]()).is_proof
    assert check_bounds(pipelined()).is_proof


def test_every_mutant_that_leaves_its_memory_is_found() -> None:
    faulty = harmless = 0
    for make in GLOBAL:
        accesses = check_bounds(make()).proved
        for name, mutant in bound_mutants(make()):
            v, fine = check_bounds(mutant), truth(mutant)
            # Each access is proved, refuted or open: one of them.
            assert v.proved + len(v.unproved) + len(v.findings) == accesses, (
                make.__name__,
                name,
                v,
            )
            if fine:
                harmless += 1
                assert v.ok, (make.__name__, name, v)
            else:
                faulty += 1
                assert v.findings, (make.__name__, name, v)
                assert all(f.confirmed for f in v.findings), v
    assert faulty >= 75
    assert harmless >= 25


def test_a_finding_has_its_place_a_witness_and_advice() -> None:
    b = Builder("careless", Location("user.py", 7))
    x, y = b.parameter("x", tensor(N)), b.parameter("y", tensor(N), writable=True)
    at = b.program((N + 3) // 4) * 4
    b.store(y, b.load(x, (at,), (4,)), (at,), (4,), masked=(0,))
    v = check_bounds(b.finish())
    assert (v.proved, v.unproved) == (1, ())
    (found,) = v.findings
    assert found.location == Location("user.py", 7)
    assert (found.level, found.operation, found.confirmed) == ("error", "load x", True)
    assert found.message == "load reaches element 1 of axis 0 of global x: f32[N], which has 1"
    assert found.witness == {"N": 1, "instance": (0,), "axis": 0, "index": 1}
    assert "mask axis 0" in found.suggestion


def test_sizes_that_are_given_are_the_only_ones() -> None:
    kernel = dict(bound_mutants(copy()))["0 unmasked"]
    assert not check_bounds(kernel).ok
    assert check_bounds(kernel, {"N": 32}).is_proof
    assert not check_bounds(kernel, {"N": 33}).ok


def test_places_that_are_read_from_data_are_run() -> None:
    b = Builder("take")
    x, i = b.parameter("x", tensor(N)), b.parameter("i", tensor(8, dtype=i64))
    y = b.parameter("y", tensor(8), writable=True)
    b.store(y, b.gather(x, {0: b.load(i, (0,), (8,))}, (0,), (1,)), (0,), (8,))
    kernel = b.finish()
    assert not check_bounds(kernel).ok
    inside = [np.zeros(5, np.float32), np.arange(8) % 5, np.zeros(8, np.float32)]
    v = check_bounds(kernel, {"N": 5}, inside)
    assert v.ok
    assert not v.is_proof


# Random kernels -----------------------------------------------------------------------------------


@examples(120)
@given(programs(), st.integers(0, 1 << 16))
def test_a_proof_holds_on_random_kernels(p: Program, seed: int) -> None:
    """Kernels as they are, and with a mask dropped or a position moved."""
    mutants = list(bound_mutants(p.kernel))
    for kernel in [p.kernel, *(k for _, k in Random(seed).sample(mutants, min(2, len(mutants))))]:
        v = check_bounds(kernel)
        try:
            interpret(kernel, p.fresh())
        except VerifyError:
            assert not v.is_proof
            continue
        if kernel is p.kernel:
            assert v.ok, v


def test_arguments_are_made_of_sizes_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concrete, "MOST_ELEMENTS", 100)
    n, m = symbol("n"), symbol("m")
    b = Builder("k")
    x = b.parameter("x", TensorType(f32, (n - 3, m)))
    y = b.parameter("y", TensorType(f32, (n,)), writable=True)
    b.store(y, b.load(x, (0, 0), (1, 1), axes=(1,)), (0,), (1,), axes=(0,))
    kernel = b.finish()
    for sizes, fits in (
        ((4, 5), True), ((3, 0), True), ((2, 5), False), ((4, -1), False), ((4, 96), True), ((4, 97), False),
        ((51, 1), True), ((52, 1), False),
    ):  # fmt: skip
        made = arrays_for(kernel, dict(zip(("n", "m"), sizes, strict=True)))
        assert (made is not None) == fits, sizes
        assert made is None or [a.shape for a in made] == [(sizes[0] - 3, sizes[1]), (sizes[0],)]
