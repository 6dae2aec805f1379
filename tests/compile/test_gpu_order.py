"""Launches of a graph wait for those whose memory they touch, and for no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import op
from tessera.runtime.gpu.launch_order import Touched, order
from tests.support.fakes.gpu_fake import launching_gpus

RUNS_ON = "numpy"
PLACES = st.builds(
    lambda cell, first, size: (cell, first, first + size), st.integers(0, 2), st.integers(0, 9),
    st.integers(0, 6)
)  # fmt: skip
LAUNCHES = st.lists(
    st.builds(
        Touched,
        st.lists(PLACES, max_size=3).map(tuple),
        st.lists(PLACES, min_size=1, max_size=2).map(tuple),
    ),
    max_size=14,
)


def meets(a: Any, b: Any) -> bool:
    return any(x[0] == y[0] and x[1] <= y[2] and y[1] <= x[2] for x in a for y in b)


def conflicts(a: Touched, b: Touched) -> bool:
    return meets(a.writes, b.writes) or meets(a.writes, b.reads) or meets(a.reads, b.writes)


@given(LAUNCHES)
def test_what_touches_the_same_memory_is_ordered_and_nothing_else_waits(
    launches: list[Touched],
) -> None:
    waits = order(launches)
    after: list[set[int]] = []
    for i, w in enumerate(waits):
        assert all(conflicts(launches[j], launches[i]) for j in w)
        after.append(set(w).union(*(after[j] for j in w)))
        want = {j for j in range(i) if conflicts(launches[j], launches[i])}
        assert want <= after[i]
        for j in w:  # none is named that another one waits for
            assert not any(j in after[k] for k in w)


@given(LAUNCHES, st.integers(0, 2**14))
def test_early_launches_are_a_chain(launches: list[Touched], bits: int) -> None:
    """Each waits for the one before it, if that is early too; all that touch the same memory are ordered."""
    mixed = [replace(t, early=bool(bits >> i & 1)) for i, t in enumerate(launches)]
    after: list[set[int]] = []
    for i, w in enumerate(order(mixed)):
        after.append(set(w).union(*(after[j] for j in w)))
        assert {j for j in range(i) if conflicts(launches[j], launches[i])} <= after[i]
        if i and mixed[i].early and mixed[i - 1].early:
            assert i - 1 in w
            assert not any(j in after[i - 1] for j in w)


def test_a_chain_is_a_chain_and_branches_are_free() -> None:
    a, b, c, d = ((0, i, i) for i in range(4))
    chain = [Touched((a,), (b,)), Touched((b,), (c,)), Touched((c,), (d,))]
    assert order(chain) == [(), (0,), (1,)]
    fork = [Touched((), (a,)), Touched((a,), (b,)), Touched((a,), (c,)), Touched((b, c), (d,))]
    assert order(fork) == [(), (0,), (0,), (1, 2)]
    again = [Touched((a,), (b,)), Touched((a,), (c,)), Touched((), (a,))]
    assert order(again) == [(), (), (0, 1)]


def program(x: Any, y: Any, memory: Any, at: Any) -> Any:
    """Branches that meet again, sums that share scratch, an update in place."""
    rows, columns = op.softmax(x @ y), op.softmax(op.transpose(y) @ op.transpose(x))
    z = op.sin(rows @ x) - op.transpose(op.cos(columns @ x))
    s = op.cumsum(x, axis=0) * op.mean(columns) + op.sort(y, axis=0)
    t = [op.exp(-op.abs(x * k)) @ y for k in (1.0, 2.0, 3.0)]
    memory = op.dynamic_update_slice(memory, op.sum(z, 0)[None], (at, 0))
    return memory, z + s, t[0] - t[1] * t[2], op.sum(memory) + op.max(s)


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_a_graph_in_any_order_that_it_allows_is_the_program(kind: str) -> None:
    """The driver of the test runs what waits for nothing from the last to the first."""
    rng = np.random.default_rng(0)
    with launching_gpus(kind) as fake:
        f: Any = ts.jit(program, donate=("memory",))
        x, y = (ts.tensor(rng.standard_normal((24, 24)).astype(np.float32)).to(kind) for _ in "xy")
        m = ts.tensor(np.zeros((16, 24), np.float32)).to(kind)
        where = [ts.tensor(np.int64(i)).to(kind) for i in range(2)]
        first = [
            v.numpy() for v in f(x, y, ts.tensor(np.zeros((16, 24), np.float32)).to(kind), where[0])
        ]
        for i in range(6):
            m, *rest = f(x, y, m, where[i % 2])
        assert fake.executables, "nothing became a graph"
        assert any(len(w) != 1 for w in fake.behind.values())
        for got, want in zip(rest[:2], first[1:3], strict=True):
            np.testing.assert_array_equal(got.numpy(), want)
        np.testing.assert_array_equal(m.numpy()[0], first[0][0])
        np.testing.assert_array_equal(m.numpy()[1], first[0][0])
