"""alpa_shard: what it chooses is the cheapest of all layouts, and computes what the whole program does."""

from __future__ import annotations

import itertools

import numpy as np

import tessera as ts
from tessera import dist, op
from tessera.lang.dist.alpa import _operations, operations

SPEC = dist.ShardSpec
MESH = dist.Mesh(["x"], shape=(4,))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def mlp(x, up, down):
    return op.relu(x @ up) @ down


def test_a_large_batch_is_cut_along_its_rows():
    with ts.core.flags.override(target="numpy"):
        rows_are_cut()


def rows_are_cut():
    f = ts.alpa_shard(mlp, MESH)
    x, up, down = normal(4096, 8), normal(8, 16), normal(16, 8)
    found = f.choice(x, up, down)
    assert found.specs[0] == SPEC((0,), ("x",))
    assert found.bytes == 0
    np.testing.assert_allclose(
        f(x, up, down).full(), np.maximum(x @ up, 0) @ down, rtol=1e-10, atol=1e-12
    )
    assert f(x, up, down).layout == SPEC((0,), ("x",))


def test_large_weights_are_cut_in_pairs():
    """Columns of the first matrix, rows of the second: one sum of the small result."""
    f = ts.alpa_shard(mlp, MESH)
    found = f.choice(normal(2, 512), normal(512, 2048), normal(2048, 512))
    assert found.specs[1:] == (SPEC((1,), ("x",)), SPEC((0,), ("x",)))


def test_no_other_layout_is_cheaper():
    """Against every candidate, counted by dist.explain."""
    f = ts.alpa_shard(lambda a, b: op.sum(a @ b, axis=0), MESH)
    a, b = normal(64, 32), normal(32, 16)
    found = f.choice(a, b)
    assert found.tried == 9
    fewest = min(
        dist.explain(
            lambda a, b: op.sum(a @ b, axis=0), dist.tensor(a, s, MESH), dist.tensor(b, t, MESH)
        ).bytes
        for s, t in itertools.product((SPEC((0,), ("x",)), SPEC((1,), ("x",))), repeat=2)
    )
    assert found.bytes <= fewest


def test_layers_of_one_name_have_one_layout():
    mesh = dist.Mesh(["dp", "tp"], shape=(2, 2))

    def net(params, x):
        for p in params:
            x = x + op.tanh(x @ p["up"]) @ p["down"]
        return op.mean(op.square(x))

    params = [{"up": normal(8, 16, seed=k), "down": normal(16, 8, seed=9 + k)} for k in range(3)]
    f = ts.alpa_shard(net, mesh)
    with ts.core.flags.override(target="numpy"):
        found = f.choice(params, normal(64, 8))
        assert len({found.specs[k] for k in (0, 2, 4)}) == 1
        whole = ts.jit(net)(ts.tree.map(ts.tensor, params), ts.tensor(normal(64, 8)))
        np.testing.assert_allclose(float(f(params, normal(64, 8))), float(whole), rtol=1e-12)


def test_operations_are_counted_by_hand():
    """Contractions twice for each term, folds and elements once; several results by their largest."""
    a, b = np.zeros((3, 4)), np.zeros((4, 5))
    cases = (
        (lambda x, y: x @ y, (a, b), 2 * 3 * 4 * 5),
        (lambda x: op.sin(x), (a,), 12),
        (lambda x: op.sum(x, 0), (a,), 12),
        (lambda x: ts.scan(lambda c, r: (op.sin(c), r), x[0], x)[0], (a,), None),
        (lambda x: op.qr(x)[1], (np.zeros((8, 3)),), 8 * 3),  # q has more elements than r
    )
    for f, args, wanted in cases:
        g = ts.jit(f).lower(*map(ts.tensor, args)).graph
        if wanted is None:
            assert operations(g) >= 3 * 4
        else:
            assert sum(_operations(n) for n in g.nodes) == operations(g) == wanted, g
