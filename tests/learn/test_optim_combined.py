"""Chains, groups, masks, accumulation, averages, masters of narrow parameters, Muon and the newer
schedules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f32, f64, nn, op
from tessera.core.errors import OperandError, TreeError
from tests.support.runners.tolerance import assert_same_bits

RUNS_ON = "numpy"
optim = ts.optim


def params(dtype: Any = f64) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"w": ts.tensor(rng.normal(size=(3, 2)), dtype),
        "b": ts.tensor(rng.normal(size=2), dtype)}  # fmt: skip


def gradients(seed: int, dtype: Any = f64) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"w": ts.tensor(rng.normal(size=(3, 2)), dtype),
        "b": ts.tensor(rng.normal(size=2), dtype)}  # fmt: skip


def walked(opt: Any, p: Any, count: int = 4, jit: bool = False) -> tuple[Any, Any]:
    state, update = opt.init(p), ts.jit(opt.update) if jit else opt.update
    for i in range(count):
        p, state = update(gradients(i, p["w"].dtype), state, p)
    return p, state


def same(a: Any, b: Any) -> None:
    for x, y in zip(ts.tree.leaves(a), ts.tree.leaves(b), strict=True):
        assert_same_bits(x, y)


def test_a_chain_is_its_parts_in_order():
    p, state, opt = params(), None, optim.adam(0.1)
    chained = optim.chain(optim.clip_norm(0.5), optim.weight_decay(0.1), lambda g: ts.tree.map(op.neg, g),
        opt)  # fmt: skip
    got, _ = walked(chained, p)
    state = opt.init(p)
    for i in range(4):
        g = optim.clip_by_global_norm(gradients(i), 0.5)
        g = ts.tree.map(lambda g, p: -(g + 0.1 * p), g, p)
        p, state = opt.update(g, state, p)
    same(got, p)


def test_groups_have_their_own_optimisers_and_none_is_frozen():
    p = params() | {"frozen": ts.ones((2,), "f64")}
    label = lambda n, x: None if n == "frozen" else "matrix" if x.ndim > 1 else "rest"  # noqa: E731
    opt = optim.groups({"matrix": optim.sgd(0.1), "rest": optim.adam(0.2)}, label)
    state = opt.init(p)
    got, state = opt.update(gradients(0) | {"frozen": ts.ones((2,), "f64")}, state, p)
    assert_same_bits(got["w"],
        optim.sgd(0.1).update(gradients(0)["w"], {"step": ts.tensor(0)}, p["w"])[0])  # fmt: skip
    np.testing.assert_allclose(got["b"], p["b"] - 0.2 * op.sign(gradients(0)["b"]), rtol=1e-6)
    assert got["frozen"] is p["frozen"]
    assert set(state["inner"]) == {"matrix", "rest"}
    tree = {"w": "matrix", "b": "rest", "frozen": None}
    by_tree = optim.groups({"matrix": optim.sgd(0.1), "rest": optim.adam(0.2)}, tree)
    same(by_tree.update(gradients(0) | {"frozen": p["b"]}, by_tree.init(p), p)[0], got)


def test_a_mask_leaves_the_others_alone():
    for mask in (lambda n, p: n == "b", {"w": False, "b": True}):
        got, _ = walked(optim.masked(optim.sgd(0.1), mask), params())
        want, _ = walked(optim.sgd(0.1), params())
        assert_same_bits(got["w"], params()["w"])
        assert_same_bits(got["b"], want["b"])


@pytest.mark.parametrize("jit", [False, True])
def test_accumulation_steps_with_the_mean(jit):
    opt = optim.accumulate(optim.adam(0.1), 2)
    got, state = walked(opt, params(), 5, jit)
    inner = optim.adam(0.1)
    p, held = params(), inner.init(params())
    for i in (0, 2):
        mean = ts.tree.map(lambda a, b: (a + b) / 2, gradients(i), gradients(i + 1))
        p, held = inner.update(mean, held, p)
    for a, b in zip(ts.tree.leaves(got), ts.tree.leaves(p), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert (int(state["count"]), int(state["inner"]["step"])) == (1, 2)


def test_the_average_follows_the_parameters():
    p, opt = params(bf16), optim.ema(optim.sgd(0.1), 0.2)
    state = opt.init(p)
    average = p["w"].astype(f32).numpy().astype(float)
    for i in range(3):
        p, state = opt.update(gradients(i, bf16), state, p)
        keep = min(0.2, (1 + i) / (10 + i))
        average += (1 - keep) * (p["w"].astype(f32).numpy() - average)
    assert state["ema"]["w"].dtype is f32
    np.testing.assert_allclose(state["ema"]["w"], average, rtol=1e-6)


def test_small_steps_of_narrow_parameters_add_up_in_their_masters():
    """A step of 1e-3 is less than half of what bf16 can tell from 1: without masters nothing would move."""
    for opt in (optim.sgd(1e-3), optim.adam(1e-3), optim.lion(1e-3)):
        p: Any = {"w": ts.ones((2,), "bf16"), "b": ts.ones((2,))}
        state = opt.init(p)
        assert state["master"]["w"].dtype is f32
        assert state["master"]["b"] is None
        step = ts.jit(opt.update)
        for _ in range(100):
            p, state = step(ts.tree.map(op.ones_like, p), state, p)
        assert p["w"].dtype is bf16
        np.testing.assert_allclose(p["w"].astype(f32), p["b"], rtol=4e-3)
        np.testing.assert_allclose(p["b"], 0.9, rtol=1e-4)
    assert "master" not in optim.adam(1e-3).init(params())


def test_a_parameter_that_was_changed_is_where_the_next_step_starts():
    opt = optim.sgd(0.5)
    p = ts.ones((2,), "bf16")
    _, state = opt.update(p, opt.init(p), p)
    got, _ = opt.update(p, state, ts.full((2,), 4.0, "bf16"))
    assert got.numpy().astype(float).tolist() == [3.5, 3.5]


def test_muon_steps_along_the_orthogonal_factor():
    rng = np.random.default_rng(0)
    for shape in ((4, 7), (7, 4)):
        g, w = rng.normal(size=(2, *shape))
        opt = optim.muon(0.1, nesterov=False, momentum=0.0, steps=5)
        got, _ = opt.update(ts.tensor(g), opt.init(ts.tensor(w)), ts.tensor(w))
        step = (w - got.numpy()) / 0.1 / np.sqrt(max(1, shape[0] / shape[1]))
        u, s, v = np.linalg.svd(g, full_matrices=False)
        assert 0.6 < np.linalg.svd(step)[1].min() <= np.linalg.svd(step)[1].max() < 1.25
        x = s / np.linalg.norm(s)  # the polynomial acts on the singular values alone
        for _ in range(5):
            x = 3.4445 * x - 4.7750 * x**3 + 2.0315 * x**5
        np.testing.assert_allclose(step, (u * x) @ v, rtol=1e-9, atol=1e-12)


def test_wrong_arguments_are_named():
    with pytest.raises(OperandError, match="chain: the last part must be an optimiser, such as"):
        optim.chain(optim.clip_norm(1.0))
    with pytest.raises(OperandError, match="chain: got Optimizer before the last part, expected"):
        optim.chain(optim.sgd(0.1), optim.sgd(0.1))
    with pytest.raises(
        OperandError, match=r"groups: a parameter has the label 'x', expected None or"
    ):
        optim.groups({"y": optim.sgd(0.1)}, lambda n, p: "x").init(params())
    with pytest.raises(OperandError, match="accumulate: every is 0, expected at least 1"):
        optim.accumulate(optim.sgd(0.1), 0)
    with pytest.raises(OperandError, match=r"ema: decay is 2\.0, expected 0 to 1"):
        optim.ema(optim.sgd(0.1), 2.0)
    with pytest.raises(
        OperandError, match=r"muon: a parameter is f64\[2\], expected matrices; give"
    ):
        walked(optim.muon(0.1), params())
    with pytest.raises(
        OperandError, match=r"sgd: nesterov with momentum 0\.0 and dampening 0\.0; exp"
    ):
        optim.sgd(0.1, nesterov=True)
    with pytest.raises(
        OperandError, match=r"join: got 1 schedules and boundaries \[3\], expected ris"
    ):
        optim.join([optim.constant(1.0)], [3])
    opt, p = optim.adam(0.1), params()
    with pytest.raises(
        TreeError, match=r"update: 'm' of the state is \{'w': \*\}, expected \{'b': \*"
    ):
        opt.update(p, opt.init({"w": p["w"]}), p)
    with pytest.raises(OperandError, match=r"update: the state is dict \{'step'"):
        optim.chain(opt).update(p, opt.init(p), p)


def test_an_optimiser_steps_a_module():
    m = nn.MLP([3, 8, 1], op.tanh, key=ts.key(0))
    opt = optim.chain(optim.clip_norm(1.0), optim.adamw(3e-2))
    x = op.random.normal(ts.key(1), (64, 3))

    @ts.jit
    def step(m: Any, state: Any) -> Any:
        loss, g = ts.value_and_grad(lambda m: op.mse(m(x), x[:, :1] * x[:, 1:2]))(m)
        return loss, *opt.update(g, state, m)

    state, losses = opt.init(m), []
    for _ in range(60):
        loss, m, state = step(m, state)
        losses.append(loss.item())
    assert isinstance(m, nn.MLP)
    assert losses[-1] < 0.5 * losses[0]
