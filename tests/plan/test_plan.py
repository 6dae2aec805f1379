"""Plans: costs obey their laws, simulated steps match published ones, and collectives are those of the
run.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from examples.distributed import gpt as small
from tessera import dist, op
from tessera.core import tree
from tessera.core.errors import FileError, OperandError, OutOfMemoryError
from tessera.core.flags import override
from tessera.models import gpt_oss
from tessera.models.config import Config
from tessera.plan.choice import Choice, in_flight
from tessera.plan.cost import DeviceGroup, MatrixProducts, collective_time, product_time, spans
from tessera.plan.machine import MACHINES, Machine, machine, ranks
from tessera.plan.model import GPT_OSS_120B, LayerCut, Transformer, described, gpt
from tessera.plan.order import order_of
from tessera.plan.simulate import _StepRun, simulate, stages_of
from tessera.plan.stages import cut_stages, quick_cut

ROOT = Path(__file__).parents[2]

# Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters" (2021), table 1:
# billions of
# parameters, heads, width, layers, tp, pp, GPUs, batch, teraFLOP/s of a GPU; then the microbatch
# and the parts of a
# device, which the paper does not give: those with the shortest simulated step.
MEGATRON = [
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 16, 1),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 8, 6),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 5),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 5),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 6),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 2),
]
# Table 2 of the same paper, with microbatches of one: layers, width, heads, pp, GPUs, batch, teraFLOP/s.
HELD_OUT = [
    (96, 12288, 96, 12, 384, 1536, 153),
    (96, 12288, 96, 12, 768, 1536, 149),
    (96, 12288, 96, 12, 1536, 1536, 141),
    (105, 20480, 128, 35, 560, 2240, 171),
    (105, 20480, 128, 35, 1120, 2240, 167),
    (105, 20480, 128, 35, 2240, 2240, 159),
]


def published_step(layers, width, batch, gpus, tflops, length=2048, vocabulary=51200):
    """Seconds by the paper's count of operations (its equation 3, with recomputation)."""
    count = 96 * batch * length * layers * width**2
    count *= 1 + length / (6 * width) + vocabulary / (16 * layers * width)
    return count / gpus / (tflops * 1e12)


def megatron(layers, width, heads):
    """A GPT as it was then: attention that keeps its scores, dropout."""
    return replace(gpt(f"{layers}x{width}", layers, width, heads), flash=False, dropout=True)


def as_published(layers, tp, pp, gpus, micro, chunks):
    """The layout of the paper: recomputation, collectives that wait, equal stages."""
    sizes = [layers // (pp * chunks)] * (pp * chunks)
    sizes[0] += 1  # the embedding
    sizes[-1] += 1  # the head
    schedule = "interleaved" if chunks > 1 else "1f1b"
    return Choice(
        gpus // (tp * pp), tp, pp, 1, 0, micro, chunks, schedule, "full", False, False, tuple(sizes)
    )


@pytest.mark.parametrize("row", MEGATRON, ids=[f"{r[0]}B" for r in MEGATRON])
def test_simulated_steps_are_those_that_megatron_published(row):
    billions, heads, width, layers, tp, pp, gpus, batch, tflops, micro, chunks = row
    model = megatron(layers, width, heads)
    assert round(model.params / 1e9, 1) == billions
    on = machine("128xa100", gpus)
    s = simulate(model, on, as_published(layers, tp, pp, gpus, micro, chunks), batch)
    assert abs(s.step / published_step(layers, width, batch, gpus, tflops) - 1) < 0.15
    assert s.peak.total < on.device.memory


@pytest.mark.parametrize("row", HELD_OUT, ids=[f"{r[1]}-{r[4]}" for r in HELD_OUT])
def test_steps_that_no_constant_was_chosen_by(row):
    layers, width, heads, pp, gpus, batch, tflops = row
    choice = as_published(layers, 8, pp, gpus, 1, 1)
    s = simulate(megatron(layers, width, heads), machine("128xa100", gpus), choice, batch)
    assert abs(s.step / published_step(layers, width, batch, gpus, tflops) - 1) < 0.1


# Models ---------------------------------------------------------------------------------------------


class Counting:
    """A source of weights that knows only their sizes."""

    def __init__(self):
        self.total = 0

    def vector(self, name, *shape):
        self.total += int(np.prod(shape))

    matrix = table = raw = vector

    def has(self, name):
        return False


def test_gpt_oss_120b_has_the_parameters_of_the_model():
    source = Counting()
    gpt_oss.params(gpt_oss.shape(Config(GPT_OSS_120B)), source)
    assert described("gpt-oss-120b").params == source.total == 116_829_156_672


@pytest.mark.parametrize("tp", [1, 4, 8])
@pytest.mark.parametrize("sequence", [False, True])
def test_kept_activations_are_those_of_the_published_formula(tp, sequence):
    """Korthikanti et al. (2022): s b h (10 + 24 / t + 5 a s / (h t)), all of it over t with sequence
    parallelism.
    """
    h, a, s, b = 1024, 16, 512, 3
    m = replace(megatron(2, h, a), length=s)
    block = m.on_device(LayerCut(tp=tp, micro=b, sequence=sequence))[1]
    whole = 10 / tp if sequence else 10
    assert block.kept == pytest.approx(s * b * h * (whole + 24 / tp + 5 * a * s / (h * tp)))


def test_the_operations_of_a_step_are_those_of_the_published_formula():
    m = megatron(24, 2304, 24)
    want = published_step(24, 2304, 512, 1, 1e-12)
    assert m.flops(512, passes=4) == pytest.approx(
        want, rel=0.02
    )  # the head is not recomputed there


def test_a_config_of_llama():
    c = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "vocab_size": 128256}  # fmt: skip
    assert Transformer.of_config(c, "llama-3-8b").params == 8_030_261_248


# Costs ----------------------------------------------------------------------------------------------


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_group_spans_all_its_members(size, stride):
    joined = [n for n, _ in spans(DeviceGroup(size, stride), MACHINES["128xa100"])]
    assert int(np.prod(joined)) == size


def test_groups_in_a_node_use_its_links():
    m = MACHINES["128xa100"]
    names = [[link.name for _, link in spans(DeviceGroup(8, s), m)] for s in (1, 4, 8)]
    assert names == [["NVLink 3"], ["NVLink 3", "InfiniBand HDR"], ["InfiniBand HDR"]]


@given(st.integers(2, 512), st.floats(1e3, 1e10))
def test_reducing_is_scattering_and_gathering(size, nbytes):
    """By bytes; latencies differ, since trees and rings do."""
    m = MACHINES["1024xh100"]
    still = replace(
        m, levels=tuple(replace(v, link=replace(v.link, latency=0.0)) for v in m.levels)
    )
    kinds = {
        k: collective_time(k, nbytes, DeviceGroup(size), still)
        for k in ("all_reduce", "reduce_scatter", "all_gather")
    }
    assert kinds["all_reduce"] == pytest.approx(kinds["reduce_scatter"] + kinds["all_gather"])
    assert (
        collective_time("all_reduce", nbytes, DeviceGroup(size), still.with_reduction())
        < kinds["all_reduce"] * 1.001
    )


@given(
    st.sampled_from([64, 128, 1000, 4096]),
    st.sampled_from([64, 300, 4096]),
    st.sampled_from([64, 999, 8192]),
)
def test_products_take_at_least_the_roofline(m, n, k):
    d = MACHINES["8xh100"].device
    p = MatrixProducts(m, n, k)
    least = max(p.flops / d.peak("bf16"), p.bytes(2) / d.bandwidth)
    assert least < product_time(p, d) < 100 * least + 1e-4


# Stages and schedules -------------------------------------------------------------------------------


@given(st.lists(st.floats(0.1, 5), min_size=3, max_size=9), st.integers(1, 4))
def test_stages_have_the_least_longest(times, parts):
    if parts > len(times):
        assert cut_stages(times, parts) is None
        return
    sizes = cut_stages(times, parts)

    def longest(ends):
        return max(sum(times[a:b]) for a, b in itertools.pairwise((0, *ends, len(times))))

    best = min(longest(e) for e in itertools.combinations(range(1, len(times)), parts - 1))
    assert longest(list(itertools.accumulate(sizes))[:-1]) == pytest.approx(best)
    assert max(quick_cut(times, parts)) == pytest.approx(best, rel=2e-3)


def test_stages_that_must_fit():
    """The first device keeps most microbatches: it gets fewer layers where memory is short."""
    assert cut_stages([1.0] * 8, 2) == (4, 4)
    assert cut_stages([1.0] * 8, 2, lambda stage, a, b: b - a <= (3 if stage == 0 else 8)) == (3, 5)
    assert cut_stages([1.0] * 8, 2, lambda stage, a, b: b - a <= 3) is None


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)]
)
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_the_bubble_is_the_published_one(schedule, chunks, devices):
    """(p - 1) / v of m + (p - 1) / v microbatches, with equal stages and links that cost nothing."""
    m = 16
    model = megatron(devices * chunks * 4 - 2, 256, 4)
    on = replace(machine("8xa100"), levels=tuple(
        replace(v, link=replace(v.link, latency=0.0, bandwidth=1e30)) for v in machine("8xa100").levels
    ))  # fmt: skip
    c = Choice(1, 1, devices, schedule=schedule, chunks=chunks, stages=(4,) * devices * chunks)
    stages = stages_of(model, on, c, m)
    even = replace_times(stages)
    s = simulated(c, even, m)
    ideal = (devices - 1) / chunks
    assert s == pytest.approx(ideal / (m + ideal), abs=1e-9)


def replace_times(stages):
    return [replace(s, forward=1.0, backward=2.0) for s in stages]


def simulated(c, stages, m):
    run = _StepRun(c, stages, m, 0.0, False)
    run.run()
    busy = sum(d.busy for d in run.devices)
    assert [d.most for d in run.devices] == [in_flight(c, i, m) for i in range(c.pp)]
    return 1 - busy / (c.pp * max(d.free for d in run.devices))


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved"]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_every_pass_runs_once(schedule, devices, rounds, chunks):
    chunks = chunks if schedule == "interleaved" else 1
    m = devices * rounds
    found = [t for i in range(devices) for t in order_of(schedule, i, devices, m, chunks)]
    want = itertools.product([False, True], range(m), range(devices * chunks))
    assert sorted(found) == sorted(want)


# Plans ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "on", "gpus"), [
    ("gpt-oss-120b", "nvl72", 72), ("gpt-175b", "128xa100", 1024), ("gpt-175b", "1024xa100", 8192),
])  # fmt: skip
def test_large_models_are_planned_within_a_minute(model, on, gpus, tmp_path):
    begin = time.perf_counter()
    p = dist.plan(model, on)
    assert time.perf_counter() - begin < 60
    assert p.choice.devices == gpus
    assert p.memory.total <= p.machine.device.memory
    assert 0.3 < p.utilization < 0.7
    again = simulate(p.model, p.machine, p.choice, p.batch)
    assert (again.step, again.peak) == (p.step, p.memory)
    p.save(tmp_path / "plan.json")
    loaded = dist.Plan.load(tmp_path / "plan.json")
    assert (loaded, loaded.hash, loaded.svg()) == (p, p.hash, p.svg())
    assert "because  it has the shortest simulated step of" in p.explain()
    ET.fromstring(p.svg())


def test_a_plan_is_at_least_as_good_as_a_layout_by_hand():
    model, on = described("gpt-175b"), machine("128xa100")
    p = dist.plan(model, on, batch=2048)
    by_hand = simulate(model, on, Choice(16, 8, 8, micro=1, recompute="none"), 2048)
    assert p.step <= by_hand.step


def test_other_numbers_give_another_hash():
    p = dist.plan("gpt-oss-20b", "8xh100", batch=64)
    assert dist.plan("gpt-oss-20b", "8xh100", batch=64).hash == p.hash
    assert dist.plan("gpt-oss-20b", "8xh100", batch=128).hash != p.hash
    faster = dist.plan("gpt-oss-20b", machine("8xh100").with_reduction(), batch=64)
    assert faster.hash != p.hash
    assert faster.step <= p.step


@pytest.mark.parametrize("name", MACHINES)
def test_files_of_machines(name):
    assert (
        Machine.load(ROOT / "examples" / "distributed" / "machines" / f"{name}.json")
        == MACHINES[name]
    )


# Functions ------------------------------------------------------------------------------------------


def mlp(params, x):
    return op.mean(op.square(op.relu(x @ params["up"]) @ params["down"] - x))


def test_a_wide_function_is_cut_by_tensors():
    """Much weight, few rows: cutting the pair of matrices costs one sum."""
    types = {"up": ts.Tensor[1024, 8192, ts.f32], "down": ts.Tensor[8192, 1024, ts.f32]}
    with override(target="numpy"):  # nothing is compiled, which takes long
        p = dist.plan(mlp, ranks(4), types, ts.Tensor[8, 1024, ts.f32])
    assert (p.choice.dp, p.choice.tp, dict(p.rules)) == (1, 4, {"up": 1, "down": 0})
    assert {(c.kind, c.axis) for c in p.collectives} == {("all_reduce", "tp")}
    assert dist.strategy_of(p).rules == (("down", "tp", 0), ("up", "tp", 1))


CASES = {
    "data": {"zero": 0, "tp": 1}, "zero1": {"zero": 1, "tp": 1}, "zero2": {"zero": 2, "tp": 1},
    "zero3": {"zero": 3, "tp": 1}, "tensor": {"zero": 0, "tp": 2, "rules": small.SPLIT},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_plan_lists_the_collectives_of_the_run(case):
    params, tokens = small.init(), np.zeros((16, 17), np.int64)
    optimizer = ts.optim.adam(1e-3)
    with override(target="numpy"):
        p = dist.plan(small.loss, ranks(2), params, tokens, optimizer=optimizer, **CASES[case])
    s = dist.strategy_of(p)
    placed = s.params(params), s.state(optimizer.init(params)), s.batch(tokens)
    report = dist.explain(s.step(small.loss, optimizer), *placed)
    found = {}
    for c in report:
        n, total = found.get((c.kind, c.axis), (0, 0))
        found[c.kind, c.axis] = n + 1, total + c.bytes
    assert {(c.kind, c.axis): (c.count, c.bytes) for c in p.collectives} == found
    held = [sum(v.local(0).numpy().nbytes for v in tree.leaves(t)) for t in placed[:2]]
    assert [p.memory.params, p.memory.state] == held


SENT = """
import json, sys
import numpy as np
import tessera as ts
from examples.distributed import gpt
from tessera import dist
from tessera.core.ranks import engine
from tessera.plan.machine import ranks
sent, real = [0], engine().exchange
def counted(what, group, arrays):
    sent[0] += sum(x.nbytes for r, x in zip(group, arrays) if r != engine().rank)
    return real(what, group, arrays)
params, tokens, optimizer = gpt.init(), np.zeros((16, 17), np.int64), ts.optim.adam(1e-3)
found = {}
for case, options in json.loads(sys.argv[1]).items():
    p = dist.plan(gpt.loss, ranks(2), params, tokens, optimizer=optimizer, **options)
    s = dist.strategy_of(p)
    step, placed = s.step(gpt.loss, optimizer), (s.params(params), s.state(optimizer.init(params)), s.batch(tokens))
    engine().exchange = counted
    sent[0] = 0
    step(*placed)
    engine().exchange = real
    total = dist.all_reduce(float(sent[0]))
    found[case] = float(total), 2 * sum(c.bytes for c in p.collectives)
if dist.rank() == 0:
    print(json.dumps(found))
"""  # noqa: E501


@pytest.mark.parametrize(
    "cases",
    [["zero3", "tensor"], pytest.param(list(CASES), marks=pytest.mark.deep)],
    ids=["two", "all"],
)
def test_ranks_send_the_bytes_of_the_plan(cases, tmp_path):
    script, wanted = tmp_path / "sent.py", {k: CASES[k] for k in cases}
    script.write_text(SENT)
    env = {**os.environ, "TESSERA_TARGET": "numpy", "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "tessera.cli",
        "run",
        "-n",
        "2",
        str(script),
        json.dumps(wanted),
    ]
    done = subprocess.run(
        command, check=False, env=env, cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == set(wanted)
    assert all(real == planned for real, planned in found.values()), found


# Errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "kind", "text"), [
    (lambda: dist.plan("gpt-4", "nvl72"), OperandError,
    "plan: there is no model 'gpt-4'; known are gpt-oss-120b"),
    (lambda: dist.plan("gpt-175b", "tpu"), OperandError, "machine: there is no 'tpu'; known are 8xh100"),
    (lambda: dist.plan(3, "8xh100"), OperandError,
    "plan: expected a dist.Transformer, the name of one, or a loss"),
    (lambda: dist.plan("gpt-175b", "8xh100"), OutOfMemoryError,
    "plan: gpt-175b does not fit 8xh100: the least of"),
    (lambda: dist.plan("gpt-175b", "nvl72", 3), OperandError, "plan: types belong to the plan of a function"),
    (lambda: dist.plan(mlp, ranks(2), {"w": ts.Tensor["n", ts.f32]}), OperandError,
    "sizes that are not numbers"),
    (lambda: dist.plan(mlp, ranks(4), {"up": ts.Tensor[8, 8, ts.f32], "down": ts.Tensor[8, 8, ts.f32]},
                       ts.Tensor[8, 8, ts.f32], tp=3), OperandError,
                       "plan: tp=3 and zero=None leave no layout of 4"),
    (lambda: dist.plan("gpt-175b", "nvl72", batch=0), OperandError, "plan: batch is 0, expected at least 1"),
    (lambda: machine("128xa100", 12), OperandError,
    "machine: 12 devices are no whole groups of 8 of 128xa100"),
    (lambda: Transformer("x", 0, 8, 1, 10), OperandError, "Transformer: layers is 0, expected at least 1"),
    (lambda: Transformer.of_config({}), OperandError,
    "Transformer.of_config: no hidden_size or num_hidden_layers"),
    (lambda: MACHINES["8xa100"].device.peak("i4"), OperandError,
    "machine: A100-80GB has no speed for i4; it has f16"),
    (lambda: simulate(gpt("x", 2, 8, 1), machine("8xa100"), Choice(3), 8), OperandError,
    "simulate: 3 replicas of"),
    (lambda: simulate(gpt("x", 8, 8, 1), machine("8xa100"), Choice(1, 1, 2, chunks=2), 3), OperandError,
     "simulate: an interleaved pipeline of 2 devices needs a multiple of 2 microbatches, got 3"),
    (lambda: simulate(gpt("x", 8, 8, 1), machine("8xa100"), Choice(1, 1, 2, stages=(3, 3)), 4), OperandError,
     "simulate: stages (3, 3) hold 6 layers in 2 parts, expected 10 layers in 2 parts"),
    (lambda: dist.strategy_of(dist.plan("gpt-oss-20b", "8xh100", batch=8)), OperandError,
    "strategy_of: the plan of"),
], ids=itertools.count())  # fmt: skip
def test_wrong_plans(make, kind, text):
    with pytest.raises(kind) as e:
        make()
    assert text in e.value.message


@pytest.mark.parametrize("text", ["", "{}", '{"format": "tessera machine 1"}', "[1]"])
def test_files_that_are_no_machine_and_no_plan(text, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(FileError, match=r"Machine.load: .*x.json is no description of a machine"):
        Machine.load(path)
    with pytest.raises(FileError, match=r"Plan.load: .*x.json is no plan"):
        dist.Plan.load(path)
