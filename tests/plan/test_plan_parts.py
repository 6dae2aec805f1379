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
from tessera.plan.machine import MACHINES, Level
from tessera.plan.model import WIDTH, LayerCut, gpt
from tessera.plan.planner import collectives_of, plan_model
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


MIXTURE = replace(gpt("mixture", layers=4, width=256, heads=8, length=128), experts=8)
FEW = replace(MACHINE, levels=(replace(MACHINE.levels[0], size=8),))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(("dp", "ep"), [(2, 1), (8, 1), (8, 2), (8, 8), (1, 1)])
def test_what_the_replicas_send_is_by_who_holds_the_same(dp: int, ep: int, zero: int) -> None:
    """A ring of g sends (g - 1) / g of a tensor; dp hold the same parameters, dp / ep the same experts."""
    c, batch = Choice(dp=dp, ep=ep, zero=zero, micro=2), 48
    layers, times = MIXTURE.on_device(LayerCut(1, ep, 2)), batch // (2 * dp)
    sent = sum(x.params * (dp - 1) / dp + x.experts * (dp // ep - 1) / (dp // ep) for x in layers)
    found = {x.kind: x for x in collectives_of(MIXTURE, FEW, c, batch) if x.axis == "dp"}
    want = {
        "all_gather": (2 * times if zero == 3 else 1 if zero else 0, WIDTH),
        "reduce_scatter": (times if zero >= 2 else 0, WIDTH),
        "all_reduce": (1 if zero < 2 else 0, 2 * GRADIENT),
    }
    want = {k: v for k, v in want.items() if v[0] and dp > 1}
    assert found.keys() == want.keys()
    for kind, (count, width) in want.items():
        assert found[kind].count == count * len(layers), kind
        assert found[kind].bytes == pytest.approx(count * width * sent, abs=1), kind


def test_a_plan_names_every_layer() -> None:
    blocks = [f"block {i}" for i in range(4)]
    assert plan_model(MIXTURE, FEW, 64).layers == ("embedding", *blocks, "head")


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("dp", "tp", "ep"), [(8, 1, 1), (4, 2, 1), (4, 2, 4), (2, 4, 2), (1, 8, 1)]
)
def test_the_collectives_of_a_layer_cost_the_bytes_that_a_device_sends(
    dp: int, tp: int, ep: int, recompute: str
) -> None:
    """On one level without latency: a ring or a tree passes (g - 1) / g of a tensor once or twice."""
    link = replace(FEW.levels[0].link, latency=0.0, reduces=False)
    machine = replace(FEW, levels=(Level(8, link),))
    speed = link.bandwidth * link.efficiency
    for zero in (0, 2, 3):
        c = Choice(dp=dp, tp=tp, ep=ep, zero=zero, recompute=recompute)
        for x in layer_costs(MIXTURE, machine, of_layers(c)):
            inner = x.layer.reductions * 2 * x.layer.reduced * (tp - 1) / tp
            inner += 2 * x.layer.dispatched / tp * (ep - 1) / ep
            assert x.inner == pytest.approx(inner / speed)
            assert x.inner_back == pytest.approx(inner / speed * (2 if recompute == "full" else 1))
            alike = dp // ep
            held = x.layer.params * (dp - 1) / dp + x.layer.experts * (alike - 1) / alike
            assert x.gathered == pytest.approx(held * WIDTH / speed if zero == 3 else 0)
            assert x.scattered == pytest.approx(held * WIDTH / speed if zero >= 2 else 0)
