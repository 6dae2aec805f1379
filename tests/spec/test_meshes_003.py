"""What the principles and the example snippets say of meshes, in their words."""

import numpy as np
import pytest

import tessera as ts
from tessera import alpa_shard, checkpoint, dist, jit, mesh, op, pmap, remat, scan, vmap
from tessera import map as map_

DEVS = range(4)


def normal(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_with_mesh_shard():
    """with mesh(devs).shard(W{"d_model"})"""
    W = normal(6, 8)

    with mesh(DEVS).shard("d_model"):
        laid = dist.tensor(W, names=("d_in", "d_model"))

    assert laid.shards[1].shape == (6, 2)
    np.testing.assert_array_equal(laid.full(), W)


def test_mesh_layouts():
    """Mesh layouts: {"batch":"replicate", "seq":"shard", "params":"replicate"}"""
    x, w = normal(2, 8, 6), normal(6, 5)

    with mesh(DEVS, layout={"batch": "replicate", "seq": "shard", "params": "replicate"}):
        tokens = dist.tensor(x, names=("batch", "seq", "d"))
        params = dist.tensor(w, names=("params", "d_out"))

    y = jit(lambda x, w: op.softmax(x @ w))(tokens, params)
    e = np.exp(x @ w)
    np.testing.assert_allclose(y.full(), e / e.sum(-1, keepdims=True), rtol=1e-12)


TP = dist.Mesh(["tp"], shape=(4,))
COMPOSED = {
    "pmap donate": lambda f: pmap(f, donate={0}),
    "pmap jit": lambda f: pmap(jit(f)),
    "jit pmap": lambda f: jit(pmap(f)),
    "pmap vmap": lambda f: pmap(vmap(f)),
    "vmap pmap": lambda f: vmap(pmap(f)),
    "pmap checkpoint": lambda f: pmap(checkpoint(f)),
    "pmap remat": lambda f: pmap(remat(f)),
    "alpa_shard": lambda f: alpa_shard(f, TP),
    "jit alpa_shard": lambda f: jit(alpa_shard(f, TP)),
    "alpa_shard vmap": lambda f: alpa_shard(vmap(f), TP),
    "map": lambda f: lambda x: map_(f, dist.tensor(x, None, TP)),
}


@pytest.mark.parametrize("name", list(COMPOSED))
def test_transforms_compose(name):
    x = normal(4, 5, 6)
    f = COMPOSED[name](lambda v: op.tanh(v) * 2)
    np.testing.assert_allclose(f(x).numpy(), 2 * np.tanh(x), rtol=1e-12)


def test_pmap_of_scan_and_derivatives():
    x = normal(4, 5, 6)

    def summed(v):
        return scan(lambda c, row: (c + row, c + row), op.zeros((6,), dtype="f64"), v)[1]

    np.testing.assert_allclose(pmap(summed)(x).numpy(), x.cumsum(1), rtol=1e-12)
    g = pmap(ts.grad(lambda v: op.sum(op.square(summed(v)))))(x)
    np.testing.assert_allclose(g.numpy(), 2 * x.cumsum(1)[:, ::-1].cumsum(1)[:, ::-1], rtol=1e-12)


def test_collectives():
    """map, reduce, scan, all_gather, all_reduce, all_to_all, pipeline"""
    x = normal(4, 4, 3)
    for f, want in [
        (lambda v: dist.all_reduce(v, "shards"), np.broadcast_to(x.sum(0), x.shape)),
        (lambda v: dist.all_gather(v, "shards"), np.broadcast_to(x, (4, *x.shape))),
        (lambda v: dist.all_to_all(v, "shards", split=0, join=0), x.swapaxes(0, 1)),
    ]:
        np.testing.assert_allclose(pmap(f)(x).numpy(), want, rtol=1e-12)
    y = op.pipeline(
        [dist.tensor(x, dist.ShardSpec((0,), ("x",)), dist.Mesh(["x"], shape=(4,))), op.relu]
    )
    np.testing.assert_array_equal(y.full(), np.maximum(x, 0))
