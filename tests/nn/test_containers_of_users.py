"""Layers inside the user's own classes are found, named, replaced and counted as those inside of modules."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest

import tessera as ts
from tessera import nn


@dataclasses.dataclass
class Plain:
    norm: Any
    out: Any

    def __call__(self, x: Any, state: Any) -> Any:
        x, state = self.norm(x, state)
        return self.out(x), state


@dataclasses.dataclass(frozen=True)
class Frozen:
    norm: Any
    out: Any


class Pair(NamedTuple):
    norm: Any
    out: Any


class Own:
    def __init__(self, norm: Any, out: Any):
        self.norm, self.out = norm, out


ts.tree.register(Own, lambda x: ((x.norm, x.out), None), lambda _, xs: Own(*xs))
MAKE = {
    "dataclass": Plain,
    "frozen dataclass": Frozen,
    "namedtuple": Pair,
    "registered": Own,
    "OrderedDict": lambda n, o: OrderedDict(out=o, norm=n),
    "defaultdict": lambda n, o: defaultdict(list, norm=n, out=o),
    "nested": lambda n, o: Plain(n, [Pair(None, o)]),
}
NAMES = {"registered": {"0", "1"}, "nested": {"norm", "out.0.out"}}


def made(kind: str) -> Any:
    return MAKE[kind](nn.BatchNorm(3), nn.Linear(3, 2, key=ts.key(0)))


@pytest.mark.parametrize("kind", MAKE)
def test_layers_inside_are_found_by_the_names_of_their_parameters(kind):
    model = made(kind)
    found = dict(nn.modules(model))
    assert set(found) == NAMES.get(kind, {"norm", "out"})
    parameters = {f"{n}.{p}" for n, m in found.items() for p in nn.state_dict(m)}
    assert parameters == set(nn.state_dict(model))
    assert all(nn.get(model, name) is m for name, m in found.items())


@pytest.mark.parametrize("kind", MAKE)
def test_layers_inside_learn_their_names_and_are_replaced(kind):
    model, state = nn.with_state(made(kind))
    assert type(model) is type(made(kind))
    (name,) = state
    assert nn.get(model, name).name == name
    doubled = nn.map_modules(lambda _, m: ts.tree.map(lambda x: 2 * x, m), model)
    for n, x in nn.state_dict(doubled).items():
        np.testing.assert_array_equal(x.numpy(), 2 * nn.state_dict(model)[n].numpy())
    assert nn.map_modules(lambda _, m: m, model) is model


@pytest.mark.parametrize("kind", MAKE)
def test_parts_are_combined_to_what_they_were(kind):
    model = made(kind)
    back = nn.combine(*nn.partition(model, lambda name, _: name.endswith("weight")))
    assert ts.tree.structure(back) == ts.tree.structure(model)
    assert all(a is b for a, b in zip(ts.tree.leaves(back), ts.tree.leaves(model), strict=True))


def test_a_summary_of_a_dataclass_has_its_layers():
    model, state = nn.with_state(made("dataclass"))
    rows = nn.summary(model, np.ones((4, 3), np.float32), state).rows
    assert [(r.name, r.kind) for r in rows] == [("norm", "BatchNorm"), ("out", "Linear")]
