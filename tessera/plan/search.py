"""Search layouts: every choice is priced in closed form, the best few are cut by dynamic programming and
simulated.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tessera.core.errors import OutOfMemoryError
from tessera.plan.choice import (
    Choice,
    finish_of,
    hop,
    in_flight,
    layer_costs,
    layer_times,
    memory_of,
    stage_of,
)
from tessera.plan.machine import Machine
from tessera.plan.model import Transformer
from tessera.plan.simulate import Simulation, of_layers, simulate
from tessera.plan.stages import quick_cut

SIMULATED = 8  # choices that are simulated, best first by the closed form
MICRO = (1, 2, 4, 8)
CHUNKS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class Priced:
    """A choice with its time in closed form and the bytes of its fullest device."""

    choice: Choice
    seconds: float
    bytes: float


@dataclass(frozen=True)
class FoundPlan:
    """What a search found."""

    choice: Choice
    simulation: Simulation
    considered: int
    refused: tuple[tuple[str, int], ...]  # why choices were dropped, with how many
    runners: tuple[
        tuple[Choice, float], ...
    ]  # other simulated choices, with their steps in seconds
    best_of: tuple[
        tuple[str, Priced | None], ...
    ]  # the best choice without each kind of parallelism


def divisors(n: int) -> list[int]:
    """The divisors of n, least first."""
    return [d for d in range(1, n + 1) if n % d == 0]


def choices(model: Transformer, machine: Machine, batch: int) -> Iterator[Choice]:
    """Every layout of the model over all devices of the machine."""
    n = machine.size
    for tp in divisors(n):
        if tp > machine.node or model.heads % tp or model.kv_heads % min(tp, model.kv_heads):
            continue
        for pp in divisors(n // tp):
            dp = n // (tp * pp)
            if pp <= model.layers + 2 and batch % dp == 0:
                yield from _inside(model, batch, Choice(dp, tp, pp))


def _inside(model: Transformer, batch: int, c: Choice) -> Iterator[Choice]:
    experts = [e for e in divisors(c.dp) if e <= model.experts] if model.experts else [1]
    zeros = (0, 1, 2, 3) if c.dp > 1 and c.pp == 1 else (0, 1) if c.dp > 1 else (0,)
    for micro, ep, zero, again in itertools.product(MICRO, experts, zeros, ("none", "full")):
        if batch % (c.dp * micro):
            continue
        made = replace(c, ep=ep, zero=zero, micro=micro, recompute=again)
        yield made
        if c.pp > 1 and made.microbatches(batch) % c.pp == 0:
            for v in CHUNKS[1:]:
                if c.pp * v <= model.layers + 2:
                    yield replace(made, chunks=v, schedule="interleaved")


def price(model: Transformer, machine: Machine, c: Choice, batch: int) -> Priced:
    """The time of a step and the fullest device, with stages cut by time alone."""
    costs = layer_costs(model, machine, of_layers(c))
    whole = stage_of(costs, 0, len(costs), c)
    m, parts = c.microbatches(batch), c.pp * c.chunks
    share = math.ceil(len(costs) / parts) / len(costs)  # layers are not divided
    longest = quick_cut(layer_times(costs, c), parts)
    each = max(sum(longest[i :: c.pp]) for i in range(c.pp))
    done = finish_of(whole.params * share * c.chunks, whole.experts * share * c.chunks, machine, c)
    last = whole.backward / c.pp
    reduce = max(0.0, done.reduce - last) if c.overlap else done.reduce
    hops = hop(model, machine, c) * 2 * (c.pp - 1)
    seconds = (m + (c.pp - 1) / c.chunks) * each + hops + reduce + done.gather + done.update
    part = replace(
        whole, last=max(1, round(len(costs) * share * c.chunks)), params=whole.params * share * c.chunks,
        experts=whole.experts * share * c.chunks, kept=whole.kept * share,
    )  # fmt: skip
    return Priced(c, seconds, memory_of([part], in_flight(c, 0, m), c).total)


def search(model: Transformer, machine: Machine, batch: int) -> FoundPlan:
    """The layout with the shortest simulated step among those that fit."""
    priced: list[Priced] = []
    refused: Counter[str] = Counter()
    considered = 0
    least = math.inf
    for c in choices(model, machine, batch):
        considered += 1
        p = price(model, machine, c, batch)
        least = min(least, p.bytes)
        if p.bytes > machine.device.memory:
            refused["does not fit the memory"] += 1
        else:
            priced.append(p)
    priced.sort(key=lambda p: (p.seconds, str(p.choice)))
    tried: list[tuple[Choice, Simulation]] = []
    for p in priced:
        if len(tried) == SIMULATED:
            break
        s = _simulated(model, machine, p.choice, batch)
        if s is None or s.peak.total > machine.device.memory:
            refused["has no cut into stages that fits"] += 1
        else:
            tried.append((p.choice, s))
    if not tried:
        raise OutOfMemoryError(
            f"plan: {model.name} does not fit {machine.name}: the least of {considered} layouts needs "
            f"{least / 1e9:.1f} GB on a device of {machine.device.memory / 1e9:.1f} GB; use more devices or "
            "a smaller batch"
        )
    tried.sort(key=lambda x: (x[1].step, str(x[0])))
    best, simulation = tried[0]
    runners = tuple((c, s.step) for c, s in tried[1:])
    return FoundPlan(
        best,
        simulation,
        considered,
        tuple(sorted(refused.items())),
        runners,
        _without(priced, best),
    )


def _simulated(model: Transformer, machine: Machine, c: Choice, batch: int) -> Simulation | None:
    try:
        return simulate(model, machine, c, batch)
    except OutOfMemoryError:
        return None


def _without(priced: list[Priced], best: Choice) -> tuple[tuple[str, Priced | None], ...]:
    """The best choice where one kind of parallelism is given up, for each kind that the plan uses."""
    kinds: dict[str, tuple[bool, Callable[[Choice], bool]]] = {
        "tensor parallelism": (best.tp > 1, lambda c: c.tp == 1),
        "pipeline parallelism": (best.pp > 1, lambda c: c.pp == 1),
        "expert parallelism": (best.ep > 1, lambda c: c.ep == 1),
        "ZeRO": (best.zero > 0, lambda c: c.zero == 0),
        "recomputation": (best.recompute != "none", lambda c: c.recompute == "none"),
        "interleaving": (best.chunks > 1, lambda c: c.chunks == 1),
    }
    return tuple(
        (name, next((p for p in priced if test(p.choice)), None))
        for name, (used, test) in kinds.items()
        if used
    )
