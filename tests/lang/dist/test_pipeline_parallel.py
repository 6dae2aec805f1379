"""Pipelines and mixtures of experts on meshes, beside the whole network and plain loops."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.errors import OperandError, ShapeError
from tessera.core.pipeline import Schedule

SPEC = dist.ShardSpec


@pytest.fixture(autouse=True)
def _interpreted():
    with ts.core.flags.override(target="numpy"):
        yield


def tensors(x):
    return ts.tree.map(ts.tensor, x)


# Schedules ----------------------------------------------------------------------------------------

SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3)]


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_schedules_run_every_unit_once_and_in_order(name, chunks, stages):
    s = Schedule(name, stages, 8, chunks)
    ahead, back = {}, {}
    for t in range(s.ticks):
        for p in range(stages):
            for table, unit in ((ahead, s.forward(p, t)), (back, s.backward(p, t))):
                if unit is not None:
                    key = (unit[0], unit[1] * stages + p)  # a microbatch at a part of the network
                    assert key not in table
                    table[key] = t
    parts = stages * chunks
    assert len(ahead) == len(back) == 8 * parts
    for m in range(8):
        for k in range(parts):
            if k:  # what is sent in a tick is there in the next one
                assert ahead[m, k] == ahead[m, k - 1] + 1
                assert back[m, k - 1] == back[m, k] + 1
            assert back[m, k] >= ahead[m, k]
    # No input is overwritten before it is used.
    for p in range(stages):
        mine = sorted((t, back[key]) for key, t in ahead.items() if key[1] % stages == p)
        for (begin, end), (_, _) in zip(mine, mine, strict=True):
            assert sum(a <= end and b >= begin and a > begin for a, b in mine) <= 2 * s.kept
            later = [a for a, _ in mine if a == begin + s.kept]
            assert not later or later[0] > end


def test_bubbles_are_those_of_the_literature():
    """(p - 1) / (m + p - 1) for GPipe and 1F1B, and a chunk-th of the idle ticks when interleaved (Narayanan et al. 2021)."""
    for p, m in ((2, 4), (4, 8), (8, 32)):
        plain = (p - 1) / (m + p - 1)
        assert Schedule("gpipe", p, m).bubble() == pytest.approx(plain)
        assert Schedule("1f1b", p, m).bubble() == pytest.approx(plain)
        assert Schedule("interleaved", p, m, 2).bubble() < plain
    assert Schedule("gpipe", 4, 32).kept == 32
    assert Schedule("1f1b", 4, 32).kept == 7


def test_schedules_name_what_is_wrong():
    with pytest.raises(OperandError) as e:
        Schedule("zigzag", 2, 4)
    assert (
        e.value.message
        == "pipeline: schedule is 'zigzag', expected one of gpipe, 1f1b, interleaved"
    )
    with pytest.raises(OperandError) as e:
        Schedule("interleaved", 2, 3, 2)
    assert e.value.message == (
        "pipeline: interleaved needs a multiple of 2 microbatches, the number of stages, got 3"
    )
    with pytest.raises(OperandError) as e:
        Schedule("1f1b", 2, 3, 2)
    assert e.value.message == (
        "pipeline: schedule '1f1b' with 2 chunks; interleaved needs 2 or more, the others 1"
    )


# Pipelines ----------------------------------------------------------------------------------------

WIDTH = 6


def first(p, x, y):
    return x @ p["w"]


def block(p, h):
    return h + op.tanh(h @ p["up"]) @ p["down"]


def last(p, h, x, y):
    return op.mean(op.square(h @ p["w"] - y))


def network(layers=4):
    rng = np.random.default_rng(0)
    blocks = [
        {"up": rng.normal(size=(WIDTH, 8)), "down": rng.normal(size=(8, WIDTH))}
        for _ in range(layers)
    ]
    ends = {"first": {"w": rng.normal(size=(3, WIDTH))}, "last": {"w": rng.normal(size=(WIDTH, 2))}}
    return tensors({"blocks": blocks, **ends}), rng.normal(size=(16, 3)), rng.normal(size=(16, 2))


def whole(p, x, y):
    h = first(p["first"], x, y)
    for b in p["blocks"]:
        h = block(b, h)
    return last(p["last"], h, x, y)


CASES = [
    ("gpipe", 1, ("dp", "pp"), (2, 2)), ("1f1b", 1, ("dp", "pp", "tp"), (2, 2, 2)),
    ("interleaved", 2, ("pp",), (2,)), pytest.param("1f1b", 1, ("pp",), (4,), marks=pytest.mark.deep),
    pytest.param("interleaved", 2, ("dp", "pp", "tp"), (2, 2, 2), marks=pytest.mark.deep),
]  # fmt: skip


@pytest.mark.parametrize(("schedule", "chunks", "axes", "shape"), CASES)
def test_a_pipeline_has_the_gradients_of_the_whole_network(schedule, chunks, axes, shape):
    params, x, y = network()
    value, grads = ts.jit(ts.value_and_grad(whole))(params, ts.tensor(x), ts.tensor(y))
    mesh = dist.Mesh(axes, shape=shape)
    s = dist.strategy.pipeline(mesh, "pp")
    s = s + dist.strategy.data(mesh, "dp") if "dp" in axes else s
    s = s + dist.strategy.tensor(mesh, "tp", {"up": -1, "down": -2}) if "tp" in axes else s
    stages = mesh.size("pp")
    loss = dist.pipeline(
        first, block, last, mesh, "pp", microbatches=4, schedule=schedule, chunks=chunks
    )
    sharded = s.params({**params, "blocks": dist.stacked(params["blocks"], stages, chunks)})
    f = ts.jit(ts.value_and_grad(loss))
    found, ours = f(sharded, s.batch(x), s.batch(y))
    np.testing.assert_allclose(float(found), float(value), rtol=1e-6)
    wanted = {**grads, "blocks": dist.stacked(grads["blocks"], stages, chunks)}
    for a, b in zip(ts.tree.leaves(ours), ts.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a.full(), b, rtol=1e-10, atol=1e-13)
    report = dist.explain(f, sharded, s.batch(x), s.batch(y))
    plan = Schedule(schedule, stages, 4, chunks)
    moved = [c for c in report if c.kind == "permute"]
    assert [c.times for c in moved] == [plan.ticks] * 2
    # Gradients of a shard's rows are added over dp once, not in every tick, but for the loss itself.
    often = [c for c in report if c.axis == "dp" and c.times > 1]
    assert all("[]" in c.value for c in often), str(report)


def test_pipelines_name_what_is_wrong():
    mesh = dist.Mesh(["pp"], shape=(2,))
    params, x, y = network()
    loss = dist.pipeline(first, block, last, mesh, microbatches=3)
    with pytest.raises(ShapeError) as e:
        loss(params, x, y)
    assert e.value.message == (
        "pipeline: a layer's parameters are f64[8,6], expected (1, 2, layers, ...) as dist.stacked(blocks, 2, 1) makes them"
    )
    with pytest.raises(ShapeError) as e:
        dist.stacked(params["blocks"], 3)
    assert e.value.message == "stacked: 4 layers do not divide into 3 stages of 1 chunks"
    params = dist.replicate({**params, "blocks": dist.stacked(params["blocks"], 2)}, mesh)
    with pytest.raises(ShapeError) as e:
        loss(params, dist.replicate(x, mesh), dist.replicate(y, mesh))
    assert e.value.message == (
        "pipeline: a batch f64[16,3] does not divide into 3 microbatches along its first axis"
    )


# Experts ------------------------------------------------------------------------------------------

TOKENS, HIDDEN, COUNT, CHOICES = 16, 8, 8, 2


def run_expert(p, rows):
    return op.tanh(rows @ p["up"]) @ p["down"]


def mixture(kind):
    rng = np.random.default_rng(1)
    params = {
        "up": rng.normal(size=(COUNT, WIDTH, HIDDEN)), "down": rng.normal(size=(COUNT, HIDDEN, WIDTH))
    }  # fmt: skip
    index = np.stack([rng.permutation(COUNT)[:CHOICES] for _ in range(TOKENS)])
    if kind == "all to one":
        index = np.tile([5, 2], (TOKENS, 1))
    return params, rng.normal(size=(TOKENS, WIDTH)), rng.normal(size=(TOKENS, CHOICES)), index


def by_hand(params, x, weights, index):
    out = np.zeros_like(x)
    for t in range(TOKENS):
        for k in range(CHOICES):
            e = index[t, k]
            out[t] += weights[t, k] * (np.tanh(x[t] @ params["up"][e]) @ params["down"][e])
    return out


MESHES = [
    (("ep",), (4,)), (("dp", "ep", "tp"), (2, 2, 2)), pytest.param(("ep", "dp"), (8, 2), marks=pytest.mark.deep),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["spread", "all to one"])
@pytest.mark.parametrize(("axes", "shape"), MESHES)
def test_experts_drop_nothing(axes, shape, kind):
    params, x, weights, index = mixture(kind)
    mesh = dist.Mesh(axes, shape=shape)
    s = dist.strategy.expert(mesh, "ep")
    s = dist.strategy.data(mesh, "dp") + s if "dp" in axes else s
    s = s + dist.strategy.tensor(mesh, "tp", {"up": 2, "down": 1}) if "tp" in axes else s
    own = s.params({"experts": params})["experts"]
    args = own, s.batch(x), s.batch(weights), s.batch(index)
    f = ts.jit(lambda p, *rest: dist.experts(run_expert, p, *rest))
    np.testing.assert_allclose(f(*args).full(), by_hand(params, x, weights, index), rtol=1e-10)

    def loss(p, *rest):
        return op.sum(op.sin(dist.experts(run_expert, p, *rest)))

    g = ts.jit(ts.grad(loss, argnums=(0, 1, 2)))
    alone = g(tensors(params), *map(ts.tensor, (x, weights, index)))
    for a, b in zip(ts.tree.leaves(g(*args)), ts.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(a.full(), b, rtol=1e-9, atol=1e-13)
    kinds = dist.explain(f, *args).counts
    assert kinds["all_to_all"] == 3  # rows, whose they are, and results
    assert set(kinds) <= {"all_to_all", "all_reduce"}


def test_experts_name_what_is_wrong():
    params, x, weights, index = mixture("spread")
    with pytest.raises(ShapeError) as e:
        dist.experts(run_expert, tensors(params), x[:4], weights, index)
    assert e.value.message == (
        "experts: got x f64[4,6], weights f64[16,2] and index i64[16,2], expected (tokens, width), (tokens, k) and (tokens, k)"
    )
    mesh = dist.Mesh(["ep"], shape=(3,))
    with pytest.raises(ShapeError) as e:
        dist.experts(run_expert, dist.replicate(params, mesh), x, weights, index)
    assert e.value.message == (
        "experts: 8 experts do not divide over the 3 shards of mesh axis 'ep'"
    )


# Losses and clipping ------------------------------------------------------------------------------


def test_cross_entropy_over_a_cut_vocabulary_moves_a_number_a_token():
    mesh = dist.Mesh(["dp", "tp"], shape=(2, 4))
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(8, 40)), rng.integers(0, 40, 8)
    args = (
        dist.tensor(logits, SPEC((0, 1), ("dp", "tp")), mesh),
        dist.tensor(labels, SPEC((0,), ("dp",)), mesh),
    )
    f = ts.jit(ts.value_and_grad(op.cross_entropy))
    value, grad = f(*args)
    wanted, other = f(ts.tensor(logits), ts.tensor(labels))
    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-13)
    np.testing.assert_allclose(grad.full(), other, rtol=1e-11, atol=1e-15)
    report = dist.explain(f, *args)
    assert set(report.counts) == {"all_reduce"}
    assert max(c.bytes for c in report) <= 2 * 4 * 8  # the tokens of a shard, twice
    assert report.results[1] == "f64[8@dp, 40@tp]"


def test_clipping_by_the_global_norm_adds_a_number_a_tensor():
    mesh = dist.Mesh(["dp", "tp"], shape=(2, 2))
    rng = np.random.default_rng(3)
    grads = {"a": rng.normal(size=(6, 4)), "b": rng.normal(size=(5,))}
    sharded = dist.shard(grads, {"a": SPEC((0, 1), ("dp", "tp")), "b": SPEC((0,), ("dp",))}, mesh)
    f = ts.jit(lambda g: ts.optim.clip_by_global_norm(g, 1.0))
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    found = f(sharded)
    for k, g in grads.items():
        np.testing.assert_allclose(found[k].full(), g / (norm + 1e-6), rtol=1e-6)
        assert found[k].layout == sharded[k].layout
    report = dist.explain(f, sharded)
    assert set(report.counts) == {"all_reduce"}
    assert max(c.bytes for c in report) <= 16
