"""Optimisers on complex parameters, whose steps have the phase of the gradient; norms in double precision."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import c64, op

OPTIMIZERS = {
    "sgd": ts.optim.sgd(0.1),
    "momentum": ts.optim.sgd(0.1, momentum=0.9),
    "adam": ts.optim.adam(0.1),
    "adamw": ts.optim.adamw(0.1),
    "rmsprop": ts.optim.rmsprop(0.1),
    "lion": ts.optim.lion(0.1),
}
GOAL = np.array([1 + 2j, -0.5 - 1j, 2j, -3.0], np.complex64)


def descend(optimizer, steps):
    """Walk from 0 towards GOAL; the gradient of |z - goal|^2 is conjugated, as docs/transforms.md says."""

    def loss(p):
        return op.sum(op.square(op.abs(p["z"] - ts.asarray(GOAL))))

    @ts.jit
    def step(p, state):
        grads = ts.tree.map(op.conj, ts.grad(loss)(p))
        return optimizer.update(grads, state, p)

    params = {"z": op.zeros((4,), c64)}
    state = optimizer.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params["z"].numpy(), state


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_step_goes_straight_to_the_goal(name):
    z, _ = descend(OPTIMIZERS[name], 1)
    np.testing.assert_allclose(z / np.abs(z), GOAL / np.abs(GOAL), atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_turned_problem_is_walked_the_same_way(name, monkeypatch):
    turn = np.exp(1j).astype(np.complex64)
    straight, _ = descend(OPTIMIZERS[name], 20)
    monkeypatch.setitem(globals(), "GOAL", GOAL * turn)
    turned, _ = descend(OPTIMIZERS[name], 20)
    np.testing.assert_allclose(turned, straight * turn, atol=2e-5)


def test_adam_arrives_and_its_second_moment_is_real():
    z, state = descend(ts.optim.adam(0.1), 300)
    np.testing.assert_allclose(z, GOAL, atol=0.05)
    assert state["v"]["z"].dtype is ts.f32
    assert state["m"]["z"].dtype is c64


def test_the_global_norm_counts_both_parts():
    grads = {"z": ts.tensor([3 + 4j]), "x": ts.tensor([12.0])}
    clipped = ts.optim.clip_by_global_norm(grads, 1.3)
    np.testing.assert_allclose(clipped["z"], [0.3 + 0.4j], rtol=1e-5)
    np.testing.assert_allclose(clipped["x"], [1.2], rtol=1e-5)
    assert clipped["z"].dtype is c64


def test_the_global_norm_of_doubles_is_taken_in_double_precision():
    grads = {"x": ts.tensor(np.array([3e30, 4e30])), "y": ts.tensor(np.array([0.0]))}
    clipped = ts.optim.clip_by_global_norm(grads, 1.0)
    np.testing.assert_allclose(clipped["x"], [0.6, 0.8], rtol=1e-14)
