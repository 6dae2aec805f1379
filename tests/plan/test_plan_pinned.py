"""Every number and word of plans of small models: layers, costs, stages, steps, searches, pictures."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from tessera.core.errors import FileError, OperandError, OutOfMemoryError
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
from tessera.plan.cost import (
    DeviceGroup,
    MatrixProducts,
    collective_time,
    link_between,
    product_time,
    send_time,
    spans,
    stream_time,
)
from tessera.plan.machine import MACHINES, Level, Link, Machine, machine, ranks
from tessera.plan.model import MODELS, LayerCut, Transformer, described, gpt
from tessera.plan.order import order_of
from tessera.plan.planner import default_batch, plan_model
from tessera.plan.search import choices, price
from tessera.plan.simulate import of_layers, simulate
from tessera.plan.value import Plan, PlannedCollective
from tests.support.pinned import pinned, short

SMALL = gpt("small", 6, 256, 8, length=128, vocabulary=1000)
LLAMA = Transformer(
    "llama", 7, 512, 8, 2000, 256, hidden=1400, kv_heads=2, gated=True, biases=False
)
MIXED = Transformer(
    "mixed", 5, 256, 8, 1000, 512, head_dim=40, kv_heads=4, experts=8, chosen=2, gated=True, window=64,
    sinks=True, biases=True,
)  # fmt: skip
OLD = replace(SMALL, name="old", flash=False, dropout=True, window=32)
EXPERTS = replace(SMALL, name="experts", experts=6, chosen=1, biases=False, tied=False)
MODELS_HERE = (SMALL, LLAMA, MIXED, OLD, EXPERTS)
DEVICE = MACHINES["8xh100"].device
TIGHT = replace(DEVICE, name="tight", memory=1.61e9)
DEEP = Machine("deep", DEVICE, (
    Level(2, Link("in", 4e11, 1e-6, reduces=True)), Level(4, Link("middle", 1e11, 3e-6)),
    Level(3, Link("out", 2e10, 9e-6, efficiency=0.5)),
))  # fmt: skip
ONE_NODE = machine("8xa100")
IN, OUT = (v.link for v in MACHINES["128xa100"].levels)
NARROW = Machine("narrow", TIGHT, (Level(4, IN), Level(2, OUT)))


def of(memory: float) -> Machine:
    return replace(NARROW, device=replace(TIGHT, memory=memory))


def layers() -> Iterator[str]:
    for m in (*MODELS_HERE, *MODELS.values()):
        yield f"{m} | {short(m.params)} {short(m.flops(3))} {short(m.flops(3, 4))}"
        for cut in (
            LayerCut(),
            LayerCut(2, 1, 3),
            LayerCut(4, 2, 1, True),
            LayerCut(8, 4, 2, True),
        ):
            seen: dict[str, None] = {}
            for x in m.on_device(cut):
                values = astuple(replace(x, name="", products=()))
                seen.setdefault(f"{short(values)} {short([astuple(p) for p in x.products])}")
            yield from (f"  {cut.tp} {cut.ep} {cut.micro} {line}" for line in seen)


def costs() -> Iterator[str]:
    for m, n, k, count in itertools.product((0, 1, 200, 4096), (64, 1000), (64, 8192), (1, 24)):
        p = MatrixProducts(m, n, k, count)
        times = [product_time(p, d, t) for d in (DEVICE, ONE_NODE.device) for t in ("bf16", "f32")]
        times.append(product_time(p, DEVICE, "f16", 4))
        yield f"{m} {n} {k} {count}: {short([p.flops, p.bytes(2), *times])}"
    yield short(stream_time(1e9, DEVICE))
    named = (MACHINES["nvl72"], MACHINES["128xa100"])
    for on in (DEEP, DEEP.with_reduction(), DEEP.with_reduction(False), *named):
        yield f"{on} | {on.size} {on.node}"
        for size, stride in itertools.product((1, 2, 3, 4, 6, 8, 12, 24), (1, 2, 4, 8)):
            g = DeviceGroup(size, stride)
            joined = [(n, link.name) for n, link in spans(g, on)]
            times = [
                collective_time(k, b, g, on)
                for k in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
                for b in (0, 1e3, 1e9)
            ]
            yield f"  {size} by {stride}: {short(joined)} {short(times)}"
        for stride in (1, 2, 3, 7, 8, 23, 24, 100):
            yield f"  apart {stride}: {link_between(stride, on).name} {short(send_time(1e6, stride, on))}"


LAYOUTS = [
    Choice(8), Choice(8, zero=1, micro=2), Choice(8, ep=2, zero=2, overlap=False),
    Choice(8, ep=4, zero=3, recompute="full"), Choice(4, 2, sequence=False, zero=3),
    Choice(2, 4, zero=2, micro=2),
    Choice(1, 8, recompute="full"), Choice(1, 2, 4), Choice(2, 1, 4, schedule="gpipe", zero=1),
    Choice(2, 2, 2, overlap=False, zero=1), Choice(1, 1, 2, chunks=2, schedule="interleaved", micro=2),
    Choice(2, 2, 2, chunks=3, schedule="interleaved", recompute="full"),
    Choice(1, 2, 2, sequence=False, micro=4, overlap=False),
]  # fmt: skip


def steps() -> Iterator[str]:
    for model, on, c in itertools.product(
        (SMALL, LLAMA, MIXED, OLD), (ONE_NODE, NARROW, DEEP), LAYOUTS
    ):
        if c.dp % c.ep or (c.ep > 1 and not model.experts):
            continue
        yield f"{model.name} {on.name} {c} {c.devices} {c.microbatches(48)}"
        found = layer_costs(model, on, of_layers(c))
        yield "  layers " + " | ".join(dict.fromkeys(
            short((x.compute, x.inner, x.inner_back, x.gathered, x.scattered, x.forward(c.overlap),
                   x.backward(c.recompute == "full", c.overlap))) for x in found
        ))  # fmt: skip
        yield f"  times {short(sum(layer_times(found, c)))}"
        part = stage_of(found, 1, 4, c)
        yield f"  stage {short((*astuple(part), part.busy()))}"
        memory = memory_of([part, stage_of(found, 4, 6, c)], in_flight(c, 0, 6), c)
        yield f"  memory {memory} {short(astuple(memory))}"
        done = finish_of(part.params, part.experts, on, c)
        yield f"  finish {short(astuple(done))} hop {short(hop(model, on, c))}"
        p = price(model, on, c, 48)
        yield f"  price {short((p.seconds, p.bytes))}"
        try:
            s = simulate(model, on, c, 48)
        except (OperandError, OutOfMemoryError) as e:
            yield f"  {str(e).splitlines()[0]}"
            continue
        yield f"  step {short((s.step, s.pipeline, s.bubble, s.busy, s.sent, s.link_use, s.peak.total))}"


def searches() -> Iterator[str]:
    experts = replace(MIXED, layers=14, width=1024, hidden=4096, experts=32)
    cases = [
        (SMALL, ONE_NODE, 64), (MIXED, ONE_NODE, 64), (LLAMA, NARROW, 32),
        (OLD, machine("128xa100", 16), 48), (gpt("deep", 30, 2048, 16), of(8e9), 16),
        (gpt("wide", 14, 4096, 32), of(1.2e10), 16), (gpt("none", 14, 4096, 32), NARROW, 16),
        (gpt("large", 40, 5120, 40), machine("128xh100", 64), 256), (experts, of(1.8e10), 64),
    ]  # fmt: skip
    for model, on, batch in cases:
        tried = list(choices(model, on, batch))
        lines = "\n".join(sorted(map(str, tried)))
        yield f"{len(tried)} layouts, {hashlib.sha256(lines.encode()).hexdigest()[:16]}"
        try:
            plan = plan_model(model, on, batch)
        except OutOfMemoryError as e:
            yield str(e).splitlines()[0]
            continue
        yield plan.explain()
        yield f"{plan.axes} {short((plan.step, plan.bubble, plan.link_use, plan.utilization, plan.flops))}"
        yield short(plan.layers)
        yield short([astuple(c) for c in plan.collectives])
    for name, on in MACHINES.items():
        yield f"{name} {[default_batch(m, on) for m in MODELS.values()]}"


def test_layers_of_models() -> None:
    pinned("plan_layers", layers())


def test_costs_of_products_and_collectives() -> None:
    pinned("plan_costs", costs())


def test_costs_of_layers_stages_and_steps() -> None:
    pinned("plan_steps", steps(), near=1e-6)  # Python adds floats with compensation from 3.12 on


def test_what_a_search_finds_and_says() -> None:
    pinned("plan_searches", searches())


def pictures() -> Iterator[str]:
    many = machine("128xa100")
    moved = (PlannedCollective("send", "pp", 3, 999),)
    for model, on, c in (
        (SMALL, ONE_NODE, Choice(2, 2, 2, micro=2, chunks=2, schedule="interleaved", zero=1)),
        (None, many, Choice(16, 8, 8)), (LLAMA, NARROW, Choice(1, 2, 4)),
    ):  # fmt: skip
        stage = stage_of(layer_costs(SMALL, on, of_layers(c)), 0, 3, c)
        memory = memory_of([stage], 2, c)
        plan = Plan("a <plan>", on, 24, c, 1.0, 0.25, 0.5, memory, 1e12, moved, ("because",), model)
        text = plan.svg()
        yield (
            text.replace("><", ">\n<")
            if model is SMALL
            else hashlib.sha256(text.encode()).hexdigest()
        )


def test_pictures() -> None:
    pinned("plan_pictures", pictures())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_orders_of_a_pipeline(schedule: str) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    made = (
        f"{devices} {m} {i}: " + " ".join(
            f"{'B' if t.back else 'F'}{t.micro}.{t.part}" for t in order_of(schedule, i, devices, m, chunks))
        for devices, m in ((1, 2), (2, 4), (4, 4), (4, 8)) for i in range(devices)
    )  # fmt: skip
    pinned(f"plan_order_{schedule}", made)


@pytest.mark.parametrize(
    ("nbytes", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_000, "999 kB"), (10**6, "1 MB"),
     (10**9, "1 GB"), (25 * 10**11, "2.5e+03 GB")],
)  # fmt: skip
def test_bytes_are_said_in_units(nbytes: int, said: str) -> None:
    assert str(PlannedCollective("send", "pp", 3, nbytes)) == f"3 send over pp, {said} a device"


@pytest.mark.parametrize(
    ("step", "said"), [(1.0, "1 s"), (0.9, "900 ms"), (1e-3, "1 ms"), (9e-4, "900 us"), (12.34, "12.3 s")]
)  # fmt: skip
def test_a_plan_prints(step: float, said: str) -> None:
    on = ranks(4)
    c = Choice()
    memory = memory_of([stage_of(layer_costs(SMALL, ONE_NODE, of_layers(c)), 0, 3, c)], 1, c)
    plan = Plan("p", on, 8, Choice(2, 1, 2, stages=(5, 5, 4)), step, 0.1, 0.2, memory, 1e9, (), ())
    lines = str(plan).splitlines()
    assert lines[0] == "p on 4 ranks (4 CPU core), batch 8"
    assert lines[2].startswith(f"  step     {said}, bubble 10.0%, ")
    assert lines[3].endswith(" of 4 GB")
    assert lines[4] == "  stages   2 x 5, 4 layers"
    assert plan.axes == {"pp": 2, "dp": 2}
    assert plan.utilization == pytest.approx(1e9 / step / (39e9 * 4))
    assert replace(plan, choice=Choice()).axes == {"dp": 1}


def test_machines_of_other_sizes() -> None:
    big = MACHINES["128xa100"]
    assert machine(big) is big
    assert [v.size for v in machine("128xa100", 64).levels] == [8, 8]
    assert [v.size for v in machine("128xa100", 4).levels] == [4]
    assert [v.size for v in machine("8xa100", 12).levels] == [12]
    assert machine("128xa100", 8).name == "128xa100[8]"
    for devices in (12, 20):
        text = f"machine: {devices} devices are no whole groups of 8 of 128xa100"
        with pytest.raises(OperandError, match=text):
            machine("128xa100", devices)
    with pytest.raises(
        OperandError, match="machine: there is no 'x'; known are 8xh100, 8xa100, nvl72, "
    ):
        machine("x")
    with pytest.raises(
        OperandError, match="machine: CPU core has no speed for f16; it has f32, f64, bf16"
    ):
        ranks(2).device.peak("f16")


@pytest.mark.parametrize(
    ("c", "batch", "text"),
    [
        (Choice(8, micro=2), 24, "simulate: 8 replicas of microbatches of 2 do not divide a batch of 24"),
        (Choice(8), 0, "simulate: 8 replicas of microbatches of 1 do not divide a batch of 0"),
        (Choice(1, 1, 2, chunks=2, schedule="interleaved"), 3,
         "simulate: an interleaved pipeline of 2 devices needs a multiple of 2 microbatches, got 3"),
        (Choice(1, 1, 2, stages=(4, 3)), 4,
         r"simulate: stages \(4, 3\) hold 7 layers in 2 parts, expected 8 layers in 2 parts"),
        (Choice(1, 1, 2, stages=(4, 2, 2)), 4,
         r"simulate: stages \(4, 2, 2\) hold 8 layers in 3 parts, expected 8 layers in 2 parts"),
    ],
)  # fmt: skip
def test_layouts_that_are_refused(c: Choice, batch: int, text: str) -> None:
    with pytest.raises(OperandError, match=text):
        simulate(SMALL, ONE_NODE, c, batch)


def test_plans_and_machines_are_kept_whole(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    for model, on in ((SMALL, ONE_NODE), (MIXED, NARROW), (None, DEEP)):
        c = Choice(2, 2, 2, stages=(4, 4))
        stage = stage_of(layer_costs(SMALL, on, of_layers(c)), 0, 3, c)
        moved = (PlannedCollective("send", "pp", 3, 999),)
        plan = Plan(
            "p", on, 24, c, 1.0, 0.25, 0.5, memory_of([stage], 2, c), 1e12, moved, ("because",),
            model, (("w", 1),),
            ("a", "b"),
        )  # fmt: skip
        plan.save(file)
        assert (Plan.load(file), Plan.load(file).hash) == (plan, plan.hash)
        on.save(file)
        assert Machine.load(file) == on
        with pytest.raises(
            FileError, match=r"Plan.load: .* is no plan \(ValueError: the format is not "
        ):
            Plan.load(file)
    whole = ONE_NODE.to_dict()
    for wrong, why in (
        ([], "ValueError: the format is not 'tessera machine 1'"), ({}, "ValueError: the format is not"),
        ({**whole, "levels": []}, "ValueError: levels need sizes of 1 or more"),
        ({**whole, "levels": [{**whole["levels"][0], "size": 0}]},
        "ValueError: levels need sizes of 1 or more"),
        ({k: v for k, v in whole.items() if k != "name"}, "KeyError: 'name'"),
    ):  # fmt: skip
        file.write_text(json.dumps(wrong))
        with pytest.raises(FileError, match=f"no description of a machine .{why}"):
            Machine.load(file)
    for field in ("layers", "width", "heads", "vocabulary", "length"):
        with pytest.raises(OperandError, match=f"Transformer: {field} is 0, expected at least 1"):
            replace(SMALL, **{field: 0})
    assert described("gpt-175b") is described(MODELS["gpt-175b"]) is MODELS["gpt-175b"]
    with pytest.raises(OperandError, match="plan: there is no model 'x'; known are gpt-oss-120b, "):
        described("x")
