"""The static matcher: programs in which shards could run different collectives are refused, others are
not.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.errors import RankError
from tessera.core.flags import override

MESH = dist.Mesh(["i", "j"], shape=(2, 2))
SPEC = dist.ShardSpec((0, 1), ("i", "j"))
X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)

# Conditions by what they vary along: shards along i may differ in the first ones, and agree in the others.
PARTING: dict[str, Callable[[Any], Any]] = {
    "index": lambda v: dist.axis_index("i") == 0,
    "data": lambda v: op.sum(v) > 0,
    "moved": lambda v: op.max(dist.permute(v, "i", [(0, 1), (1, 0)])) > 0.5,
    "exchanged": lambda v: dist.all_to_all(v, "i", 0, 0)[0, 0] > 0,
    "part of a sum": lambda v: dist.reduce_scatter(v, "i", dim=0)[0, 0] > 0,
    "carried": lambda v: op.scan(lambda c, r: (c + op.sum(r), c), 0.0 * op.sum(v), v)[0] > 0,
    "summed over j": lambda v: dist.all_reduce(op.sum(v), "j") > 0,
    "of both": lambda v: op.logical_and(dist.all_reduce(op.sum(v), "i") > 0, dist.axis_index("i") > 0),
}  # fmt: skip
AGREEING: dict[str, Callable[[Any], Any]] = {
    "summed": lambda v: dist.all_reduce(op.sum(v), "i") > 0,
    "largest": lambda v: dist.all_reduce(op.sum(v), "i", op="max") > 0,
    "gathered": lambda v: op.sum(dist.all_gather(v, "i")) > 0,
    "broadcast": lambda v: dist.broadcast(op.sum(v), "i", 1) > 0,
    "index of j": lambda v: dist.axis_index("j") == 0,
    "constant": lambda v: op.ones(()) > 0,
}
COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda v: dist.all_reduce(v, "i"),
    "max": lambda v: dist.all_reduce(v, "i", op="max"),
    "gather": lambda v: op.sum(dist.all_gather(v, "i"), axis=0),
    "to all": lambda v: dist.all_to_all(v, "i", 0, 0),
    "permute": lambda v: dist.permute(v, "i", [(0, 1)]),
    "twice": lambda v: dist.all_reduce(dist.all_reduce(v, "i"), "i"),
    "in a loop": lambda v: op.fori_loop(0, 2, lambda k, c: dist.all_reduce(c, "i"), v),
}
SILENT: dict[str, Callable[[Any], Any]] = {
    "same": lambda v: v,
    "twice itself": lambda v: 2 * v,
    "over j": lambda v: dist.all_reduce(v, "j"),
}


def branch(pred: Any, yes: Any, no: Any) -> Callable[[Any], Any]:
    return lambda v: op.cond(pred(v), yes, no, v)


def loop(pred: Any, body: Any) -> Callable[[Any], Any]:
    """A loop that ends after three steps, or earlier where the condition does not hold."""

    def goes_on(c: Any) -> Any:
        return op.logical_and(c[0] < 3, pred(c[1]))

    return lambda v: op.while_loop(goes_on, lambda c: (c[0] + 1, body(c[1])), (0, v))[1]


def nested(f: Callable[[Any], Any], how: int) -> Callable[[Any], Any]:
    """f as it is, in a scan, in a branch that all take, or in a jitted function."""
    inside: list[Callable[[Any], Any]] = [
        f, lambda v: op.scan(lambda c, _: (f(c), 0.0), v, length=2)[0],
        lambda v: op.cond(op.ones(()) > 0, f, lambda v: v, v), ts.jit(f),
    ]  # fmt: skip
    return inside[how]


def wrong_programs() -> list[Any]:
    made = []
    pairs = [
        (a, b)
        for a, b in itertools.permutations([*COLLECTIVES, *SILENT], 2)
        if not {a, b} <= {*SILENT}
    ]
    for k, (pred, (a, b)) in enumerate(itertools.product(PARTING, pairs)):
        sides = {**COLLECTIVES, **SILENT}
        name = f"{pred}: {a} or {b}, nested {k % 4}"
        made.append(pytest.param(nested(branch(PARTING[pred], sides[a], sides[b]), k % 4), id=name))
    for k, (pred, a) in enumerate(itertools.product(PARTING, COLLECTIVES)):
        name = f"while {pred}: {a}, nested {k % 4}"
        made.append(pytest.param(nested(loop(PARTING[pred], COLLECTIVES[a]), k % 4), id=name))
    random.Random(0).shuffle(made)
    return made


def right_programs() -> list[Any]:
    made = []
    sides = {**COLLECTIVES, "same": SILENT["same"]}
    for k, (pred, a) in enumerate(itertools.product(AGREEING, COLLECTIVES)):
        b = list(sides)[k % len(sides)]
        f = nested(branch(AGREEING[pred], COLLECTIVES[a], sides[b]), k % 4)
        made.append(pytest.param(f, id=f"{pred}: {a} or {b}, nested {k % 4}"))
    for k, pred in enumerate(PARTING):
        f = nested(branch(PARTING[pred], SILENT["twice itself"], SILENT["same"]), k % 4)
        made.append(pytest.param(f, id=f"{pred}: no collective, nested {k % 4}"))
        g = nested(loop(PARTING[pred], SILENT["twice itself"]), k % 4)
        if pred not in (
            "moved",
            "exchanged",
            "part of a sum",
            "summed over j",
            "of both",
        ):  # these exchange
            made.append(pytest.param(g, id=f"while {pred}: no collective, nested {k % 4}"))
    for k, (pred, a) in enumerate(itertools.product(PARTING, COLLECTIVES)):
        both = branch(PARTING[pred], COLLECTIVES[a], lambda v, a=a: COLLECTIVES[a](2 * v))
        made.append(pytest.param(nested(both, k % 4), id=f"{pred}: {a} either way, nested {k % 4}"))
    random.Random(1).shuffle(made)
    return made


def check(f: Callable[[Any], Any]) -> Any:
    with override(target="numpy"):
        return dist.shard_map(f, MESH, SPEC, SPEC)(dist.tensor(X, SPEC, MESH))


WRONG, RIGHT = wrong_programs(), right_programs()


def test_a_hundred_mismatched_programs_are_refused():
    assert len(WRONG) >= 100
    for p in WRONG[:100]:
        with pytest.raises(RankError, match="the condition differs between shards along"):
            check(p.values[0])


def test_fifty_right_programs_run():
    assert len(RIGHT) >= 50
    for p in RIGHT[:50]:
        assert np.isfinite(check(p.values[0]).full()).all(), p.id


@pytest.mark.deep
@pytest.mark.parametrize("f", WRONG)
def test_mismatched_programs_are_refused(f):
    with pytest.raises(RankError, match="the condition differs between shards along"):
        check(f)


@pytest.mark.deep
@pytest.mark.parametrize("f", RIGHT)
def test_right_programs_run(f):
    assert np.isfinite(check(f).full()).all()


def test_the_message_has_both_lines():
    def program(v):
        return op.cond(
            op.sum(v) > 0,
            lambda v: dist.all_reduce(v, "i"),
            lambda v: dist.all_reduce(2 * v, "i", op="max"),
            v,
        )

    first = program.__code__.co_firstlineno
    with pytest.raises(RankError) as e:
        check(program)
    assert e.value.message == (
        f"cond ({__file__}:{first + 1}): the condition differs between shards along 'i' and 'j', and one "
        f"branch runs psum over "
        f"'i' of f32[2,2] ({__file__}:{first + 3}), the other pmax over 'i' of f32[2,2] "
        f"({__file__}:{first + 4}); make the "
        "condition the same on all of them, as in op.pmax(condition, 'i'), or run the same collectives "
        "either way"
    )


def test_a_loop_that_shards_leave_at_will_runs_no_collective():
    def program(v):
        return op.while_loop(lambda c: op.sum(c) > 1, lambda c: 0.5 * dist.all_reduce(c, "i"), v)

    line = program.__code__.co_firstlineno + 1
    with pytest.raises(RankError) as e:
        ts.pmap(program, "i")(X)
    assert e.value.message == (
        f"while_loop ({__file__}:{line}): the condition differs between shards along 'i', and the loop runs "
        f"psum over 'i' of "
        f"f32[4] ({__file__}:{line}) as often as each of them decides; make the condition the same on all "
        f"of them, as in "
        "op.pmax(condition, 'i'), or run the same collectives either way"
    )
