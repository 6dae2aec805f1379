"""Activation offload: what a policy keeps is written out by the forward pass and read back by the
backward pass.
"""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError, RuleError
from tessera.core.offloaded import held

WIDTH, ROWS, LAYERS = 32, 256, 8
WEIGHTS = [
    ts.tensor(np.random.default_rng(i).normal(size=(WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5)
    for i in range(LAYERS)
]
X = ts.tensor(np.random.default_rng(9).normal(size=(ROWS, WIDTH)).astype(np.float32))


def loss(x, policy):
    def layer(x, w):
        h = op.checkpoint_name(op.tanh(x @ w), "h")
        return op.sin(h) + 0.5 * h

    for w in WEIGHTS:
        x = ts.checkpoint(layer, policy=policy)(x, w)
    return op.sum(op.square(x))


def gradient(policy):
    return ts.jit(ts.grad(lambda x: loss(x, policy)))


@pytest.mark.parametrize("kept", ["dots", "everything", ["h"]], ids=str)
def test_offloaded_values_come_back_with_their_bits(kept):
    f = gradient(ts.offload(kept))
    want = gradient("nothing")(X).numpy()
    assert np.abs(want).max() > 0.1
    for _ in range(3):
        np.testing.assert_array_equal(f(X).numpy(), want)
    assert held() == 0


def test_the_peak_falls_by_what_is_written_out():
    """Between the passes the layers keep their products nowhere in the memory of the program."""
    kept, offloaded = (gradient(p).lower(X).memory.peak for p in ("dots", ts.offload("dots")))
    one = ROWS * WIDTH * 4
    assert kept - offloaded >= (LAYERS - 3) * one


def test_policies_combine():
    """One layer computes again, the next is written out."""

    def both(x):
        def layer(x, w):
            return op.tanh(x @ w)

        for i, w in enumerate(WEIGHTS):
            x = ts.checkpoint(layer, policy="nothing" if i % 2 else ts.offload("everything"))(x, w)
        return op.sum(x)

    def plain(x):
        for w in WEIGHTS:
            x = op.tanh(x @ w)
        return op.sum(x)

    np.testing.assert_array_equal(
        ts.jit(ts.grad(both))(X).numpy(), ts.jit(ts.grad(plain))(X).numpy()
    )


def test_it_is_in_graph_and_schedule():
    lowered = gradient(ts.offload("dots")).lower(X)
    for level in (lowered.graph, lowered.schedule):
        assert (str(level).count("offload_put"), str(level).count("offload_get")) == (
            LAYERS,
            LAYERS,
        )


def test_batches_write_out_whole():
    xs = ts.tensor(np.random.default_rng(3).normal(size=(3, 4, WIDTH)).astype(np.float32))
    made = ts.vmap(ts.grad(lambda x: loss(x, ts.offload("dots"))))(xs)
    want = ts.vmap(ts.grad(lambda x: loss(x, "nothing")))(xs)
    np.testing.assert_array_equal(made.numpy(), want.numpy())
    assert held() == 0


def test_second_derivatives_are_refused():
    with pytest.raises(
        RuleError, match="offload: a second derivative would need what is written out again"
    ):
        ts.jvp(ts.grad(lambda x: loss(x, ts.offload("dots"))), (X,), (X,))


def test_a_pullback_runs_once():
    _, back = ts.vjp(lambda x: loss(x, ts.offload("dots")), X)
    back(op.ones(()))
    with pytest.raises(RuleError, match="offload: what this derivative kept was already read back"):
        back(op.ones(()))
    assert held() == 0


@pytest.mark.parametrize(("policy", "text"), [
    ("nothing", "offload: policy is 'nothing', expected 'dots', 'everything' or a list of names"),
    ([], "offload: policy is [], expected names of values"),
    ([3], "offload: policy is [3], expected names of values"),
], ids=["nothing", "empty", "number"])  # fmt: skip
def test_wrong_policies(policy, text):
    with pytest.raises(OperandError) as e:
        ts.offload(policy)
    assert e.value.message == text
