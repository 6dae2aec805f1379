"""Plan a model that is described by its sizes: search, then the collectives of a step and the reasons."""

from __future__ import annotations

from dataclasses import replace

from tessera.core.errors import OperandError
from tessera.plan.choice import GRADIENT, Choice, layer_costs
from tessera.plan.machine import Machine
from tessera.plan.model import WIDTH, Layer, LayerCut, Transformer
from tessera.plan.search import FoundPlan, search
from tessera.plan.simulate import of_layers, stages_of
from tessera.plan.value import Plan, PlannedCollective

TOKENS = 2**22  # tokens of a batch unless given, about as many as GPT-3 was trained with


def default_batch(model: Transformer, machine: Machine) -> int:
    """Sequences of a batch: about four million tokens, a multiple of all devices."""
    n = machine.size
    return max(1, round(TOKENS / model.length / n)) * n


def plan_model(model: Transformer, machine: Machine, batch: int | None = None) -> Plan:
    """The plan of a model for a machine."""
    size = default_batch(model, machine) if batch is None else batch
    if size < 1:
        raise OperandError(f"plan: batch is {size}, expected at least 1")
    found = search(model, machine, size)
    m = found.choice.microbatches(size)
    stages = stages_of(model, machine, found.choice, m)
    assert stages is not None
    c = replace(found.choice, stages=tuple(s.last - s.first for s in stages))
    s = found.simulation
    names = tuple(x.name for x in model.on_device(LayerCut(c.tp, c.ep)))
    return Plan(
        model.name, machine, size, c, s.step, s.bubble, s.link_use, s.peak, model.flops(size),
        collectives_of(model, machine, c, size), reasons(found, machine), model, layers=names,
    )  # fmt: skip


def collectives_of(
    model: Transformer, machine: Machine, c: Choice, batch: int
) -> tuple[PlannedCollective, ...]:
    """The collectives of a step on the busiest device of each kind."""
    m = c.microbatches(batch)
    stages = stages_of(model, machine, c, m)
    assert stages is not None
    costs = layer_costs(model, machine, of_layers(c))
    groups = [stages[i :: c.pp] for i in range(c.pp)]
    most = max(groups, key=lambda g: sum(s.params + s.experts for s in g))
    mine = [x.layer for s in most for x in costs[s.first : s.last]]
    again = 2 if c.recompute == "full" else 1
    made: list[PlannedCollective] = []
    ring = 2 * (c.tp - 1) / c.tp
    inner = [(x.reductions, x.reduced, 1 + (again if x.again else 1)) for x in mine]
    if c.tp > 1:
        made.append(_made("all_reduce", "tp", m, [(n * p, ring * b) for n, b, p in inner]))
    sent = [
        (2 * (1 + again), x.dispatched / c.tp * (c.ep - 1) / c.ep) for x in mine if x.dispatched
    ]
    if sent:
        made.append(_made("all_to_all", "ep", m, sent))
    if c.dp > 1:
        made += _of_dp(mine, c, m)
    if c.pp > 1:
        one = c.micro * model.length * model.width * WIDTH / c.tp
        made.append(_made("send", "pp", m, [(2 * c.chunks, one)]))
    return tuple(x for x in made if x.count)


def _made(kind: str, axis: str, times: int, each: list[tuple[int, float]]) -> PlannedCollective:
    count = sum(n for n, _ in each) * times
    return PlannedCollective(kind, axis, count, round(sum(n * b for n, b in each) * times))


def _of_dp(mine: list[Layer], c: Choice, m: int) -> list[PlannedCollective]:
    """Gradients and parameters over dp, one collective a layer; of dp devices, ep hold other experts."""
    others, alike = (c.dp - 1) / c.dp, (c.dp - c.ep) / c.dp
    sent = [x.params * others + x.experts * alike for x in mine]  # by one device, in parameters
    made = []
    if c.zero == 3:
        made.append(_made("all_gather", "dp", m, [(2, n * WIDTH) for n in sent]))
    if c.zero >= 2:
        made.append(_made("reduce_scatter", "dp", m, [(1, n * WIDTH) for n in sent]))
    else:
        made.append(_made("all_reduce", "dp", 1, [(1, 2 * n * GRADIENT) for n in sent]))
    if c.zero in (1, 2):
        made.append(_made("all_gather", "dp", 1, [(1, n * WIDTH) for n in sent]))
    return made


def reasons(found: FoundPlan, machine: Machine) -> tuple[str, ...]:
    """Why this choice and not another."""
    made = [f"it has the shortest simulated step of {found.considered} layouts"]
    made += [f"{count} layouts were dropped: each {why}" for why, count in found.refused]
    step = found.simulation.step
    for name, p in found.best_of:
        if p is None:
            made.append(f"without {name} nothing fits {machine.device.memory / 1e9:.0f} GB")
        else:
            made.append(
                f"without {name} the best takes {p.seconds / step:.2f} times as long: {p.choice}"
            )
    made += [f"next is {s / step:.3f} times as long: {c}" for c, s in found.runners[:2]]
    return tuple(made)
