"""Parts of a plan: what follows the backward pass, which layouts are tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.plan.choice import Choice, finish_of
from tessera.plan.machine import MACHINES
from tessera.plan.model import gpt
from tessera.plan.search import choices, divisors

MACHINE = next(iter(MACHINES.values()))


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_state_that_is_cut_is_updated_in_a_share_of_the_time(ep: int) -> None:
    whole = finish_of(1e12, 4e12, MACHINE, Choice(dp=8, ep=ep))
    for zero in (1, 2, 3):
        cut = finish_of(1e12, 4e12, MACHINE, Choice(dp=8, ep=ep, zero=zero))
        assert cut.update == pytest.approx(whole.update * (1 / 8 + 4 / (8 // ep)) / 5, rel=0.01)
        assert (cut.gather > 0) == (zero in (1, 2))
        assert (cut.reduce > 0) == (zero < 2)
    assert whole.gather == 0


def test_every_layout_is_tried_once_and_experts_are_cut_where_there_are_some() -> None:
    machine = replace(MACHINE, nodes=1) if hasattr(MACHINE, "nodes") else MACHINE
    plain = gpt("small", layers=4, width=256, heads=8)
    for model in (plain, replace(plain, experts=4)):
        tried = list(choices(model, machine, 64))
        assert len(set(tried)) == len(tried) > 0
        assert all(c.devices == machine.size and c.dp % c.ep == 0 for c in tried)
        for dp in {c.dp for c in tried}:
            found = {c.ep for c in tried if c.dp == dp}
            assert found == (
                {d for d in divisors(dp) if d <= model.experts} if model.experts else {1}
            )
