"""drop_unit_axes: a program for mesh axes of one shard is that of no mesh."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.flags import override

SPEC = dist.ShardSpec((0, 1), ("a", "b"))
X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)

# Of one shard along a each of these is what it says on the right.
PROGRAMS = {
    "sum": (lambda v: v + dist.all_reduce(v, "a"), lambda v: v + v),
    "max": (lambda v: v - dist.all_reduce(v, "a", op="max"), lambda v: v - v),
    "gather": (lambda v: op.sum(dist.all_gather(v, "a"), axis=0), lambda v: v),
    "scatter": (lambda v: dist.reduce_scatter(v, "a", dim=0), lambda v: v),
    "to all": (lambda v: dist.all_to_all(v, "a", 0, 0), lambda v: v),
    "permute": (lambda v: dist.permute(v, "a", [(0, 0)]), lambda v: v),
    "nothing comes": (lambda v: dist.permute(v, "a", []), lambda v: 0 * v),
    "index": (lambda v: v + dist.axis_index("a"), lambda v: v),
    "branch": (
        lambda v: op.cond(
            dist.all_reduce(op.sum(v), "a") > 0, lambda v: dist.all_reduce(v, "a"), lambda v: -v, v),
        lambda v: op.cond(op.sum(v) > 0, lambda v: v, lambda v: -v, v)),
    "loop": (
        lambda v: op.scan(lambda c, r: (c + dist.all_reduce(r, "a"), c), 0 * v[0], v)[1],
        lambda v: op.scan(lambda c, r: (c + r, c), 0 * v[0], v)[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 2)])
def test_an_axis_of_one_shard_is_no_axis(name, shape):
    f, plain = PROGRAMS[name]
    mesh, other = dist.Mesh(["a", "b"], shape=shape), dist.Mesh(["b"], shape=shape[1:])
    along = dist.ShardSpec((1,), ("b",))
    with override(target="numpy"):
        for wrap in (lambda g: g, lambda g: ts.grad(lambda v: op.sum(op.sin(g(v))))):
            made = wrap(dist.shard_map(f, mesh, SPEC, SPEC))(dist.tensor(X, SPEC, mesh))
            want = wrap(dist.shard_map(plain, other, along, along))(dist.tensor(X, along, other))
            np.testing.assert_array_equal(made.full(), want.full())
            assert made.layout == SPEC


def test_a_step_on_one_shard_has_the_kernels_of_no_mesh():
    """An axis of size 1 in front of all tensors kept Adam out of the kernels of the gradients."""

    def loss(w, x):
        return op.mean(op.square(op.tanh(x @ w) - x))

    s, adam = dist.strategy.data(dist.Mesh(["dp"], shape=(1,)), "dp"), ts.optim.adam(1e-3)
    w, x = (ts.tensor(X[:, :4]) for _ in range(2))
    meshed, state = s.step(loss, adam), adam.init(w)

    @ts.jit
    def step(w, state, x):
        value, grads = ts.value_and_grad(loss)(w, x)
        return value, *adam.update(grads, state, w)

    args, given = (w, state, x), (s.params(w), s.state(state), s.batch(x))
    with ts.profile() as p:
        value, new, _ = step(*args)
    with ts.profile() as q:
        value_, new_, _ = meshed(*given)
    assert len(q.kernels) == len(p.kernels)
    assert (float(value_), new_.numpy().tobytes()) == (float(value), new.numpy().tobytes())
