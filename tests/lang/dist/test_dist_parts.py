"""Names of ts.dist that are loaded late, and sums that plans are made of."""

from __future__ import annotations

import math
from typing import Any

import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.errors import TesseraError
from tessera.core.shardspec import ShardSpec
from tessera.lang.dist import _LATER
from tessera.lang.dist.alpa import operations
from tessera.lang.dist.planning import _divided, _laid
from tessera.plan.choice import Choice

RUNS_ON = "numpy"
X = ts.ones((3, 4))


@pytest.mark.parametrize("name", _LATER)
def test_every_name_is_there(name: str) -> None:
    assert getattr(dist, name) is not None


def test_an_axis_that_the_mesh_has_not_is_named_when_the_map_is_made() -> None:
    mesh = dist.Mesh(["dp"], shape=(1,))
    with pytest.raises(TesseraError, match="tp"):
        dist.shard_map(lambda x: x, mesh, ShardSpec((0,), (("tp",),)), ShardSpec())
    with pytest.raises(TesseraError, match="tp"):
        dist.shard_map(lambda x: x, mesh, ShardSpec(), ShardSpec(), axes=("tp",))


@pytest.mark.parametrize("whole", [0.0, 10.0, 60.0, 1e9])
def test_activations_are_what_is_left(whole: float) -> None:
    m = _divided(10.0, 20.0, 30.0, whole, 5.0)
    parts = list(vars(m).values()) if hasattr(m, "__dict__") else list(m)
    assert sum(parts) == pytest.approx(max(60.0, whole) + 5.0)


def graph(f: Any, *xs: Any) -> Any:
    return ts.jit(f).lower(*xs).graph


def test_operations_of_loops_and_branches() -> None:
    once = operations(graph(lambda x: op.sin(x), X))
    assert once == X.size
    assert operations(graph(lambda x: x @ op.transpose(x), X)) >= 2 * math.prod((3, 4, 3))
    both = operations(graph(lambda x: op.cond(op.sum(x) > 0, op.sin, op.cos, x), X))
    assert both >= 2 * once
    for n in (1, 5):
        steps = operations(
            graph(lambda x: op.scan(lambda c, _: (op.sin(c), c), x, None, length=n), X)
        )
        assert n * once <= steps < (n + 2) * 2 * once
    assert (
        operations(graph(lambda x: op.while_loop(lambda c: op.sum(c) > 1e9, op.sin, x), X)) >= once
    )


def test_rules_that_are_given_hold_where_tp_cuts() -> None:
    rules: Any = {"w": 1}
    made: Any = None  # nothing is searched
    assert _laid(made, Choice(4, 1), None) == [{}]
    assert _laid(made, Choice(4, 1), rules) == [{}]
    assert _laid(made, Choice(2, 2), rules) == [rules]
