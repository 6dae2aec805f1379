"""Parts of a plan: what follows the backward pass, which layouts are tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.plan.choice import (
    GRADIENT,
    Choice,
    finish_of,
    hop,
    in_flight,
    layer_costs,
    layer_times,
    memory_of,
    stage_of,
)
from tessera.plan.machine import MACHINES
from tessera.plan.model import WIDTH, gpt
from tessera.plan.search import choices, divisors, price
from tessera.plan.simulate import of_layers
from tessera.plan.stages import quick_cut

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


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("dp", [1, 8])
def test_what_is_sent_at_the_end_of_a_step_is_what_the_stages_of_zero_say(
    dp: int, zero: int
) -> None:
    """Gradients are summed by all replicas; parameters come back where only their update is cut."""
    kinds = dict(finish_of(3e9, 1e9, MACHINE, Choice(dp=dp, zero=zero)).kinds)
    want = {} if dp == 1 else {"all_reduce" if zero < 2 else "reduce_scatter": 4e9 * GRADIENT}
    if dp > 1 and zero in (1, 2):
        want["all_gather"] = 4e9 * WIDTH
    assert kinds == pytest.approx(want)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("experts", [0, 4])
def test_the_price_of_stages_that_divide_is_that_of_equal_parts(experts: int, chunks: int) -> None:
    """Each device of a pipeline holds an equal part of the parameters, in however many chunks they come."""
    model = replace(gpt("even", layers=14, width=256, heads=8), experts=experts)
    for dp, zero in ((1, 0), (2, 1)):
        c = Choice(
            dp=dp,
            tp=1,
            pp=2,
            zero=zero,
            chunks=chunks,
            schedule="interleaved" if chunks > 1 else "1f1b",
        )
        costs = layer_costs(model, MACHINE, of_layers(c))
        assert len(costs) % (c.pp * c.chunks) == 0
        whole = stage_of(costs, 0, len(costs), c)
        p = price(model, MACHINE, c, 64)
        m = c.microbatches(64)
        longest = quick_cut(layer_times(costs, c), c.pp * chunks)
        each = max(sum(longest[i :: c.pp]) for i in range(c.pp))
        done = finish_of(whole.params / c.pp, whole.experts / c.pp, MACHINE, c)
        reduce = max(0.0, done.reduce - whole.backward / c.pp) if c.overlap else done.reduce
        hops = hop(model, MACHINE, c) * 2 * (c.pp - 1)
        want = (m + (c.pp - 1) / chunks) * each + hops + reduce + done.gather + done.update
        assert p.seconds == pytest.approx(want, rel=1e-9)
        part = replace(
            whole, last=len(costs) // c.pp, params=whole.params / c.pp, experts=whole.experts / c.pp,
            kept=whole.kept / (c.pp * chunks),
        )  # fmt: skip
        assert p.bytes == pytest.approx(memory_of([part], in_flight(c, 0, m), c).total, rel=1e-9)
